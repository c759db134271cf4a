"""`python -m tests.mutants [ROOM...]`: puts faults into the code, one at a time, and says which of
them no test notices.

Each fault is judged by the tests that run its line, which a first pass over tests/unit and
tests/contract finds out (about ten minutes). That and what was judged are kept in outputs/mutants:
the same command goes on where it was stopped. Remove that folder once tests were added or changed.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.faults import Fault, faults_of

ROOT = Path(__file__).resolve().parents[2]
OUTPUTS = ROOT / "outputs" / "mutants"
ROOMS = ("verify", "history", "metrics", "checkpoint")
TESTED = ("tests/unit", "tests/contract")
# a library with threads of its own since the import: its tests hang in a fork
FORKED_BADLY = ("torch_checkpointing",)
BUDGET_S = 90.0  # of tests against one fault, by how long they took without it


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class LinesToTests:
    """Which tests run a line, how long each takes, and how many lines it runs in all."""

    seconds: dict[str, float]
    lines: dict[str, dict[int, frozenset[str]]]
    extent: Counter[str]

    def against(self, fault: Fault, sources: dict[str, str]) -> list[str]:
        """The tests of its lines up to the budget: in turn one that runs little else, and a quick
        one of another file.
        """
        found = set(self._of(fault.file, range(fault.line, fault.last + 1)))
        if fault.function == "<module>":
            name = _defined(sources[fault.file], fault.line)
            for file, source in sources.items() if name else ():
                found |= set(
                    self._of(
                        file,
                        [
                            number
                            for number, text in enumerate(source.splitlines(), 1)
                            if re.search(rf"\b{name}\b", text)
                        ],
                    )
                )
        usable = [test for test in found if not any(name in test for name in FORKED_BADLY)]
        by_file = defaultdict(list)
        for test in sorted(usable, key=lambda test: self.seconds[test]):
            by_file[test.partition("::")[0]].append(test)
        turns = [
            (turn, self.seconds[test], test)
            for tests in by_file.values()
            for turn, test in enumerate(tests)
        ]
        wide = [test for *_, test in sorted(turns)]
        narrow = sorted(usable, key=lambda test: self.extent[test])
        chosen: dict[str, None] = {}
        left = BUDGET_S
        for test in (test for pair in zip(narrow, wide, strict=True) for test in pair):
            if test not in chosen and self.seconds[test] <= left:
                chosen[test] = None
                left -= self.seconds[test]
        return list(chosen)

    def _of(self, file: str, lines: Iterable[int]) -> Iterator[str]:
        of_file = self.lines.get(file, {})
        for line in lines:
            yield from of_file.get(line, ())


def _defined(source: str, line: int) -> str:
    """What the module's statement at `line` gives a name."""
    for statement in ast.parse(source).body:
        if statement.lineno <= line <= (statement.end_lineno or 0) and isinstance(
            statement, ast.Assign | ast.AnnAssign
        ):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            return target.id if isinstance(target, ast.Name) else ""
    return ""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description="Put faults into the code and say which no test notices.",
    )
    parser.add_argument(
        "rooms",
        nargs="*",
        default=list(ROOMS),
        help=f"folders or files below src/ecrl_cli (default: {' '.join(ROOMS)})",
    )
    parser.add_argument(
        "--per-function", type=int, default=1, help="faults in each function (default: 1)"
    )
    parser.add_argument("--number", type=int, help="so many of them, by chance (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--faults",
        type=Path,
        help="judge these: a JSON list of {file, before, after}, with line where `before` is twice",
    )
    options = parser.parse_args(argv)
    sources = {
        str(path.relative_to(ROOT / "src")): path.read_text()
        for path in sorted((ROOT / "src").rglob("*.py"))
    }
    tests = _covering(options.workers)
    chosen = _given(options.faults, sources) if options.faults else _drawn(options, sources)
    book = OUTPUTS / "judged.jsonl"
    judged = _judged_before(book)
    todo = [fault for fault in chosen if _key(fault, sources) not in judged]
    say(f"{len(chosen)} faults, {len(chosen) - len(todo)} judged before")
    begun = time.monotonic()
    with book.open("a") as book_file:
        for count, (fault, outcome, test) in enumerate(
            _judge(todo, sources, tests, options.workers), 1
        ):
            line = {
                "key": _key(fault, sources),
                "outcome": outcome,
                "test": test,
                "fault": dataclasses.asdict(fault),
            }
            judged[line["key"]] = line
            book_file.write(json.dumps(line) + "\n")
            book_file.flush()
            left = (time.monotonic() - begun) / count * (len(todo) - count)
            say(
                f"[{count}/{len(todo)}, {left / 60:.0f} min left] {outcome}: {fault.name}"
                + (f"  ({test})" if test else "")
            )
    lines = [judged[_key(fault, sources)] for fault in chosen]
    say(
        ", ".join(
            f"{count} {outcome}"
            for outcome, count in Counter(line["outcome"] for line in lines).most_common()
        )
    )
    for line in lines:
        if line["outcome"] not in ("killed", "hung"):
            say(f"{line['outcome']}: {Fault(**line['fault']).name}  in {line['fault']['function']}")
    return int(any(line["outcome"] not in ("killed", "hung") for line in lines))


def _drawn(options: argparse.Namespace, sources: dict[str, str]) -> list[Fault]:
    draw = random.Random(options.seed)
    by_function: dict[tuple[str, str], list[Fault]] = defaultdict(list)
    for file, source in sources.items():
        if any(Path(file).is_relative_to(f"ecrl_cli/{room}") for room in options.rooms):
            for fault in faults_of(file, source.encode()):
                by_function[file, fault.function].append(fault)
    found = [
        fault
        for faults in by_function.values()
        for fault in draw.sample(faults, min(options.per_function, len(faults)))
    ]
    draw.shuffle(found)
    return found[: options.number]


def _given(path: Path, sources: dict[str, str]) -> list[Fault]:
    found = []
    for entry in json.loads(path.read_text()):
        source = sources[entry["file"]]
        places = [match.start() for match in re.finditer(re.escape(entry["before"]), source)]
        if "line" in entry:
            places = sorted(
                places, key=lambda place: abs(source.count("\n", 0, place) + 1 - entry["line"])
            )[:1]
        if len(places) != 1:
            raise SystemExit(
                f"{path}: {entry['file']}: {entry['before']!r} is there {len(places)} times: give"
                " its line"
            )
        begin = len(source[: places[0]].encode())
        line = source.count("\n", 0, places[0]) + 1
        last = line + entry["before"].rstrip("\n").count("\n")
        place = "<module>" if _defined(source, line) else "given"
        found.append(
            Fault(
                entry["file"],
                place,
                line,
                last,
                begin,
                begin + len(entry["before"].encode()),
                entry["before"],
                entry["after"],
            )
        )
    return found


def _key(fault: Fault, sources: dict[str, str]) -> str:
    return hashlib.sha256(
        "\0".join((sources[fault.file], str(fault.begin), fault.after)).encode()
    ).hexdigest()[:16]


def _judged_before(book: Path) -> dict[str, dict[str, object]]:
    return (
        {line["key"]: line for line in map(json.loads, book.read_text().splitlines())}
        if book.exists()
        else {}
    )


def _covering(workers: int) -> LinesToTests:
    """From `outputs/mutants/map`, or measured into it."""
    folder = OUTPUTS / "map"
    if not folder.exists():
        say("which test runs which line: about ten minutes")
        OUTPUTS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=OUTPUTS) as made:
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "tests.mutants.covering",
                "-n",
                str(workers),
                "--dist",
                "loadfile",
                *TESTED,
            ]
            subprocess.run(
                command, cwd=ROOT, env=os.environ | {"ECRL_MUTANTS_MAP": made}, check=False
            )
            shutil.copytree(made, folder)
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *TESTED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    # one that was renamed since would end pytest before any other is run
    there = set(listed.stdout.splitlines())
    seconds: dict[str, float] = {}
    lines: dict[str, dict[int, frozenset[str]]] = defaultdict(dict)
    for part in sorted(folder.glob("*.json")):
        content = json.loads(part.read_text())
        seconds |= content["seconds"]
        for file, by_line in content["lines"].items():
            for line, places in by_line.items():
                found = frozenset(content["tests"][place] for place in places) & there
                lines[file][int(line)] = lines[file].get(int(line), frozenset()) | found
    return LinesToTests(
        seconds,
        lines,
        Counter(test for by_line in lines.values() for found in by_line.values() for test in found),
    )


def _judge(
    faults: list[Fault], sources: dict[str, str], tests: LinesToTests, workers: int
) -> Iterator[tuple[Fault, str, str | None]]:
    with tempfile.TemporaryDirectory(prefix="ecrl-mutants-") as folder:
        free: SimpleQueue[Worker] = SimpleQueue()
        started = [Worker(Path(folder) / str(number)) for number in range(workers)]
        for worker in started:
            free.put(worker)

        def judge(fault: Fault) -> tuple[Fault, str, str | None]:
            worker = free.get()
            try:
                return (fault, *worker.judge(fault, sources, tests))
            finally:
                free.put(worker)

        try:
            with ThreadPoolExecutor(workers) as pool:
                for judged in as_completed([pool.submit(judge, fault) for fault in faults]):
                    yield judged.result()
        finally:
            for worker in started:
                worker.process.kill()


class Worker:
    """A copy of the tree and a process that runs tests in it."""

    def __init__(self, folder: Path) -> None:
        files = subprocess.run(
            ["git", "ls-files", "-z", "-co", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout.decode()
        for name in filter(None, files.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        environment = os.environ | {
            "PYTHONPATH": f"{folder / 'src'}:{folder}",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "tests.mutants.worker"]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.sound: dict[str, bool] = {}  # whether a test passes where no fault is

    def judge(
        self, fault: Fault, sources: dict[str, str], tests: LinesToTests
    ) -> tuple[str, str | None]:
        against, planted = (
            tests.against(fault, sources),
            fault.planted(sources[fault.file].encode()).decode(),
        )
        if not against:
            return "not run by a test", None
        while against:
            code, failed = self._ask(
                fault.file, planted, against, max(map(tests.seconds.__getitem__, against))
            )
            if code is None:
                return "hung", None
            if code == 0:
                return "survived", None
            if failed not in against:
                return "killed", failed  # in a fixture, or the whole process
            if (
                self._is_sound(failed, tests)
                and self._ask(fault.file, planted, [failed], tests.seconds[failed])[0] != 0
            ):
                return "killed", failed
            against.remove(failed)  # it fails without the fault too, or only after others
        return "survived", None

    def _is_sound(self, test: str, tests: LinesToTests) -> bool:
        if test not in self.sound:
            self.sound[test] = self._ask(None, None, [test], tests.seconds.get(test, 1.0))[0] == 0
        return self.sound[test]

    def _ask(
        self, file: str | None, source: str | None, tests: list[str], longest_s: float
    ) -> tuple[int | None, str | None]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(
            json.dumps(
                {"file": file, "source": source, "tests": tests, "silence_s": 20 + 4 * longest_s}
            )
            + "\n"
        )
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer["code"], answer["test"]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here")
        sys.exit(130)
