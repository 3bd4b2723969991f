"""What train.py promises: the split, Adam to the last bit, and one state that decides the next step."""
from __future__ import annotations

import contextlib
import gc
import io
import json
import math
import random
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import train
from bpe import END, Tokenizer
from model import init_params, param_shapes, token_losses
from train import (
    CONFIG,
    Adam,
    check_config,
    checksum,
    color_recall,
    copy_params,
    encode_all,
    evaluate,
    is_due,
    is_finite,
    mean_loss,
    most_likely,
    new_state,
    next_batch,
    power,
    split_stories,
    train_step,
    zeros_like,
)

HERE = Path(__file__).resolve().parent
TINY = {**CONFIG, "d": 4, "hidden": 6, "max_len": 10, "batch": 4, "steps": 7, "eval_every": 3}
COLORS = ("red", "blue", "pink", "gold", "green", "black", "white")
TEXT = "".join(f"{name} had a {color} cap. It was {color}.\n" for name in ("Mia", "Leo") for color in COLORS)
STORIES = [f"story {i}" for i in range(420)]


def lines(stories):
    return "".join(f"{story}\n" for story in stories)


def tokenizer():
    return Tokenizer.train(split_stories(TEXT)[0], 40)


def tiny_state(**changes):
    """(state before step 1, training sequences, development sequences, config)."""
    cfg, tok = {**TINY, **changes}, tokenizer()
    train_stories, dev_stories, _ = split_stories(TEXT)
    sequences, dev = (encode_all(tok, part, cfg["max_len"]) for part in (train_stories, dev_stories))
    return new_state(len(tok.vocab), cfg), sequences, dev, cfg


# ---------------------------------------------------------------------------- configuration

class TestConfig(unittest.TestCase):
    def test_the_config_is_this_one(self):
        self.assertEqual(json.dumps(CONFIG), json.dumps({
            "d": 16, "hidden": 64, "max_len": 64, "init_seed": 3, "data_seed": 5, "batch": 8, "steps": 600,
            "learning_rate": 0.01, "beta1": 0.9, "beta2": 0.999, "adam_eps": 1e-08, "eval_every": 50}))

    def assert_refused(self, cfg, message):
        with self.assertRaises(ValueError) as caught:
            check_config(cfg)
        self.assertEqual(str(caught.exception), message)

    def test_a_config_within_its_ranges_is_accepted(self):
        for changes in ({}, {"init_seed": 0, "data_seed": 10 ** 30}, {"max_len": 2, "d": 1, "hidden": 1},
                        {"learning_rate": 1, "beta1": 0, "beta2": 0.0}, {"beta1": 0.9999999999999999}):
            with self.subTest(changes=changes):
                self.assertIsNone(check_config({**CONFIG, **changes}))

    def test_a_whole_number_out_of_range_or_of_another_type_is_named(self):
        for key in ("d", "hidden", "batch", "steps", "eval_every", "max_len", "init_seed", "data_seed"):
            least = {"max_len": 2, "init_seed": 0, "data_seed": 0}.get(key, 1)
            for value in (least - 1, -5, 8.0, True, "8", None, [8], math.nan):
                with self.subTest(key=key, value=value):
                    self.assert_refused({**CONFIG, key: value}, f"config: {key!r} is {value!r}; "
                                        f"expected a whole number from {least} {'to 512' if key == 'd' else 'up'}")

    def test_a_number_out_of_range_or_of_another_type_is_named(self):
        for key, low, high in (("learning_rate", "0.0", "1.7e+308"), ("beta1", "0.0", "1.0"),
                               ("beta2", "0.0", "1.0"), ("adam_eps", "1e-30", "1.0")):
            for value in (-1e-9, math.nan, math.inf, True, "0.1", None, float(high), 10 ** 400):
                with self.subTest(key=key, value=value):
                    self.assert_refused({**CONFIG, key: value}, f"config: {key!r} is {value!r}; "
                                        f"expected a number from {low} up, below {high}")

    def test_a_missing_key_and_an_unknown_one_are_named(self):
        without = {key: value for key, value in CONFIG.items() if key != "hidden"}
        self.assert_refused(without, "config: 'hidden' is missing")
        self.assert_refused({**CONFIG, "dropout": 0.1}, "config: 'dropout' is unknown")
        self.assert_refused({}, "config: 'adam_eps' is missing")

    def test_a_run_with_a_wrong_config_does_not_start(self):
        with self.assertRaisesRegex(ValueError, "^config: 'batch' is 0; expected a whole number from 1 up$"):
            train.train(tokenizer(), TEXT, {**TINY, "batch": 0})


# ---------------------------------------------------------------------------- stories

class TestSplit(unittest.TestCase):
    def assert_no_story_in_two_parts(self, text):
        parts = [{" ".join(story.split()) for story in part} for part in split_stories(text)]
        for one, other in ((0, 1), (0, 2), (1, 2)):
            self.assertEqual(parts[one] & parts[other], set())

    def test_the_labs_corpus_is_split_300_60_60(self):
        text = (HERE / "corpus.txt").read_text(encoding="utf-8")
        parts = split_stories(text)
        self.assertEqual([len(part) for part in parts], [300, 60, 60])
        self.assertEqual(sorted(story for part in parts for story in part), sorted(text.splitlines()))
        self.assert_no_story_in_two_parts(text)

    def test_any_text_is_split_five_to_one_to_one(self):
        for count in range(7, 60):
            sizes = [len(part) for part in split_stories(lines(STORIES[:count]))]
            with self.subTest(stories=count):
                self.assertEqual(sum(sizes), count)
                self.assertEqual(sizes[1], (count + 1) // 7)
                self.assertEqual(sizes[2], count // 7)

    def test_of_every_seven_five_one_and_one_are_taken_in_order(self):
        parts = split_stories(lines(STORIES[:16]))
        self.assertEqual([[int(story.split()[1]) for story in part] for part in parts],
                         [[0, 1, 2, 3, 4, 7, 8, 9, 10, 11, 14, 15], [5, 12], [6, 13]])

    def test_a_story_that_comes_again_counts_once_whatever_its_spacing(self):
        text = lines(STORIES[:8]) + "story  3\n\tstory 5 \nstory 6\r\nstory\u00a07\n" + lines(STORIES[:8])
        self.assertEqual(split_stories(text), split_stories(lines(STORIES[:8])))
        self.assert_no_story_in_two_parts(text)

    def test_blank_lines_and_crlf_and_a_missing_last_newline_change_nothing(self):
        expected = split_stories(lines(STORIES[:20]))
        for name, text in (("blank lines", "\n \n" + "\n\t\n\n".join(STORIES[:20])),
                           ("crlf", "\r\n".join(STORIES[:20]) + "\r\n"),
                           ("no last newline", "\n".join(STORIES[:20]))):
            with self.subTest(text=name):
                self.assertEqual(split_stories(text), expected)

    def test_a_line_separator_inside_a_story_does_not_cut_it(self):
        for separator in ("\u2028", "\u2029", "\x0b", "\x0c", "\x85", "\x1c"):
            stories = [f"a{separator}b {i}" for i in range(7)]
            with self.subTest(separator=separator):
                self.assertEqual(split_stories(lines(stories)), (stories[:5], stories[5:6], stories[6:]))

    def test_too_few_stories_are_refused_with_how_many_are_needed(self):
        for text, found in (("", 0), ("\n\n", 0), (lines(STORIES[:6]), 6), (lines(STORIES[:3] * 9), 3)):
            with self.subTest(found=found), self.assertRaises(ValueError) as caught:
                split_stories(text)
            self.assertEqual(str(caught.exception),
                             f"too few stories: {found} distinct; at least 7 are needed, one a line")


class TestEncodeAll(unittest.TestCase):
    def test_every_story_ends_in_the_end_token(self):
        tok = tokenizer()
        stories = split_stories(TEXT)[0]
        self.assertEqual(encode_all(tok, stories, 64), [[*tok.encode(story), END] for story in stories])

    def test_a_long_story_is_cut_to_max_len_ids(self):
        tok = tokenizer()
        ids = tok.encode("Mia had a red cap.")
        for max_len in (2, len(ids) - 1, len(ids), len(ids) + 1, len(ids) + 2):
            with self.subTest(max_len=max_len):
                self.assertEqual(encode_all(tok, ["Mia had a red cap."], max_len), [[*ids, END][:max_len]])


# ---------------------------------------------------------------------------- loss

class TestMeanLoss(unittest.TestCase):
    def setUp(self):
        rng = random.Random(21)
        self.params = init_params(9, 4, 6, 8, 1)
        self.sequences = [[rng.randrange(9) for _ in range(rng.randint(2, 8))] for _ in range(45)]

    def test_it_is_the_mean_over_predicted_tokens(self):
        losses = [loss for story in self.sequences for loss in token_losses(self.params, [story])]
        self.assertEqual(mean_loss(self.params, self.sequences), math.fsum(losses) / len(losses))

    def test_the_chunks_and_the_order_of_the_stories_do_not_show_in_a_bit(self):
        expected = mean_loss(self.params, self.sequences)
        for chunk in (1, 2, 7, 45, 1000):
            with self.subTest(chunk=chunk), mock.patch.object(train, "DEV_CHUNK", chunk):
                self.assertEqual(mean_loss(self.params, self.sequences), expected)
                self.assertEqual(mean_loss(self.params, self.sequences[::-1]), expected)
                self.assertEqual(mean_loss(self.params, sorted(self.sequences)), expected)

    def test_stories_with_nothing_to_predict_do_not_count(self):
        self.assertEqual(mean_loss(self.params, [[], *self.sequences, [3]]),
                         mean_loss(self.params, self.sequences))

    def test_no_token_to_score_is_refused(self):
        for sequences in ([], [[]], [[1], [2]]):
            with self.subTest(sequences=sequences), self.assertRaisesRegex(
                    ValueError, "^no token to score: every sequence has fewer than two ids$"):
                mean_loss(self.params, sequences)

    def test_the_parameters_stay_as_they_are(self):
        mean_loss(self.params, self.sequences)
        self.assertEqual(self.params, init_params(9, 4, 6, 8, 1))


# ---------------------------------------------------------------------------- Adam

class TextbookAdam:
    """Kingma and Ba, algorithm 1, one number at a time; the powers of the betas are kept as products."""

    def __init__(self, value, learning_rate, beta1, beta2, eps):
        self.value, self.settings = value, (learning_rate, beta1, beta2, eps)
        self.m = self.v = 0.0
        self.beta1_to_t = self.beta2_to_t = 1.0

    def step(self, g):
        learning_rate, beta1, beta2, eps = self.settings
        self.beta1_to_t = self.beta1_to_t * beta1
        self.beta2_to_t = self.beta2_to_t * beta2
        self.m = beta1 * self.m + (1.0 - beta1) * g
        self.v = beta2 * self.v + (1.0 - beta2) * g * g
        m_hat = self.m / (1.0 - self.beta1_to_t)
        v_hat = self.v / (1.0 - self.beta2_to_t)
        self.value = self.value - learning_rate * m_hat / (math.sqrt(v_hat) + eps)


class TestAdam(unittest.TestCase):
    SETTINGS = (0.01, 0.9, 0.999, 1e-8)

    def setUp(self):
        self.rng = random.Random(22)

    def matrices(self, reach=1.0):
        return {name: [[self.rng.uniform(-reach, reach) for _ in range(columns)] for _ in range(rows)]
                for name, (rows, columns) in {"a": (2, 3), "b": (1, 1)}.items()}

    def test_each_step_has_the_bits_of_the_textbook(self):
        params = self.matrices()
        adam = Adam(params, *self.SETTINGS)
        twins = [TextbookAdam(x, *self.SETTINGS) for matrix in params.values() for row in matrix for x in row]
        for _ in range(40):
            grads = self.matrices(self.rng.choice((0.0, 1e-9, 1.0, 1e3)))
            adam.step(params, grads)
            for twin, g in zip(twins, [g for matrix in grads.values() for row in matrix for g in row]):
                twin.step(g)
            for found, expected in ((params, "value"), (adam.m, "m"), (adam.v, "v")):
                self.assertEqual([x.hex() for matrix in found.values() for row in matrix for x in row],
                                 [getattr(twin, expected).hex() for twin in twins])

    def test_the_first_step_goes_a_learning_rate_against_the_sign(self):
        params = {"a": [[1.0, 1.0, 1.0]]}
        Adam(params, 0.25, 0.9, 0.999, 1e-8).step(params, {"a": [[5.0, -0.001, 0.0]]})
        for found, expected in zip(params["a"][0], (0.75, 1.25, 1.0)):
            self.assertAlmostEqual(found, expected, delta=1e-5)

    def test_m_v_and_t_restore_it_completely(self):
        params = self.matrices()
        adam = Adam(params, *self.SETTINGS)
        for _ in range(7):
            adam.step(params, self.matrices())
        again = Adam(params, *self.SETTINGS)
        again.m, again.v, again.t = json.loads(json.dumps([adam.m, adam.v, adam.t]))
        other_params, grads = copy_params(params), self.matrices()
        adam.step(params, grads)
        again.step(other_params, grads)
        self.assertEqual((params, adam.m, adam.v, adam.t), (other_params, again.m, again.v, again.t))

    def test_without_any_one_of_m_v_and_t_the_next_step_is_another(self):
        params = self.matrices()
        adam = Adam(params, *self.SETTINGS)
        for _ in range(7):
            adam.step(params, self.matrices())
        grads = self.matrices()
        ends = []
        for lost in ("", "m", "v", "t"):
            again, other_params = Adam(params, *self.SETTINGS), copy_params(params)
            for name in {"m", "v", "t"} - {lost}:
                value = getattr(adam, name)
                setattr(again, name, value if name == "t" else copy_params(value))
            again.step(other_params, grads)
            ends.append(json.dumps(other_params))
        self.assertEqual(len(set(ends)), 4)

    def test_before_the_first_step_m_and_v_are_zeros_of_the_same_names_and_shapes(self):
        params = self.matrices()
        adam = Adam(params, *self.SETTINGS)
        zeros = {"a": [[0.0] * 3, [0.0] * 3], "b": [[0.0]]}
        self.assertEqual((adam.m, adam.v, adam.t, zeros_like(params)), (zeros, zeros, 0, zeros))
        self.assertIsNot(adam.m["a"], adam.v["a"])
        self.assertIsNot(adam.m["a"][0], adam.m["a"][1])

    def test_the_gradient_is_left_as_it_is(self):
        params, grads = self.matrices(), self.matrices()
        before = copy_params(grads)
        Adam(params, *self.SETTINGS).step(params, grads)
        self.assertEqual(grads, before)

    def test_a_power_is_the_product_from_left_to_right(self):
        for base in (0.9, 0.999, 0.1, 0.0, 1.0):
            product = 1.0
            for exponent in range(700):
                self.assertEqual(power(base, exponent).hex(), product.hex(), (base, exponent))
                product *= base


# ---------------------------------------------------------------------------- the state and a step

class TestNextBatch(unittest.TestCase):
    def setUp(self):
        self.state = tiny_state()[0]

    def taken(self, stories, batch, times):
        return [i for _ in range(times) for i in next_batch(self.state, stories, batch)]

    def test_each_epoch_has_every_story_once_and_no_tail_is_dropped(self):
        for stories, batch in ((10, 4), (10, 5), (7, 3), (300, 8), (300, 56), (5, 5), (9, 1),
                               (3, 4), (4, 11), (1, 3)):      # the last three: a batch has a story twice
            self.state = tiny_state()[0]
            taken = self.taken(stories, batch, 3 * stories)
            with self.subTest(stories=stories, batch=batch):
                self.assertEqual(len(taken), 3 * batch * stories)
                for start in range(0, len(taken), stories):
                    self.assertEqual(sorted(taken[start:start + stories]), list(range(stories)))
                self.assertEqual(self.state.order, [])

    def test_the_order_is_that_of_one_sample_an_epoch_from_the_data_seed(self):
        rng = random.Random(CONFIG["data_seed"])
        expected = [i for _ in range(4) for i in rng.sample(range(10), 10)]
        self.assertEqual(self.taken(10, 4, 10), expected)

    def test_a_shuffle_is_drawn_only_when_too_few_are_left(self):
        self.assertEqual(self.state.order, [])
        next_batch(self.state, 10, 4)
        drawn = self.state.rng.getstate()
        self.assertEqual(len(self.state.order), 6)
        next_batch(self.state, 10, 4)
        next_batch(self.state, 10, 2)
        self.assertEqual((self.state.order, self.state.rng.getstate()), ([], drawn))
        next_batch(self.state, 10, 4)
        self.assertNotEqual(self.state.rng.getstate(), drawn)

    def test_a_fresh_shuffle_goes_behind_what_is_left(self):
        self.state.order = [2, 0]
        taken = next_batch(self.state, 5, 4)
        self.assertEqual(taken[:2], [2, 0])
        self.assertEqual(sorted(taken[2:] + self.state.order), [0, 1, 2, 3, 4])


class TestTrainStep(unittest.TestCase):
    def test_a_step_is_a_batch_its_gradient_and_one_step_of_adam(self):
        state, sequences, _, cfg = tiny_state()
        twin = tiny_state()[0]
        for step in range(1, 6):
            train_step(state, sequences, cfg)
            batch = [sequences[i] for i in next_batch(twin, len(sequences), cfg["batch"])]
            loss, grads = train.batch_gradient(twin.params, batch)
            twin.adam.step(twin.params, grads)
            self.assertEqual((state.params, state.order, state.step, state.history[-1]),
                             (twin.params, twin.order, step, loss))
        self.assertEqual((state.adam.t, len(state.history)), (5, 5))

    def test_a_gradient_that_is_not_finite_names_the_step_and_changes_no_weight(self):
        state, sequences, _, cfg = tiny_state()
        train_step(state, sequences, cfg)
        adam = state.adam
        before = json.dumps([state.params, adam.m, adam.v, adam.t, state.step, state.history])
        for bad in (math.nan, math.inf, -math.inf):
            for name in state.params:
                grads = zeros_like(state.params)
                grads[name][-1][-1] = bad
                with self.subTest(bad=bad, parameter=name):
                    self.assert_stops(state, sequences, cfg, (1.5, grads),
                                      "step 2: the loss or its gradient is not finite (loss 1.5); "
                                      "a lower learning rate usually helps")
        after = json.dumps([state.params, adam.m, adam.v, adam.t, state.step, state.history])
        self.assertEqual(after, before)

    def assert_stops(self, state, sequences, cfg, loss_and_gradient, message):
        with mock.patch.object(train, "batch_gradient", lambda *_: loss_and_gradient), \
                self.assertRaises(FloatingPointError) as caught:
            train_step(state, sequences, cfg)
        self.assertEqual(str(caught.exception), message)

    def test_a_loss_that_is_not_finite_names_the_step(self):
        for loss in (math.nan, math.inf):
            state, sequences, _, cfg = tiny_state()
            with self.subTest(loss=loss):
                self.assert_stops(state, sequences, cfg, (loss, zeros_like(state.params)),
                                  f"step 1: the loss or its gradient is not finite (loss {loss}); "
                                  "a lower learning rate usually helps")

    def test_a_run_that_diverges_for_real_says_so(self):
        with self.assertRaisesRegex(FloatingPointError, r"^step \d+: the .* is not finite"):
            train.train(tokenizer(), TEXT, {**TINY, "learning_rate": 1e308, "steps": 40})

    def test_is_finite_looks_at_every_entry(self):
        self.assertTrue(is_finite({"a": [[1.0, -1e308], [0.0, 5e-324]], "b": []}))
        for bad in (math.nan, math.inf, -math.inf):
            for r, i in ((0, 0), (0, 1), (1, 0), (1, 1)):
                params = {"a": [[1.0]], "b": [[1.0, 2.0], [3.0, 4.0]]}
                params["b"][r][i] = bad
                with self.subTest(bad=bad, row=r, column=i):
                    self.assertFalse(is_finite(params))

    def test_a_copy_of_parameters_shares_no_row(self):
        params = {"a": [[1.0, 2.0]]}
        copy = copy_params(params)
        params["a"][0][1] = 5.0
        self.assertEqual(copy, {"a": [[1.0, 2.0]]})


class TestGarbageCollection(unittest.TestCase):
    def test_it_is_off_within_and_afterwards_as_it_was_also_after_an_error(self):
        was_on = gc.isenabled()
        self.addCleanup(gc.enable if was_on else gc.disable)
        for before in (True, False):
            (gc.enable if before else gc.disable)()
            with self.subTest(before=before), self.assertRaises(ZeroDivisionError), train.no_garbage_collection():
                self.assertFalse(gc.isenabled())
                raise ZeroDivisionError
            self.assertEqual(gc.isenabled(), before)

    def test_a_step_computes_its_gradient_without_it(self):
        seen = []
        state = train.new_state(8, {**CONFIG, "d": 4, "hidden": 4, "max_len": 8, "batch": 1})
        with mock.patch.object(train, "batch_gradient", lambda *_: seen.append(gc.isenabled()) or (1.0, train.zeros_like(state.params))):
            train.train_step(state, [[2, 3]], {**CONFIG, "batch": 1})
        self.assertEqual(seen, [False])


class TestEvaluate(unittest.TestCase):
    def setUp(self):
        self.state, self.sequences, self.dev, self.cfg = tiny_state()

    def scores(self, *losses):
        """What `evaluate` says for each of these development losses, one after each step."""
        said = []
        for loss in losses:
            self.state.step += 1
            self.state.params["wte"][0][0] = float(self.state.step)
            with mock.patch.object(train, "mean_loss", lambda *_, loss=loss: loss):
                said.append(evaluate(self.state, self.dev))
        return said

    def test_it_notes_the_mean_loss_of_the_development_stories_to_4_decimals(self):
        self.state.step = 3
        self.assertTrue(evaluate(self.state, self.dev))
        expected = round(mean_loss(self.state.params, self.dev), 4)
        self.assertEqual(self.state.dev_history, [{"step": 3, "dev_loss": expected}])
        self.assertEqual(self.state.best, {"step": 3, "dev_loss": expected, "params": self.state.params})

    def test_only_a_strictly_lower_loss_is_a_new_best(self):
        self.assertEqual(self.scores(2.0, 1.5, 1.5, 1.6, 1.2, 9.0), [True, True, False, False, True, False])
        self.assertEqual((self.state.best["step"], self.state.best["dev_loss"]), (5, 1.2))
        self.assertEqual(self.state.best["params"]["wte"][0][0], 5.0)
        noted = [entry["dev_loss"] for entry in self.state.dev_history]
        self.assertEqual(noted, [2.0, 1.5, 1.5, 1.6, 1.2, 9.0])

    def test_a_loss_equal_to_4_decimals_is_a_tie_and_the_earlier_stays(self):
        self.assertEqual(self.scores(1.50004, 1.50001, 1.49996, 1.49994), [True, False, False, True])
        self.assertEqual((self.state.best["step"], self.state.best["dev_loss"]), (4, 1.4999))

    def test_a_loss_that_is_not_finite_stops_and_is_never_the_best(self):
        self.scores(2.0)
        before = json.dumps([self.state.best, self.state.dev_history])
        for loss, shown in ((math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")):
            with self.subTest(loss=loss), self.assertRaises(FloatingPointError) as caught:
                self.scores(loss)
            self.assertEqual(str(caught.exception),
                             f"step {self.state.step}: the development loss is not finite ({shown}); "
                             "a lower learning rate usually helps")
            self.assertEqual(json.dumps([self.state.best, self.state.dev_history]), before)

    def test_a_first_loss_that_is_not_finite_is_no_best_either(self):
        with self.assertRaises(FloatingPointError):
            self.scores(math.nan)
        self.assertEqual((self.state.best, self.state.dev_history), (None, []))
        self.assertEqual(self.scores(2.0), [True])

    def test_the_best_parameters_are_a_copy_that_later_steps_do_not_change(self):
        evaluate(self.state, self.dev)
        before = json.dumps(self.state.best)
        train_step(self.state, self.sequences, self.cfg)
        self.assertEqual(json.dumps(self.state.best), before)
        self.assertNotEqual(self.state.best["params"], self.state.params)

    def test_evaluating_draws_no_random_number_and_changes_no_weight(self):
        train_step(self.state, self.sequences, self.cfg)
        params, everyones = copy_params(self.state.params), random.getstate()
        before = self.state.rng.getstate(), self.state.order[:]
        evaluate(self.state, self.dev)
        self.assertEqual((self.state.rng.getstate(), self.state.order), before)
        self.assertEqual((self.state.params, random.getstate()), (params, everyones))

    def test_it_is_due_every_so_many_steps_and_at_the_last(self):
        due = []
        for self.state.step in range(1, 12):
            if is_due(self.state, {**self.cfg, "eval_every": 4, "steps": 11}):
                due.append(self.state.step)
        self.assertEqual(due, [4, 8, 11])


class TestTrain(unittest.TestCase):
    def test_it_is_the_steps_of_train_step_scored_when_due(self):
        params, history, dev_history = train.train(tokenizer(), TEXT, TINY)
        state, sequences, dev, cfg = tiny_state()
        for _ in range(cfg["steps"]):
            train_step(state, sequences, cfg)
            if state.step in (3, 6, 7):
                evaluate(state, dev)
        self.assertEqual((params, history, dev_history), (state.params, state.history, state.dev_history))
        self.assertEqual([entry["step"] for entry in dev_history], [3, 6, 7])

    def test_it_ends_with_the_last_weights_and_not_the_best(self):
        with mock.patch.object(train, "mean_loss", side_effect=[1.0, 2.0, 3.0]):
            params, _, dev_history = train.train(tokenizer(), TEXT, TINY)
        self.assertEqual([entry["dev_loss"] for entry in dev_history], [1.0, 2.0, 3.0])
        self.assertEqual(params, train.train(tokenizer(), TEXT, TINY)[0])

    def test_how_often_it_is_scored_never_changes_a_weight(self):
        expected = train.train(tokenizer(), TEXT, TINY)
        for eval_every in (1, 2, 7, 1000):
            params, history, dev_history = train.train(tokenizer(), TEXT, {**TINY, "eval_every": eval_every})
            with self.subTest(eval_every=eval_every):
                self.assertEqual((params, history), expected[:2])
                self.assertEqual(dev_history[-1], expected[2][-1])

    def test_the_same_inputs_give_the_same_run_and_other_seeds_another(self):
        expected = train.train(tokenizer(), TEXT, TINY)
        self.assertEqual(train.train(tokenizer(), TEXT, TINY), expected)
        for seed in ("init_seed", "data_seed"):
            with self.subTest(seed=seed):
                self.assertNotEqual(train.train(tokenizer(), TEXT, {**TINY, seed: 99})[0], expected[0])

    def test_training_lowers_the_loss(self):
        history = train.train(tokenizer(), TEXT, {**TINY, "steps": 60, "eval_every": 60})[1]
        self.assertLess(math.fsum(history[-5:]), 0.8 * math.fsum(history[:5]))


# ---------------------------------------------------------------------------- scores

class TestChecksum(unittest.TestCase):
    def test_it_is_the_sum_of_squares_of_every_value(self):
        self.assertEqual(checksum({"a": [[1.0, -2.0], [3.0, 0.0]], "b": [[0.5]]}), 14.25)
        self.assertEqual(checksum({}), 0.0)

    def test_it_is_rounded_to_9_decimals(self):
        self.assertEqual(checksum({"a": [[1.0, 2e-5, 3e-5]]}), 1.000000001)

    def test_the_order_of_the_parameters_does_not_matter(self):
        self.assertEqual(checksum({"a": [[1e8]], "b": [[1e-3]], "c": [[0.1]]}),
                         checksum({"c": [[0.1]], "b": [[1e-3]], "a": [[1e8]]}))


def follower(tok, follows):
    """Parameters of a model that says which token follows which: {"a": "b"} says b after a.

    One column a token: a token's row of wte is its own column, and the head reads it there.
    """
    size = len(tok.vocab)
    params = {name: [[0.0] * columns for _ in range(rows)]
              for name, (rows, columns) in param_shapes(size, size, 1, 64).items()}
    for i in range(size):
        params["wte"][i][i] = 1.0
    for before, after in follows.items():
        params["lm_head"][tok.vocab.index(after)][tok.vocab.index(before)] = 1.0
    return params


class TestColorRecall(unittest.TestCase):
    """The stories' words are " red", " blue" and so on: pieces that a long training makes whole tokens."""

    def setUp(self):
        words = "Mia had a red cap. It was red. Mia had a blue cap. It was blue. It was bluered."
        self.tok = Tokenizer.train([words] * 3, 200)
        for word in (" red", " blue", " was"):
            self.assertIn(word, self.tok.vocab)

    def recall(self, follows, *stories, tok=None):
        return color_recall(follower(tok or self.tok, follows), tok or self.tok, stories)

    def test_it_counts_the_stories_whose_last_word_the_model_thinks_likeliest(self):
        red, blue = "Mia had a red cap. It was red.", "Mia had a blue cap. It was blue."
        self.assertEqual(self.recall({" was": " red"}, red, blue, red), {"correct": 2, "total": 3})
        self.assertEqual(self.recall({" was": " blue"}, red, blue, red), {"correct": 1, "total": 3})
        self.assertEqual(self.recall({" was": " cap"}, red, blue, red), {"correct": 0, "total": 3})

    def test_a_story_whose_last_word_was_not_named_earlier_is_not_counted(self):
        for story in ("Mia had a red cap. It was blue.", "Mia had a red cap.", "red", "", ".",
                      "Mia had a bluered cap. It was red."):
            with self.subTest(story=story):
                self.assertEqual(self.recall({" was": " red"}, story), {"correct": 0, "total": 0})

    def test_the_color_may_be_named_before_a_comma_or_a_stop_and_end_with_any_mark(self):
        for story in ("The cap was red. It was red.", "Mia had a red, a cap. It was red!", "Is it red red?",
                      "red was red"):
            with self.subTest(story=story):
                self.assertEqual(self.recall({}, story)["total"], 1)

    def test_a_tie_goes_to_the_lowest_id(self):
        for row, expected in (([1.0, 2.0, 2.0], 1), ([0.0, 0.0], 0), ([-1.0, -2.0], 0), ([3.0], 0)):
            self.assertEqual(most_likely(row), expected)
        self.assertEqual(self.recall({}, "Mia had a red cap. It was red."), {"correct": 0, "total": 1})

    def test_a_color_of_several_tokens_is_right_when_each_of_them_is(self):
        letters = Tokenizer(sorted(set("Mia had a red cap. It was red.")), [])
        right = {"s": " ", " ": "r", "r": "e", "e": "d"}
        self.assertEqual(self.recall(right, "red was red.", tok=letters), {"correct": 1, "total": 1})
        for wrong in ({"s": "r", " ": "r", "r": "e", "e": "d"}, {"s": " ", " ": "r", "r": "e", "e": "a"},
                      {"s": " ", " ": "a", "r": "e", "e": "d"}):
            with self.subTest(follows=wrong):
                self.assertEqual(self.recall(wrong, "red was red.", tok=letters), {"correct": 0, "total": 1})

    def test_a_story_longer_than_the_model_sees_is_asked_with_its_last_ids(self):
        story = "Mia had a red cap. " + "It was a cap. " * 40 + "It was red."
        self.assertEqual(self.recall({" was": " red"}, story), {"correct": 1, "total": 1})

    def test_every_test_story_of_the_labs_corpus_counts(self):
        train_stories, _, test = split_stories((HERE / "corpus.txt").read_text(encoding="utf-8"))
        tok = Tokenizer.train(train_stories, 128)
        recall = color_recall(init_params(len(tok.vocab), 4, 4, 64, 3), tok, test)
        self.assertEqual(recall["total"], 60)
        self.assertIn(recall["correct"], range(61))


# ---------------------------------------------------------------------------- the command line

class TestMain(unittest.TestCase):
    """`main` on a folder of its own, with a small text."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "corpus.txt").write_text(TEXT, encoding="utf-8")
        tokenizer().save(self.folder / "tokenizer.json")

    def main(self, *argv, **patches):
        """(exit status, standard output, standard error)."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.ExitStack() as stack:
            for name, value in {"HERE": self.folder, "CONFIG": TINY, **patches}.items():
                stack.enter_context(mock.patch.object(train, name, value))
            stack.enter_context(contextlib.redirect_stdout(out))
            stack.enter_context(contextlib.redirect_stderr(err))
            try:
                status = train.main(argv)
            except SystemExit as stop:
                status = stop.code
        return status, out.getvalue(), err.getvalue()

    def test_it_prints_the_losses_and_the_checksum(self):
        params, history, dev = train.train(tokenizer(), TEXT, {**TINY, "steps": 4})
        expected = [f"step    3  loss {history[2]:.4f}  dev loss {dev[0]['dev_loss']:.4f}",
                    f"step    4  loss {history[3]:.4f}  dev loss {dev[1]['dev_loss']:.4f}",
                    f"checksum {checksum(params)}"]
        self.assertEqual(self.main("--steps", "4"), (0, "\n".join(expected) + "\n", ""))

    def test_without_a_flag_the_steps_are_those_of_the_config(self):
        self.assertEqual(self.main(), self.main("--steps", str(TINY["steps"])))

    def test_no_steps_are_refused_in_one_sentence(self):
        self.assertEqual(self.main("--steps", "0"), (1, "", "train.py: config: 'steps' is 0; "
                                                            "expected a whole number from 1 up\n"))

    def test_a_wrong_command_line_is_exit_status_2(self):
        for argv in (["--steps", "many"], ["--steps"], ["--epochs", "3"], ["corpus.txt"]):
            status, out, err = self.main(*argv)
            with self.subTest(argv=argv):
                self.assertEqual((status, out), (2, ""))
                self.assertIn("usage:", err)

    def test_a_missing_file_is_named(self):
        for name in ("corpus.txt", "tokenizer.json"):
            (self.folder / name).rename(self.folder / "away")
            status, out, err = self.main("--steps", "1")
            (self.folder / "away").rename(self.folder / name)
            with self.subTest(name=name):
                self.assertEqual((status, out, err.count("\n")), (1, "", 1))
                self.assertIn(name, err)

    def test_too_few_stories_are_refused_in_one_sentence(self):
        (self.folder / "corpus.txt").write_text("one story\n", encoding="utf-8")
        self.assertEqual(self.main(), (1, "", "train.py: too few stories: 1 distinct; "
                                              "at least 7 are needed, one a line\n"))

    def test_a_run_that_diverges_is_refused_in_one_sentence(self):
        status, out, err = self.main("--steps", "40", CONFIG={**TINY, "learning_rate": 1e308})
        self.assertEqual((status, out), (1, ""))
        self.assertRegex(err, r"\Atrain\.py: step \d+: the .* is not finite.*\n\Z")

    def test_an_odd_machine_is_named_and_nothing_is_trained(self):
        status = self.main(machine_fault=lambda: "unsupported machine: it rounds oddly")
        self.assertEqual(status, (1, "", "train.py: unsupported machine: it rounds oddly\n"))


if __name__ == "__main__":
    unittest.main()
