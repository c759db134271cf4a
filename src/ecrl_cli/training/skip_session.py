"""Session of `recovery=skip`: survivors drop an interrupted mini-batch and go on after it from the
state before it.
"""

from __future__ import annotations

from typing import cast

import torch

from ecrl_cli.records.survivor_records import RedoneStep
from ecrl_cli.training.in_place_session import InPlaceSession, InterruptedStep
from ecrl_cli.training.train_loop import TrainLoop
from ecrl_cli.training.train_step import FaultTolerantTrainStep


class SkipSession(InPlaceSession):
    state_before = ""  # digest of the state before the step that was aborted last

    def load(self) -> TrainLoop:
        loop = super().load()
        cast(FaultTolerantTrainStep, loop.train_step).aborted = self.digest_before
        return loop

    def digest_before(self, buffers: dict[torch.Tensor, torch.Tensor]) -> None:
        """Taken before anything is rolled back: parameters and optimizer have not changed since
        the step began, and `buffers` are copies of then.
        """
        assert self.train_state
        self.state_before = self.train_state.state_digest(buffers)

    def resolve_interrupted_step(self) -> InterruptedStep:
        """Drop the step that deaths aborted, if one was: every survivor has rolled it back, and all
        of them aborted the same one.

        Cursor and schedule go on as after any step, for they belong to the step's number;
        parameters, buffers, optimizer and generators stay.
        """
        loop = self.loop
        if loop is None or self.in_place(loop).interrupted != loop.global_step + 1:
            return InterruptedStep()
        loop.global_step += 1
        loop.sampler.advance()
        self.in_place(loop).scheduler.step()
        dead = tuple(rank for rank in range(self.world_size) if rank not in self.peers.alive)
        layers = tuple(
            name
            for name, parameter in loop.train_state.model.named_parameters()
            if parameter.requires_grad
        )
        return InterruptedStep(
            (RedoneStep(loop.global_step, 0, 1, dead, (), 0.0),), (layers,), self.state_before
        )
