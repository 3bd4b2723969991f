"""JSON as a file of record needs it: what `json.loads` lets pass or falls over, `parse` refuses.

    NaN, Infinity       are no JSON, but `json.loads` takes them
    a key twice         the last one would win silently
    nesting             one level is one call of the parser; enough of them end in a RecursionError,
                        and in WebAssembly in the end of the interpreter

Not refused here: a number too large for a float, which becomes infinite. `json.dumps(...,
allow_nan=False)` finds it when the value is written or digested again.
"""
from __future__ import annotations

import json
import re
from typing import Any, Dict, List, NoReturn, Tuple

MAX_NESTING = 100
STRING_OR_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)


def nesting(text: str) -> int:
    """How deep the brackets of a JSON text are nested, brackets in strings aside."""
    depth = deepest = 0
    for token in STRING_OR_BRACKET.findall(text):
        if token in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif token in "]}":
            depth -= 1
    return deepest


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _refuse_key_twice(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} stands twice")
    return value


def parse(text: str) -> Any:
    """The value of a JSON text; ValueError with the cause for anything else."""
    if nesting(text) > MAX_NESTING:
        raise ValueError(f"nested too deep: more than {MAX_NESTING} levels")
    return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_key_twice)
