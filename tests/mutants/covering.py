"""A plugin of pytest (`-p tests.mutants.covering`): which test runs which line, and how long each
takes, as JSON in the folder ECRL_MUTANTS_MAP.

One file per process: `seconds` by test, and `lines`: by file below src/, by line, the tests that
run it, as places in `tests`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from coverage import Coverage

SOURCE = Path(__file__).resolve().parents[2] / "src"


class Covering:
    """Measures one process of a session."""

    def __init__(self) -> None:
        self.coverage = Coverage(
            data_file=None, source=[str(SOURCE / "ecrl_cli"), str(SOURCE / "ecrl")]
        )
        self.seconds: dict[str, float] = {}
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        answer = yield
        self.coverage.switch_context("")
        return answer

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_unconfigure(self) -> None:
        self.coverage.stop()
        data = self.coverage.get_data()
        tests = sorted(self.seconds)
        places = {test: place for place, test in enumerate(tests)}
        lines = {}
        for file in data.measured_files():
            by_line = data.contexts_by_lineno(file)
            lines[str(Path(file).relative_to(SOURCE))] = {
                str(line): sorted(places[test] for test in found if test in places)
                for line, found in by_line.items()
                if any(found)
            }
        folder = Path(os.environ["ECRL_MUTANTS_MAP"])
        (folder / f"{os.getpid()}.json").write_text(
            json.dumps({"tests": tests, "seconds": self.seconds, "lines": lines})
        )


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Covering(), "covering")
