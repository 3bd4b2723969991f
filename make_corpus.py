"""Write corpus.txt: 420 short stories from a small grammar, one a line.

Each story gives a child a thing of one color, leads it to one place, perhaps past a thing of
another color, and asks the first thing's color again in its last sentence:

    Mia had a red kite. She took it to the park. Ben had a blue drum. The kite was still red.

A language model can guess most words from the word before; the last one it must look up. The
stories are drawn with a seed and never twice, so the file is the same on every machine.

    python3 make_corpus.py            prints the first stories and what they are made of
    python3 make_corpus.py --write    writes corpus.txt
    python3 make_corpus.py --check    exit status 1 unless corpus.txt is what --write would write
"""
from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from typing import List, Optional, Sequence

from console import guarded

HERE = Path(__file__).resolve().parent
STORIES = 420
SEED = 1

NAMES = {"Mia": "She", "Leo": "He", "Nora": "She", "Ben": "He", "Ella": "She", "Tom": "He",
         "Sara": "She", "Max": "He", "Ana": "She", "Tim": "He", "Lena": "She", "Noah": "He",
         "Ida": "She", "Sam": "He", "Rosa": "She", "Bo": "He", "Tess": "She", "Eli": "He",
         "Nina": "She", "Abel": "He", "Lisa": "She", "Milo": "He", "Mara": "She", "Emil": "He"}
THINGS = ["kite", "ball", "boat", "hat", "drum", "cart", "lamp", "bell", "cup", "scarf", "sled", "doll"]
COLORS = ["red", "blue", "green", "white", "black", "pink"]
PLACES = ["park", "garden", "beach", "lake", "hill", "barn", "shop", "school"]

OPENINGS = ["{name} had a {color} {thing}.", "{name} found a {color} {thing}.",
            "{name} made a {color} {thing}."]
MIDDLES = ["{he} took it to the {place}.", "{friend} saw it at the {place}.", "{he} lost it at the {place}."]
DISTRACTORS = ["{friend} had a {other_color} {other}.", "{friend} saw a {other_color} {other}."]
DISTRACTED = 0.2                        # share of the stories that name a second color
LAST = "The {thing} was still {color}."


def tell(rng: random.Random) -> str:
    """One story: an opening, a middle, perhaps a distractor before, between or behind them, the question."""
    name, friend = rng.sample(list(NAMES), 2)
    thing, other = rng.sample(THINGS, 2)
    color, other_color = rng.sample(COLORS, 2)
    sentences = [rng.choice(OPENINGS), rng.choice(MIDDLES)]
    if rng.random() < DISTRACTED:
        sentences.insert(rng.randrange(3), rng.choice(DISTRACTORS))
    return " ".join([*sentences, LAST]).format(
        name=name, he=NAMES[name], friend=friend, thing=thing, color=color,
        other=other, other_color=other_color, place=rng.choice(PLACES))


def make_corpus() -> str:
    """The text of corpus.txt: distinct stories, each on a line of its own."""
    rng = random.Random(SEED)
    stories: List[str] = []
    while len(stories) < STORIES:
        story = tell(rng)
        if story not in stories:
            stories.append(story)
    return "\n".join(stories) + "\n"


def first_difference(recorded: str, made: str) -> str:
    """A sentence on the first line in which the two texts differ."""
    old, new = recorded.split("\n"), made.split("\n")
    for number, (was, now) in enumerate(zip(old, new), 1):
        if was != now:
            return f"line {number} is {was!r}; make_corpus.py makes {now!r}"
    return f"it has {len(old) - 1} lines; make_corpus.py makes {len(new) - 1}"


def check(path: Path) -> int:
    """0 if the file is what the grammar makes, else 1 and a sentence on what differs."""
    try:
        recorded = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        print(f"{path.name} cannot be read: {error}\nrepair: python3 make_corpus.py --write", file=sys.stderr)
        return 1
    if recorded == make_corpus():
        print(f"{path.name} is what make_corpus.py makes: {STORIES} stories")
        return 0
    print(f"{path.name} differs: {first_difference(recorded, make_corpus())}\n"
          "repair: python3 make_corpus.py --write", file=sys.stderr)
    return 1


def main(argv: Optional[Sequence[str]] = None, path: Path = HERE / "corpus.txt") -> int:
    """Print, write or check the corpus."""
    parser = argparse.ArgumentParser(description="Make corpus.txt, the stories that the lab trains on.")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", action="store_true", help="write corpus.txt")
    action.add_argument("--check", action="store_true", help="compare corpus.txt with what would be written")
    args = parser.parse_args(argv)
    return guarded("make_corpus.py", lambda: check(path) if args.check else show(path, args.write))


def show(path: Path, write: bool) -> int:
    """Write the corpus, or print its first lines."""
    text = make_corpus()
    if write:
        path.write_bytes(text.encode("utf-8"))
        print(f"wrote {path.name}: {STORIES} stories")
        return 0
    print("".join(text.splitlines(True)[:5]), end="")
    print(f"... {STORIES} stories of {len(NAMES)} names, {len(THINGS)} things, {len(COLORS)} colors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
