"""The rules that every module keeps, read from its source: imports, arithmetic, silence, files.

They hold for each `.py` beside this file that is no test. Each rule is a function from a syntax
tree to the lines that break it; the first class shows that every rule does find what it forbids.
"""
from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import io
import os
import random
import sys
import types
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
MODULES = sorted(path.stem for path in HERE.glob("*.py") if not path.name.startswith("test_"))
RANKS = {"strict_json": 0, "disk": 0, "console": 0, "checkpoint_file": 1, "portable": 1, "bpe": 1, "model": 2, "train": 3, "verify": 4,
         "checkpoint": 5}
LEAF = 6                        # all others: nothing of these imports them, and they import no circle
BENCHMARK = ("bench", "bench_checkpoints", "measure", "twins")      # no recorded value is computed there

# What IEEE 754 and the language fix to the last bit (or is no arithmetic at all).
EXACT = {
    "math": {"sqrt", "fsum", "ldexp", "frexp", "floor", "ceil", "isfinite", "isinf", "isnan", "inf", "nan"},
    "random": {"Random"},
}
INEXACT_MODULES = {"cmath", "statistics"}
INEXACT_BUILTINS = {"sum", "pow"}
INEXACT_DRAWS = {"gauss", "normalvariate", "lognormvariate", "expovariate", "vonmisesvariate", "gammavariate",
                 "betavariate", "paretovariate", "weibullvariate", "triangular", "binomialvariate"}


def tree_of(module):
    return ast.parse((HERE / f"{module}.py").read_text(encoding="utf-8"), f"{module}.py")


# ---------------------------------------------------------------------------- the rules

def imports(tree):
    """(line, module) of every import, wherever it stands; with a dot before it if only running would tell."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." * node.level + (node.module or "")
        elif isinstance(node, ast.Call) and called(node) in ("__import__", "import_module"):
            name = node.args[0] if node.args else None
            yield node.lineno, name.value if isinstance(name, ast.Constant) else f".{ast.unparse(node)}"


def called(node):
    """The last part of a called name: "open" for `open(...)` and for `path.open(...)`."""
    return getattr(node.func, "id", None) or getattr(node.func, "attr", "")


def guarded_lines(tree):
    """The lines inside a `try` that catches ImportError."""
    return {inner.lineno for node in ast.walk(tree) if isinstance(node, ast.Try)
            for handler in node.handlers if "ImportError" in ast.dump(handler.type or ast.Pass())
            for statement in node.body for inner in ast.walk(statement) if hasattr(inner, "lineno")}


def wrong_arrows(module, tree):
    """Imports of a lab module that is not below this one; leaves may import leaves."""
    rank = RANKS.get(module, LEAF)
    return [f"line {line}: {module} imports {name}" for line, name in imports(tree)
            if name in MODULES and not (RANKS.get(name, LEAF) < rank or rank == LEAF)]


def foreign_imports(module, tree):
    """Imports from outside the standard library and the lab, or by a name that only running would tell."""
    allowed = {*sys.stdlib_module_names, *MODULES}
    tried = guarded_lines(tree) if module == "twins" else set()
    return [f"line {line}: {module} imports {name}" for line, name in imports(tree)
            if name.split(".")[0] not in allowed and not (name == "numpy" and line in tried)]


def circle(arrows):
    """The names of some modules that import one another in a circle, or []."""
    arrows = dict(arrows)
    while True:
        ends = [name for name, targets in arrows.items() if not any(target in arrows for target in targets)]
        if not ends:
            return sorted(arrows)
        for name in ends:
            del arrows[name]


def inexact(tree):
    """What may give other bits on another machine or version; portable.py says why."""
    for node in ast.walk(tree):
        found = []
        if isinstance(node, ast.Name) and node.id in INEXACT_BUILTINS:
            found = [node.id]
        elif isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.Pow):
            found = ["**"]
        elif isinstance(node, ast.Attribute):
            allowed = EXACT.get(getattr(node.value, "id", None), {node.attr})
            if node.attr not in allowed or node.attr in INEXACT_DRAWS:
                found = [ast.unparse(node)]
        elif isinstance(node, ast.ImportFrom) and node.module in EXACT:
            found = [f"{node.module}.{a.name}" for a in node.names if a.name not in EXACT[node.module]]
        elif isinstance(node, ast.Import):      # under another name, the lines above would not know it
            found = [f"{a.name} as {a.asname}" for a in node.names if a.name in EXACT and a.asname]
        yield from (f"line {node.lineno}: {what}" for what in found)
    yield from (f"line {line}: {name}" for line, name in imports(tree) if name in INEXACT_MODULES)


def asserts(tree):
    """`assert` vanishes under -O, so it protects nothing."""
    return [f"line {node.lineno}: assert" for node in ast.walk(tree) if isinstance(node, ast.Assert)]


def text_without_encoding(tree):
    """Text files opened in whatever encoding the system has: another one on Windows."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and not any(word.arg == "encoding" for word in node.keywords):
            name = ast.unparse(node.func)
            if name in ("open", "io.open", "os.fdopen"):
                modes = node.args[1:2] + [word.value for word in node.keywords if word.arg == "mode"]
                binary = any("b" in str(getattr(mode, "value", "")) for mode in modes)
                given = binary or len(node.args) > 3
            else:
                given = len(node.args) > {"read_text": 0, "write_text": 1}.get(called(node), -1)
            if not given:
                yield f"line {node.lineno}: {ast.unparse(node)}"


needs_the_list = unittest.skipUnless(hasattr(sys, "stdlib_module_names"),
                                     "Python 3.9 has no list of its standard library")


class TestTheRulesThemselves(unittest.TestCase):
    """Each rule finds what it forbids, and nothing in what is allowed."""

    def found(self, rule, *sources):
        return [bool(list(rule(ast.parse(source)))) for source in sources]

    def assert_finds(self, rule, forbidden, allowed):
        for source in forbidden:
            with self.subTest(rule=rule.__name__, forbidden=source):
                self.assertEqual(self.found(rule, source), [True])
        for source in allowed:
            with self.subTest(rule=rule.__name__, allowed=source):
                self.assertEqual(self.found(rule, source), [False])

    def test_inexact_arithmetic_is_found(self):
        self.assert_finds(
            inexact,
            ("total = sum(x)", "totals = map(sum, rows)", "y = pow(x, 2)", "y = x ** 2", "x **= 2",
             "math.exp(x)", "f = math.log", "math.pow(x, y)", "math.tanh(x)", "math.sin(x)",
             "from math import sqrt, exp", "import math as m", "from statistics import mean",
             "import cmath",
             "rng.gauss(0, 1)", "rng.normalvariate()", "random.random()", "from random import random",
             "def f():\n    return sum(x)", "f'{x ** 2}'"),
            ("math.fsum(x)", "math.sqrt(x)", "y = x * x", "f(**options)", "{**a, **b}", "rng.uniform(0, 1)",
             "random.Random(3)", "'sum(x) ** 2'", "from math import sqrt, fsum", "portable.exp(x)",
             "self.sum"))

    def test_asserts_are_found(self):
        self.assert_finds(asserts, ("assert x", "def f():\n    assert x, 'message'"),
                          ("'assert x'", "self.assert_(x)"))

    def test_text_without_encoding_is_found(self):
        self.assert_finds(
            text_without_encoding,
            ("open(p)", "open(p, 'w')", "open(p, mode='r')", "io.open(p)", "os.fdopen(d, 'w')",
             "p.read_text()", "Path(p).write_text(t)", "p.write_text(t, newline='')"),
            ("open(p, 'rb')", "open(p, mode='wb')", "open(p, encoding='utf-8')", "p.read_text('utf-8')",
             "p.read_text(encoding='ascii')", "p.write_text(t, encoding='utf-8')", "os.open(p, flags)",
             "archive.open(name)", "p.read_bytes()", "os.fdopen(d, 'wb')"))

    def test_imports_are_found_wherever_they_stand(self):
        source = ("import a, b.c\nfrom d.e import f\nfrom . import g\ndef f():\n    import h\n"
                  "try:\n    import i\nexcept ImportError:\n    i = None\n"
                  "importlib.import_module(j)\n__import__('k')\n")
        self.assertEqual(sorted(name for _, name in imports(ast.parse(source))),
                         [".", ".importlib.import_module(j)", "a", "b.c", "d.e", "h", "i", "k"])
        self.assertEqual(guarded_lines(ast.parse(source)), {7})

    @needs_the_list
    def test_an_import_from_outside_the_standard_library_is_found(self):
        guarded = "try:\n    import numpy\nexcept ImportError:\n    numpy = None\n"
        for module, source, foreign in (
                ("model", "import numpy", True), ("model", guarded, True),
                ("model", "import test_model", True), ("model", "from . import portable", True),
                ("model", "__import__(name)", True), ("twins", "import numpy", True),
                ("twins", guarded, False), ("model", "import math", False),
                ("model", "import os.path, portable", False), ("talk", "__import__('readline')", False)):
            with self.subTest(module=module, source=source):
                self.assertEqual(bool(foreign_imports(module, ast.parse(source))), foreign)

    def test_an_arrow_the_other_way_is_found(self):
        for module, name, wrong in (
                ("portable", "bpe", True), ("bpe", "portable", True), ("model", "train", True),
                ("train", "checkpoint", True), ("verify", "checkpoint", True), ("model", "model", True),
                ("checkpoint", "trace_checkpoints", True), ("model", "portable", False),
                ("checkpoint", "verify", False), ("trace_checkpoints", "make_corpus", False),
                ("bpe", "json", False)):
            with self.subTest(module=module, imports=name):
                self.assertEqual(bool(wrong_arrows(module, ast.parse(f"from {name} import x"))), wrong)

    def test_a_circle_is_found(self):
        self.assertEqual(circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}), ["a", "b", "c"])
        self.assertEqual(circle({"a": {"b", "c"}, "b": {"c"}, "c": set(), "d": {"json"}}), [])


class TestModules(unittest.TestCase):
    def assert_kept(self, rule, modules):
        for module in modules:
            with self.subTest(module=f"{module}.py"):
                self.assertEqual(list(rule(module, tree_of(module))), [])

    def test_all_modules_with_a_rank_are_here(self):
        self.assertEqual([name for name in RANKS if name not in MODULES], [])

    def test_imports_go_one_way(self):
        self.assert_kept(wrong_arrows, MODULES)
        arrows = {module: {name for _, name in imports(tree_of(module))} for module in MODULES}
        self.assertEqual(circle(arrows), [])

    @needs_the_list
    def test_nothing_outside_the_standard_library_is_imported(self):
        self.assert_kept(foreign_imports, MODULES)

    def test_nothing_is_computed_that_may_have_other_bits_elsewhere(self):
        self.assert_kept(lambda _, tree: inexact(tree), [name for name in MODULES if name not in BENCHMARK])

    def test_no_module_has_an_assert(self):
        self.assert_kept(lambda _, tree: asserts(tree), MODULES)

    def test_every_text_file_is_opened_with_its_encoding(self):
        self.assert_kept(lambda _, tree: text_without_encoding(tree), MODULES)


WATCHED = ((builtins, "open"), (io, "open"), (os, "open"), (os, "listdir"), (os, "scandir"), (os, "urandom"),
           (Path, "open"), (Path, "iterdir"), (random, "Random"))


class TestImporting(unittest.TestCase):
    """Importing a module prints nothing, reads no file, draws no random number."""

    def watched_import(self, source, name):
        """(what it printed, what it did that it must not): a module's source run as an import runs it.

        Under another name and in a namespace of its own, so that the classes which other tests
        hold are not made a second time.
        """
        module, done, before = types.ModuleType(name), [], random.getstate()
        module.__file__ = str(HERE / f"{name}.py")
        code = compile(source, f"{name}.py", "exec")
        out = io.StringIO()
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.dict(sys.modules, {name: module}))
            stack.enter_context(contextlib.redirect_stdout(out))
            stack.enter_context(contextlib.redirect_stderr(out))
            for owner, what in WATCHED:
                stack.enter_context(mock.patch.object(owner, what, self.recorder(getattr(owner, what), done)))
            exec(code, module.__dict__)
        return out.getvalue(), done + ["random"] * (random.getstate() != before)

    def recorder(self, function, done):
        def recording(*args, **kwargs):
            done.append(f"{function.__name__}{args}")
            return function(*args, **kwargs)
        return recording

    def test_importing_a_module_does_nothing_else(self):
        for module in MODULES:
            importlib.import_module(module)         # so that what it imports is there already
            source = (HERE / f"{module}.py").read_text(encoding="utf-8")
            with self.subTest(module=f"{module}.py"):
                self.assertEqual(self.watched_import(source, f"{module}_again"), ("", []))

    def test_an_import_that_does_something_is_found(self):
        self.addCleanup(random.setstate, random.getstate())
        for statement in ("print('hello')", "sys.stderr.write('hello')", "open(os.devnull, 'rb').close()",
                          "pathlib.Path(os.devnull).read_text(encoding='utf-8')", "os.listdir('.')",
                          "os.close(os.open(os.devnull, os.O_RDONLY))", "list(pathlib.Path('.').iterdir())",
                          "random.random()", "random.Random(3).random()", "os.urandom(1)"):
            with self.subTest(statement=statement):
                source = f"import os, pathlib, random, sys\n{statement}"
                self.assertNotEqual(self.watched_import(source, "busy"), ("", []))
        idle = "import os\ndef f():\n    print(os.urandom(1))"
        self.assertEqual(self.watched_import(idle, "idle"), ("", []))


if __name__ == "__main__":
    unittest.main()
