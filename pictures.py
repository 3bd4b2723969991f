"""The three pictures of README, as SVG text made of strings: no library, the same bytes everywhere.

    loss_curve          development loss of the four recorded runs (trace_checkpoints.py writes it)
    saving.svg          the five steps of a save, and what a crash at each of them leaves
    last-json.svg       what last.json holds, and which part of the next step each field feeds

Colors follow what the reader's system prefers, light or dark. Each picture has a page of its own
behind it, because a site may be dark where the system is light. No meaning rests on a color alone.

    python3 pictures.py --write    writes saving.svg and last-json.svg
    python3 pictures.py --check    exit status 1 unless they are what would be written
"""
from __future__ import annotations

import argparse
import sys
from html import escape
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from console import guarded

HERE = Path(__file__).resolve().parent
Curve = Sequence[Dict[str, Any]]        # [{"step": 50, "dev_loss": 1.2345}, ...]
WIDTH = 760

STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1f2328; }
  .small { font-size: 12px; fill: #59636e; }
  .mono { font-family: ui-monospace, monospace; font-size: 13px; }
  .head { font-weight: 600; }
  .page { fill: #ffffff; stroke: #d1d9e0; }
  .box { fill: #f6f8fa; stroke: #8c959f; }
  .good { fill: #dafbe1; stroke: #1a7f37; }
  .axis { stroke: #8c959f; fill: none; }
  .grid { stroke: #d1d9e0; fill: none; }
  .a { stroke: #0969da; fill: none; } .b { stroke: #1a7f37; fill: none; }
  .c { stroke: #bc4c00; fill: none; } .d { stroke: #8250df; fill: none; }
  .dot { fill: #0969da; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .small { fill: #9198a1; }
    .page { fill: #0d1117; stroke: #2f353d; }
    .box { fill: #151b23; stroke: #656c76; } .good { fill: #0f2a19; stroke: #3fb950; }
    .axis { stroke: #656c76; } .grid { stroke: #2f353d; }
    .a { stroke: #4493f8; } .b { stroke: #3fb950; } .c { stroke: #f0883e; } .d { stroke: #ab7df8; }
    .dot { fill: #4493f8; }
  }
"""


def svg(height: int, title: str, description: str, parts: Sequence[str]) -> str:
    """A whole picture of this height: style, title and description for who cannot see it, the parts."""
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" aria-labelledby="title description">',
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="description">{escape(description)}</desc>',
        f"<style>{STYLE}</style>", box(0.5, 0.5, WIDTH - 1, height - 1, "page"), *parts, "</svg>", ""])


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Words with their baseline's start (or middle, or end) at x, y."""
    place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"'
    return f'<text {place} class="{kind}">{escape(words)}</text>'


def line(points: Sequence[Tuple[float, float]], kind: str, more: str = "") -> str:
    """A line through the points."""
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{joined}" class="{kind}" {more}/>'


def box(x: float, y: float, width: float, height: float, kind: str = "box") -> str:
    """A box with round corners."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" class="{kind}"/>'


def arrow(x: float, y: float, length: float) -> str:
    """An arrow to the right."""
    tip = x + length
    return line([(x, y), (tip, y)], "axis") + line([(tip - 6, y - 4), (tip, y), (tip - 6, y + 4)], "axis")


# ---------------------------------------------------------------------------- the recorded runs

LINES = {       # run -> how its line is drawn, and what it is called
    "uninterrupted": ("a", 'stroke-width="7" stroke-opacity="0.35"', "never interrupted"),
    "resumed": ("b", 'stroke-width="2"', "resumed: same line"),
    "resumed_without_optimizer_state":
        ("c", 'stroke-width="2" stroke-dasharray="7 4"', "without Adam's state"),
    "resumed_without_shuffle_state":
        ("d", 'stroke-width="2" stroke-dasharray="2 3"', "without the shuffle"),
}


def _axes(first: int, last: int, low: float, high: float, place: Any) -> List[str]:
    """The frame, four loss values at its side, steps below it."""
    parts = [text(70, 30, "Development loss, nats a token", "head")]
    for i in range(5):
        loss = low + (high - low) * i / 4
        parts.append(line([place(first, loss), place(last, loss)], "grid"))
        parts.append(text(62, place(first, loss)[1] + 4, f"{loss:.2f}", "small", "end"))
    for i in range(5):
        step = first + (last - first) * i // 4
        parts.append(text(place(step, low)[0], 326, f"{step}", "small", "middle"))
    return [*parts, text(290, 350, "step", "small", "middle")]


def _marks(interrupted: int, best: Dict[str, Any], last: int,
           low: float, high: float, place: Any) -> List[str]:
    """The interruption, the best step and the last, each a thin line with its name at the top."""
    parts = []
    for step, called, anchor in ((interrupted, "interrupted", "start"), (best["step"], "best", "end"),
                                 (last, "last", "end")):
        x, top = place(step, high)
        parts.append(line([(x, top), place(step, low)], "axis", 'stroke-dasharray="3 3"'))
        parts.append(text(x + (4 if anchor == "start" else -4), top + 12, called, "small", anchor))
    x, y = place(best["step"], best["dev_loss"])
    return [*parts, f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" class="dot"/>']


def loss_curve(curves: Dict[str, Curve], interrupted: int, best: Dict[str, Any]) -> str:
    """Development loss of the four runs from a little before the interruption on."""
    steps = [entry["step"] for entry in curves["uninterrupted"]]
    first, last = max([steps[0], *(step for step in steps if step <= interrupted * 2 // 3)]), steps[-1]
    shown = {name: [entry for entry in curve if entry["step"] >= first] for name, curve in curves.items()}
    losses = [entry["dev_loss"] for curve in shown.values() for entry in curve]
    low, high = min(losses), max(losses)

    def place(step: float, loss: float) -> Tuple[float, float]:
        return 70 + 440 * (step - first) / (last - first), 300 - 240 * (loss - low) / (high - low)

    parts = _axes(first, last, low, high, place) + _marks(interrupted, best, last, low, high, place)
    for i, (name, (kind, how, called)) in enumerate(LINES.items()):
        points = [place(entry["step"], entry["dev_loss"]) for entry in shown[name]]
        parts.append(line(points, kind, how))
        y = 80 + 44 * i
        parts += [line([(545, y), (580, y)], kind, how), text(590, y + 4, called),
                  text(590, y + 20, f"ends at {shown[name][-1]['dev_loss']:.4f}", "small")]
    return svg(370, "Development loss of the four recorded runs",
               f"From step {first} to {last}. The resumed run lies exactly on the uninterrupted one; the two "
               "resumes that forget a part of the state leave it after the interruption.", parts)


# ---------------------------------------------------------------------------- how saving goes

SAVING = [      # what is done, and what a crash right after it leaves
    ("write", "temporary file", "old checkpoint, a scrap"),
    ("fsync", "its bytes on disk", "old checkpoint, a scrap"),
    ("replace", "one rename", "old or new, each whole"),
    ("fsync", "the folder", "new checkpoint"),
    ("return", "saved", "new checkpoint"),
]


def how_saving_goes() -> str:
    """The steps of `write_atomically` from left to right, and under each what a crash there leaves."""
    parts = [text(20, 30, "One save", "head"), text(20, 172, "A crash after this step leaves", "head")]
    for i, (step, what, left) in enumerate(SAVING):
        x = 20 + 148 * i
        parts += [box(x, 48, 128, 64), text(x + 64, 76, step, "mono", "middle"),
                  text(x + 64, 97, what, "small", "middle"),
                  box(x, 188, 128, 64, "good" if left.startswith("new") else "box")]
        words = left.split(", ")
        for row, part in enumerate(words):
            parts.append(text(x + 64, 224 - 9 * (len(words) - 1) + 18 * row, part, "small", "middle"))
        if i < len(SAVING) - 1:
            parts.append(arrow(x + 128, 80, 20))
        parts.append(line([(x + 64, 112), (x + 64, 150)], "axis", 'stroke-dasharray="3 3"'))
    parts.append(text(20, 284, "A scrap is a temporary file; the next start removes it. "
                               "At every moment a whole checkpoint is there.", "small"))
    return svg(300, "How a checkpoint is saved",
               "Write a temporary file, fsync it, rename it over the old checkpoint, fsync the folder. "
               "A crash before the rename leaves the old one; after the folder's fsync, the new one.", parts)


# ---------------------------------------------------------------------------- what last.json holds

FIELDS = [      # field, what it is, the part of the next step that it feeds
    ("step", "steps taken", "when to evaluate and when to stop"),
    ("params", "the weights", "forward and backward pass"),
    ("adam.m, adam.v", "running means of gradients", "length and direction of the update"),
    ("adam.t", "updates made", "Adam's bias correction"),
    ("order", "stories left in this epoch", "the next batches"),
    ("rng_state", "the shuffle's generator", "the order of the next epoch"),
    ("history, dev_history", "losses so far", "no weight: the curve, and the best"),
    ("best", "lowest loss, and its weights", "whether best.json is replaced"),
    ("config", "every hyperparameter", "refused if it is another one"),
    ("training_inputs", "digests of text and code", "refused if they are others"),
]


def what_last_json_holds() -> str:
    """A row for each field of last.json: its name, what it is, an arrow to what it feeds."""
    parts = [text(32, 30, "last.json", "mono head"), text(470, 30, "the next step", "head")]
    for i, (field, what, feeds) in enumerate(FIELDS):
        y = 44 + 38 * i
        parts += [box(20, y, 400, 32), text(32, y + 21, field, "mono"), text(226, y + 21, what, "small"),
                  arrow(420, y + 16, 40), text(470, y + 21, feeds)]
    return svg(44 + 38 * len(FIELDS) + 10, "What last.json holds",
               "Each field of last.json, what it is, and which part of the next training step it feeds.",
               parts)


PICTURES = {"saving.svg": how_saving_goes, "last-json.svg": what_last_json_holds}


def main(argv: Optional[Sequence[str]] = None, folder: Path = HERE) -> int:
    """Write the two pictures that depend on no run, or check them."""
    parser = argparse.ArgumentParser(description="Make saving.svg and last-json.svg.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write both pictures")
    action.add_argument("--check", action="store_true", help="compare both with what would be written")
    write = parser.parse_args(argv).write
    return guarded("pictures.py", lambda: make_all(folder, write))


def make_all(folder: Path, write: bool) -> int:
    """Write every picture; or 1 and a sentence on the first that is not what would be written."""
    for name, make in PICTURES.items():
        data = make().encode("utf-8")
        path = folder / name
        if write:
            path.write_bytes(data)
        elif not path.is_file() or path.read_bytes() != data:
            print(f"{name} is not what pictures.py makes\nrepair: python3 pictures.py --write",
                  file=sys.stderr)
            return 1
    print(f"{'wrote' if write else 'as they would be written:'} {', '.join(PICTURES)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
