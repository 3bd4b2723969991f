"""The five rows of inspect_inputs, and that its --check can fail."""
from __future__ import annotations

import contextlib
import io
import json
import tempfile
import unittest
from pathlib import Path

from inspect_inputs import RECORD, inspect, main


class TestInspect(unittest.TestCase):
    def run_main(self, argv: list, path: Path) -> tuple:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(argv, path)
        return status, out.getvalue(), err.getvalue()

    def test_the_rows_are_one_accepted_bundle_and_four_refusals(self) -> None:
        differ = "checkpoint training inputs differ: "
        self.assertEqual(inspect(), [
            {"case": "matching bundle", "accepted": True, "message": "accepted"},
            {"case": "changed corpus", "accepted": False, "message": differ + "corpus"},
            {"case": "changed tokenizer of the same size", "accepted": False, "message": differ + "tokenizer"},
            {"case": "missing identity", "accepted": False, "message": differ + "none recorded"},
            {"case": "changed implementation", "accepted": False, "message": differ + "source model.py"}])

    def test_the_committed_rows_hold(self) -> None:
        self.assertEqual(self.run_main(["--check"], RECORD)[0], 0)

    def test_check_names_the_first_row_that_differs_and_the_repair(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "input-checks.json")
            self.assertEqual(self.run_main(["--write"], path)[0], 0)
            self.assertEqual(path.read_bytes(), RECORD.read_bytes())
            rows = json.loads(path.read_text(encoding="utf-8"))
            rows[1]["accepted"] = True
            for text in (json.dumps(rows), json.dumps(rows[:4]), "{", "null"):
                with self.subTest(text=text[:20]):
                    path.write_text(text, encoding="utf-8")
                    status, _, err = self.run_main(["--check"], path)
                    self.assertEqual(status, 1)
                    self.assertTrue(err.endswith("repair: python3 inspect_inputs.py --write\n"))
                    self.assertEqual(path.read_text(encoding="utf-8"), text)
            path.write_text(json.dumps(rows), encoding="utf-8")
            self.assertIn("changed corpus: recorded", self.run_main(["--check"], path)[2])

    def test_without_a_flag_the_rows_are_printed_and_nothing_is_written(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "input-checks.json")
            status, out, _ = self.run_main([], path)
            self.assertEqual((status, len(out.splitlines()), path.exists()), (0, 5, False))


if __name__ == "__main__":
    unittest.main()
