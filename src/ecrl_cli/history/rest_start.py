"""Where the rest of a run, after a recovery that claims no trajectory, may start again: from the
run's own checkpoints after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ecrl_cli.config.identity import reference_id
from ecrl_cli.config.recoveries import recovery_of
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.history.lineage import Segment, lineage
from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.events import CheckpointLine
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.survivor_records import SURVIVORS


@dataclass(frozen=True)
class RestStart:
    """A checkpoint of a run from which an undisturbed run must do what the run did. `line`: its
    commit. `world_size`: of every step after it. `death_step`: the step of the last death before
    it, `first_death_step`: of the first one, of those after which the recovery claims no
    trajectory.
    """

    line: CheckpointLine
    world_size: int
    death_step: int
    first_death_step: int

    @property
    def step(self) -> int:
        return self.line.global_step

    @property
    def name(self) -> str:
        """The name of the file or folder among the run's checkpoints."""
        return Path(self.line.path or "").name

    def begins_from(self, run_id: str) -> tuple[str, str, str]:
        """`RunConfig.begins_from` of the undisturbed run; `run_id`: of the run itself."""
        layout = RunLayout(Path())
        return layout.relative(layout.initial / self.name), self.line.commit_sha256 or "", run_id


def unclaimed_segments(records: RunRecords) -> tuple[Segment, ...]:
    """The segments of the committed sequence that survivors began under a recovery that claims no
    trajectory.
    """
    survived = tuple(s for s in lineage(records).segments if s.memory == SURVIVORS)
    return () if not survived or recovery_of(records.stored.config).exact else survived


def rest_starts(records: RunRecords) -> tuple[RestStart, ...]:
    """Where the rest of the run may start, earliest first: at the checkpoints that the committed
    sequence has after the last such death, with one world size from there to the end. Retention may
    have removed them since.
    """
    unclaimed, config = unclaimed_segments(records), records.stored.config
    if not unclaimed or config.continued_at or strategy_of(config).checkpointer:
        return ()
    path, death, first_death = lineage(records), unclaimed[-1].after, unclaimed[0].after
    starts = []
    for line in _committed(records):
        step, segment = line.global_step, path.of(line.global_step)
        sizes = {s.world_size for s in path.segments if s.until > step}
        own = segment is not None and segment.attempt == line.attempt
        if own and step > death and len(sizes) == 1:
            starts.append(RestStart(line, sizes.pop(), death, first_death))
    return tuple(sorted(starts, key=lambda start: start.step))


def why_no_rest(records: RunRecords) -> str:
    """Why no undisturbed run can start from a checkpoint of the run that is still there."""
    config = records.stored.config
    between = f"between the death at step {unclaimed_segments(records)[-1].after} and the last step"
    if config.continued_at:
        return f"the run was continued after step {config.continued_at[-1]}, to a higher target"
    if kind := strategy_of(config).checkpointer:
        return f"its checkpoints are {kind.name}'s, and only ECRL's own can begin another run"
    if not rest_starts(records):
        return f"no checkpoint was committed {between}"
    return (
        f"none of the checkpoints committed {between} is still there and whole"
        f" (checkpoint.keep={config.checkpoint.keep})"
    )


def rest_reference_id(config: RunConfig, run_id: str, start: RestStart) -> str:
    """The reference id of the undisturbed run from `start` of the run with `config`."""
    return reference_id(
        replace(config, world_size=start.world_size, begins_from=start.begins_from(run_id))
    )


def _committed(records: RunRecords) -> Iterator[CheckpointLine]:
    for logs in records.attempt_logs:
        for line in logs.checkpoints.events:
            if line.event == "committed" and line.commit_sha256 and line.path:
                yield line
