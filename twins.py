"""Twins of model.py, to measure the lab beside: naive Python, scalar autograd, NumPy.

A twin computes the same loss and gradients, up to the last bits; `check_twin` shows it. None is
part of a recorded run. The first two are model.py itself with other functions under it, so what
they cost more is the price of those functions alone.
"""
from __future__ import annotations

import itertools
import math
import time
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple
from unittest import mock

import model
from measure import Step
from model import Batch, Params
from train import CONFIG

try:
    import numpy as np
except ImportError:
    np = None  # type: ignore[assignment]

Gradient = Callable[[Params, Batch], Tuple[float, Params]]


# ---------------------------------------------------------------------------- naive

def plain_exps(xs: Sequence[float], shift: float) -> List[float]:
    return [math.exp(x - shift) for x in xs]


def plain_rows(add: Callable[..., Any] = sum) -> Dict[str, Any]:
    """The row operations as one would first write them; `add` sums numbers."""
    def pair_dots(xs: Any, ws: Any) -> Any:
        return [add(a * w for a, w in zip(x, row)) for x, row in zip(xs, ws)]

    def dots(xs: Any, rows: Any) -> Any:
        return [[add(a * w for a, w in zip(x, row)) for row in rows] for x in xs]

    def dots_where(xs: Any, rows: Any, masks: Any) -> Any:
        return [[product if on else 0.0 for product, on in zip(products, mask)]
                for products, mask in zip(dots(xs, rows), masks)]

    def mix(coefficients: Any, rows: Any) -> Any:
        return [[add(c * row[i] for c, row in zip(cs, rows)) for i in range(len(rows[0]))]
                for cs in coefficients]

    def outer_sum(columns: Any, rows: Any) -> Any:
        return mix(model.transpose(columns), rows)

    return {"dots": dots, "dots_where": dots_where, "pair_dots": pair_dots, "mix": mix,
            "outer_sum": outer_sum}


def naive_gradient(params: Params, batch: Batch) -> Tuple[float, Params]:
    """The very same model, with the row operations, exp and log that one would write first."""
    with mock.patch.multiple(model, **plain_rows(), exps=plain_exps, log=math.log):
        return model.batch_gradient(params, batch)


# ---------------------------------------------------------------------------- scalar autograd

class Value:
    """A number that knows what it was made of, so that the chain rule can be walked back to it."""

    __slots__ = ("children", "data", "grad", "local")

    def __init__(self, data: float, children: Tuple[Value, ...] = (), local: Tuple[float, ...] = ()):
        self.data, self.grad, self.children, self.local = data, 0.0, children, local

    def __add__(self, other: Any) -> Value:
        other = lift(other)
        return Value(self.data + other.data, (self, other), (1.0, 1.0))

    def __sub__(self, other: Any) -> Value:
        other = lift(other)
        return Value(self.data - other.data, (self, other), (1.0, -1.0))

    def __mul__(self, other: Any) -> Value:
        other = lift(other)
        return Value(self.data * other.data, (self, other), (other.data, self.data))

    def __truediv__(self, other: Any) -> Value:
        other = lift(other)
        quotient = self.data / other.data
        return Value(quotient, (self, other), (1.0 / other.data, -quotient / other.data))

    def __rtruediv__(self, other: float) -> Value:
        return lift(other) / self

    def __gt__(self, other: Any) -> bool:
        return bool(self.data > lift(other).data)

    __radd__, __rmul__ = __add__, __mul__

    def backward(self) -> None:
        """Put d self / d x into x.grad for every x below. With a stack: a recursion would be too deep."""
        order, seen, stack = [], set(), [(self, False)]
        while stack:
            node, children_done = stack.pop()
            if children_done:
                order.append(node)
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                stack.extend((child, False) for child in node.children)
        self.grad = 1.0
        for node in reversed(order):
            for child, local in zip(node.children, node.local):
                child.grad += local * node.grad


def lift(x: Any) -> Value:
    return x if isinstance(x, Value) else Value(x)


def differentiable(function: Callable[[float], float], slope: Callable[[float, float], float]) -> Any:
    """`function` for Values too; `slope(x, function(x))` is its derivative."""
    def apply(x: Any) -> Any:
        if not isinstance(x, Value):
            return function(x)
        y = function(x.data)
        return Value(y, (x,), (slope(x.data, y),))
    return apply


VALUE_EXP = differentiable(math.exp, lambda x, y: y)
VALUE_MATH = {"exps": lambda xs, shift: [VALUE_EXP(x - shift) for x in xs],
              "log": differentiable(math.log, lambda x, y: 1.0 / x),
              "math": SimpleNamespace(sqrt=differentiable(math.sqrt, lambda x, y: 0.5 / y)), "exact_sum": sum}


def value_gradient(params: Params, story: Sequence[int]) -> Tuple[float, Params, float]:
    """(loss, gradients, seconds that these took): model.py's own forward pass, its floats made Values."""
    w: Any = {name: [[Value(x) for x in row] for row in matrix] for name, matrix in params.items()}
    began = time.perf_counter()
    with mock.patch.multiple(model, **plain_rows(), **VALUE_MATH):
        losses: Any = model.token_losses(w, [story])
    mean = sum(losses) / len(losses)
    mean.backward()
    loss = mean.data
    del losses, mean                    # freeing some hundred thousand objects is part of the price
    seconds = time.perf_counter() - began
    return loss, {name: [[x.grad for x in row] for row in matrix] for name, matrix in w.items()}, seconds


# ---------------------------------------------------------------------------- NumPy

def numpy_version() -> Optional[str]:
    """None where NumPy is not installed."""
    return str(np.__version__) if np else None


def np_params(params: Params) -> Dict[str, Any]:
    return {name: np.array(matrix) for name, matrix in params.items()}


def np_norm(x: Any) -> Tuple[Any, Any]:
    scale = 1.0 / np.sqrt((x * x).mean(-1, keepdims=True) + model.NORM_EPS)
    return x * scale, scale


def np_norm_backward(dy: Any, y: Any, scale: Any) -> Any:
    return scale * (dy - y * (dy * y).mean(-1, keepdims=True))


def np_softmax(scores: Any) -> Any:
    exps = np.exp(scores - scores.max(-1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True)


def np_over_tokens(dy: Any, x: Any) -> Any:
    return dy.reshape(-1, dy.shape[-1]).T @ x.reshape(-1, x.shape[-1])


def np_gradient(w: Dict[str, Any], batch: Batch) -> Tuple[float, Dict[str, Any]]:
    """The ten steps of model.py and back, on arrays (stories, T, d) padded to the longest story."""
    lengths = np.array([len(story) - 1 for story in batch])
    places = np.arange(lengths.max())
    padded = np.array([[*story, *[0] * (len(places) + 1 - len(story))] for story in batch])
    inputs, targets, mask = padded[:, :-1], padded[:, 1:, None], (places < lengths[:, None])[..., None]
    x = w["wte"][inputs] + w["wpe"][places]                                     # 1
    a, a_scale = np_norm(x)                                                     # 2
    q, k, v = (a @ w[name].T for name in ("attn_wq", "attn_wk", "attn_wv"))     # 3
    scale, past = 1.0 / math.sqrt(q.shape[-1]), places <= places[:, None]
    probs = np_softmax(np.where(past, q @ k.swapaxes(1, 2) * scale, -np.inf))   # 4
    out = probs @ v
    y = x + out @ w["attn_wo"].T                                                # 5
    b, b_scale = np_norm(y)                                                     # 6
    h = np.maximum(b @ w["mlp_fc"].T, 0.0)                                      # 7
    c, c_scale = np_norm(y + h @ w["mlp_proj"])                                 # 8, 9
    p = np_softmax(c @ w["lm_head"].T)                                          # 10
    likely = np.take_along_axis(p, targets, -1)
    np.put_along_axis(p, targets, likely - 1.0, -1)
    dlogits = p * (mask / lengths.sum())
    grads = {name: np.zeros_like(matrix) for name, matrix in w.items()}
    grads["lm_head"] = np_over_tokens(dlogits, c)                               # 10
    dz = np_norm_backward(dlogits @ w["lm_head"], c, c_scale)                   # 9
    grads["mlp_proj"] = np_over_tokens(h, dz)                                   # 8
    du = dz @ w["mlp_proj"].T * (h > 0.0)                                       # 7
    grads["mlp_fc"] = np_over_tokens(du, b)
    dy = dz + np_norm_backward(du @ w["mlp_fc"], b, b_scale)                    # 6
    grads["attn_wo"] = np_over_tokens(dy, out)                                  # 5
    dout = dy @ w["attn_wo"]
    dprobs, da = dout @ v.swapaxes(1, 2), np.zeros_like(a)                      # 4
    ds = probs * (dprobs - (probs * dprobs).sum(-1, keepdims=True)) * scale
    for name, gradient in (("attn_wq", ds @ k), ("attn_wk", ds.swapaxes(1, 2) @ q),
                           ("attn_wv", probs.swapaxes(1, 2) @ dout)):           # 3
        grads[name] = np_over_tokens(gradient, a)
        da += gradient @ w[name]
    dx = dy + np_norm_backward(da, a, a_scale)                                  # 2
    np.add.at(grads["wte"], inputs, dx)                                         # 1
    grads["wpe"][places] = dx.sum(0)
    return float(-np.log(likely[mask]).mean()), grads


def np_stepper(w: Dict[str, Any], batches: Sequence[Batch]) -> Step:
    m, v = ({name: np.zeros_like(matrix) for name, matrix in w.items()} for _ in "mv")
    upcoming = enumerate(itertools.cycle(batches), 1)
    beta1, beta2, rate, eps = (CONFIG[key] for key in ("beta1", "beta2", "learning_rate", "adam_eps"))

    def step() -> None:
        t, batch = next(upcoming)
        for name, g in np_gradient(w, batch)[1].items():
            m[name] = beta1 * m[name] + (1.0 - beta1) * g
            v[name] = beta2 * v[name] + (1.0 - beta2) * g * g
            w[name] -= rate * (m[name] / (1.0 - beta1 ** t)) / (np.sqrt(v[name] / (1.0 - beta2 ** t)) + eps)
    return step


# ---------------------------------------------------------------------------- are they the same model?

def check_twin(name: str, twin: Tuple[float, Dict[str, Any]], lab: Tuple[float, Params]) -> None:
    """ValueError unless loss and gradients agree to 1e-9, a gradient relative to its largest entry."""
    pairs = {"loss": ([[twin[0]]], [[lab[0]]]), **{key: (twin[1][key], lab[1][key]) for key in lab[1]}}
    for key, (theirs, ours) in pairs.items():
        if [len(row) for row in theirs] != [len(row) for row in ours]:
            raise ValueError(f"the twin {name!r} is another model: {key} has another shape; correct the twin")
        largest = max(abs(x) for row in ours for x in row)
        differences = [abs(a - b) for row, other in zip(theirs, ours) for a, b in zip(row, other)]
        if not all(difference <= 1e-9 * largest for difference in differences):     # NaN fails too
            raise ValueError(f"the twin {name!r} is another model: {key} differs by {max(differences):.3g}, "
                             f"its largest entry is {largest:.3g}; correct the twin")
