"""What the command line promises: runs started, continued, stopped by signals, shown and compared."""
from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

import bpe
import checkpoint
import console
import progress
import runs
from test_support import no_children
from train import CONFIG, encode_all, split_stories
from verify import CheckpointError, check_alone

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "runs.py"
STEPS = 12
FLAGS = ["--d", "4", "--hidden", "8", "--max-len", "16", "--batch", "2", "--steps", str(STEPS),
         "--eval-every", "4"]
TINY = {**CONFIG, "d": 4, "hidden": 8, "max_len": 16, "batch": 2, "steps": STEPS, "eval_every": 4}
STORIES = "".join(f"{name} has a {color} {thing}. It is {color}.\n"
                  for name in ("Mia", "Leo", "Ben") for color in ("red", "blue")
                  for thing in ("cup", "hat", "kite"))
OTHER_CONFIG = "checkpoint was written with a different config"
OTHER_INPUTS = "checkpoint training inputs differ"
RESTART = "start over with --restart, or choose another folder"
START = "start a run with: python3 runs.py train FOLDER"
AT_ONCE = "runs.py: stopped at once; every checkpoint is as it was last saved"
VERIFIES = ("verifies", "yes: its digest and every field")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
NO_SYSTEM = sys.platform == "emscripten"        # WebAssembly: no processes, threads or signals
needs_signals = unittest.skipIf(NO_SYSTEM, "no signals in WebAssembly")
needs_threads = unittest.skipIf(NO_SYSTEM, "no threads in WebAssembly")
needs_children = unittest.skipIf(no_children() or os.name != "posix",
                                 no_children() or "no processes with POSIX signals here")

# A child that stops in the middle of a run until it is told to go on, so that no test has to sleep.
WAITING = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import checkpoint, runs
step, at = checkpoint.train_step, int(sys.argv.pop(1))
def waiting(state, *rest):
    step(state, *rest)
    if state.step == at:
        print("ready", flush=True)
        sys.stdin.readline()
        print("on", flush=True)
        sys.stdin.readline()
checkpoint.train_step = waiting
sys.exit(runs.main(sys.argv[1:]))
"""


class Terminal(io.StringIO):
    def isatty(self):
        return True


class BrokenPipe(io.StringIO):
    def write(self, text):
        raise BrokenPipeError(32, "Broken pipe")


class Lab(unittest.TestCase):
    """A temporary folder with a corpus and its tokenizer, and ways to run the command line on them."""

    @classmethod
    def setUpClass(cls):
        cls.tok = bpe.Tokenizer.train(bpe.training_stories(STORIES), 40)
        with tempfile.TemporaryDirectory() as folder:
            checkpoint.run(cls.tok, STORIES, TINY, folder)
            cls.whole = {name: Path(folder, name).read_bytes() for name in ("last.json", "best.json")}

    def setUp(self):
        unsynced = mock.patch.object(os, "fsync")       # a disk is slow, and test_crash.py sees to it
        unsynced.start()
        self.addCleanup(unsynced.stop)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.place = folder.name
        self.folder = self.path("run")
        self.inputs = ["--corpus", self.write("stories.txt", STORIES), "--tokenizer", self.path("tok.json")]
        self.tok.save(self.inputs[-1])

    def path(self, *names):
        return os.path.join(self.place, *names)

    def write(self, name, data):
        Path(self.path(name)).write_bytes(data if isinstance(data, bytes) else data.encode("utf-8"))
        return self.path(name)

    def main(self, *argv, out=None, err=None):
        """(status, standard output, standard error)."""
        out, err = out or io.StringIO(), err or io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = runs.main([*argv])
        return status, out.getvalue(), err.getvalue()

    def train(self, *argv, folder=None, **streams):
        return self.main("train", folder or self.folder, *argv, *self.inputs, **streams)

    def started(self, *argv, folder=None):
        """A run that stopped after step 4, as its last.json."""
        self.assertEqual(self.train(*FLAGS, "--quiet", "--stop-after", "4", *argv, folder=folder)[0], 0)
        return os.path.join(folder or self.folder, "last.json")

    def refused(self, message, *argv, mode=None):
        status, out, err = (mode or self.train)(*argv)
        self.assertEqual((status, out, err), (1, "", f"runs.py: {message}\n"))

    def body(self, path):
        """The body of a checkpoint, to be changed."""
        return checkpoint.load(path, json.loads(Path(path).read_bytes())["config"])

    def changed(self, path, change):
        """The same path, with a body that `change` was called with, under a valid digest."""
        body = self.body(path)
        change(body)
        checkpoint.save(path, body)
        return path

    def changed_source(self, path, name):
        """The checkpoint, as if it had been written with another version of a source."""
        self.changed(path, lambda body: body["training_inputs"]["source_sha256"].update({name: "0" * 64}))

    def step(self):
        return json.loads(Path(self.folder, "last.json").read_bytes())["step"]

    def files(self, folder=None):
        return {path.name: path.read_bytes() for path in Path(folder or self.folder).iterdir()}

    def assert_whole(self, folder=None):
        """The folder is as the run that nothing interrupted left it."""
        self.assertEqual(self.files(folder), self.whole)

    def assert_continues_to_the_same_bytes(self):
        self.assertEqual(self.train("--quiet")[0], 0)
        self.assert_whole()


# ---------------------------------------------------------------------------- train

class Starting(Lab):
    def test_a_folder_without_a_run_is_started_and_said_so(self):
        clock = itertools.count()
        with mock.patch.object(progress.time, "monotonic", side_effect=lambda: float(next(clock))):
            status, out, err = self.train(*FLAGS)
        body = self.body(os.path.join(self.folder, "last.json"))
        dev = {entry["step"]: f"{entry['dev_loss']:.4f}" for entry in body["dev_history"]}
        self.assertEqual([*dev.values()], sorted(dev.values(), reverse=True), "each is the best yet")
        lines = [f"step {step}/12  loss {body['history'][step - 1]:.4f}  dev loss {dev[step]}  "
                 f"best {dev[step]} at step {step}  {left} left\n"
                 for step, left in ((4, "2 s"), (8, "1 s"), (12, "0 s"))]
        opening = f"{self.folder}: starts at step 1 of 12, as there is no last.json\n"
        self.assertEqual(err, opening + "".join(lines))
        self.assertEqual(out, f"step 12 of 12: dev loss {dev[12]}, best {dev[12]} at step 12, "
                              f"params sha256 {checkpoint.params_sha256(body['params'])}\n")
        self.assertEqual(status, 0)
        self.assert_whole()

    def test_quiet_shows_no_progress(self):
        self.assertEqual(self.train(*FLAGS, "--quiet")[::2], (0, ""))
        self.assert_whole()

    def test_the_best_and_the_last_development_loss_are_told_apart(self):
        best = {"step": 4, "dev_loss": 2.0}
        line = runs.result({"steps": 12}, [1.0] * 10, [best, {"step": 8, "dev_loss": 2.5}], best, "abc")
        self.assertEqual(line, "step 10 of 12: dev loss 2.5000 at step 8, best 2.0000 at step 4, "
                               "params sha256 abc")

    def test_every_key_of_the_config_has_a_flag_with_help_and_its_range(self):
        self.assertEqual([*runs.HELP], [*CONFIG])
        out = io.StringIO()
        with contextlib.redirect_stdout(out), self.assertRaises(SystemExit):
            runs.main(["train", "-h"])
        text = " ".join(out.getvalue().split())
        for key, value in CONFIG.items():
            with self.subTest(key=key):
                self.assertIn(f"--{key.replace('_', '-')} N {runs.HELP[key]} (default: {value})", text)
        values = {key: value + 1 if type(value) is int else value / 2 for key, value in CONFIG.items()}
        words = [word for key, value in values.items() for word in (f"--{key.replace('_', '-')}", str(value))]
        self.assertEqual(runs.parse_arguments(["train", "F", *words]).config, values)
        self.assertEqual(runs.parse_arguments(["train", "F"]).config, {})

    def test_a_wrong_command_line_is_status_2(self):
        table = [
            ([], "the following arguments are required: train | show | compare"),
            (["train"], "the following arguments are required: FOLDER"),
            (["train", "F", "--steps", "0"],
             "argument --steps: config: 'steps' is 0; expected a whole number from 1 up"),
            (["train", "F", "--steps", "1.5"], "argument --steps: invalid int value: '1.5'"),
            (["train", "F", "--learning-rate", "nan"],
             "argument --learning-rate: config: 'learning_rate' is nan; "),
            (["train", "F", "--beta1", "1"], "argument --beta1: config: 'beta1' is 1.0; "),
            (["train", "F", "--keep", "-1"],
             "argument --keep: -1 is too small; expected a whole number from 0 up"),
            (["train", "F", "--keep", "x"], "argument --keep: invalid"),
            (["train", "F", "--stop-after", "0"],
             "argument --stop-after: 0 is too small; expected a whole number from 1 up"),
            (["train", "F", "--resume", "--restart"],
             "argument --restart: not allowed with argument --resume"),
            (["train", "F", "--restart", "--from", "G"],
             "argument --from: not allowed with argument --restart"),
            (["train", "F", "--stop", "4"], "unrecognized arguments: --stop 4"),
            (["compare", "A"], "the following arguments are required: B"),
        ]
        for argv, message in table:
            with self.subTest(argv=argv):
                err = io.StringIO()
                with contextlib.redirect_stderr(err), self.assertRaises(SystemExit) as stop:
                    runs.main(argv)
                self.assertEqual(stop.exception.code, 2)
                self.assertIn(message, err.getvalue().splitlines()[-1])

    def test_inputs_that_cannot_be_used_are_refused_in_one_sentence_that_names_them(self):
        latin, few = self.write("latin.txt", b"caf\xe9\n" * 9), self.write("few.txt", "one\ntwo\n")
        broken, missing = self.write("broken.json", "{"), self.path("missing")
        cure = f"to make it: python3 bpe.py [CORPUS] --write {broken}"
        table = [
            ("--corpus", missing, f"corpus {missing} does not exist"),
            ("--corpus", latin, f"corpus {latin}: 'utf-8' codec can't decode byte 0xe9 in position 3: "
                                "invalid continuation byte"),
            ("--corpus", few, f"corpus {few}: too few stories: 2 distinct; "
                              "at least 7 are needed, one a line"),
            ("--tokenizer", missing, f"tokenizer {missing} does not exist; to make it: "
                                     f"python3 bpe.py [CORPUS] --write {missing}"),
            ("--tokenizer", broken, f"tokenizer {broken}: Expecting property name enclosed in double quotes: "
                                    f"line 1 column 2 (char 1); {cure}"),
        ]
        for flag, path, message in table:
            with self.subTest(flag=flag, path=os.path.basename(path)):
                # The flag comes last, so it is the one that counts.
                self.refused(message, self.folder, *self.inputs, flag, path,
                             mode=lambda *argv: self.main("train", *argv))
                self.assertFalse(os.path.exists(self.folder))

    def test_a_corpus_with_a_byte_order_mark_is_the_same_corpus(self):
        self.write("stories.txt", b"\xef\xbb\xbf" + STORIES.replace("\n", "\r\n").encode())
        self.train(*FLAGS)
        self.assert_whole()

    def test_stories_that_are_too_long_are_noticed(self):
        self.assertNotIn("note:", self.train(*FLAGS)[2])
        self.write("stories.txt", STORIES + "Mia has a red cup. " * 9 + "\n")
        err = self.train(*FLAGS, "--restart")[2]
        self.assertRegex(err, r"^note: 1 of \d+ stories are longer than 16 tokens, the longest \d+, and are cut; ")

    def test_a_tokenizer_that_lacks_characters_of_the_corpus_is_noticed(self):
        self.write("stories.txt", STORIES.replace("Mia", "Zoë"))
        err = self.train(*FLAGS)[2]
        self.assertIn("note: the tokenizer lacks 2 of the corpus's characters, such as 'Z'; "
                      "to fit it: python3 bpe.py CORPUS --vocab-size N --write OUT\n", err)
        self.write("stories.txt", STORIES)
        self.assertNotIn("note", self.train(*FLAGS, "--restart")[2])

    def test_a_folder_that_is_a_file_is_refused(self):
        path = self.write("file", "text")
        status, _, err = self.train(*FLAGS, folder=path)
        self.assertEqual((status, Path(path).read_text()), (1, "text"))
        self.assertRegex(err, rf"\Aruns\.py: {re.escape(path)}: .+\n\Z")

    def test_what_others_keep_in_the_folder_survives(self):
        os.makedirs(os.path.join(self.folder, "sub"))
        theirs = {"notes.txt": b"mine", ".last.json.swp": b"", "step-1.json": b"{}", "last.json.bak": b"old"}
        for name, data in theirs.items():
            self.write(os.path.join("run", name), data)
        self.train(*FLAGS, "--keep", "1")
        os.rmdir(os.path.join(self.folder, "sub"))
        kept = {"step-000012.json": self.whole["last.json"]}
        self.assertEqual(self.files(), {**theirs, **self.whole, **kept})

    def test_the_best_model_of_another_run_is_not_written_over(self):
        os.mkdir(self.folder)
        best = b"somebody's own"
        path = self.write(os.path.join("run", "best.json"), best)
        source = self.write("state.json", "")
        Path(source).write_bytes(self.whole["last.json"])
        for flags in (FLAGS, ["--from", source]):
            self.refused(f"{path} is not of this run, and there is no last.json beside it; "
                         "choose another folder, or give --restart to write over it", *flags)
            self.assertEqual(self.files(), {"best.json": best})
        self.assertEqual(self.train(*FLAGS, "--restart")[0], 0)
        self.assert_whole()

    def test_a_best_json_whose_last_json_is_gone_is_not_written_over_and_the_way_on_is_named(self):
        self.train(*FLAGS, "--keep", "1")
        os.remove(os.path.join(self.folder, "last.json"))
        best, kept = (os.path.join(self.folder, name) for name in ("best.json", "step-000012.json"))
        gone = f"{best} is of this run at step 12, but its last.json is gone; "
        for flags in (FLAGS, []):       # without them, the kept state tells the config
            self.refused(f"{gone}continue from a kept state with --from {kept}, or start over with --restart", *flags)
        self.refused(f"no checkpoint {os.path.join(self.folder, 'last.json')}; "
                     f"continue from a kept state with --from {kept}", "--resume")
        self.assertEqual(self.train("--from", kept)[0], 0)
        self.assertEqual(self.files(), {**self.whole, "step-000012.json": self.whole["last.json"]})
        os.remove(os.path.join(self.folder, "last.json"))
        os.remove(kept)
        self.refused(f"{gone}start over with --restart", *FLAGS)

    def test_a_run_killed_between_its_first_best_and_its_first_last_json_starts_again(self):
        os.remove(self.started())
        self.assertEqual([*self.files()], ["best.json"])
        self.assertEqual(self.train(*FLAGS)[0], 0)
        self.assert_whole()


class Continuing(Lab):
    def test_a_run_goes_on_with_its_own_config_and_says_from_where(self):
        for flag in ([], ["--resume"]):
            with self.subTest(flag=flag):
                self.started("--restart")
                status, out, err = self.train(*flag)
                self.assertEqual(status, 0)
                opening = f"{self.folder}: continues from step 4 of 12 (last.json)"
                self.assertEqual(err.splitlines()[0], opening)
                self.assertEqual(len(err.splitlines()), 3, "evaluations at 8 and 12")
                self.assertTrue(out.startswith("step 12 of 12: dev loss "))
                self.assert_whole()

    def test_time_left_is_counted_from_this_start(self):
        self.started()
        clock = itertools.count()
        with mock.patch.object(progress.time, "monotonic", side_effect=lambda: float(next(clock))):
            err = self.train()[2]
        # One second for four steps of this start, so one more; from step 1 it would be half of that.
        self.assertRegex(err, r"step 8/12 .* 1 s left\nstep 12/12 .* 0 s left\n\Z")

    def test_time_left_ends_where_the_run_is_asked_to_stop(self):
        clock = itertools.count(0, 10)
        with mock.patch.object(progress.time, "monotonic", side_effect=lambda: float(next(clock))):
            err = self.train(*FLAGS, "--stop-after", "5")[2]
        self.assertIn("10 s left\n", err.splitlines(True)[1])

    def test_durations_are_written_for_people(self):
        table = [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"),
                 (7380, "2 h 03 min")]
        for seconds, text in table:
            with self.subTest(seconds=seconds):
                self.assertEqual(console.duration(seconds), text)

    def test_a_finished_run_is_told_so_and_no_byte_is_changed(self):
        self.train(*FLAGS)
        before = {path.name: path.stat().st_mtime_ns for path in Path(self.folder).iterdir()}
        for flag in ([], ["--resume"], FLAGS):
            status, out, err = self.train(*flag)
            self.assertEqual(err, f"{self.folder}: nothing to do after step 12 of 12: the run is finished\n")
            self.assertEqual((status, out[:14]), (0, "step 12 of 12:"))
        self.assert_whole()
        self.assertEqual({path.name: path.stat().st_mtime_ns for path in Path(self.folder).iterdir()}, before)

    def test_resume_insists_on_a_run(self):
        self.refused(f"no checkpoint {self.path('run', 'last.json')}; {START}", "--resume", *FLAGS)
        self.assertFalse(os.path.exists(self.folder))

    def test_another_config_is_refused_and_says_what_to_do(self):
        self.started()
        before = self.files()
        for flags, keys in ((["--steps", "13"], ["steps"]), (["--d", "5", "--beta1", "0.8"], ["beta1", "d"])):
            for flag in ([], ["--resume"]):
                self.refused(f"{OTHER_CONFIG}: {keys}; leave out the flags that differ to continue it, "
                             f"or {RESTART}", *flags, *flag)
        self.assertEqual(self.files(), before)

    def test_other_inputs_are_refused_and_say_what_to_do(self):
        last = self.started()
        stories, tok = self.inputs[1], self.inputs[3]
        other = self.write("other.txt", STORIES.replace("Mia", "Max"))
        again = f"; give --corpus and --tokenizer as at the start, or {RESTART}"
        self.inputs[1] = other
        self.refused(f"{OTHER_INPUTS}: corpus{again}")
        self.inputs[3] = self.path("other.json")
        bpe.Tokenizer(self.tok.alphabet[::-1], self.tok.merges).save(self.inputs[3])
        self.refused(f"{OTHER_INPUTS}: corpus, tokenizer{again}")
        self.inputs[1::2] = stories, tok
        self.changed_source(last, "model.py")
        self.refused(f"{OTHER_INPUTS}: source model.py; "
                     f"continue it with the sources that it was started with, or {RESTART}")

    def test_restart_starts_over_and_says_so(self):
        self.started("--learning-rate", "0.02")
        status, _, err = self.train(*FLAGS, "--restart")
        self.assertEqual((status, err.splitlines()[0]), (0, f"{self.folder}: starts over at step 1 of 12"))
        self.assert_whole()

    def test_a_damaged_last_json_is_refused_and_left_as_it_is(self):
        last = Path(self.started())
        whole = last.read_bytes()
        table = [
            (whole[:99], r"checkpoint .+ is not valid JSON: .+"),
            (whole.replace(b'"step": 4', b'"step": 5', 1), r"checkpoint .+ failed its SHA-256 check"),
            (b"[]", r"checkpoint .+ does not hold a JSON object"),
            (b"", r"checkpoint .+ is not valid JSON: Expecting value: line 1 column 1 \(char 0\)"),
            (b"\xff", r"checkpoint .+ is not valid JSON: 'utf-8' codec .+"),
            (b"[" * 100_000, r"checkpoint .+ is not valid JSON: nested too deep.*"),
        ]
        for data, message in table:
            with self.subTest(message=message):
                last.write_bytes(data)
                for flag in ([], ["--resume"], FLAGS):
                    status, out, err = self.train(*flag)
                    self.assertEqual((status, out), (1, ""))
                    self.assertRegex(err, rf"\Aruns\.py: {message}; {RESTART}\n\Z")
                self.assertEqual(last.read_bytes(), data)

    def test_a_stored_config_that_no_run_can_have_is_refused_in_a_sentence(self):
        last = self.started()
        body = self.body(last)
        odd = [{"steps": "x"}, {"d": 10 ** 400}, {"batch": None}, {"d": {}}, {"steps": True},
               {"beta1": [1, 2]}, {"extra": 1}]
        for config in ({}, {"d": 4}, *({**TINY, **change} for change in odd)):
            with self.subTest(config=str(config)[:60]):
                checkpoint.save(last, {**body, "config": config})
                status, out, err = self.train()
                self.assertEqual((status, out, err.count("\n")), (1, "", 1))
                # best.json still tells the config; what is refused is the one in last.json
                self.assertRegex(err, rf"\Aruns\.py: {OTHER_CONFIG}: \[.+\]; {RESTART}\n\Z")

    def test_a_state_without_a_field_or_with_an_odd_one_is_refused_in_a_sentence(self):
        last = self.started()
        body = self.body(last)
        for key in [*body]:
            for odd in (None, {}, -1, [] if key != "order" else "x"):
                checkpoint.save(last, {**body, key: odd})
                for mode in (lambda: self.train(), lambda: self.main("show", last),
                             lambda: self.main("compare", last, last)):
                    status, out, err = mode()
                    if key == "training_inputs" and not err:        # recorded oddly, but of no use to show
                        continue
                    with self.subTest(key=key, odd=odd):
                        self.assertEqual((status, out, err.count("\n")), (1, "", 1))
                        self.assertTrue(err.startswith("runs.py: checkpoint "), err)

    def test_stopping_where_asked_and_going_on_are_the_whole_run(self):
        for stop, at in (("1", 4), ("4", 4), ("5", 8), ("8", 8), ("99", 12)):
            with self.subTest(stop=stop):
                status, out, err = self.train(*FLAGS, "--restart", "--stop-after", stop)
                self.assertEqual((status, self.step()), (0, at))
                self.assertTrue(out.startswith(f"step {at} of 12: dev loss "))
                told = f"{self.folder}: stopped after step {at} of 12; continue with: "
                self.assertEqual(err.splitlines()[-1].startswith(told), at < STEPS)
                again = self.train("--stop-after", stop)[2]
                self.assertTrue(again.startswith(f"{self.folder}: nothing to do after step {at} of 12"))
                self.assert_continues_to_the_same_bytes()

    def test_the_command_that_is_told_really_continues(self):
        self.folder = self.path("it's a run")
        err = self.train(*FLAGS, "--keep", "1", "--stop-after", "4")[2]
        words = shlex.split(err.splitlines()[-1].partition("continue with: ")[2])
        self.assertEqual(words[2:], ["train", self.folder, *self.inputs, "--keep", "1"])
        self.assertEqual((words[0], os.path.abspath(words[1])), ("python3", str(PROGRAM)))
        self.assertEqual(self.main(*words[2:])[0], 0)
        self.assertEqual(self.files(), {**self.whole, "step-000012.json": self.whole["last.json"]})

    def test_a_folder_whose_name_looks_like_a_flag_is_quoted_as_a_path(self):
        command = runs.train_command("--run", corpus="-", tokenizer=None, keep=0)
        self.assertEqual(shlex.split(command)[2:], ["train", os.path.join(".", "--run"), "--corpus",
                                                    os.path.join(".", "-")])

    def test_a_stranger_s_stories_train_stop_and_resume_in_three_commands(self):
        corpus, out = self.inputs[1], self.path("made.json")
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(bpe.main([corpus, "--vocab-size", "40", "--write", out]), 0)
        self.inputs[3] = out
        self.assertEqual(self.train(*FLAGS, "--stop-after", "6")[0], 0)
        self.assertEqual(self.step(), 8)
        self.assert_continues_to_the_same_bytes()


class KeptStates(Lab):
    def kept(self):
        return sorted(name for name in self.files() if name.startswith("step-"))

    def test_a_damaged_run_goes_on_from_the_kept_state_that_the_refusal_names(self):
        last = self.started("--keep", "3")
        self.train("--keep", "3", "--stop-after", "8", "--quiet")
        kept = os.path.join(self.folder, "step-000008.json")
        self.assertEqual(self.kept(), ["step-000004.json", "step-000008.json"])
        Path(last).write_bytes(Path(last).read_bytes()[:500])
        status, _, err = self.train()
        self.assertEqual(status, 1)
        hint = f"; the newest kept state that verifies is {kept}: continue from it with --from {kept}\n"
        self.assertTrue(err.endswith(hint), err)
        self.assertEqual(err.count("--restart"), 0)
        status, _, err = self.train("--from", kept)
        opening = f"{self.folder}: continues from step 8 of 12 ({kept})"
        self.assertEqual((status, err.splitlines()[0]), (0, opening))
        for name in self.kept():
            os.remove(os.path.join(self.folder, name))
        self.assert_whole()

    def test_going_back_to_an_earlier_state_of_the_run_ends_in_the_same_bytes(self):
        self.started("--keep", "1")
        kept = os.path.join(self.folder, "step-000004.json")
        self.train("--quiet")
        self.assertEqual(self.train("--from", kept)[0], 0)
        os.remove(kept)
        self.assert_whole()

    def test_a_kept_state_continues_in_a_folder_of_its_own(self):
        self.started("--keep", "1")
        kept, other = os.path.join(self.folder, "step-000004.json"), self.path("other")
        self.assertEqual(self.train("--from", kept, folder=other)[0], 0)
        self.assert_whole(other)

    def test_a_state_that_is_missing_or_no_state_is_refused(self):
        self.started()
        missing, best = self.path("run", "step-000001.json"), self.path("run", "best.json")
        new = self.path("new")
        for path, message in ((missing, f"no checkpoint {missing}; {START}"),
                              (best, f"checkpoint {best}: field 'adam' is missing; {RESTART}")):
            self.refused(message, "--from", path, mode=lambda *argv: self.train(*argv, folder=new))
            self.assertEqual(os.path.exists(new), path == best)
        self.assertEqual(os.listdir(new), [])

    def test_a_state_does_not_replace_a_run_with_another_config(self):
        self.started("--keep", "1")
        other = self.path("other")
        last = self.started("--beta1", "0.8", folder=other)
        before = self.files(other)
        status, _, err = self.train("--from", os.path.join(self.folder, "step-000004.json"), folder=other)
        self.assertEqual((status, err),
                         (1, f"runs.py: {last} is of another run: {OTHER_CONFIG}: ['beta1']; {RESTART}\n"))
        self.assertEqual(self.files(other), before)


class Failing(Lab):
    """Whatever goes wrong is one sentence and status 1, and what was saved stays."""

    def test_each_kind_of_error_is_a_sentence(self):
        self.started()
        before = self.files()
        table = [
            (FloatingPointError("step 5: the loss is not finite"), "step 5: the loss is not finite"),
            (OSError(28, "No space left on device", "F/last.json"), "F/last.json: No space left on device"),
            (OSError("no such luck"), "no such luck"),
            (ZeroDivisionError("float division by zero"), "float division by zero"),
            (MemoryError(), "MemoryError"), (RecursionError("too deep"), "too deep"),
            (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "odd"),
             "'utf-8' codec can't decode byte 0xff in position 0: odd"),
        ]
        for error, message in table:
            fails = mock.patch.object(checkpoint, "train_step", side_effect=error)
            with self.subTest(error=repr(error)), fails:
                self.refused(message)
        self.assertEqual(self.files(), before)

    def test_a_machine_that_computes_otherwise_is_refused(self):
        with mock.patch.object(runs, "machine_fault", return_value="unsupported machine: it is odd"):
            self.refused("unsupported machine: it is odd", *FLAGS)
        self.assertFalse(os.path.exists(self.folder))

    def test_a_save_that_fails_names_the_file(self):
        self.started()
        before = self.files()
        with mock.patch.object(checkpoint.os, "fsync", side_effect=OSError(28, "No space left on device")):
            status, out, err = self.train("--quiet")
        path = os.path.join(self.folder, "best.json")
        self.assertEqual((status, out, err), (1, "", f"runs.py: {path}: No space left on device\n"))
        self.assertEqual(self.files(), before)

    def test_a_pipe_that_nobody_reads_does_not_end_a_run(self):
        with contextlib.redirect_stderr(BrokenPipe()), contextlib.redirect_stdout(BrokenPipe()):
            self.assertEqual(runs.main(["train", self.folder, *FLAGS, *self.inputs]), 0)
            self.assertEqual(runs.main(["show", self.folder]), 0)
            self.assertEqual(runs.main(["train", self.folder, *self.inputs, "--steps", "13"]), 1)
        self.assert_whole()

    def test_a_process_without_standard_streams_trains(self):
        with mock.patch.object(sys, "stdout", None), mock.patch.object(sys, "stderr", None):
            self.assertEqual(runs.main(["train", self.folder, *FLAGS, *self.inputs]), 0)
        self.assert_whole()

    def test_a_console_that_cannot_print_a_character_shows_its_escape(self):
        self.folder = self.path("été")
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            self.assertEqual(runs.main(["train", self.folder, *FLAGS, *self.inputs]), 0)
            self.assertEqual(runs.main(["show", self.folder]), 0)
        self.assertIn(b"\\xe9t\\xe9: starts at step 1", err.buffer.getvalue())
        self.assertIn(b"\\xe9t\\xe9", out.buffer.getvalue())
        self.assert_whole()


class LiveLine(Lab):
    def lines(self, *argv):
        """What a terminal was sent: (lines before the live one, each state of the live one)."""
        opening, _, live = self.train(*argv, err=Terminal())[2].partition("\n")
        self.assertTrue(live.startswith("\r") and live.endswith("\n"))
        return opening, live[1:-1].split("\r")

    def test_a_terminal_has_one_line_that_is_drawn_over(self):
        opening, drawn = self.lines(*FLAGS)
        self.assertEqual(opening, f"{self.folder}: starts at step 1 of 12, as there is no last.json")
        self.assertEqual([line.split()[1] for line in drawn], [f"{step}/12" for step in range(1, STEPS + 1)])
        body = self.body(os.path.join(self.folder, "last.json"))
        best = body["dev_history"][1]["dev_loss"]
        self.assertRegex(drawn[0], rf"\Astep 1/12  loss {body['history'][0]:.4f}  \d+ s left\Z")
        self.assertRegex(drawn[8], rf"\Astep 9/12  loss {body['history'][8]:.4f}  best {best:.4f} at step 8"
                                   r"  \d+ s left *\Z")
        self.assertRegex(drawn[7], rf"  dev loss {best:.4f}  best {best:.4f} at step 8  \d+ s left\Z")
        for before, after in zip(drawn, drawn[1:]):
            self.assertGreaterEqual(len(after), len(before.rstrip()), "nothing of the line before is left")

    def test_the_line_is_cut_to_the_window(self):
        with mock.patch.dict(os.environ, COLUMNS="21"):
            drawn = self.lines(*FLAGS)[1]
        self.assertEqual({len(line) for line in drawn}, {20})

    def test_an_error_has_a_line_of_its_own(self):
        step = checkpoint.train_step

        def diverging(state, *rest):
            if state.step == 2:
                raise FloatingPointError("step 3: not finite")
            step(state, *rest)

        with mock.patch.object(checkpoint, "train_step", diverging):
            err = self.train(*FLAGS, err=Terminal())[2]
        self.assertTrue(err.endswith(" left\nruns.py: step 3: not finite\n"), err)


# ---------------------------------------------------------------------------- signals

class Raising:
    """Stands in for a function of checkpoint.py: does its work, and raises signals at one call of it."""

    def __init__(self, name, at, *numbers):
        self.original, self.at, self.numbers, self.calls = getattr(checkpoint, name), at, numbers, 0
        self.patch = mock.patch.object(checkpoint, name, self)

    def __call__(self, *args):
        self.calls += 1
        if self.calls == self.at:
            for number in self.numbers:
                signal.raise_signal(number)
        return self.original(*args)


class Signals(Lab):
    def setUp(self):
        super().setUp()
        self.handlers = [*map(signal.getsignal, SIGNALS)]

    def tearDown(self):
        self.assertEqual([*map(signal.getsignal, SIGNALS)], self.handlers, "the handlers were put back")

    def stopped(self, raising, *argv):
        with raising.patch:
            status, out, err = self.train(*argv)
        return status, out, err.splitlines()[-1]

    @needs_signals
    def test_the_step_in_hand_is_finished_saved_and_told(self):
        command = runs.train_command(self.folder, corpus=self.inputs[1], tokenizer=self.inputs[3])
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            for at in (1, 5, 8, 11) if number == signal.SIGINT else (6,):
                with self.subTest(signal=number, at=at):
                    got = self.stopped(Raising("train_step", at, number), *FLAGS, "--restart")
                    name = signal.Signals(number).name
                    self.assertEqual((got[0], self.step()), (status, at))
                    self.assertEqual(got[2], f"runs.py: stopped by {name} after step {at} of 12; "
                                             f"continue with: {command}")
                    scores = "no dev loss yet, " if at < 4 else "dev loss "
                    self.assertTrue(got[1].startswith(f"step {at} of 12: {scores}"))
                    self.assert_continues_to_the_same_bytes()

    @needs_signals
    def test_quiet_still_tells_how_to_continue(self):
        last_line = self.stopped(Raising("train_step", 6, signal.SIGTERM), *FLAGS, "--quiet")[2]
        self.assertIn("; continue with: ", last_line)

    @needs_signals
    def test_a_run_stopped_again_and_again_ends_in_the_same_bytes(self):
        for at, step in ((3, 3), (2, 5), (1, 6), (5, 11)):
            raising, flags = Raising("train_step", at, signal.SIGINT), FLAGS if step == 3 else []
            status, _, last_line = self.stopped(raising, *flags)
            self.assertEqual((status, self.step()), (130, step))
            self.assertIn(f"after step {step} of 12", last_line)
        self.assert_continues_to_the_same_bytes()

    @needs_signals
    def test_a_signal_during_an_evaluation_loses_nothing(self):
        status, _, last_line = self.stopped(Raising("evaluate", 1, signal.SIGTERM), *FLAGS)
        self.assertEqual(status, 143)
        self.assertIn(f"stopped by SIGTERM after step {self.step()} of 12; continue with: ", last_line)
        self.assertLess(self.step(), 8)
        self.assert_continues_to_the_same_bytes()

    @needs_signals
    def test_a_signal_in_the_last_step_leaves_a_finished_run(self):
        status, out, last_line = self.stopped(Raising("train_step", STEPS, signal.SIGINT), *FLAGS)
        self.assertEqual((status, out[:14]), (130, "step 12 of 12:"))
        self.assertEqual(last_line, "runs.py: stopped by SIGINT after step 12 of 12: the run is finished")
        self.assert_whole()

    @needs_signals
    def test_sigterm_again_is_no_reason_to_hurry(self):
        status, _, _ = self.stopped(Raising("train_step", 6, signal.SIGTERM, signal.SIGTERM), *FLAGS)
        self.assertEqual((status, self.step()), (143, 6))

    @needs_signals
    def test_a_second_sigint_stops_at_once(self):
        for first in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(first=first):
                self.started("--restart")
                before = self.files()
                status, out, last_line = self.stopped(Raising("train_step", 2, first, signal.SIGINT))
                self.assertEqual((status, out), (130, ""))
                self.assertEqual(last_line, AT_ONCE)
                self.assertEqual(self.files(), before)
                self.assert_continues_to_the_same_bytes()

    @needs_signals
    def test_a_second_and_third_sigint_within_a_save_leave_no_temporary(self):
        self.started()
        before = self.files()
        unlink, sync = os.unlink, os.fsync

        def interrupted(descriptor):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            sync(descriptor)

        def hurried(path):
            signal.raise_signal(signal.SIGINT)      # the third comes while the temporary is removed
            unlink(path)

        with mock.patch.object(os, "fsync", interrupted), mock.patch.object(os, "unlink", hurried):
            self.assertEqual(self.train()[0], 130)
        self.assertEqual(self.files(), before)
        self.assert_continues_to_the_same_bytes()

    @needs_signals
    def test_an_interrupt_outside_the_training_is_no_traceback(self):
        with mock.patch.object(runs, "read_inputs", side_effect=KeyboardInterrupt):
            status, out, err = self.train(*FLAGS)
        self.assertEqual((status, out, err.count("\n")), (130, "", 1))

    @needs_signals
    def test_the_handlers_are_there_only_while_it_trains(self):
        during = []
        evaluate = checkpoint.evaluate

        def looking(*args):
            during.append([*map(signal.getsignal, SIGNALS)])
            return evaluate(*args)

        with mock.patch.object(checkpoint, "evaluate", looking):
            self.train(*FLAGS)
        self.assertNotIn(self.handlers[0], during[0])
        self.assertNotIn(self.handlers[1], during[0])
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            with mock.patch.object(checkpoint, "train_step", side_effect=OSError("full")):
                self.train()
            self.assertIs(signal.getsignal(signal.SIGTERM), signal.SIG_IGN)
        finally:
            signal.signal(signal.SIGTERM, before)

    def test_where_no_handler_can_be_set_a_run_does_without(self):
        for error in (ValueError("only in the main thread"), OSError("no signals here")):
            with mock.patch.object(runs.signal, "signal", side_effect=error):
                self.assertEqual(self.train(*FLAGS, "--restart")[0], 0)
            self.assert_whole()

    @needs_threads
    def test_a_run_in_another_thread_does_without_handlers(self):
        statuses = []
        thread = threading.Thread(target=lambda: statuses.append(self.train(*FLAGS)[0]))
        thread.start()
        thread.join()
        self.assertEqual(statuses, [0])
        self.assert_whole()


@needs_children
class Children(Lab):
    """The same with real processes and real signals."""

    def child(self, *command, **streams):
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        child = subprocess.Popen([sys.executable, *command], text=True, **streams)
        self.addCleanup(self.end, child)
        return child

    @staticmethod
    def end(child):
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def waiting(self, at):
        """A run in a child that has done `at` steps and waits for two lines."""
        child = self.child("-c", WAITING, str(HERE), str(at), "train", self.folder, *FLAGS, *self.inputs)
        self.assertEqual(child.stdout.readline(), "ready\n")
        return child

    def tell(self, child):
        child.stdin.write("\n")
        child.stdin.flush()

    def test_sigint_and_sigterm_stop_a_run_that_then_continues(self):
        for number, name, status in ((signal.SIGINT, "SIGINT", 130), (signal.SIGTERM, "SIGTERM", 143)):
            with self.subTest(name=name):
                self.folder = self.path(name)
                child = self.waiting(6)
                child.send_signal(number)
                out, err = child.communicate("\n\n", timeout=120)
                self.assertEqual((child.returncode, self.step()), (status, 6))
                self.assertTrue(out.startswith("on\nstep 6 of 12: "), out)
                line = err.splitlines()[-1]
                told = f"runs.py: stopped by {name} after step 6 of 12; continue with: "
                self.assertTrue(line.startswith(told), err)
                words = shlex.split(line.partition("continue with: ")[2])
                again = self.child(*words[1:])      # python3 is this Python here
                _, err = again.communicate(timeout=120)
                self.assertEqual(again.returncode, 0)
                opening = f"{self.folder}: continues from step 6 of 12 (last.json)"
                self.assertEqual(err.splitlines()[0], opening)
                self.assert_whole()

    def test_a_second_sigint_ends_it_at_once_without_a_traceback(self):
        child = self.waiting(6)
        before = self.files()
        child.send_signal(signal.SIGINT)
        self.tell(child)
        self.assertEqual(child.stdout.readline(), "on\n")       # so the first has been noted
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=120)
        self.assertEqual((child.returncode, out), (130, ""))
        self.assertEqual(err.splitlines()[-1], AT_ONCE)
        self.assertNotIn("Traceback", err)
        self.assertEqual(self.files(), before)
        self.assert_continues_to_the_same_bytes()

    def test_sigint_stops_a_run_that_was_started_ignoring_it(self):
        ignoring = "import signal, sys, subprocess; signal.signal(signal.SIGINT, signal.SIG_IGN); " \
                   "sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))"
        raising = WAITING.replace("sys.stdin.readline()", "import os; os.kill(os.getpid(), 2)", 1)
        child = self.child("-c", ignoring, "-c", raising, str(HERE), "6", "train", self.folder,
                           *FLAGS, *self.inputs)
        _, err = child.communicate("\n", timeout=120)
        self.assertEqual((child.returncode, self.step()), (130, 6), err)

    def test_one_run_a_folder_until_it_ends_or_is_killed(self):
        child = self.waiting(6)
        before = self.files()
        for argv in ([], FLAGS, ["--resume"], ["--restart"]):
            self.refused(f"folder {self.folder} is in use by another run; wait until it ends, or stop it",
                         *argv)
        self.assertEqual(self.files(), before)
        child.kill()
        child.wait()
        self.assertEqual(self.step(), 4)
        self.assert_continues_to_the_same_bytes()

    def test_a_reader_that_goes_away_does_not_end_a_run(self):
        child = self.child(str(PROGRAM), "train", self.folder, *FLAGS, *self.inputs)
        child.stdout.close()
        child.stderr.close()
        self.assertEqual(child.wait(timeout=120), 0)
        self.assert_whole()

    def test_a_terminal_is_shown_the_live_line(self):
        try:
            import pty
            mine, theirs = pty.openpty()
        except (ImportError, OSError) as error:
            self.skipTest(f"no pseudo-terminal here: {error}")
        self.addCleanup(os.close, mine)
        child = self.child(str(PROGRAM), "train", self.folder, *FLAGS, *self.inputs, stderr=theirs)
        os.close(theirs)
        sent = b""
        with contextlib.suppress(OSError):          # a terminal's end is an error on Linux
            while True:
                data = os.read(mine, 4096)
                if not data:
                    break
                sent += data
        self.assertEqual(child.wait(timeout=120), 0)
        steps = re.findall(rb"\rstep (\d+)/12  loss", sent)
        self.assertEqual([*map(int, steps)], [*range(1, STEPS + 1)])
        self.assertRegex(sent, rb" left *\r\n\Z")
        self.assert_whole()


# ---------------------------------------------------------------------------- show

class Showing(Lab):
    def show(self, path, *argv):
        status, out, err = self.main("show", path, *(argv or self.inputs))
        self.assertEqual((status, err), (0, ""))
        self.assertTrue(out.splitlines()[0].endswith(".json"))
        return [tuple(re.split(" {2,}", line.strip(), maxsplit=1)) for line in out.splitlines()[1:]]

    def rows_of(self, body):
        inputs = body["training_inputs"]
        return [("corpus", inputs["corpus_sha256"]), *inputs["source_sha256"].items(),
                ("tokenizer", inputs["tokenizer_sha256"]), VERIFIES]

    def test_a_state_is_shown_whole(self):
        last = self.started()
        self.train("--quiet", "--stop-after", "8")
        body = self.body(last)
        history, dev, digest = body["history"], body["dev_history"], checkpoint.params_sha256
        command = runs.train_command(self.folder, corpus=self.inputs[1], tokenizer=self.inputs[3])
        expected = [
            ("step", "8 of 12"), ("config", ", ".join(f"{key} {TINY[key]}" for key in sorted(TINY))),
            ("loss", f"{history[0]:.4f} at step 1, {history[7]:.4f} at step 8"),
            ("dev loss", f"{dev[0]['dev_loss']:.4f} at step 4"),
            ("dev loss", f"{dev[1]['dev_loss']:.4f} at step 8"),
            ("params sha256", digest(body["params"])),
            ("best", f"{body['best']['dev_loss']:.4f} at step 8"),
            ("best sha256", digest(body["best"]["params"])),
            *self.rows_of(body), ("can be continued", f"yes, with: {command}")]
        self.assertEqual(self.show(last), expected)
        self.assertEqual(self.show(self.folder), expected, "a folder means its last.json")

    def test_the_best_model_cannot_be_continued(self):
        self.started()
        best = os.path.join(self.folder, "best.json")
        body = self.body(best)
        self.assertEqual(self.show(best), [
            ("step", "4 of 12"), ("config", ", ".join(f"{key} {TINY[key]}" for key in sorted(TINY))),
            ("dev loss", f"{body['dev_loss']:.4f}"),
            ("params sha256", checkpoint.params_sha256(body["params"])), *self.rows_of(body),
            ("can be continued",
             "no: it holds the best weights alone; a last.json holds all that a run needs"),
        ])

    def test_a_kept_state_is_continued_with_from(self):
        self.started("--keep", "1")
        kept = os.path.join(self.folder, "step-000004.json")
        words = shlex.split(self.show(kept)[-1][1].partition("yes, with: ")[2])
        self.assertEqual(words[2:6], ["train", self.folder, "--from", kept])
        self.assertEqual(self.main(*words[2:])[0], 0)
        os.remove(kept)
        self.assert_whole()

    @needs_signals
    def test_a_state_before_the_first_evaluation_has_no_best(self):
        with Raising("train_step", 2, signal.SIGINT).patch:
            self.train(*FLAGS)
        names = [row[0] for row in self.show(self.folder)]
        self.assertNotIn("best", names)
        self.assertNotIn("dev loss", names)
        self.assertIn("loss", names)

    def test_why_this_clone_could_not_continue_is_said_and_no_failure(self):
        last = self.started()
        other = self.write("other.txt", STORIES.replace("Mia", "Max"))
        missing = self.path("missing")
        differ = "no: its training inputs differ: "
        last_row = [
            (["--corpus", other, *self.inputs[2:]], f"{differ}corpus"),
            (["--corpus", missing], f"no: corpus {missing} does not exist"),
        ]
        for argv, reason in last_row:
            self.assertEqual(self.show(last, *argv)[-2:], [VERIFIES, ("can be continued", reason)])
        self.changed_source(last, "train.py")
        self.assertEqual(self.show(last)[-1][1], f"{differ}source train.py")
        for odd in (None, "x", [], 5):
            self.changed(last, lambda body, odd=odd: body.update(training_inputs=odd))
            self.assertEqual(self.show(last)[-3:], [("inputs", str(odd)), VERIFIES,
                                                    ("can be continued", f"{differ}none recorded")])

    def test_a_state_that_does_not_fit_its_corpus_cannot_be_continued(self):
        last = self.started()
        left = len(self.body(last)["order"])
        self.changed(last, lambda body: body.update(order=[]))      # right, if there were 8 stories
        self.assertEqual(self.show(last)[-1], (
            "can be continued", f"no: checkpoint {last}: field 'order' is not a list of {left} different "
                                f"story indices below {len(split_stories(STORIES)[0])}"))

    def test_a_finished_run_has_nothing_left_to_do(self):
        self.train(*FLAGS)
        self.assertEqual(self.show(self.folder)[-1],
                         ("can be continued", "there is nothing left to do: this is the run's last step"))

    def test_a_file_that_does_not_verify_is_refused_in_one_sentence(self):
        last = Path(self.started())
        whole = last.read_bytes()
        missing = self.path("missing.json")
        os.mkdir(self.path("empty"))
        self.refused(f"no checkpoint {missing}; {START}", "show", missing, mode=self.main)
        self.refused(f"no checkpoint {self.path('empty', 'last.json')}; {START}", "show", self.path("empty"),
                     mode=self.main)
        flipped = whole.replace(b'"step": 4', b'"step": 5', 1)
        table = [(flipped, f"checkpoint {last} failed its SHA-256 check"),
                 (b"[]", f"checkpoint {last} does not hold a JSON object"),
                 (b"{}", "checkpoint format None; expected 1")]
        for data, message in table:
            last.write_bytes(data)
            for argv in (["show", str(last)], ["compare", str(last), str(last)],
                         ["compare", self.folder, self.folder]):
                self.refused(message, *argv, mode=self.main)
            self.assertEqual(last.read_bytes(), data)

    def test_a_best_model_with_an_odd_field_is_refused_in_one_sentence(self):
        self.started()
        best = os.path.join(self.folder, "best.json")
        body = self.body(best)
        for key, odd, problem in (("step", 99, "field 'step' is not a whole number from 1 to 12"),
                                  ("dev_loss", None, "field 'dev_loss' is not a finite float"),
                                  ("params", {}, "field 'params.attn_wk' is missing"),
                                  ("params", None, "field 'params' is not a JSON object"),
                                  ("note", "hello", "field 'note' is unknown"),
                                  ("config", {}, "config: 'adam_eps' is missing")):
            checkpoint.save(best, {**body, key: odd})
            self.refused(f"checkpoint {best}: {problem}", "show", best, mode=self.main)

    def test_a_whole_checkpoint_is_never_refused_for_lack_of_its_corpus(self):
        # check_alone does not know how many stories there are: every state of a run must pass it.
        sequences = encode_all(self.tok, split_stories(STORIES)[0], TINY["max_len"])
        state = checkpoint.new_state(len(self.tok.vocab), TINY)
        for _ in range(STEPS - 1):
            checkpoint.train_step(state, sequences, TINY)
            if checkpoint.is_due(state, TINY):
                checkpoint.evaluate(state, sequences)
            check_alone(checkpoint.state_to_body(state, TINY, {}), "file")
        with self.assertRaises(CheckpointError):
            check_alone({**checkpoint.state_to_body(state, TINY, {}), "order": [0, 0]}, "file")


# ---------------------------------------------------------------------------- compare

class Comparing(Lab):
    def compare(self, a, b):
        status, out, err = self.main("compare", a, b)
        self.assertEqual(err, "")
        return status, out.splitlines()

    def twins(self):
        """(path of a state at step 4, path of a copy to be changed)."""
        last = Path(self.started())
        return str(last), self.write("copy.json", last.read_bytes())

    def test_a_run_whose_resume_forgot_a_part_can_be_looked_at_and_compared_but_not_continued(self):
        good, text = self.started(), Path(self.inputs[1]).read_text(encoding="utf-8")
        cfg = {**json.loads(Path(good).read_bytes())["config"]}
        whole = self.path("whole")
        checkpoint.run(self.tok, text, cfg, whole)
        for forgets, field in (("restore_optimizer", "adam.t"), ("restore_shuffle", "order")):
            folder = self.path(forgets)
            checkpoint.run(self.tok, text, cfg, folder, stop_after=4)
            checkpoint.run(self.tok, text, cfg, folder, resume=True, **{forgets: False})
            with self.subTest(forgets):
                status, lines = self.compare(whole, folder)
                self.assertEqual(status, 1)
                self.assertTrue(lines[0].startswith("the histories part at step "), lines[0])
                status, out, err = self.main("show", folder, *self.inputs)
                self.assertEqual((status, err), (0, ""))
                self.assertIn(f"field '{field}' is not ", out)

    def test_a_state_before_the_first_evaluation_is_compared_in_one_line_a_field(self):
        last, early = self.started(), self.path("early")
        cfg = json.loads(Path(last).read_bytes())["config"]
        checkpoint.run(self.tok, Path(self.inputs[1]).read_text(encoding="utf-8"), cfg, early, should_stop=lambda: True)
        _, lines = self.compare(last, early)
        self.assertIn("best is null in one and a value in the other", lines)

    def test_equal_states_are_said_to_be_so(self):
        last, _ = self.twins()
        os.mkdir(self.path("other"))
        self.write(os.path.join("other", "last.json"), Path(last).read_bytes())
        digest = checkpoint.params_sha256(self.body(last)["params"])
        expected = (0, ["the histories agree for the 4 steps that both have",
                        f"every field is the same: step 4, params sha256 {digest}"])
        self.assertEqual(self.compare(last, last), expected)
        self.assertEqual(self.compare(self.folder, self.path("other")), expected)
        best = os.path.join(self.folder, "best.json")
        self.assertEqual(self.compare(best, best), (0, expected[1][1:]))

    def test_each_field_that_differs_is_told_with_how_much(self):
        def add(matrix, row, column, amount):
            matrix[row][column] += amount

        last, copy = self.twins()
        corpus = self.body(last)["training_inputs"]["corpus_sha256"]
        table = [
            (lambda b: add(b["params"]["wte"], 2, 1, 0.5), "params.wte differs by up to 0.5, at [2][1]"),
            (lambda b: (add(b["adam"]["m"]["wpe"], 0, 3, -2.0), add(b["adam"]["m"]["wpe"], 1, 0, 1.0)),
             "adam.m.wpe differs by up to 2, at [0][3]"),
            (lambda b: add(b["adam"]["v"]["mlp_fc"], 7, 3, 1.0),
             "adam.v.mlp_fc differs by up to 1, at [7][3]"),
            (lambda b: add(b["best"]["params"]["lm_head"], 1, 1, 0.25),
             "best.params.lm_head differs by up to 0.25, at [1][1]"),
            (lambda b: b["rng_state"][1].__setitem__(0, 7), "rng_state differs"),
            (lambda b: b["order"].reverse(), "order differs"),
            (lambda b: b["training_inputs"].update(corpus_sha256="0"),
             f'training_inputs.corpus_sha256 is "{corpus}" and "0"'),
            (lambda b: b["config"].update(learning_rate=0.02), "config.learning_rate is 0.01 and 0.02"),
        ]
        for change, line in table:
            with self.subTest(line=line):
                Path(copy).write_bytes(Path(last).read_bytes())
                self.changed(copy, change)
                self.assertEqual(self.compare(last, copy),
                                 (1, ["the histories agree for the 4 steps that both have", line]))

    def test_a_zero_of_another_sign_is_a_difference(self):
        last, copy = self.twins()
        for path, zero in ((last, 0.0), (copy, -0.0)):
            self.changed(path, lambda body, zero=zero: body["params"]["wte"][0].__setitem__(0, zero))
        self.assertEqual(self.compare(last, copy)[0], 1)
        self.assertEqual(self.compare(last, copy)[1][1:], ["params.wte differs"])

    def test_the_first_step_at_which_the_histories_part_is_told_first(self):
        last, copy = self.twins()
        loss = self.body(last)["history"][2]
        self.changed(copy, lambda body: body["history"].__setitem__(2, 9.0))
        self.assertEqual(self.compare(last, copy),
                         (1, [f"the histories part at step 3: loss {loss!r} and 9.0",
                              f"history differs by up to {9.0 - loss:.3g}, at step 3"]))

    def test_two_states_of_one_run_agree_as_far_as_both_go(self):
        self.started("--keep", "1")
        self.train("--quiet")
        status, lines = self.compare(os.path.join(self.folder, "step-000004.json"), self.folder)
        self.assertEqual((status, lines[0]), (1, "the histories agree for the 4 steps that both have"))
        for line in ("step is 4 and 12", "adam.t is 4 and 12", "history has 4 and 12 entries",
                     "dev_history has 1 and 3 entries"):
            self.assertIn(line, lines)
        self.assertRegex("\n".join(lines), r"\nparams\.wte differs by up to 0\.\d+, at \[\d+\]\[\d+\]\n")

    def test_runs_of_other_sizes_are_compared_as_far_as_they_match(self):
        other = self.started("--hidden", "9", folder=self.path("other"))
        status, lines = self.compare(self.started(), other)
        self.assertEqual(status, 1)
        self.assertIn("config.hidden is 8 and 9", lines)
        self.assertTrue(any(line.startswith("params.mlp_fc has 8 and 9 entries") for line in lines), lines)

    def test_a_best_model_and_a_state_are_compared_in_what_both_have(self):
        last = self.started()
        best = os.path.join(self.folder, "best.json")
        only = [f"{name} is only in {last}"
                for name in ("adam", "best", "dev_history", "history", "order", "rng_state")]
        self.assertEqual(self.compare(last, best), (1, [*only, f"dev_loss is only in {best}"]))
        self.assertEqual(self.compare(best, last)[1][0], f"dev_loss is only in {best}")


if __name__ == "__main__":
    unittest.main()
