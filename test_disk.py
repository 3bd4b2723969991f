"""The disk's own corners: drives without locks, without numbers, without folders; its crashes are in test_crash.py."""
from __future__ import annotations

import errno
import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import disk
from disk import CheckpointError, lock, make_folder, sweep, write_atomically


class TestDisk(unittest.TestCase):
    IN_USE = "in use by another run; wait until it ends, or stop it"

    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name

    def test_a_file_is_replaced_whole_and_nothing_stays_beside_it(self) -> None:
        path = os.path.join(self.folder, "file")
        for data in (b"old", b"", bytes(range(256)) * 999):
            write_atomically(path, data)
            self.assertEqual(Path(path).read_bytes(), data)
            self.assertEqual(os.listdir(self.folder), ["file"])

    def test_a_sweep_removes_the_temporaries_of_the_files_it_is_told_and_nothing_else(self) -> None:
        names = [".a.json.0123abcd.tmp", ".b.json.0123abcd.tmp", ".a.json.0123abc.tmp", "a.json.0123abcd.tmp", "a.json"]
        for name in names:
            Path(self.folder, name).write_bytes(b"")
        os.mkdir(os.path.join(self.folder, ".a.json.00000000.tmp"))
        sweep(self.folder, r"a\.json")
        self.assertEqual(sorted(os.listdir(self.folder)), sorted([*names[1:], ".a.json.00000000.tmp"]))

    @unittest.skipIf(disk.fcntl is None, "the locks of this system are the next test's")
    def test_a_drive_without_locks_does_not_stop_a_run_and_its_other_errors_are_no_other_run(self) -> None:
        for number in (errno.ENOLCK, errno.ENOSYS, errno.EINVAL):
            with mock.patch("disk.fcntl.flock", side_effect=OSError(number, "no locks")), lock(self.folder):
                pass
        with mock.patch("disk.fcntl.flock", side_effect=OSError(errno.EIO, "broken drive")), \
                self.assertRaises(OSError) as caught, lock(self.folder):
            pass
        self.assertEqual(caught.exception.errno, errno.EIO)
        with mock.patch("disk.fcntl.flock", side_effect=BlockingIOError(errno.EAGAIN, "held")), \
                self.assertRaisesRegex(CheckpointError, self.IN_USE), lock(self.folder):
            pass

    def test_where_folders_have_no_locks_a_file_elsewhere_is_locked_and_one_that_was_left_does_not_refuse(self) -> None:
        windows, run = mock.Mock(LK_NBLCK=2), os.path.join(self.folder, "run")
        os.mkdir(run)
        with mock.patch("disk.fcntl", None), mock.patch("disk.msvcrt", windows, create=True), \
                mock.patch("tempfile.gettempdir", return_value=self.folder):
            for folder in (run, os.path.join(run, "..", "run")):
                with lock(folder):
                    self.assertEqual(windows.locking.call_args[0][1:], (2, 1))
            windows.locking.side_effect = PermissionError(errno.EACCES, "held")
            with self.assertRaisesRegex(CheckpointError, self.IN_USE), lock(run):
                pass
        self.assertEqual(os.listdir(run), [])
        self.assertEqual(len(os.listdir(self.folder)), 2)       # the folder, and one file for its two names

    def test_a_drive_that_is_not_there_is_an_error_and_no_endless_search(self) -> None:
        with mock.patch("disk.os.path.isdir", return_value=False), \
                self.assertRaisesRegex(FileNotFoundError, "no such drive"):
            make_folder(os.path.abspath(os.sep))

    def test_an_error_without_a_number_keeps_its_kind(self) -> None:
        with mock.patch("disk.os.fsync", side_effect=PermissionError("no number")), \
                self.assertRaisesRegex(PermissionError, "^no number$"):
            write_atomically(os.path.join(self.folder, "file"), b"new")


if __name__ == "__main__":
    unittest.main()
