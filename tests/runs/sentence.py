"""One wrong record, what the judge says of it, and the right ones beside it of which it does not
say so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ecrl_cli.history.load import RunRecords, load
from ecrl_cli.verify.verdict import INVALID, Finding
from ecrl_cli.verify.verification_input import Case
from tests.runs.builder import build_blk, build_ref
from tests.runs.changed import Records
from tests.runs.columns import in_columns, in_memory
from tests.runs.spoilt_states import build_states
from tests.runs.survived import build_lossy, build_rollback

Check = Callable[[Case], Finding]


@dataclass(frozen=True)
class Row:
    """`wrong`: what makes `check` say `words` of `run`, with that status (None: whatever else is
    wrong decides). `right`: changes of which it does not.
    """

    check: Check
    run: str
    wrong: Records
    words: str
    status: str | None = INVALID
    right: tuple[Records, ...] = ()


def told(finding: Finding, words: str) -> bool:
    return any(words in text for text in (finding.message, *finding.evidence))


def assert_said(finding: Finding, status: str, words: str = "") -> None:
    assert finding.status == status and told(finding, words), finding


@dataclass
class Judged:
    """`blk`: killed after steps 9 and 20, resumed from 6 and from 18. `states`: the same, with the
    state of each rank. `rollback`: rank 1 dies in step 9, rank 0 in step 15, spares take their
    places. `lossy`: of four ranks two die in step 9. `ref`: undisturbed.
    """

    runs: dict[str, RunRecords]
    _untouched: dict[tuple[Check, str], Finding] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> Judged:
        built = {"blk": build_blk(folder), "states": build_states(folder / "states", "blk")}
        built |= {
            "rollback": build_rollback(folder),
            "lossy": build_lossy(folder),
            "ref": build_ref(folder),
        }
        return cls({name: in_memory(load(layout)) for name, layout in built.items()})

    def hold(self, row: Row) -> None:
        found, key = self.runs[row.run], (row.check, row.run)
        if key not in self._untouched:
            self._untouched[key] = row.check(Case(found))
        assert not told(self._untouched[key], row.words)
        said = both_ways(row.check, row.wrong(found))
        assert told(said, row.words), said
        assert row.status in (None, said.status), said
        for right in row.right:
            said = both_ways(row.check, right(found))
            assert not told(said, row.words), said


def both_ways(check: Check, records: RunRecords) -> Finding:
    """What the check says of the records line by line, which is what it says of columns."""
    said = check(Case(records))
    assert said == check(Case(in_columns(records)))
    return said
