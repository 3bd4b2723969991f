"""The finished model as three files that share a prefix, for use elsewhere and for `talk.py`.

    PREFIX.npz        one float64 array a parameter, as `numpy.savez` writes and `numpy.load` reads it
    PREFIX.tok.json   {"merges": [merge records], "itos": [token strings in id order]}
    PREFIX.json       vocab_size, context_len, emb_dim, num_heads, ff_dim, num_layers; config; digests

`PREFIX.json` is written last and holds the digests of the other two. So an export that was cut
short, or files of two exports, are refused; and it is a checkpoint of its own, which `checkpoint.read`
reads. An `.npz` is a zip archive of `NAME.npy` members; both formats are simple enough to be written
and read here. What a file says is only ever data: it is matched, and never evaluated or unpickled.

Not handled: signatures. Whoever can write the three files can make three that belong together.

    python3 bundle.py best.json PREFIX      exports a checkpoint, and verifies what it wrote
"""
from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import struct
import sys
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bpe import SPECIAL, TOKENIZER, Tokenizer
from checkpoint import input_signature, params_sha256
from checkpoint_file import Body, canonical, differing_inputs, read, serialise
from console import print_anything
from disk import FilePath, sweep, write_atomically
from model import Params
from portable import Matrix
from strict_json import parse
from train import Config
from verify import CheckpointError, Checks, Shapes, check_params, shapes_of

NPY_MAGIC = b"\x93NUMPY"
NPY_LENGTHS = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}      # version -> bytes of the header's length
NPY_HEADER = re.compile(rb"\{'descr': (.+), 'fortran_order': (True|False), 'shape': (\(.*\)), \} *\n")
HEADER_ROOM = 4096              # more than any header of a float64 matrix needs
MOST_VALUES = 1 << 22           # of one matrix: bounds the memory that a bundle can ask for
MOST_TOK_BYTES = 1 << 22
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)           # numpy.savez, numpy.savez_compressed
BAD_ZIP = (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError, EOFError, OSError,
           OverflowError, struct.error, zlib.error)         # what `zipfile` was seen to raise for odd bytes
ENDS = (".npz", ".tok.json", ".json")           # in the order in which they are written
SIZES = {"context_len": "max_len", "emb_dim": "d", "ff_dim": "hidden"}      # name elsewhere -> in our config
DIGESTS = ("npz_sha256", "tok_json_sha256", "params_sha256")


# ---------------------------------------------------------------------------- .npy: one matrix

def npy_bytes(matrix: Matrix) -> bytes:
    """matrix (R, C) -> a `.npy` file, format 1.0: a header of Python-like text, then R * C float64."""
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({len(matrix)}, {len(matrix[0])}), }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"       # the values start at a multiple of 64
    values = [value for row in matrix for value in row]
    start = NPY_MAGIC + b"\x01\x00" + struct.pack("<H", len(header)) + header.encode("ascii")
    return start + struct.pack(f"<{len(values)}d", *values)


def npy_header(data: bytes) -> tuple[list[str], int]:
    """(dtype, Fortran order and shape as written, where the values start); ValueError if unlike NumPy's."""
    width = NPY_LENGTHS.get(data[6:8])
    if data[:6] != NPY_MAGIC or width is None:
        raise ValueError("is no .npy file of format 1.0, 2.0 or 3.0")
    start = 8 + width
    end = start + int.from_bytes(data[8:start], "little")
    match = NPY_HEADER.fullmatch(data[start:end])
    if not match:
        raise ValueError("has a header that NumPy does not write")
    return [group.decode("ascii", "backslashreplace") for group in match.groups()], end


def npy_matrix(data: bytes, rows: int, columns: int) -> Matrix:
    """A `.npy` file -> matrix (rows, columns). ValueError says what it holds instead."""
    (dtype, fortran, shape), start = npy_header(data)
    if dtype == "'|O'":
        raise ValueError("holds Python objects (dtype '|O'), which are never unpickled; expected '<f8'")
    if dtype != "'<f8'":
        raise ValueError(f"has dtype {dtype}; expected '<f8'")
    if fortran == "True":
        raise ValueError("is in Fortran order; expected C order")
    if shape != f"({rows}, {columns})":
        raise ValueError(f"has shape {shape}; expected ({rows}, {columns})")
    if len(data) - start != 8 * rows * columns:
        raise ValueError(f"has {len(data) - start} bytes of values; expected {8 * rows * columns}")
    values = struct.unpack_from(f"<{rows * columns}d", data, start)
    return [list(values[i:i + columns]) for i in range(0, len(values), columns)]


# ---------------------------------------------------------------------------- .npz: all of them

def npz_bytes(params: Params) -> bytes:
    """A zip archive with one uncompressed `.npy` member a parameter: the same bytes on every machine."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, matrix in params.items():
            info = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, 0o644 << 16     # else it tells Windows from Unix
            archive.writestr(info, npy_bytes(matrix))
    return buffer.getvalue()


def member_limit(shape: tuple[int, int]) -> int:
    """The most bytes that the member for a matrix of this shape can have."""
    return 8 * shape[0] * shape[1] + HEADER_ROOM


def check_names(found: Sequence[str], expected: Sequence[str]) -> None:
    """ValueError names a member that is unknown, there twice or missing. No name is used as a path."""
    for name in found:
        if name not in expected:
            raise ValueError(f"unknown member {name!r}")
        if found.count(name) > 1:
            raise ValueError(f"member {name!r} is there twice")
    for name in expected:
        if name not in found:
            raise ValueError(f"member {name!r} is missing")


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, limit: int) -> bytes:
    """The bytes of a member; ValueError, before one is read, for what NumPy does not write."""
    if info.flag_bits & 1:
        raise ValueError("is encrypted")
    if info.compress_type not in COMPRESSIONS:
        raise ValueError(f"is compressed by method {info.compress_type}; expected stored or deflated")
    if info.file_size > limit:
        raise ValueError(f"claims {info.file_size} bytes; its shape allows {limit}")
    with archive.open(info) as member:
        return member.read(info.file_size + 1)      # never without a bound: the claim may be a lie


def read_npz(data: bytes, shapes: Shapes, name: str) -> Params:
    """The matrices in the bytes of an `.npz`, exactly those of `shapes`, else CheckpointError."""
    place = ""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            check_names([info.orig_filename for info in infos], [f"{key}.npy" for key in shapes])
            members = {info.filename: info for info in infos}
            params = {}
            for key, shape in shapes.items():
                place = f" member '{key}.npy'"
                info = members[f"{key}.npy"]
                params[key] = npy_matrix(read_member(archive, info, member_limit(shape)), *shape)
            return params
    except BAD_ZIP as error:
        raise CheckpointError(f"{name}:{place} {error}") from error


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
    """`checkpoint.read`; every refusal names the file."""
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


def export(source: str, prefix: str, tokenizer: str) -> None:
    """Write the bundle of a checkpoint and load it again; CheckpointError unless it is the same model."""
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
    try:
        export(args.checkpoint, without_end(args.prefix), args.tokenizer)
    except (OSError, ValueError) as error:
        print(f"bundle.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
