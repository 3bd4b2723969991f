"""The command line of a run: start it, continue it, look at it, compare two.

    python3 runs.py train FOLDER      starts a run in FOLDER, or continues the one that is there
    python3 runs.py show FILE         what a checkpoint holds, and whether it can be continued
    python3 runs.py compare A B       where two runs part, and which fields of their states differ

Exit status: 0; 1 if refused, or if `compare` finds a difference; 2 for a wrong command line;
130 and 143 after SIGINT and SIGTERM. It stands apart from checkpoint.py, whose digest every
checkpoint holds, so that a word of help text does not change the record.
"""
from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable

from bpe import CORPUS, TOKENIZER, Tokenizer
from checkpoint import input_signature, kept_states, params_sha256, run
from checkpoint_file import OTHER_CONFIG, OTHER_INPUTS, Body, differing_inputs, load
from console import print_anything, quoted, say, sentence
from differences import differences, parting
from portable import machine_fault
from progress import Progress
from train import CONFIG, Config, check_config, encode_all, split_stories
from verify import CheckpointError, check_body, is_best, read_checkpoint

HELP = {
    "d": "width of the model", "hidden": "width of its MLP", "max_len": "longest sequence, in tokens",
    "init_seed": "draws the first parameters", "data_seed": "draws the order of the stories",
    "batch": "stories a step", "steps": "steps of the whole run", "learning_rate": "Adam's step size",
    "beta1": "Adam's decay of m", "beta2": "Adam's decay of v", "adam_eps": "keeps Adam's division in bounds",
    "eval_every": "steps between two looks at the development stories, and between two saves",
}


# ---------------------------------------------------------------------------- reading

def train_command(folder: str, **options: str | int | None) -> str:
    """The command that continues the run in `folder`, for the place where we are."""
    try:
        program = os.path.relpath(__file__)
    except ValueError:                  # on another drive (Windows)
        program = os.path.abspath(__file__)
    words = ["python3", quoted(program), "train", quoted(folder)]
    for name, value in options.items():
        if value:
            words += [f"--{name}", quoted(str(value))]
    return " ".join(words)


def read_inputs(args: argparse.Namespace) -> tuple[Tokenizer, str]:
    """(tokenizer, corpus). OSError or ValueError that names the file."""
    corpus = args.corpus or CORPUS
    try:
        text = Path(corpus).read_text(encoding="utf-8-sig")     # with or without a byte order mark
        split_stories(text)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"corpus {corpus} does not exist") from error
    except ValueError as error:
        raise ValueError(f"corpus {corpus}: {error}") from error
    return Tokenizer.load(args.tokenizer or TOKENIZER), text


def file_of(path: str) -> str:
    """The checkpoint that a path means: a folder's is its last.json."""
    return os.path.join(path, "last.json") if os.path.isdir(path) else path


# ---------------------------------------------------------------------------- train

def in_folder(args: argparse.Namespace, name: str) -> str:
    return os.path.join(args.folder, name)


def kept_in(folder: str) -> list[str]:
    """The files named as kept states, oldest first; [] where there is no folder."""
    return [path for _, path in kept_states(folder)] if os.path.isdir(folder) else []


def config_for(args: argparse.Namespace) -> Config:
    """The flags that were given over the config of the run to be continued, else over CONFIG.

    Where the state to continue from is damaged or lost, the other files of the run still tell its config.
    """
    source, candidates = args.source or in_folder(args, "last.json"), []
    if not args.restart:
        candidates = [source, *reversed(kept_in(args.folder)), in_folder(args, "best.json")]
    for path in candidates:
        with contextlib.suppress(OSError, ValueError):
            return {**read_checkpoint(path)["config"], **args.config}
    return {**CONFIG, **args.config}


def check_lone_best(args: argparse.Namespace, best: str, cfg: Config, inputs: dict[str, Any]) -> None:
    """CheckpointError for a best.json without a last.json that a start, or --from, would write over."""
    try:
        step = load(best, cfg, inputs).get("step")
    except CheckpointError:
        raise CheckpointError(f"{best} is not of this run, and there is no last.json beside it; "
                              "choose another folder, or give --restart to write over it") from None
    # Killed between its first best.json and its first last.json, a run leaves this behind.
    if args.source or step == min(cfg["eval_every"], cfg["steps"]):
        return
    kept = kept_in(args.folder)
    way = f"continue from a kept state with --from {kept[-1]}, or " if kept else ""
    raise CheckpointError(f"{best} is of this run at step {step}, but its last.json is gone; "
                          f"{way}start over with --restart")


def check_folder(args: argparse.Namespace, cfg: Config, inputs: dict[str, Any]) -> None:
    """CheckpointError where a start would write over what another run left."""
    last, best = in_folder(args, "last.json"), in_folder(args, "best.json")
    kept = kept_in(args.folder)
    if args.resume and not os.path.lexists(last) and kept:
        raise CheckpointError(f"no checkpoint {last}; continue from a kept state with --from {kept[-1]}")
    if args.source and not os.path.lexists(args.source):
        load(args.source, cfg)          # its FileNotFoundError, before a folder is made
    if args.source and os.path.lexists(last):
        try:
            load(last, cfg, inputs)
        except CheckpointError as error:
            if str(error).startswith((OTHER_CONFIG, OTHER_INPUTS)):
                raise CheckpointError(f"{last} is of another run: {error}") from error
    if os.path.lexists(best) and not (args.restart or args.resume or os.path.lexists(last)):
        check_lone_best(args, best, cfg, inputs)


def advice(args: argparse.Namespace, message: str) -> str:
    """What to do about a checkpoint that was refused with `message`."""
    restart = "start over with --restart, or choose another folder"
    if any(said in message for said in ("--from", "--restart", "in use")):
        return ""
    if OTHER_CONFIG in message:
        return f"; {'leave out the flags that differ to continue it, or ' if args.config else ''}{restart}"
    if OTHER_INPUTS in message and "source" in message:
        return f"; continue it with the sources that it was started with, or {restart}"
    if OTHER_INPUTS in message:
        return f"; give --corpus and --tokenizer as at the start, or {restart}"
    return f"; {restart}"


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Within it, SIGINT and SIGTERM are noted in the list; a SIGINT after another interrupts at once."""
    received: list[int] = []

    def note(number: int, frame: object) -> None:
        if received and number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_IGN)    # a third must not cut the tidying short
            raise KeyboardInterrupt
        received.append(number)

    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(OSError, ValueError):  # a system without signals, or another thread
                before[number] = signal.signal(number, note)
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def unknown_note(tok: Tokenizer, text: str) -> str:
    """"" or a note: a tokenizer that was made for another corpus trains without a complaint, and badly."""
    unknown = sorted({*"".join(split_stories(text)[0])} - {*tok.alphabet})
    return (f"note: the tokenizer lacks {len(unknown)} of the corpus's characters, such as {unknown[0]!r}; "
            "to fit it: python3 bpe.py CORPUS --vocab-size N --write OUT\n") if unknown else ""


def cut_note(tok: Tokenizer, text: str, max_len: int) -> str:
    """"" or a note: what is behind `max_len` tokens of a story is never seen."""
    lengths = [len(ids) for part in split_stories(text)[:2] for ids in encode_all(tok, part, sys.maxsize)]
    cut = [length for length in lengths if length > max_len]
    return (f"note: {len(cut)} of {len(lengths)} stories are longer than {max_len} tokens, the longest "
            f"{max(cut)}, and are cut; a larger --vocab-size makes them shorter, --max-len N lets more in\n"
            ) if cut else ""


def last_step(args: argparse.Namespace, cfg: Config) -> int:
    """Where this start ends: --stop-after ends it at the next evaluation."""
    every, steps = int(cfg["eval_every"]), int(cfg["steps"])
    return min(steps, -(-args.stop_after // every) * every) if args.stop_after else steps


def opening(args: argparse.Namespace, cfg: Config, first: int) -> str:
    """The line that a run begins with, after `first` steps that were taken before."""
    if args.restart:
        return f"{args.folder}: starts over at step 1 of {cfg['steps']}"
    if first == 0:
        return f"{args.folder}: starts at step 1 of {cfg['steps']}, as there is no last.json"
    return f"{args.folder}: continues from step {first} of {cfg['steps']} ({args.source or 'last.json'})"


def result(cfg: Config, history: Sequence[float], dev_history: Sequence[dict[str, Any]],
           best: dict[str, Any] | None, digest: str) -> str:
    """The line on standard output that a run ends with."""
    scores = "no dev loss yet"
    if best is not None:
        last = dev_history[-1]
        when = "" if last["step"] == len(history) else f" at step {last['step']}"
        scores = f"dev loss {last['dev_loss']:.4f}{when}, best {best['dev_loss']:.4f} at step {best['step']}"
    return f"step {len(history)} of {cfg['steps']}: {scores}, params sha256 {digest}"


def ending(args: argparse.Namespace, cfg: Config, step: int, began: bool, received: Sequence[int]) -> str:
    """The line on standard error that tells why a run ended here and how to go on; "" if it just did."""
    place = f"after step {step} of {cfg['steps']}"
    command = train_command(args.folder, corpus=args.corpus, tokenizer=args.tokenizer, keep=args.keep)
    rest = f"; continue with: {command}" if step < cfg["steps"] else ": the run is finished"
    if received:
        return f"runs.py: stopped by {signal.Signals(received[0]).name} {place}{rest}"
    if args.quiet or (began and step == cfg["steps"]):
        return ""
    return f"{args.folder}: {'stopped' if began else 'nothing to do'} {place}{rest}"


def train(args: argparse.Namespace) -> int:
    """Start or continue a run; 0, or 130 or 143 if a signal stopped it."""
    if machine_fault():
        raise ValueError(machine_fault())
    tok, text = read_inputs(args)
    cfg = config_for(args)
    progress = Progress(None if args.quiet else sys.stderr, cfg, last_step(args, cfg),
                        lambda first: unknown_note(tok, text) + cut_note(tok, text, cfg["max_len"])
                        + opening(args, cfg, first))
    with stop_signals() as received:
        try:
            check_folder(args, cfg, input_signature(tok, text))
            params, history, dev_history, best = run(
                tok, text, cfg, args.folder, args.resume or (False if args.restart else "auto"),
                args.stop_after, keep=args.keep, resume_from=args.source,
                should_stop=lambda: bool(received), progress=progress)
        except CheckpointError as error:
            raise CheckpointError(f"{error}{advice(args, str(error))}") from error
        finally:
            progress.close()
    say(sys.stdout, result(cfg, history, dev_history, best, params_sha256(params)))
    last_word = ending(args, cfg, len(history), progress.first >= 0, received)
    if last_word:
        say(sys.stderr, last_word)
    return 128 + received[0] if received else 0


# ---------------------------------------------------------------------------- show

def way_on(args: argparse.Namespace, path: str, body: Body) -> str:
    """Whether this clone, with this corpus and tokenizer, could continue from a whole checkpoint."""
    cfg = body["config"]
    if is_best(body):
        return "no: it holds the best weights alone; a last.json holds all that a run needs"
    try:
        tok, text = read_inputs(args)
        names = differing_inputs(body["training_inputs"], input_signature(tok, text))
        if names:
            return f"no: its training inputs differ: {', '.join(names)}"
        check_body(body, cfg, len(tok.vocab), len(split_stories(text)[0]), path)
    except (OSError, ValueError) as error:
        return f"no: {sentence(error)}"
    if body["step"] == cfg["steps"]:
        return "there is nothing left to do: this is the run's last step"
    folder, name = os.path.split(path)
    source = {} if name == "last.json" else {"from": path}
    command = train_command(folder or ".", **source, corpus=args.corpus, tokenizer=args.tokenizer)
    return f"yes, with: {command}"


def scores_of(body: Body) -> list[tuple[str, str]]:
    """What is known of the losses, and the digests of the weights."""
    if is_best(body):
        return [("dev loss", f"{body['dev_loss']:.4f}"), ("params sha256", params_sha256(body["params"]))]
    history, dev_history, best = body["history"], body["dev_history"], body["best"]
    rows = [("loss", f"{history[0]:.4f} at step 1, {history[-1]:.4f} at step {len(history)}")]
    rows += [("dev loss", f"{entry['dev_loss']:.4f} at step {entry['step']}") for entry in dev_history]
    rows.append(("params sha256", params_sha256(body["params"])))
    if best is not None:
        rows += [("best", f"{best['dev_loss']:.4f} at step {best['step']}"),
                 ("best sha256", params_sha256(best["params"]))]
    return rows


def inputs_of(recorded: Any, name: str = "inputs") -> list[tuple[str, str]]:
    """The digests that a checkpoint recorded of its inputs, whatever form it has them in."""
    if not isinstance(recorded, dict):
        return [(name.replace("_sha256", ""), str(recorded))]
    return [row for key, value in recorded.items() for row in inputs_of(value, key)]


def show(args: argparse.Namespace) -> int:
    """Print what a checkpoint holds; 0, as one that does not verify is refused."""
    path = file_of(args.file)
    body = read_checkpoint(path)
    rows = [("step", f"{body['step']} of {body['config']['steps']}"),
            ("config", ", ".join(f"{key} {value}" for key, value in body["config"].items())),
            *scores_of(body), *inputs_of(body["training_inputs"]),
            ("verifies", "yes: its digest and every field"), ("can be continued", way_on(args, path, body))]
    say(sys.stdout, "\n".join([path, *(f"  {name:16}  {value}" for name, value in rows)]))
    return 0


# ---------------------------------------------------------------------------- compare

def compare(args: argparse.Namespace) -> int:
    """Print in what two checkpoints differ; 1 if in anything, else 0."""
    a, b = (read_checkpoint(file_of(path)) for path in (args.a, args.b))
    lines = list(differences(a, b, (args.a, args.b)))
    status = 1 if lines else 0
    if not lines:
        lines.append(f"every field is the same: step {a['step']}, params sha256 {params_sha256(a['params'])}")
    if "history" in a and "history" in b:
        lines.insert(0, parting(a["history"], b["history"]))
    say(sys.stdout, "\n".join(lines))
    return status


# ---------------------------------------------------------------------------- the command line

def whole(least: int) -> Callable[[str], int]:
    """An argparse type: whole numbers from `least` up."""
    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is too small; expected a whole number from {least} up")
        return int(text)
    return number


class ConfigFlag(argparse.Action):
    """Puts the value of a flag such as --learning-rate into `config`, if it is in range."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any,
                 option_string: str | None = None) -> None:
        try:
            check_config({**CONFIG, self.dest: values})
        except ValueError as error:
            parser.error(f"argument {option_string}: {error}")
        namespace.config = {**namespace.config, self.dest: values}


def add_inputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--corpus", metavar="FILE", help="stories, a line each (default: the lab's)")
    parser.add_argument("--tokenizer", metavar="FILE", help="made by bpe.py (default: the lab's)")


def folder_name(text: str) -> str:
    """A folder's name, which must not be empty: that would be the folder we are in, by accident."""
    if not text:
        raise argparse.ArgumentTypeError("the name is empty; . is the folder you are in")
    return text


def add_train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=folder_name, metavar="FOLDER",
                        help="the run's folder, made if it is not there")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--resume", action="store_true", help="continue; refuse if there is no last.json")
    way.add_argument("--restart", action="store_true", help="start over; the run that is there is lost")
    way.add_argument("--from", dest="source", metavar="FILE", help="continue from a state that --keep kept")
    parser.add_argument("--stop-after", type=whole(1), metavar="N",
                        help="stop at the first evaluation from step N on")
    parser.add_argument("--keep", type=whole(0), default=0, metavar="N",
                        help="keep the N latest states as step-000050.json and so on (default: 0)")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    add_inputs(parser)
    group = parser.add_argument_group("config of a new run", "A run that is continued keeps its own.")
    for key, default in CONFIG.items():
        group.add_argument(f"--{key.replace('_', '-')}", dest=key, type=type(default), action=ConfigFlag,
                           default=argparse.SUPPRESS, metavar="N", help=f"{HELP[key]} (default: {default})")
    parser.set_defaults(mode=train, config={})


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; a wrong one exits with status 2."""
    parser = argparse.ArgumentParser(prog="runs.py", description="Start, continue, show and compare runs.")
    modes = parser.add_subparsers(required=True, metavar="train | show | compare")
    add_train(modes.add_parser("train", allow_abbrev=False, help="start a run, or continue it"))
    one = modes.add_parser("show", allow_abbrev=False, help="what a checkpoint holds")
    one.add_argument("file", metavar="FILE", help="a checkpoint, or a run's folder for its last.json")
    add_inputs(one)
    one.set_defaults(mode=show)
    two = modes.add_parser("compare", allow_abbrev=False, help="where two runs part, and what differs")
    for name in ("a", "b"):
        two.add_argument(name, metavar=name.upper(), help="a checkpoint, or a run's folder for its last.json")
    two.set_defaults(mode=compare)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; its exit status."""
    print_anything()
    args = parse_arguments(argv)
    try:
        return int(args.mode(args))
    except KeyboardInterrupt:
        say(sys.stderr, "runs.py: stopped at once; every checkpoint is as it was last saved")
        return 130
    except (OSError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
        say(sys.stderr, f"runs.py: {sentence(error)}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
