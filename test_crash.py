"""Interrupted in any way, at any moment, and nothing is lost: the proof.

    crash states    whatever a power cut may leave of the operations of the real `save`
    faults          each system call fails in turn, once and for ever
    disks           full, read-only, without folder sync, on Windows
    kill -9         at each system call, and at random moments of whole runs
    stops           at every step of a run, one, two, three times and always

test_damage.py goes on with damaged files and shared folders; test_mutants.py breaks the lab itself
and asks whether these tests notice. With LAB_LONG=1 in the environment a run is killed 200 times
rather than 12, and every chain of two and three stops is tried.

A model of a disk is not a disk: drives whose cache lies about a sync and network drives are not in it.
"""
from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
from pathlib import Path
from unittest import mock

import checkpoint
import disk
import train
from bpe import Tokenizer
from test_support import no_children

HERE = Path(__file__).resolve().parent
LONG = bool(os.environ.get("LAB_LONG"))
PROCESSES = sys.platform not in ("emscripten", "wasi")
POSIX = PROCESSES and os.name == "posix"
NEEDS_CHILDREN = unittest.skipIf(no_children(), no_children())
NEEDS_FORK = unittest.skipUnless(PROCESSES and hasattr(os, "fork"), "this system cannot fork a process")

WORDS = ("Ann", "Bea", "Ned", "me", "Dad", "ten", "men")
TEXT = "\n".join(f"{who} {did} {whom}." for who in WORDS[:3] for did in ("met", "bade") for whom in WORDS)
TOK = Tokenizer.train(TEXT, 22)
# 30 stories to train on, 4 a step: an epoch's tail of 2 after step 7, an epoch's end after step 15.
CFG = {**train.CONFIG, "d": 4, "hidden": 4, "max_len": 7, "batch": 4, "steps": 17, "eval_every": 5,
       "learning_rate": 0.2}
STEPS = CFG["steps"]
FOLDER = "."


# ---------------------------------------------------------------------------- for all three files

def run(folder, cfg=CFG, **options):
    """`checkpoint.run` on the tiny stories."""
    return checkpoint.run(TOK, TEXT, cfg, folder, **options)


def files(folder):
    """{name: bytes} of every file in `folder`."""
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}


def put(folder, state):
    """Make the files of `folder` be `state`, {name: bytes}."""
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    for name, data in state.items():
        Path(folder, name).write_bytes(data)


def stop_at(step, start=0):
    """A `should_stop` that is true after `step`, for a run that goes on from `start`."""
    steps = itertools.count(start + 1)
    return lambda: next(steps) == step


@functools.cache
def stopped(step, keep=0, **changes):
    """{name: bytes}: what a run leaves that is stopped after `step`; `changes` go into the config."""
    with tempfile.TemporaryDirectory() as folder:
        run(folder, {**CFG, **changes}, should_stop=stop_at(step), keep=keep)
        return files(folder)


def whole(**changes):
    """{name: bytes}: what the run leaves that is never interrupted."""
    return stopped(0, **changes)


class InAFolder(unittest.TestCase):
    """A test with a folder of its own. Unless SYNCS, no sync waits for the disk: none is pulled out here."""

    SYNCS = False

    def setUp(self):
        if not self.SYNCS:
            without = mock.patch.object(os, "fsync", lambda descriptor: None)
            self.addCleanup(without.stop)
            without.start()
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name
        self.last, self.best = self.path("last.json"), self.path("best.json")

    def path(self, name):
        return os.path.join(self.folder, name)

    def assert_files(self, expected, besides=()):
        """The folder holds these files with these bytes, and no other file but those named in `besides`."""
        found = {name: data for name, data in files(self.folder).items() if name not in besides}
        self.assertEqual(sorted(found), sorted(expected))
        self.assertEqual([name for name in found if found[name] != expected[name]], [], "other bytes")

    def assert_whole(self, **changes):
        """The folder holds, to the last bit, what the run leaves that never stopped, but for kept ones."""
        kept = [os.path.basename(path) for _, path in checkpoint.kept_states(self.folder)]
        self.assert_files(whole(**changes), besides=kept)


class System:
    """Stands in for `os` in disk.py and checkpoint.py: every call that changes a disk comes by `call`.

    It is a POSIX system on every machine: on Windows, which has no folder sync, one is played.
    """

    WATCHED = ("open", "write", "fsync", "close", "replace", "unlink")
    name = "posix"

    def __init__(self, write_size=1 << 30):
        self.write_size, self.calls, self.descriptors = write_size, [], {}

    def __getattr__(self, name):
        real = getattr(os, name)
        return functools.partial(self._watched, name, real) if name in self.WATCHED else real

    def _watched(self, name, real, *args):
        self.calls.append(name)
        if name == "write":             # a short write, as the system may make one
            args = (args[0], bytes(args[1][:self.write_size]))
        return self.call(name, real, *args)

    def call(self, name, real, *args):
        """What happens at a call: here, what was called for."""
        return self.really(name, real, *args)

    def really(self, name, real, *args):
        """The real call. `descriptors` tells of what each open one is: a file's first name, or FOLDER."""
        creates = name == "open" and args[1] & os.O_CREAT
        if os.name == "nt" and name == "open" and not creates:
            args = (os.devnull, os.O_RDONLY)
        elif os.name == "nt" and name == "fsync" and self.descriptors[args[0]] == FOLDER:
            return None
        result = real(*args)
        if name == "open":
            self.descriptors[result] = os.path.basename(args[0]) if creates else FOLDER
        elif name == "close":
            del self.descriptors[args[0]]
        return result

    @contextlib.contextmanager
    def instead_of_os(self):
        with mock.patch.object(checkpoint, "os", self), mock.patch.object(disk, "os", self):
            yield


# ---------------------------------------------------------------------------- crash states

GARBAGE = bytes(range(129, 256)) * 1000


class Recorder(System):
    """Notes the operations as (what, file, further); a file is called by the name it was created with."""

    def __init__(self, write_size=1 << 30):
        super().__init__(write_size)
        self.operations = []

    def call(self, name, real, *args):
        file = self.descriptors.get(args[0])
        result = self.really(name, real, *args)
        if name == "open":
            file = self.descriptors[result]
            self.operations.append(("open" if file == FOLDER else "create", file, None))
        elif name in ("replace", "unlink"):
            names = [os.path.basename(path) for path in args]
            self.operations.append((name, names[0], names[-1]))
        else:
            self.operations.append((name, file, args[1] if name == "write" else None))
        return result


def fates(synced, unsynced):
    """Every content that a power cut may leave of a file: its synced bytes and the writes since.

    All kept, all lost; torn in each write at 0, 1, half and all bytes but one, the rest missing,
    zeros or garbage; one write lost though later ones were kept. None stands for a truncation.
    """
    found = {synced}
    if unsynced[:1] == [None]:
        return found | fates(b"", unsynced[1:])
    data, start = b"".join(unsynced), 0
    for write in unsynced:
        for cut in (0, 1, len(write) // 2, len(write) - 1, len(write)):
            kept, rest = data[:start + cut], len(data) - start - cut
            found |= {synced + kept, synced + kept + bytes(rest), synced + kept + GARBAGE[:rest]}
        end = start + len(write)
        found.add(synced + data[:start] + bytes(len(write)) + data[end:])
        start = end
    return found


class Disk:
    """A folder as a power cut sees it: what is durable, and what was done since its last sync."""

    def __init__(self, before):
        self.contents = {name: [data, []] for name, data in before.items()}     # file: synced, unsynced
        self.names, self.changes = {name: name for name in before}, []          # name: file

    def do(self, what, file, further):
        if what == "create":
            self.contents[file] = [b"", []]
            self.changes.append({file: file})
        elif what in ("write", "truncate"):
            self.contents[file][1].append(further)
        elif what == "fsync" and file == FOLDER:
            for change in self.changes:
                self.names.update(change)
            self.changes = []
        elif what == "fsync":
            synced, unsynced = self.contents[file]
            kept = b"" if None in unsynced else synced
            self.contents[file] = [kept + b"".join(filter(None, unsynced)), []]
        elif what == "replace":         # a rename may be kept by half: the file under both names
            self.changes += [{further: file}, {file: None}]
        elif what == "unlink":
            self.changes.append({file: None})

    def states(self):
        """Each {name: bytes} that may be found: any subset of the changes of names, any fate of the data."""
        found = set()
        for kept in itertools.product((False, True), repeat=len(self.changes)):
            names = dict(self.names)
            for change in itertools.compress(self.changes, kept):
                names.update(change)
            present = {name: file for name, file in sorted(names.items()) if file}
            choices = [fates(*self.contents[file]) for file in present.values()]
            found |= {tuple(zip(present, data)) for data in itertools.product(*choices)}
        return [dict(state) for state in sorted(found)]


def crash_states(before, operations):
    """(operations done, state) for every prefix of the operations and every state it may leave."""
    disk = Disk(before)
    for done in range(len(operations) + 1):
        if done:
            disk.do(*operations[done - 1])
        for state in disk.states():
            yield done, state


OLD = {"config": {"d": 4}, "step": 5, "text": "the old one, é", "numbers": [0.1, -0.0, 1e-300] * 3}
NEW = {"config": {"d": 4}, "step": 10, "text": "the new one, 汉字", "numbers": [0.2, 1e22, 5e-324] * 4}


def trace_of_a_save(before, write_size=32):
    """The operations of the real `save` of NEW in a folder that holds `before`."""
    recorder = Recorder(write_size)
    with tempfile.TemporaryDirectory() as folder:
        put(folder, before)
        with recorder.instead_of_os():
            checkpoint.save(os.path.join(folder, "last.json"), NEW)
    return recorder.operations


def outcome(folder):
    """What `load` makes of last.json, and what is in the folder when the next run has swept it."""
    try:
        body = checkpoint.load(os.path.join(folder, "last.json"), OLD["config"])
    except FileNotFoundError:
        body = None
    except checkpoint.CheckpointError:
        body = "refused"
    disk.sweep(folder, checkpoint.OWN_FILES)
    return body, os.listdir(folder)


def described(state):
    """What the files of a crash state look like, in a few words."""
    return {name: f"{len(data)} bytes" + ", zeros at the end" * data.endswith(b"\0") for name, data in state.items()}


def try_crashes(folder, before, operations):
    """(states tried, the bad ones): neither old nor new, or old when all was done, or a temporary left."""
    old, tried, bad = OLD if before else None, 0, []
    for done, state in crash_states(before, operations):
        tried += 1
        put(folder, state)
        body, names = outcome(folder)
        good = [NEW] if done == len(operations) else [old, NEW]
        if body not in good or names != ["last.json"] * (body is not None):
            bad.append((done, body, described(state)))
    return tried, bad


def before_a_save():
    """The two folders that a save may find: one with the old checkpoint, and an empty one."""
    return [{"last.json": checkpoint.serialise(OLD)}, {}]


@functools.cache
def save_crashes():
    """(states tried, the bad ones) of the real `save`."""
    with tempfile.TemporaryDirectory() as folder:
        results = [try_crashes(folder, before, trace_of_a_save(before)) for before in before_a_save()]
    return sum(tried for tried, _ in results), [state for _, bad in results for state in bad]


def twins(operations):
    """{name: operations}: six ways in which a save is often written, made from the trace of the real one."""
    temporary = next(file for what, file, _ in operations if what == "create")
    sync, rename = ("fsync", temporary, None), ("replace", temporary, "last.json")
    no_sync, no_rename = ([step for step in operations if step != gone] for gone in (sync, rename))
    late, place = no_sync.index(rename) + 1, operations.index(rename)
    early = max(i for i, step in enumerate(no_rename) if step[0] == "write")
    in_place = [(what, "last.json", further) if file == temporary else (what, file, further)
                for what, file, further in no_rename]
    return {
        "no fsync": no_sync,
        "fsync after the rename": [*no_sync[:late], sync, *no_sync[late:]],
        "no folder sync": [step for step in operations if step != ("fsync", FOLDER, None)],
        "in place": [("truncate", *step[1:]) if step[0] == "create" else step for step in in_place],
        "unlink first": [*operations[:place], ("unlink", "last.json", None), *operations[place:]],
        "rename before the last write": [*no_rename[:early], rename, *no_rename[early:]],
    }


@functools.cache
def twin_crashes():
    """{name of the broken twin: how many bad states the same checker finds}."""
    before = before_a_save()[0]
    operations = trace_of_a_save(before, write_size=128)
    with tempfile.TemporaryDirectory() as folder:
        return {name: len(try_crashes(folder, before, twin)[1]) for name, twin in twins(operations).items()}


@functools.cache
def trace_of_a_commit():
    """(files before, operations): a run goes on from step 5 to the evaluation of step 10, keep=1."""
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as folder:
        put(folder, stopped(5, keep=1))
        with recorder.instead_of_os():
            run(folder, resume=True, stop_after=10, keep=1)
    return stopped(5, keep=1), recorder.operations


@functools.cache
def commit_crashes():
    """(number of states, those that differ in more than a temporary, each with whether all was done)."""
    before, operations = trace_of_a_commit()
    found, states = {}, 0
    for done, state in crash_states(before, operations):
        states += 1
        key = [(name, b"" if name.endswith(".tmp") else data) for name, data in state.items()]
        found[tuple(key), done == len(operations)] = state
    return states, [(state, all_done) for (_, all_done), state in found.items()]


def crash_counts():
    """How many crash states were tried, how many were bad, and how many broken twins were found out."""
    tried, bad = save_crashes()
    return {"crash states of a save": tried, "crash states that are neither old nor new": len(bad),
            "crash states of a run's commit": commit_crashes()[0], "broken ways to save": len(twin_crashes()),
            "broken ways reported by the same check": sum(found > 0 for found in twin_crashes().values())}


class CrashStates(InAFolder):
    def test_a_save_writes_syncs_renames_and_syncs_the_folder_in_this_order(self):
        whats = [what for what, _ in itertools.groupby(step[0] for step in trace_of_a_save({}))]
        self.assertEqual(whats, ["create", "write", "fsync", "close", "replace", "open", "fsync", "close"])

    def test_every_crash_state_of_a_save_loads_as_the_old_checkpoint_or_the_new_one(self):
        tried, bad = save_crashes()
        self.assertEqual(bad[:3], [], f"the first of {len(bad)}: operations done, what load makes of it, the files")
        self.assertGreaterEqual(tried, 800)

    def test_the_same_checker_reports_every_broken_twin(self):
        self.assertEqual(len(twin_crashes()), 6)
        for name, bad in twin_crashes().items():
            with self.subTest(name):
                self.assertGreater(bad, 0)

    def test_without_a_folder_sync_the_twin_loses_only_what_it_had_called_saved(self):
        before = before_a_save()[0]
        operations = twins(trace_of_a_save(before))["no folder sync"]
        _, bad = try_crashes(self.folder, before, operations)
        self.assertEqual({(done, body["step"]) for done, body, _ in bad}, {(len(operations), OLD["step"])})

    def test_a_run_goes_on_from_every_crash_state_of_its_commit_to_the_same_bytes(self):
        states, different = commit_crashes()
        self.assertGreater(states, 50)
        for state, all_done in different:
            put(self.folder, state)
            try:
                run(self.folder, resume=True, progress=lambda one, done=all_done: self.assertGreater(
                    one.step, 10 if done else 5))
            except checkpoint.CheckpointError as error:     # at the first: without an fsync there are thousands
                self.fail(f"a crash leaves {described(state)}, from which no run goes on: {error}")
            self.assert_whole()

    def test_best_json_is_durable_before_last_json_speaks_of_it(self):
        _, operations = trace_of_a_commit()
        renames = [i for i, step in enumerate(operations) if step[0] == "replace"]
        self.assertEqual([operations[i][2] for i in renames], ["best.json", "last.json", "step-000010.json"])
        self.assertIn(("fsync", FOLDER, None), operations[renames[0]:renames[1]])


# ---------------------------------------------------------------------------- faults

# The EACCES of a folder sync is no failure on Windows.
ERRORS = [error for error in (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EINTR) if os.name != "nt"
          or error != errno.EACCES] + [KeyboardInterrupt, MemoryError]


class Faulty(System):
    """Call number `at` fails with `error`, before it is done or after; `for_ever`: all of that function do.

    The function named `also` always fails.
    """

    def __init__(self, at, error, for_ever=False, also=None, after=False, write_size=200):
        super().__init__(write_size)
        self.at, self.error, self.for_ever, self.after = at, error, for_ever, after
        self.broken, self.failed = {also}, False

    def call(self, name, real, *args):
        now = len(self.calls) == self.at
        self.failed |= now
        fails = now or name in self.broken
        if now and self.for_ever:
            self.broken.add(name)
        # A close that reports an error has closed all the same.
        result = self.really(name, real, *args) if not fails or self.after or name == "close" else None
        if fails and isinstance(self.error, int):
            raise OSError(self.error, os.strerror(self.error))
        if fails:
            raise self.error
        return result


@functools.cache
def fault_free_calls():
    """The names of the calls of a save, in order, when nothing fails."""
    system = System(write_size=200)
    with tempfile.TemporaryDirectory() as folder, system.instead_of_os():
        checkpoint.save(os.path.join(folder, "last.json"), NEW)
    return system.calls


def new_is_there(at, after):
    """Whether a save that was cut off at its call number `at` has put the new file in place."""
    renamed = fault_free_calls().index("replace") + 1
    return at > renamed or (at == renamed and after)


def fault_cases():
    """(call, error, options): every call of a save, every error; with unlink, if need be, failing too."""
    calls = range(1, len(fault_free_calls()) + 1)
    before = itertools.product(calls, ERRORS, (False, True), (None, "unlink"))
    return ([(at, error, {"for_ever": for_ever, "also": also}) for at, error, for_ever, also in before]
            + [(at, error, {"after": True}) for at, error in itertools.product(calls, ERRORS[-2:])])


def fault_counts():
    """How many faults the tests inject: into a save, and into a run's commit."""
    return {"faults at the system calls of a save": len(fault_cases()),
            "faults at the system calls of a run's commit": len(trace_of_a_commit()[1])}


def descriptors():
    """The descriptors that this process holds, where the system tells."""
    return os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []


class Faults(InAFolder):
    def test_a_fault_at_any_system_call_leaves_the_old_file_or_the_new_one_whole(self):
        old, new = checkpoint.serialise(OLD), checkpoint.serialise(NEW)
        for at, error, options in fault_cases():
            with self.subTest(at=at, call=fault_free_calls()[at - 1], error=error, **options):
                put(self.folder, {"last.json": old})
                self.save_with_a_fault(Faulty(at, error, **options))
                if options.get("also") == "unlink":     # then a temporary may stay until the next start
                    disk.sweep(self.folder, checkpoint.OWN_FILES)
                self.assert_files({"last.json": new if new_is_there(at, "after" in options) else old})

    def save_with_a_fault(self, system):
        """The fault of a save comes out, names the file if the system made it, and leaves none open."""
        held, error = descriptors(), system.error
        kind = OSError if isinstance(error, int) else error
        with self.assertRaises(kind) as caught, system.instead_of_os():
            checkpoint.save(self.last, NEW)
        self.assertTrue(system.failed)
        if kind is OSError:
            self.assertEqual((caught.exception.errno, caught.exception.filename), (error, self.last))
            self.assertIn(self.last, str(caught.exception))
        if system.after and fault_free_calls()[system.at - 1] == "open":
            os.close(*system.descriptors)   # interrupted before anybody was told its number
        else:
            self.assertEqual(system.descriptors, {})
        self.assertEqual(len(descriptors()), len(held))

    def test_after_a_fault_at_any_system_call_of_a_commit_the_run_goes_on_to_the_same_bytes(self):
        before, operations = trace_of_a_commit()
        for at in range(1, len(operations) + 1):
            with self.subTest(at=at, call=operations[at - 1][:2]):
                put(self.folder, before)
                system = Faulty(at, errno.EIO, write_size=1 << 30)
                with self.assertRaises(OSError), system.instead_of_os():
                    run(self.folder, resume=True, stop_after=10, keep=1)
                self.assertEqual([name for name in os.listdir(self.folder) if name.endswith(".tmp")], [])
                self.assertEqual(system.descriptors, {})
                run(self.folder, resume=True)
                self.assert_whole()

    def test_a_temporary_that_could_not_be_removed_is_gone_after_the_next_start(self):
        system = Faulty(3, errno.EIO, also="unlink")
        with self.assertRaises(OSError), system.instead_of_os():
            checkpoint.save(self.last, NEW)
        self.assertRegex(" ".join(os.listdir(self.folder)), r"^\.last\.json\.[0-9a-f]{8}\.tmp$")
        run(self.folder)
        self.assert_whole()


# ---------------------------------------------------------------------------- disks

FILE_SIZE_LIMIT = """
import errno, resource, signal, sys
import checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    checkpoint.save(sys.argv[1], {"config": {}, "text": "x" * 5000})
except OSError as error:
    print(errno.errorcode[error.errno], error.filename == sys.argv[1])
"""


@contextlib.contextmanager
def ordinary_user():
    """Not root while this lasts: root may write into a read-only folder."""
    root = os.geteuid() == 0
    if root:
        try:
            os.seteuid(65534)
        except OSError as error:
            raise unittest.SkipTest("this root cannot become another user") from error
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


class Disks(InAFolder):
    SYNCS = True

    def setUp(self):
        super().setUp()
        checkpoint.save(self.last, OLD)
        self.old, self.new = files(self.folder), {"last.json": checkpoint.serialise(NEW)}

    @unittest.skipUnless(POSIX, "this system has no file size limit to stand for a full disk")
    @NEEDS_CHILDREN
    def test_on_a_disk_that_is_really_full_the_old_file_stays_and_no_temporary(self):
        done = subprocess.run([sys.executable, "-B", "-c", FILE_SIZE_LIMIT, self.last], cwd=HERE,
                              capture_output=True, text=True)
        self.assertEqual((done.stdout, done.stderr), ("EFBIG True\n", ""))
        self.assert_files(self.old)

    @unittest.skipUnless(POSIX, "this system lets everybody write into every folder")
    def test_a_read_only_folder_is_an_error_that_names_the_file(self):
        os.chmod(self.folder, 0o555)
        self.addCleanup(os.chmod, self.folder, 0o755)
        with ordinary_user(), self.assertRaises(PermissionError) as caught:
            checkpoint.save(self.last, NEW)
        self.assertEqual(caught.exception.filename, self.last)
        self.assert_files(self.old)

    def save_where(self, fails, number, system=None):
        """`save` on a system where the calls for which `fails(name, descriptor or path)` fail so."""
        system = system or System()

        def call(name, real, *args):
            if fails(name, system.descriptors.get(args[0], args[0])):
                raise OSError(number, os.strerror(number))
            return system.really(name, real, *args)

        system.call = call
        with system.instead_of_os():
            checkpoint.save(self.last, NEW)

    def folder_calls(self):
        """(name, `fails` for `save_where`): opening the folder fails, and then syncing it."""
        places = (("open", os.path.realpath(self.folder)), ("fsync", FOLDER))
        return [(place[0], lambda *called, place=place: called == place) for place in places]

    def test_where_folders_cannot_be_synced_a_save_is_no_failure(self):
        numbers = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
        for number, (name, fails) in itertools.product(numbers, self.folder_calls()):
            with self.subTest(name, error=errno.errorcode[number]):
                put(self.folder, self.old)
                self.save_where(fails, number)
                self.assert_files(self.new)

    def test_an_io_error_in_a_folder_sync_is_a_failure(self):
        for number, (name, fails) in itertools.product((errno.EIO, errno.ENOSPC), self.folder_calls()):
            with self.subTest(name, error=errno.errorcode[number]):
                put(self.folder, self.old)
                with self.assertRaises(OSError) as caught:
                    self.save_where(fails, number)
                self.assertEqual((caught.exception.errno, caught.exception.filename), (number, self.last))
                self.assert_files(self.new)

    @unittest.skipUnless(POSIX, "this system has no umask")
    def test_the_permissions_of_a_checkpoint_follow_the_umask(self):
        for umask, mode in ((0o022, "0o644"), (0o002, "0o664"), (0o077, "0o600")):
            with self.subTest(oct(umask)):
                self.addCleanup(os.umask, os.umask(umask))
                checkpoint.save(self.last, NEW)
                self.assertEqual(oct(os.stat(self.last).st_mode & 0o777), mode)

    def save_beside_a_reader(self, system_name, refusals):
        """(calls of replace, of sleep): a save while a reader's handle forbids so many replaces."""
        system, left = System(), iter(range(refusals))
        system.name = system_name
        with mock.patch.object(disk.time, "sleep") as sleep, contextlib.suppress(PermissionError):
            self.save_where(lambda name, _: name == "replace" and next(left, None) is not None,
                            errno.EACCES, system)
        return system.calls.count("replace"), sleep.call_count

    def test_on_windows_a_replace_waits_for_a_reader_to_close_the_file(self):
        self.assertEqual(self.save_beside_a_reader("nt", 2), (3, 2))
        self.assert_files(self.new)

    def test_a_replace_that_is_refused_for_ever_is_an_error_and_the_old_file_stays(self):
        for system_name, tries in (("nt", 10), ("posix", 1)):
            with self.subTest(system_name):
                self.assertEqual(self.save_beside_a_reader(system_name, 1000), (tries, tries - 1))
                self.assert_files(self.old)


# ---------------------------------------------------------------------------- kill -9

KILLS = 200 if LONG else 12


class Killer(System):
    """The process is killed at call number `at`, before it is done or after."""

    def __init__(self, at, after, write_size=200):
        super().__init__(write_size)
        self.at, self.after = at, after

    def call(self, name, real, *args):
        if len(self.calls) < self.at or self.after:
            result = self.really(name, real, *args)
        if len(self.calls) == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


def start(action):
    """The process id of a child that does `action`."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            action()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def ended(child):
    """How the child ended: its exit status, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_points():
    """(call, whether it is done) for every call of a save."""
    return list(itertools.product(range(1, len(fault_free_calls()) + 1), (False, True)))


def commit_kill_points():
    """Every call of a commit; in the short version every fourth."""
    return range(1, len(trace_of_a_commit()[1]) + 1, 1 if LONG else 4)


def kill_counts():
    """How many times a process is killed: in a save, in a run's commit, at random moments of runs."""
    return {"kills at the system calls of a save": len(kill_points()),
            "kills at the system calls of a run's commit": len(commit_kill_points()),
            "kills at random moments of a run": KILLS}


@NEEDS_FORK
class KillMinusNine(InAFolder):
    def die_in(self, killer, action):
        with killer.instead_of_os():
            child = start(action)
        self.assertEqual(ended(child), -signal.SIGKILL)

    def test_killed_at_any_call_of_a_save_the_old_file_or_the_new_one_is_there(self):
        for at, after in kill_points():
            with self.subTest(at=at, after=after):
                put(self.folder, {"last.json": checkpoint.serialise(OLD)})
                self.die_in(Killer(at, after), lambda: checkpoint.save(self.last, NEW))
                expected = NEW if new_is_there(at, after) else OLD
                self.assertEqual(outcome(self.folder), (expected, ["last.json"]))

    def test_killed_at_a_call_of_a_commit_the_run_goes_on_to_the_same_bytes(self):
        before, operations = trace_of_a_commit()
        for at in commit_kill_points():
            with self.subTest(at=at, call=operations[at - 1][:2]):
                put(self.folder, before)
                self.die_in(Killer(at, False, 1 << 30), lambda: run(self.folder, resume=True, keep=1))
                run(self.folder, resume=True)
                self.assert_whole()

    def test_killed_at_random_moments_a_run_ends_in_the_same_bytes_and_leaves_nothing_behind(self):
        delays, kills = random.Random(9), 0
        began = time.perf_counter()
        self.assertEqual(ended(start(lambda: run(self.folder))), 0)
        duration = time.perf_counter() - began
        while kills < KILLS:
            put(self.folder, {})
            status = None
            while status != 0:
                child = start(lambda: run(self.folder, resume="auto"))
                time.sleep(delays.uniform(0.0, duration))
                if kills < KILLS:
                    os.kill(child, signal.SIGKILL)
                status = ended(child)
                self.assertIn(status, (0, -signal.SIGKILL))
                kills += status != 0
            self.assert_files(whole())


# ---------------------------------------------------------------------------- stops

def chains(length):
    """Every chain of so many stops; in the short version 16 of them."""
    every = list(itertools.combinations(range(1, STEPS), length))
    return every if LONG or len(every) <= 16 else sorted(random.Random(length).sample(every, 16))


EPOCH_ENDS = [(4, 15), (10, 3), (10, 6)]                # (batch, step)


def stops_about_an_epochs_end():
    """(batch, stop): exactly at the end of an epoch, one step before it and one after."""
    return [(batch, end + near) for batch, end in EPOCH_ENDS for near in (-1, 0, 1)]


def stop_counts():
    """How many stop points, and chains of stops, are tried."""
    return {"steps at which a run is stopped": len(chains(1)),
            "runs stopped twice": len(chains(2)), "runs stopped three times": len(chains(3)),
            "stops before, at and after an epoch's end": len(stops_about_an_epochs_end())}


class Stops(InAFolder):
    def stop_and_go_on(self, *stops, **changes):
        """A run stopped after each of these steps, and continued each time, ends in the same bytes."""
        cfg, start_at = {**CFG, **changes}, 0
        put(self.folder, {})
        for stop in stops:
            run(self.folder, cfg, resume="auto", should_stop=stop_at(stop, start_at))
            self.assertEqual(checkpoint.load(self.last, cfg)["step"], stop)
            start_at = stop
        run(self.folder, cfg, resume=True)
        self.assert_files(whole(**changes))

    def test_the_tiny_run_has_its_best_between_its_first_evaluation_and_its_last_step(self):
        # Else these tests could not tell a best that came back from one that was found anew.
        best = json.loads(whole()["best.json"])
        self.assertIn(best["step"], range(6, STEPS), "choose another learning rate for CFG")

    def test_stopped_once_at_any_step_a_run_ends_in_the_same_bytes(self):
        for stops in chains(1):
            with self.subTest(stops=stops):
                self.stop_and_go_on(*stops)

    def test_stopped_twice_or_three_times_a_run_ends_in_the_same_bytes(self):
        for stops in chains(2) + chains(3):
            with self.subTest(stops=stops):
                self.stop_and_go_on(*stops)

    def test_stopped_at_every_step_a_run_ends_in_the_same_bytes(self):
        self.stop_and_go_on(*range(1, STEPS))

    def test_stopped_about_an_epochs_end_a_run_ends_in_the_same_bytes(self):
        for batch, stop in stops_about_an_epochs_end():
            with self.subTest(batch=batch, stop=stop):
                self.stop_and_go_on(stop, batch=batch)
                left = json.loads(stopped(stop, batch=batch)["last.json"])["order"]
                self.assertEqual(left == [], (batch, stop) in EPOCH_ENDS)

    def test_after_a_stop_each_step_is_taken_once(self):
        taken = []
        run(self.folder, should_stop=stop_at(7), progress=lambda state: taken.append(state.step))
        run(self.folder, resume=True, progress=lambda state: taken.append(state.step))
        self.assertEqual(taken, list(range(1, STEPS + 1)))

    def test_a_finished_run_resumed_does_no_step_and_changes_no_byte(self):
        put(self.folder, whole())
        before = {name: os.stat(self.path(name)).st_mtime_ns for name in os.listdir(self.folder)}
        for resume, stop_after in ((True, None), ("auto", None), (True, 3)):
            with self.subTest(resume=resume, stop_after=stop_after):
                run(self.folder, resume=resume, stop_after=stop_after, progress=self.fail)
                after = {name: os.stat(self.path(name)).st_mtime_ns for name in os.listdir(self.folder)}
                self.assertEqual(after, before)
                self.assert_files(whole())

    def test_a_best_json_that_was_lost_or_is_of_another_run_comes_back(self):
        for best in ({}, {"best.json": b"of another run"}):
            with self.subTest(best):
                put(self.folder, {"last.json": whole()["last.json"], **best})
                run(self.folder, resume=True)
                self.assert_files(whole())


# ---------------------------------------------------------------------------- the counts for the README

def counts():
    """{what: how many}: every count that the README states. What the tests have tried is not tried again."""
    import test_damage
    import test_mutants

    return {**crash_counts(), **fault_counts(), **kill_counts(), **stop_counts(),
            **test_damage.damage_counts(), **test_mutants.mutant_counts()}


if __name__ == "__main__":
    unittest.main()
