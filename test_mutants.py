"""Are the tests any good? One-line faults of the lab, each put into a copy, each caught by a named test.

A test that cannot fail proves nothing. So every promise is broken once, in the way in which others
break it, and the test that stands for the promise must notice: it, and not just any.
"""
from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import test_crash as crash

FILES = ("console.py", "disk.py", "strict_json.py", "checkpoint_file.py", "portable.py", "bpe.py", "model.py", "train.py", "verify.py",
         "checkpoint.py", "test_support.py", "test_crash.py", "test_damage.py")
C, D, F, J, T, V = ("checkpoint.py", "disk.py", "checkpoint_file.py", "strict_json.py", "train.py",
                    "verify.py")
CRASHES, DISKS, STOPS = "test_crash.CrashStates.", "test_crash.Disks.", "test_crash.Stops."
FIELDS, FOLDERS, STATE = "test_damage.EveryField.", "test_damage.Folders.", "test_damage.StateReportedElsewhere."
IDENTITY, JSON = "test_damage.IdentityReportedElsewhere.", "test_damage.FilesReportedElsewhere."
# The tests that stand for a promise, each quick by itself.
CRASH = CRASHES + "test_every_crash_state_of_a_save_loads_as_the_old_checkpoint_or_the_new_one"
ORDER = CRASHES + "test_best_json_is_durable_before_last_json_speaks_of_it"
FAULT = "test_crash.Faults.test_a_fault_at_any_system_call_leaves_the_old_file_or_the_new_one_whole"
SWEEP = "test_crash.Faults.test_a_temporary_that_could_not_be_removed_is_gone_after_the_next_start"
SYNC = DISKS + "test_an_io_error_in_a_folder_sync_is_a_failure"
NO_SYNC = DISKS + "test_where_folders_cannot_be_synced_a_save_is_no_failure"
UMASK = DISKS + "test_the_permissions_of_a_checkpoint_follow_the_umask"
READER = DISKS + "test_on_windows_a_replace_waits_for_a_reader_to_close_the_file"
STOP = STOPS + "test_stopped_at_every_step_a_run_ends_in_the_same_bytes"
FINISHED = STOPS + "test_a_finished_run_resumed_does_no_step_and_changes_no_byte"
BEST_BACK = STOPS + "test_a_best_json_that_was_lost_or_is_of_another_run_comes_back"
DIGEST = "test_damage.EveryByte.test_a_value_changed_under_the_old_digest_is_refused"
FIELD = FIELDS + "test_fields_that_do_not_fit_each_other_are_refused"
NOT_NULL = FIELDS + "test_best_is_not_null_once_there_was_an_evaluation"
TWO_RUNS = FOLDERS + "test_a_second_run_in_one_folder_is_refused_and_does_not_disturb_the_first"
FREED = FOLDERS + "test_a_run_that_ended_in_an_error_frees_the_folder"
FOREIGN = FOLDERS + "test_foreign_files_survive_a_run_its_stop_and_its_sweep_with_their_bytes"
IN_PLACE = FOLDERS + "test_a_foreign_file_in_the_place_of_a_state_to_keep_is_refused_before_the_first_step"
AT_A_STOP = FOLDERS + "test_a_foreign_file_at_the_step_of_a_stop_is_not_written_over_and_nothing_is_lost"
LATE_COPY = FOLDERS + "test_a_state_whose_copy_was_not_made_is_copied_at_the_resume"
OTHERS = FOLDERS + "test_a_kept_state_of_another_run_is_not_removed"
KEEP = FOLDERS + "test_keep_n_keeps_exactly_the_n_latest_states"
NEWEST = FOLDERS + "test_a_refused_last_json_names_the_newest_kept_state_that_verifies"
GAUSS = STATE + "test_a_spare_gauss_of_the_generator_comes_back"
LOWEST = STATE + "test_best_is_the_lowest_development_loss_in_every_file"
EQUAL = STATE + "test_an_equal_development_loss_is_no_new_best"
NAN_LOSS = STATE + "test_a_development_loss_that_is_not_finite_stops_the_run_and_overwrites_nothing"
NAN_GRADIENT = STATE + "test_a_gradient_that_is_not_finite_stops_the_run_before_a_weight_is_changed"
HOW_OFTEN = STATE + "test_how_often_the_run_is_scored_or_watched_changes_no_parameter"
CONFIG = IDENTITY + "test_a_change_of_any_key_of_the_config_is_refused_and_the_key_named"
TYPES = IDENTITY + "test_one_and_true_and_one_point_nought_differ"
INPUTS = IDENTITY + "test_other_inputs_are_refused_and_named"
LINE_ENDS = IDENTITY + "test_line_ends_of_windows_change_no_digest"
NO_JSON = JSON + "test_what_is_no_json_is_refused_in_words"
NOT_FINITE = JSON + "test_a_value_that_is_not_finite_is_refused_before_anything_is_written"

WRITE = "            _write_and_sync(temporary, data)\n"
RENAME = "            _replace(temporary, target)\n"
RENAME_THEN_WRITE = ("            os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o666))\n" + RENAME
                     + "            os.unlink(target); _write_and_sync(target, data)\n")
UNLINK_THEN_RENAME = "            os.path.exists(target) and os.unlink(target)\n" + RENAME
ADAM = 'state.adam.m, state.adam.v, state.adam.t = body["adam"]["m"], body["adam"]["v"], body["adam"]["t"]'
LISTS = 'state.history, state.dev_history, state.best = body["history"], body["dev_history"], body["best"]'
SETSTATE = "state.rng.setstate((version, tuple(words), spare_gauss))"
ERRNO = "if error.errno not in NOT_SUPPORTED:"

# (what is broken, file, text that stands there once, text instead, the test that notices)
MUTANTS = [
    ("the file is not synced", D,
     "        os.fsync(descriptor)\n    finally", "        pass\n    finally", CRASH),
    ("the folder is not synced", D, "        sync_folder(folder)\n", "        pass\n", CRASH),
    ("the name is there before the data", D, WRITE + RENAME, RENAME_THEN_WRITE, CRASH),
    ("the old file is removed first", D, RENAME, UNLINK_THEN_RENAME, CRASH),
    ("a short write is taken for the whole", D,
     "rest[os.write(descriptor, rest):]", "rest[:0 * os.write(descriptor, rest)]", CRASH),
    ("an error of the folder sync is swallowed", D, ERRNO, "if False:", SYNC),
    ("a folder that cannot be synced is an error", D, ERRNO, "if True:", NO_SYNC),
    ("the temporary stays after an error", D, "os.unlink(temporary)", "pass", FAULT),
    ("the temporary stays after Ctrl-C", D, "except BaseException:", "except Exception:", FAULT),
    ("an error does not name the file", D, "str(error), os.fspath(path))", "str(error))", FAULT),
    ("nobody else may read the file", D, ", 0), 0o666)", ", 0), 0o600)", UMASK),
    ("a reader on Windows ends the run", D, 'tries = 10 if os.name == "nt" else 1', "tries = 1", READER),
    ("best.json after last.json", C, "if evaluate(state, this.dev):",
     "if evaluate(state, this.dev) and this.save_last(state) is None:", ORDER),
    ("NaN is saved", F, "allow_nan=False", "allow_nan=True", NOT_FINITE),
    ("NaN is read", J, "parse_constant=_refuse_constant", "parse_constant=float", NO_JSON),
    ("a key that stands twice is accepted", J, "if len(value) < len(pairs):", "if False:", NO_JSON),
    ("deep nesting is a traceback", J, "if nesting(text) > MAX_NESTING:", "if False:", NO_JSON),
    ("the digest is not checked", F, "if recorded != digest:", "if False:", DIGEST),
    ("the version is not checked", F, "version != FORMAT_VERSION", "version < FORMAT_VERSION", FIELD),
    ("the config is not compared", F, "    if keys:\n", "    if False:\n", CONFIG),
    ("the config is compared as Python compares", F,
     "canonical(recorded[key]) != canonical(expected[key])", "recorded[key] != expected[key]", TYPES),
    ("the inputs are not compared", F, "        if names:\n", "        if False:\n", INPUTS),
    ("CRLF is another corpus", C, 'text.replace("\\r\\n", "\\n")', "text", LINE_ENDS),
    ("m is not restored", C, ADAM, 'state.adam.v, state.adam.t = body["adam"]["v"], body["adam"]["t"]', STOP),
    ("v is not restored", C, ADAM, 'state.adam.m, state.adam.t = body["adam"]["m"], body["adam"]["t"]', STOP),
    ("t is not restored", C, ADAM, 'state.adam.m, state.adam.v = body["adam"]["m"], body["adam"]["v"]', STOP),
    ("the step is off by one", C, 'state.step = body["params"], body["step"]',
     'state.step = body["params"], body["step"] + 1', STOP),
    ("the history is not restored", C, LISTS,
     'state.dev_history, state.best = body["dev_history"], body["best"]', STOP),
    ("the best is not restored", C, LISTS,
     'state.history, state.dev_history = body["history"], body["dev_history"]', STOP),
    ("the generator is not restored", C, SETSTATE, "pass", STOP),
    ("the order is not restored", C, 'state.order = body["order"]', "pass", STOP),
    ("the spare gauss is dropped", C, "list(words), spare_gauss]", "list(words), None]", GAUSS),
    ("a stop between two evaluations is not saved", C,
     "        if stopping and not is_due(state, cfg):\n", "        if False:\n", STOP),
    ("a lost best.json does not come back", C,
     "        this.save_best(state)\n        if resume", "        pass\n        if resume", BEST_BACK),
    ("a finished run writes again", C,
     "if not (path.is_file() and path.read_bytes() == data):", "if True:", FINISHED),
    ("two runs share a folder", C, "    with lock(folder):\n", "    if True:\n", TWO_RUNS),
    ("the lock is never let go", D, "        yield\n    finally:\n        os.close(descriptor)",
     "        yield\n    finally:\n        pass", FREED),
    ("temporaries are not swept", C, "        sweep(folder, OWN_FILES)\n", "        pass\n", SWEEP),
    ("the sweep takes other people's files", D, r"\.[0-9a-f]{{8}}\.tmp", r"\..*\.tmp", FOREIGN),
    ("kept states of others are removed", C, "bool(self.verified(path)[\"step\"] == step)", "True", OTHERS),
    ("one state too many is kept", C, "len(self.kept) > self.keep", "len(self.kept) > self.keep + 1", KEEP),
    ("the oldest kept state is named", C, "newest_first = reversed(kept_states(self.folder))",
     "newest_first = kept_states(self.folder)", NEWEST),
    ("a foreign file is taken for a state to keep", C, "            elif step > state.step and (step %",
     "            elif False and (step %", IN_PLACE),
    ("a foreign file at a stop is written over", C, "        refuse_foreign(path)\n        write", "        write",
     AT_A_STOP),
    ("a copy that was not made stays missing", C, "        if state.step and (not self.kept",
     "        if False and (not self.kept", LATE_COPY),
    ("an equal loss is a new best", T, "not dev_loss < state.best", "not dev_loss <= state.best", EQUAL),
    ("the best shares its weights", T, "copy_params(state.params)}", "state.params}", LOWEST),
    ("NaN may be the best", T, "if not math.isfinite(dev_loss):", "if False:", NAN_LOSS),
    ("a NaN gradient is applied", T,
     "return all(all(map(math.isfinite, row))", "return True or all(all(map(math.isfinite, row))", NAN_GRADIENT),
    ("an evaluation draws from the shuffle", T, "    dev_loss = round(",
     "    state.rng.random()\n    dev_loss = round(", HOW_OFTEN),
    ("an epoch's tail is dropped", T, "state.order += state.rng", "state.order = state.rng", STOP),
    ("the last step is not saved", T, ' or state.step == cfg["steps"]', "", STOP),
    ("whole numbers pass as floats", V,
     "all(type(x) is float and", "all(type(x) in (int, float) and", FIELD),
    ("rows are not counted", V, " and len(value[name]) == rows", "", FIELD),
    ("v may be negative", V, ", shapes, low=0.0)", ", shapes)", FIELD),
    ("t may differ from the step", V, '"adam.t", step if exact else 0, step)', '"adam.t", 0, 10000)', FIELD),
    ("a story may stand twice in an order", V, " == len({*map(repr, value)})", "", FIELD),
    ("the generator's position is not checked", V, "and value[1][-1] <= 624", "", FIELD),
    ("the best is not verified", V, '        self.fields(value, "best", ',
     '        value and self.fields(value, "best", ', NOT_NULL),
]


def copy_of_the_lab(folder, source=crash.HERE):
    """A folder with copies of FILES, and of what Python has compiled of them."""
    for name in FILES:
        shutil.copy2(Path(source, name), folder)
    if Path(source, "__pycache__").is_dir() and source != crash.HERE:
        shutil.copytree(Path(source, "__pycache__"), Path(folder, "__pycache__"))
    return folder


def run_tests(folder, *tests):
    """(exit status, output) of these tests of the copy in `folder`."""
    environment = {key: value for key, value in os.environ.items()
                   if key not in ("LAB_LONG", "PYTHONDONTWRITEBYTECODE", "PYTHONWARNINGS")}
    done = subprocess.run([sys.executable, "-m", "unittest", *tests], cwd=folder, env=environment,
                          capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout + done.stderr


def try_mutant(good, mutant):
    """"" if the named test of the mutant fails or ends in an error, else what happened."""
    _, file, old, new, test = mutant
    with tempfile.TemporaryDirectory() as folder:
        path = Path(copy_of_the_lab(folder, good), file)
        source = path.read_bytes().decode("utf-8").replace("\r\n", "\n")
        if source.count(old) != 1:
            return f"{file} holds {old!r} {source.count(old)} times"
        path.write_bytes(source.replace(old, new).encode("utf-8"))
        status, output = run_tests(folder, test)
    caught = status != 0 and re.search(rf"^(FAIL|ERROR): {test.rpartition('.')[2]}\b", output, re.MULTILINE)
    return "" if caught else f"not caught by {test}: {output[-2000:]}"


@functools.cache
def results():
    """{name of the mutant: "" if it was caught, else why not}; "unmutated" is the copy without a fault."""
    with tempfile.TemporaryDirectory() as good, ThreadPoolExecutor(2) as two_at_a_time:
        status, output = run_tests(copy_of_the_lab(good), *sorted({mutant[-1] for mutant in MUTANTS}))
        caught = two_at_a_time.map(functools.partial(try_mutant, good), MUTANTS)
        return {"unmutated": output if status else "",
                **dict(zip((mutant[0] for mutant in MUTANTS), caught))}


def mutant_counts():
    """How many mutants there are, and how many of them were caught."""
    caught = [name for name, problem in results().items() if name != "unmutated" and not problem]
    return {"one-line faults put into the lab": len(MUTANTS),
            "one-line faults caught by the test named for them": len(caught)}


@crash.NEEDS_CHILDREN
class Mutants(unittest.TestCase):
    def test_the_copy_without_a_fault_passes_every_named_test(self):
        self.assertEqual(results()["unmutated"], "")

    def test_every_mutant_is_caught_by_the_test_that_stands_for_the_promise(self):
        self.assertEqual(len(results()), len(MUTANTS) + 1)      # no name stands twice
        for name, problem in results().items():
            with self.subTest(name):
                self.assertEqual(problem, "")


if __name__ == "__main__":
    unittest.main()
