"""Record the uninterrupted run, the resumed one, and two resumes with a bug in them.

    python3 trace_checkpoints.py            computes the record and prints it
    python3 trace_checkpoints.py --write    also writes checkpoint-trace.json, best.json, dev-loss.svg and
                                            checkpoint-time.json
    python3 trace_checkpoints.py --check    exit status 1 unless the first three hold on this machine too

The interrupted runs share their first 300 steps, so these are run once and the folder is copied
for each resume. The full run goes on beside them where there are two processors.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Optional, Sequence, Tuple

from bpe import Tokenizer
from checkpoint import CheckpointError, load, params_sha256, run, save
from console import guarded
from model import Params
from pictures import loss_curve
from portable import machine_fault
from train import CONFIG, Config, checksum, color_recall, encode_all, mean_loss, split_stories

Record = Dict[str, Any]
Files = Dict[str, str]                  # name -> text of what is recorded
HERE = Path(__file__).resolve().parent
TRACE, BEST, PICTURE, TIME = "checkpoint-trace.json", "best.json", "dev-loss.svg", "checkpoint-time.json"
INTERRUPTED_AT = 300
RESUMES: Dict[str, Dict[str, Any]] = {
    "resumed": {},
    "resumed_without_optimizer_state": {"restore_optimizer": False},
    "resumed_without_shuffle_state": {"restore_shuffle": False},
}


class OneProcess(Executor):
    """Stands in for a process pool where no process can be started: each job runs when it is given."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:      # not Ctrl-C, which must end the other jobs too
            future.set_exception(error)
        return future


def read_inputs() -> Tuple[Tokenizer, str]:
    """The lab's own tokenizer and corpus."""
    return Tokenizer.load(HERE / "tokenizer.json"), (HERE / "corpus.txt").read_text(encoding="utf-8")


def scores(params: Params, tok: Tokenizer, text: str, cfg: Config) -> Record:
    """What finished parameters are worth on the test stories, and which they are."""
    test = split_stories(text)[2]
    return {"test_loss": round(mean_loss(params, encode_all(tok, test, cfg["max_len"])), 4),
            "color_recall": color_recall(params, tok, test),
            "params_sha256": params_sha256(params), "checksum": checksum(params)}


# ---------------------------------------------------------------------------- the jobs

def full_run(cfg: Config, folder: str) -> Record:
    """The run that nothing interrupts, and the best checkpoint that it kept."""
    tok, text = read_inputs()
    params, _, dev_history, best = run(tok, text, cfg, folder)
    if best is None:
        raise ValueError("the run ended without an evaluation")
    return {"uninterrupted": {"dev_loss": dev_history, "final": scores(params, tok, text, cfg)},
            "best_checkpoint": {"step": best["step"], "dev_loss": best["dev_loss"],
                                **scores(best["params"], tok, text, cfg)},
            "best_file": (Path(folder) / BEST).read_text(encoding="ascii")}


def first_part(cfg: Config, folder: str, stop_after: int) -> None:
    """The steps before the interruption."""
    run(*read_inputs(), cfg, folder, stop_after=stop_after)


def resumed_run(cfg: Config, interrupted: str, folder: str, switches: Dict[str, Any]) -> Record:
    """The steps after the interruption, in a copy of the interrupted run's folder."""
    shutil.copytree(interrupted, folder)
    params, _, dev_history, _ = run(*read_inputs(), cfg, folder, resume=True, **switches)
    return {"dev_loss": dev_history,
            "row": {"final_dev_loss": dev_history[-1]["dev_loss"], "params_sha256": params_sha256(params)}}


def refusals(cfg: Config, folder: str) -> Dict[str, str]:
    """The message that `load` has for each of three damaged or mismatched checkpoints."""
    good = os.path.join(folder, "last.json")
    bad = os.path.join(folder, "bad.json")
    text = Path(good).read_text(encoding="ascii")
    body = load(good, cfg)
    changed = json.loads(text)
    changed["params"]["wte"][0][0] += 1e-9
    messages = {}
    for case, content, config in (
            ("one changed value", json.dumps(changed, sort_keys=True), cfg),
            ("truncated file", text[:len(text) // 2], cfg),
            ("different learning rate", None, {**cfg, "learning_rate": cfg["learning_rate"] / 2})):
        if content is None:
            save(bad, body)
        else:
            Path(bad).write_text(content, encoding="ascii")
        try:
            load(bad, config)
            messages[case] = "accepted"
        except CheckpointError as error:
            messages[case] = str(error).replace(folder + os.sep, "")
    return messages


def run_all(pool: Executor, cfg: Config, stop_after: int, folder: str) -> Tuple[Record, Record, Record]:
    """(what the full run gave, what each resume gave, the refusals), computed by the jobs above in `pool`."""
    def place(name: str) -> str:
        return os.path.join(folder, name)

    whole = pool.submit(full_run, cfg, place("whole"))
    pool.submit(first_part, cfg, place("interrupted"), stop_after).result()
    integrity = refusals(cfg, place("interrupted"))     # before the folder is copied: it writes there
    resumes = {name: pool.submit(resumed_run, cfg, place("interrupted"), place(name), switches)
               for name, switches in RESUMES.items()}
    return whole.result(), {name: future.result() for name, future in resumes.items()}, integrity


def pretty(record: Record) -> str:
    """The record as it is printed and written."""
    return json.dumps(record, indent=2) + "\n"


@contextlib.contextmanager
def executor(jobs: int) -> Iterator[Executor]:
    """A pool of `jobs` processes, or this process alone where no other can be started."""
    with contextlib.ExitStack() as stack:
        pool: Executor = OneProcess()
        if jobs > 1:
            with contextlib.suppress(ImportError, NotImplementedError, OSError, RuntimeError):
                processes = stack.enter_context(ProcessPoolExecutor(min(jobs, 1 + len(RESUMES))))
                processes.submit(os.getpid).result()
                pool = processes
        yield pool


def compute(jobs: int, cfg: Config = CONFIG, stop_after: int = INTERRUPTED_AT) -> Files:
    """The text of each recorded file, computed in a temporary folder with `jobs` processes."""
    with tempfile.TemporaryDirectory() as folder, executor(jobs) as pool:
        whole, resumes, integrity = run_all(pool, cfg, stop_after, folder)
    best_file = whole.pop("best_file")
    curves = {"uninterrupted": whole["uninterrupted"]["dev_loss"],
              **{name: result["dev_loss"] for name, result in resumes.items()}}
    record = {"config": cfg, "interrupted_at_step": stop_after, **whole,
              "resume_runs": {name: result["row"] for name, result in resumes.items()},
              "integrity": integrity}
    return {TRACE: pretty(record), BEST: best_file,
            PICTURE: loss_curve(curves, stop_after, record["best_checkpoint"])}


# ---------------------------------------------------------------------------- print, write, check

def items(value: Any) -> Dict[Any, Any]:
    """The entries of an object or a list by key or index; of anything else, none."""
    return dict(enumerate(value)) if isinstance(value, list) else value if isinstance(value, dict) else {}


def first_difference(recorded: Any, computed: Any, place: str = "") -> Optional[str]:
    """A sentence that names the first value that differs, as recorded and as computed, or None."""
    if json.dumps(recorded, sort_keys=True) == json.dumps(computed, sort_keys=True):
        return None
    old, new = items(recorded), items(computed)
    if type(recorded) is type(computed):
        for key in [*old, *(key for key in new if key not in old)]:
            found = first_difference(old.get(key, "nothing"), new.get(key, "nothing"), f"{place}.{key}")
            if found:
                return found
    return f"{place.lstrip('.') or 'the record'}: recorded {recorded!r}, computed {computed!r}"


def write_files(files: Files, seconds: float, jobs: int) -> None:
    """Write the recorded files beside this one, and how long they took."""
    timing = {"seconds": round(seconds, 1), "jobs": jobs, "date": date.today().isoformat(),
              "python": f"{platform.python_implementation()} {platform.python_version()}",
              "machine": platform.machine(), "system": platform.system()}
    for name, text in {**files, TIME: pretty(timing)}.items():
        (HERE / name).write_bytes(text.encode("utf-8"))


def check_files(files: Files) -> Optional[str]:
    """A sentence on the first value of the recorded files that this machine does not reproduce."""
    for name, computed in files.items():
        recorded = (HERE / name).read_bytes().decode("utf-8").replace("\r\n", "\n")
        if recorded == computed:
            continue
        difference = None
        if name != PICTURE:
            try:
                difference = first_difference(json.loads(recorded), json.loads(computed))
            except ValueError as error:
                difference = f"not valid JSON: {error}"
        return f"{name}: {difference or 'another text of the same values'}"
    return None


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Compute the record; print it, write it or check it."""
    parser = argparse.ArgumentParser(
        description="Record an uninterrupted run, a resumed one and two broken resumes.")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", action="store_true", help="write the recorded files")
    action.add_argument("--check", action="store_true", help="compare with the recorded files")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N",
                        help="processes to use (default: %(default)s, the processors there are)")
    args = parser.parse_args(argv)
    if args.jobs < 1:
        parser.error("--jobs must be at least 1")
    return guarded("trace_checkpoints.py", lambda: record(args))


def record(args: argparse.Namespace) -> int:
    """Compute all files; check them, or print the record and write it if told to."""
    if machine_fault():
        raise ValueError(machine_fault())
    if sys.stderr.isatty():
        print("training five times: a minute or more", file=sys.stderr)
    began = time.perf_counter()
    files = compute(args.jobs)
    if args.check:
        problem = check_files(files)
        if problem:
            raise ValueError(problem)
        print(f"the record holds on this machine: {', '.join(files)} are what it computes")
        return 0
    print(files[TRACE], end="")
    if args.write:
        write_files(files, time.perf_counter() - began, args.jobs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
