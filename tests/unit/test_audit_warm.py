"""Warm starts of an audit: a process that is forked from one with its imports made is what a fresh
interpreter is, and leaves what a fresh one leaves; where that is not so, it is started cold.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ecrl_cli.audit import runner
from ecrl_cli.audit.audit import run_audit
from ecrl_cli.audit.cold_and_warm import changed_by_warmth
from ecrl_cli.audit.records import read_arm
from ecrl_cli.audit.runner import Job, install_recorder, run_arm
from ecrl_cli.audit.warm import ColdStarts, ForkedProcess, ScriptCommand, WarmStarts
from ecrl_cli.config.audit import AuditConfig, AuditKeys
from ecrl_cli.linux.processes import become_subreaper, tagged
from tests.unit.audit_recordings import change, healthy

HEAD = "import os, signal, sys\nfrom pathlib import Path\nimport psutil\nout = Path(sys.argv[1])\n"

# What an attempt may do, and how it may end.
ENDS = {
    "prints": "print('hello'); sys.stderr.write('error\\n')",
    "exit code": "print('a'); raise SystemExit(3)",
    "exit message": "sys.exit('bye')",
    "error": "def f(): 1 / 0\ntry:\n  f()\nexcept Exception as e:\n  raise ValueError('x') from e",
    "no such module": "import nosuchmodule",
    "error in its syntax": "def f(:",
    "interrupt": "raise KeyboardInterrupt",
    "hook of errors": "sys.excepthook = lambda *a: print('hooked', a[0].__name__)\n1 / 0",
    "_exit loses what is buffered": "print('lost'); os._exit(7)",
    "kill loses what is buffered": "print('lost'); os.kill(os.getpid(), 9)",
    "kill leaves what was flushed": "print('y' * 9000); print('z' * 10); os.kill(os.getpid(), 9)",
    "killed while a file is open": "f = open(out / 'f', 'w'); f.write('x' * 9000);"
    " os.kill(os.getpid(), 9)",
    "file that nobody closes": "f = open(out / 'f', 'w'); f.write('x' * 10)",
    "TERM": "print('lost'); os.kill(os.getpid(), 15)",
    "handler of TERM": "signal.signal(15, lambda *a: (print('asked'), sys.exit(0)))\n"
    "os.kill(os.getpid(), 15)",
    "INT": "os.kill(os.getpid(), 2)\nwhile True: pass",
    "object that outlives its module": "class A:\n  def __del__(self): print('deleted')\na = A()",
    "atexit": "import atexit\natexit.register(print, 'at exit')\nprint('main')",
    "thread": "import threading\nevent = threading.Event()\n"
    "threading.Thread(target=lambda: (event.wait(9), print('thread'))).start()\n"
    "print('main'); event.set()",
    "daemon": "import threading\n"
    "threading.Thread(target=threading.Event().wait, daemon=True).start(); print('main')",
    "abort": "os.abort()",
    "pickled class": "import pickle\nclass C: pass\n"
    "(out / 'p').write_bytes(pickle.dumps(C())); print(C.__module__)",
    "module beside it": "import beside; print(beside.__file__)",
    "spawn": "import multiprocessing, beside\nif __name__ == '__main__':\n"
    "  with multiprocessing.get_context('spawn').Pool(1) as p: print(p.map(beside.f, [1]))",
    "forkserver": "import multiprocessing, beside\nif __name__ == '__main__':\n"
    "  with multiprocessing.get_context('forkserver').Pool(1) as p: print(p.map(beside.f, [1]))",
    "fork": "import multiprocessing, beside\n"
    "with multiprocessing.get_context('fork').Pool(1) as p: print(p.map(beside.f, [1]))",
    "program": "import subprocess\nsubprocess.run([sys.executable, '-c',"
    " 'import os, sys; print(os.environ[\"ECRL_ATTEMPT\"], sys.path[0])'])",
    "warning": "import warnings\nwarnings.warn('careful')",
}

FACTS = """
import ctypes, json, multiprocessing, threading
main, death = sys.modules["__main__"], ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(death), 0, 0, 0)
status = Path("/proc/self/status").read_text().splitlines()
print(json.dumps({
    "argv": sys.argv, "orig_argv": getattr(sys, "orig_argv", None), "path": sys.path,
    "file": __file__, "main": vars(main) is globals() and sorted(vars(main))[:9],
    "spec": __spec__, "loader": [type(__loader__).__name__, __loader__.path],
    "package": __package__, "cwd": os.getcwd(), "executable": sys.executable,
    "flags": str(sys.flags), "warnings": sys.warnoptions,
    "environment": dict(sorted(os.environ.items())),
    "handlers": [str(signal.getsignal(n)).split(" at ")[0] for n in signal.valid_signals()],
    "signals": [line for line in status if line.startswith(("SigB", "SigI", "SigC"))],
    "session": os.getsid(0) == os.getpid() == os.getpgid(0), "parent": os.getppid(),
    "threads": threading.active_count(), "native": threading.main_thread().native_id == os.getpid(),
    "descriptors": [os.path.realpath(f"/proc/self/fd/{n}") for n in range(9)
                    if os.path.exists(f"/proc/self/fd/{n}")],
    "encoding": sys.stdout.encoding, "buffering": sys.stdout.line_buffering,
    "process": [multiprocessing.current_process().name, repr(multiprocessing.parent_process())],
    "start method": multiprocessing.get_start_method(), "dies with its parent": death.value,
    "tagged": ("ECRL_AUDIT_ARM=" + os.environ["ECRL_AUDIT_ARM"]).encode()
    in Path("/proc/self/environ").read_bytes().split(b"\\0"),
}, default=str))
"""
OWN = """
import random
numpy = sys.modules.get("numpy")
print(random.random(), hash("text"), id(object()), numpy and numpy.random.rand())
"""


class Attempts:
    """Attempts of one script whose code changes, started cold or warm."""

    def __init__(self, folder: Path, environment: dict[str, str] | None = None) -> None:
        become_subreaper()
        self.folder, self.recorder = folder, install_recorder(folder)
        self.environment = dict(os.environ) | (environment or {})
        self.script, self.python = folder / "job" / "train.py", sys.executable
        self.script.parent.mkdir()
        (self.script.parent / "beside.py").write_text("def f(x): return x + 1\n")

    def run(self, starts: ColdStarts, code: str, number: int = 1) -> tuple[int, str, Any]:
        """Exit code, what was printed, and the files that were left."""
        self.script.write_text(code)
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        for file in work.iterdir():
            file.unlink()
        arm = dict.fromkeys(("ECRL_RECORD", "ECRL_AUDIT_ARM"), str(self.folder / "arm"))
        arm["ECRL_ARM_DIR"] = str(work)
        environment = self.environment | {"PYTHONPATH": str(self.recorder), "ECRL_ATTEMPT": "1"}
        words = [self.python, "-W", "default", os.path.relpath(self.script), str(work)]
        with (self.folder / "output").open("wb") as output:
            environment |= arm | starts.environment()
            status = starts.start(words, environment, output, number).wait()
        files = {path.name: path.read_bytes() for path in work.iterdir()}
        return status, (self.folder / "output").read_text(), files

    def warmed_up(self, code: str) -> WarmStarts:
        starts = WarmStarts(self.recorder)
        assert self.run(starts, code)[0] == 0
        starts.warm_up()
        return starts


@pytest.fixture(scope="module")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Attempts, WarmStarts]]:
    made = Attempts(tmp_path_factory.mktemp("warm"))
    starts = made.warmed_up(HEAD + "import numpy.random")
    yield made, starts
    starts.close()


@pytest.mark.parametrize("end", ENDS)
def test_a_warm_attempt_ends_and_leaves_what_a_cold_one_does(
    attempts: tuple[Attempts, WarmStarts], end: str
) -> None:
    made, starts = attempts
    warm = made.run(starts, HEAD + ENDS[end])
    assert starts.why_cold == ""
    assert warm == made.run(ColdStarts(), HEAD + ENDS[end])


def test_a_warm_attempt_is_a_fresh_interpreter(attempts: tuple[Attempts, WarmStarts]) -> None:
    made, starts = attempts
    warm, cold = (json.loads(made.run(s, HEAD + FACTS)[1]) for s in (starts, ColdStarts()))
    assert warm == cold
    assert warm["tagged"] and warm["session"] and warm["parent"] == os.getpid()


def test_attempts_draw_other_numbers_and_restarts_have_other_hashes_and_addresses(
    attempts: tuple[Attempts, WarmStarts],
) -> None:
    made, starts = attempts
    told = [made.run(starts, HEAD + OWN, number)[1].split() for number in range(4)]
    draws, hashes, addresses, arrays = zip(*told, strict=True)
    assert len(set(draws)) == len(set(arrays)) == 4 and "None" not in arrays
    for values in (hashes, addresses):
        assert all(one != other for one, other in itertools.pairwise(values))


def test_torchs_generator_is_seeded_anew_in_each_attempt(tmp_path: Path) -> None:
    code = "import torch; print(torch.initial_seed())"
    made = Attempts(tmp_path)
    starts = made.warmed_up(code)
    seeds = {made.run(starts, code, number)[1] for number in (0, 2, 4)}
    starts.close()
    assert len(seeds) == 3 and starts.why_cold == ""


def test_a_seed_that_is_asked_for_holds_in_warm_attempts(tmp_path: Path) -> None:
    made = Attempts(tmp_path, {"ECRL_SEED": "7", "PYTHONHASHSEED": "7"})
    code = "import random, numpy.random\nprint(random.random(), numpy.random.rand(), hash('text'))"
    starts = made.warmed_up(code)
    cold = made.run(ColdStarts(), code)
    assert [made.run(starts, code, number) for number in (0, 1)] == [cold, cold]
    assert starts.warm
    starts.close()


# A library that does something when it is imported, and why it is not imported beforehand.
LIBRARIES = {
    "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()": (
        "2 threads run"
    ),
    "handle = open('/dev/zero')": "its imports leave /dev/zero",
    "import mmap; shared = mmap.mmap(-1, 10)": "memory that processes share",
    "import multiprocessing; lock = multiprocessing.Lock()": "memory that processes share",
    "import signal; signal.signal(15, lambda *args: None)": "a handler of SIGTERM",
    "import random; random.seed(1)": "seeds a random number generator",
    "import numpy.random as r; r.seed(1)": "seeds a random number generator",
    "import random, numpy.random; random.random(), numpy.random.rand()": "",
    "print('imported')": "",
    "import beside": "a module of the job's own, beside",
    "import os; os.environ['LIBRARY'] = 'set'": "",
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_imports_that_no_fork_may_share_are_not_made_beforehand(
    tmp_path: Path, library: str
) -> None:
    made = Attempts(tmp_path)
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "library.py").write_text(library + "\n")
    made.recorder = Path(f"{made.recorder}{os.pathsep}{packages}")
    starts = WarmStarts(tmp_path / "recorder")
    code = "import os, library; print(os.environ.get('LIBRARY'), flush=True)"
    cold = made.run(starts, code)
    starts.warm_up()
    assert LIBRARIES[library] in starts.why_cold and bool(starts.why_cold) == bool(
        LIBRARIES[library]
    )
    assert made.run(starts, code) == cold
    starts.close()


def noted(made: Attempts, code: str) -> tuple[set[str], bool]:
    starts = WarmStarts(made.recorder)
    assert made.run(starts, code)[0] == 0
    (path,) = made.recorder.glob("imports-*.json")
    document = json.loads(path.read_text())
    path.unlink()
    return {name for name, _ in document["modules"]}, document["changed"]


def test_nothing_is_imported_beforehand_that_the_job_configures_by_its_environment(
    tmp_path: Path,
) -> None:
    made = Attempts(tmp_path)
    before, changed = noted(made, "import os, psutil, beside\nos.environ['A'] = 'b'\nimport yaml")
    assert "psutil" in before and changed
    assert not before & {"yaml", "beside", "__main__"}
    same = "os.environ['HOME'] = os.environ['HOME']"
    after, changed = noted(made, f"import os, psutil\n{same}\nimport yaml")
    assert {"psutil", "yaml"} <= after and not changed


def test_a_job_that_sets_a_variable_before_it_imports_torch_is_started_cold(
    tmp_path: Path,
) -> None:
    starts = Attempts(tmp_path).warmed_up("import os\nos.environ['OMP_NUM_THREADS'] = '77'")
    assert (starts.warm, "before it imports torch" in starts.why_cold) == (False, True)


def test_a_python_that_is_found_by_the_path_is_started_warm(tmp_path: Path) -> None:
    folder = str(Path(sys.executable).parent)
    made = Attempts(tmp_path, {"PATH": folder + os.pathsep + os.environ.get("PATH", "")})
    made.python = Path(sys.executable).name
    starts = made.warmed_up(HEAD)
    warm, cold = (json.loads(made.run(s, HEAD + FACTS)[1]) for s in (starts, ColdStarts()))
    assert warm == cold and starts.why_cold == ""
    starts.close()


@pytest.mark.parametrize("device", ["/dev/nvidia0", "/dev/kfd", "/dev/null"])
def test_a_job_that_uses_an_accelerator_is_started_cold(tmp_path: Path, device: str) -> None:
    """Nothing has shown yet that a fork of its imports is as good there."""
    stands_in = f"import ecrl.warm as w\nw._descriptors = lambda: {{'{device} (descriptor 9)'}}"
    starts = Attempts(tmp_path).warmed_up(stands_in)
    assert ("an accelerator" in starts.why_cold) == (device != "/dev/null")
    starts.close()


@pytest.mark.parametrize(
    ("words", "script"),
    [
        ("python train.py --out x", "train.py"),
        ("/venv/bin/python3.11 -u -W ignore a/train.py", "a/train.py"),
        ("python -m train", None),
        ("python -c pass", None),
        ("python -I train.py", None),
        ("torchrun train.py", None),
        ("sh train.py", None),
        ("python", None),
    ],
)
def test_only_a_script_is_started_warm(words: str, script: str | None) -> None:
    command = ScriptCommand.of(words.split())
    assert (command.script if command else None) == script


def test_an_attempt_is_started_cold_when_what_would_fork_it_has_died(tmp_path: Path) -> None:
    made = Attempts(tmp_path)
    starts = made.warmed_up(HEAD)
    for importer in starts._importers:
        importer._process.kill()
        importer._process.wait()
    assert made.run(starts, HEAD + "print('ran')")[:2] == (0, "ran\n")
    assert "has died" in starts.why_cold


def test_other_variables_than_those_of_the_imports_need_a_cold_start(tmp_path: Path) -> None:
    made = Attempts(tmp_path)
    starts = made.warmed_up(HEAD)
    made.environment["OMP_NUM_THREADS"] = "3"
    kinds = []
    start = starts.start
    starts.start = lambda *args: kinds.append(start(*args)) or kinds[-1]  # type: ignore
    assert made.run(starts, HEAD + "print(os.environ['OMP_NUM_THREADS'])")[1] == "3\n"
    assert not isinstance(kinds[0], ForkedProcess)
    starts.close()


def test_what_outlives_a_warm_attempt_is_found_and_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_LEAVE_S", 0.2)
    script = tmp_path / "train.py"
    script.write_text("import os, signal\nif os.fork() == 0:\n  os.setsid()\n  signal.pause()\n")
    recorder, launches = install_recorder(tmp_path), []
    starts = WarmStarts(recorder)
    job = Job((sys.executable, str(script), "{dir}"), AuditKeys(), recorder, starts=starts)
    for name in ("cold", "warm"):
        launches += run_arm(job, tmp_path / name, (), lambda line: None)
        starts.warm_up() if not starts.warm else None
    starts.close()
    assert starts.why_cold == ""
    assert [(launch.exit_code, launch.left_behind) for launch in launches] == [(0, 1), (0, 1)]
    assert not any(map(tagged(f"ECRL_AUDIT_ARM={tmp_path / 'warm'}"), psutil.pids()))


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda line: line, ""),
        (
            lambda line: line | {"losses": [7.0]} if line.get("step") == 6 else line,
            "step 6 differs in loss",
        ),
        (
            lambda line: None if line["type"] == "step" and line["step"] > 12 else line,
            "16 and 12 steps",
        ),
        (lambda line: line | {"extra": 1} if line["type"] == "process" else line, ""),
    ],
)
def test_a_warm_run_that_differs_is_told_from_a_cold_one(
    tmp_path: Path, edit: Any, why: str
) -> None:
    folder = healthy(tmp_path)
    shutil.rmtree(folder / "struck")
    (folder / "ref2").rename(folder / "struck")
    for name in ("ref", "struck"):
        launch = {"attempt": 0, "exit_code": 0, "signal": None, "seconds": 1.0}
        (folder / name / "arm.json").write_text(json.dumps({"launches": [launch]}))
    change(folder, 0, edit)
    assert changed_by_warmth([read_arm(folder / "ref")], read_arm(folder / "struck")) == why


# A job that tells its own steps, so that nothing is imported for it; SPOILT runs in each of them.
JOB = """
import json, os, sys
from pathlib import Path
import psutil, ecrl
out = Path(sys.argv[1]); out.mkdir(exist_ok=True)
rec, last, loss = ecrl.session(), out / "last.json", 1.0
first = 0
if last.exists():
    first, loss = json.loads(last.read_text())
for step in range(first + 1, 13):
    loss = loss * 0.9
    SPOILT
    rec.step(step, loss=loss, samples=[step], params="p%d" % step)
    if step % 3 == 0:
        Path(str(last) + ".tmp").write_text(json.dumps([step, loss]))
        os.replace(str(last) + ".tmp", last)
        rec.saved(str(last))
"""


def told_by_audit(folder: Path, spoilt: str, **keys: Any) -> tuple[str, list[str]]:
    """The verdict, and what was said of starts."""
    script, said = folder / "train.py", list[str]()
    script.write_text(JOB.replace("SPOILT", spoilt))
    config = AuditConfig(AuditKeys(**keys), run_dir=str(folder / "audit"))
    _, verdict = run_audit(config, (sys.executable, str(script), "{dir}"), said.append)
    return verdict.status, [line for line in said if line.startswith(("ref2: ", "each attempt"))]


def test_an_audit_starts_its_attempts_warm(tmp_path: Path) -> None:
    status = told_by_audit(tmp_path, "pass", warm=False)[0]
    assert told_by_audit(tmp_path, "pass") == (status, ["ref2: undisturbed, started warm"])
    starts = json.loads((tmp_path / "audit" / "audit.json").read_text())["starts"]
    assert starts == {"warm": True, "why_cold": ""}


def test_a_job_that_warm_starts_change_is_started_cold(tmp_path: Path) -> None:
    """It looks at how deep its stack is."""
    warm = "loss += len(__import__('inspect').stack()) - 1"
    assert told_by_audit(tmp_path, warm)[1] == [
        "ref2: undisturbed, started warm",
        "ref2: step 1 differs in loss: once more, started cold",
        "ref2: undisturbed",
        "each attempt is started cold: started warm, step 1 differs in loss",
    ]


def test_a_job_that_fails_when_started_warm_is_started_cold(tmp_path: Path) -> None:
    status, said = told_by_audit(tmp_path, "assert len(__import__('inspect').stack()) == 1")
    assert said[-1].startswith("each attempt is started cold: started warm, it fails (ended with")
    assert status != "invalid"


def test_a_job_that_is_not_deterministic_is_started_cold(tmp_path: Path) -> None:
    status, said = told_by_audit(tmp_path, "loss += os.urandom(1)[0]")
    assert "two cold runs differ as well" in said[-1] and status == "unknown"


def test_warm_starts_need_a_second_undisturbed_run(tmp_path: Path) -> None:
    assert told_by_audit(tmp_path, "pass", references=1)[1] == []


def test_warm_starts_can_be_switched_off(tmp_path: Path) -> None:
    assert told_by_audit(tmp_path, "pass", warm=False)[1] == ["ref2: undisturbed"]
