"""Times measured side by side: what is compared runs in turns, and ratios are taken within each turn."""
from __future__ import annotations

import gc
import platform
import random
import statistics
import time
from typing import Any, Callable, Dict, List, Sequence

import model
import train
from train import CONFIG

Row = Dict[str, Any]
Tables = Dict[str, List[Row]]               # title -> rows
Seconds = Dict[str, List[float]]            # contestant -> seconds in each round
Step = Callable[[], Any]                    # a contestant
WARM_UP = 20 if platform.python_implementation() == "PyPy" else 1      # PyPy compiles while it runs


class Timed(float):
    """Seconds that a contestant took by a clock of its own."""


def in_turns(contestants: Dict[str, Step], rounds: int, warm_up: int = WARM_UP) -> Seconds:
    """Seconds of each contestant in each round, after untimed ones; none pays for another's garbage."""
    seconds: Seconds = {name: [] for name in contestants}
    for number in range(-warm_up, rounds):
        for name, contestant in contestants.items():
            gc.collect()
            began = time.perf_counter()
            own = contestant()
            by_clock = time.perf_counter() - began
            if number >= 0:
                seconds[name].append(own if isinstance(own, Timed) else by_clock)
            own = None                  # freed here and not in the next one's time
    return seconds


def spread(values: Sequence[float], unit: str = "") -> Row:
    """Median, min and max, to four digits: more would be noise."""
    parts = (("median", statistics.median(values)), ("min", min(values)), ("max", max(values)))
    return {f"{name}{unit}": float(f"{value:.4g}") for name, value in parts}


def time_rows(seconds: Seconds) -> List[Row]:
    return [{"what": name, **spread([1e3 * s for s in times], "_ms"), "rounds": len(times)}
            for name, times in seconds.items()]


def ratio_row(what: str, above: Sequence[float], below: Sequence[float], goal: str = "") -> Row:
    """The quotients of each round; the goal reads "at least 3" or "at most 0.6"."""
    row = {"ratio": what, **spread([a / b for a, b in zip(above, below)]), "goal": goal, "verdict": ""}
    if goal:
        bound = float(goal.split()[-1])
        met = row["median"] >= bound if "least" in goal else row["median"] <= bound
        row["verdict"] = "met" if met else "missed"
    return row


def sized_step(length: int = 24, d: int = 16, vocabulary: int = 128, batch: int = 8,
               hidden: int = 64) -> Step:
    """A step of the lab on random ids."""
    state, rng = train.new_state(vocabulary, {**CONFIG, "d": d, "hidden": hidden}), random.Random(0)
    stories = [[rng.randrange(vocabulary) for _ in range(length + 1)] for _ in range(batch)]
    return lambda: state.adam.step(state.params, model.batch_gradient(state.params, stories)[1])
