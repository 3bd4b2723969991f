"""The record: what it is made of, that one process and two make the same, and that --check can fail."""
from __future__ import annotations

import contextlib
import io
import json
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import trace_checkpoints
from test_support import no_children
from trace_checkpoints import compute, first_difference, main, pretty
from train import CONFIG, checksum, train

TINY = {**CONFIG, "d": 2, "hidden": 2, "max_len": 8, "steps": 6, "eval_every": 2, "batch": 56}


class TestTheRecord(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.files = compute(1, TINY, 3)         # stops at the first evaluation from 3 on, 4
        cls.record = json.loads(cls.files["checkpoint-trace.json"])

    def test_it_has_the_fields_of_the_contract(self) -> None:
        scores = {"test_loss", "color_recall", "params_sha256", "checksum"}
        self.assertEqual(list(self.record), ["config", "interrupted_at_step", "uninterrupted", "best_checkpoint",
                                             "resume_runs", "integrity"])
        self.assertEqual(set(self.record["uninterrupted"]["final"]), scores)
        self.assertEqual(set(self.record["best_checkpoint"]), scores | {"step", "dev_loss"})
        self.assertEqual(set(self.record["resume_runs"]), {"resumed", "resumed_without_optimizer_state",
                                                           "resumed_without_shuffle_state"})
        self.assertEqual(set(self.record["integrity"]), {"one changed value", "truncated file",
                                                         "different learning rate"})

    def test_the_right_resume_agrees_and_the_wrong_ones_do_not(self) -> None:
        whole = self.record["uninterrupted"]["final"]["params_sha256"]
        hashes = [row["params_sha256"] for row in self.record["resume_runs"].values()]
        self.assertEqual(hashes[0], whole)
        self.assertEqual(len({*hashes}), 3)

    def test_every_damaged_file_is_refused_without_a_folder_in_the_words(self) -> None:
        for case, message in self.record["integrity"].items():
            with self.subTest(case):
                self.assertTrue(message.startswith("checkpoint "))
                self.assertNotIn("/", message.split(" is not valid JSON")[0])

    @unittest.skipIf(no_children(), no_children())
    def test_two_processes_make_the_same_record(self) -> None:
        self.assertEqual(compute(2, TINY, 3), self.files)

    def test_where_no_process_can_be_started_one_does_the_work(self) -> None:
        with mock.patch("trace_checkpoints.ProcessPoolExecutor", side_effect=NotImplementedError):
            self.assertEqual(compute(2, TINY, 3), self.files)

    def test_in_one_process_an_error_waits_for_its_result_and_ctrl_c_for_nothing(self) -> None:
        pool = trace_checkpoints.OneProcess()
        with self.assertRaises(ZeroDivisionError):
            pool.submit(divmod, 1, 0).result()
        with self.assertRaises(KeyboardInterrupt):
            pool.submit(mock.Mock(side_effect=KeyboardInterrupt))

    def test_the_checksum_is_that_of_the_plain_loop(self) -> None:
        params = train(*trace_checkpoints.read_inputs(), TINY)[0]
        self.assertEqual(checksum(params), self.record["uninterrupted"]["final"]["checksum"])


class TestTheCheck(unittest.TestCase):
    def test_the_first_difference_is_named_as_recorded_and_computed(self) -> None:
        for recorded, computed, sentence in (
                ({"a": 1}, {"a": 1}, None),
                ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, "a.b.1: recorded 2, computed 3"),
                ({"a": 1}, {"a": True}, "a: recorded 1, computed True"),
                ({"a": 1.0}, {"a": 1}, "a: recorded 1.0, computed 1"),
                ({"a": 1}, {}, "a: recorded 1, computed 'nothing'"),
                ({}, {"a": [1]}, "a: recorded 'nothing', computed [1]"),
                ({"a": [1]}, {"a": [1, 2]}, "a.1: recorded 'nothing', computed 2"),
                ({"a": [1]}, {"a": {"0": 1}}, "a: recorded [1], computed {'0': 1}"),
                ([], {}, "the record: recorded [], computed {}")):
            with self.subTest(recorded=recorded, computed=computed):
                self.assertEqual(first_difference(recorded, computed), sentence)

    def run_main(self, argv: list, files: dict, folder: str) -> tuple:
        out, err = io.StringIO(), io.StringIO()
        with mock.patch("trace_checkpoints.compute", return_value=files), \
                mock.patch("trace_checkpoints.HERE", Path(folder)), \
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(argv)
        return status, out.getvalue(), err.getvalue()

    FILES = {"checkpoint-trace.json": pretty({"a": [1, 2.5]}), "best.json": '{"step": 3}\n', "dev-loss.svg": "<svg>\n"}

    def test_write_then_check_agree_and_check_names_what_differs(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(self.run_main(["--write"], self.FILES, folder), (0, self.FILES["checkpoint-trace.json"], ""))
            self.assertEqual({path.name for path in Path(folder).iterdir()}, {*self.FILES, "checkpoint-time.json"})
            self.assertEqual(set(json.loads(Path(folder, "checkpoint-time.json").read_text(encoding="utf-8"))),
                             {"seconds", "jobs", "date", "python", "machine", "system"})
            self.assertEqual(self.run_main(["--check"], self.FILES, folder)[0], 0)
            for name, text, difference in (
                    ("checkpoint-trace.json", pretty({"a": [1, 2.25]}), "a.1: recorded 2.5, computed 2.25"),
                    ("best.json", '{"step": 4}\n', "step: recorded 3, computed 4"),
                    ("best.json", '{"step":3}\n', "another text of the same values"),
                    ("dev-loss.svg", "<svg/>\n", "another text of the same values")):
                with self.subTest(name=name, text=text):
                    self.assertEqual(self.run_main(["--check"], {**self.FILES, name: text}, folder),
                                     (1, "", f"trace_checkpoints.py: {name}: {difference}\n"))

    def test_a_broken_or_missing_record_is_a_sentence(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            status, _, err = self.run_main(["--check"], self.FILES, folder)
            self.assertEqual(status, 1)
            self.assertIn("checkpoint-trace.json", err)
            Path(folder, "checkpoint-trace.json").write_text("{", encoding="utf-8")
            status, _, err = self.run_main(["--check"], self.FILES, folder)
            self.assertEqual(status, 1)
            self.assertTrue(err.startswith("trace_checkpoints.py: checkpoint-trace.json: not valid JSON: "), err)

    def test_a_job_that_is_killed_is_a_sentence(self) -> None:
        """BrokenProcessPool is a RuntimeError; it cannot be imported where there are no processes."""
        err = io.StringIO()
        with mock.patch("trace_checkpoints.compute", side_effect=RuntimeError("a process ended")), \
                contextlib.redirect_stderr(err):
            self.assertEqual(main(["--check"]), 1)
        self.assertEqual(err.getvalue(), "trace_checkpoints.py: a process ended\n")

    def test_without_a_flag_nothing_is_written(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(self.run_main([], self.FILES, folder)[0], 0)
            self.assertEqual(list(Path(folder).iterdir()), [])


if __name__ == "__main__":
    unittest.main()
