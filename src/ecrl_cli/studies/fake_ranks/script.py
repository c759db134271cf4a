"""The script of a run's fake ranks: written by the study, read by each rank."""

from __future__ import annotations

from dataclasses import dataclass, field

from ecrl_cli.config.codec import decode, encode
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.storage.files import write_json

PART = "part.json"


@dataclass(frozen=True)
class FakeRankScript:
    """Seconds of each start phase, of a step's own work, of a save, and of the last save on a stop request. `deeds`: misbehaviour by
    "ATTEMPT/RANK/STEP" (ATTEMPT may be `any`): freeze, grasp, spin, skip, raise, exitN, SIGNAME. `heeds`: reaction to a stop request: yes, no, or
    alone (rank 0 does not coordinate). `side_thread`: a thread sends the rank's heartbeats."""

    start_s: float = 0.0
    step_s: float = 0.002
    save_s: float = 0.0
    last_save_s: float = 0.0
    deeds: dict[str, str] = field(default_factory=dict)
    heeds: str = "yes"
    side_thread: bool = False

    def deed(self, attempt: int, rank: int, step: int) -> str:
        return self.deeds.get(f"{attempt}/{rank}/{step}") or self.deeds.get(f"any/{rank}/{step}") or ""


def write_part(layout: RunLayout, part: FakeRankScript) -> None:
    write_json(layout.root / PART, encode(part))


def part_of(layout: RunLayout) -> FakeRankScript:
    return decode(FakeRankScript, read_json(layout.root / PART))
