"""One pre-normalised transformer block: forward, loss, and the gradient derived by hand.

    letter  value  meaning
    N         209  tokens of a batch, all its stories in one list: one product serves them all
    T          26  tokens of one story (N is the sum of the batch's T)
    V         128  vocabulary size
    d          16  width of every row that `dots` and `mix` work on
    H          64  width of the MLP (`hidden`)
    M              rows of a second matrix, as many as the place needs

The forward pass has ten numbered steps; the backward pass undoes them from 10 to 1, and each
layer's backward stands under its forward. A gradient is named d + the name of its variable.
Every matrix is stored so that the operations run along rows of width d:

    wte (V, d)   wpe (max_len, d)   attn_wq, attn_wk, attn_wv, attn_wo (d, d)
    mlp_fc (H, d)   mlp_proj (H, d)   lm_head (V, d)

Not here: several heads, several blocks, biases, dropout. One head and one block are enough to
make a run whose resume can go wrong in every way.
"""
from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

from portable import Matrix, Vector, dots, dots_where, exact_sum, exps, log, mix, outer_sum, pair_dots

Params = Dict[str, Matrix]
Batch = Sequence[Sequence[int]]
NORM_EPS = 1e-5


# ---------------------------------------------------------------------------- parameters

def param_shapes(vocab_size: int, d: int, hidden: int, max_len: int) -> Dict[str, Tuple[int, int]]:
    """Name -> (rows, columns) of every parameter: the one place where they are listed."""
    return {
        "wte": (vocab_size, d), "wpe": (max_len, d),
        "attn_wq": (d, d), "attn_wk": (d, d), "attn_wv": (d, d), "attn_wo": (d, d),
        "mlp_fc": (hidden, d), "mlp_proj": (hidden, d),
        "lm_head": (vocab_size, d),
    }


def init_params(vocab_size: int, d: int, hidden: int, max_len: int, seed: int) -> Params:
    """Matrices drawn in the order of `param_shapes` from `random.Random(seed).uniform` alone.

    Each entry lies within reach / sqrt(d). Tokens start large and positions small: a network that
    first sees what a token is, and only later where it stands, learns to copy a word soonest.
    """
    rng = random.Random(seed)
    reach = {"wte": 3.0, "wpe": 0.3, "lm_head": 1.0}
    params = {}
    for name, (rows, columns) in param_shapes(vocab_size, d, hidden, max_len).items():
        bound = reach.get(name, 0.5) / math.sqrt(d)
        params[name] = [[rng.uniform(-bound, bound) for _ in range(columns)] for _ in range(rows)]
    return params


# ---------------------------------------------------------------------------- small helpers

def transpose(matrix: Matrix) -> Matrix:
    """(N, M) -> (M, N), as lists: PyPy computes seven times as fast with a list of floats as with a tuple."""
    return [list(column) for column in zip(*matrix)]


def add(a: Matrix, b: Matrix) -> Matrix:
    """a (N, d) + b (N, d)."""
    return [[p + q for p, q in zip(row, other)] for row, other in zip(a, b)]


def softmax(scores: Sequence[float]) -> Tuple[Vector, float, float]:
    """scores (M,) -> (probabilities (M,), largest score, sum of exp(score - largest)).

    The largest is subtracted for safety only: exp of a large score would overflow.
    """
    largest = max(scores)
    powers = exps(scores, largest)
    total = exact_sum(powers)
    return [power / total for power in powers], largest, total


# ---------------------------------------------------------------------------- layers

def embed(params: Params, inputs: Batch) -> Matrix:
    """inputs, stories of T ids -> (N, d): each token's row of wte plus its position's of wpe."""
    wte, wpe = params["wte"], params["wpe"]
    return [[t + p for t, p in zip(wte[token], wpe[position])]
            for story in inputs for position, token in enumerate(story)]


def embed_backward(dx: Matrix, params: Params, inputs: Batch) -> Tuple[Matrix, Matrix]:
    """dx (N, d) -> (dwte, dwpe): each row collects dx of every token that used it."""
    dwte = [[0.0] * len(row) for row in params["wte"]]
    dwpe = [[0.0] * len(row) for row in params["wpe"]]
    places = [(position, token) for story in inputs for position, token in enumerate(story)]
    for dx_row, (position, token) in zip(dx, places):
        dwte[token] = [g + dg for g, dg in zip(dwte[token], dx_row)]
        dwpe[position] = [g + dg for g, dg in zip(dwpe[position], dx_row)]
    return dwte, dwpe


def rms_norm(x: Matrix) -> Tuple[Matrix, Vector]:
    """x (N, d) -> (y (N, d), scales (N,)): y = x * scale, scale = 1 / sqrt(mean of x^2 + eps).

    Zhang and Sennrich, Root Mean Square Layer Normalization, 2019; without the learned gain,
    which the matrix that follows can take over.
    """
    scales = [1.0 / math.sqrt(square / len(row) + NORM_EPS) for square, row in zip(pair_dots(x, x), x)]
    return [[value * scale for value in row] for row, scale in zip(x, scales)], scales


def rms_norm_backward(dy: Matrix, y: Matrix, scales: Vector) -> Matrix:
    """dy, y (N, d), scales (N,) -> dx (N, d) = scale * (dy - y * mean of dy * y)."""
    dx = []
    for dy_row, y_row, scale, product in zip(dy, y, scales, pair_dots(dy, y)):
        mean = product / len(y_row)
        dx.append([scale * (g - value * mean) for g, value in zip(dy_row, y_row)])
    return dx


def linear_backward(dy: Matrix, x: Matrix, w: Matrix) -> Tuple[Matrix, Matrix]:
    """For y = dots(x, w): dy (N, M), x (N, d), w (M, d) -> (dx (N, d), dw (M, d))."""
    return outer_sum(transpose(dy), w), outer_sum(dy, x)


def attention(q: Matrix, k: Matrix, v: Matrix, lengths: Sequence[int]) -> Tuple[Matrix, Matrix]:
    """q, k, v (N, d) -> (out (N, d), probs): each token looks at itself and its past.

    Vaswani and others, Attention Is All You Need, 2017, with one head. lengths: T of each story.

    probs[n] has an entry for each of the T positions of its story. The causal mask is a slice:
    later positions get no score, so nothing has to be set to minus infinity, and a zero in probs.
    """
    scale = 1.0 / math.sqrt(len(q[0]))
    out, probs, start = [], [], 0
    for length in lengths:
        end = start + length
        for n in range(start, end):
            scores = [score * scale for score in dots([q[n]], k[start:n + 1])[0]]
            probs.append(softmax(scores)[0] + [0.0] * (end - n - 1))
        out += mix(probs[start:end], v[start:end])
        start = end
    return out, probs


def attention_backward(dout: Matrix, probs: Matrix, q: Matrix, k: Matrix, v: Matrix,
                       lengths: Sequence[int]) -> Tuple[Matrix, Matrix, Matrix]:
    """dout (N, d) and what the forward had -> (dq, dk, dv), each (N, d).

    With p = softmax(s) and s = q . k * scale:  ds_j = p_j (dp_j - sum of p_i dp_i) * scale.
    """
    scale = 1.0 / math.sqrt(len(q[0]))
    dq, dk, dv, start = [], [], [], 0
    for length in lengths:
        end = start + length
        padded_ds = []                      # rows of equal length, so that they can be transposed
        for n in range(start, end):
            dp = dots([dout[n]], v[start:n + 1])[0]
            centre = exact_sum([p * g for p, g in zip(probs[n], dp)])      # zip ends where dp does
            ds = [p * (g - centre) * scale for p, g in zip(probs[n], dp)]
            padded_ds.append(ds + [0.0] * (end - n - 1))
        dq += mix(padded_ds, k[start:end])
        dk += mix(transpose(padded_ds), q[start:end])
        dv += mix(transpose(probs[start:end]), dout[start:end])
        start = end
    return dq, dk, dv


def cross_entropy(logits: Matrix, targets: Sequence[int]) -> Tuple[Vector, Matrix]:
    """logits (N, V), targets (N,) -> (losses (N,) in nats, probs (N, V)).

    The loss is log(sum of exp) - logit, never the log of a probability that may be zero.
    """
    losses, probs = [], []
    for row, target in zip(logits, targets):
        p, largest, total = softmax(row)
        losses.append(log(total) - (row[target] - largest))
        probs.append(p)
    return losses, probs


def cross_entropy_backward(probs: Matrix, targets: Sequence[int]) -> Matrix:
    """d(mean of losses) / dlogits (N, V) = (probs - one at the target) / N."""
    share = 1.0 / len(targets)
    dlogits = []
    for row, target in zip(probs, targets):
        gradient = [p * share for p in row]
        gradient[target] = (row[target] - 1.0) * share
        dlogits.append(gradient)
    return dlogits


# ---------------------------------------------------------------------------- the network

@dataclass
class Activations:
    """What a forward pass leaves for the backward pass: each field, the step that made it, its shape."""
    lengths: List[int]      # T of each story
    a: Matrix               # 2   (N, d) and its norm's scales
    a_scales: Vector
    q: Matrix               # 3   (N, d) each
    k: Matrix
    v: Matrix
    probs: Matrix           # 4   (N, T of its story)
    out: Matrix             # 4   (N, d)
    b: Matrix               # 6   (N, d)
    b_scales: Vector
    h: Matrix               # 7   (N, H), after the ReLU
    c: Matrix               # 9   (N, d)
    c_scales: Vector
    logits: Matrix          # 10  (N, V)


def forward(params: Params, inputs: Batch) -> Activations:
    """inputs, stories of T ids (T at most max_len) -> every activation, logits (N, V) among them."""
    lengths = [len(story) for story in inputs]
    x = embed(params, inputs)                                                   # 1
    a, a_scales = rms_norm(x)                                                   # 2
    q, k, v = (dots(a, params[name]) for name in ("attn_wq", "attn_wk", "attn_wv"))    # 3
    out, probs = attention(q, k, v, lengths)                                    # 4
    y = add(x, dots(out, params["attn_wo"]))                                    # 5
    b, b_scales = rms_norm(y)                                                   # 6
    h = [[u if u > 0.0 else 0.0 for u in row] for row in dots(b, params["mlp_fc"])]    # 7
    z = add(y, mix(h, params["mlp_proj"]))                                      # 8
    c, c_scales = rms_norm(z)                                                   # 9
    logits = dots(c, params["lm_head"])                                         # 10
    return Activations(lengths, a, a_scales, q, k, v, probs, out, b, b_scales, h, c, c_scales, logits)


def backward(dlogits: Matrix, params: Params, inputs: Batch, act: Activations) -> Params:
    """dlogits (N, V) -> the gradient of every parameter, same names and shapes."""
    grads: Params = {}
    dc, grads["lm_head"] = linear_backward(dlogits, act.c, params["lm_head"])   # 10
    dz = rms_norm_backward(dc, act.c, act.c_scales)                             # 9
    # In 8 and 7 `mix`, which skips zeros: half of h and du are.
    grads["mlp_proj"] = mix(transpose(act.h), dz)                               # 8: z = y + mix(h, w)
    du = dots_where(dz, params["mlp_proj"], act.h)                              # 7
    db, grads["mlp_fc"] = mix(du, params["mlp_fc"]), mix(transpose(du), act.b)
    dy = add(dz, rms_norm_backward(db, act.b, act.b_scales))                    # 6
    dout, grads["attn_wo"] = linear_backward(dy, act.out, params["attn_wo"])    # 5
    dqkv = attention_backward(dout, act.probs, act.q, act.k, act.v, act.lengths)    # 4
    da = [[0.0] * len(row) for row in act.a]
    for name, gradient in zip(("attn_wq", "attn_wk", "attn_wv"), dqkv):         # 3
        through, grads[name] = linear_backward(gradient, act.a, params[name])
        da = add(da, through)
    dx = add(dy, rms_norm_backward(da, act.a, act.a_scales))                    # 2
    grads["wte"], grads["wpe"] = embed_backward(dx, params, inputs)             # 1
    return {name: grads[name] for name in params}


def split_targets(batch: Batch) -> Tuple[List[Sequence[int]], List[int]]:
    """Stories -> (inputs: each without its last id, targets (N,): each without its first).

    A story of fewer than two ids predicts nothing and is left out; ValueError if all are so.
    """
    stories = [story for story in batch if len(story) > 1]
    if not stories:
        raise ValueError("nothing to predict: every sequence has fewer than two ids")
    return [story[:-1] for story in stories], [token for story in stories for token in story[1:]]


def token_losses(params: Params, batch: Batch) -> Vector:
    """The loss in nats of every predicted token of `batch`, in order (N,)."""
    inputs, targets = split_targets(batch)
    return cross_entropy(forward(params, inputs).logits, targets)[0]


def batch_gradient(params: Params, batch: Batch) -> Tuple[float, Params]:
    """(mean loss over predicted tokens in nats, gradient of every parameter)."""
    inputs, targets = split_targets(batch)
    act = forward(params, inputs)
    losses, probs = cross_entropy(act.logits, targets)
    grads = backward(cross_entropy_backward(probs, targets), params, inputs, act)
    return exact_sum(losses) / len(losses), grads


def next_logits(params: Params, ids: Sequence[int]) -> Vector:
    """ids (any length from 1) -> logits (V,) of the token after them; past max_len, of the last max_len."""
    if not ids:
        raise ValueError("next_logits needs at least one id")
    return forward(params, [ids[-len(params["wpe"]):]]).logits[-1]
