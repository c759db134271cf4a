from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import tests.walks
from tests.rooms import rooms

REPOSITORY = Path(__file__).resolve().parents[2]
RUN = (
    "+suite=digits-cnn",
    "variant=ovl",
    "target_steps=24",
    "checkpoint.every=6",
    "failure.steps=[9,12]",
)
ROOMS_OF = {
    "failure": {"failures", "recovery"},
    "sample": {"data", "models"},
    "checkpoint": {"checkpoint", "storage"},
}
WALKS = ("configuration", "checkpoint", "sample", "event", "failure")


@dataclass
class Walk:
    """`files`: in the order in which they are first called. `climbs`: by pair of files, the
    functions of the first call.
    """

    files: list[str] = field(default_factory=list)
    climbs: dict[tuple[str, str], str] = field(default_factory=dict)


def floors(source: Path) -> dict[str, int]:
    """The number of each room from below, as the contract of `source` has them; before there was
    one, its architecture test.
    """
    try:
        return {room: number for number, room in enumerate(rooms(source))}
    except KeyError:
        pass
    statements = ast.parse((source / "tests" / "test_architecture.py").read_text()).body
    named = {
        target.id: node
        for node in statements
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    names = (part.value for part in ast.walk(named["FLOORS"]) if isinstance(part, ast.Constant))
    return {str(name): number for number, name in enumerate(names)}


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def room(file: str) -> str:
    return file.partition("/")[0].removesuffix(".py")


def traced(source: Path, folder: Path, *words: str) -> Path:
    """Runs one command of `source` in `folder`; returns the folder with a trace for each of its
    processes.
    """
    traces = folder / words[0]
    bundled = traces / "sklearn" / "datasets" / "data"  # where older versions look for the digits
    bundled.mkdir(parents=True)
    (traces / "sklearn" / "__init__.py").touch()
    shutil.copy(REPOSITORY / "src" / "ecrl_cli" / "data" / "digits.csv.gz", bundled)
    shutil.copy(Path(__file__).with_name("sitecustomize.py"), traces)
    environment = os.environ | {
        "PYTHONPATH": f"{traces}:{source / 'src'}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "ecrl_cli.cli.main", *words]
    done = subprocess.run(
        command,
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}")
    return traces


def calls(traces: Path) -> Iterator[tuple[bool, str, str, str, str]]:
    """Each call of a command: whether config.json was still to be written, then caller's file and
    function, callee's file and function.
    """
    processes = [file.read_text().splitlines() for file in traces.glob("*.txt")]
    for begun, *lines in sorted(processes, key=lambda lines: int(lines[0].split("\t")[1])):
        before = begun.startswith("started") and " ecrl_cli.cli.main train " in begun
        for line in lines:
            what, *words = line.split("\t")
            if what == "write" and "config.json" in words[0]:
                before = False
            if what == "call":
                caller, calling, callee, called = words
                yield before, caller, calling, callee, called


def walk_of(before: bool, touched: set[str]) -> str:
    return (
        "configuration"
        if before
        else next((walk for walk, own in ROOMS_OF.items() if own & touched), "event")
    )


def walked(source: Path, folder: Path) -> dict[str, Walk]:
    walks = {name: Walk() for name in WALKS}
    order, run = floors(source), str(folder / "run")
    for words in (("train", *RUN, f"run_dir={run}"), ("verify", run), ("report", run)):
        for before, caller, calling, callee, called in calls(traced(source, folder, *words)):
            touched = {room(caller), room(callee)}
            if not touched <= order.keys():
                continue
            walk = walks[walk_of(before, touched if words[0] == "train" else set())]
            if callee not in walk.files:
                walk.files.append(callee)
            if order[room(caller)] < order[room(callee)] and called != "<genexpr>":
                walk.climbs.setdefault((caller, callee), f"{calling} calls {called}")
    return walks


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.walks",
        description=tests.walks.__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "source",
        nargs="?",
        type=Path,
        default=REPOSITORY,
        help="the checkout to trace; this one by default",
    )
    parser.add_argument(
        "--files", action="store_true", help="also list the files of each walk in order"
    )
    arguments = parser.parse_args()
    source = arguments.source.resolve()
    with tempfile.TemporaryDirectory() as folder:
        walks = walked(source, Path(folder))
    order = floors(source)
    for name, walk in walks.items():
        turns = sum(order[room(one)] < order[room(other)] for one, other in pairwise(walk.files))
        say(f"{name}: {len(walk.files)} files, {len(walk.climbs)} climbs, {turns} turns")
        for file in walk.files if arguments.files else ():
            say(f"    {file}")
        for (caller, callee), functions in walk.climbs.items():
            say(f"  {caller} -> {callee}: {functions}")
    say(f"sum: {sum(len(walk.climbs) for walk in walks.values())} climbs")


if __name__ == "__main__":
    main()
