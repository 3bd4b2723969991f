"""Matrices as an .npz, as `numpy.savez` writes and `numpy.load` reads it: a zip archive of .npy members.

Both formats are simple enough to be written and read here. What a file says is only ever data: it
is matched, and never evaluated or unpickled.
"""
from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Sequence

from model import Params
from portable import Matrix
from verify import CheckpointError, Shapes

NPY_MAGIC = b"\x93NUMPY"
NPY_LENGTHS = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}      # version -> bytes of the header's length
NPY_HEADER = re.compile(rb"\{'descr': (.+), 'fortran_order': (True|False), 'shape': (\(.*\)), \} *\n")
HEADER_ROOM = 4096              # more than any header of a float64 matrix needs
MOST_VALUES = 1 << 22           # of one matrix: bounds the memory that a bundle can ask for
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)           # numpy.savez, numpy.savez_compressed
BAD_ZIP = (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError, EOFError, OSError,
           OverflowError, struct.error, zlib.error)         # what `zipfile` was seen to raise for odd bytes


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
