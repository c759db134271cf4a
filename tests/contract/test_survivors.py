"""Ranks that are killed inside backward, and those who finish the mini-batch without them: real
processes, a real SIGKILL.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

STEPS = 8
GRADIENTS = 22
CASES: dict[str, dict[str, Any]] = {
    "nobody": {"ranks": 4, "deaths": []},
    "early": {"ranks": 4, "deaths": [[3, 1, 1]]},
    "late": {"ranks": 4, "deaths": [[3, 1, 20]]},
    "the first rank": {"ranks": 3, "deaths": [[4, 0, 10]]},
    "two in one step": {"ranks": 4, "deaths": [[3, 1, 4], [3, 3, 14]]},
    "step after step": {"ranks": 4, "deaths": [[3, 1, 4], [4, 0, 8], [5, 3, 2]]},
    "one of two": {"ranks": 2, "deaths": [[2, 1, 12]]},
    "given up": {"ranks": 4, "deaths": [[3, 1, 12], [5, 0, 3]], "lossy": False},
}


@cache
def outcomes() -> dict[str, dict[str, Any]]:
    return dict(zip(CASES, rig(list(CASES.values())), strict=True))


def rig(cases: list[dict[str, Any]], timeout: float = 110) -> list[dict[str, Any]]:
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tests.contract.survivors_rig",
        json.dumps(cases),
    ]
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(
        command,
        cwd=root,
        env={**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def check(case: dict[str, Any], outcome: dict[str, Any]) -> None:
    dead = {str(rank) for _, rank, _ in case["deaths"]}
    assert {rank for rank, found in outcome.items() if found.get("signal") == 9} == dead
    survivors = {rank: found for rank, found in outcome.items() if rank not in dead}
    assert len({found["digest"] for found in survivors.values()}) == 1, "survivors differ"
    for found in survivors.values():
        assert found["ranks"] == len(survivors)
        assert found["gathered"] == list(range(len(survivors)))


@pytest.mark.parametrize("name", CASES)
def test_survivors_finish_bit_for_bit_alike(name: str) -> None:
    check(CASES[name], outcomes()[name])


@pytest.mark.parametrize("name", ["nobody", "given up"])
def test_nothing_is_redone_where_nobody_dies_or_the_step_is_given_up(name: str) -> None:
    assert all(found.get("redone", []) == [] for found in outcomes()[name].values())


@pytest.mark.parametrize("name", ["early", "late"])
def test_what_was_redone_names_the_step_and_the_dead(name: str) -> None:
    for rank, found in outcomes()[name].items():
        if rank != "1":
            assert [
                (each["global_step"], each["lost"], each["left"]) for each in found["redone"]
            ] == [(3, [1], [0, 2, 3])]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_random_deaths() -> None:
    draw = random.Random(7)
    cases = []
    for _ in range(60):
        ranks = draw.choice([2, 3, 4])
        victims = draw.sample(range(ranks), draw.randint(1, ranks - 1))
        cases.append(
            {
                "lossy": draw.random() < 0.7,
                "ranks": ranks,
                "deaths": [
                    [draw.randint(1, STEPS), rank, draw.randrange(GRADIENTS)] for rank in victims
                ],
            }
        )
    for case, outcome in zip(cases, rig(cases, 590), strict=True):
        check(case, outcome)
