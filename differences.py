"""In what two checkpoints differ: the first step at which they part, and each field, with by how much."""
from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from checkpoint_file import Body


def parting(a: Sequence[float], b: Sequence[float]) -> str:
    """The first step at which two training histories differ."""
    for step, (loss_a, loss_b) in enumerate(zip(a, b), 1):
        if loss_a != loss_b:
            return f"the histories part at step {step}: loss {loss_a!r} and {loss_b!r}"
    return f"the histories agree for the {min(len(a), len(b))} steps that both have"


def entries(name: str, value: list[Any]) -> dict[str, float]:
    """The numbers in a matrix or a history, by their place."""
    if name == "history":
        return {f"step {step}": loss for step, loss in enumerate(value, 1)}
    if name == "dev_history":
        return {f"step {entry['step']}": entry["dev_loss"] for entry in value}
    return {f"[{i}][{j}]": x for i, row in enumerate(value) for j, x in enumerate(row)}


def difference(name: str, a: Any, b: Any) -> str:
    """In what way, and by how much at most, the two unequal values of a field differ."""
    if a is None or b is None:
        return "is null in one and a value in the other"
    if not (isinstance(a, list) and isinstance(b, list)) or name.startswith("training_inputs"):
        return f"is {json.dumps(a)} and {json.dumps(b)}"
    parts = [f"has {len(a)} and {len(b)} entries"] if len(a) != len(b) else []
    if name not in ("rng_state", "order"):
        entries_a, entries_b = entries(name, a), entries(name, b)
        gaps = {place: abs(x - entries_b[place]) for place, x in entries_a.items() if place in entries_b}
        place = max(gaps, key=gaps.__getitem__, default="")
        if place and gaps[place]:
            parts.append(f"differs by up to {gaps[place]:.3g}, at {place}")
    return ", ".join(parts) or "differs"


def differences(a: Body, b: Body, names: tuple[str, str], prefix: str = "") -> Iterator[str]:
    """A line on each field in which two bodies differ."""
    for key in [*a, *(key for key in b if key not in a)]:
        if key not in a or key not in b:
            yield f"{prefix}{key} is only in {names[key in b]}"
        elif isinstance(a[key], dict) and isinstance(b[key], dict):
            yield from differences(a[key], b[key], names, f"{prefix}{key}.")
        elif json.dumps(a[key]) != json.dumps(b[key]):      # unlike !=, tells 0.0 from -0.0
            yield f"{prefix}{key} {difference(prefix + key, a[key], b[key])}"
