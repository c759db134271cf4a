"""The performance model of a failed mini-batch: the time each strategy takes, predicted from a few measured parts."""

from __future__ import annotations

from dataclasses import dataclass

# Strategies whose processes start anew; under the others survivors continue, and replacements join in parallel to their work.
STARTS = ("checkpoint_restart", "immediate_rollback", "consistent_rollback")


@dataclass(frozen=True)
class MiniBatch:
    """Seconds of one mini-batch without a failure, of its forward pass alone, and of a copy of the state."""

    whole_s: float
    forward_s: float
    copy_s: float

    def begun_s(self, percent: int) -> float:
        """Seconds until `percent` of the gradients are applied; after the forward pass every gradient is assumed to take equally long."""
        return self.forward_s + percent / 100 * (self.whole_s - self.forward_s)


def predicted_s(strategy: str, percent: int, replayed: int, parts: MiniBatch) -> float:
    """Seconds from the start of the failing mini-batch to its end under `strategy`; for a restart only the replay of `replayed` mini-batches."""
    begun = parts.begun_s(percent)
    return {
        "checkpoint_restart": replayed * parts.whole_s,
        "immediate_rollback": begun + parts.copy_s + parts.whole_s,
        "consistent_rollback": parts.copy_s + begun + parts.copy_s + parts.whole_s,
        "lossy_forward": parts.whole_s,
        "skip": begun,
    }[strategy]
