"""What every test may use: the real command in its own process, and a look for processes it left
behind. What no test depends on: how the signals of the process that started pytest were disposed
of, and who interrupts it.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

from tests import reaper, slow

Ecrl = Callable[..., subprocess.CompletedProcess[str]]

# how fast an example is depends on what else runs
settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")


# begins the name of a variable that each session puts into its environment
MARK = "ECRL_TEST_SESSION_"
pytest_plugins = ("tests.time_limit", "tests.needs")


def pytest_configure(config: pytest.Config) -> None:
    """Signals as on a terminal, bytecode as Python keeps it by default, and an end for all that
    this session starts.
    """
    define_signals()
    # Hundreds of processes import the package, which is long to compile; images that are to stay
    # small turn this off.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # two workers of two threads each would wait for one another; what trains in earnest sets its
    # own
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if not hasattr(config, "workerinput"):
        watch_over_session()


def define_signals() -> None:
    """What a test and its children begin with, also where pytest was started with signals ignored
    or blocked (`nohup`, `&` in a script, CI runners).

    Where SIGHUP was ignored, pytest itself goes on surviving it: it gets a handler that does
    nothing, which no program that it starts inherits.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(
        signal.SIGHUP,
        (
            signal.SIG_DFL
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
            else lambda number, frame: None
        ),
    )


def watch_over_session() -> None:
    """However this session ends (Ctrl-C, SIGKILL, a crash), nothing that it started lives on, and
    no temporary file of it or of that: torchrun, Streaming and others leave theirs.
    """
    mark = f"{MARK}{os.getpid()}_{time.time_ns()}"
    running = tempfile.mkdtemp(prefix="ecrl-tests-")
    command = [sys.executable, "-I", "-S", reaper.__file__, str(os.getpid()), mark, running]
    watching = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={},
        cwd="/",
        start_new_session=True,
    )
    assert watching.stdout is not None and watching.stdout.readline() == b"ready\n"
    watching.stdout.close()
    watching.returncode = 0  # it outlives this process on purpose
    temporary = Path(running) / "tmp"
    temporary.mkdir()
    os.environ |= {mark: "1", reaper.RUNNING: running, "TMPDIR": str(temporary)}


def pytest_keyboard_interrupt() -> None:
    """pytest-xdist would wait for each worker's test to be interrupted; what they leave is ended
    with the session.
    """
    for mark in [name for name in os.environ if name.startswith(MARK)]:
        reaper.kill(
            [
                pid
                for pid in reaper.marked(mark)
                if reaper.is_worker(pid) and psutil.Process(pid).ppid() == os.getpid()
            ]
        )


# What takes longest, longest first: two workers that take file after file then end together. Any
# other order costs time and nothing else.
LONGEST = (
    "unit/test_cli_grid.py",
    "contract/test_every_field.py",
    "e2e/test_planted_bugs.py",
    "e2e/test_exact_recovery.py",
    "e2e/test_added_variants.py",
    "e2e/test_audit.py",
    "e2e/test_pytest_plugin.py",
    "e2e/test_interruption.py",
    "contract/test_launchers.py",
    "e2e/test_report_page.py",
    "contract/test_experiments.py",
    "contract/test_verify_spoilt_runs.py",
    "unit/test_cli_sweep.py",
    "contract/test_verify_hostile.py",
    "contract/test_every_damage.py",
    "contract/test_live_ranks.py",
    "e2e/test_recoveries.py",
    "e2e/test_planted_store_bugs.py",
    "unit/test_study_standstill.py",
    "e2e/test_failures.py",
    "contract/test_strategies.py",
    "unit/test_report_paired.py",
    "unit/test_study_frameworks.py",
    "unit/test_report_summary.py",
    "unit/test_report_page.py",
    "e2e/test_deferred_capture.py",
    "e2e/test_bad_input.py",
    "unit/test_supervision_hung.py",
    "contract/test_checkpointers.py",
    "contract/test_store_contract.py",
    "contract/test_every_value.py",
    "e2e/test_checkpointers.py",
    "unit/test_runs_side_by_side.py",
    "e2e/test_replicas.py",
    "contract/test_live.py",
    "unit/test_session_guards.py",
    "unit/test_report_csv_files.py",
    "unit/test_studies_frame.py",
    "unit/test_study_failures.py",
    "contract/test_docs_commands.py",
    "unit/test_report_history.py",
    "unit/test_checkpoint_deferred.py",
    "e2e/test_readable_runs.py",
    "unit/test_cluster_local.py",
    "unit/test_study_mini_batch.py",
    "e2e/test_full_disk.py",
    "e2e/test_plugin_file.py",
    "e2e/test_environment_record.py",
    "e2e/test_resizing.py",
    "e2e/test_added_failure_kind.py",
    "e2e/test_continued.py",
    "test_architecture.py",
    "unit/test_study_recovery_overhead.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="run the files, and the tests of each, in a random order",
    )


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The files of LONGEST first, the others after them as they come; or all in random order."""
    slow.mark(config, items)
    order = {f"{Path(__file__).parent}/{name}": place for place, name in enumerate(LONGEST)}
    if (seed := config.getoption("shuffle")) is not None:
        draw = random.Random(seed)
        order = {path: draw.random() for path in sorted({str(item.path) for item in items})}
        draw.shuffle(items)
    items.sort(key=lambda item: order.get(str(item.path), len(order)))


def run_ecrl(
    folder: Path,
    *arguments: str,
    check: int | None = 0,
    environment: dict[str, str] | None = None,
    timeout: float = 550,
) -> subprocess.CompletedProcess[str]:
    """Run `ecrl ARGS...` in `folder` as a user would; gives the finished process with its text.
    `check`: the exit code that is due.
    """
    settings = {**os.environ, **(environment or {})}
    result = subprocess.run(
        command(*arguments),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env=settings,
    )
    if check is not None:
        assert result.returncode == check, (
            f"exit {result.returncode}\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
        )
    return result


@pytest.fixture
def ecrl(tmp_path: Path) -> Ecrl:
    """`run_ecrl` in `tmp_path`."""
    return partial(run_ecrl, tmp_path)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ecrl_cli.cli.main", *arguments]


def comes_true(condition: Callable[[], bool], seconds: float = 240) -> bool:
    """Whether it does (a bounded wait for an event, not a pause): asked so seldom that what is
    waited for has the processor.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True


def processes_of(folder: Path, besides: Collection[int] = ()) -> list[str]:
    """Every living process whose command line or working environment names `folder`, this one and
    `besides` excepted.
    """
    found = []
    for pid in {*psutil.pids()} - {os.getpid(), *besides}:
        try:
            process = psutil.Process(pid)
            words = [*process.cmdline(), *process.environ().values()]
            if process.status() != psutil.STATUS_ZOMBIE and any(
                str(folder) in word for word in words
            ):
                found.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="session", autouse=True)
def the_shared_zygote_ends() -> Iterator[None]:
    """With the tests of this process, if there is one."""
    yield
    if (in_process := sys.modules.get("tests.in_process")) is not None:
        in_process.SHARED.end()


@pytest.fixture(autouse=True)
def nothing_left_behind(tmp_path: Path) -> Iterator[None]:
    """After each test no process works in its folder, and no shared-memory object has come to
    stay.
    """
    # looking at these too would cost seconds in all
    before, older = {path.name for path in Path("/dev/shm").iterdir()}, psutil.pids()
    yield
    left = processes_of(tmp_path, older)
    for line in left:
        os.kill(int(line.split()[0]), signal.SIGKILL)
    assert not left, f"processes left behind: {left}"
    leaked = [
        name
        for name in {path.name for path in Path("/dev/shm").iterdir()} - before
        if name.startswith("ecrl")
    ]
    assert not leaked, f"shared memory left behind: {leaked}"
