"""What a checkpoint costs: save and load at three sizes, their parts, and how much of a run is saving."""
from __future__ import annotations

import itertools
import json
import os
import random
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple
from unittest import mock

import checkpoint
import checkpoint_file
import model
import trace_checkpoints as record
import train
from checkpoint_file import canonical, serialise, sha256
from measure import Row, Step, Tables, Timed, in_turns, ratio_row, sized_step, spread, time_rows
from train import CONFIG

HERE = Path(__file__).resolve().parent
SHAPES = ((128, 16, 64), (384, 64, 256), (3072, 128, 512))      # vocabulary, d, hidden
PARTS = ((checkpoint_file, "canonical", "serialising"), (checkpoint_file, "sha256", "hashing"),
         (os, "open", "writing"), (os, "write", "writing"), (os, "close", "writing"),
         (os, "replace", "writing"), (os, "fsync", "syncing"), (checkpoint_file, "parse", "parsing"))


def split(action: Step, spent: List[Row]) -> Step:
    """`action` as a contestant that appends to `spent` the seconds of each of its parts."""
    def timed(function: Callable[..., Any], part: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            result = function(*args, **kwargs)
            spent[-1][part] += time.perf_counter() - began
            return result
        return call

    def step() -> Timed:
        spent.append({part: 0.0 for _, _, part in PARTS})
        with ExitStack() as stack:
            for owner, name, part in PARTS:
                stack.enter_context(mock.patch.object(owner, name, timed(getattr(owner, name), part)))
            began = time.perf_counter()
            result = action()           # kept: to free a loaded body is not part of loading it
            whole = time.perf_counter() - began
            del result
        spent[-1]["rest"] = whole - sum(spent[-1].values())
        return Timed(whole)
    return step


def sized_body(vocabulary: int, d: int, hidden: int) -> Row:
    """The large fields of last.json after 600 steps, of random numbers."""
    cfg = {**CONFIG, "d": d, "hidden": hidden}
    params, m, v, best = (model.init_params(vocabulary, d, hidden, cfg["max_len"], seed) for seed in range(4))
    return {"step": 600, "config": cfg, "params": params, "adam": {"m": m, "v": v, "t": 600},
            "rng_state": random.Random(0).getstate(), "history": [1.0 / n for n in range(1, 601)],
            "best": {"step": 400, "dev_loss": 1.0, "params": best}}


def serialise_twice(body: Row) -> bytes:
    """A checkpoint's bytes made as one would first: a text for the digest, and one with it."""
    whole = {**body, "format_version": 1}
    return canonical({**whole, "sha256": sha256(canonical(whole))}).encode()


def load_plainly(path: Path) -> Tuple[Any, str]:
    """The least that can be done: a body, and a text to take its digest of."""
    body = json.loads(path.read_bytes())
    return body, json.dumps(body)


def one_size(path: Path, shape: Tuple[int, int, int], rounds: int) -> Tuple[List[Row], Row, List[Row]]:
    """(what save and load cost and where it goes; a save in steps; ratios to what they should cost)."""
    vocabulary, d, hidden = shape
    body = sized_body(*shape)
    count = sum(len(matrix) * len(matrix[0]) for matrix in body["params"].values())
    parts: Dict[str, List[Row]] = {"save": [], "load": []}
    seconds = in_turns({"save": split(lambda: checkpoint.save(path, body), parts["save"]),
                        "load": split(lambda: checkpoint.load(path, body["config"]), parts["load"]),
                        "once": lambda: serialise(body), "twice": lambda: serialise_twice(body),
                        "least": lambda: load_plainly(path),
                        "step": sized_step(d=d, vocabulary=vocabulary, hidden=hidden)}, rounds)
    in_steps = {"parameters": count, "step_ms": spread([1e3 * s for s in seconds["step"]])["median"],
                "megabytes": round(path.stat().st_size / 1e6, 2),
                **spread([a / b for a, b in zip(seconds["save"], seconds["step"])], "_save_in_steps")}
    rows = [{"what": name, "parameters": count, **spread([1e3 * s for s in seconds[name]], "_ms"),
             **{f"{part}_ms": spread([1e3 * row[part] for row in spent[-rounds:]])["median"]
                for part in spent[0]}}
            for name, spent in parts.items()]
    return rows, in_steps, [ratio_row(f"{count}: serialising / serialising twice", seconds["once"],
                                      seconds["twice"], "at most 0.6"),
                            ratio_row(f"{count}: load / json.loads and one json.dumps", seconds["load"],
                                      seconds["least"], "at most 1.5")]


def saving_share(folder: str, rounds: int) -> Tuple[List[Row], Row]:
    """(what a run's parts cost, the share of a whole run's time that goes into saving)."""
    tok, text = record.read_inputs()
    run, state = checkpoint.Run(tok, text, CONFIG, folder, 0), train.new_state(len(tok.vocab), CONFIG)
    train.train_step(state, run.sequences, CONFIG)
    train.evaluate(state, run.dev)
    state.history *= CONFIG["steps"]
    best: Row = state.best or {}

    def save_best() -> None:
        best["step"] += 1               # a file that says the same already would be left alone
        run.save_best(state)

    seconds = in_turns({"a step": lambda: train.train_step(state, run.sequences, CONFIG),
                        "an evaluation": lambda: train.mean_loss(state.params, run.dev),
                        "saving last.json": lambda: run.save_last(state),
                        "saving best.json": save_best}, rounds)
    trace = json.loads((HERE / record.TRACE).read_text(encoding="utf-8"))["uninterrupted"]["dev_loss"]
    looks, bests = len(trace), len(set(itertools.accumulate((look["dev_loss"] for look in trace), min)))
    step, look, last, better = seconds.values()
    saves = [looks * a + bests * b for a, b in zip(last, better)]
    whole = [CONFIG["steps"] * s + looks * e + all_saves for s, e, all_saves in zip(step, look, saves)]
    return time_rows(seconds), ratio_row(f"saving {looks} times and the best {bests} times / a whole run",
                                         saves, whole, "at most 0.01")


def checkpoints(quick: bool) -> Tables:
    """What save and load cost, and what a run pays for them; in a folder on the lab's own disk."""
    costs, in_steps, ratios = [], [], []
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=HERE) as folder:
        for shape, rounds in zip(SHAPES, (5, 2) if quick else (15, 9, 3)):
            rows, row, goals = one_size(Path(folder) / "last.json", shape, rounds)
            costs += rows
            in_steps.append(row)
            ratios += goals
        parts, share = saving_share(folder, 3 if quick else 15)
    return {"costs": costs, "a save in training steps": in_steps, "a run's parts": parts,
            "ratios": [*ratios, share]}
