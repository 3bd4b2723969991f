"""The finished model as three files that share a prefix, for use elsewhere and for `talk.py`.

    PREFIX.npz        one float64 array a parameter, as `numpy.savez` writes and `numpy.load` reads it
    PREFIX.tok.json   {"merges": [merge records], "itos": [token strings in id order]}
    PREFIX.json       vocab_size, context_len, emb_dim, num_heads, ff_dim, num_layers; config; digests

`PREFIX.json` is written last and holds the digests of the other two. So an export that was cut
short, or files of two exports, are refused; and it is a checkpoint of its own, which
`checkpoint_file.read` reads.

Not handled: signatures. Whoever can write the three files can make three that belong together.

    python3 bundle.py best.json PREFIX      exports a checkpoint, and verifies what it wrote
"""
from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bpe import SPECIAL, TOKENIZER, Tokenizer
from checkpoint import input_signature, params_sha256
from checkpoint_file import Body, canonical, differing_inputs, read, serialise
from console import guarded, print_anything
from disk import FilePath, sweep, write_atomically
from model import Params
from npz import MOST_VALUES, member_limit, npz_bytes, read_npz
from strict_json import parse
from train import Config
from verify import CheckpointError, Checks, check_params, shapes_of

MOST_TOK_BYTES = 1 << 22
ENDS = (".npz", ".tok.json", ".json")           # in the order in which they are written
SIZES = {"context_len": "max_len", "emb_dim": "d", "ff_dim": "hidden"}      # name elsewhere -> in our config
DIGESTS = ("npz_sha256", "tok_json_sha256", "params_sha256")


# ---------------------------------------------------------------------------- .tok.json

def tok_bytes(tok: Tokenizer) -> bytes:
    """The tokenizer as JSON in UTF-8, one merge a line; ValueError if it would not come back the same.

    Only lone surrogates need `backslashreplace`; it writes them just as JSON escapes them.
    """
    merges = ",\n".join(json.dumps(merge, ensure_ascii=False) for merge in tok.merges)
    itos = json.dumps(tok.vocab, ensure_ascii=False)
    data = f'{{"merges": [\n{merges}\n],\n"itos": {itos}}}\n'.encode("utf-8", "backslashreplace")
    if json.loads(data)["itos"] != tok.vocab:       # two surrogates in one token are one character to JSON
        raise ValueError("a token of this tokenizer cannot be written as JSON")
    return data


def tok_from_json(value: Any) -> Tokenizer:
    """The tokenizer that `tok_bytes` was given; ValueError names the field that is wrong."""
    if not isinstance(value, dict) or set(value) != {"merges", "itos"}:
        raise ValueError("is no JSON object of exactly merges and itos")
    merges, itos = value["merges"], value["itos"]
    if not isinstance(merges, list) or not isinstance(itos, list):
        raise ValueError("merges and itos are not two lists")
    tok = Tokenizer(itos[len(SPECIAL):max(len(SPECIAL), len(itos) - len(merges))], merges)
    if itos != tok.vocab:
        raise ValueError("itos is not the special tokens, the alphabet, then what the merges make")
    return tok


def read_tok(data: bytes, name: str) -> Tokenizer:
    """The tokenizer in the bytes of a `.tok.json`; CheckpointError says what is wrong."""
    try:
        return tok_from_json(parse(data.decode("utf-8")))
    except ValueError as error:
        raise CheckpointError(f"{name}: {error}") from error


# ---------------------------------------------------------------------------- .json

def peek(path: FilePath) -> Body:
    """The JSON object in a file, with nothing verified; {} if there is none."""
    try:
        value = parse(Path(path).read_bytes().decode("utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def read_checkpoint(path: FilePath) -> Body:
    """`checkpoint_file.read`; every refusal names the file."""
    name = os.fspath(path)
    try:
        return read(path)
    except CheckpointError as error:
        if name in str(error):
            raise
        raise CheckpointError(f"{name}: {error}") from error


def check_sizes(cfg: Any, vocab_size: int, name: str) -> None:
    """CheckpointError unless the config has the sizes of a model that memory can hold."""
    checks = Checks(name)
    checks.that(isinstance(cfg, dict), "config", "a JSON object")
    for key in ("d", "hidden", "max_len"):
        checks.whole(cfg.get(key), f"config.{key}", 1, MOST_VALUES)
    for key, (rows, columns) in shapes_of(cfg, vocab_size).items():
        checks.that(rows * columns <= MOST_VALUES, "config", f"of a size that can be used: {key} would have "
                    f"{rows} x {columns} values, and {MOST_VALUES} are the most")


def sizes(cfg: Config, vocab_size: int) -> dict[str, int]:
    """The model's shape under the names that other programs use."""
    named = {name: cfg[key] for name, key in SIZES.items()}
    return {"vocab_size": vocab_size, **named, "num_heads": 1, "num_layers": 1}


def json_bytes(description: Body) -> bytes:
    """A checkpoint's bytes, laid out for people. ValueError if JSON cannot hold the config exactly."""
    return (json.dumps(json.loads(serialise(description)), indent=2) + "\n").encode("ascii")


def read_description(path: str) -> Body:
    """The verified content of a `PREFIX.json`: sizes, config and digests."""
    body = read_checkpoint(path)
    checks = Checks(path)
    checks.fields(body, "checkpoint", ["config", "vocab_size", *SIZES, "num_heads", "num_layers", *DIGESTS])
    checks.whole(body["vocab_size"], "vocab_size", len(SPECIAL), MOST_VALUES)
    check_sizes(body["config"], body["vocab_size"], path)
    for field, value in sizes(body["config"], body["vocab_size"]).items():
        checks.that(type(body[field]) is int and body[field] == value, field, f"{value}, as its config says")
    return body


# ---------------------------------------------------------------------------- save and load

def sweep_bundle(prefix: str) -> None:
    """Remove the temporaries that a killed export to this prefix left; one that resists may stay."""
    folder, name = os.path.split(os.path.realpath(prefix))
    with suppress(OSError):
        sweep(folder, re.escape(name) + f"({'|'.join(map(re.escape, ENDS))})")


def save_checkpoint(prefix: FilePath, params: Params, cfg: Config, tok: Tokenizer) -> None:
    """Write the three files of a bundle, the `.json` last; the folder is made if needed.

    CheckpointError or ValueError, before anything is written, for a model that would not come
    back the same, or if PREFIX.json is some other file; OSError from the disk.
    """
    prefix = os.fspath(prefix)
    if os.path.basename(prefix) in ("", ".", ".."):
        raise CheckpointError(f"bundle {prefix}: its prefix must end in a name, not in a folder")
    check_sizes(cfg, len(tok.vocab), prefix)
    check_params(params, cfg, len(tok.vocab), prefix)
    npz = npz_bytes({name: params[name] for name in shapes_of(cfg, len(tok.vocab))})
    tok_json = tok_bytes(tok)
    digests = (hashlib.sha256(npz).hexdigest(), hashlib.sha256(tok_json).hexdigest(), params_sha256(params))
    described = json_bytes({**sizes(cfg, len(tok.vocab)), "config": cfg, **dict(zip(DIGESTS, digests))})
    path = f"{prefix}.json"
    if os.path.lexists(path) and DIGESTS[0] not in peek(path):      # `bundle.py best.json best`
        raise CheckpointError(f"{path} exists and is not a bundle's; choose another prefix")
    os.makedirs(os.path.dirname(prefix) or ".", exist_ok=True)
    sweep_bundle(prefix)
    for end, data in zip(ENDS, (npz, tok_json, described)):
        write_atomically(prefix + end, data)


def read_whole(path: str, limit: int) -> bytes:
    """The bytes of a bundle's file; CheckpointError if it is unreadable or larger than `limit`."""
    try:
        if os.path.getsize(path) > limit:
            raise CheckpointError(f"{path} is larger than {limit} bytes, the most that it can need")
        return Path(path).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error


def load_bundle(prefix: str) -> tuple[Params, Config, Tokenizer]:
    """`load_checkpoint` without its advice."""
    npz_path, tok_path, json_path = (prefix + end for end in ENDS)
    described = read_description(json_path)
    cfg, vocab_size = described["config"], described["vocab_size"]
    tok_json = read_whole(tok_path, MOST_TOK_BYTES)
    if hashlib.sha256(tok_json).hexdigest() != described["tok_json_sha256"]:
        raise CheckpointError(f"{tok_path} is not of the same export as {json_path}")
    tok = read_tok(tok_json, tok_path)
    if len(tok.vocab) != vocab_size:
        raise CheckpointError(f"{tok_path} has {len(tok.vocab)} tokens; {json_path} says {vocab_size}")
    shapes = shapes_of(cfg, vocab_size)
    npz = read_whole(npz_path, len(shapes) * max(map(member_limit, shapes.values())))
    params = read_npz(npz, shapes, npz_path)
    check_params(params, cfg, vocab_size, npz_path)
    # Equal bytes, or equal arrays that numpy.savez wrote anew: a digest of either tells.
    if (hashlib.sha256(npz).hexdigest() != described["npz_sha256"]
            and params_sha256(params) != described["params_sha256"]):
        raise CheckpointError(f"{npz_path} is not of the same export as {json_path}")
    return params, cfg, tok


def load_checkpoint(prefix: FilePath) -> tuple[Params, Config, Tokenizer]:
    """(params, cfg, tok) as `save_checkpoint` was given them, every bit of every weight.

    FileNotFoundError if there is no bundle; CheckpointError for one that is not whole and sound.
    """
    prefix = os.fspath(prefix)
    missing = [prefix + end for end in ENDS if not os.path.lexists(prefix + end)]
    if len(missing) == len(ENDS):
        raise FileNotFoundError(f"no bundle {prefix}; make one with: python3 bundle.py CHECKPOINT {prefix}")
    try:
        if missing:
            raise CheckpointError(f"{missing[0]} is missing")
        return load_bundle(prefix)
    except CheckpointError as error:
        raise CheckpointError(f"bundle {prefix}: {error}; "
                              f"export it again: python3 bundle.py CHECKPOINT {prefix}") from error


# ---------------------------------------------------------------------------- a checkpoint's model

def checkpoint_in(path: str) -> str:
    """The checkpoint that `path` stands for: itself, or the best.json of a run's folder."""
    if not os.path.isdir(path):
        return path
    best, last = os.path.join(path, "best.json"), os.path.join(path, "last.json")
    if os.path.lexists(best):
        return best
    if os.path.lexists(last):
        raise CheckpointError(f"folder {path} has a last.json but no best.json yet: train to the first "
                              f"evaluation, or use {last}")
    raise CheckpointError(f"folder {path} holds no best.json; expected the folder of a run")


def load_model(path: str, tokenizer: str) -> tuple[Params, Config, Tokenizer, list[str]]:
    """(params, cfg, tok, sources that have changed since) of a checkpoint, all verified.

    CheckpointError unless the weights were trained with this tokenizer and have its shapes.
    """
    body, tok = read_checkpoint(path), Tokenizer.load(tokenizer)
    differing = differing_inputs(body.get("training_inputs"), input_signature(tok, ""))
    if "none recorded" in differing:
        raise CheckpointError(f"checkpoint {path} does not record the tokenizer that it was trained with; "
                              "train it again: python3 runs.py train FOLDER")
    if "tokenizer" in differing:
        raise CheckpointError(f"checkpoint {path} was trained with another tokenizer than {tokenizer}; "
                              "name the right one with --tokenizer FILE")
    check_sizes(body["config"], len(tok.vocab), path)
    check_params(body.get("params"), body["config"], len(tok.vocab), path)
    changed = [name.replace("source ", "") for name in differing if name != "corpus"]
    return body["params"], body["config"], tok, changed


# ---------------------------------------------------------------------------- the command line

def without_end(prefix: str) -> str:
    """The prefix, also where the name of one of its three files was given."""
    for end in ENDS:
        if prefix.endswith(end):
            return prefix[:-len(end)]
    return prefix


def export(source: str, prefix: str, tokenizer: str) -> int:
    """Write the bundle of a checkpoint and load it again; 0, or CheckpointError if it is another model."""
    path = checkpoint_in(source)
    params, cfg, tok, changed = load_model(path, tokenizer)
    if changed:
        print(f"bundle.py: warning: checkpoint {path} was trained with other sources ({', '.join(changed)}); "
              "its weights have the right shapes, but may make another text now", file=sys.stderr)
    save_checkpoint(prefix, params, cfg, tok)
    loaded, loaded_cfg, loaded_tok = load_checkpoint(prefix)
    digest = params_sha256(loaded)
    if (digest, canonical(loaded_cfg), loaded_tok) != (params_sha256(params), canonical(cfg), tok):
        raise CheckpointError(f"bundle {prefix}: it does not load as it was written; export it again")
    print(f"wrote {', '.join(prefix + end for end in ENDS)}; loaded again, they are the model of {path}:\n"
          f"{len(loaded)} arrays, {len(tok.vocab)} tokens, params_sha256 {digest}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Export a checkpoint; 0, or 1 when something is refused."""
    parser = argparse.ArgumentParser(prog="bundle.py", description="Export a finished model as PREFIX.npz, "
                                     "PREFIX.json and PREFIX.tok.json, and verify what was written.")
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a best.json, or the folder of a run")
    parser.add_argument("prefix", metavar="PREFIX", help="where to, and how the three files' names start")
    parser.add_argument("--tokenizer", default=TOKENIZER, metavar="FILE",
                        help="the tokenizer it was trained with (default: the lab's tokenizer.json)")
    args = parser.parse_args(argv)
    print_anything()
    return guarded("bundle.py", lambda: export(args.checkpoint, without_end(args.prefix), args.tokenizer))


if __name__ == "__main__":
    sys.exit(main())
