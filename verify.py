"""What a checkpoint must hold, field by field, before anything is done with it.

A digest tells that a file is as it was written. It does not tell that what was written can be
continued: a file from another version, or made by hand, may have a valid digest and one row too
few. So every field is looked at, its type, its range and its shape, and refused by name.
"""
from __future__ import annotations

import math
from typing import Any, Dict, Sequence, Tuple

from checkpoint_file import Body, read
from checkpoint_file import CheckpointError as CheckpointError
from model import param_shapes
from train import Config, DevHistory, check_config

Shapes = Dict[str, Tuple[int, int]]


class Checks:
    """Refuses the first field of a body that is not what a resume needs, naming file and field."""

    def __init__(self, name: str):
        self.name = name

    def that(self, holds: bool, field: str, expected: str) -> None:
        if not holds:
            raise CheckpointError(f"checkpoint {self.name}: field {field!r} is not {expected}")

    def fields(self, value: Any, field: str, names: Sequence[str]) -> None:
        self.that(isinstance(value, dict), field, "a JSON object")
        odd = sorted({*value} ^ {*names})
        if odd:
            place = odd[0] if field == "checkpoint" else f"{field}.{odd[0]}"
            problem = "unknown" if odd[0] in value else "missing"
            raise CheckpointError(f"checkpoint {self.name}: field {place!r} is {problem}")

    def whole(self, value: Any, field: str, low: int, high: int) -> None:
        self.that(type(value) is int and low <= value <= high, field,
                  f"the whole number {low}" if low == high else f"a whole number from {low} to {high}")

    def number(self, value: Any, field: str) -> None:
        self.that(type(value) is float and math.isfinite(value), field, "a finite float")

    def floats(self, value: Any, field: str, length: int, low: float = -math.inf) -> None:
        self.that(isinstance(value, list) and len(value) == length
                  and all(type(x) is float and math.isfinite(x) and x >= low for x in value),
                  field, f"a list of {length} finite floats" + (f" from {low} up" if low > -math.inf else ""))

    def params(self, value: Any, field: str, shapes: Shapes, low: float = -math.inf) -> None:
        self.fields(value, field, list(shapes))
        for name, (rows, columns) in shapes.items():
            place = f"{field}.{name}"
            self.that(isinstance(value[name], list) and len(value[name]) == rows, place,
                      f"a list of {rows} rows")
            for i, row in enumerate(value[name]):
                self.floats(row, f"{place}[{i}]", columns, low)

    def rng_state(self, value: Any) -> None:
        self.that(isinstance(value, list) and len(value) == 3 and type(value[0]) is int and value[0] == 3
                  and isinstance(value[1], list) and len(value[1]) == 625
                  and all(type(word) is int and 0 <= word < 1 << 32 for word in value[1])
                  and value[1][-1] <= 624,
                  "rng_state", "a state of random.Random: [3, 625 words, spare gauss]")
        self.that(value[2] is None or (type(value[2]) is float and math.isfinite(value[2])),
                  "rng_state[2]", "null or a finite float")

    def order(self, value: Any, left: int, stories: int) -> None:
        """The stories that an epoch has left."""
        self.that(isinstance(value, list) and len(value) == left == len({*map(repr, value)})
                  and all(type(i) is int and 0 <= i < stories for i in value),
                  "order", f"a list of {left} different story indices below {stories}")

    def dev_history(self, value: Any, step: int, cfg: Config) -> None:
        """An entry for each evaluation up to `step`: which those are follows from the config."""
        steps = [*range(cfg["eval_every"], step + 1, cfg["eval_every"])]
        if step == cfg["steps"] and steps[-1:] != [step]:
            steps.append(step)
        self.that(isinstance(value, list) and len(value) == len(steps), "dev_history",
                  f"a list of {len(steps)} evaluations")
        for i, (entry, due) in enumerate(zip(value, steps)):
            place = f"dev_history[{i}]"
            self.fields(entry, place, ["step", "dev_loss"])
            self.whole(entry["step"], f"{place}.step", due, due)
            self.number(entry["dev_loss"], f"{place}.dev_loss")

    def best(self, value: Any, dev_history: DevHistory, shapes: Shapes) -> None:
        """The earliest of the lowest development losses, with the weights that had it."""
        if not dev_history:
            self.that(value is None, "best", "null before the first evaluation")
            return
        self.fields(value, "best", ["step", "dev_loss", "params"])
        lowest = min(dev_history, key=lambda entry: float(entry["dev_loss"]))
        for key in ("step", "dev_loss"):
            self.that(type(value[key]) is type(lowest[key]) and value[key] == lowest[key], f"best.{key}",
                      f"{lowest[key]}, as the lowest development loss has it")
        self.params(value["params"], "best.params", shapes)


def shapes_of(cfg: Config, vocab_size: int) -> Shapes:
    """Name -> (rows, columns) of every parameter that a run with this config has."""
    return param_shapes(vocab_size, cfg["d"], cfg["hidden"], cfg["max_len"])


def check_params(params: Any, cfg: Config, vocab_size: int, name: str) -> None:
    """CheckpointError naming file and field unless `params` are finite matrices of the right shapes."""
    Checks(name).params(params, "params", shapes_of(cfg, vocab_size))


def check_body(body: Body, cfg: Config, vocab_size: int, stories: int, name: str, exact: bool = True) -> None:
    """CheckpointError naming file and field unless `body` holds all that the next step depends on.

    Adam's t and the number of stories left in the epoch follow from the step; without `exact`, for
    who only wants to look at a run whose resume forgot them, they need not.
    """
    checks, shapes = Checks(name), shapes_of(cfg, vocab_size)
    checks.fields(body, "checkpoint", ["step", "config", "params", "training_inputs", "adam", "rng_state",
                                       "order", "history", "dev_history", "best"])
    checks.whole(body["step"], "step", 1, cfg["steps"])
    step = body["step"]
    checks.params(body["params"], "params", shapes)
    checks.fields(body["adam"], "adam", ["m", "v", "t"])
    checks.params(body["adam"]["m"], "adam.m", shapes)
    checks.params(body["adam"]["v"], "adam.v", shapes, low=0.0)
    checks.whole(body["adam"]["t"], "adam.t", step if exact else 0, step)
    checks.rng_state(body["rng_state"])
    left = -cfg["batch"] * step % stories
    if not exact and isinstance(body["order"], list):
        left = len(body["order"])
    checks.order(body["order"], left, stories)
    checks.floats(body["history"], "history", step)
    checks.dev_history(body["dev_history"], step, cfg)
    checks.best(body["best"], body["dev_history"], shapes)


def is_best(body: Body) -> bool:
    """Whether a body is a best.json's: weights and their score, not a state to continue from."""
    return "dev_loss" in body and "adam" not in body


def check_alone(body: Body, name: str) -> None:
    """CheckpointError unless the body is whole, as far as it tells without its corpus and tokenizer."""
    try:
        check_config(body["config"])
    except ValueError as error:
        raise CheckpointError(f"checkpoint {name}: {error}") from error
    cfg, step, order, params = body["config"], body.get("step"), body.get("order"), body.get("params")
    wte = params.get("wte") if isinstance(params, dict) else None
    vocab_size = max(2, len(wte)) if isinstance(wte, list) else 2
    if is_best(body):
        checks = Checks(name)
        checks.fields(body, "checkpoint", ["step", "dev_loss", "config", "params", "training_inputs"])
        checks.whole(step, "step", 1, cfg["steps"])
        checks.number(body["dev_loss"], "dev_loss")
        return check_params(params, cfg, vocab_size, name)
    # How many stories there are is not in the file. The most that `order` allows refuses none wrongly.
    stories = cfg["batch"] * step + len(order) if type(step) is int and isinstance(order, list) else 1
    return check_body(body, cfg, vocab_size, stories, name, exact=False)


def read_checkpoint(path: str) -> Body:
    """A checkpoint of any config and inputs, known to be whole. FileNotFoundError, CheckpointError."""
    body = read(path)
    check_alone(body, path)
    return body
