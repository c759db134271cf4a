"""How often a rank logs digests of its state: with `state_digests=auto` as often as costs at most 1% of a step, measured once in a run.

All ranks must log them behind the same steps, in every attempt, and the judge must know which were due. So rank 0 measures its first steps, records
the interval in the run directory, and only then tells the others. In each later attempt rank 0 reads it and tells the others before the first step:
what another machine reads of a shared folder may be a moment old, and ranks that disagree would wait for each other.
"""

from __future__ import annotations

import torch

from ecrl_cli.checkpoint.capture.train_state import TrainState
from ecrl_cli.config.codec import decode, encode
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import RecordError
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.state_digests import EVERY_STEP, MEASURED_STEPS, DigestInterval, digest_due, worked_out
from ecrl_cli.storage.files import write_json


class DigestSchedule:
    """One rank's, in an attempt that begins behind step `began`. Made, collectively, where all ranks have met and none has begun a step."""

    def __init__(self, config: RunConfig, layout: RunLayout, began: int, pack: TrainState) -> None:
        self._config, self._layout, self._began = config, layout, began
        self._interval = _told(pack, _recorded(layout) if pack.rank == 0 else None) if config.state_digests == "auto" else EVERY_STEP
        self._step_s: list[float] = []
        self._digest_s: list[float] = []

    def due(self, step: int) -> bool:
        return digest_due(self._config, self._interval, step, self._began)

    def measured(self, step_s: float, digest_s: float) -> None:
        """What the last step took without its digests, and what these took."""
        if self._interval is None:
            self._step_s.append(step_s)
            self._digest_s.append(digest_s)

    def agree(self, pack: TrainState) -> None:
        """Behind the last of the steps that are measured: record the interval. Collective then, and of no effect otherwise."""
        if self._interval is not None or len(self._step_s) < MEASURED_STEPS:
            return
        own = worked_out(min(self._digest_s[1:]), min(self._step_s[1:]), self._config.checkpoint.every)
        if pack.rank == 0:
            write_json(self._layout.state_digests, encode(own))
        self._interval = _told(pack, own)


def _told(pack: TrainState, own: DigestInterval | None) -> DigestInterval | None:
    """What rank 0 has for `own`, on every rank; of the times nobody else needs to know. Collective."""
    if pack.world_size == 1:
        return own
    row = torch.tensor([own.every, int(own.at_checkpoints)] if own else [0, 0])
    every, at_checkpoints = pack.peers.all_gather(row)[0].tolist()
    return DigestInterval(every, bool(at_checkpoints), 0.0, 0.0) if every else None


def _recorded(layout: RunLayout) -> DigestInterval | None:
    """What an earlier attempt has recorded."""
    path = layout.state_digests
    try:
        return decode(DigestInterval, read_json(path)) if path.exists() else None
    except (KeyError, TypeError) as error:
        raise RecordError(path.name, f"not an interval of digests ({error})", "restore the file") from error
