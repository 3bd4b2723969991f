"""What portable.py promises: exp and log to the last bit, and the row operations to the last bit.

The golden values come first. Where they fail, this machine or interpreter is odd, and whatever
else fails after them (a hash, a checkpoint, the record) fails for that reason.
"""
from __future__ import annotations

import decimal
import math
import random
import unittest
from decimal import Decimal

import portable
from portable import (
    block_rows,
    dots,
    dots_where,
    exact_sum,
    exp,
    exps,
    log,
    machine_fault,
    mix,
    outer_sum,
    pair_dots,
    row_operations,
)

NAN, INF = math.nan, math.inf
CELLS = 256                             # table cells per unit of x
TABLE_SIZE = CELLS * 64

EXP_GOLDEN = {
    -0.00390625: "0x1.fe00ffaabffbcp-1",
    -0.001: "0x1.ff7cfe56f1a9ep-1",
    -0.1: "0x1.cf46d99d52b3ap-1",
    -0.5: "0x1.368b2fc6f960ap-1",
    -1.0: "0x1.78b56362cef38p-2",
    -2.718281828459045: "0x1.0e49787e20549p-4",
    -10.0: "0x1.7cd79b5647c9bp-15",
    -36.737631550093546: "0x1.ff9320818d215p-54",
    -63.99: "0x1.9ab36ed5899ccp-93",
    -64.01: "0x1.9291885e17682p-93",
    -100.0: "0x1.a8c1f14e2af5dp-145",
    -700.0: "0x1.14f2b0fb9307fp-1010",
    -710.5: "0x0.1f3c9d0fbe022p-1022",
    1.0: "0x1.5bf0a8b145769p+1",
    100.0: "0x1.3494a9b171bf5p+144",
    521.939826903869: "0x1.fffffe0fc2b75p+752",
}
LOG_GOLDEN = {
    5e-324: "-0x1.74385446d71c3p+9",
    1e-310: "-0x1.64e69394d9508p+9",
    0.1: "-0x1.26bb1bbb55515p+1",
    0.7071067811865475: "-0x1.62e42fefa39f1p-2",
    0.9999999999999999: "-0x1.0000000000000p-53",
    1.0002405049353709: "0x1.f8509458368cap-13",
    1.0039437: "0x1.01f22ec24da75p-8",
    2.0: "0x1.62e42fefa39efp-1",
    3.0: "0x1.193ea7aad030bp+0",
    10.0: "0x1.26bb1bbb55516p+1",
    128.0: "0x1.3687a9f1af2b1p+2",
    1e+300: "0x1.5963447f87fb5p+9",
}


def bits(matrix):
    """A matrix as text that tells 0.0 from -0.0 and shows every bit."""
    return [[x.hex() for x in row] for row in matrix]


def oddness(what):
    """The message of a golden test that fails."""
    return (f"{what} is not what every other machine computes: this machine or interpreter computes floats "
            f"differently, so no recorded hash can hold on it. machine_fault() says: "
            f"{machine_fault() or 'nothing odd about sums and denormals'}")


class TestAGoldenValues(unittest.TestCase):
    """The same bits on every machine. These run before all else here."""

    def test_exp_gives_the_bits_that_every_machine_gives(self):
        for x, expected in EXP_GOLDEN.items():
            with self.subTest(x=x):
                self.assertEqual(exp(x).hex(), expected, oddness(f"exp({x!r})"))

    def test_log_gives_the_bits_that_every_machine_gives(self):
        for x, expected in LOG_GOLDEN.items():
            with self.subTest(x=x):
                self.assertEqual(log(x).hex(), expected, oddness(f"log({x!r})"))

    def test_a_dot_product_gives_the_bits_that_every_machine_gives(self):
        rows = [[0.1] * 10, [0.1, 1e16, -1e16, 0.3, 0.7, 1e-3, 3.0, -0.7, 0.2, 5e-324]]
        ones = [1.0] * 10
        self.assertEqual(bits(dots([ones], rows)), [["0x1.fffffffffffffp-1", "0x1.c020c49ba5e34p+1"]],
                         oddness("a sum from left to right"))
        self.assertEqual(bits(mix([[0.1, 3.0]], [row[:2] for row in rows])),
                         [["0x1.3d70a3d70a3d8p-2", "0x1.aa535d3d0c000p+54"]], oddness("a weighted sum"))

    def test_this_machine_has_no_known_fault(self):
        self.assertEqual(machine_fault(), "")


class TestAccuracy(unittest.TestCase):
    """Against `decimal`, which computes to as many places as it is asked for."""

    def setUp(self):
        context = decimal.localcontext()
        settings = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        settings.prec, settings.Emin, settings.Emax = 40, -10 ** 5, 10 ** 5

    def error(self, found, true):
        """How far `found` is from `true`, in units in the last place of a float near `true`."""
        return abs(Decimal(found) - true) / Decimal(math.ulp(float(true)))

    def assert_close(self, found, true, bound, x):
        error = self.error(found, true)
        self.assertLessEqual(error, bound, f"{x!r} ({x.hex()}): {error:.3f} units in the last place off")

    def assert_exp_close(self, points, bound):
        for x in points:
            self.assert_close(exp(x), Decimal(x).exp(), Decimal(bound), x)

    def test_exp_is_within_two_units_where_softmax_asks_for_it(self):
        rng = random.Random(1)
        self.assert_exp_close((rng.uniform(-64.0, 0.0) for _ in range(1500)), "2")

    def test_exp_is_within_two_units_at_the_borders_of_the_table_and_its_cells(self):
        borders = [-k / 256 for k in range(0, TABLE_SIZE + 512, 97)]
        beside = [math.nextafter(x, towards) for x in borders[1:] for towards in (-INF, INF)]
        self.assert_exp_close(borders + beside + [-63.99, -64.0, -64.01, -5e-324, -1e-300], "2")

    def test_exp_is_within_two_units_down_to_the_smallest_float(self):
        rng = random.Random(2)
        far = [rng.uniform(-745.0, -64.0) for _ in range(500)]
        denormal = [rng.uniform(-745.1, -708.0) for _ in range(100)]
        self.assert_exp_close([*far, *denormal, -708.3964185322641, -744.4400719213812, -745.0], "2")

    def test_exp_above_zero_which_the_network_never_asks_is_within_two_and_a_half(self):
        """Just below a power of two a unit is half as large; the worst point known is one of these."""
        rng = random.Random(3)
        points = [rng.uniform(0.0, 709.7) for _ in range(500)] + [5e-324, 1.0, 709.7]
        points += [k * 0.6931471805599453 * (1.0 - 1e-10) for k in range(1, 1024, 7)]
        self.assert_exp_close([*points, float.fromhex("0x1.04f84c3f7c025p+9")], "2.5")

    def test_log_is_within_two_units(self):
        rng = random.Random(4)
        points = [rng.uniform(1.0, 200.0) for _ in range(500)]      # softmax sums: 1 to the vocabulary's size
        points += [rng.uniform(0.5, 2.0) for _ in range(500)]
        points += [1.0 + math.ldexp(rng.uniform(0.5, 1.0), rng.randrange(-50, -3)) for _ in range(500)]
        points += [math.ldexp(rng.uniform(0.5, 1.0), rng.randrange(-1073, 1024)) for _ in range(300)]
        points += [0.7071067811865475, 0.7071067811865476, 0.9999999999999999, 1.0000000000000002]
        for x in points:
            self.assert_close(log(x), Decimal(x).ln(), 2, x)

    def test_log_is_within_two_units_at_the_ends_of_the_floats(self):
        for x in (5e-324, 1e-323, 1e-310, 2.225073858507201e-308, 2.2250738585072014e-308,
                  1.7976931348623157e308):
            with self.subTest(x=x):
                self.assert_close(log(x), Decimal(x).ln(), 2, x)

    def test_every_entry_of_the_table_is_correctly_rounded(self):
        """Each entry is within half a unit of exp(-k/256), which one product carries from entry to entry."""
        decimal.getcontext().prec = 60
        ratio, value = (Decimal(-1) / CELLS).exp(), Decimal(1)
        self.assertEqual(len(portable._EXP), TABLE_SIZE)
        for k, entry in enumerate(portable._EXP):
            if entry != float(value):
                self.fail(f"entry {k} is {entry.hex()}, exp(-{k}/256) rounds to {float(value).hex()}")
            value *= ratio

    def test_the_product_that_the_table_is_compared_with_is_right_itself(self):
        decimal.getcontext().prec = 60
        ratio, value = (Decimal(-1) / CELLS).exp(), Decimal(1)
        for _ in range(TABLE_SIZE - 1):
            value *= ratio
        true = (Decimal(1 - TABLE_SIZE) / CELLS).exp()
        self.assertLess(abs(value / true - 1), Decimal("1e-54"))


class TestSpecialValues(unittest.TestCase):
    def test_exp_of_zero_is_one_whatever_its_sign(self):
        for zero in (0.0, -0.0, 0):
            self.assertEqual(exp(zero).hex(), (1.0).hex())

    def test_exp_far_below_zero_is_zero(self):
        for x in (-745.2, -746.0, -746.1, -1e308, -INF):
            with self.subTest(x=x):
                self.assertEqual(exp(x).hex(), (0.0).hex())

    def test_the_last_x_above_zero_still_has_a_denormal_exp(self):
        self.assertEqual(exp(-745.13), 5e-324)
        self.assertEqual(exp(-745.0), 5e-324)

    def test_exp_too_large_for_a_float_is_an_overflow_error(self):
        self.assertEqual(exp(709.782712893384), float.fromhex("0x1.fffffffffff2bp+1023"))
        for x in (709.7827128933841, 710.0, 710.1, 1e308):
            with self.subTest(x=x), self.assertRaisesRegex(OverflowError, "^math range error$"):
                exp(x)

    def test_infinity_and_nan_pass_through(self):
        for function in (exp, log):
            with self.subTest(function=function.__name__):
                self.assertEqual(function(INF), INF)
                self.assertTrue(math.isnan(function(NAN)))

    def test_log_of_one_is_zero(self):
        self.assertEqual(log(1.0).hex(), (0.0).hex())

    def test_log_of_zero_or_less_is_a_value_error(self):
        for x in (0.0, -0.0, -5e-324, -1.0, -INF):
            with self.subTest(x=x), self.assertRaisesRegex(ValueError, "^math domain error$"):
                log(x)

    def test_exp_never_falls_where_x_rises_by_a_cell(self):
        values = [exp(-k / 32) for k in range(32 * 70)]
        self.assertEqual(values, sorted(values, reverse=True))


def plain_dots(xs, rows):
    """`dots` as two loops and a sum would have it."""
    result = []
    for x in xs:
        result.append([])
        for row in rows:
            total = x[0] * row[0]
            for a, b in zip(x[1:], row[1:]):
                total = total + a * b
            result[-1].append(total)
    return result


def plain_mix(coefficients, rows):
    """`mix` as two loops have it, no zero skipped."""
    result = []
    for row_of_coefficients in coefficients:
        total = [0.0] * len(rows[0])
        for c, row in zip(row_of_coefficients, rows):
            for i, value in enumerate(row):
                total[i] = total[i] + c * value
        result.append(total)
    return result


def awkward(rng, rows, columns):
    """Floats of every size, with zeros of both signs among them."""
    def number():
        x = rng.uniform(-1, 1)
        return rng.choice((0.0, -0.0, x, math.ldexp(x, rng.randint(-60, 60))))

    return [[number() for _ in range(columns)] for _ in range(rows)]


class TestRowOperations(unittest.TestCase):
    def test_dots_has_the_bits_of_two_plain_loops(self):
        rng = random.Random(5)
        for width in (1, 2, 3, 4, 16, 17, 300):
            xs, rows = awkward(rng, 9, width), awkward(rng, 7, width)
            with self.subTest(width=width):
                self.assertEqual(bits(dots(xs, rows)), bits(plain_dots(xs, rows)))

    def test_mix_has_the_bits_of_two_plain_loops(self):
        rng = random.Random(6)
        for width in (1, 2, 3, 4, 16, 17, 300):
            coefficients, rows = awkward(rng, 9, 7), awkward(rng, 7, width)
            with self.subTest(width=width):
                self.assertEqual(bits(mix(coefficients, rows)), bits(plain_mix(coefficients, rows)))

    def test_outer_sum_has_the_bits_of_two_plain_loops_however_many_rows_fill_its_blocks(self):
        rng = random.Random(7)
        for width in (1, 3, 16, 17, 100, 300):
            for rows in {1, 7, block_rows(width), block_rows(width) + 1}:
                columns, w = awkward(rng, rows, 9), awkward(rng, rows, width)
                with self.subTest(width=width, rows=rows):
                    self.assertEqual(bits(outer_sum(columns, w)), bits(plain_mix([*zip(*columns)], w)))

    def test_outer_sum_keeps_to_256_local_variables_where_the_width_lets_it(self):
        """x, its block and its sums; a function of more is right but slower."""
        for width in (1, 4, 16, 32, 64, 100):
            with self.subTest(width=width):
                self.assertLess(row_operations(width).outer_sum.__code__.co_nlocals, 256)

    def test_pair_dots_has_the_bits_of_dots(self):
        rng = random.Random(8)
        for width in (1, 2, 16, 300):
            xs, ws = awkward(rng, 9, width), awkward(rng, 9, width)
            with self.subTest(width=width):
                self.assertEqual(bits([pair_dots(xs, ws)]), bits([[plain_dots([x], [w])[0][0] for x, w in zip(xs, ws)]]))

    def test_dots_where_computes_what_the_mask_lets_through(self):
        rng = random.Random(9)
        xs, rows, masks = awkward(rng, 9, 4), awkward(rng, 7, 4), awkward(rng, 9, 7)
        masked = [[product if on else 0.0 for product, on in zip(*pair)] for pair in zip(plain_dots(xs, rows), masks)]
        self.assertEqual(bits(dots_where(xs, rows, masks)), bits(masked))
        self.assertEqual(dots_where([[2.0]], [[INF], [1.5]], [[0.0, 1.0]]), [[0.0, 3.0]])

    def test_a_sum_of_nothing_but_zeros_is_plus_zero(self):
        for coefficients in ([0.0, 0.0], [-0.0, -0.0], [-0.0, 1.0]):
            with self.subTest(coefficients=coefficients):
                self.assertEqual(bits(mix([coefficients], [[5.0, -5.0], [-0.0, 0.0]])), bits([[0.0, 0.0]]))

    def test_the_sign_of_a_single_product_of_zero_is_kept_by_dots(self):
        self.assertEqual(bits(dots([[-0.0]], [[3.0]])), bits([[-0.0]]))

    def test_a_zero_coefficient_is_skipped(self):
        self.assertEqual(mix([[0.0, 2.0]], [[INF], [1.5]]), [[3.0]])

    def test_the_order_is_from_left_to_right_and_shows_in_the_last_bit(self):
        row = [1e16, 1.0, -1e16, 1.0]
        self.assertEqual(dots([[1.0] * 4], [row]), [[1.0]])
        self.assertEqual(mix([[1.0] * 4], [[x] for x in row]), [[1.0]])

    def test_tuples_serve_as_rows_and_rows_of_another_width_are_refused(self):
        self.assertEqual(dots([(1.0, 2.0)], [(3.0, 4.0)]), [[11.0]])
        self.assertEqual(mix([(1.0, 2.0)], [(3.0, 4.0), (5.0, 6.0)]), [[13.0, 16.0]])
        with self.assertRaises(ValueError):
            dots([[1.0, 2.0, 3.0]], [[3.0, 4.0]])
        with self.assertRaises(ValueError):
            mix([[1.0, 2.0]], [[3.0, 4.0], [5.0]])

    def test_nothing_to_do_gives_nothing(self):
        self.assertEqual(dots([], [[1.0]]), [])
        self.assertEqual(mix([], [[1.0]]), [])

    def test_exps_is_exp_of_every_difference(self):
        xs = [3.5, -1.0, 700.0, 0.1, -800.0]
        self.assertEqual(bits([exps(xs, 0.1)]), bits([[exp(x - 0.1) for x in xs]]))
        self.assertEqual(exps([], 0.0), [])

    def test_an_exact_sum_does_not_depend_on_the_order_and_an_overflow_is_nan(self):
        values = [1e16, 1.0, -1e16, 1.0, 0.1]
        self.assertEqual({exact_sum(order) for order in (values, values[::-1], sorted(values))}, {2.1})
        for bad in ([INF, -INF], [1.7e308, 1.7e308], [math.nan]):
            self.assertTrue(math.isnan(exact_sum(bad)), bad)

    def test_the_functions_of_a_width_are_made_once(self):
        self.assertIs(row_operations(5), row_operations(5))


if __name__ == "__main__":
    unittest.main()
