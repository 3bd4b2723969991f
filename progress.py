"""How far a run is, for the person who waits for it."""
from __future__ import annotations

import shutil
import time
from typing import Callable, Optional, TextIO

from console import duration, say
from train import Config, State, is_due


class Progress:
    """Tells a stream how far the run is: a live line on a terminal, else a line an evaluation."""

    def __init__(self, stream: Optional[TextIO], cfg: Config, end: int, opening: Callable[[int], str]):
        """`end`: the last step of this start. `opening`: from the steps taken before, the first line."""
        self.stream, self.cfg, self.end, self.opening = stream, cfg, end, opening
        self.live = stream is not None and stream.isatty()
        self.first, self.drawn, self.began = -1, 0, time.monotonic()

    def __call__(self, state: State) -> None:
        if self.first < 0:              # only now is it certain that the run was not refused
            self.first = state.step - 1
            say(self.stream, self.opening(self.first))
        if self.live:
            self.redraw(self.line(state))
        elif is_due(state, self.cfg):
            say(self.stream, self.line(state))

    def left(self, step: int) -> str:
        """Counted from this start: the steps before an interruption tell nothing about now."""
        a_step = (time.monotonic() - self.began) / (step - self.first)
        return duration(a_step * max(0, self.end - step)) + " left"

    def line(self, state: State) -> str:
        parts = [f"step {state.step}/{self.cfg['steps']}", f"loss {state.history[-1]:.4f}"]
        if is_due(state, self.cfg):
            parts.append(f"dev loss {state.dev_history[-1]['dev_loss']:.4f}")
        if state.best is not None:
            parts.append(f"best {state.best['dev_loss']:.4f} at step {state.best['step']}")
        return "  ".join([*parts, self.left(state.step)])

    def redraw(self, line: str) -> None:
        """Over the line before; cut to the window, as a wrapped line cannot be drawn over."""
        line = line[:shutil.get_terminal_size().columns - 1]
        say(self.stream, "\r" + line.ljust(self.drawn), end="")
        self.drawn = len(line)

    def close(self) -> None:
        """Leave the live line as it is, so that what follows has a line of its own."""
        if self.drawn:
            say(self.stream, "")
