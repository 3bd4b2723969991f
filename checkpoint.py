"""Save, load, run: a training run that is resumed to the last bit.

The promise: a run interrupted at any step, any number of times, in any way, ends with `last.json`
and `best.json` byte for byte as the run that never stopped would have left them. Three parts:

    the file    `save` and `load`, from checkpoint_file.py: one file, replaced whole or not at all
    the state   `state_to_body` and `state_from_body`: every field of `train.State`, as JSON and
                back (`verify.py` refuses a body that could not be continued exactly)
    the run     `run`: the loop of `train.train`, with a save after every evaluation
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

from bpe import Tokenizer
from checkpoint_file import FORMAT_VERSION as FORMAT_VERSION
from checkpoint_file import Body as Body
from checkpoint_file import CheckpointError as CheckpointError
from checkpoint_file import canonical, read, serialise, sha256
from checkpoint_file import load as load
from checkpoint_file import save as save
from disk import FilePath, lock, make_folder, sweep, write_atomically
from model import Params
from train import (
    Config,
    DevHistory,
    State,
    check_config,
    encode_all,
    evaluate,
    is_due,
    new_state,
    split_stories,
    train_step,
)
from verify import check_body

SOURCES = ("portable.py", "model.py", "train.py", "bpe.py", "checkpoint.py")
HERE = Path(__file__).resolve().parent
KEPT = re.compile(r"step-(\d{6,})\.json")
OWN_FILES = r"(last|best|step-\d{6,})\.json"


# ---------------------------------------------------------------------------- what a run is bound to

def input_signature(tok: Tokenizer, text: str) -> Dict[str, Any]:
    """Digests of all that decides a step beside the config: corpus, tokenizer and sources.

    Line ends count as LF, so a clone that has CRLF has the same digests.
    """
    sources = {name: hashlib.sha256((HERE / name).read_bytes().replace(b"\r\n", b"\n")).hexdigest()
               for name in SOURCES}
    return {"corpus_sha256": sha256(text.replace("\r\n", "\n")),
            "tokenizer_sha256": sha256(canonical(tok.to_json())),
            "source_sha256": sources}


def params_sha256(params: Params) -> str:
    """SHA-256 of the parameters' canonical JSON: equal if and only if every bit of them is."""
    return sha256(json.dumps(params, sort_keys=True))


# ---------------------------------------------------------------------------- the state: as JSON

def state_to_body(state: State, cfg: Config, inputs: Dict[str, Any]) -> Body:
    """Every field of the state, and the config and inputs it belongs to."""
    version, words, spare_gauss = state.rng.getstate()
    return {"step": state.step, "config": cfg, "params": state.params, "training_inputs": inputs,
            "adam": {"m": state.adam.m, "v": state.adam.v, "t": state.adam.t},
            "rng_state": [version, list(words), spare_gauss], "order": state.order,
            "history": state.history, "dev_history": state.dev_history, "best": state.best}


def state_from_body(body: Body, cfg: Config, vocab_size: int,
                    restore_optimizer: bool = True, restore_shuffle: bool = True) -> State:
    """The state that `body`, once verified, was made from. The two switches reproduce resume bugs."""
    state = new_state(vocab_size, cfg)
    state.params, state.step = body["params"], body["step"]
    state.history, state.dev_history, state.best = body["history"], body["dev_history"], body["best"]
    if restore_optimizer:
        state.adam.m, state.adam.v, state.adam.t = body["adam"]["m"], body["adam"]["v"], body["adam"]["t"]
    if restore_shuffle:
        version, words, spare_gauss = body["rng_state"]
        state.rng.setstate((version, tuple(words), spare_gauss))
        state.order = body["order"]
    return state


# ---------------------------------------------------------------------------- the run's folder

def kept_states(folder: FilePath) -> List[Tuple[int, str]]:
    """(step, path) of every file named as `run(keep=N)` names the states it keeps, oldest first."""
    found = [(KEPT.fullmatch(name), name) for name in os.listdir(folder)]
    return sorted((int(match[1]), os.path.join(folder, name)) for match, name in found if match)


def refuse_foreign(path: str) -> None:
    """CheckpointError if something is at `path` that is no checkpoint, not even of an earlier run."""
    try:
        read(path)
    except FileNotFoundError:
        if os.path.lexists(path):
            raise CheckpointError(f"{path} is a link to nothing; move it away, or run without keep") from None
    except CheckpointError as error:
        raise CheckpointError(f"{path} has the name of a state to keep, but is none ({error}); "
                              "move it away, or run without keep") from error


class Run:
    """One run's folder, and what is needed to tell whether a checkpoint in it belongs to the run."""

    def __init__(self, tok: Tokenizer, text: str, cfg: Config, folder: FilePath, keep: int):
        self.cfg, self.folder, self.keep = cfg, os.fspath(folder), keep
        self.kept: List[Tuple[int, str]] = []       # (step, path), oldest first
        self.vocab_size, self.inputs = len(tok.vocab), input_signature(tok, text)
        train_stories, dev_stories, _ = split_stories(text)
        self.sequences = encode_all(tok, train_stories, cfg["max_len"])
        self.dev = encode_all(tok, dev_stories, cfg["max_len"])

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def verified(self, path: FilePath) -> Body:
        """The body in `path`, known to hold all that a resume of this run needs."""
        body = load(path, self.cfg, self.inputs)
        check_body(body, self.cfg, self.vocab_size, len(self.sequences), os.fspath(path))
        return body

    def is_own(self, step: int, path: str) -> bool:
        """Whether `path` holds this run's state at `step`: nothing else is counted, or removed."""
        with contextlib.suppress(CheckpointError, OSError):
            return bool(self.verified(path)["step"] == step)
        return False

    def newest_kept(self) -> Optional[str]:
        """The path of the newest kept state that verifies, or None."""
        newest_first = reversed(kept_states(self.folder))
        return next((path for step, path in newest_first if self.is_own(step, path)), None)

    def body_to_resume(self, path: FilePath) -> Body:
        """`verified`; a refusal also names the kept state from which the run can go on."""
        try:
            return self.verified(path)
        except CheckpointError as error:
            kept = self.newest_kept()
            if kept is None:
                raise
            raise CheckpointError(f"{error}; the newest kept state that verifies is {kept}: "
                                  f"continue from it with --from {kept}") from error

    def save_best(self, state: State) -> None:
        """Make best.json say what the state says; a file that already does is left alone."""
        if state.best is None:
            return
        data = serialise({**state.best, "config": self.cfg, "training_inputs": self.inputs})
        path = Path(self.path("best.json"))
        if not (path.is_file() and path.read_bytes() == data):
            write_atomically(path, data)

    def serialised(self, state: State) -> bytes:
        """The bytes of last.json, and of a kept copy, for this state."""
        return serialise(state_to_body(state, self.cfg, self.inputs))

    def save_last(self, state: State) -> None:
        """Write last.json, the run's one commit point, and the kept copy if there are to be any."""
        data = self.serialised(state)
        write_atomically(self.path("last.json"), data)
        if self.keep:
            self.keep_copy(state.step, data)

    def prepare_keeping(self, state: State) -> None:
        """Find the states that were kept before; refuse now what would stop a save later.

        If the run was stopped between a state and its copy, the copy is made.
        """
        for step, path in kept_states(self.folder):
            if step <= state.step and self.is_own(step, path):
                self.kept.append((step, path))
            elif step > state.step and (step % self.cfg["eval_every"] == 0 or step == self.cfg["steps"]):
                refuse_foreign(path)
        if state.step and (not self.kept or self.kept[-1][0] != state.step):
            self.keep_copy(state.step, self.serialised(state))

    def keep_copy(self, step: int, data: bytes) -> None:
        """Keep this state, and of the older ones of this run the latest `keep` - 1."""
        path = self.path(f"step-{step:06d}.json")
        refuse_foreign(path)
        write_atomically(path, data)
        self.kept.append((step, path))
        while len(self.kept) > self.keep:
            oldest = self.kept.pop(0)
            if self.is_own(*oldest):
                os.unlink(oldest[1])


# ---------------------------------------------------------------------------- the run

def _check_options(resume: Union[bool, str], stop_after: Optional[int], keep: int) -> None:
    """ValueError that names the option of `run` that makes no sense."""
    if type(resume) is not bool and resume != "auto":
        raise ValueError(f"resume is {resume!r}; expected True, False or 'auto'")
    if stop_after is not None and (type(stop_after) is not int or stop_after < 1):
        raise ValueError(f"stop_after is {stop_after!r}; expected a step from 1 up")
    if type(keep) is not int or keep < 0:
        raise ValueError(f"keep is {keep!r}; expected a number of states from 0 up")


def _train_on(state: State, this: Run, stop_after: Optional[int],
              should_stop: Optional[Callable[[], bool]], progress: Optional[Callable[[State], None]]) -> None:
    """Steps from the state to the end of the run, or to where it is asked to stop."""
    cfg = this.cfg
    while state.step < cfg["steps"]:
        if stop_after is not None and state.step >= stop_after and is_due(state, cfg):
            return
        train_step(state, this.sequences, cfg)
        if is_due(state, cfg):
            if evaluate(state, this.dev):
                this.save_best(state)       # before last.json: killed in between, last.json makes it again
            this.save_last(state)
        stopping = should_stop is not None and should_stop()
        if stopping and not is_due(state, cfg):
            this.save_last(state)
        if progress is not None:
            progress(state)
        if stopping:
            return


def run(tok: Tokenizer, text: str, cfg: Config, folder: FilePath, resume: Union[bool, str] = False,
        stop_after: Optional[int] = None, restore_optimizer: bool = True, restore_shuffle: bool = True, *,
        keep: int = 0, resume_from: Optional[FilePath] = None,
        should_stop: Optional[Callable[[], bool]] = None, progress: Optional[Callable[[State], None]] = None,
        ) -> Tuple[Params, List[float], DevHistory, Optional[Body]]:
    """Train as `train.train` does, saving after each evaluation; (params, history, dev_history, best).

    resume          False: from step 1; what is in the folder stays until the first evaluation's save
                    takes its place. True: from last.json, refused if there is none.
                    "auto": from last.json if there is one. `resume_from`: from that file instead.
    stop_after      stop at the first evaluation at or after this step
    should_stop     asked after each step; when true, the state is saved there and the run stops
    progress        called with the state after each step; must not change it
    keep            how many of the latest states stay beside last.json, as step-000250.json
    restore_...     False reproduces a resume that forgets Adam's state, or the shuffle's

    ValueError: config, options, corpus. CheckpointError: checkpoint or folder refused.
    FileNotFoundError: nothing to resume. FloatingPointError: the run diverged. OSError: the disk.
    """
    check_config(cfg)
    _check_options(resume, stop_after, keep)
    this = Run(tok, text, cfg, folder, keep)
    source = this.path("last.json") if resume_from is None else resume_from
    must_resume = resume is True or resume_from is not None
    if must_resume and not os.path.lexists(source):
        read(source)                    # its FileNotFoundError, before a folder is made
    make_folder(this.folder)
    with lock(folder):
        sweep(folder, OWN_FILES)
        if must_resume or (resume and os.path.lexists(source)):
            body = this.body_to_resume(source)
            state = state_from_body(body, cfg, this.vocab_size, restore_optimizer, restore_shuffle)
        else:
            state = new_state(this.vocab_size, cfg)
        if keep:
            this.prepare_keeping(state)     # first: it may refuse
        this.save_best(state)
        if resume_from is not None:         # now it is the last state, also if there is no step to come
            write_atomically(this.path("last.json"), this.serialised(state))
        _train_on(state, this, stop_after, should_stop, progress)
    return state.params, state.history, state.dev_history, state.best
