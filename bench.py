"""How fast the lab is, beside twins of the same model; what sizes, checkpoints and processes cost.

    python3 bench.py            every section, some minutes      --quick    in under a minute
    python3 bench.py --write    also writes benchmark.json       --only     the sections named

What is compared runs in turns, A B C A B C, so that a busy moment of the machine meets all alike.
A ratio is taken within each round; the median of the rounds is the result, min to max the spread.
A twin must first give the lab's own loss and gradients, or the benchmark ends with exit status 1.
Slow is no failure: a goal that is missed is printed as missed.
"""
from __future__ import annotations

import argparse
import itertools
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import model
import trace_checkpoints as record
import train
from bench_checkpoints import checkpoints
from console import guarded
from measure import WARM_UP, Row, Step, Tables, Timed, in_turns, ratio_row, sized_step, spread, time_rows
from model import Batch
from train import CONFIG
from twins import (
    Gradient,
    check_twin,
    naive_gradient,
    np_gradient,
    np_params,
    np_stepper,
    numpy_version,
    value_gradient,
)

HERE = Path(__file__).resolve().parent


# ---------------------------------------------------------------------------- section 1: steps

def lab_stories() -> Tuple[train.State, List[List[int]]]:
    """(the state before step 1, the training stories)."""
    tok, text = record.read_inputs()
    stories = train.encode_all(tok, train.split_stories(text)[0], CONFIG["max_len"])
    return train.new_state(len(tok.vocab), CONFIG), stories


def lab_stepper() -> Step:
    """A training step as it is taken: the next batch, loss and gradient, Adam, and the checks of both."""
    state, stories = lab_stories()
    return lambda: train.train_step(state, stories, CONFIG)


def lab_inputs() -> Tuple[train.State, List[Batch]]:
    """(the state before step 1, the batches of the first steps)."""
    (state, stories), (other, _) = lab_stories(), lab_stories()
    taken = [train.next_batch(other, len(stories), CONFIG["batch"]) for _ in range(30)]
    return state, [[stories[i] for i in indices] for indices in taken]


SCALAR = "scalar autograd (one story, scaled by tokens to the batch)"


def stepper(gradient: Gradient) -> Step:
    """A twin's training step: loss and gradient, and Adam, on the batch that the lab has too."""
    state, batches = lab_inputs()
    upcoming = itertools.cycle(batches)
    return lambda: state.adam.step(state.params, gradient(state.params, next(upcoming))[1])


def value_stepper() -> Step:
    """A step on a batch's first story: its seconds times the batch's tokens over its own, and Adam's."""
    state, batches = lab_inputs()
    upcoming = itertools.cycle(batches)

    def step() -> Timed:
        batch = next(upcoming)
        _, grads, seconds = value_gradient(state.params, batch[0])
        began = time.perf_counter()
        state.adam.step(state.params, grads)
        tokens = [len(story) - 1 for story in batch]
        return Timed(seconds * sum(tokens) / tokens[0] + time.perf_counter() - began)
    return step


SERVE = """import bench, platform, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
step, (state, batches) = bench.lab_stepper(), bench.lab_inputs()
print(platform.python_version(), bench.model.batch_gradient(state.params, batches[0])[0].hex(), flush=True)
for _ in range(60):
    step()
for line in sys.stdin:
    began = time.perf_counter()
    step()
    print(time.perf_counter() - began, flush=True)"""


def pypy_stepper(stack: ExitStack, loss: float) -> Dict[str, Step]:
    """The lab in a PyPy beside this Python, asked for one step at a time; {} if there is no pypy3."""
    pypy = None if WARM_UP > 1 else shutil.which("pypy3")
    if pypy is None:
        return {}
    child = stack.enter_context(subprocess.Popen(
        [pypy, "-c", SERVE], cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    replies: Any = child.stdout
    version, _, found = replies.readline().strip().partition(" ")
    if found != loss.hex():
        raise ValueError(f"the lab on PyPy has another first loss, {found!r}, than here, {loss.hex()!r}")

    def step() -> Timed:
        print(file=child.stdin, flush=True)
        return Timed(replies.readline())
    return {f"lab on PyPy {version}": step}


def checked_twins() -> Tuple[Dict[str, Step], float]:
    """(every twin that is here, each shown to compute what the lab does; the lab's first loss)."""
    state, batches = lab_inputs()
    params, batch = state.params, batches[0]
    lab = model.batch_gradient(params, batch)
    check_twin("naive", naive_gradient(params, batch), lab)
    check_twin("scalar autograd", value_gradient(params, batch[0])[:2],
               model.batch_gradient(params, batch[:1]))
    twins = {"lab": lab_stepper(), "naive": stepper(naive_gradient),
             SCALAR: value_stepper()}
    if numpy_version():
        w = np_params(params)
        check_twin("NumPy", np_gradient(w, batch), lab)
        twins["NumPy"] = np_stepper(w, batches)
    return twins, lab[0]


def steps(quick: bool) -> Tables:
    """Milliseconds of a training step at CONFIG's size."""
    twins, loss = checked_twins()
    with ExitStack() as stack:
        twins.update(pypy_stepper(stack, loss))
        seconds = in_turns(twins, 3 if quick else 21)
    lab, naive, times = seconds["lab"], seconds["naive"], time_rows(seconds)
    ratios = [ratio_row("naive / lab", naive, lab, "at least 3" if WARM_UP == 1 else ""),
              ratio_row("scalar autograd / lab", seconds[SCALAR], lab, "at least 80")]
    ratios += [ratio_row(f"naive / {name}", naive, its, "at least 15") for name, its in seconds.items()
               if "PyPy" in name]
    if not numpy_version():
        times.append({"what": "NumPy", "median_ms": "not installed"})
    else:
        ratios.append(ratio_row("lab / NumPy", lab, seconds["NumPy"]))
    return {"times": times, "ratios": ratios}


# ---------------------------------------------------------------------------- section 2: scaling

SIZES = {"length": (8, 16, 32, 64), "d": (8, 16, 32, 64), "vocabulary": (64, 128, 256, 512, 1024),
         "batch": (2, 4, 8, 16, 32)}


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The slope of log seconds over log size: the e of the best fit, seconds = constant * size ** e."""
    xs, ys = [math.log(size) for size in sizes], [math.log(s) for s in seconds]
    middle = statistics.fmean(xs)
    return sum((x - middle) * y for x, y in zip(xs, ys)) / sum((x - middle) ** 2 for x in xs)


def scaling(quick: bool) -> Tables:
    """How a step grows with one size, time = constant * size ** exponent; the others: 24, 16, 128, 8."""
    rows = []
    for name, sizes in SIZES.items():
        seconds = in_turns({str(size): sized_step(**{name: size}) for size in sizes}, 1 if quick else 7)
        rows.append({"size": name, "values": list(sizes),
                     "median_ms": [row["median_ms"] for row in time_rows(seconds)],
                     **spread([exponent(sizes, times) for times in zip(*seconds.values())], "_exponent")})
    return {"growth": rows}


# ---------------------------------------------------------------------------- section 3: memory

RUN = """import tempfile, checkpoint, trace_checkpoints, train
with tempfile.TemporaryDirectory() as folder:
    checkpoint.run(*trace_checkpoints.read_inputs(), {**train.CONFIG, "steps": 4, "eval_every": 2}, folder)"""
# In a process between: Linux counts what a parent holds when it starts a child as the child's.
PEAK = """import resource, subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1]], check=True)
unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / unit)"""


def peak(code: str) -> Any:
    """The most MiB that a Python was resident with while it ran `code`; "n/a" on Windows."""
    if os.name == "nt":
        return "n/a"
    command = [sys.executable, "-c", PEAK, code]
    done = subprocess.run(command, cwd=HERE, check=True, stdout=subprocess.PIPE, text=True)
    return round(float(done.stdout), 1)


def memory(quick: bool) -> Tables:
    """Peak resident size of a short run, and of a Python that does nothing."""
    return {"peak": [{"what": "Python alone", "peak_mib": peak("pass")},
                     {"what": "a run at CONFIG's size", "peak_mib": peak(RUN)}]}


# ---------------------------------------------------------------------------- section 4: jobs

def in_a_row(cfg: train.Config, stop: int) -> None:
    """The seven jobs of a record that shares nothing: one run, and three that start, stop and go on."""
    with tempfile.TemporaryDirectory() as folder:
        record.full_run(cfg, os.path.join(folder, "whole"))
        for name, switches in record.RESUMES.items():
            first = os.path.join(folder, f"{name} first")
            record.first_part(cfg, first, stop)
            record.resumed_run(cfg, first, os.path.join(folder, name), switches)


def jobs(quick: bool) -> Tables:
    """The recorded jobs at full size with fewer steps, in one process, in two, and unshared."""
    count = 4 if quick else 60
    cfg, stop = {**CONFIG, "steps": count, "eval_every": count // 2}, count // 2
    records: List[Any] = []
    seconds = in_turns({"one process": lambda: records.append(record.compute(1, cfg, stop)),
                        "two processes": lambda: records.append(record.compute(2, cfg, stop)),
                        "seven jobs in a row": lambda: in_a_row(cfg, stop)}, 1 if quick else 3, warm_up=0)
    if any(other != records[0] for other in records):
        raise ValueError("two processes record other values than one")
    one, two, seven = seconds.values()
    # In a quick run, starting a process and reading the corpus weigh more than the steps: no verdict.
    return {"times": [{**row, "steps": count} for row in time_rows(seconds)],
            "ratios": [ratio_row("two processes / one", two, one, "" if quick else "at most 0.55"),
                       ratio_row("one process / seven jobs", one, seven),
                       ratio_row("two processes / seven jobs", two, seven)]}


# ---------------------------------------------------------------------------- print and write

SECTIONS: Dict[str, Callable[[bool], Tables]] = {
    "steps": steps, "scaling": scaling, "memory": memory, "checkpoints": checkpoints, "jobs": jobs}


def shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(shown, value))
    return f"{value:.0f}" if isinstance(value, float) and value >= 1000 else str(value)


def print_table(title: str, rows: List[Row]) -> None:
    cells = [list(rows[0]), *([shown(row.get(key, "")) for key in rows[0]] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells)]
    print(f"\n{title}")
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip(), flush=True)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="Measure the lab beside twins of the same model.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and sizes, under a minute")
    parser.add_argument("--write", action="store_true", help="save the result as benchmark.json")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, metavar="SECTION", default=list(SECTIONS),
                        help=f"of {', '.join(SECTIONS)}")
    args = parser.parse_args(argv)
    if args.write and set(args.only) != set(SECTIONS):
        parser.error("--write saves every section; leave out --only")
    result: Dict[str, Any] = {"about": {
        "date": date.today().isoformat(), "machine": platform.machine(), "system": platform.system(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "cpus": os.cpu_count(), "numpy": numpy_version(), "quick": args.quick}}
    print_table("about", [result["about"]])
    return guarded("bench.py", lambda: measure_all(args, result))


def measure_all(args: argparse.Namespace, result: Dict[str, Any]) -> int:
    """Print the tables of each section; write them beside `result` if told to."""
    for name in args.only:
        print(f"\n{SECTIONS[name].__doc__}", flush=True)
        result[name] = SECTIONS[name](args.quick)
        for title, rows in result[name].items():
            print_table(f"{name}: {title}", rows)
    if args.write:
        (HERE / "benchmark.json").write_bytes(record.pretty(result).encode("utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
