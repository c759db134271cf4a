"""Computes the metrics of a run from its records. metrics.json caches them for other tools;
`report` and `verify` do not trust it.
"""

from __future__ import annotations

import math
from typing import Any

from ecrl_cli.config.codec import encode
from ecrl_cli.config.identity import suite_of
from ecrl_cli.config.legs import legs, targets
from ecrl_cli.errors import RecordError
from ecrl_cli.history.lineage import (
    Lineage,
    evaluations,
    instants_of,
    lineage,
    mean_losses,
    replayed_steps,
)
from ecrl_cli.history.load import RunRecords
from ecrl_cli.history.membership import lost_samples, survivals
from ecrl_cli.history.timeline import PHASES, Timeline, phases, replays, timeline
from ecrl_cli.metrics.checkpoints import account, snapshots
from ecrl_cli.metrics.recoveries import recoveries
from ecrl_cli.records.events import SCHEMA_VERSION, FinalState

# Raised when a field changes its meaning or another joins. Files without it (version 1) predate the
# field-by-field comparison; those of version 2 have neither `evaluations` nor `seconds.evaluate`
# (`metrics.cache`).
METRICS_VERSION = 3


def metrics_document(records: RunRecords, times: Timeline | None = None) -> dict[str, Any]:
    """The metrics of one run, finished or not; `times`: its timeline, if known. RecordError if a
    record is damaged: totals over partial records would be wrong.
    """
    if records.unread:
        first = records.unread[0]
        raise RecordError(first.path, first.reason, "restore the file")
    path, times = lineage(records), timeline(records) if times is None else times
    return {
        "schema_version": SCHEMA_VERSION,
        "metrics_version": METRICS_VERSION,
        **_names(records),
        **_size(records),
        "committed_steps": committed_steps(path),
        "replayed_steps": replayed_steps(records),
        "restarts": records.supervisor.restarts if records.supervisor else 0,
        "survivals": survivals(records),
        "lost_samples": lost_samples(records, path),
        "terminal_status": records.supervisor.terminal_status if records.supervisor else "unknown",
        "wall_s": times.wall_s,
        "absent_s": times.absent_s,
        "goodput": goodput(path, times),
        "goodput_published_clock": goodput_published_clock(records, path),
        "seconds": times.seconds | {"residual": times.residual_s},
        "checkpoints": account(records).document(),
        "snapshots": snapshots(records),
        "final": _final(records.final),
        # quality on held-out data after each evaluated step; null where it is not finite
        "evaluations": [
            {"global_step": step, "samples": each.samples}
            | {
                name: value if math.isfinite(value) else None
                for name, value in each.measures.items()
            }
            for step, each in evaluations(records, path).items()
        ],
        "restart_phases": _restart_phases(records, times),
        "recoveries": [encode(each) for each in recoveries(records, times)],
        **({"legs": _legs(records, times)} if records.stored.config.continued_at else {}),
        # by step, over ranks; null where it is not finite, which JSON cannot hold
        "mean_loss": {str(step): mean for step, mean in mean_losses(records, path).items()},
    }


def _legs(records: RunRecords, times: Timeline) -> list[dict[str, Any]]:
    """The legs of a run that was continued, each with its attempts, seconds and goodput. The
    seconds between two legs belong to neither.
    """
    ends, first, committed = targets(records.stored.config), 0, lineage(records).last_step
    found = []
    for start, end in legs(records.stored.config):
        done = [
            a
            for a in records.attempts
            if (final := records.logs(a.attempt).final) and final.global_step == end
        ]
        last = done[-1].session if done and end != ends[-1] else len(records.sessions) - 1
        wall, reached = (
            math.fsum(after - before for before, after in times.windows[first : last + 1]),
            min(end, committed),
        )
        attempts = [a.attempt for a in records.attempts if first <= a.session <= last]
        goodput_ = (reached - start) / wall if wall > 0 else 0.0
        found.append(
            {
                "from_step": start,
                "to_step": reached,
                "attempts": attempts,
                "wall_s": wall,
                "goodput": goodput_,
            }
        )
        first = last + 1
    return found


def _names(records: RunRecords) -> dict[str, Any]:
    config = records.stored.config
    return {
        "run_id": records.stored.run_id,
        "reference_id": records.stored.reference_id,
        "suite": suite_of(config),
        "variant": config.variant.name,
        "seed": config.seed,
        "scale": config.scale.name,
    }


def _size(records: RunRecords) -> dict[str, Any]:
    config = records.stored.config
    size = records.dataset.size if records.dataset else 0
    return {
        "dataset_size": size,
        "steps_per_epoch": size // config.global_batch,
        "global_batch": config.global_batch,
        "world_size": config.world_size,
        "target_steps": config.target_steps,
    }


def _final(final: FinalState | None) -> dict[str, Any] | None:
    if final is None:
        return None
    document: dict[str, Any] = {
        "global_step": final.global_step,
        "parameters_digest": final.parameters_digest,
        "buffers_digest": final.buffers_digest,
        "optimizer_digest": final.optimizer_digest,
        "rng_digest": final.rng_digest,
        "loss": final.loss if final.loss == final.loss else None,
    }
    return document | ({} if final.accuracy is None else {"accuracy": final.accuracy})


def _restart_phases(records: RunRecords, times: Timeline) -> list[dict[str, Any]]:
    """One entry per attempt: seconds of its start by phase, and of replay; the first entry is the
    launch of the run.
    """
    again = replays(times)
    return [
        {"attempt": attempt}
        | {name: seconds[name] for name in PHASES}
        | {"replay": again.get(attempt, (0, 0.0))[1]}
        for attempt, seconds in phases(records, times).items()
    ]


def committed_steps(path: Lineage) -> int:
    """The number of steps in the committed sequence, each counted once."""
    return sum(len(segment.steps()) for segment in path.segments)


def goodput(path: Lineage, account: Timeline) -> float:
    """Committed steps per second of wall time from the supervisor's launch to the target; 0 if no
    time is on record.
    """
    return committed_steps(path) / account.wall_s if account.wall_s > 0 else 0.0


def goodput_published_clock(records: RunRecords, path: Lineage) -> float | None:
    """Committed steps over the time from rank 0's first line to its last: the first launch is free,
    restarts are charged.

    The clock of the published artefact, for comparison only. None if rank 0 logged fewer than two
    lines or there was a reboot.
    """
    instants = [at for a in records.attempt_logs if 0 in a.ranks for at in instants_of(a.ranks[0])]
    boots = {session.boot_id for session in records.sessions}
    if len(instants) < 2 or len(boots) > 1 or max(instants) <= min(instants):
        return None
    return committed_steps(path) / (max(instants) - min(instants))
