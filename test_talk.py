"""What talk.py promises, promise by promise.

Most of it is shown on a chain: a model whose weights are written by hand, so that each character
decides alone, and for certain, what follows it.
"""
from __future__ import annotations

import argparse
import contextlib
import errno
import importlib.util
import io
import math
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import checkpoint
import talk
from bpe import END, UNK, Tokenizer
from bundle import save_checkpoint
from checkpoint import input_signature
from model import init_params, next_logits
from test_support import no_children
from train import CONFIG

HERE = Path(__file__).resolve().parent
PTY = importlib.util.find_spec("pty") is not None
TEXT = "the kite was red."
ESCAPE = re.compile(rb"\x1b(\[[0-9;?]*[A-Za-z]|[=>])")
PROMPT_AGAIN = re.compile(rb"bc\r\n\n?> $")     # PyPy's line editor starts a new line by itself
NOTHING = re.compile(rb"(?!)")                  # matches nowhere

ALPHABET = [" ", "a", "b", "c", "d", "e", "\u00e9", "u", "\ud83d", "r", "s"]
NEXT = {"a": ["b"], "b": ["c"], "d": ["d"], "e": ["\u00e9"], "u": ["\ud83d"], "r": ["r", "s"], "s": ["r", "s"]}
# a -> bc and the end; d -> d for ever; e and u -> a character that a console may not have;
# r -> r or s, evenly, for ever; whatever else -> the end. `<unk>` would always be likeliest.


def chain(max_len=8):
    """(params, cfg, tok): wte is one-hot, so column i of lm_head is what the scores are after token i."""
    tok = Tokenizer(ALPHABET, [])
    size = len(tok.vocab)
    cfg = {**CONFIG, "d": size, "hidden": 1, "max_len": max_len}
    params = {name: [[0.0] * size for _ in matrix]
              for name, matrix in init_params(size, size, 1, max_len, 0).items()}
    for i, token in enumerate(tok.vocab):
        params["wte"][i][i] = 1.0
        params["lm_head"][UNK][i] = 100.0
        for following in NEXT.get(token, ["<end>"]):
            params["lm_head"][tok.vocab.index(following)][i] = 50.0
    return params, cfg, tok


def save_best(path, params, cfg, tok, **changes):
    body = {"step": 50, "dev_loss": 2.5, "config": cfg, "params": params,
            "training_inputs": input_signature(tok, TEXT), **changes}
    checkpoint.save(path, body)


class ChainFolder(unittest.TestCase):
    """A folder with the chain's best.json and tokenizer.json."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.params, self.cfg, self.tok = chain()
        self.tok.save(self.path("tokenizer.json"))
        save_best(self.path("best.json"), self.params, self.cfg, self.tok)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def arguments(self, *argv, model="best.json"):
        return [self.path(model), "--tokenizer", self.path("tokenizer.json"), *argv]

    def without_folder(self, text):
        return text.replace(self.folder + os.sep, "")


class InProcess(ChainFolder):
    """`main` called here: what it says must hold where there are no processes too."""

    def say(self, *argv, lines=(), model="best.json"):
        """(exit status, standard output, standard error) of a talk of these lines."""
        return self.main(self.arguments(*argv, model=model), "".join(f"{line}\n" for line in lines).encode())

    def main(self, argv, data=b"", encoding="utf-8"):
        """(exit status, standard output, standard error) of `main` with these bytes as its input."""
        out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
        err = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
        with mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8")), \
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = talk.main(argv)
            except SystemExit as stop:
                status = stop.code
            texts = []
            for stream in (out, err):
                stream.flush()
                texts.append(self.without_folder(stream.buffer.getvalue().decode("utf-8")))
        return status, *texts


# ---------------------------------------------------------------------------- scores

class Scores(unittest.TestCase):
    def test_keys_and_values_kept_give_the_very_bits_of_the_whole_forward_pass(self):
        for d, hidden, max_len in ((3, 5, 1), (4, 7, 6), (16, 64, 12)):
            params = init_params(9, d, hidden, max_len, 1)
            params["lm_head"] = [[10.0 * value for value in row] for row in params["lm_head"]]
            rng, story, ids = random.Random(2), talk.Story(params), []
            for position in range(2 * max_len + 2):
                ids.append(rng.randrange(9))
                with self.subTest(d=d, position=position):
                    self.assertEqual([x.hex() for x in story.logits_after(ids[-1])],
                                     [x.hex() for x in next_logits(params, ids)])

    def test_within_the_window_a_token_costs_one_token(self):
        params = init_params(9, 4, 7, 6, 1)
        story = talk.Story(params)
        with mock.patch.object(talk, "next_logits", side_effect=AssertionError):
            for token in range(6):
                story.logits_after(token)
            self.assertRaises(AssertionError, story.logits_after, 6)

    def test_a_story_does_not_change_the_weights(self):
        params = init_params(9, 4, 7, 6, 1)
        talk.reply(params, [2, 3], talk.likeliest, 10)
        self.assertEqual(params, init_params(9, 4, 7, 6, 1))


# ---------------------------------------------------------------------------- choosing

class Choosing(unittest.TestCase):
    LOGITS = [9.0, math.log(1), math.log(2), math.log(4), math.log(1), math.log(8)]     # of ids 0 to 5

    def probs(self, temperature=1.0, top_k=None, top_p=1.0):
        ids, probs = talk.candidates(self.LOGITS, temperature, top_k, top_p)
        return ids, [round(p, 6) for p in probs]

    def test_candidates_are_likeliest_first_and_never_unk(self):
        self.assertEqual(self.probs(), ([5, 3, 2, 1, 4], [0.5, 0.25, 0.125, 0.0625, 0.0625]))

    def test_temperature_divides_the_scores(self):
        self.assertEqual(self.probs(temperature=0.5)[1], [round(n / 86, 6) for n in (64, 16, 4, 1, 1)])

    def test_top_k_keeps_the_k_likeliest_and_of_equals_the_lower_id(self):
        self.assertEqual(self.probs(top_k=1), ([5], [1.0]))
        self.assertEqual(self.probs(top_k=4)[0], [5, 3, 2, 1])
        self.assertEqual(self.probs(top_k=99)[0], [5, 3, 2, 1, 4])

    def test_top_p_keeps_the_fewest_that_reach_it(self):
        for top_p, kept in ((1e-9, [5]), (0.49, [5]), (0.51, [5, 3]), (0.74, [5, 3]), (0.76, [5, 3, 2]),
                            (1.0, [5, 3, 2, 1, 4])):
            with self.subTest(top_p=top_p):
                self.assertEqual(self.probs(top_p=top_p)[0], kept)

    def test_the_order_is_temperature_then_top_k_then_top_p(self):
        # At temperature 0.5 the likeliest has 64/86 = 0.744, at temperature 1 it has 0.5.
        self.assertEqual(self.probs(temperature=0.5, top_p=0.7)[0], [5])
        self.assertEqual(self.probs(temperature=1.0, top_p=0.7)[0], [5, 3])
        # Of the two likeliest alone the first has 2/3: top-p counts after top-k.
        self.assertEqual(self.probs(top_k=2, top_p=0.6)[0], [5])
        self.assertEqual(self.probs(top_k=5, top_p=0.6)[0], [5, 3])

    def test_every_temperature_that_is_allowed_works(self):
        for temperature in (5e-324, 1e-300, 1e300, sys.float_info.max):
            ids, probs = talk.candidates(self.LOGITS, temperature, None, 1.0)
            with self.subTest(temperature=temperature):
                self.assertEqual((ids[0], all(map(math.isfinite, probs))), (5, True))
                self.assertEqual(round(probs[0], 6), 1.0 if temperature < 1 else 0.2)

    def test_a_draw_takes_each_candidate_as_often_as_its_share(self):
        for u, drawn in ((0.0, 7), (0.49, 7), (0.51, 8), (0.74, 8), (0.76, 9), (1 - 2 ** -53, 9)):
            rng = mock.Mock(random=lambda u=u: u)
            with self.subTest(u=u):
                self.assertEqual(talk.draw([7, 8, 9], [0.4, 0.2, 0.2], rng), drawn)
        self.assertEqual(talk.draw([7, 8, 9], [0.5, 0.25, 0.25], mock.Mock(random=lambda: 0.5)), 8)
        counts, rng = [0, 0, 0], random.Random(1)
        for _ in range(4000):
            counts[talk.draw([0, 1, 2], [0.5, 0.0, 0.25], rng)] += 1
        self.assertEqual(counts[1], 0)
        self.assertLess(abs(counts[0] / 4000 - 2 / 3), 0.03)

    def test_a_draw_takes_one_number_whatever_there_is_to_draw_from(self):
        for ids, probs in (([4], [1.0]), ([4, 5, 6], [0.2, 0.3, 0.4])):
            rng, twin = random.Random(3), random.Random(3)
            talk.draw(ids, probs, rng)
            twin.random()
            self.assertEqual(rng.getstate(), twin.getstate())

    def test_the_likeliest_is_the_lowest_of_equals_and_never_unk(self):
        self.assertEqual([talk.likeliest(row) for row in ([9.0, 1.0, 3.0, 3.0], [9.0, 1.0, 1.0], [9.0, -1e308])],
                         [2, 1, 1])

    def test_greedy_and_temperature_zero_take_the_likeliest(self):
        for argv in (["--greedy"], ["--temperature", "0"], ["--temperature", "2", "--greedy"]):
            with self.subTest(argv=argv):
                rng = random.Random(1)
                self.assertIs(talk.chooser(talk.parse_arguments(argv), rng), talk.likeliest)

    def test_only_the_talks_own_generator_is_used(self):
        random.seed(5)
        before = random.getstate()
        choose = talk.chooser(argparse.Namespace(greedy=False, temperature=1.0, top_k=None, top_p=1.0),
                              random.Random(1))
        chosen = [choose(self.LOGITS) for _ in range(50)]
        self.assertEqual(random.getstate(), before)
        self.assertGreater(len(set(chosen)), 2)

    def test_drawn_tokens_are_the_same_on_every_machine(self):
        rng = random.Random(0)
        drawn = [talk.draw(*talk.candidates(self.LOGITS, 1.0, None, 1.0), rng) for _ in range(12)]
        self.assertEqual(drawn, [2, 2, 5, 5, 3, 5, 2, 5, 5, 3, 1, 3])


class Replies(unittest.TestCase):
    def setUp(self):
        self.params, _, self.tok = chain()

    def reply(self, prompt, limit=64):
        return self.tok.decode(talk.reply(self.params, self.tok.encode(prompt), talk.likeliest, limit))

    def test_a_reply_is_what_is_new_up_to_the_end_token(self):
        self.assertEqual([self.reply(prompt) for prompt in ("a", "b", "c", "d a", "e")], ["bc", "c", "", "bc", "\u00e9"])

    def test_a_reply_has_at_most_the_tokens_asked_for(self):
        self.assertEqual([self.reply("d", n) for n in (1, 2, 50)], ["d", "dd", "d" * 50])
        self.assertEqual([self.reply("a", n) for n in (1, 2, 3)], ["b", "bc", "bc"])

    def test_neither_unk_nor_end_is_ever_in_it(self):
        # An `<unk>` that would be a thousand times likelier, whatever the settings.
        for settings in (["--greedy"], ["--temperature", "100"], ["--top-k", "1"], ["--top-p", "0.01"]):
            choose = talk.chooser(talk.parse_arguments(settings), random.Random(1))
            ids = talk.reply(self.params, self.tok.encode("r"), choose, 40)
            with self.subTest(settings=settings):
                self.assertTrue(ids)
                self.assertFalse({UNK, END} & set(ids))

    def test_a_story_longer_than_the_window_sees_its_last_tokens(self):
        params, _, tok = chain(max_len=3)
        seen = []

        def choose(logits):
            seen.append(logits)
            return 3 + len(seen) % 5

        ids = tok.encode("ab") + talk.reply(params, tok.encode("ab"), choose, 9)
        for i, logits in enumerate(seen):
            self.assertEqual(logits, next_logits(params, ids[max(0, i - 1):i + 2]))


# ---------------------------------------------------------------------------- the program's behaviour

class Talking(InProcess):
    def test_only_new_text_is_printed_after_each_prompt(self):
        self.assertEqual(self.say("--greedy", "--seed", "1", lines=["a", "d a", "c", "b", ""]),
                         (0, "> bc\n> bc\n> \n> c\n> ", ""))

    def test_an_empty_line_ends_it(self):
        for line in ("", "   ", "\t", "\r"):
            with self.subTest(line=line):
                self.assertEqual(self.say("--seed", "1", lines=["a", line, "a"]), (0, "> bc\n> ", ""))

    def test_end_of_input_ends_it(self):
        self.assertEqual(self.main(self.arguments("--seed", "1")), (0, "> \n", ""))
        self.assertEqual(self.main(self.arguments("--seed", "1"), b"a"), (0, "> bc\n> \n", ""))
        for name in ("stdin", "stdout"):
            with mock.patch.object(sys, name, None):
                self.assertRaises(EOFError, talk.ask_person)

    def test_ctrl_c_ends_it_wherever_it_comes(self):
        for place in ("choose_model", "reply", "ask_person"):
            with self.subTest(place), mock.patch.object(talk, place, side_effect=KeyboardInterrupt):
                status, out, err = self.say("--seed", "1", lines=["a"])
                self.assertEqual((status, out[-1:], err), (0, "\n", ""))

    def test_unknown_characters_are_named_and_left_out(self):
        table = {
            "x\u03a9": ("> > ", "(left out, not in the model's alphabet: 'x', '\u03a9')\n"),
            "\u03a9a": ("> bc\n> ", "(left out, not in the model's alphabet: '\u03a9')\n"),
            " \u03a9 a \u03a9 ": ("> bc\n> ", "(left out, not in the model's alphabet: '\u03a9')\n"),
            "a\ta": ("> bc\n> ", "(left out, not in the model's alphabet: '\\t')\n"),
            "a\0a\x1b": ("> bc\n> ", "(left out, not in the model's alphabet: '\\x00', '\\x1b')\n"),
            "\U0001f680b": ("> c\n> ", "(left out, not in the model's alphabet: '\U0001f680')\n"),
            "\ufeffb": ("> c\n> ", "(left out, not in the model's alphabet: '\\ufeff')\n"),
            "ABCDEFGHIJKLb": ("> c\n> ", "(left out, not in the model's alphabet: 'A', 'B', 'C', 'D', 'E', 'F', "
                                         "'G', 'H', 'I', 'J' and 2 more)\n"),
        }
        for line, (out, err) in table.items():
            with self.subTest(line=line):
                self.assertEqual(self.say("--seed", "1", lines=[line, ""]), (0, out, err))

    def test_bytes_that_are_not_utf_8_are_named_and_the_loop_goes_on(self):
        self.assertEqual(self.main(self.arguments("--seed", "1"), b"a\xff\xfe\na\xc3\na\n\n"), (
            0, "> bc\n> bc\n> bc\n> ",
            "(left out, not in the model's alphabet: byte 0xff, byte 0xfe)\n"
            "(left out, not in the model's alphabet: byte 0xc3)\n"))

    def test_a_prompt_longer_than_the_window_is_cut_from_the_left_and_said_so(self):
        note = "(the prompt has {} tokens and the model's window 8: the first {} are left out)\n"
        self.assertEqual(self.say("--seed", "1", lines=["d" * 7 + "a", ""])[1:], ("> bc\n> ", ""))
        self.assertEqual(self.say("--seed", "1", lines=["d" * 8 + "a", ""])[1:], ("> bc\n> ", note.format(9, 1)))
        self.assertEqual(self.say("--seed", "1", lines=["d" * 800 + "a", ""])[1:], ("> bc\n> ", note.format(801, 793)))
        with mock.patch.object(talk, "note"):
            self.assertEqual(talk.prompt_ids(self.tok, "d" * 9 + "abc", 8), self.tok.encode("dddddabc"))

    def test_the_window_slides_under_a_long_reply(self):
        self.assertEqual(self.say("--seed", "1", "--max-new-tokens", "30", lines=["d", ""])[1], f"> {'d' * 30}\n> ")

    def test_a_character_that_the_console_does_not_have_is_escaped(self):
        out = self.main(self.arguments("--seed", "1"), b"e\nu\n\n", encoding="ascii")[1]
        self.assertEqual(out, "> \\xe9\n> \\ud83d\n> ")

    def test_the_same_seed_gives_the_same_text_and_another_seed_another(self):
        texts = [self.say("--seed", seed, lines=["r", "r", ""])[1] for seed in ("7", "7", "8")]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])
        self.assertRegex(texts[0], "^> [rs]{64}\n> [rs]{64}\n> $")
        self.assertNotEqual(*texts[0].splitlines()[:2])

    def test_a_drawn_seed_is_shown_first_and_gives_the_text_again(self):
        with mock.patch.object(talk.secrets, "randbelow", return_value=123):
            drawn = self.say(lines=["r", ""])
        self.assertEqual(drawn[2], "(seed 123)\n")
        self.assertEqual(self.say("--seed", "123", lines=["r", ""]), (0, drawn[1], ""))

    def test_no_seed_is_drawn_where_nothing_is(self):
        for argv in (["--greedy"], ["--temperature", "0"]):
            self.assertEqual(self.say(*argv, lines=["a", ""]), (0, "> bc\n> ", ""))

    def test_two_talks_without_a_seed_differ(self):
        self.assertNotEqual(self.say(lines=["r", ""])[1:], self.say(lines=["r", ""])[1:])

    def test_flags_out_of_range_are_refused_with_the_range(self):
        whole, finite, share = ("is not a whole number from 1 up", "is not a finite number from 0 up",
                                "is not a number above 0 and up to 1")
        table = [("--top-k", "0", whole), ("--top-k", "-1", whole), ("--top-k", "1.5", whole), ("--top-k", "", whole),
                 ("--max-new-tokens", "0", whole), ("--max-new-tokens", "x", whole), ("--temperature", "-0.1", finite),
                 ("--temperature", "inf", finite), ("--temperature", "nan", finite), ("--temperature", "x", finite),
                 ("--top-p", "0", share), ("--top-p", "1.01", share), ("--top-p", "nan", share),
                 ("--top-p", "-1", share), ("--seed", "0.5", "is not a whole number"),
                 ("--seed", "x", "is not a whole number")]
        for flag, value, problem in table:
            with self.subTest(flag=flag, value=value):
                status, out, err = self.say(flag, value)
                self.assertEqual((status, out), (2, ""))
                self.assertTrue(err.endswith(f"talk.py: error: argument {flag}: {value!r} {problem}\n"), err)

    def test_flags_at_the_ends_of_their_ranges_are_accepted(self):
        flags = ["--top-k", "1", "--top-p", "1", "--max-new-tokens", "1", "--temperature", "1e-300", "--seed", "-3"]
        self.assertEqual(self.say(*flags, lines=["a", ""])[:2], (0, "> b\n> "))

    def test_a_write_error_is_one_sentence_and_a_reader_who_left_is_none(self):
        full = OSError(28, "No space left on device")
        for error, expected in ((full, (1, "talk.py: [Errno 28] No space left on device\n")),
                                (BrokenPipeError(32, "Broken pipe"), (0, ""))):
            with self.subTest(error=error), mock.patch.object(talk, "converse", side_effect=error):
                status, _, err = self.say("--seed", "1")
                self.assertEqual((status, err), expected)

    def test_on_windows_a_reader_who_left_is_told_by_einval_from_a_write(self):
        odd, broken = errno.EINVAL, errno.EPIPE
        table = [("nt", OSError(odd, "Invalid argument"), True), ("nt", OSError(broken, "Broken pipe"), True),
                 ("nt", OSError(odd, "Invalid argument", "a?b"), False), ("nt", ValueError("x"), False),
                 ("posix", OSError(odd, "Invalid argument"), False), ("posix", OSError(broken, "Broken pipe"), True)]
        for system, error, left in table:
            with self.subTest(system=system, error=error), mock.patch.object(talk.os, "name", system):
                self.assertEqual(talk.reader_left(error), left)

    def test_absurd_weights_are_no_traceback(self):
        params = {name: [[1e300] * len(row) for row in matrix] for name, matrix in self.params.items()}
        save_best(self.path("best.json"), params, self.cfg, self.tok)
        for argv in (["--greedy"], []):
            self.assertEqual(self.say("--seed", "1", *argv, lines=["a", ""])[0], 0)

    def test_a_transcript_is_what_a_terminal_shows(self):
        argv = self.arguments("--seed", "1")
        self.assertEqual(talk.transcript(argv, ["a", "\u03a9b"]),
                         "> a\nbc\n> \u03a9b\n(left out, not in the model's alphabet: '\u03a9')\nc\n> \n")


class Models(InProcess):
    """Which files can be talked to, and what is said of those that cannot."""

    def test_a_checkpoint_a_runs_folder_and_a_bundle_can_all_be_talked_to(self):
        os.mkdir(self.path("run"))
        shutil.copy(self.path("best.json"), self.path("run"))
        save_best(self.path("last.json"), self.params, self.cfg, self.tok, history=[1.0])
        for model in ("best.json", "run", "last.json"):
            with self.subTest(model):
                self.assertEqual(self.say("--seed", "1", lines=["a", ""], model=model), (0, "> bc\n> ", ""))
        save_checkpoint(self.path("m"), self.params, self.cfg, self.tok)
        for model in ("m", "m.npz", "m.json", "m.tok.json"):
            with self.subTest(model):
                self.assertEqual(self.main([self.path(model), "--seed", "1"], b"a\n\n"), (0, "> bc\n> ", ""))

    def test_a_bundle_needs_no_tokenizer_file_and_takes_no_other(self):
        other = Tokenizer(ALPHABET[::-1], [])
        save_checkpoint(self.path("m"), self.params, self.cfg, self.tok)
        self.assertEqual(self.say("--seed", "1", lines=["a", ""], model="m"), (0, "> bc\n> ", ""))
        other.save(self.path("tokenizer.json"))
        self.assertEqual(self.say(model="m"), (
            1, "", "talk.py: bundle m has a tokenizer of its own, and it is not tokenizer.json; "
                   "leave out --tokenizer\n"))

    def test_a_folder_that_is_a_run_comes_before_a_bundle_of_the_same_name(self):
        save_checkpoint(self.path("m"), self.params, self.cfg, self.tok)
        os.mkdir(self.path("m"))
        self.assertEqual(self.say("--seed", "1", lines=["a", ""], model="m")[0], 0)
        Path(self.path("m", "best.json")).write_bytes(b"{")
        self.assertIn(os.path.join("m", "best.json"), self.say(model="m")[2])

    def test_what_cannot_be_talked_to_is_refused_in_one_sentence(self):
        other = Tokenizer(ALPHABET[::-1], [])
        inputs = input_signature(self.tok, TEXT)
        inputs["source_sha256"]["model.py"] = "0" * 64
        ragged = {**self.params, "wpe": self.params["wpe"][:-1]}
        for name, params, changes in (("1.json", self.params, {"training_inputs": input_signature(other, TEXT)}),
                                      ("2.json", self.params, {"training_inputs": inputs}),
                                      ("3.json", self.params, {"training_inputs": None}),
                                      ("4.json", ragged, {})):
            save_best(self.path(name), params, self.cfg, self.tok, **changes)
        os.mkdir(self.path("run"))
        shutil.copy(self.path("best.json"), self.path("run", "last.json"))
        os.mkdir(self.path("empty"))
        Path(self.path("corpus.txt")).write_text(TEXT, encoding="utf-8")
        Path(self.path("half.json")).write_bytes(Path(self.path("best.json")).read_bytes()[:-9])
        Path(self.path("m.npz")).write_bytes(b"")
        table = {
            "1.json": "checkpoint 1.json was trained with another tokenizer than tokenizer.json; name the right one "
                      "with --tokenizer FILE",
            "2.json": "checkpoint 2.json was trained with other sources (model.py), so what it would say here "
                      "may not be what it learned; its weights still work as a bundle: "
                      "python3 bundle.py 2.json PREFIX, then python3 talk.py PREFIX",
            "3.json": "checkpoint 3.json does not record the tokenizer that it was trained with; train it again: "
                      "python3 runs.py train FOLDER",
            "4.json": "checkpoint 4.json: field 'params.wpe' is not a list of 8 rows",
            "run": "folder run has a last.json but no best.json yet: train to the first evaluation, or use "
                   + os.path.join("run", "last.json"),
            "empty": "folder empty holds no best.json; expected the folder of a run",
            "corpus.txt": "checkpoint corpus.txt is not valid JSON: Expecting value: line 1 column 1 (char 0)",
            "tokenizer.json": "tokenizer.json: checkpoint format None; expected 1",
            "nowhere": "no checkpoint nowhere; start a run with: python3 runs.py train FOLDER",
            "m": "bundle m: m.tok.json is missing; export it again: python3 bundle.py CHECKPOINT m",
            "m.npz": "bundle m: m.tok.json is missing; export it again: python3 bundle.py CHECKPOINT m",
        }
        for model, problem in table.items():
            with self.subTest(model):
                self.assertEqual(self.say(model=model), (1, "", f"talk.py: {problem}\n"))
        status, out, err = self.say(model="half.json")
        self.assertEqual((status, out, err.count("\n")), (1, "", 1))
        self.assertTrue(err.startswith("talk.py: checkpoint half.json is not valid JSON: "), err)

    def test_a_name_without_its_end_is_no_bundle(self):
        self.assertEqual(self.say(model="best")[2], "talk.py: no checkpoint best; start a run with: "
                                                    "python3 runs.py train FOLDER\n")

    def test_another_corpus_does_not_matter(self):
        save_best(self.path("best.json"), self.params, self.cfg, self.tok,
                  training_inputs=input_signature(self.tok, "another text"))
        self.assertEqual(self.say("--seed", "1", lines=["a", ""])[0], 0)

    def test_a_tokenizer_that_is_missing_or_none_is_refused(self):
        Path(self.path("tokenizer.json")).write_bytes(b"{")
        self.assertRegex(self.say()[2], "^talk.py: tokenizer tokenizer.json: .+\n$")
        os.unlink(self.path("tokenizer.json"))
        self.assertRegex(self.say()[2], "^talk.py: tokenizer tokenizer.json does not exist; .+\n$")

    def test_the_models_beside_the_program_are_the_defaults(self):
        with mock.patch.object(talk, "HERE", Path(self.folder)), \
                mock.patch.object(talk, "TOKENIZER", self.path("tokenizer.json")):
            self.assertEqual(self.main(["--seed", "1"], b"a\n\n"), (0, "> bc\n> ", ""))


# ---------------------------------------------------------------------------- the real program

@unittest.skipIf(no_children(), no_children())
class Program(ChainFolder):
    def environment(self, **changes):
        return {**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONDONTWRITEBYTECODE": "1", **changes}

    def start(self, *argv, program=HERE / "talk.py", env=None, **pipes):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **pipes}
        child = subprocess.Popen([sys.executable, str(program), *argv], env=env or self.environment(),
                                 cwd=self.folder, bufsize=0, **pipes)
        self.addCleanup(self.end, child)
        return child

    def end(self, child):
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()

    def run_program(self, data, *argv, **options):
        """(exit status, standard output, standard error) of the program with these bytes as its input."""
        child = self.start(*argv, **options)
        out, err = child.communicate(data)
        out, err = (stream.decode("utf-8").replace("\r\n", "\n") for stream in (out, err))
        return child.returncode, out, self.without_folder(err)

    def test_a_whole_talk(self):
        data = "\n".join(["a", "\u03a9b", "x", "a\udcff", "d" * 80 + "a", "d", "e", "u", "", "a", ""])
        status, out, err = self.run_program(data.encode("utf-8", "surrogateescape"),
                                            *self.arguments("--seed", "1", "--max-new-tokens", "9"))
        self.assertEqual((status, out), (0, "> bc\n> c\n> > bc\n> bc\n> ddddddddd\n> \u00e9\n> \\ud83d\n> "))
        self.assertEqual(err, "(left out, not in the model's alphabet: '\u03a9')\n"
                              "(left out, not in the model's alphabet: 'x')\n"
                              "(left out, not in the model's alphabet: byte 0xff)\n"
                              "(the prompt has 81 tokens and the model's window 8: the first 73 are left out)\n")

    def test_end_of_input_ends_it(self):
        self.assertEqual(self.run_program(b"a", *self.arguments("--seed", "1")), (0, "> bc\n> \n", ""))

    def test_a_console_that_has_no_such_character_shows_an_escape(self):
        env = self.environment(PYTHONIOENCODING="ascii")
        self.assertEqual(self.run_program("e\n\u03a9\n\n".encode(), *self.arguments("--seed", "1"), env=env)[:2],
                         (0, "> \\xe9\n> > "))

    @unittest.skipIf(os.name == "nt", "no way to send Ctrl-C to one process alone")
    def test_ctrl_c_ends_it_cleanly(self):
        child = self.start(*self.arguments())
        child.stdin.write(b"a\n")
        self.assertEqual(read_until(child.stdout.fileno(), b"bc\n> $"), b"> bc\n> ")
        self.assertEqual(end_with(child, lambda: child.send_signal(signal.SIGINT)), 0)
        self.assertEqual(child.stdout.read(), b"\n")
        self.assertRegex(child.stderr.read(), rb"^\(seed \d+\)\n$")

    def test_a_pipe_that_closes_ends_it_without_a_word(self):
        child = self.start(*self.arguments("--seed", "1"))
        child.stdin.write(b"a\n")
        child.stdin.flush()
        self.assertEqual(child.stdout.readline().rstrip(), b"> bc")
        child.stdout.close()
        child.stdin.write(b"a\n" * 3)               # and more may come, as from `yes a`
        self.assertEqual((child.wait(timeout=60), child.stderr.read()), (0, b""))

    def test_a_pipe_that_closed_before_the_end_of_input_leaves_no_word_either(self):
        child = self.start(*self.arguments("--seed", "1"))
        self.assertEqual(child.stdout.read(2), b"> ")
        child.stdout.close()
        child.stdin.close()
        self.assertEqual((child.wait(timeout=60), child.stderr.read()), (0, b""))

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full on this platform")
    def test_a_full_disk_is_one_sentence(self):
        with open("/dev/full", "wb") as full:
            child = self.start(*self.arguments("--seed", "1"), stdout=full)
            err = child.communicate(b"a\n\n")[1]
        self.assertEqual(child.returncode, 1)
        self.assertRegex(err, rb"^talk.py: \[Errno 28\] No space left on device\n$")

    def test_flags_out_of_range_are_exit_status_2(self):
        for flag, value in (("--temperature", "-1"), ("--top-k", "0"), ("--top-p", "2"), ("--max-new-tokens", "0"),
                            ("--seed", "x")):
            status, out, err = self.run_program(b"a\n", *self.arguments(flag, value))
            with self.subTest(flag=flag):
                self.assertEqual((status, out), (2, ""))
                self.assertIn(f"argument {flag}: '{value}' is not a ", err)

    def test_a_seed_gives_the_same_text_in_every_process(self):
        shown = self.run_program(b"r\n\n", *self.arguments())
        seed = shown[2][len("(seed "):-len(")\n")]
        self.assertEqual(self.run_program(b"r\n\n", *self.arguments("--seed", seed)), (0, shown[1], ""))

    def test_a_model_that_is_refused_is_one_sentence_and_exit_status_1(self):
        Tokenizer(ALPHABET[::-1], []).save(self.path("tokenizer.json"))
        self.assertEqual(self.run_program(b"a\n", *self.arguments()), (
            1, "", "talk.py: checkpoint best.json was trained with another tokenizer than tokenizer.json; "
                   "name the right one with --tokenizer FILE\n"))

    def test_a_fresh_clone_answers_in_under_two_seconds(self):
        clone = self.path("clone")
        os.mkdir(clone)
        for path in HERE.iterdir():
            if path.name in ("best.json", "tokenizer.json") or (
                    path.suffix == ".py" and not path.name.startswith("test_")):
                shutil.copy(path, clone)
        began = time.perf_counter()
        self.start("pass", program="-c").wait()
        slowness = max(1.0, (time.perf_counter() - began) / 0.1)        # 0.1 s is a slow machine's
        began = time.perf_counter()
        status, out, err = self.run_program(b"Mia had a\n\n", "--seed", "1", program=self.path("clone", "talk.py"))
        seconds = time.perf_counter() - began
        self.assertEqual((status, err), (0, ""))
        self.assertRegex(out, "^> .+\n> $")
        self.assertLess(seconds / slowness, 2.0)

    @contextlib.contextmanager
    def terminal(self):
        """(the child, the descriptor of the person before its terminal)."""
        import pty
        person, terminal = pty.openpty()
        try:
            child = self.start(*self.arguments("--seed", "1"), stdin=terminal, stdout=terminal, stderr=terminal,
                               start_new_session=True, preexec_fn=take_terminal, env=self.environment(TERM="xterm"))
            os.close(terminal)
            self.assertIn(b"> ", read_until(person, b"> $"))
            os.write(person, b"a\n")
            self.assertRegex(read_until(person, PROMPT_AGAIN), PROMPT_AGAIN)
            yield child, person
        finally:
            os.close(person)

    @unittest.skipUnless(PTY, "no pseudo-terminals on this platform")
    def test_on_a_terminal_ctrl_c_and_ctrl_d_end_it(self):
        for key in (b"\x03", b"\x04"):
            with self.subTest(key=key), self.terminal() as (child, person):
                self.assertEqual(end_with(child, lambda key=key, person=person: os.write(person, key)), 0)
                self.assertNotIn(b"Traceback", read_until(person, NOTHING))

    @unittest.skipUnless(PTY and importlib.util.find_spec("readline"), "no readline on this platform")
    def test_on_a_terminal_the_line_before_can_be_had_again(self):
        with self.terminal() as (child, person):
            os.write(person, b"\x10\n")             # Ctrl-P, as arrow up
            self.assertRegex(read_until(person, PROMPT_AGAIN), PROMPT_AGAIN)
            os.write(person, b"\n")
            read_until(person, NOTHING)
            self.assertEqual(child.wait(), 0)


def take_terminal():
    """In the child: the terminal's keys are for this process."""
    import fcntl
    import termios
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def end_with(child, interrupt):
    """The child's exit status. Python misses a signal that comes just before it waits for input: try again."""
    for seconds in (1, 2, 4, 8, 16):
        time.sleep(0.1)
        interrupt()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(timeout=seconds)
    return None


def read_until(descriptor, wanted, seconds=60):
    """What comes out of a pipe or terminal until the pattern `wanted` is there, or to the program's end.

    Without the escape sequences that a terminal would obey and not show.
    """
    shown = b""
    while not re.search(wanted, shown) and select.select([descriptor], [], [], seconds)[0]:
        try:
            more = os.read(descriptor, 1000)
        except OSError:                 # Linux: the other side is closed
            break
        if not more:
            break
        shown = ESCAPE.sub(b"", shown + more)
    return shown


if __name__ == "__main__":
    unittest.main()
