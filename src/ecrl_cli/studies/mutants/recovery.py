"""Bugs planted into the recovery of real runs, as published systems had them: the run continues,
and ends in another state or reports wrongly.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
        item = self._round.buckets[place]
        own = item.own
        if not item.led:
            item.own = own * (len(self.alive) / self.launched)
        exchange(self, place)
        item.own = own
    module.FaultTolerantGroup.form, module.FaultTolerantGroup._exchange = launched, scaled
""",
    ),
    "a lost-samples record that forgets a sample": (
        "ecrl_cli.records.survivor_records",
        """
    line = module._line
    def without_last(step, effect, samples, *rest):
        return line(step, effect, list(samples)[:-1], *rest)
    module._line = without_last
""",
    ),
    "buffers left where the given-up step had them": (
        "ecrl_cli.training.train_step",
        """
    roll_back = module.FaultTolerantTrainStep._roll_back
    def to_current(self, before):
        return roll_back(self, [buffer.clone() for buffer in self._buffers])
    module.FaultTolerantTrainStep._roll_back = to_current
""",
    ),
    "newcomers with generators of their own": (
        "ecrl_cli.records.heartbeat_table",
        """
    module.HeartbeatTable.load_rank_state = lambda self, rank, global_step: None
""",
    ),
    "a survivor report with a constant digest": (
        "ecrl_cli.training.in_place_session",
        """
    survivor_report = module.SurvivorReport
    module.SurvivorReport = lambda *said: survivor_report(*said[:6], "0" * 64, *said[7:])
""",
    ),
    "a given-up step with replicas leaves its buffers": (
        "ecrl_cli.training.replicas",
        "\n    module.ReplicaTrainStep.undo = lambda self, global_step: None\n",
    ),
    "a dropped step that momentum makes after all": (
        "ecrl_cli.training.skip_session",
        """
    import torch
    original = module.SkipSession.resolve_interrupted_step
    def with_zero_gradients(self):
        resolved = original(self)
        if resolved.redone:
            for parameter in self.loop.train_state.model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            self.loop.train_state.optimizer.step()
        return resolved
    module.SkipSession.resolve_interrupted_step = with_zero_gradients
""",
    ),
    "the cursor stays at the dropped mini-batch": (
        "ecrl_cli.training.skip_session",
        """
    original = module.SkipSession.resolve_interrupted_step
    def without_cursor(self):
        before = self.loop and self.loop.sampler.state_dict()
        resolved = original(self)
        if resolved.redone:
            self.loop.sampler.load_state_dict(before)
        return resolved
    module.SkipSession.resolve_interrupted_step = without_cursor
""",
    ),
    "the dead are not buried": (
        "ecrl_cli.records.heartbeat_table",
        "\n    module.HeartbeatTable.mark_dead = lambda self, rank: None\n",
    ),
}


@contextmanager
def unburied(bug: str) -> Iterator[None]:
    """Patches the supervisor's part of a bug in this process."""
    mark_dead = HeartbeatTable.mark_dead
    if bug == "the dead are not buried":
        HeartbeatTable.mark_dead = lambda self, rank: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        HeartbeatTable.mark_dead = mark_dead  # type: ignore[method-assign]


_PLANT = """
import importlib.abc, importlib.util, sys

class Plant(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "{module}":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            spoil(module)
        spec.loader.exec_module = exec_module
        return spec

def spoil(module):
{body}

sys.meta_path.insert(0, Plant())
"""

_STATE = "ecrl_cli.checkpoint.capture.train_state"
_REST = """
    rest = module.TrainState._restore_rest
    def spoilt(self, tensors, train):
        {before}
        progress = rest(self, tensors, train)
        {after}
        return progress
    module.TrainState._restore_rest = spoilt
"""
_OPTIMIZER = """
    restore = module.TrainState._restore_optimizer
    def lose(self, tensors, document):
        restore(self, tensors, document)
        for entries in self.optimizer.state.values():
            for name in ("momentum_buffer", "{name}"):
                if name in entries:
                    entries[name].zero_()
    module.TrainState._restore_optimizer = lose
"""

# By name: the module to patch, and the patch.
BUGS: dict[str, tuple[str, str]] = {
    "rng not restored": (_STATE, "\n    module.restore_rng = lambda states, device: None\n"),
    "rng of rank 0 for all": (
        _STATE,
        """
    rest = module.TrainState._restore_rest
    def of_rank_0(self, tensors, train):
        rank, self.rank = self.rank, 0
        progress = rest(self, tensors, train)
        self.rank = rank
        chain = train["line_chain"]
        own = chain[rank] if rank < len(chain) else ""
        position = (progress.global_step, progress.epoch, progress.cursor_step, progress.seed)
        return module.TrainPosition(*position, own, progress.loss)
    module.TrainState._restore_rest = of_rank_0
""",
    ),
    "rng restored before the iterator draws": (
        _STATE,
        """
    import torch
    restore = module.restore_rng
    def then_draw(states, device):
        restore(states, device)
        torch.empty((), dtype=torch.int64).random_()
    module.restore_rng = then_draw
""",
    ),
    "momentum, or exp_avg_sq, dropped": (_STATE, _OPTIMIZER.replace("{name}", "exp_avg_sq")),
    "schedule reset": (
        _STATE,
        _REST.replace("{before}", "pass").replace("{after}", "self.scheduler.last_epoch = 0"),
    ),
    "cursor off by one": (
        _STATE,
        _REST.replace("{before}", "pass").replace("{after}", "self.sampler.advance()"),
    ),
    "wrong epoch seed after a resume": (
        _STATE,
        _REST.replace("{before}", "pass").replace("{after}", "self.sampler.seed += 1"),
    ),
    "names in the order of their hashes": (
        _STATE,
        """
    import random
    restore = module.TrainState._restore_optimizer
    def shuffled(self, tensors, document):
        restore(self, tensors, document)
        states = [entries for entries in self.optimizer.state.values() if entries]
        moments = ("momentum_buffer", "exp_avg")
        for name in [name for name in moments if states and name in states[0]]:
            alike = {}
            for entries in states:
                alike.setdefault(tuple(entries[name].shape), []).append(entries)
            for group in alike.values():
                held = [entries[name].clone() for entries in group]
                for entries, other in zip(group, held[1:] + held[:1]):
                    entries[name].copy_(other)
    module.TrainState._restore_optimizer = shuffled
""",
    ),
}

_REPLICAS = "ecrl_cli.training.replicas"
# Patches the seeds of a rank within a step; the train step knows which replicas the rank has.
_STREAMS = """
    seed, learn = module.seed_replica, module.ReplicaTrainStep.run
    def spoilt(self, batch, global_step):
        def of_another(number, step, replica):
            {body}
        module.seed_replica = of_another
        return learn(self, batch, global_step)
    module.ReplicaTrainStep.run = spoilt
"""

# Bugs of fixed replicas: with each, results depend on which rank computes which replica. Without
# replicas none of it runs.
REPLICA_BUGS: dict[str, tuple[str, str]] = {
    "sum in rank order": (
        "ecrl_cli.training.replicas",
        """
    import torch
    def summed(self, received, piece):
        return sum(torch.split(received, piece))
    module.ReplicaAllreduce._completed = summed
""",
    ),
    "streams by position in the rank": (
        _REPLICAS,
        _STREAMS.replace(
            "{body}",
            "seed(number, step, replica - self.owned.start if replica < self.replicas else"
            " replica)",
        ),
    ),
    "streams left where the last replica of a rank had them": (
        _REPLICAS,
        _STREAMS.replace("{body}", "replica < self.replicas and seed(number, step, replica)"),
    ),
    "buffers not rewound": (_REPLICAS, "\n    module.ReplicaGradient.rewind = lambda self: None\n"),
}


def site(module: str, body: str) -> str:
    """A `sitecustomize.py` that runs `body`, lines of a function of `module`, after the module of
    that name is imported.
    """
    return _PLANT.replace("{module}", module).replace("{body}", body)


@contextmanager
def planted(bug: str, folder: Path) -> Iterator[None]:
    """Every process started within the context has `bug`; empty: none."""
    if not bug:
        yield
        return
    module, body = (BUGS | REPLICA_BUGS | LIVE_BUGS)[bug]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(site(module, body), encoding="utf-8")
    with (
        unburied(bug),
        environment(PYTHONPATH=f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"),
    ):
        yield


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Sets these environment variables for processes started within the context; an empty value
    changes nothing.
    """
    before = {name: os.environ.get(name) for name, value in values.items() if value}
    os.environ.update({name: values[name] for name in before})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
