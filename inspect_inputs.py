"""What a checkpoint is bound to: one matching set of inputs, and four that must be refused.

A checkpoint holds digests of the corpus, of the tokenizer and of the sources it was trained with.
Each row here changes one of them and asks `load` for its answer. Nothing is trained.

    python3 inspect_inputs.py            prints the rows
    python3 inspect_inputs.py --write    writes input-checks.json
    python3 inspect_inputs.py --check    exit status 1 unless input-checks.json holds on this machine
"""
from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from bpe import Tokenizer
from checkpoint import CheckpointError, input_signature, load, save
from console import guarded
from train import CONFIG

Row = Dict[str, Any]
HERE = Path(__file__).resolve().parent
RECORD = HERE / "input-checks.json"


def _row(path: str, case: str, recorded: Optional[Row], expected: Row) -> Row:
    """What `load` says of a checkpoint with the inputs `recorded` where `expected` are at hand."""
    body: Row = {"config": CONFIG}
    if recorded is not None:
        body["training_inputs"] = recorded
    save(path, body)
    try:
        load(path, CONFIG, expected)
    except CheckpointError as error:
        return {"case": case, "accepted": False, "message": str(error)}
    return {"case": case, "accepted": True, "message": "accepted"}


def inspect() -> List[Row]:
    """Five rows {"case", "accepted", "message"}: a matching bundle, then four that differ in one part."""
    tok = Tokenizer.load(HERE / "tokenizer.json")
    text = (HERE / "corpus.txt").read_text(encoding="utf-8")
    signature = input_signature(tok, text)
    other_ids = Tokenizer(list(reversed(tok.alphabet)), tok.merges)     # same size, other ids
    other_model = {**signature["source_sha256"], "model.py": "0" * 64}
    cases = [
        ("matching bundle", signature, signature),
        ("changed corpus", signature, input_signature(tok, text.replace("red", "blue", 1))),
        ("changed tokenizer of the same size", signature, input_signature(other_ids, text)),
        ("missing identity", None, signature),
        ("changed implementation", {**signature, "source_sha256": other_model}, signature),
    ]
    with tempfile.TemporaryDirectory() as folder:
        return [_row(os.path.join(folder, "inputs.json"), *case) for case in cases]


def first_difference(recorded: Any, rows: List[Row]) -> Optional[str]:
    """A sentence on the first row that differs from the recorded ones, or None."""
    if not isinstance(recorded, list) or len(recorded) != len(rows):
        return f"expected a list of {len(rows)} rows"
    for was, now in zip(recorded, rows):
        if was != now:
            return f"{now['case']}: recorded {was!r}, computed {now!r}"
    return None


def check(rows: List[Row], path: Path) -> int:
    """0 if the recorded rows are these, else 1 and a sentence on the first that differs."""
    try:
        problem = first_difference(json.loads(path.read_text(encoding="utf-8")), rows)
    except (OSError, ValueError) as error:
        problem = str(error)
    if problem is None:
        print(f"{path.name} holds on this machine: {len(rows)} rows")
        return 0
    print(f"{path.name}: {problem}\nrepair: python3 inspect_inputs.py --write", file=sys.stderr)
    return 1


def main(argv: Optional[Sequence[str]] = None, path: Path = RECORD) -> int:
    """Print, write or check the rows."""
    parser = argparse.ArgumentParser(description="Show which changed inputs a checkpoint refuses.")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", action="store_true", help="write input-checks.json")
    action.add_argument("--check", action="store_true", help="compare input-checks.json with these rows")
    args = parser.parse_args(argv)
    return guarded("inspect_inputs.py",
                   lambda: check(inspect(), path) if args.check else show(path, args.write))


def show(path: Path, write: bool) -> int:
    """Print the rows, and write them if told to."""
    rows = inspect()
    for row in rows:
        print(f"{'accepted' if row['accepted'] else 'refused ':9}{row['case']:36}{row['message']}")
    if write:
        path.write_bytes((json.dumps(rows, indent=2) + "\n").encode("utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
