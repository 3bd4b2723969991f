"""What model.py promises: parameters from a seed, the right gradient, and a written order of additions.

Three proofs of the gradient, each of another kind: central differences say that it is right, the
plain-loop twin says in which order it is added up, the golden values say that this machine agrees.
All use parameters of their own, so the way `init_params` scales them does not enter.
"""
from __future__ import annotations

import math
import random
import unittest
from unittest import mock

import model
import portable
from model import (
    add,
    attention,
    attention_backward,
    backward,
    batch_gradient,
    cross_entropy,
    cross_entropy_backward,
    embed,
    embed_backward,
    forward,
    init_params,
    linear_backward,
    next_logits,
    param_shapes,
    rms_norm,
    rms_norm_backward,
    softmax,
    split_targets,
    token_losses,
    transpose,
)
from portable import dots, log, machine_fault

V, D, H, MAX_LEN = 7, 4, 6, 6
STORIES = [[2, 5, 3, 5, 6, 1], [4, 1], [6, 2, 2, 1]]      # 9 predicted tokens; ids 0 and 1 are never read

GOLDEN = {      # of `tiny_params()` and STORIES: the loss, and entry [2][1] of each gradient
    "loss": "0x1.43461f0c438f5p+1",
    "wte": "0x1.af46d01a33488p-1",
    "wpe": "0x1.a5f1f2eb1f144p-5",
    "attn_wq": "0x1.0ec69bdb9c4f4p-4",
    "attn_wk": "0x1.710153d0e99bbp-7",
    "attn_wv": "-0x1.fa8e202d9ee5bp-4",
    "attn_wo": "-0x1.f4342686f7c51p-2",
    "mlp_fc": "0x1.1583be3add641p-5",
    "mlp_proj": "-0x1.2e9be8a31590bp-13",
    "lm_head": "0x1.8fa1bd52b2d90p-3",
}


def bits(matrix):
    """A matrix as text that shows every bit."""
    return [[x.hex() for x in row] for row in matrix]


def random_matrix(rng, rows, columns, reach=1.0):
    return [[rng.uniform(-reach, reach) for _ in range(columns)] for _ in range(rows)]


def tiny_params(seed=1, vocab_size=V):
    """Parameters large enough that every gradient is far from the rounding errors."""
    rng = random.Random(seed)
    shapes = param_shapes(vocab_size, D, H, MAX_LEN)
    return {name: random_matrix(rng, *shape) for name, shape in shapes.items()}


# ---------------------------------------------------------------------------- the plain-loop twin

def left_to_right(numbers):
    """The sum that every machine agrees on, and what `dots` does."""
    total = numbers[0]
    for number in numbers[1:]:
        total = total + number
    return total


def compensated(numbers):
    """The sum that CPython's built-in `sum` computes from 3.12 on: Neumaier's, which keeps what is lost."""
    total, lost = 0.0, 0.0
    for number in numbers:
        new = total + number
        lost += (total - new) + number if abs(total) >= abs(number) else (number - new) + total
        total = new
    return total + lost


class Twin:
    """The model with a loop for each index and a name for nothing; same operations, same order.

    `add_up` and `exp` can be exchanged to show that they decide the bits.
    """

    def __init__(self, params, add_up=left_to_right, exp=portable.exp):
        self.p, self.add_up, self.exp = params, add_up, exp
        self.grads = {name: [[0.0] * len(row) for row in matrix] for name, matrix in params.items()}

    def times(self, x, w):
        """x (d,) against each row of w."""
        return [self.add_up([x[i] * row[i] for i in range(len(x))]) for row in w]

    def norm(self, x):
        scale = 1.0 / math.sqrt(self.add_up([value * value for value in x]) / len(x) + model.NORM_EPS)
        return [value * scale for value in x], scale

    def norm_backward(self, dy, y, scale):
        mean = self.add_up([dy[i] * y[i] for i in range(len(y))]) / len(y)
        return [scale * (dy[i] - y[i] * mean) for i in range(len(y))]

    def softmax(self, scores):
        exps = [self.exp(score - max(scores)) for score in scores]
        return [e / math.fsum(exps) for e in exps], max(scores), math.fsum(exps)

    def mixed(self, coefficients, rows, width):
        """The sum of coefficient times row, added from 0.0 in the order given."""
        columns = [[c * row[i] for c, row in zip(coefficients, rows)] for i in range(width)]
        return [left_to_right([0.0, *column]) for column in columns]

    def collect(self, name, dy, x):
        """The gradient of a matrix for one token: dy (rows,) times x (d,)."""
        for j, row in enumerate(self.grads[name]):
            for i in range(len(row)):
                row[i] = row[i] + dy[j] * x[i]

    def forward_story(self, ids):
        """One dict of activations a token."""
        p, tokens = self.p, []
        for t, token in enumerate(ids):
            n = {"id": token, "x": [p["wte"][token][i] + p["wpe"][t][i] for i in range(len(p["wpe"][t]))]}
            tokens.append(n)
            n["a"], n["a_scale"] = self.norm(n["x"])
            for letter in "qkv":
                n[letter] = self.times(n["a"], p["attn_w" + letter])
            scale = 1.0 / math.sqrt(len(n["q"]))
            scores = [self.add_up([a * b for a, b in zip(n["q"], past["k"])]) * scale for past in tokens]
            n["p"] = self.softmax(scores)[0]
            n["out"] = self.mixed(n["p"], [past["v"] for past in tokens], len(n["x"]))
            n["y"] = [a + b for a, b in zip(n["x"], self.times(n["out"], p["attn_wo"]))]
            n["b"], n["b_scale"] = self.norm(n["y"])
            n["h"] = [u if u > 0.0 else 0.0 for u in self.times(n["b"], p["mlp_fc"])]
            n["z"] = [a + b for a, b in zip(n["y"], self.mixed(n["h"], p["mlp_proj"], len(n["x"])))]
            n["c"], n["c_scale"] = self.norm(n["z"])
            n["logits"] = self.times(n["c"], p["lm_head"])
        return tokens

    def head_backward(self, n, target, share):
        """The loss of one token, and its gradient down to y, where attention joined the residual."""
        p, d = self.p, len(n["x"])
        probs, largest, total = self.softmax(n["logits"])
        dlogits = [probs[j] * share for j in range(len(probs))]
        dlogits[target] = (probs[target] - 1.0) * share
        n["dlogits"], n["dc"] = dlogits, self.mixed(dlogits, p["lm_head"], d)
        n["dz"] = self.norm_backward(n["dc"], n["c"], n["c_scale"])
        dh = self.times(n["dz"], p["mlp_proj"])
        n["du"] = [dh[j] if n["h"][j] > 0.0 else 0.0 for j in range(len(dh))]
        db = self.norm_backward(self.mixed(n["du"], p["mlp_fc"], d), n["b"], n["b_scale"])
        n["dy"] = [a + b for a, b in zip(n["dz"], db)]
        n["dout"] = self.mixed(n["dy"], p["attn_wo"], d)
        return log(total) - (n["logits"][target] - largest)

    def attention_backward(self, tokens):
        """dq, dk, dv of every token of one story."""
        d = len(tokens[0]["x"])
        scale = 1.0 / math.sqrt(d)
        for n in tokens:
            n["dk"], n["dv"] = [0.0] * d, [0.0] * d
        for t, n in enumerate(tokens):
            past = tokens[:t + 1]
            dp = [self.add_up([n["dout"][i] * m["v"][i] for i in range(d)]) for m in past]
            centre = math.fsum([n["p"][j] * dp[j] for j in range(t + 1)])
            ds = [n["p"][j] * (dp[j] - centre) * scale for j in range(t + 1)]
            n["dq"] = self.mixed(ds, [m["k"] for m in past], d)
            for j, m in enumerate(past):
                m["dk"] = [m["dk"][i] + ds[j] * n["q"][i] for i in range(d)]
                m["dv"] = [m["dv"][i] + n["p"][j] * n["dout"][i] for i in range(d)]

    def input_backward(self, n):
        """dx of one token: through q, k and v, then the norm, beside the residual."""
        da = [0.0] * len(n["x"])
        for letter in "qkv":
            through = self.mixed(n["d" + letter], self.p["attn_w" + letter], len(da))
            da = [a + b for a, b in zip(da, through)]
        dx = self.norm_backward(da, n["a"], n["a_scale"])
        n["dx"] = [a + b for a, b in zip(n["dy"], dx)]

    def collect_all(self, n, position):
        """One token's part of every parameter's gradient."""
        for name, dy, x in (("lm_head", "dlogits", "c"), ("mlp_proj", "h", "dz"), ("mlp_fc", "du", "b"),
                            ("attn_wo", "dy", "out"), ("attn_wq", "dq", "a"), ("attn_wk", "dk", "a"),
                            ("attn_wv", "dv", "a")):
            self.collect(name, n[dy], n[x])
        for name, row in (("wte", n["id"]), ("wpe", position)):
            self.grads[name][row] = [a + b for a, b in zip(self.grads[name][row], n["dx"])]

    def batch_gradient(self, batch):
        """(loss, grads), as `model.batch_gradient` has them."""
        stories = [self.forward_story(story[:-1]) for story in batch]
        count, losses = len([n for tokens in stories for n in tokens]), []
        for story, tokens in zip(batch, stories):
            losses += [self.head_backward(n, target, 1.0 / count) for n, target in zip(tokens, story[1:])]
            self.attention_backward(tokens)
        for tokens in stories:
            for position, n in enumerate(tokens):
                self.input_backward(n)
                self.collect_all(n, position)
        return math.fsum(losses) / count, self.grads


class TestAGoldenValues(unittest.TestCase):
    """One loss and some gradient entries, the same on every machine."""

    def test_a_loss_and_gradients_have_the_bits_that_every_machine_gives(self):
        loss, grads = batch_gradient(tiny_params(), STORIES)
        found = {"loss": loss.hex(), **{name: grads[name][2][1].hex() for name in grads}}
        self.assertEqual(found, GOLDEN, (
            "a loss or gradient is not what every other machine computes: if the golden values of "
            "test_portable.py hold, model.py adds in another order; if not, this machine computes floats "
            f"differently. machine_fault() says: {machine_fault() or 'nothing odd'}"))

    def test_the_generators_of_random_numbers_give_what_they_always_gave(self):
        """Python promises `random()` alone; the parameters need `uniform`, the shuffle needs `sample`."""
        self.assertEqual(random.Random(3).random().hex(), "0x1.e759ff97b7508p-3")
        self.assertEqual(random.Random(3).uniform(-0.25, 0.25).hex(), "-0x1.0c5300342457cp-3")
        self.assertEqual(random.Random(5).sample(range(10), 10), [9, 4, 5, 6, 7, 8, 0, 1, 3, 2])
        self.assertEqual(random.Random(5).sample(range(300), 300)[-4:], [262, 29, 251, 289])


class TestTwin(unittest.TestCase):
    def test_plain_loops_give_the_same_bits_for_the_loss_and_every_gradient(self):
        for seed in range(3):
            params = tiny_params(seed)
            loss, grads = batch_gradient(params, STORIES)
            twin_loss, twin_grads = Twin(params).batch_gradient(STORIES)
            self.assertEqual(loss.hex(), twin_loss.hex())
            for name in params:
                with self.subTest(seed=seed, parameter=name):
                    self.assertEqual(bits(grads[name]), bits(twin_grads[name]))

    def test_plain_loops_give_the_same_bits_at_another_width(self):
        """Sixteen columns, as CONFIG has; tokens that come again, in one story and in several."""
        rng = random.Random(9)
        shapes = param_shapes(20, 16, 24, 10)
        params = {name: random_matrix(rng, *shape, 0.5) for name, shape in shapes.items()}
        batch = [[rng.randrange(20) for _ in range(length)] for length in (10, 2, 3, 10, 7, 5, 9, 4)]
        loss, grads = batch_gradient(params, batch)
        twin_loss, twin_grads = Twin(params).batch_gradient(batch)
        self.assertEqual(loss.hex(), twin_loss.hex())
        for name in params:
            with self.subTest(parameter=name):
                self.assertEqual(bits(grads[name]), bits(twin_grads[name]))

    def test_the_sum_of_newer_pythons_would_give_other_bits(self):
        """Why no built-in `sum`: up to 3.11 it adds from left to right, from 3.12 on it compensates."""
        self.assertEqual(compensated([0.1] * 10), 1.0)
        self.assertIn(sum([0.1] * 10), (left_to_right([0.1] * 10), compensated([0.1] * 10)))
        older = Twin(tiny_params(), add_up=left_to_right).batch_gradient(STORIES)[1]
        newer = Twin(tiny_params(), add_up=compensated).batch_gradient(STORIES)[1]
        self.assertNotEqual(older, newer)

    def test_the_exp_of_the_c_library_would_give_other_bits(self):
        """Why no `math.exp`: each C library rounds as it likes, and none as `portable.exp` does."""
        ours = Twin(tiny_params(), exp=portable.exp).batch_gradient(STORIES)[1]
        theirs = Twin(tiny_params(), exp=math.exp).batch_gradient(STORIES)[1]
        self.assertNotEqual(ours, theirs)


# ---------------------------------------------------------------------------- central differences

STEP = 5e-4
TOLERANCE = 1e-7            # relative error allowed
SMALLEST = 1e-5             # below it the rounding of the loss, 1e-16 / STEP, is not small beside a slope


def slope(f, row, i):
    """d f() / d row[i] by the central difference of fourth order with steps of STEP and twice STEP."""
    value, at = row[i], {}
    for steps in (-2, -1, 1, 2):
        row[i] = value + steps * STEP
        at[steps] = f()
    row[i] = value
    return (8.0 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12.0 * STEP)


def weighted(weights, *matrices):
    """A single number that depends on every entry of the matrices: the sum of weight times entry."""
    pairs = [(w, x) for matrix, of in zip(matrices, weights) for row, w_row in zip(matrix, of)
             for x, w in zip(row, w_row)]
    return math.fsum([w * x for w, x in pairs])


class Differences(unittest.TestCase):
    """What the gradient tests share."""

    def assert_gradient(self, layer, f, variables, gradients):
        """Every entry of every gradient is the slope of f; a failure names the layer and the worst entry."""
        for name, matrix in variables.items():
            shapes = [[len(row) for row in m] for m in (gradients[name], matrix)]
            self.assertEqual(*shapes, f"{layer}: d{name} has another shape")
            worst, where = 0.0, ""
            for r, row in enumerate(matrix):
                for i in range(len(row)):
                    found, expected = gradients[name][r][i], slope(f, row, i)
                    error = abs(found - expected) / max(abs(found), abs(expected), SMALLEST)
                    if not error <= worst:          # so that NaN counts as the worst
                        worst, where = error, f"d{name}[{r}][{i}] is {found!r}, the slope is {expected!r}"
            with self.subTest(layer=layer, variable=name):
                self.assertTrue(worst <= TOLERANCE,
                                f"{layer}: {where} (relative error {worst:.1e}, step {STEP})")


class TestEachLayer(Differences):
    """Each backward against its own forward, so that a wrong one is named."""

    def setUp(self):
        self.rng = random.Random(11)

    def matrix(self, rows, columns, reach=1.0):
        return random_matrix(self.rng, rows, columns, reach)

    def test_rms_norm(self):
        x, dy = self.matrix(5, D), self.matrix(5, D)
        dx = rms_norm_backward(dy, *rms_norm(x))
        self.assert_gradient("rms_norm", lambda: weighted([dy], rms_norm(x)[0]), {"x": x}, {"x": dx})

    def test_linear(self):
        x, w, dy = self.matrix(5, D), self.matrix(3, D), self.matrix(5, 3)
        dx, dw = linear_backward(dy, x, w)
        self.assert_gradient("linear", lambda: weighted([dy], dots(x, w)),
                             {"x": x, "w": w}, {"x": dx, "w": dw})

    def test_attention(self):
        lengths = [4, 1, 3]
        q, k, v, dout = (self.matrix(8, D) for _ in range(4))
        probs = attention(q, k, v, lengths)[1]
        dq, dk, dv = attention_backward(dout, probs, q, k, v, lengths)
        self.assert_gradient("attention", lambda: weighted([dout], attention(q, k, v, lengths)[0]),
                             {"q": q, "k": k, "v": v}, {"q": dq, "k": dk, "v": dv})

    def test_cross_entropy(self):
        logits, targets = self.matrix(5, V, 3.0), [0, 6, 2, 2, 4]
        dlogits = cross_entropy_backward(cross_entropy(logits, targets)[1], targets)
        self.assert_gradient("cross_entropy", lambda: math.fsum(cross_entropy(logits, targets)[0]) / 5,
                             {"logits": logits}, {"logits": dlogits})

    def test_embed(self):
        params = {"wte": self.matrix(V, D), "wpe": self.matrix(MAX_LEN, D)}
        inputs = [[2, 5, 5], [5], [6, 2]]
        dx = self.matrix(6, D)
        dwte, dwpe = embed_backward(dx, params, inputs)
        self.assert_gradient("embed", lambda: weighted([dx], embed(params, inputs)), params,
                             {"wte": dwte, "wpe": dwpe})

    def test_the_network_behind_the_loss(self):
        params, inputs = tiny_params(2), [[2, 5, 3], [4]]
        dlogits = self.matrix(4, V)
        grads = backward(dlogits, params, inputs, forward(params, inputs))
        self.assert_gradient("backward", lambda: weighted([dlogits], forward(params, inputs).logits),
                             params, grads)


class TestGradient(Differences):
    def test_every_entry_of_every_parameter_has_the_slope_of_the_loss(self):
        params = tiny_params()
        grads = batch_gradient(params, STORIES)[1]
        self.assertEqual(list(grads), list(params))
        self.assert_gradient("batch_gradient", lambda: batch_loss(params, STORIES), params, grads)

    def test_a_relu_is_off_and_one_is_on_in_the_tiny_model(self):
        """Else the test above would say nothing about it; and none is so near zero that a step crosses."""
        params = tiny_params()
        act = forward(params, split_targets(STORIES)[0])
        units = [u for row in dots(act.b, params["mlp_fc"]) for u in row]
        self.assertGreater(len([u for u in units if u > 0.0]), 10)
        self.assertGreater(len([u for u in units if u < 0.0]), 10)
        self.assertGreater(min(map(abs, units)), 5 * STEP)

    def test_only_what_was_read_has_a_gradient(self):
        params = tiny_params()
        grads = batch_gradient(params, [[2, 5, 1], [2, 1]])[1]
        self.assertEqual([any(row) for row in grads["wte"]], [False, False, True, False, False, True, False])
        self.assertEqual([any(row) for row in grads["wpe"]], [True, True, False, False, False, False])

    def test_the_gradient_leaves_parameters_and_batch_alone(self):
        params, batch = tiny_params(), [story[:] for story in STORIES]
        batch_gradient(params, batch)
        self.assertEqual(params, tiny_params())
        self.assertEqual(batch, STORIES)

    def test_the_mean_is_over_tokens_and_not_over_stories(self):
        params = tiny_params()
        long, short = token_losses(params, STORIES[:1]), token_losses(params, STORIES[1:2])
        self.assertEqual(batch_gradient(params, STORIES[:2])[0], math.fsum(long + short) / 6)


def batch_loss(params, batch):
    """The loss alone, which is what the slopes are of."""
    losses = token_losses(params, batch)
    return math.fsum(losses) / len(losses)


# ---------------------------------------------------------------------------- parameters

def recorded_init(seed):
    """(params of init_params, its draws): with a generator that has `uniform` and nothing else."""
    real, drawn = random.Random, []

    class OnlyUniform:
        def __init__(self, seed):
            self.rng = real(seed)

        def uniform(self, low, high):
            drawn.append((low, high, self.rng.uniform(low, high)))
            return drawn[-1][2]

    with mock.patch.object(model.random, "Random", OnlyUniform):
        return init_params(V, D, H, MAX_LEN, seed), drawn


class TestParameters(unittest.TestCase):
    def test_the_parameters_are_these_with_these_shapes(self):
        self.assertEqual(param_shapes(128, 16, 64, 60), {
            "wte": (128, 16), "wpe": (60, 16), "attn_wq": (16, 16), "attn_wk": (16, 16), "attn_wv": (16, 16),
            "attn_wo": (16, 16), "mlp_fc": (64, 16), "mlp_proj": (64, 16), "lm_head": (128, 16)})

    def test_init_makes_matrices_of_these_shapes_in_this_order(self):
        params = init_params(V, D, H, MAX_LEN, 3)
        self.assertEqual({name: (len(matrix), len(matrix[0])) for name, matrix in params.items()},
                         param_shapes(V, D, H, MAX_LEN))
        self.assertEqual(list(params), list(param_shapes(V, D, H, MAX_LEN)))
        kinds = {(type(row), len(row), type(x)) for matrix in params.values() for row in matrix for x in row}
        self.assertEqual(kinds, {(list, D, float)})

    def test_every_entry_is_one_uniform_draw_in_the_order_of_the_shapes(self):
        params, drawn = recorded_init(3)
        entries = [x for matrix in params.values() for row in matrix for x in row]
        self.assertEqual(entries, [x for _, _, x in drawn])
        self.assertTrue(all(low == -high < 0.0 for low, high, _ in drawn))
        self.assertEqual(params, init_params(V, D, H, MAX_LEN, 3))

    def test_the_first_entry_is_the_first_draw_of_the_seed(self):
        low, high, _ = recorded_init(3)[1][0]
        self.assertEqual(init_params(V, D, H, MAX_LEN, 3)["wte"][0][0], random.Random(3).uniform(low, high))

    def test_the_seed_alone_decides(self):
        self.addCleanup(random.setstate, random.getstate())
        random.seed(1)
        once = init_params(V, D, H, MAX_LEN, 3)
        random.seed(2)
        state = random.getstate()
        self.assertEqual(init_params(V, D, H, MAX_LEN, 3), once)
        self.assertEqual(random.getstate(), state, "the generator that all modules share was used")
        self.assertNotEqual(init_params(V, D, H, MAX_LEN, 4), once)

    def test_no_two_rows_are_the_same_list(self):
        params = init_params(V, D, H, MAX_LEN, 3)
        rows = [id(row) for matrix in params.values() for row in matrix]
        self.assertEqual(len(set(rows)), len(rows))


# ---------------------------------------------------------------------------- helpers and layers

class TestLayers(unittest.TestCase):
    def test_add_and_transpose(self):
        self.assertEqual(add([[1.0, 2.0], [3.0, 4.0]], [[0.5, 0.25], [8.0, 9.0]]),
                         [[1.5, 2.25], [11.0, 13.0]])
        self.assertEqual([list(row) for row in transpose([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])],
                         [[1.0, 3.0, 5.0], [2.0, 4.0, 6.0]])

    def test_softmax_sums_to_one_and_keeps_the_order(self):
        rng = random.Random(12)
        for size in (1, 2, 7, 128):
            scores = [rng.uniform(-9.0, 9.0) for _ in range(size)]
            probs, largest, total = softmax(scores)
            with self.subTest(size=size):
                self.assertAlmostEqual(math.fsum(probs), 1.0, delta=1e-15)
                order = sorted(range(size), key=scores.__getitem__)
                self.assertEqual(order, sorted(range(size), key=probs.__getitem__))
                self.assertEqual((largest, len(probs)), (max(scores), size))
                self.assertGreaterEqual(total, 1.0)

    def test_softmax_of_huge_scores_does_not_overflow(self):
        self.assertEqual(softmax([1e308, 0.0, 1e308]), ([0.5, 0.0, 0.5], 1e308, 2.0))
        self.assertEqual(softmax([-1e308]), ([1.0], -1e308, 1.0))

    def test_softmax_does_not_change_when_all_scores_move(self):
        self.assertEqual(softmax([1.0, 2.0, 4.0])[0], softmax([-3.0, -2.0, 0.0])[0])

    def test_rms_norm_gives_rows_of_mean_square_one_in_the_same_direction(self):
        rows = [[3.0, 4.0, 0.0, 0.0], [-1e3, 2e3, 2e3, 4e3]]
        for x, y, scale in zip(rows, *rms_norm(rows)):
            self.assertAlmostEqual(math.fsum([value * value for value in y]) / 4, 1.0, delta=2e-6)
            self.assertEqual(y, [value * scale for value in x])

    def test_rms_norm_of_zeros_is_zeros(self):
        self.assertEqual(rms_norm([[0.0] * 4])[0], [[0.0] * 4])

    def test_cross_entropy_of_even_guesses_is_log_v(self):
        losses, probs = cross_entropy([[0.5] * 8], [3])
        self.assertEqual((losses, probs), ([log(8.0)], [[0.125] * 8]))

    def test_cross_entropy_of_a_target_whose_probability_is_zero_is_still_its_distance(self):
        losses, probs = cross_entropy([[0.0, -800.0], [1e5, 0.0]], [1, 1])
        self.assertEqual((losses, probs), ([800.0, 1e5], [[1.0, 0.0], [1.0, 0.0]]))

    def test_the_gradient_of_each_row_of_logits_sums_to_zero(self):
        probs = cross_entropy(random_matrix(random.Random(13), 5, V, 4.0), [0, 1, 2, 3, 4])[1]
        for row, target in zip(cross_entropy_backward(probs, [0, 1, 2, 3, 4]), range(5)):
            self.assertAlmostEqual(math.fsum(row), 0.0, delta=1e-16)
            self.assertLess(row[target], 0.0)

    def test_attention_looks_at_itself_and_the_past_of_its_own_story(self):
        rng = random.Random(14)
        q, k, v = (random_matrix(rng, 6, D) for _ in range(3))
        out, probs = attention(q, k, v, [4, 2])
        self.assertEqual([[p > 0.0 for p in row] for row in probs],
                         [[m <= n for m in range(length)] for length in (4, 2) for n in range(length)])
        self.assertEqual([out[0], out[4]], [v[0], v[4]])
        for row in probs:
            self.assertAlmostEqual(math.fsum(row), 1.0, delta=1e-15)

    def test_attention_divides_the_scores_by_the_root_of_the_width(self):
        probs = attention([[0.0] * 4, [2.0] * 4], [[1.0] * 4, [0.0] * 4], [[0.0] * 4] * 2, [2])[1]
        self.assertEqual(probs[1], softmax([8.0 / 2.0, 0.0])[0])


# ---------------------------------------------------------------------------- the network

class TestNetwork(unittest.TestCase):
    def setUp(self):
        self.params = tiny_params()

    def test_stories_of_a_batch_do_not_see_each_other(self):
        inputs = [story[:-1] for story in STORIES]
        together = bits(forward(self.params, inputs).logits)
        alone = [row for story in inputs for row in bits(forward(self.params, [story]).logits)]
        self.assertEqual(together, alone)

    def test_a_later_token_does_not_change_an_earlier_logit(self):
        story = [2, 5, 3, 5, 6, 1]
        logits = bits(forward(self.params, [story]).logits)
        for t in range(len(story)):
            for token in range(V):
                changed = bits(forward(self.params, [[*story[:t], token, *story[t + 1:]]]).logits)
                with self.subTest(position=t, token=token):
                    self.assertEqual(changed[:t], logits[:t])
                    self.assertEqual(changed[t] == logits[t], token == story[t])

    def test_a_prefix_has_the_logits_that_it_has_in_the_whole_story(self):
        story = [2, 5, 3, 5, 6, 1]
        logits = bits(forward(self.params, [story]).logits)
        for t in range(1, len(story)):
            self.assertEqual(bits(forward(self.params, [story[:t]]).logits), logits[:t])

    def test_the_position_of_a_token_matters(self):
        first, second = forward(self.params, [[3, 3]]).logits
        self.assertNotEqual(first, second)

    def test_next_logits_are_the_last_row(self):
        for length in range(1, MAX_LEN + 1):
            ids = [2, 5, 3, 5, 6, 1][:length]
            self.assertEqual(next_logits(self.params, ids), forward(self.params, [ids]).logits[-1])

    def test_next_logits_past_max_len_use_the_last_max_len_ids(self):
        rng = random.Random(15)
        for length in (MAX_LEN + 1, MAX_LEN + 2, 10 * MAX_LEN):
            ids = [rng.randrange(V) for _ in range(length)]
            with self.subTest(length=length):
                self.assertEqual(next_logits(self.params, ids), next_logits(self.params, ids[-MAX_LEN:]))

    def test_next_logits_of_nothing_are_refused(self):
        with self.assertRaisesRegex(ValueError, "^next_logits needs at least one id$"):
            next_logits(self.params, [])

    def test_inputs_and_targets_are_the_story_without_its_last_and_its_first_id(self):
        inputs, targets = split_targets(STORIES)
        self.assertEqual(inputs, [[2, 5, 3, 5, 6], [4], [6, 2, 2]])
        self.assertEqual(targets, [5, 3, 5, 6, 1, 1, 2, 2, 1])

    def test_a_story_of_fewer_than_two_ids_is_left_out(self):
        self.assertEqual(split_targets([[3], STORIES[1], []]), ([[4]], [1]))
        with_short = batch_gradient(self.params, [[3], *STORIES, []])
        self.assertEqual(with_short, batch_gradient(self.params, STORIES))

    def test_a_batch_with_nothing_to_predict_is_refused(self):
        for batch in ([], [[]], [[3], [4]]):
            for function in (batch_gradient, token_losses):
                with self.subTest(batch=batch, function=function.__name__), self.assertRaisesRegex(
                        ValueError, "^nothing to predict: every sequence has fewer than two ids$"):
                    function(self.params, batch)

    def test_token_losses_are_in_the_order_of_the_tokens(self):
        alone = [loss for story in STORIES for loss in token_losses(self.params, [story])]
        self.assertEqual(token_losses(self.params, STORIES), alone)
        logits = forward(self.params, [STORIES[1][:-1]]).logits
        self.assertEqual(token_losses(self.params, STORIES)[5], cross_entropy(logits, [1])[0][0])

    def test_a_step_against_the_gradient_lowers_the_loss(self):
        loss, grads = batch_gradient(self.params, STORIES)
        for name, matrix in self.params.items():
            for row, g_row in zip(matrix, grads[name]):
                row[:] = [x - 1e-3 * g for x, g in zip(row, g_row)]
        self.assertLess(batch_loss(self.params, STORIES), loss)


if __name__ == "__main__":
    unittest.main()
