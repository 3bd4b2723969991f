"""The console, as the command lines of the lab use it: whatever is wrong with it, no run ends by it."""
from __future__ import annotations

import contextlib
import io
import os
import shlex
import subprocess
import sys
from typing import Callable, TextIO


def print_anything() -> None:
    """Let a console that does not know a character show it as an escape, where `print` would fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(stream: TextIO | None, text: str, end: str = "\n") -> None:
    """Print to `stream`; nothing that is wrong with it may end a run."""
    if stream is None:                  # started without one; print() would take another
        return
    try:
        print(text, end=end, file=stream, flush=True)
    except (OSError, ValueError):
        # Nobody reads it any more. What is left in its buffer goes nowhere, also at the exit.
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def sentence(error: BaseException) -> str:
    """What went wrong, for a person."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def guarded(program: str, action: Callable[[], int]) -> int:
    """The exit status that `action` returns; 1 and a sentence for what went wrong, 130 for Ctrl-C."""
    try:
        return action()
    except (OSError, ValueError, FloatingPointError, RuntimeError, subprocess.SubprocessError) as error:
        print(f"{program}: {sentence(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def duration(seconds: float) -> str:
    """12 s, 3 min 05 s, 2 h 03 min."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def quoted(path: str) -> str:
    """A path as this system's shell and argparse both take it."""
    path = os.path.join(".", path) if path.startswith("-") else path
    return subprocess.list2cmdline([path]) if os.name == "nt" else shlex.quote(path)
