"""A checkpoint as a file: `save` replaces it whole or not at all, `load` refuses what `save` did not write.

Any fields can be saved beside `config`: this knows nothing of what is trained, and needs only
`disk.py` and `strict_json.py`. The format is one JSON object with the fields in sorted order, with
`format_version` and `sha256`, the digest of all the rest. What JSON cannot say comes back as what
it can: a tuple as a list, a dict with its keys sorted.

A digest finds accidents. It is no signature: whoever can write the file can recompute it.
"""
from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Tuple

from disk import CheckpointError as CheckpointError
from disk import FilePath, write_atomically
from strict_json import MAX_NESTING, parse

Body = Dict[str, Any]
FORMAT_VERSION = 1
PLAIN = {float, int, str, bool, type(None)}
OTHER_CONFIG = "checkpoint was written with a different config"
OTHER_INPUTS = "checkpoint training inputs differ"


# ---------------------------------------------------------------------------- writing

def _fits_json(value: Any, depth: int = 1) -> bool:
    """Whether every dict in `value` has strings as keys, and nothing is nested too deep to be read."""
    if depth > MAX_NESTING:
        return False
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and _fits_json([*value.values()], depth)
    # A row of numbers is left at once: this is asked of every row of every matrix.
    return PLAIN.issuperset(map(type, value)) or all(
        _fits_json(item, depth + 1) for item in value if isinstance(item, (dict, list, tuple)))


def _not_json(value: Any, place: str, depth: int = 1) -> Optional[str]:
    """A sentence on the first entry of `value` that JSON would change or refuse, or None."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{place} is {value}, not a finite number"
    if depth > MAX_NESTING and isinstance(value, (dict, list, tuple)):
        return f"{place} is nested too deep: more than {MAX_NESTING} levels"
    children: Iterable[Tuple[Any, Any]] = ()
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                return f"{place} has the key {key!r}; keys must be strings"
        children = value.items()
    elif isinstance(value, (list, tuple)):
        children = enumerate(value)
    elif value is not None and not isinstance(value, (str, int, float)):
        return f"{place} is of type {type(value).__name__}, which JSON does not have"
    problems = (_not_json(child, f"{place}[{key!r}]", depth + 1) for key, child in children)
    return next((problem for problem in problems if problem), None)


def canonical(value: Any) -> str:
    """The text that digests are taken of. ValueError if a float is not finite."""
    return json.dumps(value, sort_keys=True, allow_nan=False)


def sha256(text: str) -> str:
    """The digest of `text` in UTF-8, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def serialise(body: Body) -> bytes:
    """The bytes of a checkpoint: `body` with format_version and sha256. ValueError names a bad entry."""
    if not isinstance(body, dict):
        raise ValueError(f"cannot be saved: body is of type {type(body).__name__}; expected a dict")
    whole = {**body, "format_version": FORMAT_VERSION}
    whole.pop("sha256", None)
    try:
        if not _fits_json(whole):
            raise ValueError
        text = canonical(whole)
    except (ValueError, TypeError) as error:
        raise ValueError(f"cannot be saved as JSON: {_not_json(body, 'body') or error}") from error
    # The digest goes into the finished text: serialising is nearly all that a save costs.
    return f'{{"sha256": "{sha256(text)}", {text[1:]}\n'.encode("ascii")


def save(path: FilePath, body: Body) -> None:
    """Write `body` as a checkpoint: all of it, or nothing and the old file stays.

    `load` will ask for a dict under "config". The fields format_version and sha256 are the file's own.
    ValueError if JSON cannot hold it exactly, before anything is written; OSError from the disk.
    """
    write_atomically(path, serialise(body))


# ---------------------------------------------------------------------------- reading

def _parsed(path: FilePath) -> Tuple[Any, Optional[str], str]:
    """(the value in the file without its sha256, that sha256, the digest that it should have)."""
    name = os.fspath(path)
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"no checkpoint {name}; start a run with: python3 runs.py train FOLDER") from None
    except OSError as error:
        raise CheckpointError(f"checkpoint {name} cannot be read: {error.strerror or error}") from error
    try:
        value = parse(data.decode("utf-8"))
        recorded = value.pop("sha256", None) if isinstance(value, dict) else None
        return value, recorded, sha256(canonical(value))
    except ValueError as error:
        raise CheckpointError(f"checkpoint {name} is not valid JSON: {error}") from error


def _differing(recorded: Body, expected: Body) -> List[str]:
    """The sorted keys whose values differ as JSON: (1, 2) equals [1, 2], but 1 is not True or 1.0."""
    return sorted(key for key in {*recorded, *expected}
                  if key not in recorded or key not in expected
                  or canonical(recorded[key]) != canonical(expected[key]))


def differing_inputs(recorded: Any, expected: Dict[str, Any]) -> List[str]:
    """In words, which of the training inputs differ; [] if none does."""
    if not isinstance(recorded, dict) or not recorded:
        return ["none recorded"]
    sources = recorded.get("source_sha256")
    names = []
    for key in _differing(recorded, expected):
        if key == "source_sha256" and isinstance(sources, dict):
            names += [f"source {name}" for name in _differing(sources, expected[key])]
        else:
            names.append("sources" if key == "source_sha256" else key.replace("_sha256", ""))
    return names


def read(path: FilePath) -> Body:
    """What `save` was given, of whatever config: `load` for who wants to look, not to continue."""
    name = os.fspath(path)
    body, recorded, digest = _parsed(path)
    if not isinstance(body, dict):
        raise CheckpointError(f"checkpoint {name} does not hold a JSON object")
    version = body.pop("format_version", None)
    if type(version) is not int or version != FORMAT_VERSION:
        raise CheckpointError(f"checkpoint format {version}; expected {FORMAT_VERSION}")
    if recorded != digest:
        raise CheckpointError(f"checkpoint {name} failed its SHA-256 check")
    if not isinstance(body.get("config"), dict):
        raise CheckpointError(f"checkpoint {name} has no config that is a JSON object")
    return body


def load(path: FilePath, cfg: Dict[str, Any], expected_inputs: Optional[Dict[str, Any]] = None) -> Body:
    """What `save` was given. CheckpointError, the file untouched, for everything that is wrong.

    FileNotFoundError if there is no file. `expected_inputs` is an `input_signature`; without it
    the inputs are not compared.
    """
    body = read(path)
    keys = _differing(body["config"], cfg)
    if keys:
        raise CheckpointError(f"{OTHER_CONFIG}: {keys}")
    if expected_inputs is not None:
        names = differing_inputs(body.get("training_inputs"), expected_inputs)
        if names:
            raise CheckpointError(f"{OTHER_INPUTS}: {', '.join(names)}")
    return body
