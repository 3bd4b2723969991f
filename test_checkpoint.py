"""The checkpoint and resume tests: what is refused, what comes back, and that a resume is exact."""
from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import checkpoint
import train
from bpe import Tokenizer
from checkpoint import (
    CheckpointError,
    canonical,
    input_signature,
    load,
    params_sha256,
    run,
    save,
    sha256,
    state_from_body,
    state_to_body,
)
from trace_checkpoints import scores
from train import CONFIG, checksum, color_recall, copy_params, encode_all, mean_loss, new_state, split_stories

HERE = Path(__file__).resolve().parent
TEXT = "\n".join(f"{name} had a {color} {thing}. The {thing} was still {color}."
                 for name in ("Mia", "Leo", "Ana") for color in ("red", "blue", "pink", "gold")
                 for thing in ("hat", "cup", "kite", "ball", "boat"))
TOK = Tokenizer.train(TEXT, 40)
TINY = {**CONFIG, "d": 4, "hidden": 6, "max_len": 12, "steps": 12, "eval_every": 3, "batch": 8}


DEEP: dict = {}
DEEP["d"] = DEEP                        # contains itself


class Folder(unittest.TestCase):
    """A test with a folder of its own, and short ways to run in it."""

    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name
        self.path = os.path.join(self.folder, "last.json")

    def sub(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def files(self, folder: str) -> dict[str, str]:
        """Name -> digest of every file: short enough to be shown when two folders differ."""
        return {name: hashlib.sha256(Path(folder, name).read_bytes()).hexdigest()
                for name in sorted(os.listdir(folder))}

    def dev_losses(self, losses):
        """Evaluations that find these development losses, one after the other, again in each run."""
        by_step = {TINY["eval_every"] * (i + 1): loss for i, loss in enumerate(losses)}
        real = train.evaluate

        def evaluate(state, dev):
            with mock.patch("train.mean_loss", return_value=by_step[state.step]):
                return real(state, dev)
        return mock.patch("checkpoint.evaluate", evaluate)

    def refused(self, message: str, path=None, cfg=TINY, inputs=None) -> None:
        """`load` refuses with this message, and leaves the file as it is."""
        path = path or self.path
        before = Path(path).read_bytes()
        with self.assertRaises(CheckpointError) as caught:
            load(path, cfg, inputs)
        self.assertEqual(str(caught.exception), message)
        self.assertEqual(Path(path).read_bytes(), before)


class TestTheFile(Folder):
    BODY = {"config": TINY, "numbers": [0.1, -0.0, 5e-324, 1.7976931348623157e308, 1 / 3], "text": "é汉\ud83d\u2028",
            "none": None, "true": True, "int": 12345678901234567890, "nested": {"a": [], "b": {}}}

    def test_what_was_saved_comes_back_exactly(self) -> None:
        save(self.path, self.BODY)
        back = load(self.path, TINY)
        self.assertEqual(back, self.BODY)
        self.assertEqual(list(map(repr, back["numbers"])), list(map(repr, self.BODY["numbers"])))

    def test_save_load_save_gives_the_same_bytes(self) -> None:
        save(self.path, self.BODY)
        save(self.sub("again.json"), load(self.path, TINY))
        self.assertEqual(Path(self.path).read_bytes(), Path(self.sub("again.json")).read_bytes())

    def test_the_digest_is_of_the_sorted_json_with_the_version(self) -> None:
        save(self.path, self.BODY)
        whole = json.loads(Path(self.path).read_text(encoding="utf-8"))
        digest = whole.pop("sha256")
        self.assertEqual(whole["format_version"], 1)
        expected = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()
        self.assertEqual(digest, expected)

    def test_a_file_laid_out_otherwise_with_the_same_values_is_accepted(self) -> None:
        save(self.path, self.BODY)
        value = json.loads(Path(self.path).read_text(encoding="utf-8"))
        Path(self.path).write_text(json.dumps(value, indent=3), encoding="utf-8")
        self.assertEqual(load(self.path, TINY), self.BODY)

    def test_no_temporary_is_left_after_success_or_error(self) -> None:
        save(self.path, self.BODY)
        with mock.patch("checkpoint.os.replace", side_effect=OSError(28, "No space left on device")), \
                self.assertRaises(OSError):
            save(self.path, {**self.BODY, "int": 1})
        self.assertEqual(os.listdir(self.folder), ["last.json"])

    def test_a_write_stopped_before_the_rename_leaves_the_old_checkpoint(self) -> None:
        save(self.path, self.BODY)
        with mock.patch("checkpoint.os.replace", side_effect=KeyboardInterrupt), \
                self.assertRaises(KeyboardInterrupt):
            save(self.path, {**self.BODY, "int": 1})
        self.assertEqual(load(self.path, TINY), self.BODY)

    def test_what_json_would_change_is_refused_by_name_before_anything_is_written(self) -> None:
        for bad, message in (
                ({"a": [1.0, math.nan]}, "cannot be saved as JSON: body['a'][1] is nan, not a finite number"),
                ({"a": {"b": math.inf}}, "cannot be saved as JSON: body['a']['b'] is inf, not a finite number"),
                ({"a": {1: 2}}, "cannot be saved as JSON: body['a'] has the key 1; keys must be strings"),
                ({"a": [{None: 2}]}, "cannot be saved as JSON: body['a'][0] has the key None; keys must be strings"),
                (DEEP, "cannot be saved as JSON: body" + "['d']" * 100 + " is nested too deep: more than 100 levels"),
                ({"a": {1, 2}}, "cannot be saved as JSON: body['a'] is of type set, which JSON does not have"),
                ({"a": [0, b""]}, "cannot be saved as JSON: body['a'][1] is of type bytes, which JSON does not have"),
                ([1], "cannot be saved: body is of type list; expected a dict")):
            with self.subTest(message=message), self.assertRaises(ValueError) as caught:
                save(self.path, bad)
            self.assertEqual(str(caught.exception), message)
        self.assertEqual(os.listdir(self.folder), [])

    def test_what_is_as_deep_as_may_be_comes_back(self) -> None:
        value: list = []
        for _ in range(98):
            value = [value]
        save(self.path, {"config": TINY, "deep": value})
        self.assertEqual(load(self.path, TINY)["deep"], value)
        with self.assertRaisesRegex(ValueError, "nested too deep: more than 100 levels$"):
            save(self.path, {"config": TINY, "deep": [value]})

    def test_a_missing_file_says_how_to_start_a_run(self) -> None:
        with self.assertRaises(FileNotFoundError) as caught:
            load(self.path, TINY)
        self.assertEqual(str(caught.exception),
                         f"no checkpoint {self.path}; start a run with: python3 runs.py train FOLDER")


class TestRefusals(Folder):
    def write(self, text: str) -> None:
        Path(self.path).write_bytes(text.encode("utf-8"))

    def signed(self, body: dict, version=1) -> None:
        """Write `body` with a valid digest, whatever else is wrong with it."""
        whole = {**body, "format_version": version}
        self.write(json.dumps({**whole, "sha256": sha256(json.dumps(whole, sort_keys=True))}))

    def test_what_is_not_json_is_refused_with_the_cause(self) -> None:
        opening = f"checkpoint {self.path} is not valid JSON: "
        for text, cause in (
                ('{"a": 1', "Expecting ',' delimiter: line 1 column 8 (char 7)"),
                ("", "Expecting value: line 1 column 1 (char 0)"),
                ("\ufeff{}", "Unexpected UTF-8 BOM (decode using utf-8-sig): line 1 column 1 (char 0)"),
                ('{"a": NaN}', "NaN is no JSON number"),
                ('{"a": [-Infinity]}', "-Infinity is no JSON number"),
                ('{"a": 1, "b": 2, "a": 3}', "key 'a' stands twice"),
                ('{"x": {"b": 2, "b": 2}}', "key 'b' stands twice")):
            with self.subTest(text=text):
                self.write(text)
                self.refused(opening + cause)

    def test_the_causes_that_python_words_itself_have_the_same_opening(self) -> None:
        nested = "[" * 200_000
        for name, data in (("overflow", b'{"a": 1e999}'), ("not UTF-8", b'{"a": "\xff"}'),
                           ("nested", nested.encode()), ("nested objects", b'{"a":' * 200_000)):
            with self.subTest(name):
                Path(self.path).write_bytes(data)
                with self.assertRaises(CheckpointError) as caught:
                    load(self.path, TINY)
                self.assertTrue(str(caught.exception).startswith(f"checkpoint {self.path} is not valid JSON: "))
                self.assertEqual(Path(self.path).read_bytes(), data)

    def test_json_that_is_no_object_is_refused(self) -> None:
        for text in ("null", "[]", "1", '"x"', "true"):
            with self.subTest(text):
                self.write(text)
                self.refused(f"checkpoint {self.path} does not hold a JSON object")

    def test_another_format_version_is_refused(self) -> None:
        for version in (2, 0, "1", True, None, 1.0):
            with self.subTest(version=version):
                self.signed({"config": TINY}, version)
                self.refused(f"checkpoint format {version}; expected 1")

    def test_a_changed_value_fails_the_digest(self) -> None:
        save(self.path, {"config": TINY, "x": [0.25]})
        text = Path(self.path).read_text(encoding="utf-8")
        self.write(text.replace("0.25", "0.26"))
        self.refused(f"checkpoint {self.path} failed its SHA-256 check")

    def test_a_missing_digest_fails(self) -> None:
        for digest in ({}, {"sha256": None}, {"sha256": 5}, {"sha256": ""}):
            with self.subTest(digest=digest):
                self.write(json.dumps({"config": TINY, "format_version": 1, **digest}))
                self.refused(f"checkpoint {self.path} failed its SHA-256 check")

    def test_a_config_that_is_no_object_is_refused(self) -> None:
        for body in ({}, {"config": None}, {"config": []}, {"config": "x"}):
            with self.subTest(body=body):
                self.signed(body)
                self.refused(f"checkpoint {self.path} has no config that is a JSON object")

    def test_another_config_is_refused_by_the_names_of_its_keys(self) -> None:
        save(self.path, {"config": TINY})
        for key in TINY:
            with self.subTest(key):
                self.refused(f"checkpoint was written with a different config: ['{key}']",
                             cfg={**TINY, key: TINY[key] * 2})
        self.refused("checkpoint was written with a different config: ['batch', 'steps']",
                     cfg={**TINY, "steps": 1, "batch": 1})
        self.refused("checkpoint was written with a different config: ['d', 'extra']",
                     cfg={**{key: TINY[key] for key in TINY if key != "d"}, "extra": 1})

    def test_a_tuple_in_a_config_equals_its_list_but_types_of_numbers_differ(self) -> None:
        for saved, asked, same in (((1, 2), (1, 2), True), ((1, 2), [1, 2], True), (1, True, False),
                                   (1, 1.0, False), (0.0, -0.0, False), ("é", "é", True), (None, 0, False)):
            with self.subTest(saved=saved, asked=asked):
                save(self.path, {"config": {"x": saved}})
                if same:
                    load(self.path, {"x": asked})
                else:
                    self.refused("checkpoint was written with a different config: ['x']", cfg={"x": asked})

    def test_changed_inputs_are_refused_by_name(self) -> None:
        same = input_signature(TOK, TEXT)
        other_ids = Tokenizer(list(reversed(TOK.alphabet)), TOK.merges)
        self.assertEqual(len(other_ids.vocab), len(TOK.vocab))
        sources = same["source_sha256"]
        for recorded, expected, names in (
                (same, input_signature(TOK, TEXT + "\nMore."), "corpus"),
                (same, input_signature(other_ids, TEXT), "tokenizer"),
                ({**same, "source_sha256": {**sources, "model.py": "0"}}, same, "source model.py"),
                ({**same, "source_sha256": {"model.py": sources["model.py"]}}, same,
                 "source bpe.py, source checkpoint.py, source portable.py, source train.py"),
                ({**same, "source_sha256": None}, same, "sources"),
                (same, input_signature(other_ids, TEXT[1:]), "corpus, tokenizer"),
                (None, same, "none recorded"), ([], same, "none recorded"), ({}, same, "none recorded")):
            with self.subTest(names):
                save(self.path, {"config": TINY, "training_inputs": recorded})
                self.refused(f"checkpoint training inputs differ: {names}", inputs=expected)
        save(self.path, {"config": TINY})
        self.refused("checkpoint training inputs differ: none recorded", inputs=same)

    def test_a_clone_with_crlf_line_ends_has_the_same_inputs(self) -> None:
        expected = input_signature(TOK, TEXT)
        for name in checkpoint.SOURCES:
            data = (HERE / name).read_bytes()
            self.assertNotIn(b"\r", data)
            Path(self.sub(name)).write_bytes(data.replace(b"\n", b"\r\n"))
        with mock.patch("checkpoint.HERE", Path(self.folder)):
            self.assertEqual(input_signature(TOK, TEXT.replace("\n", "\r\n")), expected)

    def test_the_signature_names_every_module_whose_bytes_decide_a_step(self) -> None:
        self.assertEqual(set(input_signature(TOK, TEXT)["source_sha256"]),
                         {"portable.py", "model.py", "train.py", "bpe.py", "checkpoint.py"})

    def test_a_folder_in_the_place_of_a_checkpoint_is_refused(self) -> None:
        os.mkdir(self.path)
        with self.assertRaisesRegex(CheckpointError, f"^checkpoint {self.path} cannot be read: "):
            load(self.path, TINY)


class TestARun(Folder):
    def test_run_and_the_plain_loop_end_with_the_same_bits(self) -> None:
        params, history, dev_history, _ = run(TOK, TEXT, TINY, self.folder)
        plain, plain_history, plain_dev_history = train.train(TOK, TEXT, TINY)
        self.assertEqual(checksum(params), checksum(plain))
        self.assertEqual(params_sha256(params), params_sha256(plain))
        self.assertEqual((history, dev_history), (plain_history, plain_dev_history))
        self.assertEqual([entry["step"] for entry in dev_history], [3, 6, 9, 12])

    def test_a_resume_equals_the_uninterrupted_run_from_every_stop_point(self) -> None:
        for batch in (8, 5, 60):            # 60: more stories than there are
            cfg = {**TINY, "batch": batch, "eval_every": 1, "steps": 8}
            whole = self.sub(f"whole{batch}")
            run(TOK, TEXT, cfg, whole)
            for stop in range(1, cfg["steps"] + 1):
                with self.subTest(batch=batch, stop=stop):
                    folder = self.sub(f"stopped{batch}-{stop}")
                    self.assertEqual(len(run(TOK, TEXT, cfg, folder, stop_after=stop)[1]), stop)
                    run(TOK, TEXT, cfg, folder, resume=True)
                    self.assertEqual(self.files(folder), self.files(whole))

    def test_stop_after_stops_at_the_first_evaluation_at_or_after_the_step(self) -> None:
        for stop_after, stopped in ((1, 3), (3, 3), (4, 6), (11, 12), (99, 12)):
            with self.subTest(stop_after):
                self.assertEqual(len(run(TOK, TEXT, TINY, self.sub(str(stop_after)), stop_after=stop_after)[1]),
                                 stopped)

    def test_the_saved_fields_are_those_of_the_contract(self) -> None:
        run(TOK, TEXT, TINY, self.folder)
        last, best = (json.loads(Path(self.sub(name)).read_text(encoding="utf-8"))
                      for name in ("last.json", "best.json"))
        frame = {"format_version", "sha256"}
        self.assertEqual(set(last) - frame, {"step", "config", "params", "training_inputs", "adam", "rng_state",
                                             "order", "history", "dev_history", "best"})
        self.assertEqual(set(best) - frame, {"step", "dev_loss", "config", "params", "training_inputs"})
        self.assertEqual(set(last["adam"]), {"m", "v", "t"})
        self.assertEqual(last["best"]["params"], best["params"])

    def test_without_each_saved_field_the_end_changes_or_the_load_is_refused(self) -> None:
        cfg = {**TINY, "batch": 5}
        whole = run(TOK, TEXT, cfg, self.sub("whole"))
        run(TOK, TEXT, cfg, self.sub("half"), stop_after=6)
        body = load(self.sub("half/last.json"), cfg)
        fields = [(key,) for key in body] + [("adam", key) for key in body["adam"]]
        for place in fields:
            with self.subTest(place):
                damaged = copy.deepcopy(body)
                holder = damaged if len(place) == 1 else damaged[place[0]]
                del holder[place[-1]]
                save(self.path, damaged)
                with self.assertRaisesRegex(CheckpointError, place[-1] if place[-1] != "training_inputs" else "none"):
                    run(TOK, TEXT, cfg, self.folder, resume=True)
        self.assertEqual(len(whole[1]), 12)

    def test_without_each_part_of_the_state_the_end_is_another(self) -> None:
        """The refusal above is no formality: a resume that goes on without the field ends elsewhere."""
        losses = self.dev_losses([2.0, 1.0, 3.0, 1.5])     # the best is neither the first nor the last
        losses.start()
        self.addCleanup(losses.stop)
        cfg = {**TINY, "batch": 5}
        run(TOK, TEXT, cfg, self.sub("whole"))
        run(TOK, TEXT, cfg, self.sub("half"), stop_after=6)
        body = load(self.sub("half/last.json"), cfg)
        fresh = state_to_body(new_state(len(TOK.vocab), cfg), cfg, body["training_inputs"])
        parts = [("params",), ("adam", "m"), ("adam", "v"), ("adam", "t"), ("rng_state",), ("order",), ("history",),
                 ("dev_history",), ("best",), ("step",)]
        for place in parts:
            with self.subTest(place):
                forgetful = copy.deepcopy(body)
                holder, source = (forgetful, fresh) if len(place) == 1 else (forgetful[place[0]], fresh[place[0]])
                holder[place[-1]] = source[place[-1]]
                folder = self.sub("-".join(place))
                os.mkdir(folder)
                save(os.path.join(folder, "last.json"), forgetful)
                with mock.patch("checkpoint.check_body"):
                    run(TOK, TEXT, cfg, folder, resume=True)
                self.assertNotEqual(self.files(folder)["last.json"], self.files(self.sub("whole"))["last.json"])

    def test_the_two_broken_resumes_end_elsewhere(self) -> None:
        cfg = {**TINY, "batch": 5}
        good = params_sha256(run(TOK, TEXT, cfg, self.sub("whole"))[0])
        ends = {good}
        for switches in ({}, {"restore_optimizer": False}, {"restore_shuffle": False}):
            folder = self.sub(str(len(switches)) + "".join(switches))
            run(TOK, TEXT, cfg, folder, stop_after=6)
            ends.add(params_sha256(run(TOK, TEXT, cfg, folder, resume=True, **switches)[0]))
            if not switches:
                self.assertEqual(ends, {good})
        self.assertEqual(len(ends), 3)

    def test_a_finished_run_resumed_does_no_step_and_changes_no_byte(self) -> None:
        first = run(TOK, TEXT, TINY, self.folder)
        before = {name: (os.stat(self.sub(name)).st_mtime_ns, data) for name, data in self.files(self.folder).items()}
        with mock.patch("checkpoint.train_step", side_effect=AssertionError("a step was made")):
            second = run(TOK, TEXT, TINY, self.folder, resume=True)
        self.assertEqual(first, second)
        after = {name: (os.stat(self.sub(name)).st_mtime_ns, data) for name, data in self.files(self.folder).items()}
        self.assertEqual(before, after)

    def test_resume_without_a_checkpoint_is_refused_and_auto_starts(self) -> None:
        for folder in (self.folder, self.sub("missing")):
            with self.subTest(folder=folder), self.assertRaises(FileNotFoundError) as caught:
                run(TOK, TEXT, TINY, folder, resume=True)
            self.assertEqual(str(caught.exception), f"no checkpoint {os.path.join(folder, 'last.json')}; "
                                                    "start a run with: python3 runs.py train FOLDER")
        self.assertFalse(os.path.exists(self.sub("missing")))
        self.assertEqual(len(run(TOK, TEXT, TINY, self.folder, resume="auto")[1]), 12)

    def test_a_refused_checkpoint_is_left_alone_by_every_kind_of_resume(self) -> None:
        Path(self.path).write_bytes(b"{")
        for resume in (True, "auto"):
            with self.subTest(resume=resume), self.assertRaises(CheckpointError):
                run(TOK, TEXT, TINY, self.folder, resume=resume)
        self.assertEqual(os.listdir(self.folder), ["last.json"])
        self.assertEqual(Path(self.path).read_bytes(), b"{")

    def test_options_that_make_no_sense_are_refused(self) -> None:
        for options, message in (({"resume": "yes"}, "resume is 'yes'; expected True, False or 'auto'"),
                                 ({"resume": 1}, "resume is 1; expected True, False or 'auto'"),
                                 ({"stop_after": 0}, "stop_after is 0; expected a step from 1 up"),
                                 ({"stop_after": 1.5}, "stop_after is 1.5; expected a step from 1 up"),
                                 ({"keep": -1}, "keep is -1; expected a number of states from 0 up")):
            with self.subTest(message), self.assertRaises(ValueError) as caught:
                run(TOK, TEXT, TINY, self.folder, **options)
            self.assertEqual(str(caught.exception), message)
        self.assertEqual(os.listdir(self.folder), [])

    def test_progress_and_evaluation_never_change_a_parameter(self) -> None:
        often = run(TOK, TEXT, {**TINY, "eval_every": 1}, self.sub("a"), progress=lambda state: None)[0]
        seldom = run(TOK, TEXT, {**TINY, "eval_every": 12}, self.sub("b"))[0]
        self.assertEqual(params_sha256(often), params_sha256(seldom))


class TestTheFolder(Folder):
    def test_a_refusal_to_keep_comes_before_anything_is_written(self) -> None:
        run(TOK, TEXT, TINY, self.sub("run"), stop_after=6)
        os.mkdir(self.sub("new"))
        Path(self.sub("new/step-000012.json")).write_bytes(b"foreign")
        with self.assertRaisesRegex(CheckpointError, "has the name of a state to keep, but is none"):
            run(TOK, TEXT, TINY, self.sub("new"), resume_from=self.sub("run/last.json"), keep=1)
        self.assertNotIn("last.json", os.listdir(self.sub("new")))
        self.assertNotIn("best.json", os.listdir(self.sub("new")))


class TestTheBest(Folder):
    def test_the_best_is_kept_when_the_loss_rises_and_falls(self) -> None:
        with self.dev_losses([2.0, 1.0, 3.0, 1.5]):
            best = run(TOK, TEXT, TINY, self.folder)[3]
        self.assertEqual((best["step"], best["dev_loss"]), (6, 1.0))
        self.assertEqual(load(self.sub("best.json"), TINY)["step"], 6)
        self.assertEqual(load(self.path, TINY)["step"], 12)

    def test_the_best_from_before_an_interruption_stays_best(self) -> None:
        with self.dev_losses([2.0, 1.0, 3.0, 1.5]):
            run(TOK, TEXT, TINY, self.sub("whole"))
            for stops in ([6], [9], [6, 9], [3, 6, 9]):
                with self.subTest(stops):
                    folder = self.sub("-".join(map(str, stops)))
                    for stop in stops:
                        run(TOK, TEXT, TINY, folder, resume="auto", stop_after=stop)
                    run(TOK, TEXT, TINY, folder, resume=True)
                    self.assertEqual(self.files(folder), self.files(self.sub("whole")))

    def test_a_run_started_over_keeps_the_best_of_the_run_before_until_it_has_one_of_its_own(self) -> None:
        """Whoever started over by mistake, and stops at once, still has the weights."""
        other, stop = {**TINY, "learning_rate": 0.02}, iter([False, True]).__next__
        run(TOK, TEXT, TINY, self.folder)
        best = Path(self.sub("best.json")).read_bytes()
        run(TOK, TEXT, other, self.folder, should_stop=stop)
        self.assertEqual(Path(self.sub("best.json")).read_bytes(), best)
        run(TOK, TEXT, other, self.folder, resume=True)
        run(TOK, TEXT, other, self.sub("whole"))
        for name in ("best.json", "last.json"):
            self.assertEqual(Path(self.sub(name)).read_bytes(), Path(self.sub("whole"), name).read_bytes())

    def test_a_high_learning_rate_makes_the_loss_rise_and_the_best_is_the_lowest(self) -> None:
        cfg = {**TINY, "learning_rate": 0.8, "steps": 15}
        _, _, dev_history, best = run(TOK, TEXT, cfg, self.sub("whole"), stop_after=12)
        losses = [entry["dev_loss"] for entry in dev_history]
        self.assertGreater(losses[3], losses[2])
        self.assertEqual((best["step"], best["dev_loss"]), (9, losses[2]))
        _, _, dev_history, best = run(TOK, TEXT, cfg, self.sub("whole"), resume=True)
        self.assertEqual((best["step"], best["dev_loss"]), (15, min(entry["dev_loss"] for entry in dev_history)))

    def test_an_equal_loss_is_not_better(self) -> None:
        with self.dev_losses([2.0, 1.0, 1.0, 1.0]):
            self.assertEqual(run(TOK, TEXT, TINY, self.folder)[3]["step"], 6)

    def test_the_best_weights_are_a_copy_that_training_does_not_change(self) -> None:
        with self.dev_losses([1.0, 2.0, 3.0, 4.0]):
            best = run(TOK, TEXT, TINY, self.folder)[3]
            early = run(TOK, TEXT, TINY, self.sub("early"), stop_after=3)[0]
        self.assertEqual(params_sha256(best["params"]), params_sha256(early))

    def test_a_loss_that_is_not_finite_stops_the_run_and_overwrites_nothing(self) -> None:
        for bad in (math.nan, math.inf):
            folder = self.sub(str(bad))
            with self.subTest(bad=bad), self.dev_losses([2.0, 1.0, bad, 0.5]):
                run(TOK, TEXT, TINY, folder, stop_after=6)
                before = self.files(folder)
                with self.assertRaises(FloatingPointError) as caught:
                    run(TOK, TEXT, TINY, folder, resume=True)
                self.assertEqual(str(caught.exception), f"step 9: the development loss is not finite ({bad}); "
                                 "a lower learning rate usually helps")
                self.assertEqual(self.files(folder), before)

    def test_a_gradient_that_is_not_finite_stops_the_run_and_overwrites_nothing(self) -> None:
        run(TOK, TEXT, TINY, self.folder, stop_after=6)
        before, real = self.files(self.folder), train.batch_gradient

        def poisoned(params, batch):
            loss, grads = real(params, batch)
            grads["wte"][0][0] = math.nan
            return loss, grads
        with mock.patch("train.batch_gradient", poisoned), self.assertRaisesRegex(FloatingPointError, "^step 7: "):
            run(TOK, TEXT, TINY, self.folder, resume=True)
        self.assertEqual(self.files(self.folder), before)

    def test_finite_values_that_overflow_in_a_step_end_as_a_diverged_run(self) -> None:
        run(TOK, TEXT, TINY, self.sub("good"), stop_after=6)
        body = load(self.sub("good/last.json"), TINY)
        for name, holder in (("lm_head", body["params"]), ("wte", body["params"]), ("mlp_fc", body["adam"]["m"]),
                             ("mlp_fc", body["adam"]["v"])):
            row, folder = holder[name][2], self.sub(f"{name}{len(os.listdir(self.folder))}")
            before, row[:] = row[:], [1.7e308 for _ in row]
            with self.subTest(name):
                os.mkdir(folder)
                save(os.path.join(folder, "last.json"), body)
                saved = self.files(folder)["last.json"]
                try:
                    run(TOK, TEXT, TINY, folder, resume=True)
                except FloatingPointError as error:
                    self.assertRegex(str(error), r"^step \d+: the ")
                    self.assertEqual(self.files(folder)["last.json"], saved)
            row[:] = before

    def test_a_best_json_that_last_json_does_not_know_is_made_right_on_resume(self) -> None:
        with self.dev_losses([2.0, 1.0, 3.0, 1.5]):
            run(TOK, TEXT, TINY, self.folder)
            good = self.files(self.folder)
            for wrong in (None, b"{}"):
                if wrong is None:
                    os.unlink(self.sub("best.json"))
                else:
                    Path(self.sub("best.json")).write_bytes(wrong)
                run(TOK, TEXT, TINY, self.folder, resume=True)
                self.assertEqual(self.files(self.folder), good)


class TestTheState(Folder):
    def test_state_to_body_and_back_is_the_same_state(self) -> None:
        state = new_state(len(TOK.vocab), TINY)
        state.rng.gauss(0, 1)                   # leaves a spare value in the generator
        for _ in range(3):
            train.train_step(state, encode_all(TOK, split_stories(TEXT)[0], 12), TINY)
        body = json.loads(canonical(state_to_body(state, TINY, {})))
        again = state_from_body(body, TINY, len(TOK.vocab))
        self.assertEqual(again.rng.getstate(), state.rng.getstate())
        self.assertIsNotNone(again.rng.getstate()[2])
        for name in ("params", "order", "step", "history", "dev_history", "best"):
            self.assertEqual(getattr(again, name), getattr(state, name), name)
        for name in ("m", "v", "t", "learning_rate", "beta1", "beta2", "eps"):
            self.assertEqual(getattr(again.adam, name), getattr(state.adam, name), name)

    def test_every_field_of_the_state_is_in_a_checkpoint(self) -> None:
        """Whoever adds a field to State must also save it."""
        fields = {"params", "adam", "rng", "order", "step", "history", "dev_history", "best"}
        self.assertEqual(set(train.State.__dataclass_fields__), fields)
        body = state_to_body(new_state(len(TOK.vocab), TINY), TINY, {})
        self.assertEqual({key.replace("rng_state", "rng") for key in body} - {"config", "training_inputs"}, fields)


class TestTheRecord(unittest.TestCase):
    """The committed record says what the lesson says."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.trace = json.loads((HERE / "checkpoint-trace.json").read_text(encoding="utf-8"))
        cls.tok = Tokenizer.load(HERE / "tokenizer.json")
        cls.text = (HERE / "corpus.txt").read_text(encoding="utf-8")
        cls.best = load(HERE / "best.json", CONFIG, input_signature(cls.tok, cls.text))

    def test_the_record_is_of_this_config(self) -> None:
        self.assertEqual(canonical(self.trace["config"]), canonical(CONFIG))
        self.assertEqual(self.trace["interrupted_at_step"], 300)

    def test_the_recorded_best_reproduces_its_scores(self) -> None:
        recorded = {key: value for key, value in self.trace["best_checkpoint"].items()
                    if key not in ("step", "dev_loss")}
        self.assertEqual(scores(self.best["params"], self.tok, self.text, CONFIG), recorded)
        dev = encode_all(self.tok, split_stories(self.text)[1], CONFIG["max_len"])
        self.assertEqual(round(mean_loss(self.best["params"], dev), 4), self.best["dev_loss"])
        self.assertEqual((self.best["step"], self.best["dev_loss"]),
                         (self.trace["best_checkpoint"]["step"], self.trace["best_checkpoint"]["dev_loss"]))

    def test_the_recorded_hashes_agree_and_differ_as_the_lesson_says(self) -> None:
        whole = self.trace["uninterrupted"]["final"]["params_sha256"]
        hashes = {name: row["params_sha256"] for name, row in self.trace["resume_runs"].items()}
        self.assertEqual(hashes["resumed"], whole)
        self.assertNotEqual(hashes["resumed_without_optimizer_state"], whole)
        self.assertNotEqual(hashes["resumed_without_shuffle_state"], whole)
        self.assertEqual(len({*hashes.values()}), 3)

    def test_the_best_step_comes_before_the_last_and_recalls_some_colors_but_not_all(self) -> None:
        losses = self.trace["uninterrupted"]["dev_loss"]
        self.assertLess(self.trace["best_checkpoint"]["step"], losses[-1]["step"])
        self.assertEqual(self.trace["best_checkpoint"]["dev_loss"], min(entry["dev_loss"] for entry in losses))
        recall = self.trace["best_checkpoint"]["color_recall"]
        self.assertEqual(recall["total"], 60)
        self.assertTrue(0 < recall["correct"] < 60)

    def test_the_recorded_refusals_have_the_words_of_the_contract(self) -> None:
        self.assertEqual(self.trace["integrity"], {
            "one changed value": "checkpoint bad.json failed its SHA-256 check",
            "truncated file": self.trace["integrity"]["truncated file"],
            "different learning rate": "checkpoint was written with a different config: ['learning_rate']"})
        self.assertTrue(self.trace["integrity"]["truncated file"].startswith("checkpoint bad.json is not valid JSON: "))

    def test_an_epoch_ends_within_the_steps_of_a_big_batch_and_a_resume_across_it_is_exact(self) -> None:
        """`batch` 56 of 300 stories: an epoch lasts five steps and a bit; three steps, then across its end."""
        cfg = {**CONFIG, "batch": 56, "steps": 7, "eval_every": 3, "d": 2, "hidden": 2, "max_len": 8}
        with tempfile.TemporaryDirectory() as folder:
            whole, parts = os.path.join(folder, "whole"), os.path.join(folder, "parts")
            run(self.tok, self.text, cfg, whole)
            run(self.tok, self.text, cfg, parts, stop_after=3)
            self.assertEqual(len(load(os.path.join(parts, "last.json"), cfg)["order"]), 300 - 3 * 56)
            run(self.tok, self.text, cfg, parts, resume=True)
            for name in ("last.json", "best.json"):
                self.assertEqual(Path(whole, name).read_bytes(), Path(parts, name).read_bytes())

    def test_the_first_full_size_steps_have_the_recorded_bits(self) -> None:
        """Fails first on a machine that computes otherwise: see portable.machine_fault."""
        state = new_state(len(self.tok.vocab), CONFIG)
        sequences = encode_all(self.tok, split_stories(self.text)[0], CONFIG["max_len"])
        for _ in range(3):
            train.train_step(state, sequences, CONFIG)
        self.assertEqual([loss.hex() for loss in state.history], GOLDEN_LOSSES)
        self.assertEqual(params_sha256(state.params), GOLDEN_SHA256)

    def test_color_recall_of_a_perfect_and_of_a_blind_model(self) -> None:
        blind = copy_params(self.best["params"])
        blind["lm_head"] = [[0.0] * len(row) for row in blind["lm_head"]]
        test = split_stories(self.text)[2]
        self.assertEqual(color_recall(blind, self.tok, test), {"correct": 0, "total": 60})


GOLDEN_LOSSES = ["0x1.420ad45ef5111p+2", "0x1.34b189b34cdf7p+2", "0x1.2bce3f13fe9c1p+2"]
GOLDEN_SHA256 = "18b393581cde5bea40c3b8afb2714545f26a3ed9e58f1cddabc8c523bf44b38c"

if __name__ == "__main__":
    unittest.main()
