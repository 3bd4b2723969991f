"""What bpe.py promises, promise by promise."""
from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import bpe
from bpe import END, PIECE, UNK, Tokenizer
from test_support import no_children

HERE = Path(__file__).resolve().parent
# A letter with its accent and one without, two alphabets more, an emoji of three characters,
# the separators at which `splitlines` cuts, a lone surrogate of either kind.
AWKWARD = "ab .é e\u0301 汉字 ж 👩\u200d🚀 \t\u2028\x0b\x1c\x85 \ud83d \ude00 \"\\<>"


def merge(left, right, frequency=2):
    return {"pair": [left, right], "merged": left + right, "frequency": frequency}


class TemporaryFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def file(self, name, data):
        path = self.path(name)
        Path(path).write_bytes(data if isinstance(data, bytes) else data.encode("utf-8"))
        return path


class WorkedExample(unittest.TestCase):
    """"banana ban band", by hand. The pieces are "banana", " ban" and " band".

        b a n a n a    _ b a n    _ b a n d     an 4, ba 3, na 2, _b 2, nd 1   -> an
        b an an a      _ b an     _ b an d      ban 3, _b 2, the rest 1        -> ban
        ban an a       _ ban      _ ban d       _ban 2, the rest 1             -> _ban
        ban an a       _ban       _ban d        no pair twice: the end

    Ids: 2 to 6 are the characters " ", a, b, d, n; then an 7, ban 8, " ban" 9.
    """

    def setUp(self):
        self.tok = Tokenizer.train("banana ban band", 100)

    def test_training_makes_the_three_merges_and_stops_where_no_pair_occurs_twice(self):
        self.assertEqual(self.tok.merges,
                         [merge("a", "n", 4), merge("b", "an", 3), merge(" ", "ban", 2)])

    def test_ids_are_specials_then_sorted_characters_then_merges(self):
        self.assertEqual(self.tok.alphabet, [" ", "a", "b", "d", "n"])
        self.assertEqual(self.tok.vocab, ["<unk>", "<end>", " ", "a", "b", "d", "n",
                                          "an", "ban", " ban"])

    def test_encoding_applies_the_merges_in_training_order(self):
        self.assertEqual(self.tok.encode("banana band"), [8, 7, 3, 9, 5])     # ban an a| ban d
        self.assertEqual(self.tok.decode([8, 7, 3, 9, 5]), "banana band")


class Training(unittest.TestCase):
    def test_equal_frequencies_are_settled_by_the_smallest_left_then_right(self):
        table = [
            (["dc", "dc", "ba", "ba"], [merge("b", "a"), merge("d", "c")]),
            (["ac", "ac", "ab", "ab"], [merge("a", "b"), merge("a", "c")]),
            (["a\u00e9", "a\u00e9", "az", "az"], [merge("a", "z"), merge("a", "\u00e9")]),
            (["xcd", "ycd", "xab", "yab"], [merge("a", "b"), merge("c", "d")]),
        ]
        for stories, merges in table:
            with self.subTest(stories=stories):
                self.assertEqual(Tokenizer.train(stories, 100).merges, merges)
                self.assertEqual(Tokenizer.train(reversed(stories), 100).merges, merges)

    def test_a_run_of_one_character_counts_as_often_as_it_can_be_merged(self):
        # aaa can be merged once, aaaa twice: 3, not the 5 places where a stands beside a.
        self.assertEqual(Tokenizer.train(["aaa", "aaaa"], 100).merges, [merge("a", "a", 3)])
        self.assertEqual(Tokenizer.train(["aaa"], 100).merges, [])

    def test_merges_never_cross_a_piece_border(self):
        tok = Tokenizer.train(["ab. cd."] * 5, 100)
        self.assertEqual(tok.vocab[2 + len(tok.alphabet):], [" c", " cd", "ab"])
        # The second space of "a  cd" belongs to the first, so " cd" does not come up.
        self.assertEqual([tok.vocab[i] for i in tok.encode("a  cd")], ["a", " ", " ", "c", "d"])

    def test_size_is_never_more_than_asked_and_may_be_less(self):
        sizes = [(size, len(Tokenizer.train("banana ban band", size).vocab))
                 for size in (7, 8, 9, 10, 11)]
        self.assertEqual(sizes, [(7, 7), (8, 8), (9, 9), (10, 10), (11, 10)])

    def test_a_size_without_room_for_the_characters_is_refused_with_the_size_needed(self):
        with self.assertRaises(ValueError) as caught:
            Tokenizer.train("banana ban band", 6)
        self.assertEqual(str(caught.exception), "a vocabulary of 6 is too small; 7 are needed: "
                                                "2 special tokens and 5 characters")

    def test_nothing_to_train_on_is_refused(self):
        for nothing in ("", " \n\r\n", [], [""]):
            with self.subTest(nothing=nothing):
                self.assertRaisesRegex(ValueError, "^there is no story to train on$",
                                       Tokenizer.train, nothing, 100)

    def test_a_text_is_its_lines_without_ends_and_blanks(self):
        text = "\n  low lower\r\n\r\n \nlow\u2028lower\n"
        self.assertEqual(Tokenizer.train(text, 100),
                         Tokenizer.train(iter(["low lower", "low\u2028lower"]), 100))

    def test_no_token_comes_up_twice_whatever_the_text(self):
        rng = random.Random(1)
        for _ in range(60):
            story = "".join(rng.choice("aab") for _ in range(rng.randrange(2, 120)))
            tok = Tokenizer.train([story, story[1:], story[2:]], 60)
            self.assertEqual(len(set(tok.vocab)), len(tok.vocab), story)
            self.assertEqual(tok.decode(tok.encode(story)), story)

    def test_recorded_frequencies_fall_and_encoding_is_what_training_arrived_at(self):
        # 4 * "ab" + 2 * "abc": ab 6, then (ab, c) 2. The ids are those of the last cut.
        tok = Tokenizer.train(["ab"] * 4 + ["abc"] * 2, 100)
        self.assertEqual(tok.merges, [merge("a", "b", 6), merge("ab", "c", 2)])
        self.assertEqual([tok.encode(s) for s in ("ab", "abc", "bab")], [[5], [6], [3, 5]])

    @unittest.skipIf(no_children(), no_children())
    def test_python_hash_seed_changes_nothing(self):
        program = ("import bpe, string;"
                   "pairs = [a + b for a in string.ascii_letters for b in 'xy'];"
                   "print(bpe.Tokenizer.train(pairs + pairs, 120).to_json())")
        outputs = set()
        for seed in ("0", "1"):
            env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1"}
            child = subprocess.run([sys.executable, "-c", program], env=env, cwd=HERE,
                                   stdout=subprocess.PIPE, check=True)
            outputs.add(child.stdout)
        self.assertEqual(len(outputs), 1)


class Pieces(unittest.TestCase):
    def test_texts_are_cut_like_this(self):
        table = {
            "The kite was still red.": ["The", " kite", " was", " still", " red", "."],
            "it's 12, not 3?!": ["it", "'", "s", " 12", ",", " not", " 3", "?!"],
            "a  b\n c\td": ["a", "  ", "b", "\n ", "c", "\t", "d"],
            "cafe\u0301 汉字。 “ж” …": ["cafe\u0301", " 汉字", "。", " “", "ж", "”", " …"],
            "👩\u200d🚀 a\u2028b": ["👩\u200d🚀", " a\u2028b"],
            "a\U0001e030b": ["a\U0001e030b"],       # a letter only since Unicode 15 (Python 3.12)
            "\ud83d\ude00 \ud83dx": ["\ud83d", "\ude00", " ", "\ud83d", "x"],
            "": [],
        }
        for text, pieces in table.items():
            with self.subTest(text=ascii(text)):
                self.assertEqual(PIECE.findall(text), pieces)

    def test_joined_pieces_are_the_text_whatever_its_characters(self):
        rng = random.Random(2)
        characters = AWKWARD + "".join(map(chr, range(0x180))) + "\u00a0\u2003\u3000\ufeff"
        for _ in range(300):
            text = "".join(rng.choice(characters) for _ in range(30))
            self.assertEqual("".join(PIECE.findall(text)), text)


class EncodingAndDecoding(unittest.TestCase):
    STORY = "The kite was still red. The kite was red."

    def test_every_text_over_the_alphabet_comes_back(self):
        tok = Tokenizer.train([AWKWARD] * 3, 200)
        self.assertGreater(len(tok.merges), 10)
        rng = random.Random(3)
        for _ in range(300):
            text = "".join(rng.choice(tok.alphabet) for _ in range(rng.randrange(40)))
            self.assertEqual(tok.decode(tok.encode(text)), text)

    def test_a_start_that_ends_between_pieces_is_encoded_as_the_whole_is(self):
        # Colour recall rests on it: the prompt is a story's start, its answer the next token.
        tok = Tokenizer.train([self.STORY] * 3, 100)
        whole = tok.encode(self.STORY)
        pieces = PIECE.findall(self.STORY)
        for n in range(len(pieces) + 1):
            start = tok.encode("".join(pieces[:n]))
            self.assertEqual(whole[:len(start)], start)
        self.assertEqual(tok.encode("The kite was still"), whole[:4])

    def test_the_earlier_merge_wins_not_the_one_further_left(self):
        for first, second, strings in (("bc", "ab", ["a", "bc"]), ("ab", "bc", ["ab", "c"])):
            with self.subTest(first=first):
                tok = Tokenizer(["a", "b", "c"], [merge(*first), merge(*second)])
                self.assertEqual([tok.vocab[i] for i in tok.encode("abc")], strings)

    def test_a_character_outside_the_alphabet_is_id_0_and_no_other_is(self):
        tok = Tokenizer.train("banana ban band", 100)
        self.assertEqual(tok.encode("ban?éban"), [8, UNK, UNK, 8])
        self.assertEqual(tok.encode("bané ban"), [8, UNK, 9])
        self.assertEqual(tok.encode("\ud800"), [UNK])
        self.assertEqual(tok.encode(""), [])

    def test_special_tokens_written_in_a_text_are_only_characters(self):
        story = "an <end> and an <unk>"
        tok = Tokenizer.train([story] * 9, 100)
        self.assertEqual({UNK, END} & set(tok.encode(story)), set())
        self.assertEqual(tok.decode(tok.encode(story)), story)

    def test_special_ids_decode_to_text_without_their_names(self):
        tok = Tokenizer.train("banana ban band", 100)
        self.assertEqual(tok.decode([UNK, 8, END]), "\ufffdban")
        self.assertEqual(tok.decode(iter([])), "")

    def test_a_wrong_id_is_refused_by_name(self):
        tok = Tokenizer.train("banana ban band", 100)
        for wrong in (10, -1, 2.0, True, "3", None):
            with self.subTest(wrong=wrong), self.assertRaises(ValueError) as caught:
                tok.decode([2, wrong])
            self.assertEqual(str(caught.exception),
                             f"{wrong!r} is not an id of this vocabulary of 10")

    def test_one_long_piece_takes_at_most_one_pass_a_merge(self):
        rng = random.Random(4)
        piece = "".join(rng.choice("abcd") for _ in range(5000))
        tok = Tokenizer.train([piece[:500]], 60)
        with mock.patch.object(bpe, "merge_pair", wraps=bpe.merge_pair) as passes:
            ids = tok.encode(piece)
        self.assertLessEqual(passes.call_count, len(tok.merges))
        self.assertEqual(tok.decode(ids), piece)

    def test_a_piece_met_before_is_not_worked_out_again(self):
        tok = Tokenizer.train("banana ban band", 100)
        tok.encode("banana")
        with mock.patch.object(bpe, "merge_pair", side_effect=AssertionError):
            self.assertEqual(tok.encode("banana"), [8, 7, 3])

    def test_what_encode_remembers_is_out_of_reach_and_no_part_of_the_value(self):
        tok, fresh = (Tokenizer.train("banana ban band", 100) for _ in range(2))
        tok.encode("ban").append(99)
        self.assertEqual(tok.encode("ban"), [8])
        self.assertEqual(tok, fresh)
        self.assertEqual(tok.to_json(), fresh.to_json())


class Value(unittest.TestCase):
    def test_a_reversed_alphabet_has_the_same_size_and_other_ids(self):
        tok = Tokenizer.train("banana ban band", 100)
        other = Tokenizer(list(reversed(tok.alphabet)), tok.merges)
        self.assertEqual(len(other.vocab), len(tok.vocab))
        self.assertEqual(other.encode("banana band"), [8, 7, 5, 9, 3])
        self.assertEqual(other.decode([8, 7, 5, 9, 3]), "banana band")
        self.assertNotEqual(other, tok)

    def test_equal_means_equal_alphabet_and_merges(self):
        tok = Tokenizer(["a", "b"], [merge("a", "b")])
        self.assertEqual(tok, Tokenizer(["a", "b"], [merge("a", "b")]))
        for other in (Tokenizer(["a", "b"], []), Tokenizer(["b", "a"], [merge("a", "b")]),
                      Tokenizer(["a", "b"], [merge("a", "b", 3)]), tok.to_json()):
            self.assertNotEqual(tok, other)

    def test_a_constructor_argument_that_does_not_fit_is_named(self):
        ab = merge("a", "b")
        table = [
            ("ab", [], "alphabet is not a list"),
            (["a", "bc"], [], "alphabet 1: 'bc' is not a new single character"),
            (["a", ""], [], "alphabet 1: '' is not a new single character"),
            (["a", 7], [], "alphabet 1: 7 is not a new single character"),
            (["a", ["b"]], [], "alphabet 1: ['b'] is not a new single character"),
            (["a", "b", "a"], [], "alphabet 2: 'a' is not a new single character"),
            (["a", "b"], [7], "merge 0: not an object of exactly pair, merged and frequency"),
            (["a", "b"], [ab, {**ab, "rank": 1}],
             "merge 1: not an object of exactly pair, merged and frequency"),
            (["a", "b"], [{**ab, "pair": "ab"}], "merge 0: pair 'ab' is not a list of two strings"),
            (["a", "b"], [{**ab, "pair": ["a"]}],
             "merge 0: pair ['a'] is not a list of two strings"),
            (["a", "b"], [{**ab, "pair": ["a", 1]}],
             "merge 0: pair ['a', 1] is not a list of two strings"),
            (["a", "b"], [{**ab, "merged": "ba"}], "merge 0: merged 'ba' is not 'ab'"),
            (["a", "b"], [{**ab, "merged": None}], "merge 0: merged None is not 'ab'"),
            (["a", "b"], [{**ab, "frequency": 0}],
             "merge 0: frequency 0 is not a positive integer"),
            (["a", "b"], [{**ab, "frequency": True}],
             "merge 0: frequency True is not a positive integer"),
            (["a", "b"], [{**ab, "frequency": 2.0}],
             "merge 0: frequency 2.0 is not a positive integer"),
            (["a", "b"], [merge("ab", "a"), ab], "merge 0: 'ab' is not a token yet"),
            (["a", "b"], [merge("a", "c")], "merge 0: 'c' is not a token yet"),
            (["a", "b"], [merge("<unk>", "a")], "merge 0: '<unk>' is not a token yet"),
            (["a", "b"], [ab, ab], "merge 1: 'ab' is a token already"),
            (["a", "b", "c"], [ab, merge("ab", "c"), merge("b", "c"), merge("a", "bc")],
             "merge 3: 'abc' is a token already"),
            (list("<end>"), [merge("<", "e"), merge("n", "d"), merge("nd", ">"),
                             merge("<e", "nd>")], "merge 3: '<end>' is a token already"),
        ]
        for alphabet, merges, message in table:
            with self.subTest(message=message):
                with self.assertRaises(ValueError) as caught:
                    Tokenizer(alphabet, merges)
                self.assertEqual(str(caught.exception), message)

    def test_json_goes_there_and_back(self):
        tok = Tokenizer.train([AWKWARD] * 3, 200)
        value = json.loads(json.dumps(tok.to_json()))
        self.assertEqual(list(value), ["alphabet", "merges"])
        self.assertEqual(Tokenizer.from_json(value), tok)
        self.assertEqual(Tokenizer.from_json(value).vocab, tok.vocab)

    def test_json_of_another_shape_is_refused(self):
        shape = "not an object of exactly alphabet and merges"
        table = [(None, shape), ([], shape), ({"alphabet": []}, shape),
                 ({"alphabet": [], "merges": [], "more": 1}, shape),
                 ({"alphabet": {}, "merges": []}, "alphabet is not a list"),
                 ({"alphabet": [], "merges": {}}, "merges is not a list")]
        for value, message in table:
            with self.subTest(value=value):
                self.assertRaisesRegex(ValueError, f"^{message}$", Tokenizer.from_json, value)

    def test_changing_what_went_in_or_came_out_does_not_change_the_tokenizer(self):
        alphabet, merges = ["a", "b"], [merge("a", "b")]
        tok = Tokenizer(alphabet, merges)
        before = json.dumps(tok.to_json())
        alphabet.append("c")
        merges[0]["pair"][0] = "b"
        tok.to_json()["alphabet"].append("c")
        tok.to_json()["merges"][0]["pair"][0] = "b"
        self.assertEqual(json.dumps(tok.to_json()), before)


class Files(TemporaryFolder):
    def test_the_file_is_readable_utf8_with_one_merge_a_line(self):
        path = self.path("t.json")
        Tokenizer(["é", "\ud800", "\n"], [merge("é", "é")]).save(path)
        self.assertEqual(Path(path).read_bytes().decode("utf-8"), (
            '{"alphabet": ["é", "\\ud800", "\\n"],\n'
            '"merges": [\n'
            '{"pair": ["é", "é"], "merged": "éé", "frequency": 2}\n'
            ']}\n'))

    def test_every_character_survives_saving_and_loading(self):
        path = Path(self.path("t.json"))
        for tok in (Tokenizer.train([AWKWARD] * 3, 200), Tokenizer(["a"], []), Tokenizer([], [])):
            tok.save(path)
            self.assertEqual(Tokenizer.load(path), tok)
        self.assertEqual(os.listdir(self.folder), ["t.json"])

    def test_saving_what_was_loaded_gives_the_same_bytes(self):
        first, second = self.path("1.json"), self.path("2.json")
        Tokenizer.train([AWKWARD] * 3, 200).save(first)
        Tokenizer.load(first).save(second)
        self.assertEqual(Path(first).read_bytes(), Path(second).read_bytes())

    def test_an_error_while_saving_leaves_the_old_file_alone_and_nothing_beside_it(self):
        path = self.path("t.json")
        Tokenizer(["a"], []).save(path)
        for step in ("fsync", "replace"):
            with self.subTest(step=step), mock.patch.object(os, step, side_effect=OSError(28, "full")):
                self.assertRaisesRegex(OSError, f"^.Errno 28. full: '{path}'$", Tokenizer(["b"], []).save, path)
                self.assertEqual(Tokenizer.load(path).alphabet, ["a"])
                self.assertEqual(os.listdir(self.folder), ["t.json"])

    def test_windows_line_ends_and_byte_order_mark_are_no_damage(self):
        path = self.path("t.json")
        tok = Tokenizer.train("banana ban band", 100)
        tok.save(path)
        data = Path(path).read_bytes().replace(b"\n", b"\r\n")
        self.assertEqual(Tokenizer.load(self.file("windows.json", b"\xef\xbb\xbf" + data)), tok)

    def test_a_missing_file_is_told_how_to_make_it(self):
        path = self.path("none.json")
        with self.assertRaises(FileNotFoundError) as caught:
            Tokenizer.load(path)
        self.assertEqual(str(caught.exception), f"tokenizer {path} does not exist; to make it: "
                                                f"python3 bpe.py [CORPUS] --write {path}")

    def test_a_damaged_file_is_refused_by_name_with_the_cause_and_the_cure(self):
        # Interpreters word some causes of their own: the table has what they share.
        table = [
            (b"", "line 1 column 1"),
            (b'{"alphabet": ["a"', r"line 1 column 18 \(char 17\)"),
            (b"\xff\xfe{}", "'utf-?8' codec can't decode byte 0xff in position 0"),
            (b"[" * 100_000, "nested too deep: more than 100 levels;"),
            (b'{"alphabet": ["a"], "merges": [], "merges": []}',
             "key 'merges' stands twice;"),
            (b'{"alphabet": [NaN], "merges": []}',
             "NaN is no JSON number;"),
            (b'{"alphabet": ["a"], "merges": '
             b'[{"pair": ["a", "a"], "merged": "aa", "frequency": 1e999}]}',
             "merge 0: frequency inf is not a positive integer;"),
            (b"[]", "not an object of exactly alphabet and merges;"),
        ]
        for data, cause in table:
            with self.subTest(data=data[:60]):
                path = self.file("damaged.json", data)
                with self.assertRaises(ValueError) as caught:
                    Tokenizer.load(path)
                message = str(caught.exception)
                opening = f"tokenizer {path}: "
                ending = f"; to make it: python3 bpe.py [CORPUS] --write {path}"
                self.assertEqual(message[:len(opening)], opening)
                self.assertEqual(message[-len(ending):], ending)
                self.assertRegex(message[len(opening):], cause)
                self.assertEqual(Path(path).read_bytes(), data)


class Stories(unittest.TestCase):
    def test_stories_are_stripped_lines_without_blanks_and_repeats(self):
        text = "\ufeffb  c\r\n\r\n  a\u2028\x0b\x1c\x85a \n\t\nb c\n\ufeffb c\n A\na\u2028a\nd"
        self.assertEqual(bpe.distinct_stories(text), [
            "\ufeffb  c", "a\u2028\x0b\x1c\x85a", "b c", "A", "d"])

    def test_training_has_the_first_five_of_every_seven_distinct_stories(self):
        text = "\n".join("abbcdaefghijklmnop")
        self.assertEqual("".join(bpe.training_stories(text)), "abcdehijklop")


class Lab(unittest.TestCase):
    def test_the_recorded_tokenizer_is_what_the_training_stories_make(self):
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            status = bpe.main(["--check"])
        self.assertEqual((status, err.getvalue()), (0, ""), out.getvalue())

    def test_every_story_of_the_corpus_comes_back(self):
        tok = Tokenizer.load(bpe.TOKENIZER)
        stories = bpe.distinct_stories(Path(bpe.CORPUS).read_text(encoding="utf-8"))
        self.assertEqual(len(bpe.training_stories("\n".join(stories))), 300)
        for story in stories:
            self.assertEqual(tok.decode(tok.encode(story)), story)


class CommandLine(TemporaryFolder):
    def setUp(self):
        super().setUp()
        self.corpus = self.file("corpus.txt", "banana ban band\n")
        self.lab = self.path("tokenizer.json")
        for name, value in {"CORPUS": self.corpus, "TOKENIZER": self.lab,
                            "LAB": (self.corpus, bpe.VOCAB_SIZE)}.items():
            patch = mock.patch.object(bpe, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def command(self, *argv):
        """Exit status, standard output, standard error."""
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            try:
                status = bpe.main(list(argv))
            except SystemExit as stop:
                status = stop.code
        return status, out.getvalue(), err.getvalue()

    def test_without_options_it_shows_the_tokenizer_and_writes_nothing(self):
        self.assertEqual(self.command(), (0, (
            "training stories: 1, of 7 to 7 tokens with <end>, 2.50 characters a token\n"
            "10 tokens: 2 special, 5 characters, 3 merges; the first merges:\n"
            "     4 times 'a' + 'n'\n"
            "     3 times 'b' + 'an'\n"
            "     2 times ' ' + 'ban'\n"), ""))
        self.assertEqual(os.listdir(self.folder), ["corpus.txt"])

    def test_write_then_check_agree(self):
        self.assertEqual(self.command("--write"), (0, f"wrote {self.lab}: 10 tokens\n", ""))
        self.assertEqual(Tokenizer.load(self.lab), Tokenizer.train("banana ban band", 100))
        self.assertEqual(self.command("--check"),
                         (0, f"{self.lab} is what bpe.py makes: 10 tokens\n", ""))

    def test_only_training_stories_are_trained_on(self):
        corpus = self.file("seven.txt", "a\nb\nc\nd\ne\nf\ng\nh\n")
        out = self.path("seven.json")
        self.assertEqual(self.command(corpus, "--write", out)[0], 0)
        self.assertEqual(Tokenizer.load(out).alphabet, list("abcdeh"))

    def test_a_person_s_own_corpus_has_its_own_size_and_file(self):
        corpus, out = self.file("mine.txt", "\ufeffcocoa\r\ncoco\r\n"), self.path("mine.json")
        options = (corpus, "--vocab-size", "6")
        self.assertEqual(self.command(*options, "--write", out),
                         (0, f"wrote {out}: 6 tokens\n", ""))
        self.assertEqual(Tokenizer.load(out), Tokenizer(["a", "c", "o"], [merge("c", "o", 4)]))
        self.assertEqual(self.command(*options, "--check", out)[0], 0)
        self.assertFalse(os.path.exists(self.lab))

    def test_check_shows_the_first_difference_and_the_repair_and_writes_nothing(self):
        table = [
            (["a", " ", "b", "d", "n"], [], "alphabet 0: recorded 'a', computed ' '"),
            ([" ", "a", "b", "d", "n"], [merge("a", "n", 4)],
             f"merges 1: recorded None, computed {merge('b', 'an', 3)}"),
            ([" ", "a", "b", "d", "n", "z"], [], "alphabet 5: recorded 'z', computed None"),
        ]
        for alphabet, merges, difference in table:
            with self.subTest(difference=difference):
                Tokenizer(alphabet, merges).save(self.lab)
                before = Path(self.lab).read_bytes()
                self.assertEqual(self.command("--check"), (1, (
                    f"{self.lab} differs at {difference}\n"
                    "to write it anew: python3 bpe.py --write\n"), ""))
                self.assertEqual(Path(self.lab).read_bytes(), before)

    def test_the_repair_of_an_own_tokenizer_names_corpus_size_and_file(self):
        corpus, own = self.file("mine.txt", "coco\n"), self.path("mine.json")
        Tokenizer(["c", "o"], []).save(own)
        status, out, _ = self.command(corpus, "--vocab-size", "6", "--check", own)
        repair = f"{corpus} --vocab-size 6 --write {own}"
        self.assertEqual((status, out.splitlines()[1]),
                         (1, f"to write it anew: python3 bpe.py {repair}"))
        self.assertEqual(self.command(corpus, "--vocab-size", "6", "--write", own)[0], 0)
        self.assertEqual(self.command(corpus, "--vocab-size", "6", "--check", own)[0], 0)

    def test_refusals_are_one_line_that_names_file_and_cause(self):
        latin, empty = self.file("latin.txt", b"caf\xe9\n"), self.file("empty.txt", "\n")
        none = self.path("none.txt")
        table = [
            ([none], f"corpus {none} does not exist"),
            ([latin], f"corpus {latin}: 'utf-8' codec can't decode byte 0xe9 in position 3"),
            ([empty], f"corpus {empty}: there is no story to train on"),
            (["--vocab-size", "6"], f"corpus {self.corpus}: a vocabulary of 6 is too small; "
                                    "7 are needed: 2 special tokens and 5 characters"),
            (["--check", none], f"tokenizer {none} does not exist; "
                                f"to make it: python3 bpe.py [CORPUS] --write {none}"),
            (["--write", self.corpus],
             f"{self.corpus} exists and is not a tokenizer; remove it first"),
        ]
        for argv, message in table:
            with self.subTest(argv=argv):
                status, out, err = self.command(*argv)
                self.assertEqual((status, out), (1, ""))
                self.assertEqual(err.replace("'utf8'", "'utf-8'")[:len(message) + 8],
                                 f"bpe.py: {message}"[:len(message) + 8])
                self.assertEqual(err.count("\n"), 1)
        status, out, err = self.command(self.folder)    # each system has other words for this one
        self.assertEqual((status, out, err.count("\n")), (1, "", 1))
        self.assertIn(os.path.basename(self.folder), err)

    def test_writing_replaces_a_tokenizer_and_the_lab_s_own_even_damaged(self):
        own = self.path("own.json")
        for path, argv in ((own, ["--write", own]), (self.lab, ["--write"])):
            Tokenizer(["a"], []).save(path)
            self.assertEqual(self.command(*argv)[0], 0)
            self.assertEqual(len(Tokenizer.load(path).vocab), 10)
        self.file("tokenizer.json", "{")
        self.assertEqual(self.command("--check")[0], 1)
        self.assertEqual(self.command("--write")[0], 0)
        self.assertEqual(self.command("--check")[0], 0)

    def test_wrong_usage_is_exit_status_2(self):
        own = "another corpus or size needs its own file after --write or --check"
        table = [
            (["--vocab-size", "many"], "argument --vocab-size: invalid int value: 'many'"),
            (["--write", "--check"], "argument --check: not allowed with argument --write"),
            ([self.path("mine.txt"), "--write"], own),
            (["--check", "--vocab-size", "9"], own),
        ]
        for argv, message in table:
            with self.subTest(argv=argv):
                status, out, err = self.command(*argv)
                self.assertEqual((status, out, err.splitlines()[-1]),
                                 (2, "", f"bpe.py: error: {message}"))

    def test_a_console_without_the_character_shows_its_code(self):
        corpus = self.file("han.txt", "汉字 汉字\n")
        console = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        with redirect_stdout(console):
            self.assertEqual(bpe.main([corpus]), 0)
        console.flush()
        self.assertIn(rb"     2 times '\u6c49' + '\u5b57'", console.buffer.getvalue())


if __name__ == "__main__":
    unittest.main()
