"""Tests that need what a machine may lack: `@pytest.mark.needs("chromium")` skips them with the
reason that `ecrl doctor` gives.

The last line of a session says what was skipped for want of which package, and how to get it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

from ecrl_cli.linux import prerequisites

REMEDY = re.compile(
    r"(?P<name>\S+) is not installed \((?:apt-get install (?P<debian>[^)]+)|pip install"
    r" 'ecrl\[(?P<extra>\S+)\]')\)"
)
SKIPPED = "ecrl/skipped"  # in pytest's cache
# a test that changes what the machine has asks prerequisites itself
lacking = cache(prerequisites.lacking)


def require(*names: str) -> None:
    """Skip the running test where this machine lacks one of the prerequisites `names`."""
    if reason := lacking(*names):
        pytest.skip(reason)


def skipped_line(reasons: Iterable[str]) -> str:
    """What was skipped for want of which package, how to get those, and the other reasons; one of
    `reasons` per test. Empty without any.
    """
    wanted, others, debian, extras = Counter[str](), Counter[str](), list[str](), list[str]()
    for reason in reasons:
        absent = list(REMEDY.finditer(reason))
        if not absent:
            others[reason] += 1
            continue
        wanted[", ".join(match["name"] for match in absent)] += 1
        debian += [match["debian"] for match in absent if match["debian"]]
        extras += [match["extra"] for match in absent if match["extra"]]
    remedies = [f"apt-get install {' '.join(sorted(set(debian)))}"] if debian else []
    remedies += (
        [f".venv/bin/python -m pip install -e '.[{','.join(sorted(set(extras)))}]'"]
        if extras
        else []
    )
    parts = (
        [
            f"for want of {', '.join(f'{name} {count}' for name, count in wanted.most_common())}:"
            f" {' && '.join(remedies)}"
        ]
        if wanted
        else []
    )
    parts += (
        [f"otherwise {'; '.join(f'{reason} {count}' for reason, count in others.most_common())}"]
        if others
        else []
    )
    return f"{wanted.total() + others.total()} skipped, {'; '.join(parts)}" if parts else ""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--skipped-before",
        action="store_true",
        help="run only what was skipped when this checkout last ran it",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("skipped_before"):
        kept = getattr(config, "cache", None)
        before = set(kept.get(SKIPPED, [])) if kept else set()
        # a test, or its whole file
        chosen = [item for item in items if {item.nodeid, item.nodeid.partition("::")[0]} & before]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "needs(*names): skipped where the machine lacks one of these"
        " (ecrl_cli/linux/prerequisites.py)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        require(*marker.args)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Any:
    """After pytest's own last line, in the process that writes to the terminal."""
    result = yield
    terminal = session.config.pluginmanager.getplugin("terminalreporter")
    if terminal is not None and not hasattr(session.config, "workerinput"):
        skipped = terminal.stats.get("skipped", ())
        if line := skipped_line(
            report.longrepr[2].removeprefix("Skipped: ")
            for report in skipped
            if isinstance(report.longrepr, tuple)
        ):
            terminal.write_line(line)
        if kept := getattr(session.config, "cache", None):
            # A session that ran something else takes nothing away: `make check` runs a few tests
            # between the suite and this.
            ran = {
                report.nodeid
                for reports in terminal.stats.values()
                for report in reports
                if hasattr(report, "nodeid")
            }
            before = set(kept.get(SKIPPED, [])) - ran
            kept.set(SKIPPED, sorted(before | {report.nodeid for report in skipped}))
    return result
