"""The training loop: stories in, a trained model out; `checkpoint.run` makes the same loop resumable.

All that the next step depends on is in one place, `State`. So "what must a checkpoint hold?" is
answered by reading that definition: leave out one field, and a resumed run is another run.
`train` below keeps only the final weights, as a first training script does; it and
`checkpoint.run` take their steps from the same `train_step` and `evaluate`.

    python3 train.py        trains on corpus.txt with CONFIG, prints the losses and the checksum
"""
from __future__ import annotations

import argparse
import contextlib
import gc
import math
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from bpe import END, Tokenizer, distinct_stories, training_stories
from console import guarded
from model import Batch, Params, batch_gradient, forward, init_params, token_losses
from portable import exact_sum, machine_fault

Config = Dict[str, Any]
DevHistory = List[Dict[str, Any]]       # [{"step": 50, "dev_loss": 1.2345}, ...]

CONFIG: Config = {
    "d": 16,                    # width of the model
    "hidden": 64,               # width of its MLP
    "max_len": 64,              # longest sequence, in tokens
    "init_seed": 3,             # draws the first parameters
    "data_seed": 5,             # draws the order of the stories
    "batch": 8,                 # stories a step
    "steps": 600,
    "learning_rate": 0.01,
    "beta1": 0.9,               # Adam's decay of m
    "beta2": 0.999,             # and of v
    "adam_eps": 1e-08,
    "eval_every": 50,           # steps between two looks at the development stories
}
FLOAT_RANGES = {"learning_rate": (0.0, 1.7e308), "beta1": (0.0, 1.0), "beta2": (0.0, 1.0),
                "adam_eps": (1e-30, 1.0)}          # at 0, a gradient of zero would divide by zero
WIDEST = 512                    # d: rows of this width are still written out as one expression
DEV_CHUNK = 20                  # stories scored in one forward pass, to bound memory
HERE = Path(__file__).resolve().parent


# ---------------------------------------------------------------------------- configuration

def check_config(cfg: Config) -> None:
    """ValueError that names the first key of `cfg` that is missing, unknown, of a wrong type or range."""
    for key in sorted(set(cfg) ^ set(CONFIG)):
        raise ValueError(f"config: {key!r} is {'unknown' if key in cfg else 'missing'}")
    for key, value in cfg.items():
        if key in FLOAT_RANGES:
            low, high = FLOAT_RANGES[key]
            if type(value) not in (int, float) or not low <= value < high:
                raise ValueError(f"config: {key!r} is {value!r}; expected a number from {low} up, "
                                 f"below {high}")
        else:
            least = 0 if key.endswith("_seed") else 2 if key == "max_len" else 1
            most = WIDEST if key == "d" else math.inf
            if type(value) is not int or not least <= value <= most:
                up = f"to {most}" if key == "d" else "up"
                raise ValueError(f"config: {key!r} is {value!r}; expected a whole number from {least} {up}")


# ---------------------------------------------------------------------------- stories

def split_stories(text: str) -> Tuple[List[str], List[str], List[str]]:
    """(train, dev, test): of every seven distinct stories five, one and one, in the text's order.

    Dealt out rather than cut in three, so that a text sorted by anything gives three like parts.
    A story that stands twice counts once, so none is in two parts. Too few: ValueError.
    """
    stories = distinct_stories(text)
    if len(stories) < 7:
        raise ValueError(f"too few stories: {len(stories)} distinct; at least 7 are needed, one a line")
    return training_stories(text), stories[5::7], stories[6::7]


def encode_all(tok: Tokenizer, stories: Sequence[str], max_len: int) -> List[List[int]]:
    """Each story's ids with <end> after them, cut to `max_len` ids."""
    return [(tok.encode(story) + [END])[:max_len] for story in stories]


# ---------------------------------------------------------------------------- loss

def mean_loss(params: Params, sequences: Batch) -> float:
    """Mean loss in nats over every predicted token of `sequences`; ValueError if there is none.

    The sum is rounded once, whatever the order, so the chunks do not show in the result.
    """
    usable = [story for story in sequences if len(story) > 1]
    if not usable:
        raise ValueError("no token to score: every sequence has fewer than two ids")
    losses = []
    for start in range(0, len(usable), DEV_CHUNK):
        losses += token_losses(params, usable[start:start + DEV_CHUNK])
    return exact_sum(losses) / len(losses)


# ---------------------------------------------------------------------------- Adam

def power(base: float, exponent: int) -> float:
    """base ** exponent by repeated multiplication: `**` gives other last bits on other machines."""
    result = 1.0
    for _ in range(exponent):
        result *= base
    return result


def zeros_like(params: Params) -> Params:
    """A matrix of zeros for each parameter."""
    return {name: [[0.0] * len(row) for row in matrix] for name, matrix in params.items()}


class Adam:
    """Kingma and Ba, Adam, 2015, algorithm 1. `m`, `v` (shapes of params) and `t` are all its state."""

    def __init__(self, params: Params, learning_rate: float, beta1: float, beta2: float, eps: float):
        self.learning_rate, self.beta1, self.beta2, self.eps = learning_rate, beta1, beta2, eps
        self.m, self.v, self.t = zeros_like(params), zeros_like(params), 0

    def step(self, params: Params, grads: Params) -> None:
        """Change `params` in place by one step against `grads`."""
        self.t += 1
        unbias = (1.0 - power(self.beta1, self.t), 1.0 - power(self.beta2, self.t))
        for name, matrix in params.items():
            for row, g_row, m_row, v_row in zip(matrix, grads[name], self.m[name], self.v[name]):
                self._step_row(row, g_row, m_row, v_row, unbias)

    def _step_row(self, row: List[float], g_row: List[float], m_row: List[float], v_row: List[float],
                  unbias: Tuple[float, float]) -> None:
        """m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;  p -= rate * (m/u1) / (sqrt(v/u2) + eps)."""
        beta1, beta2, rate, eps = self.beta1, self.beta2, self.learning_rate, self.eps
        fresh1, fresh2, (unbias1, unbias2), sqrt = 1.0 - beta1, 1.0 - beta2, unbias, math.sqrt
        for i, g in enumerate(g_row):
            m_row[i] = m = beta1 * m_row[i] + fresh1 * g
            v_row[i] = v = beta2 * v_row[i] + fresh2 * g * g
            row[i] -= rate * (m / unbias1) / (sqrt(v / unbias2) + eps)


# ---------------------------------------------------------------------------- the state and a step

@dataclass
class State:
    """All that the next step depends on, and all that a finished run is asked for."""
    params: Params                      # the weights
    adam: Adam                          # its m, v and t
    rng: random.Random                  # shuffles the stories
    order: List[int]                    # the stories still to come in this epoch
    step: int = 0                       # steps taken
    history: List[float] = field(default_factory=list)      # training loss of each step, nats
    dev_history: DevHistory = field(default_factory=list)
    best: Optional[Dict[str, Any]] = None                   # {"step", "dev_loss", "params"}


def new_state(vocab_size: int, cfg: Config) -> State:
    """The state before step 1."""
    check_config(cfg)
    params = init_params(vocab_size, cfg["d"], cfg["hidden"], cfg["max_len"], cfg["init_seed"])
    adam = Adam(params, cfg["learning_rate"], cfg["beta1"], cfg["beta2"], cfg["adam_eps"])
    return State(params, adam, random.Random(cfg["data_seed"]), [])


def next_batch(state: State, stories: int, batch: int) -> List[int]:
    """Take the indices of the next `batch` stories of `stories` off `state.order`.

    When too few are left, a fresh shuffle is put behind them: an epoch's tail is never dropped.
    """
    while len(state.order) < batch:
        state.order += state.rng.sample(range(stories), stories)
    taken, state.order = state.order[:batch], state.order[batch:]
    return taken


def is_finite(params: Params) -> bool:
    """Whether every entry of every matrix is a finite number."""
    return all(all(map(math.isfinite, row)) for matrix in params.values() for row in matrix)


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep Python from looking for circles of objects: a step makes many lists, and none is in a circle.

    What is in no circle is freed without it. It is off for the whole process, so never for long;
    a step is 2 to 5 % faster on CPython.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def train_step(state: State, sequences: Batch, cfg: Config) -> None:
    """One step on the next batch. FloatingPointError if it diverged; the state is of no use then."""
    taken = next_batch(state, len(sequences), cfg["batch"])
    with no_garbage_collection():
        loss, grads = batch_gradient(state.params, [sequences[i] for i in taken])
    if math.isfinite(loss) and is_finite(grads):
        state.adam.step(state.params, grads)
        if is_finite(state.params) and is_finite(state.adam.v):
            state.step += 1
            state.history.append(loss)
            return
    raise FloatingPointError(
        f"step {state.step + 1}: the loss or its gradient is not finite (loss {loss}); "
        "a lower learning rate usually helps")


def copy_params(params: Params) -> Params:
    """A copy that later steps do not change."""
    return {name: [row[:] for row in matrix] for name, matrix in params.items()}


def is_due(state: State, cfg: Config) -> bool:
    """Whether the development loss is scored after this step."""
    return state.step % int(cfg["eval_every"]) == 0 or state.step == cfg["steps"]


def evaluate(state: State, dev: Batch) -> bool:
    """Score the development stories, note it, and keep a copy of the weights if they are the best yet.

    True if they are. Draws no random number and changes no weight, so how often it is called
    cannot show in the trained parameters. FloatingPointError if the loss is not finite.
    """
    dev_loss = round(mean_loss(state.params, dev), 4)
    if not math.isfinite(dev_loss):
        raise FloatingPointError(f"step {state.step}: the development loss is not finite ({dev_loss}); "
                                 "a lower learning rate usually helps")
    state.dev_history.append({"step": state.step, "dev_loss": dev_loss})
    if state.best is not None and not dev_loss < state.best["dev_loss"]:
        return False
    state.best = {"step": state.step, "dev_loss": dev_loss, "params": copy_params(state.params)}
    return True


def train(tok: Tokenizer, text: str, cfg: Config) -> Tuple[Params, List[float], DevHistory]:
    """Train from the first step to the last: (final params, loss of each step, development losses)."""
    train_stories, dev_stories, _ = split_stories(text)
    state = new_state(len(tok.vocab), cfg)
    sequences = encode_all(tok, train_stories, cfg["max_len"])
    dev = encode_all(tok, dev_stories, cfg["max_len"])
    while state.step < cfg["steps"]:
        train_step(state, sequences, cfg)
        if is_due(state, cfg):
            evaluate(state, dev)
    return state.params, state.history, state.dev_history


# ---------------------------------------------------------------------------- scores

def checksum(params: Params) -> float:
    """The sum of the squares of every value, rounded to 9 decimals."""
    return round(exact_sum([x * x for matrix in params.values() for row in matrix for x in row]), 9)


def recall_question(tok: Tokenizer, story: str, max_len: int) -> Tuple[List[int], int]:
    """(ids up to and with the color that ends the story, number of ids that are the color).

    The color is the last word, asked for again; ([], 0) if the story does not name it earlier.
    """
    question, _, answer = story.rstrip(".!?").rpartition(" ")
    if answer not in question.replace(".", " ").replace(",", " ").split():
        return [], 0
    asked = tok.encode(question)
    ids = tok.encode(f"{question} {answer}")
    return ids[-max_len:], len(ids) - len(asked)


def most_likely(row: Sequence[float]) -> int:
    """The index of the largest entry, the lowest of equals."""
    return max(range(len(row)), key=row.__getitem__)


def color_recall(params: Params, tok: Tokenizer, stories: Sequence[str]) -> Dict[str, int]:
    """{"correct", "total"}: in how many stories the likeliest last word is the color named early."""
    correct = total = 0
    for story in stories:
        ids, asked = recall_question(tok, story, len(params["wpe"]))
        if asked:
            logits = forward(params, [ids[:-1]]).logits[-asked:]
            correct += [most_likely(row) for row in logits] == ids[-asked:]
            total += 1
    return {"correct": correct, "total": total}


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Train on the lab's own corpus and print what came of it."""
    parser = argparse.ArgumentParser(description="Train on corpus.txt; keep only the final weights.")
    parser.add_argument("--steps", type=int, default=CONFIG["steps"], help="default: %(default)s")
    cfg = {**CONFIG, "steps": parser.parse_args(argv).steps}
    return guarded("train.py", lambda: train_and_print(cfg))


def train_and_print(cfg: Config) -> int:
    """The run on the lab's corpus: losses at each evaluation, and the checksum."""
    if machine_fault():
        raise ValueError(machine_fault())
    text = (HERE / "corpus.txt").read_text(encoding="utf-8")
    params, history, dev_history = train(Tokenizer.load(HERE / "tokenizer.json"), text, cfg)
    for entry in dev_history:
        loss = history[entry["step"] - 1]
        print(f"step {entry['step']:4}  loss {loss:.4f}  dev loss {entry['dev_loss']:.4f}")
    print(f"checksum {checksum(params)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
