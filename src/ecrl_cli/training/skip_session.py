"""Session of `recovery=skip`: survivors drop an interrupted mini-batch and go on after it from the
state before it.
"""

from __future__ import annotations

from ecrl_cli.records.survivor_records import RedoneStep
from ecrl_cli.training.in_place_session import InPlaceSession, InterruptedStep


class SkipSession(InPlaceSession):
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
        return InterruptedStep((RedoneStep(loop.global_step, 0, 1, dead, (), 0.0),), (layers,))
