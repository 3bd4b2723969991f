"""The numeric rules matter: the same network with `sum` and `math.exp` ends with other bits elsewhere.

The twin below is the lab's own network with its row operations, exp and log replaced by what one
would write first. It is trained for a few small steps with three kinds of sum: Python's own, one
from left to right (what `sum` did up to CPython 3.11, and does on PyPy), and one that compensates
as CPython 3.12 and newer do. The hashes show which of them this interpreter has.
"""
from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
import unittest
from unittest import mock

import portable
from bpe import Tokenizer
from checkpoint import params_sha256
from portable import machine_fault
from test_support import no_children
from train import CONFIG, train
from twins import plain_rows

TEXT = "\n".join(f"{name} had a {color} {thing}. The {thing} was still {color}."
                 for name in ("Mia", "Leo", "Ana") for color in ("red", "blue") for thing in ("hat", "cup", "kite"))
TINY = {**CONFIG, "d": 8, "hidden": 12, "max_len": 24, "steps": 10, "eval_every": 10}
LAB_SHA256 = "cd248842bd599062a9ecf505ac4f99c48cdfaa7f7a2bc041c2443a5a42e876ce"

# Build -> params_sha256 of the twin, as seen there. README shows this table.
OLD_SUM, NEW_SUM = "62657edc0c681930299c8e4c1bce9cf6a9585d32d64a4b610f747bc7546df835", "3ec1be0e98124bdafe9d5b37bc54eeb8f35108928e88f86ba6f545bc3aa0078f"
TWIN_SEEN = {
    "CPython 3.10, x86_64, glibc": OLD_SUM,
    "CPython 3.11, x86_64, glibc": OLD_SUM,
    "CPython 3.11, aarch64, glibc": OLD_SUM,
    "PyPy 3.9, x86_64, glibc": OLD_SUM,
    "CPython 3.12, x86_64, glibc": NEW_SUM,
    "CPython 3.13, x86_64, glibc": NEW_SUM,
    "CPython 3.11, x86_64, glibc, FMA off": "c07224ac1844aac4b691636512b5ec24401bd7e7f7a5dfb70c56db6d5062c6f4",
    "CPython 3.14, wasm32, musl": "176cf5566d629a826642f2fe77069612a71034b4fdf410d6379a859b8f5134c4",
}
NO_FMA = "glibc.cpu.hwcaps=-FMA,-AVX2,-FMA4,-AVX2_Usable,-FMA_Usable"


def build() -> str:
    """This interpreter, processor and C library, as TWIN_SEEN names them."""
    library = "musl" if sys.platform == "emscripten" else platform.libc_ver()[0] or sys.platform
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return ", ".join([f"{platform.python_implementation()} {sys.version_info[0]}.{sys.version_info[1]}",
                      platform.machine(), library, *(["FMA off"] if "-FMA" in tunables else [])])


def left_to_right(numbers) -> float:
    """What `sum` does up to CPython 3.11, and on PyPy."""
    total = 0.0
    for number in numbers:
        total += number
    return total


def compensated(numbers) -> float:
    """What `sum` does from CPython 3.12 on: Neumaier's sum, the lost low parts are added at the end."""
    total = lost = 0.0
    for number in numbers:
        new = total + number
        lost += (total - new) + number if abs(total) >= abs(number) else (number - new) + total
        total = new
    return total + lost


def twin_sha256(add=sum, exp=math.exp, log=math.log) -> str:
    """The parameter hash after ten small steps of the network as one would first write it."""
    exps = portable.exps if exp is portable.exp else lambda xs, shift: [exp(x - shift) for x in xs]
    with mock.patch.multiple("model", **plain_rows(add), exps=exps, log=log):
        return params_sha256(train(Tokenizer.train(TEXT, 40), TEXT, TINY)[0])


class TestSameBits(unittest.TestCase):
    def test_a_machine_that_computes_otherwise_is_named(self) -> None:
        self.assertEqual(machine_fault(), "")

    def test_the_lab_ends_with_the_same_bits_everywhere(self) -> None:
        digest = params_sha256(train(Tokenizer.train(TEXT, 40), TEXT, TINY)[0])
        self.assertEqual(digest, LAB_SHA256, "this machine or interpreter computes other floats: "
                         f"the recorded hashes cannot hold on it. {machine_fault()}")

    def test_the_written_out_rows_add_from_left_to_right(self) -> None:
        """With that sum and the portable exp and log, the plain twin is the lab to the last bit."""
        self.assertEqual(twin_sha256(left_to_right, portable.exp, portable.log), LAB_SHA256)

    def test_a_compensated_sum_gives_other_bits(self) -> None:
        self.assertNotEqual(twin_sha256(compensated, portable.exp, portable.log), LAB_SHA256)

    def test_the_built_in_sum_is_one_or_the_other_depending_on_the_version(self) -> None:
        own = twin_sha256(sum, portable.exp, portable.log)
        compensates = sys.implementation.name == "cpython" and sys.version_info >= (3, 12)
        self.assertEqual(own, twin_sha256(compensated if compensates else left_to_right, portable.exp, portable.log))

    def test_the_twin_was_seen_with_four_hashes_none_of_them_the_labs(self) -> None:
        self.assertEqual(len({*TWIN_SEEN.values()}), 4)
        self.assertNotIn(LAB_SHA256, TWIN_SEEN.values())

    def test_the_twin_has_the_hash_that_was_seen_on_this_build(self) -> None:
        """A C library's next release may change exp once more: that is the twin's trouble, not the lab's."""
        if build() in TWIN_SEEN and "glibc" not in build():
            self.assertEqual(twin_sha256(), TWIN_SEEN[build()])
        elif build() in TWIN_SEEN:
            self.assertIn(twin_sha256(), TWIN_SEEN.values())

    @unittest.skipUnless(sys.platform == "linux", "these switches are glibc's")
    @unittest.skipIf(no_children(), no_children())
    def test_the_c_library_without_fma_gives_the_lab_the_same_bits(self) -> None:
        """The twin's may differ there, and differ from each other; the lab's may not."""
        probe = ("import test_same_bits as t; from bpe import Tokenizer; "
                 "print(t.params_sha256(t.train(Tokenizer.train(t.TEXT, 40), t.TEXT, t.TINY)[0]))")
        done = subprocess.run([sys.executable, "-c", probe], env={**os.environ, "GLIBC_TUNABLES": NO_FMA},
                              cwd=os.path.dirname(os.path.abspath(__file__)), capture_output=True, text=True)
        self.assertEqual(done.stdout.strip(), LAB_SHA256, done.stderr)


if __name__ == "__main__":
    print(build(), twin_sha256())
