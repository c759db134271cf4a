"""The goodput table for a terminal, and numbers as a reader sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ecrl_cli.report.build import report
from ecrl_cli.report.formats import change, count, distance, duration, listed, plural, rate, size
from ecrl_cli.report.tables.renderers import escaped
from ecrl_cli.report.tables.runs import BRIEF
from tests.unit.report_runs import Simulation, arms, make_sweep


def test_one_line_per_run_with_its_numbers_and_the_page_last(tmp_path: Path) -> None:
    result = report([make_sweep(tmp_path / "sweep", arms())], every_run=True)
    lines = result.text.splitlines()
    head = next(
        number for number, line in enumerate(lines) if line.split() == " ".join(BRIEF).split()
    )
    for line, plan in zip(lines[head + 1 : head + 5], arms(), strict=True):
        said = Simulation(plan).metrics()
        cells = line.split()
        assert cells[:4] == [plan.variant, "1337", "valid", "60"]
        assert cells[4:7] == [
            str(said["restarts"]),
            str(said["replayed_steps"]),
            rate(said["goodput"]),
        ]
        assert cells[-3:] == [
            f"{said['checkpoints'][key]:.0f}" for key in ("committed", "failed", "lost")
        ]
    assert lines[-1] == f"report: {result.page}" and result.page.is_file() and result.exit_code == 0


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (duration(0.0065), "6.5 ms"),
        (duration(1.234), "1.23 s"),
        (duration(0.9996), "1 s"),
        (duration(0.0009998), "1 ms"),
        (duration(200), "3 min 20 s"),
        (duration(7500), "2 h 05 min"),
        (duration(-0.004), "-4 ms"),
        (duration(-4e-14), "0 s"),
        (duration(None), "-"),
        (change(-0.259), "-25.9%"),
        (change(0.0622), "+6.2%"),
        (distance(-0.255, -0.254), "25.4% to 25.5% below"),
        (distance(0.01, 0.01), "1.0% above"),
        (distance(-0.01, 0.02), "-1.0% to +2.0% against"),
        (rate(16.3), "16.30"),
        (count(1234), "1,234"),
        (count(2.5), "2.5"),
        (size(89_400_000), "89.4 MB"),
        (plural(1, "run"), "1 run"),
        (listed(["a", "b", "c"]), "a, b and c"),
        (escaped("a|b<c>_d"), "a\\|b&lt;c&gt;\\_d"),
    ],
)
def test_numbers_for_readers(shown: str, expected: str) -> None:
    assert shown == expected
