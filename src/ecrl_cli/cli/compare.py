"""`ecrl compare`: how far the states of two runs are apart at the steps that both have a checkpoint
of.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.format.names import STEP_NAME
from ecrl_cli.cli.console import Parser, out, say
from ecrl_cli.errors import ConfigError, RunDirectoryError, StorageError, shown, visible
from ecrl_cli.metrics.distance import Distance, by_step, distances, document
from ecrl_cli.records.layout import RunLayout

SCHEMA_VERSION = 1


def compare(argv: Sequence[str]) -> int:
    """0 where both hold the same bits at every step, 1 where they differ, 3 where a step cannot be
    compared.
    """
    flags = parser().parse_args(list(argv))
    ours, theirs = checkpoints(flags.one), checkpoints(flags.other)
    wanted = steps_of(flags.steps)
    if flags.one in ours.values() and flags.other in theirs.values() and not wanted:
        # two checkpoints, of whatever steps
        pairs: list[tuple[int, Path | None, Path | None]] = [(min(ours), flags.one, flags.other)]
    else:
        pairs = [
            (step, ours.get(step), theirs.get(step))
            for step in wanted or sorted(ours.keys() & theirs.keys())
        ]
    if not pairs:
        raise ConfigError(
            "ecrl compare",
            f"no step has a checkpoint in both: {_listed(ours)} and {_listed(theirs)}",
            "keep more by checkpoint.keep",
        )
    answers = [
        (step, *_compared(step, one, other, (flags.one, flags.other))) for step, one, other in pairs
    ]
    if flags.json:
        steps = [
            {"global_step": step, "error": error, "components": document(found)}
            for step, found, error in answers
        ]
        answer: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "one": str(flags.one),
            "other": str(flags.other),
            "steps": steps,
        }
        sys.stdout.write(json.dumps(answer, indent=2, allow_nan=False) + "\n")
    else:
        out(
            "\n".join(
                [
                    f"{visible(flags.one)} against {visible(flags.other)}",
                    *(line for answer in answers for line in _lines(*answer)),
                ]
            )
        )
    for _, _, error in answers:
        if error:
            say(f"ecrl: {visible(error)}")
    if any(error for _, _, error in answers):
        return 3
    return 0 if all(each.equal for _, found, _ in answers for each in found.values()) else 1


def parser() -> Parser:
    """The argument parser."""
    made = Parser(prog="ecrl compare", add_help=False, allow_abbrev=False)
    made.add_argument("one", type=Path)
    made.add_argument("other", type=Path)
    made.add_argument("--steps", default="")
    made.add_argument("--json", action="store_true")
    return made


def steps_of(text: str) -> list[int]:
    """The steps that were named; ConfigError for what is none."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if wrong := [
        word for word in words if not (word.isascii() and word.isdigit()) or len(word) > 8
    ]:
        raise ConfigError("--steps", f"{shown(wrong[0])} is no step", "name steps: --steps 40,80")
    return list(dict.fromkeys(map(int, words)))


def checkpoints(place: Path) -> dict[int, Path]:
    """By step, the checkpoints of a run, of a folder of them, or the one that `place` is;
    RunDirectoryError if there is none.
    """
    if match := STEP_NAME.match(place.name):
        if place.exists():
            return {int(match[1]): place}
        raise RunDirectoryError(shown(str(place)), "does not exist", "name a run or a checkpoint")
    if not place.is_dir():
        raise RunDirectoryError(
            shown(str(place)),
            "is a file" if place.exists() else "does not exist",
            "name a run, or a checkpoint step_NNNNNNNN",
        )
    layout = RunLayout(place)
    folder = layout.checkpoints if layout.checkpoints.is_dir() else place
    found = by_step(folder)
    if not found:
        raise RunDirectoryError(
            shown(str(place)), "has no checkpoint", "name a run that was trained with checkpoints"
        )
    return found


def _compared(
    step: int, one: Path | None, other: Path | None, places: tuple[Path, Path]
) -> tuple[dict[str, Distance], str]:
    """The distances, or why there are none."""
    if one is None or other is None:
        return {}, f"{places[one is not None]} has no checkpoint of step {step}"
    try:
        return distances(one, other), ""
    except StorageError as error:
        return {}, f"step {step}: {error.line()}"


def _lines(step: int, found: dict[str, Distance], error: str) -> list[str]:
    if error:
        return [f"  step {step}: not compared"]
    return [f"  step {step}  {component:<10}  {_words(each)}" for component, each in found.items()]


def _words(found: Distance) -> str:
    if found.equal:
        return f"equal, bit for bit ({found.tensors} tensors)"
    differ = f"{found.differing} of {found.tensors} tensors differ"
    if found.l2 is None:
        return differ
    share = "" if found.relative_l2 is None else f" ({found.relative_l2:.3g} of its length)"
    ulp = (
        ""
        if found.max_ulp is None
        else f", at most {found.max_ulp:,} ulp ({visible(found.furthest)[:80]})"
    )
    strange = f", {found.not_finite:,} elements not finite" if found.not_finite else ""
    return f"L2 {found.l2:.6g}{share}{ulp}{strange}, {differ}"


def _listed(found: dict[int, Path]) -> str:
    steps = sorted(found)
    return f"steps {', '.join(map(str, steps[:8]))}{', ...' if len(steps) > 8 else ''}"
