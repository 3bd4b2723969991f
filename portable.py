"""Arithmetic whose last bit is the same on every interpreter and processor.

A parameter hash after 600 steps is a chain of some billion floating-point operations; one that
rounds differently anywhere changes it. IEEE 754 fixes the result of + - * / and of the square root.
It does not fix exp and log (each C library has its own), and Python does not fix how `sum`
rounds (3.12 changed it). So everything here is made of + - * / in a written order, or of a sum
that is rounded once, whatever its order:

    exp, exps, log   within two units in the last place of the true value (exp above 0: two and a half)
    exact_sum        a sum that does not depend on its order
    dots, mix        the two row operations that the whole network is built of; pair_dots and
                     dots_where are dots that compute only what is asked for, outer_sum is a mix.
                     Each wants at least one row

Not handled: machines that compute in more than 64 bits (the 32-bit x87 unit); see `machine_fault`.
A float is a Python float, IEEE 754 binary64. Vector = list of floats, Matrix = list of vectors.
"""
from __future__ import annotations

import math
from functools import cache
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

Vector = List[float]
Matrix = List[Vector]
Rows = Sequence[Sequence[float]]

LN2_HIGH = 0.6931471803691238           # ln 2 cut to 32 bits: times a small integer it is exact
LN2_LOW = 1.9082149292705877e-10        # the rest of ln 2
SQRT_HALF = 0.7071067811865476


def _exp_table() -> Vector:
    """exp(-k / 256) for 0 <= k < 16384, each correctly rounded.

    Integers with 256 binary places do the work, so no C library has a say; dividing two
    integers rounds correctly in every Python.
    """
    one = 1 << 256
    ratio, term, n = 0, one, 0
    while term:                         # the series of exp(-1/256): 1 - 1/256 + (1/256)^2 / 2 - ...
        ratio += term if n % 2 == 0 else -term
        n += 1
        term //= 256 * n
    table, value = [], one
    for _ in range(16384):
        table.append(value / one)
        value = value * ratio >> 256
    return table


_EXP = _exp_table()


def exps(xs: Sequence[float], shift: float) -> Vector:
    """exp(x - shift) of every x, as softmax needs it: a call for each number would cost too much.

    For softmax's arguments, -64 < x <= 0, it is one table entry times a short series:
    x = r - k/256 with -1/256 < r <= 0, and r is exact because 256 is a power of two.
    """
    results, table, floor = [], _EXP, math.floor
    for x in xs:
        x -= shift
        if -64.0 < x <= 0.0:
            k = floor(x * -256.0)
            r = x + k / 256.0
            series = 1.0 + r * (1.0 + r * (1 / 2 + r * (1 / 6 + r * (1 / 24 + r * (1 / 120)))))
            results.append(table[k] * series)
        else:
            results.append(_exp_far(x))
    return results


def exp(x: float) -> float:
    """e to the power x. OverflowError above 709.78, as `math.exp` raises it."""
    return exps([x], 0.0)[0]


def _exp_far(x: float) -> float:
    """exp outside the table: exp(x) = 2^n exp(x - n ln 2), with -ln 2 <= x - n ln 2 <= 0.

    It stands below `exp`, which it calls with an argument inside the table.
    """
    if x != x or x == math.inf:
        return x
    if x > 710.0:                       # the largest float is e^709.78
        raise OverflowError("math range error")
    if x < -746.0:                      # the smallest positive one is e^-744.44
        return 0.0
    n = math.floor(x / LN2_HIGH) + 1
    scaled = exp((x - n * LN2_HIGH) - n * LN2_LOW)
    if n > -1000:
        return math.ldexp(scaled, n)
    # A product rounds a denormal result as IEEE 754 says; not every C library's ldexp does.
    return math.ldexp(scaled, n + 600) * math.ldexp(1.0, -600)


def log(x: float) -> float:
    """The natural logarithm of x. ValueError at or below zero, as `math.log` raises it.

    x = 2^n f with f near 1, and log f = 2 artanh(s) = 2 (s + s^3/3 + s^5/5 + ...), s = (f-1)/(f+1).
    """
    if x <= 0.0:
        raise ValueError("math domain error")
    if x != x or x == math.inf:
        return x
    f, n = math.frexp(x)
    if f < SQRT_HALF:
        f, n = 2.0 * f, n - 1
    s = (f - 1.0) / (f + 1.0)           # |s| <= 0.1716, so the terms below shrink 34-fold each
    square = s * s
    tail = 0.0
    for k in (23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3):
        tail = (tail + 1.0 / k) * square
    return n * LN2_HIGH + (2.0 * s + (2.0 * s * tail + n * LN2_LOW))


def exact_sum(values: Sequence[float]) -> float:
    """The sum, rounded once, whatever the order (Shewchuk's method); NaN where it overflows."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):     # a sum too large on the way, or infinities of both signs
        return math.nan


# Why is this fast? An interpreter pays for each instruction, not for each multiplication. A loop
# over pairs fetches, unpacks, stores two, loads three, multiplies, adds, stores and jumps: eleven
# instructions a pair. Written out for the width, x0*w0 + x1*w1 + ..., five are left (store, load,
# load, multiply, add), and the `for` statement itself unpacks the row. The price is a function for
# each width, so a template writes it.
_TEMPLATE = """
def dots(xs, rows):
    return [[{dot} for {w} in rows] for {x} in xs]

def dots_where(xs, rows, masks):
    return [[{dot} if on else 0.0 for ({w}), on in zip(rows, mask)] for ({x}), mask in zip(xs, masks)]

def pair_dots(xs, ws):
    return [{dot} for ({x}), ({w}) in zip(xs, ws)]

def mix(coefficients, rows):
    mixed = []
    for row_of_coefficients in coefficients:
        {a} = {zeros}
        for c, row in zip(row_of_coefficients, rows):
            if c:
                {w} = row
                {accumulate}
        mixed.append([{a}])
    return mixed

def outer_sum(columns, rows):
    sums = [[{zeros}] for _ in columns[0]]
    for m in range(0, len(rows), {block}):
        {block_of_rows} = rows[m:m + {block}]
        before, sums = sums, []
        for ({a}), ({cs}) in zip(before, zip(*columns[m:m + {block}])):
            sums.append([{accumulate_block}])
    return sums
"""


class RowOperations(NamedTuple):
    """The functions of the template, written out for one width."""
    dots: Callable[[Rows, Rows], Matrix]
    dots_where: Callable[[Rows, Rows, Rows], Matrix]
    pair_dots: Callable[[Rows, Rows], Vector]
    mix: Callable[[Rows, Rows], Matrix]
    outer_sum: Callable[[Rows, Rows], Matrix]


def block_rows(width: int) -> int:
    """How many rows `outer_sum` keeps in local variables, so that it stores a sum once for all of them.

    CPython reaches 256 local variables with one instruction each; every further one takes two.
    """
    return max(1, min(8, 128 // width))


@cache
def row_operations(width: int) -> RowOperations:
    """The row operations written out for rows of `width` floats; x0, x1, ... are the entries of a row x."""
    def each(form: str, between: str = "") -> str:
        return between.join(form.format(i=i) for i in range(width))

    block = range(block_rows(width))
    source = _TEMPLATE.format(
        dot=each("x{i}*w{i}", " + "), x=each("x{i}, "), w=each("w{i}, "), a=each("a{i}, "),
        zeros=each("0.0, "), accumulate=each("a{i} += c*w{i}", "; "),
        block=len(block), cs="".join(f"c{r}, " for r in block),
        block_of_rows="".join("(" + each(f"w{r}_{{i}}, ") + "), " for r in block),
        accumulate_block=each("a{i}" + "".join(f" + c{r}*w{r}_{{i}}" for r in block) + ", "))
    functions: Dict[str, Any] = {}
    exec(source, functions)  # the text is made above, of numbers alone
    return RowOperations(*[functions[name] for name in RowOperations._fields])


def dots(xs: Rows, rows: Rows) -> Matrix:
    """xs (N, d), rows (M, d) -> (N, M): entry n, m is xs[n] . rows[m], added from left to right."""
    return row_operations(len(rows[0])).dots(xs, rows)


def dots_where(xs: Rows, rows: Rows, masks: Rows) -> Matrix:
    """`dots`, but 0.0 where masks (N, M) is zero: a gradient that a ReLU stops is not even computed."""
    return row_operations(len(rows[0])).dots_where(xs, rows, masks)


def pair_dots(xs: Rows, ws: Rows) -> Vector:
    """xs (N, d), ws (N, d) -> (N,): entry n is xs[n] . ws[n], as `dots` adds it."""
    return row_operations(len(ws[0])).pair_dots(xs, ws)


def mix(coefficients: Rows, rows: Rows) -> Matrix:
    """coefficients (N, M), rows (M, d) -> (N, d): row n is the sum of coefficients[n][m] * rows[m].

    Added in order of m, from 0.0. A coefficient of zero (a ReLU that is off, half of them) is
    skipped; for finite rows that never changes a bit.
    """
    return row_operations(len(rows[0])).mix(coefficients, rows)


def outer_sum(columns: Rows, rows: Rows) -> Matrix:
    """columns (M, N), rows (M, d) -> (N, d): the sum of M outer products, `mix(transpose(columns), rows)`.

    For finite rows the same bits, and faster where few coefficients are zero: it skips none.
    """
    width, filled = len(rows[0]), -len(rows) % block_rows(len(rows[0]))
    columns = [*columns, *[[0.0] * len(columns[0])] * filled]       # a block of zeros adds nothing
    return row_operations(width).outer_sum(columns, [*rows, *[[0.0] * width] * filled])


def machine_fault() -> str:
    """"" where floats behave as IEEE 754 binary64 demands, else a sentence that says what is odd."""
    # Made by ldexp: what stands in the source as 1.0 / 2.0 is computed by the compiler, not by the machine.
    half_a_bit, smallest = math.ldexp(1.0, -53), math.ldexp(1.0, -1074)
    if 1.0 + half_a_bit != 1.0 or 1.0 + half_a_bit * (1.0 + 2.0 * half_a_bit) == 1.0:
        return ("unsupported machine: it does not round each sum to 64 bits "
                "(excess precision, as on the 32-bit x87 unit)")
    if smallest + smallest == 0.0 or smallest / 2.0 != 0.0:
        return "unsupported machine: it flushes denormal numbers to zero"
    return ""
