"""What several test files need to know of the machine that they run on."""
from __future__ import annotations

import subprocess
import sys
from functools import cache


@cache
def no_children() -> str:
    """Why a test cannot start Python in a process of its own here, or "" if it can.

    WebAssembly has no processes; an emulated processor's Python may not be a file that the system runs.
    """
    if sys.platform == "emscripten":
        return "no processes in WebAssembly"
    try:
        subprocess.run([sys.executable, "-c", ""], check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"Python cannot be started from here: {error}"
    return ""
