"""Bugs planted into in-place recoveries: the run continues, but its reports or its final state are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ecrl_cli.records.heartbeat_table import HeartbeatTable

_SURVIVORS = "ecrl_cli.recovery.fault_tolerant_allreduce"

# By name: the module patched in every training process, and the patch; see `mutants.recovery`.
LIVE_BUGS: dict[str, tuple[str, str]] = {
    "the bucket under way is taken as it stands": (
        _SURVIVORS,
        """
    agree = module.FaultTolerantGroup._agree
    def without_agreement(self):
        block = self._round
        under_way = [item.sent for item in block.buckets]
        furthest = agree(self)
        if block.place == furthest and block.redoes and block.done < len(block.buckets):
            item = block.buckets[block.done]
            self._wait(item.work)
            item.sent = under_way[block.done]
            block.done += 1
        return furthest
    module.FaultTolerantGroup._agree = without_agreement
""",
    ),
    "divided by the world": (
        _SURVIVORS,
        """
    form, exchange = module.FaultTolerantGroup.form, module.FaultTolerantGroup._exchange
    def launched(self, ranks):
        self.launched = ranks
        form(self, ranks)
    def scaled(self, place):
        item = self._block.items[place]
        own = item.own
        if not item.led:
            item.own = own * (len(self.alive) / self.launched)
        exchange(self, place)
        item.own = own
    module.FaultTolerantGroup.form, module.FaultTolerantGroup._exchange = launched, scaled
""",
    ),
    "a lost-samples record that forgets a sample": (
        "ecrl_cli.recovery.lost_samples",
        """
    line = module._line
    module._line = lambda step, effect, samples, *rest: line(step, effect, list(samples)[:-1], *rest)
""",
    ),
    "buffers left where the given-up step had them": (
        "ecrl_cli.training.fault_tolerant_train_step",
        """
    roll_back = module.FaultTolerantTrainStep._roll_back
    module.FaultTolerantTrainStep._roll_back = lambda self, before: roll_back(self, [buffer.clone() for buffer in self._buffers])
""",
    ),
    "newcomers with generators of their own": (
        "ecrl_cli.records.heartbeat_table",
        """
    module.HeartbeatTable.load_rank_state = lambda self, rank, global_step: None
""",
    ),
    "a survivor report with a constant digest": (
        "ecrl_cli.training.survivor_report",
        """
    witness = module.SurvivorReport
    module.SurvivorReport = lambda *said: witness(*said[:6], "0" * 64, *said[7:])
""",
    ),
    "the dead are not buried": ("ecrl_cli.records.heartbeat_table", "\n    module.HeartbeatTable.mark_dead = lambda self, rank: None\n"),
}


@contextmanager
def unburied(bug: str) -> Iterator[None]:
    """Patches the supervisor's part of a bug in this process."""
    bury = HeartbeatTable.mark_dead
    if bug == "the dead are not buried":
        HeartbeatTable.mark_dead = lambda self, rank: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        HeartbeatTable.mark_dead = bury  # type: ignore[method-assign]
