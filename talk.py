"""Talk to a finished model: type the start of a story, and it goes on from there.

Each prompt is a story of its own. The next token is chosen in this order: the scores are divided
by the temperature, the `--top-k` likeliest stay, of these the likeliest that together have the
probability `--top-p`, and from what is left one is drawn. A reply ends at the model's `<end>` or
after `--max-new-tokens`. When a story outgrows the model's window, the window slides.

Only replies go to standard output, after the prompt `> `. What the program itself has to say (the
seed, a character that the model does not know) goes to standard error.

    python3 talk.py                 the best.json beside this file
    python3 talk.py MODEL           another one, a run's folder, or a bundle's prefix (see bundle.py)

Not handled: a conversation, in which a prompt knows of the one before.
"""
from __future__ import annotations

import argparse
import contextlib
import errno
import io
import math
import os
import random
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Callable

from bpe import END, TOKENIZER, UNK, Tokenizer
from bundle import DIGESTS, checkpoint_in, load_checkpoint, load_model, peek, without_end
from console import print_anything
from model import Params, add, next_logits, rms_norm, softmax
from portable import Matrix, Vector, dots, mix
from train import most_likely
from verify import CheckpointError

HERE = Path(__file__).resolve().parent
NAMED_AT_MOST = 10              # unknown characters that one prompt's note names
Choose = Callable[[Vector], int]        # logits (V,) -> the next id
Ask = Callable[[], str]                 # the next line; EOFError when there are no more


# ---------------------------------------------------------------------------- the next token's scores

class Story:
    """The tokens so far with their keys and values, so that one more costs what one token costs."""

    def __init__(self, params: Params):
        self.params = params
        self.ids: list[int] = []
        self.k: Matrix = []
        self.v: Matrix = []

    def logits_after(self, token: int) -> Vector:
        """Take in one more token; logits (V,) of the one after it, the very bits of `next_logits`.

        The steps are those of `model.forward`, for the last row alone: no earlier row depends on it.
        """
        params = self.params
        self.ids.append(token)
        if len(self.ids) > len(params["wpe"]):      # the window slides: every token has a new position
            return next_logits(params, self.ids)
        x = add([params["wte"][token]], [params["wpe"][len(self.ids) - 1]])         # 1
        a, _ = rms_norm(x)                                                          # 2
        q, k, v = (dots(a, params[name]) for name in ("attn_wq", "attn_wk", "attn_wv"))     # 3
        self.k += k
        self.v += v
        scale = 1.0 / math.sqrt(len(q[0]))
        probs, _, _ = softmax([score * scale for score in dots(q, self.k)[0]])      # 4
        y = add(x, dots(mix([probs], self.v), params["attn_wo"]))                   # 5
        b, _ = rms_norm(y)                                                          # 6
        h = [[u if u > 0.0 else 0.0 for u in row] for row in dots(b, params["mlp_fc"])]     # 7
        z = add(y, mix(h, params["mlp_proj"]))                                      # 8
        c, _ = rms_norm(z)                                                          # 9
        return dots(c, params["lm_head"])[0]                                        # 10


# ---------------------------------------------------------------------------- choosing a token

def candidates(logits: Vector, temperature: float, top_k: int | None,
               top_p: float) -> tuple[list[int], Vector]:
    """(ids that may be drawn, their probabilities), likeliest first, the lower id first of equals.

    `<unk>` is never one of them. The probabilities are those before top-p: they may add up to less
    than one. The largest score is subtracted before the division, which could overflow otherwise.
    """
    ids = sorted((i for i in range(len(logits)) if i != UNK), key=lambda i: (-logits[i], i))[:top_k]
    probs, _, _ = softmax([(logits[i] - logits[ids[0]]) / temperature for i in ids])
    total = 0.0
    for kept, p in enumerate(probs, 1):
        total += p
        if total >= top_p:
            return ids[:kept], probs[:kept]
    return ids, probs


def draw(ids: Sequence[int], probs: Sequence[float], rng: random.Random) -> int:
    """One of `ids`, each as often as its share of `probs`. Takes one number from `rng`."""
    total = 0.0
    for p in probs:
        total += p
    point = rng.random() * total
    for i, p in zip(ids, probs):
        point -= p
        if point < 0.0:
            return i
    return ids[-1]                      # rounding left a crumb


def likeliest(logits: Vector) -> int:
    """The id with the largest score, the lowest of equals, never `<unk>`."""
    return most_likely([-math.inf if i == UNK else score for i, score in enumerate(logits)])


def is_greedy(args: argparse.Namespace) -> bool:
    """Whether nothing is to be drawn."""
    return bool(args.greedy) or args.temperature == 0.0


def chooser(args: argparse.Namespace, rng: random.Random) -> Choose:
    """The function from logits (V,) to an id that the command line asks for."""
    if is_greedy(args):
        return likeliest
    return lambda logits: draw(*candidates(logits, args.temperature, args.top_k, args.top_p), rng)


def reply(params: Params, prompt: Sequence[int], choose: Choose, max_new_tokens: int) -> list[int]:
    """The ids that follow `prompt` (at least one id), up to `<end>`, which is left out."""
    story = Story(params)
    new: list[int] = []
    for token in prompt[:-1]:
        story.logits_after(token)
    token = prompt[-1]
    while len(new) < max_new_tokens:
        token = choose(story.logits_after(token))
        if token == END:
            break
        new.append(token)
    return new


# ---------------------------------------------------------------------------- the prompt

def note(text: str) -> None:
    """Say something that is not the model's."""
    print(f"({text})", file=sys.stderr, flush=True)


def character_name(character: str) -> str:
    """How a note names a character; a byte that is not UTF-8 came in as a lone surrogate."""
    if "\udc80" <= character <= "\udcff":
        return f"byte 0x{ord(character) - 0xdc00:02x}"
    return repr(character)


def prompt_ids(tok: Tokenizer, prompt: str, max_len: int) -> list[int]:
    """The ids of a prompt, the last `max_len` of them; a note says what is left out.

    Spaces around it go: a story starts with a letter, and the model makes its own next space.
    """
    known = set(tok.alphabet)
    unknown = [character for character in dict.fromkeys(prompt.strip()) if character not in known]
    if unknown:
        more = f" and {len(unknown) - NAMED_AT_MOST} more" if len(unknown) > NAMED_AT_MOST else ""
        names = ", ".join(map(character_name, unknown[:NAMED_AT_MOST]))
        note(f"left out, not in the model's alphabet: {names}{more}")
    ids = tok.encode("".join(character for character in prompt if character in known).strip())
    if len(ids) > max_len:
        note(f"the prompt has {len(ids)} tokens and the model's window {max_len}: "
             f"the first {len(ids) - max_len} are left out")
    return ids[-max_len:]


def ask_person() -> str:
    """The next line of standard input, after the prompt; EOFError when there is none."""
    if sys.stdin is None or sys.stdout is None:     # a program that was started without them
        raise EOFError
    return input("> ")


def converse(params: Params, tok: Tokenizer, choose: Choose, max_new_tokens: int, ask: Ask) -> None:
    """Reply to one line after the other, until a blank one; EOFError when there are no more."""
    while True:
        prompt = ask()
        if not prompt.strip():
            return
        ids = prompt_ids(tok, prompt, len(params["wpe"]))
        if ids:
            print(tok.decode(reply(params, ids, choose, max_new_tokens)))


# ---------------------------------------------------------------------------- the model

def is_bundle(name: str) -> bool:
    """Whether `name` is one of a bundle's three files, or their prefix and no run's folder."""
    if os.path.isfile(name):
        return name.endswith((".npz", ".tok.json")) or DIGESTS[0] in peek(name)
    if os.path.lexists(os.path.join(name, "best.json")):
        return False
    arrays_or_tokens = os.path.lexists(f"{name}.npz") or os.path.lexists(f"{name}.tok.json")
    return arrays_or_tokens or DIGESTS[0] in peek(f"{name}.json")


def choose_model(name: str, tokenizer: str | None) -> tuple[Params, Tokenizer]:
    """(params, tok) of a checkpoint, a run's folder or a bundle. CheckpointError, OSError, ValueError."""
    if is_bundle(name):
        params, _, tok = load_checkpoint(without_end(name) if os.path.isfile(name) else name)
        if tokenizer is not None and Tokenizer.load(tokenizer) != tok:
            raise CheckpointError(f"bundle {name} has a tokenizer of its own, and it is not {tokenizer}; "
                                  "leave out --tokenizer")
        return params, tok
    path = checkpoint_in(name)
    params, _, tok, changed = load_model(path, TOKENIZER if tokenizer is None else tokenizer)
    if changed:
        raise CheckpointError(
            f"checkpoint {path} was trained with other sources ({', '.join(changed)}), so what it would say "
            "here may not be what it learned; its weights still work as a bundle: "
            f"python3 bundle.py {path} PREFIX, then python3 talk.py PREFIX")
    return params, tok


# ---------------------------------------------------------------------------- the command line

def whole_number(text: str) -> int:
    """Argument type: an integer from 1 up."""
    with contextlib.suppress(ValueError):
        if int(text) >= 1:
            return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")


def temperature(text: str) -> float:
    """Argument type: a finite number from 0 up."""
    with contextlib.suppress(ValueError):
        if 0.0 <= float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a finite number from 0 up")


def probability(text: str) -> float:
    """Argument type: a number above 0 and up to 1."""
    with contextlib.suppress(ValueError):
        if 0.0 < float(text) <= 1.0:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and up to 1")


def seed(text: str) -> int:
    """Argument type: an integer."""
    with contextlib.suppress(ValueError):
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; a wrong one exits with status 2."""
    parser = argparse.ArgumentParser(prog="talk.py", description="Type the start of a story, and the "
                                     "model goes on from there. An empty line ends the talk.")
    parser.add_argument("model", nargs="?", default=str(HERE / "best.json"), metavar="MODEL",
                        help="a best.json, a run's folder or a bundle's prefix (default: the lab's own)")
    parser.add_argument("--tokenizer", metavar="FILE",
                        help="the one that a checkpoint was trained with (default: the lab's)")
    parser.add_argument("--temperature", type=temperature, default=0.8, metavar="T",
                        help="lower is safer, higher more varied, 0 is --greedy (default: %(default)s)")
    parser.add_argument("--top-k", type=whole_number, metavar="K",
                        help="draw from the K likeliest (default: all)")
    parser.add_argument("--top-p", type=probability, default=1.0, metavar="P",
                        help="draw from the likeliest that have probability P together (default: all)")
    parser.add_argument("--max-new-tokens", type=whole_number, default=64, metavar="N",
                        help="the longest reply (default: %(default)s)")
    parser.add_argument("--seed", type=seed, metavar="S",
                        help="same seed, same text (default: drawn, and shown)")
    parser.add_argument("--greedy", action="store_true", help="always take the likeliest token")
    return parser.parse_args(argv)


def talk(args: argparse.Namespace, ask: Ask) -> None:
    """Load the model and converse with it."""
    params, tok = choose_model(args.model, args.tokenizer)
    if args.seed is None:
        args.seed = secrets.randbelow(1 << 32)
        if not is_greedy(args):
            note(f"seed {args.seed}")
    converse(params, tok, chooser(args, random.Random(args.seed)), args.max_new_tokens, ask)


def prepare_input() -> None:
    """Bytes that are no characters come in as lone surrogates; on a terminal there is line editing."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
        if sys.stdin.isatty() and isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.isatty():
            with contextlib.suppress(ImportError):
                __import__("readline")      # `input` uses it once it is there


def reader_left(error: Exception) -> bool:
    """Whether a write failed because nobody reads any more. Windows has no error of its own for it."""
    if os.name == "nt" and isinstance(error, OSError) and error.filename is None:
        return error.errno in (errno.EPIPE, errno.EINVAL)
    return isinstance(error, BrokenPipeError)


def transcript(argv: Sequence[str], lines: Sequence[str]) -> str:
    """What a terminal shows when `lines` are typed at `talk.py` with these arguments, then an empty one."""
    screen, typed = io.StringIO(), iter([*lines, ""])

    def ask() -> str:
        line = next(typed)
        print(f"> {line}")
        return line

    with contextlib.redirect_stdout(screen), contextlib.redirect_stderr(screen):
        talk(parse_arguments(argv), ask)
    return screen.getvalue()


def main(argv: Sequence[str] | None = None) -> int:
    """Talk until the lines end; 0, or 1 when the model is refused."""
    args = parse_arguments(argv)
    print_anything()
    prepare_input()
    try:
        talk(args, ask_person)
    except (EOFError, KeyboardInterrupt):
        with contextlib.suppress(OSError):
            print(flush=True)               # the shell's prompt belongs on a new line
    except (OSError, ValueError) as error:
        if not reader_left(error):
            print(f"talk.py: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
