"""The console, as every command line of the lab uses it."""
from __future__ import annotations

import io
import sys


def print_anything() -> None:
    """Let a console that does not know a character show it as an escape, where `print` would fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
