"""Byte-pair encoding over characters: text to token ids and back.

    piece      an optional space and a run of word characters, or of punctuation; or white space
    merge      two neighboring tokens of a piece become one; never across two pieces
    training   again and again, merge the most frequent pair
    encoding   the same merges in the same order

Ids: 0 is `<unk>`, 1 is `<end>`, then come the alphabet's characters, then the merged tokens.

Not handled: bytes (a character outside the alphabet becomes `<unk>` and does not come back),
Unicode normalisation, special tokens written in a text (there "<end>" is five characters), and
speed on big corpora: every merge counts the pairs of every distinct piece anew.
"""
from __future__ import annotations

import argparse
import copy
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from console import guarded, print_anything
from disk import write_atomically
from strict_json import parse

SPECIAL = ["<unk>", "<end>"]
UNK, END = 0, 1
VOCAB_SIZE = 128
HERE = os.path.dirname(os.path.abspath(__file__))
CORPUS = os.path.join(HERE, "corpus.txt")
TOKENIZER = os.path.join(HERE, "tokenizer.json")
LAB = (CORPUS, VOCAB_SIZE)

# Written out, not \w: which characters that means depends on the Python version's Unicode tables.
PUNCTUATION = r"!-/:-@\[-`{-~\u00a1-\u00bf\u2010-\u2027\u3001-\u3003"
# A lone surrogate is a piece by itself: JSON reads two in one token back as another character.
SURROGATE = r"\ud800-\udfff"
WORD = rf"^\s{PUNCTUATION}{SURROGATE}"
PIECE = re.compile(rf" ?[{WORD}]+| ?[{PUNCTUATION}]+|\s+|[{SURROGATE}]", re.ASCII)

Merge = dict[str, Any]      # {"pair": [left, right], "merged": left + right, "frequency": count}


def story_lines(text: str) -> list[str]:
    """The lines of a text, stripped, without the blank ones.

    Not `splitlines`: that also cuts at U+2028, form feeds and others inside a story.
    """
    return [line.strip() for line in text.split("\n") if line.strip()]


def distinct_stories(text: str) -> list[str]:
    """The lines without those that repeat an earlier one, be it with other spacing."""
    distinct: dict[str, str] = {}
    for story in story_lines(text):
        distinct.setdefault(" ".join(story.split()), story)
    return list(distinct.values())


def training_stories(text: str) -> list[str]:
    """The first five of every seven distinct stories; the other two are for scoring."""
    return [story for i, story in enumerate(distinct_stories(text)) if i % 7 < 5]


def adjacent_pairs(symbols: Sequence[str]) -> list[tuple[str, str]]:
    """The neighbors from left to right, each as often as `merge_pair` would join it.

    a b c -> (a, b) (b, c), but a a a -> (a, a) once: the middle a can be joined only once.
    """
    pairs: list[tuple[str, str]] = []
    overlapped = None
    for i in range(1, len(symbols)):
        pair = symbols[i - 1], symbols[i]
        if pair == overlapped:
            overlapped = None
        else:
            pairs.append(pair)
            overlapped = pair
    return pairs


def merge_pair(symbols: Iterable[str], left: str, right: str) -> list[str]:
    """The symbols with every `left right` joined, from left to right: a a a -> aa a."""
    merged: list[str] = []
    for symbol in symbols:
        if symbol == right and merged and merged[-1] == left:
            merged[-1] = left + right       # longer than `left`, so not joined a second time
        else:
            merged.append(symbol)
    return merged


def learn_merges(stories: Iterable[str], limit: int) -> list[Merge]:
    """Up to `limit` merges in order; fewer when no pair is left that occurs twice.

    The most frequent pair is next; among equals the smallest (left, right) by code points.
    No token comes up twice: between token borders, equal characters are always cut alike.
    """
    times = Counter(piece for story in stories for piece in PIECE.findall(story))
    cuts = [(list(piece), count) for piece, count in times.items()]
    merges: list[Merge] = []
    while len(merges) < limit:
        counts: Counter[tuple[str, str]] = Counter()
        for symbols, count in cuts:
            for pair in adjacent_pairs(symbols):
                counts[pair] += count
        left, right = min(counts, key=lambda pair: (-counts[pair], pair), default=("", ""))
        if counts[left, right] < 2:
            break
        frequency = counts[left, right]
        merges.append({"pair": [left, right], "merged": left + right, "frequency": frequency})
        cuts = [(merge_pair(symbols, left, right), count) for symbols, count in cuts]
    return merges


def checked_merge(record: Any, learned: Container[str]) -> Merge:
    """A copy of the record if it can follow the tokens learned so far; else ValueError."""
    if not isinstance(record, dict) or set(record) != {"pair", "merged", "frequency"}:
        raise ValueError("not an object of exactly pair, merged and frequency")
    pair, merged, frequency = record["pair"], record["merged"], record["frequency"]
    if not isinstance(pair, list) or [type(side) for side in pair] != [str, str]:
        raise ValueError(f"pair {pair!r} is not a list of two strings")
    for side in pair:
        if side not in learned:
            raise ValueError(f"{side!r} is not a token yet")
    if merged != pair[0] + pair[1]:
        raise ValueError(f"merged {merged!r} is not {pair[0] + pair[1]!r}")
    if merged in learned or merged in SPECIAL:
        raise ValueError(f"{merged!r} is a token already")
    if type(frequency) is not int or frequency < 1:
        raise ValueError(f"frequency {frequency!r} is not a positive integer")
    return {"pair": list(pair), "merged": merged, "frequency": frequency}


class Tokenizer:
    """Tokens `vocab` (index = id) made of `alphabet` and `merges`; equal when these are equal."""

    def __init__(self, alphabet: list[str], merges: Iterable[Merge]) -> None:
        """From the characters in id order and the merge records in training order.

        ValueError names the first entry that does not fit.
        """
        if not isinstance(alphabet, list):
            raise ValueError("alphabet is not a list")
        ids: dict[str, int] = {}
        for index, character in enumerate(alphabet):
            if not isinstance(character, str) or len(character) != 1 or character in ids:
                raise ValueError(f"alphabet {index}: {character!r} is not a new single character")
            ids[character] = len(SPECIAL) + len(ids)
        self.alphabet = list(ids)
        self.merges: list[Merge] = []
        for index, record in enumerate(merges):
            try:
                self.merges.append(checked_merge(record, ids))
            except ValueError as error:
                raise ValueError(f"merge {index}: {error}") from error
            ids[self.merges[-1]["merged"]] = len(SPECIAL) + len(ids)
        self.vocab = SPECIAL + list(ids)
        self._texts = ["\ufffd", "", *ids]          # what decoding shows of UNK, END and the rest
        self._ids = ids
        self._ranks = {tuple(merge["pair"]): rank for rank, merge in enumerate(self.merges)}
        self._encoded: dict[str, list[int]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.to_json() == other.to_json()

    @classmethod
    def train(cls, text_or_stories: str | Iterable[str], vocab_size: int) -> Tokenizer:
        """A tokenizer of `vocab_size` tokens, fewer when no pair is left that occurs twice.

        A text holds one story a line. ValueError: no story, or no room for the characters.
        """
        if isinstance(text_or_stories, str):
            text_or_stories = story_lines(text_or_stories)
        stories = list(text_or_stories)
        alphabet = sorted(set("".join(stories)))
        if not alphabet:
            raise ValueError("there is no story to train on")
        needed = len(SPECIAL) + len(alphabet)
        if vocab_size < needed:
            raise ValueError(f"a vocabulary of {vocab_size} is too small; {needed} are needed: "
                             f"{len(SPECIAL)} special tokens and {len(alphabet)} characters")
        return cls(alphabet, learn_merges(stories, vocab_size - needed))

    def encode(self, text: str) -> list[int]:
        """The ids of a text, UNK for each character outside the alphabet, no END added.

        A start of the text that ends between two pieces has a start of these ids.
        """
        ids: list[int] = []
        for piece in PIECE.findall(text):
            if piece not in self._encoded:
                self._encoded[piece] = self._encode_piece(piece)
            ids += self._encoded[piece]
        return ids

    def _encode_piece(self, piece: str) -> list[int]:
        symbols = list(piece)
        while len(symbols) > 1:
            pairs = adjacent_pairs(symbols)
            first = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if first not in self._ranks:
                break
            symbols = merge_pair(symbols, *first)
        return [self._ids.get(symbol, UNK) for symbol in symbols]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids: U+FFFD for UNK, nothing for END. ValueError names a wrong id."""
        strings = []
        for i in ids:
            if type(i) is not int or not 0 <= i < len(self.vocab):
                raise ValueError(f"{i!r} is not an id of this vocabulary of {len(self.vocab)}")
            strings.append(self._texts[i])
        return "".join(strings)

    def to_json(self) -> dict[str, Any]:
        """The alphabet and the merges; changing them does not change the tokenizer."""
        return {"alphabet": list(self.alphabet), "merges": copy.deepcopy(self.merges)}

    @classmethod
    def from_json(cls, value: Any) -> Tokenizer:
        """The tokenizer that `to_json` was called on; ValueError names the field that is wrong."""
        if not isinstance(value, dict) or set(value) != {"alphabet", "merges"}:
            raise ValueError("not an object of exactly alphabet and merges")
        if not isinstance(value["merges"], list):
            raise ValueError("merges is not a list")
        return cls(value["alphabet"], value["merges"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file for `load`, one merge a line; an OSError before it is there leaves the old one.

        Only lone surrogates need `backslashreplace`; it writes them just as JSON escapes them.
        """
        alphabet = json.dumps(self.alphabet, ensure_ascii=False)
        merges = ",\n".join(json.dumps(merge, ensure_ascii=False) for merge in self.merges)
        text = f'{{"alphabet": {alphabet},\n"merges": [\n{merges}\n]}}\n'
        write_atomically(path, text.encode("utf-8", "backslashreplace"))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """The tokenizer in a file. FileNotFoundError or ValueError names the file and the cure."""
        cure = f"to make it: python3 bpe.py [CORPUS] --write {path}"
        try:
            text = Path(path).read_text(encoding="utf-8-sig")   # with or without a byte order mark
            return cls.from_json(parse(text))
        except FileNotFoundError as error:
            raise FileNotFoundError(f"tokenizer {path} does not exist; {cure}") from error
        except ValueError as error:
            raise ValueError(f"tokenizer {path}: {error}; {cure}") from error


def train_on_file(corpus: str, vocab_size: int) -> tuple[Tokenizer, list[str]]:
    """The tokenizer of a corpus file's training stories, and these; an error names the file."""
    try:
        stories = training_stories(Path(corpus).read_text(encoding="utf-8-sig"))
        return Tokenizer.train(stories, vocab_size), stories
    except FileNotFoundError as error:
        raise FileNotFoundError(f"corpus {corpus} does not exist") from error
    except ValueError as error:
        raise ValueError(f"corpus {corpus}: {error}") from error


def show(tok: Tokenizer, stories: list[str]) -> int:
    """Print what the tokenizer is made of and what it does to the stories. Returns 0."""
    lengths = sorted(len(tok.encode(story)) + 1 for story in stories)
    tokens = len([i for story in stories for i in tok.encode(story)])
    print(f"training stories: {len(stories)}, of {lengths[0]} to {lengths[-1]} tokens with <end>,"
          f" {len(''.join(stories)) / tokens:.2f} characters a token")
    print(f"{len(tok.vocab)} tokens: {len(SPECIAL)} special, {len(tok.alphabet)} characters,"
          f" {len(tok.merges)} merges; the first merges:")
    for merge in tok.merges[:10]:
        print(f"{merge['frequency']:6} times {merge['pair'][0]!r} + {merge['pair'][1]!r}")
    return 0


def write(path: str, tok: Tokenizer) -> int:
    """Save the tokenizer; ValueError if another kind of file is in its place. Returns 0."""
    if path != TOKENIZER and os.path.exists(path):
        try:
            Tokenizer.load(path)
        except ValueError as error:     # `--write stories.txt`: a slip must not cost the stories
            raise ValueError(f"{path} exists and is not a tokenizer; remove it first") from error
    tok.save(path)
    print(f"wrote {path}: {len(tok.vocab)} tokens")
    return 0


def check(path: str, tok: Tokenizer, repair: str) -> int:
    """0 if the file holds the tokenizer; else 1, with the first difference and the repair shown."""
    recorded, computed = Tokenizer.load(path).to_json(), tok.to_json()
    for field in ("alphabet", "merges"):
        for index, (old, new) in enumerate(zip_longest(recorded[field], computed[field])):
            if old != new:
                print(f"{path} differs at {field} {index}: recorded {old!r}, computed {new!r}")
                print(f"to write it anew: {repair}")
                return 1
    print(f"{path} is what bpe.py makes: {len(tok.vocab)} tokens")
    return 0


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """`corpus`, `vocab_size`, `write` and `check`; a wrong command line exits with status 2."""
    parser = argparse.ArgumentParser(prog="bpe.py", description="Train a tokenizer on a corpus.")
    parser.add_argument("corpus", nargs="?", default=CORPUS, metavar="CORPUS",
                        help="a text with one story a line (default: the lab's corpus.txt)")
    parser.add_argument("--vocab-size", type=int, default=VOCAB_SIZE, metavar="N",
                        help="the most tokens to make (default: %(default)s)")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", nargs="?", const=TOKENIZER, metavar="OUT",
                        help="save the tokenizer (default: the lab's tokenizer.json)")
    action.add_argument("--check", nargs="?", const=TOKENIZER, metavar="FILE",
                        help="compare it with a saved one (default: the lab's tokenizer.json)")
    args = parser.parse_args(argv)
    if TOKENIZER in (args.write, args.check) and (args.corpus, args.vocab_size) != LAB:
        parser.error("another corpus or size needs its own file after --write or --check")
    return args


def run(args: argparse.Namespace) -> int:
    """Do what the command line asks; OSError or ValueError when that is refused."""
    tok, stories = train_on_file(args.corpus, args.vocab_size)
    if args.write is not None:
        return write(args.write, tok)
    if args.check == TOKENIZER:
        return check(args.check, tok, "python3 bpe.py --write")
    if args.check is not None:
        options = f"{args.corpus} --vocab-size {args.vocab_size} --write {args.check}"
        return check(args.check, tok, f"python3 bpe.py {options}")
    return show(tok, stories)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0, or 1 when the check fails or something is refused."""
    args = parse_arguments(argv)
    print_anything()
    return guarded("bpe.py", lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
