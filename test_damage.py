"""Damaged checkpoints, crowded folders, and faults that people reported of other trainers.

    every byte      of a small checkpoint flipped, deleted, doubled, and the file cut there
    every field     of a real last.json replaced, removed, reshaped, under a digest that is right again
    folders         two runs in one, files of other people's, kept states
    reported        one experiment for each kind of fault that other projects had

Under a right digest a value that is merely another one of its type and range (another finite
weight, another past loss) cannot be told from what a run wrote: only the digest protects it.
"""
from __future__ import annotations

import copy
import functools
import hashlib
import itertools
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import checkpoint
import test_crash as crash
import train
from bpe import Tokenizer
from checkpoint import CheckpointError
from test_crash import CFG, STEPS, TEXT, TOK, files, put, run, stop_at, stopped, whole


def sealed(body):
    """The bytes of a checkpoint that holds `body`, under the digest of just that."""
    text = json.dumps({key: value for key, value in body.items() if key != "sha256"}, sort_keys=True)
    return f'{{"sha256": "{hashlib.sha256(text.encode("ascii")).hexdigest()}", {text[1:]}'.encode("ascii")


# ---------------------------------------------------------------------------- every byte

SMALL = {"config": {"d": 4, "learning_rate": 1e-08, "exact": True}, "step": 120, "nothing": None,
         "text": "two \"words\", a\\b, é 汉 👩, \u2028", "empty": [[], {}, ""],
         "nested": {"a": {"b": [[1], [2]]}},
         "numbers": [0, -1, 0.0, -0.0, 0.1, -2.5, 1e22, 5e-324, 1.7976931348623157e308, 4294967295],
         "matrix": [[math.sqrt(9 * i + j + 2) for j in range(9)] for i in range(12)]}


def damaged_bytes(data):
    """(what was done, at which byte, the result): a bit flipped, a byte deleted or doubled, the rest cut."""
    for i, byte in enumerate(data):
        before, after = data[:i], data[i + 1:]
        for bit in range(8) if crash.LONG else (i % 8,):
            yield "flipped", i, before + bytes([byte ^ 1 << bit]) + after
        yield "deleted", i, before + after
        yield "doubled", i, before + bytes([byte, byte]) + after
        yield "cut", i, before


@functools.cache
def byte_damage():
    """{"refused", "equal": how many, "wrong": the others}: what `load` makes of the damaged SMALL."""
    counts, wrong = {"refused": 0, "equal": 0}, []
    good = checkpoint.serialise(SMALL)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "last.json")
        for done, i, data in damaged_bytes(good):
            path.write_bytes(data)
            try:
                result = "equal" if same(checkpoint.load(path, SMALL["config"]), SMALL) else "another"
            except CheckpointError:
                result = "refused"
            except Exception as error:
                result = repr(error)
            if result in counts and path.read_bytes() == data:
                counts[result] += 1
            else:
                wrong.append((done, i, result))
    return {**counts, "wrong": wrong}


def same(a, b):
    """Equal to the last bit and type: 1 is not 1.0 or True, and -0.0 is not 0.0."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


class EveryByte(crash.InAFolder):
    def test_a_checkpoint_damaged_at_any_byte_is_refused_or_loads_as_it_was(self):
        result = byte_damage()
        self.assertEqual(result["wrong"], [])
        self.assertGreater(result["refused"], 3.5 * len(checkpoint.serialise(SMALL)))

    def test_only_white_space_and_the_spelling_of_a_number_can_change_unnoticed(self):
        good = checkpoint.serialise(SMALL)
        for data in (good.replace(b', "', b',\n  "'), good.rstrip(), good + b"\n\n",
                     good.replace(b"1e-08", b"1E-8")):
            with self.subTest(data[-60:]):
                Path(self.last).write_bytes(data)
                self.assertEqual(checkpoint.load(self.last, SMALL["config"]), SMALL)

    def test_a_value_changed_under_the_old_digest_is_refused(self):
        Path(self.last).write_bytes(checkpoint.serialise(SMALL).replace(b"120", b"121"))
        with self.assertRaises(CheckpointError) as caught:
            checkpoint.load(self.last, SMALL["config"])
        self.assertEqual(str(caught.exception), f"checkpoint {self.last} failed its SHA-256 check")

    def test_a_file_of_zeros_of_the_right_length_is_refused(self):
        Path(self.last).write_bytes(bytes(len(checkpoint.serialise(SMALL))))
        with self.assertRaisesRegex(CheckpointError, "is not valid JSON: Expecting value"):
            checkpoint.load(self.last, SMALL["config"])


# ---------------------------------------------------------------------------- every field

TINY = {"d": 2, "hidden": 2}
STOPPED_AT = 8          # in the middle of an epoch, one evaluation done, the best of it behind
MISSING = object()
VALUES = (None, True, -1, 1e308, "", "x", [], {}, 10 ** 30)
CONTRACT_WORDS = {"config": "different config|no config", "training_inputs": "training inputs differ",
                  "format_version": "checkpoint format .*; expected 1"}


def places(value, place=()):
    """The path of every field: every key, and of a list its middle and its last entry."""
    keys = list(value) if isinstance(value, dict) else []
    if isinstance(value, list) and value:
        keys = sorted({len(value) // 2, len(value) - 1} if place[:1] == ("rng_state",) else {len(value) // 2})
    for key in keys:
        yield (*place, key)
        yield from places(value[key], (*place, key))


def at(body, place):
    return functools.reduce(lambda value, key: value[key], place, body)


def changed(body, place, new):
    """A copy of `body` with `new` at `place`, or with nothing there if `new` is MISSING."""
    copied = value = copy.copy(body)
    for key in place[:-1]:
        value[key] = copy.copy(value[key])
        value = value[key]
    value[place[-1]] = new
    if new is MISSING:
        del value[place[-1]]
    return copied


def digest_alone_protects(old, new, place):
    """Whether `new` might have stood there: another finite float in place of a float, or as a spare gauss."""
    return type(new) is float and (type(old) is float or place == ("rng_state", 2))


def damages(body):
    """(place, what is there instead): each makes of one field what no run writes."""
    yield ("extra",), 1
    for place in places(body):
        old = at(body, place)
        yield from ((place, new) for new in VALUES
                    if not same(old, new) and not digest_alone_protects(old, new, place))
        if isinstance(place[-1], str):
            yield place, MISSING
        if isinstance(old, dict):
            yield (*place, "extra"), 1.0
        if isinstance(old, list) and old:
            yield from ((place, old + old[:1]), (place, old[:-1]))
        if place[:2] == ("adam", "v") and type(old) is float:
            yield place, -1e-9


def spelled(place):
    """('params', 'wte', 3) -> params.wte[3]"""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place)[1:]


def names_the_field(message, path, place):
    """Whether a refusal names the file and a field that holds the damaged place, in the contract's words."""
    if place[0] in CONTRACT_WORDS:
        return re.search(CONTRACT_WORDS[place[0]], message) is not None
    if place == ("sha256",):
        return message == f"checkpoint {path} failed its SHA-256 check"
    named = re.fullmatch(r"checkpoint (.*): field '(.*)' is .*", message)
    if named is None or named[1] != path:
        return False
    return spelled(place).startswith(named[2]) or named[2].startswith(spelled(place) + ".")


@functools.cache
def field_damage():
    """{"refused", "resumed": how many, "wrong": the others}: what a resume makes of a damaged field."""
    counts, wrong = {"refused": 0, "resumed": 0}, []
    expected = whole(**TINY)
    body = json.loads(stopped(STOPPED_AT, **TINY)["last.json"])
    with tempfile.TemporaryDirectory() as folder:
        for place, new in damages(body):
            damaged = changed(body, place, new)
            # Only the digest itself cannot be damaged and be right again.
            state = {"last.json": json.dumps(damaged).encode() if place == ("sha256",) else sealed(damaged)}
            put(folder, state)
            result = resumed_or_refused(folder, place)
            if result in counts and files(folder) == (state if result == "refused" else expected):
                counts[result] += 1
            else:
                wrong.append((spelled(place), repr(new)[:40], result))
    return {**counts, "wrong": wrong}


def resumed_or_refused(folder, place):
    """"resumed", "refused" by a CheckpointError that names file and field, or what else happened."""
    try:
        run(folder, {**CFG, **TINY}, resume=True)
    except CheckpointError as error:
        named = names_the_field(str(error), os.path.join(folder, "last.json"), place)
        return "refused" if named else f"refused as: {error}"
    except Exception as error:
        return repr(error)
    return "resumed"


def damage_counts():
    """How many damages were tried, and how many of them were refused."""
    by_byte, by_field = byte_damage(), field_damage()
    return {"damaged bytes": by_byte["refused"] + by_byte["equal"] + len(by_byte["wrong"]),
            "damaged bytes refused": by_byte["refused"],
            "damaged bytes that change no value (a space, a float's 18th digit)": by_byte["equal"],
            "damaged fields under a right digest":
                by_field["refused"] + by_field["resumed"] + len(by_field["wrong"]),
            "damaged fields refused": by_field["refused"]}


class EveryField(crash.InAFolder):
    def setUp(self):
        super().setUp()
        self.body = json.loads(stopped(STOPPED_AT, **TINY)["last.json"])

    def refusal(self, **fields):
        """The message with which a resume refuses the real last.json with these fields put in."""
        data = sealed({**self.body, **fields})
        put(self.folder, {"last.json": data})
        with self.assertRaises(CheckpointError) as caught:
            run(self.folder, {**CFG, **TINY}, resume=True)
        self.assert_files({"last.json": data})
        return str(caught.exception).replace(self.last, "NAME")

    def test_undamaged_under_its_recomputed_digest_it_resumes_to_the_same_bytes(self):
        put(self.folder, {"last.json": sealed(self.body)})
        run(self.folder, {**CFG, **TINY}, resume=True)
        self.assert_whole(**TINY)

    def test_any_damaged_field_is_refused_by_name_even_under_a_right_digest(self):
        result = field_damage()
        self.assertEqual(result["wrong"], [])
        self.assertGreater(result["refused"], 1000)

    def test_fields_that_do_not_fit_each_other_are_refused(self):
        body = self.body
        order, history, wte = body["order"], body["history"], body["params"]["wte"]
        negative = {**body["adam"]["v"], "wte": [[-1e-9, *row[1:]] for row in body["adam"]["v"]["wte"]]}
        table = [
            ({"format_version": 2}, "checkpoint format 2; expected 1"),
            ({"params": {**body["params"], "wte": wte[:-1]}},
             "checkpoint NAME: field 'params.wte' is not a list of 22 rows"),
            ({"adam": {**body["adam"], "v": negative}},
             "checkpoint NAME: field 'adam.v.wte[0]' is not a list of 2 finite floats from 0.0 up"),
            ({"history": [1, *history[1:]]},
             "checkpoint NAME: field 'history' is not a list of 8 finite floats"),
            ({"step": 9}, "checkpoint NAME: field 'adam.t' is not the whole number 9"),
            ({"history": [*history, 1.5]},
             "checkpoint NAME: field 'history' is not a list of 8 finite floats"),
            ({"order": [order[0], *order[:-1]]},
             "checkpoint NAME: field 'order' is not a list of 28 different story indices below 30"),
            ({"order": [30, *order[1:]]},
             "checkpoint NAME: field 'order' is not a list of 28 different story indices below 30"),
            ({"best": {**self.body["best"], "step": 4}},
             "checkpoint NAME: field 'best.step' is not 5, as the lowest development loss has it"),
            ({"rng_state": [3, [*self.body["rng_state"][1][:-1], 625], None]},
             "checkpoint NAME: field 'rng_state' is not a state of random.Random: "
             "[3, 625 words, spare gauss]"),
        ]
        for fields, message in table:
            with self.subTest(message):
                self.assertEqual(self.refusal(**fields), message)

    def test_best_is_not_null_once_there_was_an_evaluation(self):
        self.assertEqual(self.refusal(best=None), "checkpoint NAME: field 'best' is not a JSON object")


# ---------------------------------------------------------------------------- folders

FOREIGN = {".last.json.tmp": b"mine", ".last.json.0123456.tmp": b"7 digits", ".last.json.0123456G.tmp": b"",
           ".other.json.01234567.tmp": b"other", "last.json.01234567.tmp": b"no dot", "last.json.bak": b"old",
           "best.json.tmp": b"", "step-abc.json": b"a", "step-5.json": b"b",
           "step-000007.json": b"not a checkpoint", "step-000008.json": b'{"step": 8}',
           "step-000009.json.bak": b"c", ".lock": b"somebody's", "notes": b"\0"}


class Folders(crash.InAFolder):
    def refused(self, *args, **options):
        with self.assertRaises(CheckpointError) as caught:
            run(*args, **options)
        return str(caught.exception)

    def steps_kept(self):
        return [step for step, _ in checkpoint.kept_states(self.folder)]

    @unittest.skipUnless(crash.PROCESSES, "this system has one process, and no locks")
    def test_a_second_run_in_one_folder_is_refused_and_does_not_disturb_the_first(self):
        refusals = []
        for options in ({}, {"resume": True}, {"resume": "auto"}):
            run(self.folder, progress=lambda state, options=options: refusals.append(
                self.refused(self.folder, **options)) if state.step == 6 else None)
        message = f"folder {self.folder} is in use by another run; wait until it ends, or stop it"
        self.assertEqual(refusals, [message] * 3)
        self.assert_whole()

    def test_two_runs_in_two_folders_go_on_side_by_side(self):
        with tempfile.TemporaryDirectory() as other:
            run(self.folder, progress=lambda state: run(other) if state.step == 6 else None)
            self.assert_whole()
            self.folder = other
            self.assert_whole()

    @crash.NEEDS_FORK
    def test_the_folder_is_free_again_when_the_other_process_was_killed(self):
        reading, writing = os.pipe()
        child = crash.start(lambda: run(
            self.folder, progress=lambda state: self.say_and_wait(state, writing)))
        os.close(writing)
        self.assertEqual(os.read(reading, 1), b"6")
        os.close(reading)
        self.assertIn("is in use by another run", self.refused(self.folder, resume="auto"))
        os.kill(child, signal.SIGKILL)
        self.assertEqual(crash.ended(child), -signal.SIGKILL)
        run(self.folder, resume="auto")
        self.assert_whole()

    @staticmethod
    def say_and_wait(state, writing):
        if state.step == 6:
            os.write(writing, b"6")
            signal.pause()

    def test_a_run_that_ended_in_an_error_frees_the_folder(self):
        with self.assertRaises(ZeroDivisionError):
            run(self.folder, progress=lambda state: 1 // (state.step - 6))
        run(self.folder, resume=True)
        self.assert_whole()

    def test_foreign_files_survive_a_run_its_stop_and_its_sweep_with_their_bytes(self):
        left = {".last.json.0123abcd.tmp": b"left", ".step-000005.json.0123abcd.tmp": b"left"}
        put(self.folder, {**FOREIGN, **left})
        os.mkdir(self.path("step-000001.json"))
        run(self.folder, keep=1, should_stop=stop_at(11))
        run(self.folder, keep=1, resume=True)
        run(self.folder, resume=True)
        self.assert_files({**FOREIGN, **whole(), "step-000017.json": whole()["last.json"]})
        self.assertTrue(os.path.isdir(self.path("step-000001.json")))

    def test_a_foreign_file_named_like_a_kept_state_takes_no_kept_states_place(self):
        put(self.folder, {"step-000016.json": b"not a checkpoint"})
        run(self.folder, keep=2)
        self.assertEqual(self.steps_kept(), [15, 16, 17])

    def test_a_foreign_file_in_the_place_of_a_state_to_keep_is_refused_before_the_first_step(self):
        for step, cause in ((15, "is not valid JSON"), (STEPS, "is not valid JSON")):
            with self.subTest(step=step):
                foreign = {f"step-{step:06d}.json": b"not a checkpoint"}
                put(self.folder, foreign)
                message = self.refused(self.folder, keep=2)
                self.assertIn(f"{self.path(f'step-{step:06d}.json')} has the name of a state to keep, but is none", message)
                self.assertIn(cause, message)
                self.assertTrue(message.endswith("move it away, or run without keep"))
                self.assert_files(foreign)

    def test_a_foreign_file_at_the_step_of_a_stop_is_not_written_over_and_nothing_is_lost(self):
        put(self.folder, {"step-000011.json": b"not a checkpoint"})
        self.refused(self.folder, keep=2, should_stop=stop_at(11))
        self.assertEqual(Path(self.path("step-000011.json")).read_bytes(), b"not a checkpoint")
        os.unlink(self.path("step-000011.json"))
        run(self.folder, keep=2, resume=True)
        self.assert_whole()

    def test_a_link_to_nothing_named_like_a_kept_state_does_not_end_a_run(self):
        os.symlink("nowhere", self.path("step-000001.json"))
        run(self.folder, keep=1)
        self.assertTrue(os.path.islink(self.path("step-000001.json")))
        os.unlink(self.path("step-000001.json"))
        self.assert_whole()

    def test_a_state_whose_copy_was_not_made_is_copied_at_the_resume(self):
        run(self.folder, keep=2, should_stop=stop_at(11))
        os.unlink(self.path("step-000011.json"))
        run(self.folder, keep=2, resume=True, stop_after=11)
        self.assertEqual(self.steps_kept(), [11, 15])

    def test_a_folder_named_like_a_temporary_is_left_alone(self):
        os.mkdir(self.path(".last.json.deadbeef.tmp"))
        run(self.folder)
        self.assertTrue(os.path.isdir(self.path(".last.json.deadbeef.tmp")))

    def test_a_run_goes_on_from_a_kept_state_into_a_new_folder(self):
        put(self.folder, stopped(11, keep=1))
        new = self.path(os.path.join("new", "deeper"))
        run(new, resume_from=self.path("step-000011.json"))
        self.assertEqual(files(new), whole())

    def test_a_kept_state_of_another_run_is_not_removed(self):
        other = stopped(5, keep=1, data_seed=6)["step-000005.json"]
        run(self.folder, keep=1, should_stop=stop_at(11))
        Path(self.path("step-000004.json")).write_bytes(other)
        run(self.folder, keep=1, resume=True)
        self.assertEqual(self.steps_kept(), [4, 17])
        self.assertEqual(Path(self.path("step-000004.json")).read_bytes(), other)

    def test_keep_n_keeps_exactly_the_n_latest_states(self):
        due = [5, 10, 15, STEPS]
        for keep in range(6):
            with self.subTest(keep=keep):
                put(self.folder, {})
                run(self.folder, keep=keep)
                self.assertEqual(self.steps_kept(), due[-keep:] if keep else [])
                self.assert_whole()

    def test_with_one_state_kept_the_best_before_it_survives(self):
        run(self.folder, keep=1)
        self.assertLess(json.loads(Path(self.best).read_bytes())["step"], STEPS)
        self.assert_files({**whole(), "step-000017.json": whole()["last.json"]})

    def test_a_refused_last_json_names_the_newest_kept_state_that_verifies(self):
        put(self.folder, stopped(11, keep=3))
        Path(self.last).write_bytes(b"")
        Path(self.path("step-000011.json")).write_bytes(b"damaged too")
        kept = self.path("step-000010.json")
        before = files(self.folder)
        for resume in (True, "auto"):
            self.assertEqual(
                self.refused(self.folder, resume=resume),
                f"checkpoint {self.last} is not valid JSON: Expecting value: line 1 column 1 (char 0); "
                f"the newest kept state that verifies is {kept}: continue from it with --from {kept}")
            self.assert_files(before)
        run(self.folder, resume_from=kept)
        self.assert_whole()

    def test_a_corrupt_last_json_is_refused_and_left_as_it_is(self):
        good = whole()["last.json"]
        for bad in (b"", b"{}", good[:-100], good.replace(b"1", b"2", 1), bytes(len(good))):
            for resume in (True, "auto"):
                with self.subTest(bad[:20], resume=resume):
                    put(self.folder, {"last.json": bad, "best.json": whole()["best.json"]})
                    self.refused(self.folder, resume=resume)
                    self.assert_files({"last.json": bad, "best.json": whole()["best.json"]})

    def test_resume_auto_starts_in_an_empty_folder_and_resume_true_refuses(self):
        with self.assertRaises(FileNotFoundError) as caught:
            run(self.folder, resume=True)
        self.assertEqual(str(caught.exception),
                         f"no checkpoint {self.last}; start a run with: python3 runs.py train FOLDER")
        self.assert_files({})
        run(self.folder, resume="auto")
        self.assert_whole()


# ---------------------------------------------------------------------------- reported elsewhere

def forgetting(*names):
    """`state_from_body`, and then these fields of the state are as in a fresh one."""
    restore = checkpoint.state_from_body

    def forget(body, cfg, vocab_size, *args):
        state, fresh = restore(body, cfg, vocab_size, *args), train.new_state(vocab_size, cfg)
        for name in names:
            of, fresh_of = (state.adam, fresh.adam) if name in ("m", "v", "t") else (state, fresh)
            setattr(of, name, getattr(fresh_of, name))
        return state

    return mock.patch.object(checkpoint, "state_from_body", forget)


class StateReportedElsewhere(crash.InAFolder):
    """What others lost on the way through a file, or kept wrongly."""

    def test_leaving_out_any_one_field_of_the_state_ends_in_other_bytes(self):
        just_after_the_best = json.loads(whole()["best.json"])["step"] + 1
        for name in ("params", "m", "v", "t", "rng", "order", "step", "history", "dev_history", "best"):
            with self.subTest(name):
                put(self.folder, stopped(just_after_the_best))
                with forgetting(name):
                    run(self.folder, resume=True)
                self.assertFalse(files(self.folder)["last.json"] == whole()["last.json"])

    def test_a_spare_gauss_of_the_generator_comes_back(self):
        state = train.new_state(len(TOK.vocab), CFG)
        state.rng.gauss(0.0, 1.0)
        body = json.loads(json.dumps(checkpoint.state_to_body(state, CFG, {})))
        back = checkpoint.state_from_body(body, CFG, len(TOK.vocab))
        self.assertEqual(back.rng.getstate(), state.rng.getstate())

    def test_best_is_the_lowest_development_loss_in_every_file(self):
        for step in range(5, STEPS):
            found = stopped(step)
            last, best = json.loads(found["last.json"]), json.loads(found["best.json"])
            lowest = min(last["dev_history"], key=lambda entry: entry["dev_loss"])
            weights = json.loads(stopped(lowest["step"])["last.json"])["params"]
            for entry in (best, last["best"]):
                self.assertEqual({key: entry[key] for key in lowest}, lowest)
                self.assertEqual(entry["params"], weights)

    def test_an_equal_development_loss_is_no_new_best(self):
        with mock.patch.object(train, "mean_loss", return_value=1.5):
            _, _, dev_history, best = run(self.folder)
        self.assertEqual(len(dev_history), 4)
        self.assertEqual(best["step"], 5)

    def test_a_development_loss_that_is_not_finite_stops_the_run_and_overwrites_nothing(self):
        for value in (math.nan, math.inf):
            with self.subTest(value):
                put(self.folder, stopped(8))
                scores = mock.patch.object(train, "mean_loss", return_value=value)
                with scores, self.assertRaises(FloatingPointError) as caught:
                    run(self.folder, resume=True)
                self.assertEqual(str(caught.exception),
                                 f"step 10: the development loss is not finite ({value}); "
                                 "a lower learning rate usually helps")
                self.assert_files(stopped(8))

    def test_a_gradient_that_is_not_finite_stops_the_run_before_a_weight_is_changed(self):
        gradient = train.batch_gradient

        def nan_in_it(params, batch):
            loss, grads = gradient(params, batch)
            grads["wpe"][0][0] = math.nan
            return loss, grads

        put(self.folder, stopped(8))
        broken = mock.patch.object(train, "batch_gradient", nan_in_it)
        with broken, self.assertRaises(FloatingPointError) as caught:
            run(self.folder, resume=True)
        self.assertRegex(str(caught.exception), r"^step 9: the loss or its gradient is not finite \(loss \d")
        self.assert_files(stopped(8))

    def test_a_run_that_diverges_stops_with_an_error_that_names_the_step(self):
        for rate in (1e3, 1e100, 1e200, 1e308):
            with self.subTest(rate):
                put(self.folder, {})
                try:
                    run(self.folder, {**CFG, "learning_rate": rate})
                except FloatingPointError as error:
                    self.assertRegex(str(error), r"^step \d+: .* not finite")

    def test_last_json_goes_on_when_the_best_is_long_past(self):
        last = json.loads(whole()["last.json"])
        self.assertEqual(last["step"], STEPS)
        self.assertLess(last["best"]["step"], STEPS)
        self.assertNotEqual(last["params"], last["best"]["params"])

    def test_how_often_the_run_is_scored_or_watched_changes_no_parameter(self):
        params = json.loads(whole()["last.json"])["params"]
        for eval_every, progress in ((1, None), (4, None), (STEPS, None), (5, lambda state: None)):
            put(self.folder, {})
            cfg = {**CFG, "eval_every": eval_every}
            self.assertEqual(run(self.folder, cfg, progress=progress)[0], params)

    def test_a_run_equals_the_plain_training_loop(self):
        params, history, dev_history = train.train(TOK, TEXT, CFG)
        last = json.loads(whole()["last.json"])
        self.assertEqual(last["params"], params)
        self.assertEqual((last["history"], last["dev_history"]), (history, dev_history))


class IdentityReportedElsewhere(crash.InAFolder):
    """Which config, which texts, which sources."""

    def test_a_tuple_equals_the_list_that_json_makes_of_it(self):
        for cfg in ({"betas": (0.9, 0.999)}, {"betas": [0.9, 0.999]}):
            checkpoint.save(self.last, {"config": {"betas": (0.9, 0.999)}})
            self.assertEqual(checkpoint.load(self.last, cfg)["config"], {"betas": [0.9, 0.999]})

    def test_one_and_true_and_one_point_nought_differ(self):
        checkpoint.save(self.last, {"config": {"a": 1}})
        for other in (True, 1.0, "1"):
            with self.assertRaises(CheckpointError) as caught:
                checkpoint.load(self.last, {"a": other})
            self.assertEqual(str(caught.exception), "checkpoint was written with a different config: ['a']")

    def test_a_change_of_any_key_of_the_config_is_refused_and_the_key_named(self):
        for key, value in CFG.items():
            with self.subTest(key):
                put(self.folder, whole())
                with self.assertRaises(CheckpointError) as caught:
                    run(self.folder, {**CFG, key: value * 2 if value > 1 else value / 2}, resume=True)
                self.assertEqual(str(caught.exception),
                                 f"checkpoint was written with a different config: [{key!r}]")
                self.assert_files(whole())

    def test_other_inputs_are_refused_and_named(self):
        reversed_ids = Tokenizer(list(reversed(TOK.alphabet)), TOK.merges)
        put(self.folder, whole())
        for tok, text, words in ((TOK, TEXT + "\nOne more.", "corpus"), (reversed_ids, TEXT, "tokenizer")):
            with self.assertRaises(CheckpointError) as caught:
                checkpoint.run(tok, text, CFG, self.folder, resume=True)
            self.assertEqual(str(caught.exception), f"checkpoint training inputs differ: {words}")

    def test_line_ends_of_windows_change_no_digest(self):
        expected = checkpoint.input_signature(TOK, TEXT)
        for name in checkpoint.SOURCES:
            data = (crash.HERE / name).read_bytes().replace(b"\r\n", b"\n")
            Path(self.path(name)).write_bytes(data.replace(b"\n", b"\r\n"))
        with mock.patch.object(checkpoint, "HERE", Path(self.folder)):
            self.assertEqual(checkpoint.input_signature(TOK, TEXT.replace("\n", "\r\n")), expected)

    @crash.NEEDS_CHILDREN
    def test_the_locale_of_the_machine_changes_no_byte(self):
        program = ("import checkpoint, sys; from bpe import Tokenizer\n"
                   r"tok = Tokenizer.train('\u00e9t\u00e9 \u6c49\u5b57 \U0001f680', 20)" "\n"
                   r"inputs = checkpoint.input_signature(tok, '\u00e9 \u6c49 \U0001f680')" "\n"
                   r"checkpoint.save(sys.argv[1], {'config': {'\u00e9': '\u6c49'}, 'inputs': inputs})")
        found = set()
        for utf8, locale in (("0", "C"), ("1", "C.UTF-8")):
            flags = ["-B", "-W", "error", "-X", "warn_default_encoding"]
            done = subprocess.run([sys.executable, *flags, "-c", program, self.last], cwd=crash.HERE,
                                  env={**os.environ, "PYTHONUTF8": utf8, "LC_ALL": locale},
                                  capture_output=True)
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            found.add(Path(self.last).read_bytes())
        self.assertEqual(len(found), 1)

    def test_no_story_is_in_two_parts_whatever_its_spacing(self):
        text = "\n".join([TEXT, TEXT.replace(" ", "  "), TEXT.replace("\n", "\n\n  ")])
        parts = [[" ".join(story.split()) for story in part] for part in train.split_stories(text)]
        stories = list(itertools.chain(*parts))
        self.assertEqual(len(stories), 42)
        self.assertEqual(len(set(stories)), 42)


class FilesReportedElsewhere(crash.InAFolder):
    """JSON that is not what json.loads promises it to be."""

    def refusal(self, text):
        Path(self.last).write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
        with self.assertRaises(CheckpointError) as caught:
            checkpoint.load(self.last, {})
        return str(caught.exception).replace(self.last, "NAME")

    def test_what_is_no_json_is_refused_in_words(self):
        table = [
            ("[" * 200000, "nested too deep: more than 100 levels"),
            ('{"a":' * 200000, "nested too deep: more than 100 levels"),
            ('{"a": NaN}', "NaN is no JSON number"),
            ('{"a": -Infinity}', "-Infinity is no JSON number"),
            ('{"a": 1, "a": 1}', "key 'a' stands twice"),
        ]
        for text, cause in table:
            with self.subTest(cause):
                self.assertEqual(self.refusal(text), f"checkpoint NAME is not valid JSON: {cause}")
        for text in ('{"a": 1e999}', b'{"a": "\xff"}', "1" * 5000, '{"a": -1e999}'):
            with self.subTest(text[:20]):
                self.assertRegex(self.refusal(text), "^checkpoint NAME (is not valid JSON|does not hold)")

    def test_what_is_no_object_is_refused(self):
        for text in ("null", "[]", "3", '"x"'):
            self.assertEqual(self.refusal(text), "checkpoint NAME does not hold a JSON object")

    def test_a_value_that_is_not_finite_is_refused_before_anything_is_written(self):
        checkpoint.save(self.last, SMALL)
        before = files(self.folder)
        for value in (math.nan, math.inf, -math.inf):
            with self.assertRaises(ValueError) as caught:
                checkpoint.save(self.last, {"config": {}, "deep": [{"x": value}]})
            self.assertEqual(str(caught.exception),
                             f"cannot be saved as JSON: body['deep'][0]['x'] is {value}, not a finite number")
            self.assert_files(before)

    def test_every_float_comes_back_with_all_its_bits(self):
        rng = random.Random(4)
        values = [rng.uniform(-1, 1) * 2.0 ** rng.randrange(-1074, 1023) for _ in range(2000)]
        values += [-0.0, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308]
        checkpoint.save(self.last, {"config": {}, "values": values})
        back = checkpoint.load(self.last, {})["values"]
        self.assertEqual([value.hex() for value in back], [value.hex() for value in values])


if __name__ == "__main__":
    unittest.main()
