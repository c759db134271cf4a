"""What a kept result says of its making: code, machine, date, what else the machine did meanwhile;
and whether the code is still the same.

A result is stale where the code that makes and judges its records has changed since: a digest of
each room of `src/ecrl_cli`, taken when it was made, is held against the tree's. Docstrings do not
count. Nor does what only shows or explains a result (`report`, `cli`, `audit`, the recorder), nor
`studies` and `replication` for one that is no study; of a study only the files count that it
reaches (`reached`). Results kept before there were such digests are held against their
environment's digest of all source. For a result that was made without a GPU, what only a GPU runs
does not count: modules named `*_gpu.py`, and the bodies of `if ... .type == "cuda":`. Of the judge
it does not count where in a file, or when, something is imported: that changes how fast `ecrl
verify` starts, which no result measures, and no verdict. Nor does a change that `same_results`
declares.
"""

from __future__ import annotations

import ast
import hashlib
import os
import resource
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import psutil
from experiments.reached import reached
from experiments.registry import ROOT, Experiment
from experiments.same_results import as_before

from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.digests import source_sha256

PACKAGE = ROOT / "src" / "ecrl_cli"
SHOWN_ONLY = frozenset({"report", "cli", "audit"})
OF_STUDIES = frozenset({"studies", "replication"})
JUDGES = frozenset({"verify"})  # the rooms that judge records and make none
CONF = "conf"
# of the machine's processor time taken by other work: from there on a page says that its seconds
# compare nothing
BUSY = 0.05


@cache
def code_digests(
    studies: tuple[str, ...] = (), *, runs: bool = False, gpu: bool = False
) -> dict[str, str]:
    """By room of the package, and for `conf`, a digest over names and contents; with `studies`, of
    what these reach and their own configurations, and with `runs` of all that runs are made by as
    well. `gpu`: with the code that only a GPU runs.
    """
    files, configurations = set(PACKAGE.rglob("*.py")), set((ROOT / CONF).rglob("*.yaml"))
    if studies:
        used = frozenset[Path]().union(*map(reached, studies))
        files = {
            file
            for file in files
            if file in used or (runs and file.relative_to(PACKAGE).parts[0] not in OF_STUDIES)
        }
        own = {
            ROOT / CONF / "study.yaml",
            *(ROOT / CONF / "study" / f"{name}.yaml" for name in studies),
        }
        configurations = {
            path for path in configurations if path in own or (runs and path.parent.name != "study")
        }
    if not gpu:
        files = {file for file in files if not file.stem.endswith("_gpu")}
    rooms = {path.name: path for path in sorted(PACKAGE.iterdir()) if path.is_dir()}
    of_room = {
        name: {file for file in files if file.is_relative_to(folder)}
        for name, folder in rooms.items()
    }
    of_room[PACKAGE.name] = {file for file in files if file.parent == PACKAGE}
    found = {
        name: _digest(rooms.get(name, PACKAGE), inside, gpu=gpu)
        for name, inside in of_room.items()
        if inside
    }
    return found | {CONF: _digest(ROOT / CONF, configurations, gpu=gpu)}


def digests_of(experiment: Experiment, *, gpu: bool) -> dict[str, str]:
    """Of the code that `experiment` depends on: by its studies, its runs, or both."""
    if not experiment.studies:
        return code_digests(gpu=gpu)
    return code_digests(tuple(experiment.studies), runs=not experiment.is_study, gpu=gpu)


def _digest(folder: Path, files: Iterable[Path], *, gpu: bool) -> str:
    digest = hashlib.sha256()
    for path in sorted(files):
        meant = as_before(
            path.relative_to(ROOT).as_posix(), counted(path, path.read_bytes(), gpu=gpu), gpu=gpu
        )
        digest.update(f"{path.relative_to(folder)}\0{meant}\n".encode())
    return digest.hexdigest()


def counted(path: Path, content: bytes, *, gpu: bool) -> str:
    """The digest of what counts of `content`, which `path` has or had, for a result made with a GPU
    or without.
    """
    if path.suffix != ".py":
        return hashlib.sha256(content).hexdigest()
    return _meant(
        content, gpu=gpu, judge=any(path.is_relative_to(PACKAGE / room) for room in JUDGES)
    )


@cache  # many experiments depend on the same files
def _meant(source: bytes, *, gpu: bool, judge: bool) -> str:
    return hashlib.sha256(bare(source, gpu=gpu, judge=judge)).hexdigest()


def bare(source: bytes, *, gpu: bool = False, judge: bool = False) -> bytes:
    """`source` without its docstrings and empty lines, none of which changes a result; unless
    `gpu`, also without what only a GPU runs; of a `judge` with all imports at its top, sorted. (Of
    comments it would take several seconds to tell.)
    """
    lines = source.splitlines()
    imports: list[bytes] = []
    due: list[ast.AST] = [ast.parse(source)]
    while due:
        node = due.pop()
        inner = [
            each
            for name in ("body", "orelse", "finalbody", "handlers", "cases")
            for each in getattr(node, name, ())
        ]
        first = (
            inner[0]
            if inner
            and isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            else None
        )
        if (
            isinstance(first, ast.Expr)
            and isinstance(first.value, ast.Constant)
            and isinstance(first.value.value, str)
        ):
            last = first.end_lineno or first.lineno
            # alone on its lines
            if (
                not lines[first.lineno - 1][: first.col_offset].strip()
                and not lines[last - 1][first.end_col_offset :].strip()
            ):
                lines[first.lineno - 1 : last] = [b""] * (last - first.lineno + 1)
        if not gpu and isinstance(node, ast.If) and _asks_for_gpu(node):
            last = node.end_lineno or node.lineno
            lines[node.lineno - 1 : last] = [b""] * (last - node.lineno + 1)
        if judge and isinstance(node, ast.Import | ast.ImportFrom):
            imports.append(ast.unparse(node).encode())
        if judge and (isinstance(node, ast.Import | ast.ImportFrom) or _only_imports(node)):
            last = node.end_lineno or node.lineno
            lines[node.lineno - 1 : last] = [b""] * (last - node.lineno + 1)
        due += inner
    return b"\n".join([*sorted(imports), *(line for line in lines if line.strip())])


def _asks_for_gpu(node: ast.If) -> bool:
    """Whether it is `if a.b.type == "cuda":` and no more: a test that calls something runs on the
    CPU too.
    """
    return (
        isinstance(node.test, ast.Compare)
        and not _calls(node.test)
        and not node.orelse
        and ast.unparse(node.test).endswith(".type == 'cuda'")
    )


def _only_imports(node: ast.AST) -> bool:
    """Whether it is an `if` that calls nothing, around imports alone."""
    if not isinstance(node, ast.If) or node.orelse or _calls(node.test):
        return False
    return all(isinstance(each, ast.Import | ast.ImportFrom) for each in node.body)


def _calls(test: ast.expr) -> bool:
    return any(isinstance(each, ast.Call | ast.NamedExpr) for each in ast.walk(test))


def changed(
    stamp: Mapping[str, Any], experiment: Experiment, now: Mapping[str, str] | None = None
) -> list[str]:
    """The rooms that count for `experiment` and have changed since `stamp`; empty for a fresh
    result.
    """
    if now is None:
        now = digests_of(experiment, gpu=bool(stamp.get("machine", {}).get("gpus")))
    studies = frozenset[str]() if experiment.studies else OF_STUDIES
    # one study is about audits
    passed_over = SHOWN_ONLY - {"audit"} if experiment.is_study else SHOWN_ONLY | studies
    then = stamp.get("code")
    if not then:
        return (
            [] if stamp.get("source_sha256") == source_sha256() else ["made by an earlier version"]
        )
    return sorted(name for name in {*then, *now} - passed_over if then.get(name) != now.get(name))


@dataclass(frozen=True)
class Session:
    """One call that ran commands. `others`: the share of the machine's processor time that went to
    other work; `load`: at its begin and its end.
    """

    began: str
    seconds: float
    others: float
    load: tuple[float, float]


@contextmanager
def session(kept: list[Session]) -> Iterator[None]:
    """Appends what the machine did in the block to `kept`, also where the block ends in an
    exception.
    """
    began, clock, load = datetime.now(UTC), monotonic(), os.getloadavg()[0]
    busy, own = _busy_seconds(), _own_seconds()
    try:
        yield
    finally:
        seconds = monotonic() - clock
        room = max(seconds * (os.cpu_count() or 1), 1e-9)
        others = max(0.0, (_busy_seconds() - busy) - (_own_seconds() - own)) / room
        kept.append(
            Session(
                began.isoformat(timespec="seconds"),
                round(seconds, 1),
                round(min(others, 1.0), 3),
                (round(load, 2), round(os.getloadavg()[0], 2)),
            )
        )


def _busy_seconds() -> float:
    """Seconds that all processors were at work, or taken by other machines of the host."""
    times = psutil.cpu_times()
    return (
        sum(times)
        - times.idle
        - times.iowait
        - getattr(times, "guest", 0.0)
        - getattr(times, "guest_nice", 0.0)
    )


def _own_seconds() -> float:
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def stamp(
    environment: Mapping[str, Any], sessions: list[Session], experiment: Experiment
) -> dict[str, Any]:
    """The content of stamp.json. `environment`: that of the runs; the rooms' digests are known only
    where they were made by the tree as it is.
    """
    cpu = environment["cpu"]
    found: dict[str, Any] = {
        "schema_version": 1,
        "ecrl": environment["ecrl"],
        "commit": _commit(environment),
        "source_sha256": environment["source_sha256"],
        "machine": {
            "processor": cpu["model"],
            "cores": cpu["logical"],
            "memory_bytes": environment["memory_bytes"],
            "gpus": len(environment["gpus"]),
        },
        "sessions": [asdict(each) for each in sessions],
    }
    return found | (
        {"code": digests_of(experiment, gpu=bool(environment["gpus"]))}
        if environment["source_sha256"] == source_sha256()
        else {}
    )


def judged(before: Mapping[str, Any], experiment: Experiment, *, gpu: bool) -> dict[str, Any]:
    """The content of stamp.json for the runs of `before`, judged by the tree as it is."""
    head = _git("rev-parse", "HEAD").stdout.strip()
    return {
        **before,
        "code": digests_of(experiment, gpu=gpu),
        "judged": f"{head}-dirty" if _uncommitted() else head,
    }


def _commit(environment: Mapping[str, Any]) -> str:
    """The commit of the code that made the runs; `-dirty` after it only where `src` or `conf` has
    changes that no commit has. Results that were kept just before are such changes to the tree, and
    none to the code.
    """
    revision = str(environment.get("git_revision") or "")
    if (
        not revision
        or not revision.endswith("-dirty")
        or environment["source_sha256"] != source_sha256()
    ):
        return revision
    return revision if _uncommitted() else revision.removesuffix("-dirty")


def _uncommitted() -> bool:
    """Whether `src` or `conf` has changes that no commit has; True too where git cannot say."""
    done = _git("status", "--porcelain", "--", "src", CONF)
    return done.returncode != 0 or bool(done.stdout.strip())


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False
    )
