"""What a save and a run do to the disk: files replaced whole or not at all, a folder for one run alone.

Nothing here knows what is in a file. `write_atomically` is all that a script of another project
needs, to lose no old file to a crash while it writes a new one; a process that was killed leaves a
hidden temporary, which `sweep` removes.

Not promised: what a drive loses that says "written" before it is, and network drives with rules of
their own.
"""
from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import tempfile
import time
from typing import Iterator, Union

try:
    import fcntl
except ImportError:                     # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt

FilePath = Union[str, "os.PathLike[str]"]
NOT_SUPPORTED = {errno.EINVAL, errno.ENOTSUP, errno.EBADF} | ({errno.EACCES} if os.name == "nt" else set())


class CheckpointError(ValueError):
    """A checkpoint, or the folder it is to go to, was refused; the file is as it was."""


# ---------------------------------------------------------------------------- a file

def sync_folder(folder: FilePath) -> None:
    """Make a rename in `folder` durable, where the system can do that for a folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in NOT_SUPPORTED:    # a network drive that cannot is no failure; EIO is
            raise


def _write_and_sync(path: str, data: bytes) -> None:
    """A new file holding `data`, on the disk when this returns; its permissions follow the umask."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest):]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(temporary: str, path: str) -> None:
    """`os.replace`, again for half a second where a reader's open handle forbids it (Windows)."""
    tries = 10 if os.name == "nt" else 1
    for left in reversed(range(tries)):
        try:
            os.replace(temporary, path)
            break
        except PermissionError:
            if not left:
                raise
            time.sleep(0.05)


def write_atomically(path: FilePath, data: bytes) -> None:
    """Put `data` at `path` so that at every moment the old file or the whole new one is there.

    OSError that names `path`: before the replace the old file stays and no temporary; only if
    syncing the folder fails is the new file there, but not yet sure to survive a power cut.
    """
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(4)}.tmp")
    try:
        try:
            _write_and_sync(temporary, data)
            _replace(temporary, target)
        except BaseException:           # KeyboardInterrupt too must leave no temporary
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        sync_folder(folder)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror or str(error), os.fspath(path)) from error


# ---------------------------------------------------------------------------- a folder

def _lock_or_fail(descriptor: int) -> None:
    """Lock an open file at once; an error if another holds it. The system unlocks when its holder ends."""
    if fcntl is None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:            # a drive that has no locks does not stop a run
        if error.errno not in NOT_SUPPORTED | {errno.ENOLCK, errno.ENOSYS}:
            raise


@contextlib.contextmanager
def lock(folder: FilePath) -> Iterator[None]:
    """Hold `folder` for one run. CheckpointError while another run holds it.

    On Unix the folder itself is locked. On Windows, which has no locks on folders, an empty file
    among the user's temporary ones stands for it. That file stays, and locks nobody out: a lock
    ends with the process that holds it.
    """
    path, flags = os.fspath(folder), os.O_RDONLY
    if fcntl is None:
        whole = os.path.normcase(os.path.realpath(path)).encode("utf-8", "surrogatepass")
        name = f"{hashlib.sha256(whole).hexdigest()[:32]}.lock"
        path, flags = os.path.join(tempfile.gettempdir(), name), os.O_RDWR | os.O_CREAT
    descriptor = os.open(path, flags)
    try:
        try:
            _lock_or_fail(descriptor)
        except (BlockingIOError, PermissionError):      # as Unix says it, and as Windows does
            raise CheckpointError(f"folder {os.fspath(folder)} is in use by another run; "
                                  "wait until it ends, or stop it") from None
        yield
    finally:
        os.close(descriptor)


def make_folder(folder: str) -> None:
    """Make `folder` and what is missing above it, each as durable as a rename in it will be."""
    parent = os.path.dirname(os.path.abspath(folder))
    if not os.path.isdir(folder):
        if parent == os.path.abspath(folder):
            raise FileNotFoundError(errno.ENOENT, "no such drive", folder)
        make_folder(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        sync_folder(parent)


def sweep(folder: FilePath, names: str) -> None:
    """Remove the temporaries that a killed `write_atomically` left of files with such names (a pattern).

    Nothing else is removed. Only for who knows that no other process writes these files now.
    """
    temporary = re.compile(rf"\.({names})\.[0-9a-f]{{8}}\.tmp")
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if temporary.fullmatch(name) and not os.path.isdir(path):
            os.unlink(path)
