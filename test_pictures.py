"""The pictures are whole SVG, say in words what they show, and are what the code makes."""
from __future__ import annotations

import contextlib
import io
import json
import tempfile
import unittest
import xml.dom.minidom
from pathlib import Path

from pictures import HERE, PICTURES, loss_curve, main

CURVE = [{"step": step, "dev_loss": loss} for step, loss in ((2, 3.0), (4, 2.0), (6, 2.5))]
OTHER = [{"step": step, "dev_loss": loss} for step, loss in ((2, 3.0), (4, 2.0), (6, 1.5))]
CURVES = {"uninterrupted": CURVE, "resumed": CURVE, "resumed_without_optimizer_state": OTHER,
          "resumed_without_shuffle_state": CURVE}


class TestPictures(unittest.TestCase):
    def test_each_is_well_formed_and_has_a_title_and_a_description(self) -> None:
        for name, made in {**{name: make() for name, make in PICTURES.items()},
                           "dev-loss.svg": loss_curve(CURVES, 4, CURVE[1])}.items():
            with self.subTest(name):
                root = xml.dom.minidom.parseString(made).documentElement
                self.assertEqual(root.tagName, "svg")
                for tag in ("title", "desc"):
                    self.assertTrue(root.getElementsByTagName(tag)[0].firstChild.data.strip())
                self.assertIn("prefers-color-scheme: dark", made)

    def test_the_curve_names_the_interruption_the_best_the_last_and_every_end(self) -> None:
        made = loss_curve(CURVES, 4, CURVE[1])
        for words in ("interrupted", "best", "last", "ends at 2.5000", "ends at 1.5000"):
            self.assertIn(f">{words}<", made)

    def test_equal_curves_lie_on_each_other_and_others_do_not(self) -> None:
        made = loss_curve(CURVES, 4, CURVE[1])
        drawn = {kind: made.split(f'" class="{kind}"')[0].rsplit('points="', 1)[1] for kind in "abcd"}
        self.assertEqual(drawn["a"], drawn["b"])
        self.assertNotEqual(drawn["a"], drawn["c"])

    def test_the_committed_pictures_hold(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(main(["--check"]), 0)
        trace = json.loads((HERE / "checkpoint-trace.json").read_text(encoding="utf-8"))
        ends = [trace["uninterrupted"]["dev_loss"][-1]["dev_loss"],
                *(row["final_dev_loss"] for row in trace["resume_runs"].values())]
        picture = (HERE / "dev-loss.svg").read_text(encoding="utf-8")
        self.assertEqual([float(part.split("<")[0]) for part in picture.split("ends at ")[1:]], ends)

    def test_check_fails_on_a_missing_or_changed_picture_and_says_the_repair(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder, err = Path(name), io.StringIO()
            with contextlib.redirect_stderr(err):
                self.assertEqual(main(["--check"], folder), 1)
            self.assertEqual(err.getvalue(), "saving.svg is not what pictures.py makes\n"
                                             "repair: python3 pictures.py --write\n")
            with contextlib.redirect_stdout(io.StringIO()) as out:
                self.assertEqual(main(["--write"], folder), 0)
                self.assertEqual(main(["--check"], folder), 0)
            self.assertEqual(out.getvalue(), "wrote saving.svg, last-json.svg\n"
                                             "as they would be written: saving.svg, last-json.svg\n")
            Path(folder, "last-json.svg").write_text("<svg/>", encoding="utf-8")
            with contextlib.redirect_stderr(err):
                self.assertEqual(main(["--check"], folder), 1)


if __name__ == "__main__":
    unittest.main()
