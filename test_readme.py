"""README cannot go stale: every number, table, output and excerpt in it is made here and compared.

    python3 test_readme.py --write    fills README.md's blocks anew
    python3 -m unittest test_readme   fails, with a diff and that command, where one has gone stale

A block stands between two comments, `<!-- NAME -->` and `<!-- end -->`, over several lines or within
one. NAME is `code MODULE.THING` (the source of a function or class), or one of the names in BLOCKS. Numbers elsewhere in the prose are refused, but for a few that are part of a name.
"""
from __future__ import annotations

import ast
import difflib
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
from functools import cache
from pathlib import Path
from typing import Any, Callable, Dict, List

import checkpoint_file
from bpe import training_stories
from checkpoint_file import load
from pictures import FIELDS
from test_support import no_children
from train import CONFIG

HERE = Path(__file__).resolve().parent
README = HERE / "README.md"
BLOCK = re.compile(r"<!-- (?!end -->)([^>]+?) -->(.*?)<!-- end -->", re.DOTALL)
REPAIR = "repair: python3 test_readme.py --write"


# ---------------------------------------------------------------------------- where the facts are

@cache
def recorded(name: str) -> Any:
    """A recorded JSON file."""
    return json.loads((HERE / name).read_text(encoding="utf-8"))


def trace() -> Any:
    return recorded("checkpoint-trace.json")


def table(head: List[str], rows: List[List[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def fenced(text: str, language: str = "") -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def code(name: str) -> str:
    """The source of MODULE.THING, or of MODULE.CLASS.METHOD."""
    module, *path = name.split(".")
    source = (HERE / f"{module}.py").read_text(encoding="utf-8")
    node: Any = ast.parse(source)
    for part in path:
        node = next(child for child in node.body
                    if part in (getattr(child, "name", ""), *(getattr(target, "id", "")
                                                              for target in getattr(child, "targets", ()))))
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
    lines = source.splitlines()[first - 1:node.end_lineno]
    indent = len(lines[0]) - len(lines[0].lstrip())
    return fenced("\n".join(line[indent:] for line in lines), "python")


# ---------------------------------------------------------------------------- the blocks

def record_excerpt() -> str:
    """The printed record without its config and its middle."""
    record = {key: value for key, value in trace().items() if key != "config"}
    losses = record["uninterrupted"]["dev_loss"]
    lines = json.dumps({**record, "uninterrupted": {**record["uninterrupted"], "dev_loss": [losses[0], losses[-1]]},
                        "resume_runs": {"resumed": record["resume_runs"]["resumed"]}}, indent=1).splitlines()
    return fenced("\n".join(lines))


def run_table() -> str:
    """The four runs and their last losses; the hashes are the answer."""
    rows = [["never interrupted", f"{trace()['uninterrupted']['dev_loss'][-1]['dev_loss']:.4f}"]]
    rows += [[f"resume {letter}", f"{row['final_dev_loss']:.4f}"]
             for letter, row in zip("ABC", trace()["resume_runs"].values())]
    return table(["run", "last development loss"], rows)


def run_answer() -> str:
    """Which resume is which."""
    names = {"resumed": "right: everything restored", "resumed_without_optimizer_state": "Adam's m, v and t forgotten",
             "resumed_without_shuffle_state": "the shuffle's generator and the remaining order forgotten"}
    final = trace()["uninterrupted"]["final"]["params_sha256"]
    return table(["run", "what was restored", "SHA-256 of the weights", "same", "loss against the uninterrupted run"],
                 [["never interrupted", "", f"`{final[:16]}…`", "", ""]]
                 + [[f"resume {letter}", names[name], f"`{row['params_sha256'][:16]}…`",
                     "yes" if row["params_sha256"] == final else "**no**", loss_words(row)]
                  for letter, (name, row) in zip("ABC", trace()["resume_runs"].items())])


def loss_words(row: Dict[str, Any]) -> str:
    last = trace()["uninterrupted"]["dev_loss"][-1]["dev_loss"]
    change = row["final_dev_loss"] - last
    return "equal" if change == 0 else f"{abs(change):.4f} {'lower: it looks better' if change < 0 else 'higher'}"


def best_table() -> str:
    """The best weights and the last ones, scored on the test stories."""
    best, final = trace()["best_checkpoint"], trace()["uninterrupted"]["final"]
    last = trace()["uninterrupted"]["dev_loss"][-1]
    return table(["weights", "step", "development loss", "test loss", "colors recalled"],
                 [[name, str(step), f"{loss:.4f}", f"{scores['test_loss']:.4f}",
                   f"{scores['color_recall']['correct']} of {scores['color_recall']['total']}"]
                  for name, step, loss, scores in (("best", best["step"], best["dev_loss"], best),
                                                   ("last", last["step"], last["dev_loss"], final))])


def refusal_table() -> str:
    """The recorded refusals, and what each teaches."""
    teaches = {
        "one changed value": "a digest of the whole content finds what no range check can",
        "truncated file": "a write that was not atomic, or a download that broke off",
        "different learning rate": "a resume with another config is another run",
        "changed corpus": "the next batch would be another one",
        "changed tokenizer of the same size": "the same ids would mean other words",
        "missing identity": "what was not recorded cannot be compared",
        "changed implementation": "the same state, stepped on by other code, ends elsewhere"}
    messages = {**trace()["integrity"],
                **{row["case"]: row["message"] for row in recorded("input-checks.json") if not row["accepted"]}}
    return table(["case", "message", "what it teaches"],
                 [[case, f"`{message}`", teaches[case]] for case, message in messages.items()])


def field_table() -> str:
    """Every field of last.json: what it is, and what it feeds."""
    return table(["field", "what it is", "what of the next step it feeds"],
                 [[f"`{field}`".replace(", ", "`, `"), what, feeds] for field, what, feeds in FIELDS])


def twin_table() -> str:
    """The hash of the straightforward twin on every build it was seen on, and the lab's."""
    from test_same_bits import LAB_SHA256, TWIN_SEEN
    return table(["interpreter, processor, C library", "with `sum` and `math.exp`", "the lab"],
                 [[build, f"`{digest[:12]}…`", f"`{LAB_SHA256[:12]}…`"] for build, digest in TWIN_SEEN.items()])


def counts_table() -> str:
    """What the crash tests tried, counted by them."""
    from test_crash import counts
    return table(["tried", "how often"], [[what, f"{number:,}"] for what, number in counts().items()])


def file_table() -> str:
    """The modules in reading order, with the first line of each docstring and its length."""
    rows = []
    for name in ("console", "make_corpus", "disk", "strict_json", "checkpoint_file", "bpe", "portable", "model",
                 "train", "verify", "checkpoint", "progress", "differences", "runs", "pictures", "trace_checkpoints", "inspect_inputs",
                 "npz", "bundle", "talk", "measure", "twins", "bench_checkpoints", "bench"):
        source = (HERE / f"{name}.py").read_text(encoding="utf-8")
        rows.append([f"[{name}.py]({name}.py)", (ast.get_docstring(ast.parse(source)) or "").split("\n")[0],
                     str(len(source.splitlines()))])
    return table(["file", "what it is", "lines"], rows)


def lines_of_code() -> str:
    """Lines of the modules that decide a step."""
    return str(sum(len((HERE / name).read_text(encoding="utf-8").splitlines())
                   for name in load(HERE / "best.json", CONFIG)["training_inputs"]["source_sha256"]))


def parameter_count() -> str:
    return f"{sum(len(row) for matrix in load(HERE / 'best.json', CONFIG)['params'].values() for row in matrix):,}"


def record_time() -> str:
    """How long the record took, where and when."""
    took = recorded("checkpoint-time.json")
    return (f"{took['seconds']:.0f} seconds with {took['jobs']} processes, {took['python']} on {took['system']} "
            f"{took['machine']}, {took['date']}")


def cost_tables() -> str:
    """The saved result of bench.py: the tables that the text speaks of, and where they were measured."""
    measured = recorded("benchmark.json")
    about = measured["about"]
    parts = [f"Measured on {about['date']}: {about['python']}, {about['system']} {about['machine']}, {about['cpus']} "
             f"processors, NumPy {about['numpy']}. Ratios are medians of pairs measured side by side."]
    parts.append(table(["one training step", "milliseconds, median", "lowest to highest"],
                       [[row["what"], f"{row['median_ms']:g}", f"{row['min_ms']:g} to {row['max_ms']:g}"]
                        for row in measured["steps"]["times"]]))
    parts.append(table(["the step grows with", "sizes", "milliseconds", "exponent"],
                       [[row["size"], ", ".join(map(str, row["values"])), ", ".join(f"{x:g}" for x in row["median_ms"]),
                         f"{row['median_exponent']:g}"] for row in measured["scaling"]["growth"]]))
    parts.append(table(["parameters", "a training step, milliseconds", "`last.json`, megabytes", "a save, in steps"],
                       [[f"{row['parameters']:,}", f"{row['step_ms']:g}", f"{row['megabytes']:g}",
                         f"{row['median_save_in_steps']:g}"] for row in in_steps()]))
    parts.append(table(["checkpoint", "parameters", "milliseconds", "of these making or reading text"],
                       [[row["what"], f"{row['parameters']:,}", f"{row['median_ms']:g}",
                         f"{row['serialising_ms'] + row['parsing_ms']:g}"] for row in measured["checkpoints"]["costs"]]))
    rows = [row for part in ("steps", "checkpoints", "jobs") for row in measured[part]["ratios"]]
    parts.append(table(["ratio", "median", "goal", ""],
                       [[row["ratio"], f"{row['median']:g}", row.get("goal") or "", row.get("verdict") or ""]
                        for row in rows]))
    parts.append(table(["memory", "MiB at the peak"],
                       [[row["what"], f"{row['peak_mib']:g}"] for row in measured["memory"]["peak"]]))
    return "\n\n".join(parts)


def elsewhere_table() -> str:
    """The pieces of an exact resume under the names of other tools."""
    return table(ELSEWHERE[0], ELSEWHERE[1:])


def test_count() -> str:
    """How many tests `python3 -m unittest` runs."""
    return str(unittest.TestLoader().discover(str(HERE), top_level_dir=str(HERE)).countTestCases())


def in_steps() -> List[Dict[str, Any]]:
    """How many training steps a save costs, a row a size."""
    return recorded("benchmark.json")["checkpoints"]["a save in training steps"]


def save_in_steps() -> str:
    """The smallest and the largest over all sizes."""
    medians = [row["median_save_in_steps"] for row in in_steps()]
    return f"{min(medians):.2f} to {max(medians):.2f}"


def ratio_of(section: str, start: str) -> float:
    """The median of the one ratio whose name starts so."""
    return next(row["median"] for row in recorded("benchmark.json")[section]["ratios"] if row["ratio"].startswith(start))


def share_of_saving() -> str:
    """How much of a run's time is saving."""
    return f"{100 * ratio_of('checkpoints', 'saving'):.1f} %"


def share_with_numpy() -> str:
    """How much it would be if all but the saving were as fast as NumPy's steps."""
    share = ratio_of("checkpoints", "saving")
    saving = share / (1.0 - share) * ratio_of("steps", "lab / NumPy")
    return f"{100 * saving / (1.0 + saving):.0f} %"


def bytes_a_number() -> str:
    """A state holds four numbers a parameter: weight, m, v and the best weight."""
    row = in_steps()[-1]
    return f"{row['megabytes'] * 1e6 / (4 * row['parameters']):.0f}"


def talk_transcript() -> str:
    """A talk with the recorded best weights: two answers, and a character that it does not know."""
    from talk import transcript
    return fenced("$ python3 talk.py --greedy\n" + transcript(["--greedy"], TALK))


ELSEWHERE = [        # where each keeps the piece, as its documentation or source says (README links to them)
    ["piece", "here", "PyTorch", "Lightning",
     "Hugging Face Trainer", "Keras `BackupAndRestore`", "Orbax"],
    ["weights", "`params`", "`model.state_dict()`", "`state_dict`",
     "`model.safetensors`", "`latest.weights.h5`", "the tree you save"],
    ["optimizer", "`adam`", "`optimizer.state_dict()`", "`optimizer_states`",
     "`optimizer.pt`", "in the same file", "in the same tree"],
    ["step", "`step`", "left to you", "`global_step`, `loops`",
     "`trainer_state.json`", "`epoch`, in `training_metadata.json`", "the folder's name"],
    ["generator's state", "`rng_state`", "`torch.get_rng_state()`, left to you", "left to you",
     "`rng_state.pth`", "left out", "if you put the key into the tree"],
    ["place in the epoch", "`order`", "left to you", "`loops`, with a loader that has a state",
     "skips the batches again", "left out: its `batch` is written and never read", "a data iterator, if given"],
    ["best score so far", "`best`", "left to you", "`callbacks`",
     "`best_metric`", "left out", "metrics of each step"],
    ["atomic write", "rename, both syncs", "left to you", "rename",
     "no", "no; a copy of the last one stays", "rename or a commit file"],
    ["digest checked at load", "yes", "no", "no",
     "no", "no", "of its chunks"],
    ["config, data, code compared", "yes, by name", "left to you", "no",
     "no", "no", "shapes"],
]
CARRIED = ["checkpoint_file.py", "disk.py", "strict_json.py"]      # all that a loop of one's own needs
TALK = ["Mia had a red kite.", "Ben found a white drum. Zoe saw a green lamp. He lost it at the lake."]
BLOCKS: Dict[str, Callable[[], str]] = {
    "record": record_excerpt, "runs": run_table, "runs answered": run_answer, "best": best_table,
    "refusals": refusal_table, "fields": field_table, "twins": twin_table, "counts": counts_table,
    "files": file_table, "lines": lines_of_code, "parameters": parameter_count, "record time": record_time,
    "talk": talk_transcript, "costs": cost_tables,
    "save in steps": save_in_steps, "share of saving": share_of_saving,
    "share with NumPy": share_with_numpy, "bytes a number": bytes_a_number,
    "training stories": lambda: str(len(training_stories((HERE / "corpus.txt").read_text(encoding="utf-8")))),
    "batch": lambda: str(CONFIG["batch"]), "longest": lambda: str(CONFIG["max_len"]),
    "elsewhere": elsewhere_table, "tests": test_count,
    "crash step": lambda: str(trace()["interrupted_at_step"] - 1),
    "saved every": lambda: str(CONFIG["eval_every"]),
    "interrupted at": lambda: str(trace()["interrupted_at_step"]),
    "best step": lambda: str(trace()["best_checkpoint"]["step"]),
    "last step": lambda: str(CONFIG["steps"]),
    "steps since best": lambda: str(CONFIG["steps"] - trace()["best_checkpoint"]["step"]),
    "best file": lambda: f"{(HERE / 'best.json').stat().st_size // 1000} kB",
}


def made(name: str) -> str:
    """The text of the block NAME. KeyError if there is none of that name."""
    return code(name[len("code "):]) if name.startswith("code ") else BLOCKS[name]()


def filled(text: str, skip: tuple = ()) -> str:
    """README's text with every block made anew, but those in `skip`."""
    def anew(match: re.Match[str]) -> str:
        name, old = match[1], match[2]
        if name in skip:
            return match[0]
        between = "\n" if old.startswith("\n") else ""
        return f"<!-- {name} -->{between}{made(name)}{between}<!-- end -->"
    return BLOCK.sub(anew, text)


# ---------------------------------------------------------------------------- the tests

def own_loop(path: str, steps: int) -> float:
    """Fit w in y = w * x, where y = 3 * x, up to step `steps`; goes on from the checkpoint if there is one."""
    cfg = {"rate": 0.1, "decay": 0.9}
    rng, w, momentum, step = random.Random(1), 0.0, 0.0, 0
    if os.path.exists(path):
        body = checkpoint_file.load(path, cfg)
        step, w, momentum = body["step"], body["w"], body["momentum"]
        version, words, gauss = body["rng"]
        rng.setstate((version, tuple(words), gauss))        # a tuple comes back from JSON as a list
    while step < steps:
        x = rng.uniform(-1.0, 1.0)
        momentum = cfg["decay"] * momentum + (w * x - 3.0 * x) * x
        w -= cfg["rate"] * momentum
        step += 1
        checkpoint_file.save(path, {"config": cfg, "step": step, "w": w, "momentum": momentum,
                                    "rng": rng.getstate()})
    return w


def prose(text: str) -> str:
    """README without its blocks, code, links' targets and comments."""
    text = BLOCK.sub("", text)
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"`[^`]*`|^\d\. ", "", text, flags=re.MULTILINE)
    return re.sub(r"\]\([^)]*\)|<!--.*?-->|<[^>]+>", "", text, flags=re.DOTALL)


def commands(text: str) -> List[str]:
    """Every `python3 ...` line in README's code blocks, without its comment."""
    found = []
    for block in re.findall(r"```\w*\n(.*?)```", text, flags=re.DOTALL):
        found += [line.split("  #")[0].strip() for line in block.splitlines() if line.startswith("python3 ")]
    return found


class TestReadme(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.text = README.read_text(encoding="utf-8")

    def test_every_block_is_what_the_lab_makes_now(self) -> None:
        skip = ("counts",) if no_children() else ()     # fewer things are tried where there are no processes
        anew = filled(self.text, skip)
        difference = "\n".join(difflib.unified_diff(self.text.splitlines(), anew.splitlines(), "README.md",
                                                    "what the lab makes", lineterm="", n=1))
        self.assertEqual(self.text, anew, f"\n{difference}\n{REPAIR}")

    def test_markers_are_known_and_come_in_pairs(self) -> None:
        for name in re.findall(r"<!-- ([^>]+?) -->", self.text):
            self.assertTrue(name in BLOCKS or name == "end" or name.startswith("code "), f"unknown marker {name!r}")
        starts = len(re.findall(r"<!-- (?!end -->)", self.text))
        self.assertEqual(starts, self.text.count("<!-- end -->"))
        self.assertEqual(starts, len(BLOCK.findall(self.text)))
        unused = [name for name in BLOCKS if f"<!-- {name} -->" not in self.text]
        self.assertEqual(unused, [])

    def test_a_stale_block_or_an_unknown_marker_is_found(self) -> None:
        self.assertNotEqual(filled("<!-- last step -->599<!-- end -->"), "<!-- last step -->599<!-- end -->")
        with self.assertRaises(KeyError):
            filled("<!-- lost step -->600<!-- end -->")

    def test_the_prose_has_no_number_of_its_own(self) -> None:
        allowed = {"256", "3.10", "2015", "2017", "2019", "754"}
        found = [word for word in re.findall(r"(?<!\w)\d[\d.,]*", prose(self.text)) if word.strip(".,") not in allowed]
        self.assertEqual(found, [], "numbers belong between markers")

    def test_what_is_compared_with_other_tools_is_what_a_state_holds(self) -> None:
        fields = {name for row in ELSEWHERE[1:] for name in re.findall(r"`(\w+)`", row[1])}
        self.assertLessEqual(fields, {field for row in FIELDS for field in re.findall(r"\w+", row[0])})
        self.assertEqual({len(row) for row in ELSEWHERE}, {7})

    def test_every_test_that_is_named_exists(self) -> None:
        sources = "".join(path.read_text(encoding="utf-8") for path in HERE.glob("test_*.py"))
        for name in re.findall(r"`(test_\w+)`", self.text):
            self.assertIn(f"def {name}(", sources)
        for module, case in re.findall(r"unittest (test_\w+)\.?(\w*)", self.text):
            self.assertIn(f"class {case}(" if case else "", (HERE / f"{module}.py").read_text(encoding="utf-8"))

    def test_links_inside_the_repository_resolve(self) -> None:
        headings = {re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
                    for line in self.text.splitlines() if line.startswith("#")}
        for target in re.findall(r"\]\(([^)]+)\)", self.text):
            if target.startswith("#"):
                self.assertIn(target[1:], headings)
            elif not target.startswith("https://"):
                self.assertTrue((HERE / target.split("#")[0]).exists(), target)

    def test_each_file_in_the_table_imports_only_from_those_above_it(self) -> None:
        above: set = set()
        for name in re.findall(r"\| \[(\w+)\.py\]", self.text):
            tree = ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8"))
            imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)} | {
                alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
            lab = {path.stem for path in HERE.glob("*.py")}
            self.assertLessEqual(imported & lab, above, name)
            above.add(name)
        self.assertEqual(above, {path.stem for path in HERE.glob("*.py") if not path.stem.startswith("test_")})

    def test_the_two_commands_stand_at_the_top(self) -> None:
        self.assertEqual(commands(self.text)[:2], ["python3 trace_checkpoints.py", "python3 -m unittest"])

    def test_every_command_is_run_by_a_test(self) -> None:
        elsewhere = {"python3 trace_checkpoints.py", "python3 -m unittest"}
        self.assertEqual(set(commands(self.text)) - elsewhere, set(SHORT_FORMS))

    def test_the_loop_of_ones_own_resumes_exactly_and_needs_each_of_its_fields(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            straight, stopped = (os.path.join(folder, name) for name in ("straight.json", "stopped.json"))
            w = own_loop(straight, 60)
            self.assertAlmostEqual(w, 3.0, places=1)
            self.assertEqual([own_loop(stopped, steps) for steps in (7, 8, 60, 60)][-2:], [w, w])
            self.assertEqual(Path(stopped).read_bytes(), Path(straight).read_bytes())
            for field, wrong in (("w", 0.0), ("momentum", 0.0), ("step", 0), ("rng", random.Random(1).getstate())):
                with self.subTest(field):
                    own_loop(stopped + field, 7)
                    body = load(stopped + field, {"rate": 0.1, "decay": 0.9})
                    checkpoint_file.save(stopped + field, {**body, field: wrong})
                    self.assertNotEqual(own_loop(stopped + field, 60), w)

    @unittest.skipIf(no_children(), no_children())
    def test_the_loop_of_ones_own_needs_three_files_and_write_atomically_one(self) -> None:
        loop = "import os, random, checkpoint_file\n" + code("test_readme.own_loop")[len("```python\n"):-len("```")]
        alone = "import disk; disk.write_atomically('file', b'whole'); print(open('file').read())"
        for names, program, said in ((CARRIED, loop + "print(own_loop('own.json', 9))", f"{self.straight(9)}\n"),
                                     (["disk.py"], alone, "whole\n")):
            with self.subTest(names), tempfile.TemporaryDirectory() as folder:
                for name in names:
                    shutil.copy(HERE / name, folder)
                done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
                self.assertEqual((done.stdout, done.stderr), (said, ""))

    def straight(self, steps: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            return own_loop(os.path.join(folder, "own.json"), steps)

    @unittest.skipIf(no_children(), no_children())
    def test_the_commands_run_in_order_as_they_are_written_or_in_a_short_form(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            prepare(Path(folder))
            for command in commands(self.text):
                if command in SHORT_FORMS:
                    with self.subTest(command):
                        program, *argv = shlex.split(SHORT_FORMS[command] or command)[1:]
                        done = subprocess.run([sys.executable, str(HERE / program), *argv], cwd=folder, text=True,
                                              input="", capture_output=True, encoding="utf-8")
                        self.assertEqual(done.returncode, 0, done.stdout[-300:] + done.stderr[-600:])


MODULES = ("console", "disk", "strict_json", "checkpoint_file", "bpe", "portable", "model", "train", "verify", "checkpoint", "progress", "differences",
           "runs")
SETTING = """
import json, sys
import checkpoint as c, train as t
from bpe import Tokenizer
text = "\\n".join(f"{name} had a {color} {thing}. The {thing} was still {color}." for name in ("Mia", "Leo", "Ana")
                  for color in ("red", "blue", "pink", "gold") for thing in ("hat", "cup", "kite", "ball", "boat"))
tok = Tokenizer.train(text, 40)
cfg = {**t.CONFIG, "d": 4, "hidden": 6, "max_len": 12, "steps": 12, "eval_every": 3}
def resumed(folder, cfg, stop=9):
    c.run(tok, text, cfg, folder, stop_after=stop)
    try:
        return c.params_sha256(c.run(tok, text, cfg, folder, resume=True)[0])
    except c.CheckpointError as error:
        return str(error)
def last(folder):
    return json.load(open(folder + "/last.json", encoding="ascii"))
"""


def probe(name: str, old: str, new: str, script: str) -> str:
    """What a script prints in a copy of the lab in which one text of a module is another."""
    with tempfile.TemporaryDirectory() as folder:
        for module in MODULES:
            source = (HERE / f"{module}.py").read_text(encoding="utf-8")
            if module == name:
                assert source.count(old) == 1, f"{name}.py holds {old!r} {source.count(old)} times"
                source = source.replace(old, new)
            Path(folder, f"{module}.py").write_text(source, encoding="utf-8")
        done = subprocess.run([sys.executable, "-c", SETTING + script], cwd=folder, text=True, capture_output=True,
                              encoding="utf-8")
        return done.stdout.strip() or done.stderr


@unittest.skipIf(no_children(), no_children())
class TestExercises(unittest.TestCase):
    """What README says comes of each exercise, tried."""

    def test_1_adams_count_saved_as_zero_is_refused_by_name(self) -> None:
        said = probe("checkpoint", '"t": state.adam.t}', '"t": 0}', "print(resumed('run', cfg))")
        self.assertEqual(said, "checkpoint run/last.json: field 'adam.t' is not the whole number 9")

    def test_2_best_weights_that_are_no_copy_reach_best_json_with_the_next_resume(self) -> None:
        said = probe("train", '"params": copy_params(state.params)}', '"params": state.params}', """
cfg = {**cfg, "learning_rate": 0.8}
c.run(tok, text, cfg, "run")
state, best = last("run"), json.load(open("run/best.json", encoding="ascii"))
print(state["best"]["step"], state["best"]["params"] == state["params"], best["params"] == state["params"])
c.run(tok, text, cfg, "run", resume=True)
print(json.load(open("run/best.json", encoding="ascii"))["params"] == state["params"])
""")
        self.assertEqual(said.splitlines(), ["9 True False", "True"])

    def test_3_a_dropped_tail_is_another_training_whose_resume_is_refused(self) -> None:
        good, other = "state.order += state.rng.sample", "state.order = state.rng.sample"
        script = "print(c.params_sha256(c.run(tok, text, cfg, 'whole')[0]))\nprint(resumed('run', cfg))"
        whole, again = probe("train", good, good, script).splitlines()
        self.assertEqual(whole, again)
        changed, refused = probe("train", good, other, script).splitlines()
        self.assertNotEqual(changed, whole)
        self.assertIn("field 'order' is not a list of", refused)

    def test_4_the_missing_fsync_is_among_the_mutants_that_are_caught(self) -> None:
        from test_mutants import MUTANTS
        row = next(row for row in MUTANTS if row[0] == "the file is not synced")
        self.assertIn("os.fsync(descriptor)", row[2])
        self.assertIn("crash", row[4].lower())

    @unittest.skipUnless(sys.platform == "linux", "another C library may round exp just as the lab does")
    def test_5_the_c_librarys_exp_gives_another_hash(self) -> None:
        script = "print(c.params_sha256(t.train(tok, text, cfg)[0]))"
        old = "results.append(table[k] * series)"
        self.assertNotEqual(probe("portable", old, old, script),
                            probe("portable", old, "results.append(math.exp(x))", script))

    def test_6_an_evaluation_that_draws_parts_the_histories_at_the_end_of_the_epoch(self) -> None:
        said = probe("train", "    dev_loss = round(", "    state.rng.random()\n    dev_loss = round(", """
import runs
for folder, every in (("a", 6), ("b", 3)):
    c.run(tok, text, {**cfg, "eval_every": every}, folder)
print(len(t.split_stories(text)[0]), cfg["batch"])
runs.main(["compare", "a", "b"])
""").splitlines()
        self.assertEqual(said[0], "44 8")           # so the sixth step is the first that needs a new shuffle
        self.assertTrue(said[1].startswith("the histories part at step 6: "), said)


# What README tells to run -> its short form for the test, or "" for as it is.
TRAIN = "python3 runs.py train mine --corpus stories.txt --tokenizer mine.json --keep 2"
STRAIGHT = "python3 runs.py train straight --corpus stories.txt --tokenizer mine.json"
SHORT_FORMS: Dict[str, str] = {
    "python3 bpe.py stories.txt --vocab-size 60 --write mine.json": "",
    TRAIN: f"{TRAIN} --steps 4 --eval-every 2 --batch 2 --stop-after 2",
    f"{TRAIN} --resume": "",
    "python3 runs.py show mine/last.json --corpus stories.txt --tokenizer mine.json": "",
    STRAIGHT: f"{STRAIGHT} --steps 4 --eval-every 2 --batch 2",
    "python3 runs.py compare mine straight": "",
    "python3 bundle.py mine finished/mine --tokenizer mine.json": "",
    "python3 talk.py": f"python3 talk.py {HERE / 'best.json'}",
    "python3 talk.py mine --tokenizer mine.json": "",
    "python3 bundle.py best.json finished/model": f"python3 bundle.py {HERE / 'best.json'} finished/model",
}


def prepare(folder: Path) -> None:
    """What README's commands expect to find: a person's own stories."""
    lines = (HERE / "corpus.txt").read_text(encoding="utf-8").splitlines()[:42]
    (folder / "stories.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    """Fill README's blocks anew."""
    if sys.argv[1:] == ["--write"]:
        text = filled(README.read_text(encoding="utf-8"))
        README.write_bytes(text.encode("utf-8"))
        return 0
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    unittest.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
