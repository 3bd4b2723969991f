"""No traceback reaches who runs a program: one sentence, and an exit status that says what kind it is."""
from __future__ import annotations

import contextlib
import io
import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import inspect_inputs
import make_corpus
import pictures
import trace_checkpoints
from console import guarded, quoted, say


def said_by(call, *args):
    """(exit status, standard error) of a program's main."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        return call(*args), err.getvalue()


class TestConsole(unittest.TestCase):
    def test_what_goes_wrong_is_one_sentence_and_a_status(self) -> None:
        for error, status, said in ((OSError(28, "No space left on device", "a/b"), 1, "a/b: No space left on device"),
                                    (ValueError("config: odd"), 1, "config: odd"),
                                    (FloatingPointError("step 3: not finite"), 1, "step 3: not finite"),
                                    (RuntimeError(), 1, "RuntimeError")):
            with self.subTest(said):
                self.assertEqual(said_by(guarded, "p.py", mock.Mock(side_effect=error)), (status, f"p.py: {said}\n"))
        self.assertEqual(said_by(guarded, "p.py", mock.Mock(side_effect=KeyboardInterrupt)), (130, ""))
        self.assertEqual(said_by(guarded, "p.py", lambda: 7), (7, ""))

    def test_a_fault_of_the_program_itself_is_not_hidden(self) -> None:
        with self.assertRaises(TypeError):
            guarded("p.py", lambda: len(3))

    def test_a_record_that_cannot_be_written_is_one_sentence(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            nowhere = Path(folder, "nowhere")
            for program, said in (
                    (lambda: make_corpus.main(["--write"], nowhere / "corpus.txt"), "make_corpus.py: "),
                    (lambda: pictures.main(["--write"], nowhere), "pictures.py: "),
                    (lambda: inspect_inputs.main(["--write"], nowhere / "rows.json"), "inspect_inputs.py: ")):
                with self.subTest(said):
                    status, err = said_by(program)
                    self.assertEqual(status, 1)
                    self.assertRegex(err, f"^{said}.*nowhere.*: No such file or directory\n$")
            with mock.patch.object(trace_checkpoints, "HERE", nowhere), \
                    mock.patch.object(trace_checkpoints, "compute", return_value={"checkpoint-trace.json": "{}\n"}):
                status, err = said_by(trace_checkpoints.main, ["--write"])
                self.assertEqual(status, 1)
                self.assertRegex(err, "^trace_checkpoints.py: .*nowhere.*: No such file or directory\n$")

    def test_a_path_is_quoted_for_the_shell_of_the_system(self) -> None:
        for system, path, written in (("posix", "a b", "'a b'"), ("posix", "-x", "./-x"), ("posix", "run", "run"),
                                      ("nt", "C:\\my runs", '"C:\\my runs"'), ("nt", "C:\\runs", "C:\\runs")):
            with self.subTest(system=system, path=path), mock.patch("console.os.name", system):
                self.assertEqual(quoted(path), written.replace("./", os.path.join(".", "")))

    def test_a_stream_that_is_gone_ends_nothing(self) -> None:
        closed = io.StringIO()
        closed.close()
        for stream in (None, closed):
            say(stream, "text")


if __name__ == "__main__":
    unittest.main()
