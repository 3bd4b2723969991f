"""What bundle.py promises, promise by promise."""
from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zipfile
import zlib
from pathlib import Path
from unittest import mock

import bundle
import checkpoint
from bpe import Tokenizer
from bundle import load_checkpoint, save_checkpoint, tok_bytes
from checkpoint import CheckpointError, input_signature, params_sha256
from model import init_params, next_logits, param_shapes
from npz import npy_bytes, npz_bytes, read_npz
from test_support import no_children
from train import CONFIG

try:
    import numpy
except ImportError:
    numpy = None

HERE = Path(__file__).resolve().parent
TEXT = "the red kite. the blue boat. the red boat. the blue kite."
CFG = {**CONFIG, "d": 3, "hidden": 5, "max_len": 6}
HARD_FLOATS = [0.0, -0.0, 5e-324, -2.2250738585072014e-308, 0.1, 1 / 3, 1.7976931348623157e308, -1e-7]
SHAPES = {"a": (1, 2), "b": (2, 1)}
PARAMS = {"a": [[0.1, -0.0]], "b": [[5e-324], [3.0]]}


def tokenizer():
    return Tokenizer.train(TEXT, 24)


def parameters(tok, seed=1, cfg=CFG):
    """Random ones, the awkward floats among them."""
    params = init_params(len(tok.vocab), cfg["d"], cfg["hidden"], cfg["max_len"], seed)
    for i, value in enumerate(HARD_FLOATS):
        params["wte"][i][i % cfg["d"]] = value
    return params


def hexed(params):
    """Equal if and only if every bit is, the sign of zero too."""
    return {name: [[value.hex() for value in row] for row in matrix] for name, matrix in params.items()}


class TemporaryFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def bundle(self, name="m", seed=1):
        """The prefix of a small bundle."""
        tok = tokenizer()
        save_checkpoint(self.path(name), parameters(tok, seed), CFG, tok)
        return self.path(name)

    def best(self, name="best.json", tok=None, cfg=CFG, params=None, **changes):
        """A best.json as a run writes it, and tokenizer.json beside it."""
        tok = tok or tokenizer()
        tok.save(self.path("tokenizer.json"))
        params = params or parameters(tok, cfg=cfg)
        body = {"step": 50, "dev_loss": 2.5, "config": cfg, "params": params,
                "training_inputs": input_signature(tok, TEXT), **changes}
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        checkpoint.save(self.path(name), body)
        return self.path(name)

    def refusal(self, prefix):
        with self.assertRaises(CheckpointError) as caught:
            load_checkpoint(prefix)
        return str(caught.exception).replace(self.folder + os.sep, "")

    def rewrite(self, prefix, **changes):
        """Change fields of a bundle's .json and give it the right digests."""
        body = json.loads(Path(prefix + ".json").read_text(encoding="ascii"))
        for end in (".npz", ".tok.json"):
            body[end[1:].replace(".", "_") + "_sha256"] = hashlib.sha256(Path(prefix + end).read_bytes()).hexdigest()
        body.update(changes)
        body = {field: value for field, value in body.items() if value is not None}
        checkpoint.save(prefix + ".json", body)


# ---------------------------------------------------------------------------- zip archives by hand

def stored(name, data, **odd):
    """A member as `zip_bytes` takes it; `odd` holds fields that are not as they should be."""
    name = name if isinstance(name, bytes) else name.encode("utf-8")
    return {"name": name, "data": data, "size": len(data), "crc": zlib.crc32(data), "flags": 0, "method": 0, **odd}


def deflated(name, data, **odd):
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = squeeze.compress(data) + squeeze.flush()
    return {**stored(name, data), "data": packed, "method": 8, **odd}


def zip_bytes(*members):
    """An archive, field by field as APPNOTE.TXT 4.3.7, 4.3.12 and 4.3.16 have them."""
    body, directory = b"", b""
    for m in members:
        common = struct.pack("<HHHHHIIIHH", 20, m["flags"], m["method"], 0, 33, m["crc"], len(m["data"]), m["size"],
                             len(m["name"]), 0)
        directory += (b"PK\x01\x02\x14\x03" + common + struct.pack("<HHHII", 0, 0, 0, 0o644 << 16, len(body))
                      + m["name"])
        body += b"PK\x03\x04" + common + m["name"] + m["data"]
    end = struct.pack("<HHHHIIH", 0, 0, len(members), len(members), len(directory), len(body), 0)
    return body + directory + b"PK\x05\x06" + end


def npy(shape, values, descr="'<f8'", fortran="False", version=b"\x01\x00", length="<H", after=b""):
    header = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n".encode() + after
    return b"\x93NUMPY" + version + struct.pack(length, len(header)) + header + values


GOOD_A, GOOD_B = npy_bytes(PARAMS["a"]), npy_bytes(PARAMS["b"])
A, B = stored("a.npy", GOOD_A), stored("b.npy", GOOD_B)
TWO = struct.pack("<2d", 0.1, -0.0)


class Format(unittest.TestCase):
    def test_a_matrix_is_written_as_numpy_format_1_0(self):
        header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1, 2), }"
        expected = b"\x93NUMPY\x01\x00" + b"\x76\x00" + header + b" " * (117 - len(header)) + b"\n" + TWO
        self.assertEqual(npy_bytes([[0.1, -0.0]]), expected)

    def test_values_start_at_a_multiple_of_64(self):
        for rows in (1, 10, 10 ** 3):
            with self.subTest(rows=rows):
                self.assertEqual((len(npy_bytes([[1.0]] * rows)) - 8 * rows) % 64, 0)

    def test_the_archive_is_these_bytes_on_every_machine_at_any_time(self):
        self.assertEqual(npz_bytes(PARAMS), zip_bytes(A, B))
        with mock.patch.object(sys, "platform", "win32"), mock.patch.object(sys, "byteorder", "big"):
            self.assertEqual(npz_bytes(PARAMS), zip_bytes(A, B))

    def test_what_was_written_comes_back_bit_for_bit(self):
        values = {"a": [HARD_FLOATS[:4], HARD_FLOATS[4:]]}
        self.assertEqual(hexed(read_npz(npz_bytes(values), {"a": (2, 4)}, "x.npz")), hexed(values))

    def test_every_form_that_numpy_writes_is_read(self):
        archives = {
            "order of members": zip_bytes(B, A),
            "compressed": zip_bytes(deflated("a.npy", GOOD_A), deflated("b.npy", GOOD_B)),
            "format 2.0": zip_bytes(stored("a.npy", npy("(1, 2)", TWO, version=b"\x02\x00", length="<I")), B),
            "format 3.0": zip_bytes(stored("a.npy", npy("(1, 2)", TWO, version=b"\x03\x00", length="<I")), B),
        }
        for case, data in archives.items():
            with self.subTest(case):
                read = read_npz(data, SHAPES, "x.npz")
                self.assertEqual((list(read), hexed(read)), (["a", "b"], hexed(PARAMS)))


class Hostile(unittest.TestCase):
    def refusal(self, data):
        with self.assertRaises(CheckpointError) as caught:
            read_npz(data, SHAPES, "x.npz")
        return str(caught.exception)

    def test_arrays_that_are_not_the_parameters_are_refused_by_name(self):
        pickled = b"cos\nsystem\n(S'exit 1'\ntR."
        table = {
            npy("(1, 2)", pickled, "'|O'"):
                "holds Python objects (dtype '|O'), which are never unpickled; expected '<f8'",
            npy("(1, 2)", TWO, "'<f4'"): "has dtype '<f4'; expected '<f8'",
            npy("(1, 2)", TWO, "'>f8'"): "has dtype '>f8'; expected '<f8'",
            npy("(1, 2)", TWO, "'<i8'"): "has dtype '<i8'; expected '<f8'",
            npy("(1, 2)", TWO, "[('x', '|O')]"): "has dtype [('x', '|O')]; expected '<f8'",
            npy("(1, 2)", TWO, "__import__('os').system('exit 1')"):
                "has dtype __import__('os').system('exit 1'); expected '<f8'",
            npy("(1, 2)", TWO, fortran="True"): "is in Fortran order; expected C order",
            npy("(2, 1)", TWO): "has shape (2, 1); expected (1, 2)",
            npy("(2,)", TWO): "has shape (2,); expected (1, 2)",
            npy("()", TWO): "has shape (); expected (1, 2)",
            npy("(1, 2, 1)", TWO): "has shape (1, 2, 1); expected (1, 2)",
            npy("(-1, 2)", TWO): "has shape (-1, 2); expected (1, 2)",
            npy("(1, 2)", TWO[:-1]): "has 15 bytes of values; expected 16",
            npy("(1, 2)", b""): "has 0 bytes of values; expected 16",
            npy("(1, 2)", TWO + b"\0"): "has 17 bytes of values; expected 16",
            b"": "is no .npy file of format 1.0, 2.0 or 3.0",
            b"\x80\x04K\x01.": "is no .npy file of format 1.0, 2.0 or 3.0",
            npy("(1, 2)", TWO, version=b"\x04\x00"): "is no .npy file of format 1.0, 2.0 or 3.0",
            npy("(1, 2)", TWO, fortran="0"): "has a header that NumPy does not write",
            npy("(1, 2)", TWO, length="<I"): "has a header that NumPy does not write",
            npy("(1, 2)", TWO, after=b" ()\n"): "has a header that NumPy does not write",
            npy("(1, 2)", TWO)[:30]: "has a header that NumPy does not write",
            npy("(1, 2)", TWO)[:9]: "has a header that NumPy does not write",
        }
        for data, problem in table.items():
            with self.subTest(problem):
                self.assertEqual(self.refusal(zip_bytes(stored("a.npy", data), B)), f"x.npz: member 'a.npy' {problem}")

    def test_members_that_are_not_the_parameters_are_refused_by_name(self):
        table = {
            "unknown member '../a.npy'": [stored("../a.npy", GOOD_A), B],
            "unknown member '/a.npy'": [stored("/a.npy", GOOD_A), B],
            "unknown member 'a.npy/'": [stored("a.npy/", b""), A, B],
            "unknown member 'sub/a.npy'": [stored("sub/a.npy", GOOD_A), B],
            "unknown member 'a.npy\\x00.txt'": [stored("a.npy\0.txt", GOOD_A), B],
            "unknown member 'A.npy'": [stored("A.npy", GOOD_A), B],
            "unknown member 'a'": [stored("a", GOOD_A), B],
            "unknown member 'c.npy'": [A, B, stored("c.npy", GOOD_A)],
            "member 'a.npy' is there twice": [A, B, A],
            "member 'b.npy' is missing": [A],
            "member 'a.npy' is missing": [],
        }
        for problem, members in table.items():
            with self.subTest(problem):
                self.assertEqual(self.refusal(zip_bytes(*members)), f"x.npz: {problem}")

    def test_an_archive_that_numpy_does_not_write_is_refused_before_a_member_is_read(self):
        table = {
            "is encrypted": stored("a.npy", GOOD_A, flags=1),
            "is compressed by method 12; expected stored or deflated": stored("a.npy", GOOD_A, method=12),
            "is compressed by method 14; expected stored or deflated": stored("a.npy", GOOD_A, method=14),
            "claims 4113 bytes; its shape allows 4112": stored("a.npy", GOOD_A, size=4113),
            "claims 2147483647 bytes; its shape allows 4112": deflated("a.npy", GOOD_A, size=2147483647),
        }
        for problem, member in table.items():
            with self.subTest(problem), mock.patch.object(zipfile.ZipFile, "open", side_effect=AssertionError):
                self.assertEqual(self.refusal(zip_bytes(member, B)), f"x.npz: member 'a.npy' {problem}")

    def test_a_bomb_that_lies_about_its_size_is_never_unpacked_whole(self):
        zeros = b"\0" * (1 << 24)
        bomb = deflated("a.npy", zeros, size=len(GOOD_A), crc=zlib.crc32(zeros[:len(GOOD_A)]))
        unpacked = []
        make = zlib.decompressobj

        class Counting:
            def __init__(self, *args):
                self.it = make(*args)

            def __getattr__(self, name):
                return getattr(self.it, name)

            def decompress(self, *args):
                data = self.it.decompress(*args)
                unpacked.append(len(data))
                return data

        with mock.patch.object(zlib, "decompressobj", Counting):
            self.assertEqual(self.refusal(zip_bytes(bomb, B)),
                             "x.npz: member 'a.npy' is no .npy file of format 1.0, 2.0 or 3.0")
        self.assertTrue(unpacked)
        self.assertLess(max(unpacked), 10000)

    def test_bytes_that_are_no_sound_archive_are_refused(self):
        good = zip_bytes(A, B)
        table = {
            "empty": b"",
            "text": b"The kite was still red.\n",
            "a bare .npy": GOOD_A,
            "truncated": good[:-1],
            "half": good[:len(good) // 2],
            "no start": good[40:],
            "wrong checksum": zip_bytes(stored("a.npy", GOOD_A, crc=1), B),
            "fewer bytes than claimed": zip_bytes(deflated("a.npy", GOOD_A[:-8], size=len(GOOD_A)), B),
            "other name inside": good.replace(b"a.npy", b"b.npy", 1),
            "broken deflate": zip_bytes({**deflated("a.npy", GOOD_A), "data": b"\xff\xff\xff"}, B),
        }
        for case, data in table.items():
            with self.subTest(case):
                self.assertRegex(self.refusal(data), r"^x\.npz: .")

    def test_no_changed_byte_gives_other_values(self):
        good, rng = zip_bytes(deflated("a.npy", GOOD_A), B), random.Random(1)
        refused = 0
        for i in range(len(good)):
            for byte in (good[i] ^ 1 << rng.randrange(8), 255 - good[i]):
                damaged = good[:i] + bytes([byte]) + good[i + 1:]
                try:
                    self.assertEqual(hexed(read_npz(damaged, SHAPES, "x.npz")), hexed(PARAMS), i)
                except CheckpointError:
                    refused += 1
        self.assertGreater(refused, len(good))


class TokenizerFile(TemporaryFolder):
    def test_it_holds_merge_records_and_tokens_in_id_order(self):
        tok = Tokenizer.train("banana ban band", 100)
        self.assertEqual(tok_bytes(tok).decode("utf-8"), (
            '{"merges": [\n'
            '{"pair": ["a", "n"], "merged": "an", "frequency": 4},\n'
            '{"pair": ["b", "an"], "merged": "ban", "frequency": 3},\n'
            '{"pair": [" ", "ban"], "merged": " ban", "frequency": 2}\n'
            '],\n"itos": ["<unk>", "<end>", " ", "a", "b", "d", "n", "an", "ban", " ban"]}\n'))

    def test_any_character_is_readable_in_the_file_and_comes_back(self):
        tok = Tokenizer.train(["é汉 é汉 \u2028👩\u200d🚀\x00\x85\"\\", "\ud83d\ude00\udcff e\u0301"], 40)
        data = tok_bytes(tok)
        for readable in ("é汉", "👩", "🚀"):
            self.assertIn(readable.encode("utf-8"), data)
        self.assertNotIn(b"\\u6c49", data)
        self.assertEqual(bundle.read_tok(data, "x"), tok)

    def test_a_tokenizer_in_any_order_of_ids_comes_back(self):
        tok = tokenizer()
        for case in (tok, Tokenizer(tok.alphabet[::-1], tok.merges), Tokenizer([], []), Tokenizer(["a"], [])):
            with self.subTest(size=len(case.vocab)):
                self.assertEqual(bundle.read_tok(tok_bytes(case), "x").vocab, case.vocab)

    def test_a_token_that_json_cannot_hold_is_refused_before_anything_is_written(self):
        tok = Tokenizer(["\ud83d", "\ude00"], [{"pair": ["\ud83d", "\ude00"], "merged": "\ud83d\ude00",
                                                "frequency": 2}])
        with self.assertRaisesRegex(ValueError, "^a token of this tokenizer cannot be written as JSON$"):
            save_checkpoint(self.path("m"), init_params(len(tok.vocab), 3, 5, 6, 1), CFG, tok)
        self.assertEqual(os.listdir(self.folder), [])

    def test_everything_inconsistent_is_refused_by_name(self):
        merge = {"pair": ["a", "b"], "merged": "ab", "frequency": 2}
        itos = ["<unk>", "<end>", "a", "b", "ab"]
        table = [
            ([], "is no JSON object of exactly merges and itos"),
            ({"itos": itos}, "is no JSON object of exactly merges and itos"),
            ({"merges": [merge], "itos": itos, "more": 1}, "is no JSON object of exactly merges and itos"),
            ({"merges": {}, "itos": itos}, "merges and itos are not two lists"),
            ({"merges": [merge], "itos": "ab"}, "merges and itos are not two lists"),
            ({"merges": [merge], "itos": itos[:2]}, "merge 0: 'a' is not a token yet"),
            ({"merges": [merge], "itos": itos[:1]}, "merge 0: 'a' is not a token yet"),
            ({"merges": [], "itos": itos}, "alphabet 2: 'ab' is not a new single character"),
            ({"merges": [merge], "itos": [*itos[:2], "a", "a", "ab"]}, "alphabet 1: 'a' is not a new single character"),
            ({"merges": [merge], "itos": [*itos[:2], "a", 7, "ab"]}, "alphabet 1: 7 is not a new single character"),
            ({"merges": [merge], "itos": ["<end>", "<unk>", *itos[2:]]},
             "itos is not the special tokens, the alphabet, then what the merges make"),
            ({"merges": [merge], "itos": [*itos[:4], "ba"]},
             "itos is not the special tokens, the alphabet, then what the merges make"),
            ({"merges": [{**merge, "merged": "ba"}], "itos": itos}, "merge 0: merged 'ba' is not 'ab'"),
            ({"merges": [{**merge, "frequency": True}], "itos": itos},
             "merge 0: frequency True is not a positive integer"),
        ]
        for value, problem in table:
            with self.subTest(value=value):
                data = json.dumps(value, indent=1).encode("ascii")
                self.assertRaisesRegex(CheckpointError, f"^x: {problem}$", bundle.read_tok, data, "x")

    def test_bytes_that_are_no_json_are_refused(self):
        table = {b"": "Expecting value", b"\xff": "'utf-8' codec", b"[" * 100000: "nested too deep: more than 100 levels",
                 tok_bytes(tokenizer())[:-9]: "", b'{"itos": [], "itos": []}': "key 'itos' stands twice",
                 b'{"itos": NaN}': "NaN is no JSON number"}
        for data, problem in table.items():
            with self.subTest(data=data[:20]):
                self.assertRaisesRegex(CheckpointError, f"^x: {problem}", bundle.read_tok, data, "x")


class RoundTrip(TemporaryFolder):
    def test_weights_config_and_tokenizer_come_back_the_same(self):
        tok, cfg = tokenizer(), {**CFG, "note": ["é", 0.1, None]}
        params = parameters(tok)
        save_checkpoint(self.path("m"), params, cfg, tok)
        loaded, loaded_cfg, loaded_tok = load_checkpoint(Path(self.path("m")))
        self.assertEqual((list(loaded), hexed(loaded)), (list(params), hexed(params)))
        self.assertEqual((loaded_cfg, loaded_tok), (cfg, tok))
        ids = tok.encode("the red kite. the blue")
        usable = init_params(len(tok.vocab), 3, 5, 6, 2)
        save_checkpoint(self.path("m"), usable, cfg, tok)
        self.assertEqual(next_logits(load_checkpoint(self.path("m"))[0], ids), next_logits(usable, ids))

    def test_the_json_has_the_shape_under_the_usual_names_and_all_of_the_config(self):
        body = json.loads(Path(self.bundle() + ".json").read_text(encoding="ascii"))
        digests = {field: body.pop(field) for field in ("sha256", "npz_sha256", "tok_json_sha256", "params_sha256")}
        self.assertEqual(body, {"vocab_size": len(tokenizer().vocab), "context_len": 6, "emb_dim": 3, "num_heads": 1,
                                "ff_dim": 5, "num_layers": 1, "config": CFG, "format_version": 1})
        for end, field in ((".npz", "npz_sha256"), (".tok.json", "tok_json_sha256")):
            data = Path(self.path("m") + end).read_bytes()
            self.assertEqual(digests[field], hashlib.sha256(data).hexdigest())

    def test_the_json_is_laid_out_for_people(self):
        lines = Path(self.bundle() + ".json").read_text(encoding="ascii").splitlines()
        self.assertIn('  "emb_dim": 3,', lines)

    def test_two_exports_of_one_model_are_the_same_bytes(self):
        for prefix in (self.bundle("m"), self.bundle("n")):
            data = [Path(prefix + end).read_bytes() for end in bundle.ENDS]
            self.assertEqual(data, [Path(self.path("m") + end).read_bytes() for end in bundle.ENDS])

    def test_the_folder_is_made_and_holds_the_three_files_alone(self):
        tok = tokenizer()
        save_checkpoint(self.path(os.path.join("a", "b", "m")), parameters(tok), CFG, tok)
        self.assertEqual(sorted(os.listdir(self.path(os.path.join("a", "b")))), ["m.json", "m.npz", "m.tok.json"])

    def test_the_order_in_which_params_are_given_does_not_matter(self):
        tok = tokenizer()
        params = parameters(tok)
        save_checkpoint(self.path("m"), dict(reversed(list(params.items()))), CFG, tok)
        self.assertEqual(list(load_checkpoint(self.path("m"))[0]), list(params))
        self.assertEqual(Path(self.path("m.npz")).read_bytes(), npz_bytes(params))

    def test_a_model_that_would_not_come_back_is_refused_before_anything_is_written(self):
        tok = tokenizer()
        good = parameters(tok)
        name = self.path("m")
        table = [
            ({**good, "wte": good["wte"][1:]}, CFG, f"field 'params.wte' is not a list of {len(tok.vocab)} rows"),
            ({**good, "extra": []}, CFG, "field 'params.extra' is unknown"),
            ({**good, "wpe": [[1] * 3] * 6}, CFG, "field 'params.wpe[0]' is not a list of 3 finite floats"),
            ({**good, "wpe": [[float("nan")] * 3] * 6}, CFG, "field 'params.wpe[0]' is not a list of 3 finite floats"),
            (good, {**CFG, "d": 0}, "field 'config.d' is not a whole number from 1 to 4194304"),
            (good, {**CFG, "d": True}, "field 'config.d' is not a whole number from 1 to 4194304"),
            (good, {"d": 3}, "field 'config.hidden' is not a whole number from 1 to 4194304"),
            (good, None, "field 'config' is not a JSON object"),
            (good, {**CFG, "max_len": 4194304}, "field 'config' is not of a size that can be used: wpe would have "
                                                "4194304 x 3 values, and 4194304 are the most"),
        ]
        for params, cfg, problem in table:
            with self.subTest(problem):
                with self.assertRaises(CheckpointError) as caught:
                    save_checkpoint(name, params, cfg, tok)
                self.assertEqual(str(caught.exception), f"checkpoint {name}: {problem}")
        for odd in ({"x": float("inf")}, {1: 2}, {"x": {1}}):
            with self.subTest(odd=odd):
                self.assertRaisesRegex(ValueError, "^cannot be saved as JSON: ",
                                       save_checkpoint, name, good, {**CFG, **odd}, tok)
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_prefix_that_is_a_folder_is_refused(self):
        tok = tokenizer()
        for prefix in ("", self.folder + os.sep, os.path.join(self.folder, ".")):
            with self.subTest(prefix=prefix):
                with self.assertRaises(CheckpointError) as caught:
                    save_checkpoint(prefix, parameters(tok), CFG, tok)
                self.assertEqual(str(caught.exception),
                                 f"bundle {prefix}: its prefix must end in a name, not in a folder")
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_json_that_is_no_bundles_is_never_overwritten(self):
        best = self.best()
        before = Path(best).read_bytes()
        tok = tokenizer()
        for name in ("best", "tokenizer"):
            with self.subTest(name):
                with self.assertRaises(CheckpointError) as caught:
                    save_checkpoint(self.path(name), parameters(tok), CFG, tok)
                self.assertEqual(str(caught.exception),
                                 f"{self.path(name)}.json exists and is not a bundle's; choose another prefix")
        self.assertEqual(Path(best).read_bytes(), before)
        self.assertEqual(sorted(os.listdir(self.folder)), ["best.json", "tokenizer.json"])


class ThreeFilesAreOne(TemporaryFolder):
    def test_each_file_goes_through_the_atomic_writer_and_the_json_is_last(self):
        written = []
        with mock.patch.object(bundle, "write_atomically", lambda path, data: written.append(path)):
            self.bundle()
        self.assertIs(bundle.write_atomically, checkpoint.write_atomically)
        self.assertEqual(written, [self.path(name) for name in ("m.npz", "m.tok.json", "m.json")])

    def test_a_first_export_that_was_cut_short_is_refused(self):
        whole = self.bundle("whole")
        advice = "export it again: python3 bundle.py CHECKPOINT m"
        for ends, missing in ((".npz",), "m.tok.json"), ((".npz", ".tok.json"), "m.json"), ((".json",), "m.npz"):
            for end in ends:
                shutil.copy(whole + end, self.path("m" + end))
            with self.subTest(ends=ends):
                self.assertEqual(self.refusal(self.path("m")), f"bundle m: {missing} is missing; {advice}")
            for end in ends:
                os.unlink(self.path("m" + end))

    def test_no_bundle_at_all_is_a_file_not_found(self):
        with self.assertRaises(FileNotFoundError) as caught:
            load_checkpoint("nowhere")
        self.assertEqual(str(caught.exception),
                         "no bundle nowhere; make one with: python3 bundle.py CHECKPOINT nowhere")

    def test_every_mix_of_two_exports_is_refused(self):
        tok = Tokenizer(tokenizer().alphabet[::-1], tokenizer().merges)
        one, two = self.bundle("one", seed=1), self.path("two")
        cfg = {**CFG, "hidden": 4}
        save_checkpoint(two, parameters(tok, 2, cfg), cfg, tok)
        for number in range(1, 7):
            for bit, end in enumerate(bundle.ENDS):
                shutil.copy((two if number >> bit & 1 else one) + end, self.path("m" + end))
            with self.subTest(number=number):
                self.assertRegex(self.refusal(self.path("m")), "; export it again: python3 bundle.py CHECKPOINT m$")

    def test_a_mix_names_the_file_that_does_not_belong(self):
        self.bundle("m", seed=1)
        self.bundle("n", seed=2)
        advice = "export it again: python3 bundle.py CHECKPOINT m"
        shutil.copy(self.path("n.npz"), self.path("m.npz"))
        self.assertEqual(self.refusal(self.path("m")),
                         f"bundle m: m.npz is not of the same export as m.json; {advice}")
        self.bundle("m", seed=1)
        Path(self.path("m.tok.json")).write_bytes(tok_bytes(Tokenizer.train(TEXT, 23)))
        self.assertEqual(self.refusal(self.path("m")),
                         f"bundle m: m.tok.json is not of the same export as m.json; {advice}")

    def test_a_crash_at_any_write_of_a_new_export_leaves_one_that_is_refused_until_it_is_made_again(self):
        for after in (0, 1, 2):
            prefix, writes = self.bundle("m", seed=1), []

            def dying(path, data, after=after, writes=writes):
                if len(writes) == after:
                    raise KeyboardInterrupt
                writes.append(path)
                checkpoint.write_atomically(path, data)

            with self.subTest(after=after):
                with mock.patch.object(bundle, "write_atomically", dying), self.assertRaises(KeyboardInterrupt):
                    self.bundle("m", seed=2)
                if after == 0:
                    self.assertEqual(hexed(load_checkpoint(prefix)[0]), hexed(parameters(tokenizer(), 1)))
                else:
                    self.assertIn("m.npz is not of the same export as m.json", self.refusal(prefix))
                self.bundle("m", seed=2)
                self.assertEqual(hexed(load_checkpoint(prefix)[0]), hexed(parameters(tokenizer(), 2)))
                self.assertEqual(sorted(os.listdir(self.folder)), ["m.json", "m.npz", "m.tok.json"])

    def test_temporaries_of_a_killed_export_go_with_the_next_and_nothing_else_does(self):
        mine = [".m.npz.0123abcd.tmp", ".m.tok.json.0123abcd.tmp", ".m.json.0123abcd.tmp"]
        others = [".n.npz.0123abcd.tmp", ".m.npz.tmp", ".m.csv.0123abcd.tmp", "m.npz.0123abcd.tmp", ".m2.npz.0123abcd.tmp"]
        for name in mine + others:
            Path(self.path(name)).write_bytes(b"")
        self.bundle("m")
        self.assertEqual(sorted(os.listdir(self.folder)), sorted([*others, "m.json", "m.npz", "m.tok.json"]))

    def test_every_changed_byte_of_the_json_or_tokenizer_is_refused_or_harmless(self):
        prefix = self.bundle()
        expected = load_checkpoint(prefix)
        for end in (".json", ".tok.json"):
            good = Path(prefix + end).read_bytes()
            for i in range(0, len(good), 3):
                Path(prefix + end).write_bytes(good[:i] + bytes([good[i] ^ 1]) + good[i + 1:])
                try:
                    loaded = load_checkpoint(prefix)
                except CheckpointError:
                    continue
                self.assertEqual(loaded, expected, (end, i))
            Path(prefix + end).write_bytes(good)

    def test_a_json_that_does_not_describe_this_model_is_refused_by_field(self):
        prefix = self.bundle()
        size = len(tokenizer().vocab)
        table = [
            ({"num_heads": 2}, "checkpoint m.json: field 'num_heads' is not 1, as its config says"),
            ({"num_layers": 2}, "checkpoint m.json: field 'num_layers' is not 1, as its config says"),
            ({"emb_dim": 3.0}, "checkpoint m.json: field 'emb_dim' is not 3, as its config says"),
            ({"context_len": 7}, "checkpoint m.json: field 'context_len' is not 6, as its config says"),
            ({"ff_dim": "5"}, "checkpoint m.json: field 'ff_dim' is not 5, as its config says"),
            ({"vocab_size": "9"}, "checkpoint m.json: field 'vocab_size' is not a whole number from 2 to 4194304"),
            ({"vocab_size": size + 1}, f"m.tok.json has {size} tokens; m.json says {size + 1}"),
            ({"npz_sha256": None}, "checkpoint m.json: field 'npz_sha256' is missing"),
            ({"more": 1}, "checkpoint m.json: field 'more' is unknown"),
            ({"config": None}, "checkpoint m.json has no config that is a JSON object"),
            ({"config": {**CFG, "d": 10 ** 9}, "emb_dim": 10 ** 9},
             "checkpoint m.json: field 'config.d' is not a whole number from 1 to 4194304"),
            ({"config": {**CFG, "hidden": 7}, "ff_dim": 7},
             "m.npz: member 'mlp_fc.npy' has shape (5, 3); expected (7, 3)"),
        ]
        before = Path(prefix + ".json").read_bytes()
        for changes, problem in table:
            with self.subTest(problem):
                self.rewrite(prefix, **changes)
                self.assertEqual(self.refusal(prefix),
                                 f"bundle m: {problem}; export it again: python3 bundle.py CHECKPOINT m")
                Path(prefix + ".json").write_bytes(before)

    def test_a_json_that_is_none_is_refused(self):
        prefix = self.bundle()
        text = Path(prefix + ".json").read_text(encoding="ascii")
        table = {
            "{": "checkpoint m.json is not valid JSON: ",
            "[]": "checkpoint m.json does not hold a JSON object",
            text.replace('"format_version": 1', '"format_version": 2'): "m.json: checkpoint format 2; expected 1",
            text.replace('"ff_dim": 5', '"ff_dim": 6'): "checkpoint m.json failed its SHA-256 check",
        }
        for content, problem in table.items():
            with self.subTest(problem):
                Path(prefix + ".json").write_text(content, encoding="ascii")
                self.assertTrue(self.refusal(prefix).startswith(f"bundle m: {problem}"), self.refusal(prefix))

    def test_weights_that_are_not_finite_are_refused_under_valid_digests(self):
        prefix = self.bundle()
        params = parameters(tokenizer())
        params["wpe"][2][1] = float("inf")
        Path(prefix + ".npz").write_bytes(npz_bytes(params))
        self.rewrite(prefix)
        self.assertIn("checkpoint m.npz: field 'params.wpe[2]' is not a list of 3 finite floats", self.refusal(prefix))

    def test_files_that_are_too_large_are_refused_unread(self):
        prefix = self.bundle()
        for end, limit in ((".npz", 9 * (8 * 3 * len(tokenizer().vocab) + 4096)), (".tok.json", 1 << 22)):
            good = Path(prefix + end).read_bytes()
            with open(prefix + end, "ab") as file:
                file.truncate(limit + 1)
            with self.subTest(end):
                self.assertIn(f"m{end} is larger than {limit} bytes, the most that it can need", self.refusal(prefix))
            Path(prefix + end).write_bytes(good)

    def test_a_folder_in_place_of_a_file_is_refused(self):
        for end in bundle.ENDS:
            prefix = self.bundle()
            os.unlink(prefix + end)
            os.mkdir(prefix + end)
            with self.subTest(end):
                self.assertIn(f"m{end} cannot be read: ", self.refusal(prefix))
            os.rmdir(prefix + end)


class Elsewhere(TemporaryFolder):
    """An .npz that another program made of the same arrays: by NumPy, and by hand where there is none."""

    def test_an_archive_made_anew_of_the_same_arrays_loads(self):
        prefix = self.bundle()
        params = parameters(tokenizer())
        members = [deflated(f"{name}.npy", npy_bytes(matrix)) for name, matrix in params.items()]
        Path(prefix + ".npz").write_bytes(zip_bytes(*members))
        self.assertEqual(hexed(load_checkpoint(prefix)[0]), hexed(params))

    def test_one_other_bit_in_the_arrays_does_not(self):
        prefix = self.bundle()
        params = parameters(tokenizer())
        self.assertEqual(params["wte"][0][0].hex(), "0x0.0p+0")
        params["wte"][0][0] = -0.0
        Path(prefix + ".npz").write_bytes(npz_bytes(params))
        self.assertIn("m.npz is not of the same export as m.json", self.refusal(prefix))

    @unittest.skipIf(numpy is None, "NumPy is not installed")
    def test_numpy_loads_float64_arrays_equal_bit_for_bit(self):
        prefix = self.bundle()
        with numpy.load(prefix + ".npz", allow_pickle=False) as arrays:
            self.assertEqual(list(arrays), list(param_shapes(1, 1, 1, 1)))
            for name, matrix in parameters(tokenizer()).items():
                self.assertEqual((arrays[name].dtype.str, arrays[name].flags.c_contiguous), ("<f8", True))
                self.assertEqual(hexed({name: arrays[name].tolist()}), hexed({name: matrix}))

    @unittest.skipIf(numpy is None, "NumPy is not installed")
    def test_a_matrix_is_the_very_bytes_that_numpy_save_writes(self):
        for matrix in ([[0.1, -0.0]], [[1.0]] * 123456):
            buffer = io.BytesIO()
            numpy.save(buffer, numpy.array(matrix))
            self.assertEqual(npy_bytes(matrix), buffer.getvalue())

    @unittest.skipIf(numpy is None, "NumPy is not installed")
    def test_what_numpy_savez_wrote_of_the_same_arrays_loads(self):
        prefix = self.bundle()
        params = parameters(tokenizer())
        arrays = {name: numpy.array(matrix) for name, matrix in params.items()}
        for write in (numpy.savez, numpy.savez_compressed):
            with self.subTest(write.__name__):
                write(prefix + ".npz", **arrays)
                self.assertEqual(hexed(load_checkpoint(prefix)[0]), hexed(params))

    @unittest.skipIf(numpy is None, "NumPy is not installed")
    def test_what_numpy_wrote_of_other_kinds_of_arrays_is_refused(self):
        prefix = self.bundle()
        arrays = {name: numpy.array(matrix) for name, matrix in parameters(tokenizer()).items()}
        table = {
            "holds Python objects (dtype '|O')": arrays["wpe"].astype(object),
            "has dtype '<f4'": arrays["wpe"].astype("f4"),
            "has dtype '>f8'": arrays["wpe"].astype(">f8"),
            "is in Fortran order": numpy.asfortranarray(arrays["wpe"]),
            "has shape (18,)": arrays["wpe"].reshape(-1),
            "has shape ()": numpy.float64(1.0),
        }
        for problem, wpe in table.items():
            with self.subTest(problem):
                numpy.savez(prefix + ".npz", **{**arrays, "wpe": wpe})
                self.assertIn(f"bundle m: m.npz: member 'wpe.npy' {problem}", self.refusal(prefix))


class CommandLine(TemporaryFolder):
    def run_main(self, *argv):
        """(exit status, standard output, standard error), without the folder's name."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = bundle.main([*argv, "--tokenizer", self.path("tokenizer.json")])
            except SystemExit as stop:
                status = stop.code
        return status, *(text.getvalue().replace(self.folder + os.sep, "") for text in (out, err))

    def test_a_checkpoint_is_exported_and_verified(self):
        tok = tokenizer()
        digest = params_sha256(parameters(tok))
        expected = ("wrote out.npz, out.tok.json, out.json; loaded again, they are the model of best.json:\n"
                    f"9 arrays, {len(tok.vocab)} tokens, params_sha256 {digest}\n")
        for prefix in ("out", "out.npz", "out.json", "out.tok.json"):
            with self.subTest(prefix):
                self.assertEqual(self.run_main(self.best(), self.path(prefix)), (0, expected, ""))
                self.assertEqual(hexed(load_checkpoint(self.path("out"))[0]), hexed(parameters(tok)))
        self.assertEqual(len(os.listdir(self.folder)), 5)

    def test_a_runs_folder_stands_for_its_best_json(self):
        self.best(os.path.join("run", "best.json"))
        self.assertEqual(self.run_main(self.path("run"), self.path("out"))[0], 0)

    def test_a_whole_state_can_be_exported_too(self):
        self.assertEqual(self.run_main(self.best("last.json", history=[2.5]), self.path("out"))[0], 0)

    def test_an_export_that_does_not_load_as_written_is_refused(self):
        best, tok = self.best(), tokenizer()
        other = parameters(tok, 2), CFG, tok
        with mock.patch.object(bundle, "load_checkpoint", return_value=other):
            self.assertEqual(self.run_main(best, self.path("out")), (
                1, "", "bundle.py: bundle out: it does not load as it was written; export it again\n"))

    def test_other_sources_are_a_warning(self):
        inputs = input_signature(tokenizer(), TEXT)
        inputs["source_sha256"]["model.py"] = "0" * 64
        status, out, err = self.run_main(self.best(training_inputs=inputs), self.path("out"))
        self.assertEqual((status, out.split("\n")[0]), (
            0, "wrote out.npz, out.tok.json, out.json; loaded again, they are the model of best.json:"))
        self.assertEqual(err, "bundle.py: warning: checkpoint best.json was trained with other sources (model.py); "
                              "its weights have the right shapes, but may make another text now\n")

    def test_another_corpus_does_not_matter(self):
        self.assertEqual(self.run_main(self.best(training_inputs=input_signature(tokenizer(), "x")),
                                       self.path("out"))[2], "")

    def test_what_cannot_be_exported_is_refused_in_one_sentence(self):
        tok = tokenizer()
        other = Tokenizer(tok.alphabet[::-1], tok.merges)
        bad = parameters(tok)
        bad["attn_wq"][1][1] = 7
        self.best(os.path.join("run", "last.json"))
        os.mkdir(self.path("empty"))
        Path(self.path("corpus.txt")).write_text(TEXT, encoding="utf-8")
        cases = [
            (self.best("1.json", training_inputs=input_signature(other, TEXT)),
             "checkpoint 1.json was trained with another tokenizer than tokenizer.json; name the right one with "
             "--tokenizer FILE"),
            (self.best("2.json", training_inputs=None),
             "checkpoint 2.json does not record the tokenizer that it was trained with; train it again: "
             "python3 runs.py train FOLDER"),
            (self.best("3.json", params=bad),
             "checkpoint 3.json: field 'params.attn_wq[1]' is not a list of 3 finite floats"),
            (self.best("4.json", cfg={**CFG, "d": "3"}, params=parameters(tok)),
             "checkpoint 4.json: field 'config.d' is not a whole number from 1 to 4194304"),
            (self.path("tokenizer.json"), "tokenizer.json: checkpoint format None; expected 1"),
            (self.path("corpus.txt"), "checkpoint corpus.txt is not valid JSON: Expecting value: line 1 column 1 (char 0)"),
            (self.path("run"), f"folder run has a last.json but no best.json yet: train to the first evaluation, or use "
                               f"{os.path.join('run', 'last.json')}"),
            (self.path("empty"), "folder empty holds no best.json; expected the folder of a run"),
            (self.path("none.json"), "no checkpoint none.json; start a run with: python3 runs.py train FOLDER"),
        ]
        for source, problem in cases:
            with self.subTest(problem):
                self.assertEqual(self.run_main(source, self.path("out")), (1, "", f"bundle.py: {problem}\n"))
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith("out")], [])

    def test_a_missing_tokenizer_is_refused(self):
        best = self.best()
        os.unlink(self.path("tokenizer.json"))
        status, out, err = self.run_main(best, self.path("out"))
        self.assertEqual((status, out), (1, ""))
        self.assertRegex(err, "^bundle.py: tokenizer tokenizer.json does not exist; to make it: ")

    def test_the_checkpoint_itself_is_not_overwritten(self):
        best = self.best()
        self.assertEqual(self.run_main(best, self.path("best")), (
            1, "", "bundle.py: best.json exists and is not a bundle's; choose another prefix\n"))

    def test_a_disk_error_is_one_sentence(self):
        best = self.best()
        with mock.patch.object(os, "replace", side_effect=OSError(28, "No space left on device")):
            status, out, err = self.run_main(best, self.path("out"))
        self.assertEqual((status, out), (1, ""))
        self.assertRegex(err, r"^bundle.py: .*out.npz: No space left on device\n$")
        self.assertEqual(sorted(os.listdir(self.folder)), ["best.json", "tokenizer.json"])

    def test_ctrl_c_is_no_traceback(self):
        with mock.patch.object(bundle, "export", side_effect=KeyboardInterrupt):
            self.assertEqual(self.run_main("x", "y"), (130, "", ""))

    def test_a_wrong_command_line_is_exit_status_2(self):
        self.assertEqual(self.run_main("best.json")[0], 2)

    @unittest.skipIf(no_children(), no_children())
    def test_the_program_itself_exports(self):
        command = [sys.executable, "-B", str(HERE / "bundle.py"), self.best(), self.path("é"),
                   "--tokenizer", self.path("tokenizer.json")]
        done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"},
                              cwd=self.folder, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertIn(b"loaded again, they are the model of", done.stdout)
        self.assertEqual(load_checkpoint(self.path("é"))[2], tokenizer())


if __name__ == "__main__":
    unittest.main()
