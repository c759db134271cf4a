"""The table of the benches: every goal, however deep in a bench's document, with what it reached
and whether that means something.
"""

from __future__ import annotations

from pathlib import Path

from bench.__main__ import table
from bench.goals import at_least, at_most, figures
from bench.obstacles import OBSTACLES, obstacles_of


def test_goals_are_found_in_the_document_and_in_those_inside_it() -> None:
    case = {
        "goals": {"recorded / bare": at_most(1.05, 1.03)},
        "controls": {"A/A: bare": 1.01, "no control": 9.0},
        "conclusive": True,
    }
    document = {
        "goals": {"share": at_least(0.96, 0.95)},
        "note": "",
        "cases": {"10 ms": case, "50 ms": case | {"conclusive": False}},
    }
    found = list(figures("audit", document))
    assert [
        (each.name, each.reached, each.limit, each.control, each.verdict) for each in found
    ] == [
        ("share", 0.96, ">= 0.95", None, "met"),
        ("10 ms: recorded / bare", 1.05, "<= 1.03", 1.01, "missed"),
        ("50 ms: recorded / bare", 1.05, "<= 1.03", 1.01, "inconclusive"),
    ]


def test_the_control_farthest_from_one_stands_in_the_table() -> None:
    document = {
        "goals": {"stall": at_most(0.5, 0.5)},
        "controls": {"A/A: step": 1.01, "A/A: save": 0.96},
        "conclusive": True,
    }
    head, line = table(list(figures("stall", document)))
    assert head.split() == ["bench", "figure", "measured", "limit", "A/A"]
    assert line.split() == ["stall", "stall", "0.5", "<=", "0.5", "0.960", "met"]


def test_a_missed_goal_is_told_with_what_stands_in_its_way() -> None:
    document = {
        "goals": {
            "launch + import / import torch": at_most(1.6, 1.3),
            "import torch once more": at_most(1.0, 1.3),
            "to the first step": at_most(2.0, 1.3),
        }
    }
    missed, unknown = obstacles_of(list(figures("start", document)))
    assert missed == (
        f"start, launch + import / import torch: {OBSTACLES['start', 'import torch']}"
    )
    assert unknown == "start, to the first step: not known"


def test_the_page_on_costs_tells_what_stands_in_the_way() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs/costs.md").read_text().split())
    assert [words for words, sentence in OBSTACLES.items() if sentence not in page] == []
