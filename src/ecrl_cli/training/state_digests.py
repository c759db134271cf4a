"""How often a rank logs digests of its state: with `state_digests=auto` as often as costs at most
half a percent of the steps, measured once in a run, and at each checkpoint.

All ranks must log them after the same steps, in every attempt, and verify must know which were due.
So rank 0 measures its first steps, records the interval in the run directory, and only then
broadcasts it. In each later attempt rank 0 reads it and broadcasts it before the first step: other
machines may read a stale shared folder, and ranks that disagree would deadlock.
"""

from __future__ import annotations

import torch

from ecrl_cli.checkpoint.capture.train_state import TrainState
from ecrl_cli.config.codec import decode, encode
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import RecordError
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.state_digests import (
    EVERY_STEP,
    MEASURED_STEPS,
    DigestInterval,
    digests_due,
    worked_out,
)
from ecrl_cli.storage.files import write_json


class DigestSchedule:
    """One rank's schedule, in an attempt that starts after step `began`. Construction is
    collective: after the rendezvous, before the first step.
    """

    def __init__(
        self, config: RunConfig, layout: RunLayout, began: int, train_state: TrainState
    ) -> None:
        self._config, self._layout, self._began = config, layout, began
        self._set(
            _broadcast_interval(train_state, _recorded(layout) if train_state.rank == 0 else None)
            if config.state_digests == "auto"
            else EVERY_STEP
        )
        self._step_s: list[float] = []
        self._digest_s: list[float] = []

    def _set(self, interval: DigestInterval | None) -> None:
        self._interval = interval
        self.due = digests_due(self._config, interval, self._began)

    def measured(self, step_s: float, digest_s: float) -> None:
        """Record the seconds of the last step without its digests, and those of the digests."""
        if self._interval is None:
            self._step_s.append(step_s)
            self._digest_s.append(digest_s)

    def agree(self, train_state: TrainState) -> None:
        """After the last measured step: record the interval; collective then. Otherwise no
        effect.
        """
        if self._interval is not None or len(self._step_s) < MEASURED_STEPS:
            return
        own = worked_out(min(self._digest_s[1:]), min(self._step_s[1:]))
        if train_state.rank == 0:
            write_json(self._layout.state_digests, encode(own))
        self._set(_broadcast_interval(train_state, own))


def _broadcast_interval(
    train_state: TrainState, own: DigestInterval | None
) -> DigestInterval | None:
    """Rank 0's `own` on every rank, without the measured times. Collective."""
    if train_state.world_size == 1:
        return own
    row = torch.tensor([own.every, int(own.at_checkpoints)] if own else [0, 0])
    every, at_checkpoints = train_state.peers.all_gather(row)[0].tolist()
    return DigestInterval(every, bool(at_checkpoints), 0.0, 0.0) if every else None


def _recorded(layout: RunLayout) -> DigestInterval | None:
    """The interval that an earlier attempt recorded, None if there is none. RecordError if the file
    cannot be decoded.
    """
    path = layout.state_digests
    try:
        return decode(DigestInterval, read_json(path)) if path.exists() else None
    except (KeyError, TypeError) as error:
        raise RecordError(
            path.name, f"not an interval of digests ({error})", "restore the file"
        ) from error
