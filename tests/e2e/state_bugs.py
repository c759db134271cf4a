"""Bugs in how training state is restored, updated and saved: planted into real runs, each with the
promise whose check must find it.

All are of the kind that a run survives: it goes on, reaches its target, and every sample comes
exactly once. Most were found in published systems.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ecrl_cli.verify.verdict import INVALID

_STATE, _LEARNER = "ecrl_cli.checkpoint.capture.train_state", "ecrl_cli.training.train_step"
STATE, TRAJECTORY, INPUT, ONCE, NO_LOSS = (
    "state-consistent",
    "same-trajectory",
    "same-input",
    "exactly-once",
    "no-acknowledged-loss",
)
Keys = dict[str, Any]

# The shapes of the runs; those with the same model, optimizer and precision share one undisturbed
# reference.
VIT: Keys = {"model": {"name": "vit", "width": 16, "depth": 1, "dropout": 0.2}}
CNN: Keys = {"model": {"name": "small_cnn", "width": 8, "depth": 2}, "state_digests": True}
ADAMW: Keys = CNN | {"optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.01}}
FP16: Keys = CNN | {"precision": "fp16", "state_digests": "auto"}


@dataclass(frozen=True)
class StateBug:
    """`module` is spoilt by `body` in every process of the run. `steps`: after which rank 1 is
    killed; checkpoints are taken every 6 of 12 steps. `promise` must be `status`, and the verdict
    must say `words`. `in_model`: the bug is the user's model, so that the reference has it too.
    """

    module: str
    body: str
    promise: str
    words: tuple[str, ...]
    model: Keys = field(default_factory=lambda: VIT)
    steps: tuple[int, ...] = (9,)
    recovery: str = "checkpoint_restart"
    in_model: bool = False
    status: str = INVALID


def _last_train_json(change: str) -> str:
    """The last train.json of a run that had resumed is written wrong; the state that goes on is
    right.
    """
    return f"""
    from ecrl_cli.checkpoint.format.canonical_json import canonical_json, parse
    write = module.TrainState.train_document
    def spoilt(self, progress, line_chain):
        document = parse(write(self, progress, line_chain))
        if progress.global_step == 12:
            group = document["optimizer"]["param_groups"][0]
            schedule, sampler = document["scheduler"], document["sampler"]
            {change}
        return canonical_json(document)
    module.TrainState.train_document = spoilt
"""


def _after_restore(change: str) -> str:
    """`change` is done after everything that a rank restores; `train`: what train.json said."""
    return f"""
    rest = module.TrainState._restore_rest
    def spoilt(self, tensors, train):
        progress = rest(self, tensors, train)
        {change}
        return progress
    module.TrainState._restore_rest = spoilt
"""


def _in_last_step_of_rank_1(before: str, after: str) -> str:
    return f"""
    import torch
    learn = module.DataParallelTrainStep.run
    def spoilt(self, batch, global_step):
        last = torch.distributed.get_rank() == 1 and global_step == 12
        {before}
        learned = learn(self, batch, global_step)
        {after}
        return learned
    module.DataParallelTrainStep.run = spoilt
"""


def _newcomer(change: str) -> str:
    """What a rank that joins survivors makes of the state that it is given."""
    return f"""
    take = module.unpack_state
    def spoilt(train_state, header, data):
        progress = take(train_state, header, data)
        {change}
        return progress
    module.unpack_state = spoilt
"""


def _optimizer_entry(name: str, condition: str = "True") -> str:
    return f"""
    restore = module.TrainState._restore_optimizer
    def spoilt(self, tensors, document):
        restore(self, tensors, document)
        for entries in self.optimizer.state.values():
            if {condition}:
                entries["{name}"].zero_()
    module.TrainState._restore_optimizer = spoilt
"""


def _model(forward: str) -> str:
    """The first block of the user's model counts its calls, and what it gives depends on the
    count.
    """
    return f"""
    import torch
    class Counting(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.calls = inner, 0
            self.register_buffer("counter", torch.zeros(()), persistent=False)
        def forward(self, x):
            {forward}
    build = module.build_model
    module.build_model = lambda *given: Counting(build(*given))
"""


_LOSSY: Keys = {"model": CNN | {"state_digests": "auto"}, "recovery": "lossy_forward"}
_TRAIN = ("train.json of checkpoints/step_00000012",)

STATE_BUGS: dict[str, StateBug] = {
    # what is saved is not what is there
    "the last train.json with ten times the learning rate": StateBug(
        _STATE, _last_train_json('group["lr"] *= 10'), STATE, (*_TRAIN, "learning rate")
    ),
    "the last train.json without momentum": StateBug(
        _STATE, _last_train_json('group["momentum"] = 0.0'), STATE, (*_TRAIN, "momentum 0.0")
    ),
    "the last train.json without weight decay": StateBug(
        _STATE, _last_train_json('group["weight_decay"] = 0.0'), STATE, (*_TRAIN, "weight_decay")
    ),
    "the last train.json with the schedule behind": StateBug(
        _STATE, _last_train_json('schedule["last_epoch"] -= 5'), STATE, (*_TRAIN, "last_epoch 7")
    ),
    "the last train.json with the cursor at 0": StateBug(
        _STATE,
        _last_train_json('sampler["cursor_step"] = 0'),
        NO_LOSS,
        ("cursor_step 0, the manifest 2",),
    ),
    "the checkpoint holds other parameters": StateBug(
        "ecrl_cli.checkpoint.capture.staging_buffer",
        """
    capture = module.StagingBuffer.capture
    def spoilt(self, tensors):
        def scaled(name, tensor):
            return tensor * 1.01 if name.startswith("parameters.") else tensor
        capture(self, {name: scaled(name, tensor) for name, tensor in tensors.items()})
    module.StagingBuffer.capture = spoilt
""",
        STATE,
        ("parameters",),
    ),
    "a checkpoint that nothing resumes from holds half the momentum": StateBug(
        "ecrl_cli.checkpoint.capture.staging_buffer",
        """
    import importlib
    learner = importlib.import_module("ecrl_cli.training.train_step").DataParallelTrainStep
    learn, capture, steps = learner.run, module.StagingBuffer.capture, [0]
    def counting(self, batch, global_step):
        steps[0] = global_step
        return learn(self, batch, global_step)
    def spoilt(self, tensors):
        def halved(name, tensor):
            return tensor * 0.5 if steps[0] == 12 and name.startswith("optimizer.") else tensor
        capture(self, {name: halved(name, tensor) for name, tensor in tensors.items()})
    learner.run, module.StagingBuffer.capture = counting, spoilt
""",
        STATE,
        ("checkpoints/step_00000012 differs in optimizer from what rank 0 logged after step 12",),
        VIT | {"target_steps": 18},
    ),
    # the end of one rank
    "rank 1 skips its last optimizer step": StateBug(
        _LEARNER,
        _in_last_step_of_rank_1(
            "step = self.optimizer.step\n        self.optimizer.step = (lambda *given, **more:"
            " None) if last else step",
            "self.optimizer.step = step",
        ),
        STATE,
        ("rank 1", "parameters", "optimizer"),
        CNN,
    ),
    "rank 1 undoes its last update": StateBug(
        _LEARNER,
        _in_last_step_of_rank_1(
            "before = [p.detach().clone() for p in self.model.parameters()] if last else []",
            "[p.data.copy_(old) for p, old in zip(self.model.parameters(), before)]",
        ),
        STATE,
        ("rank 1", "parameters"),
        CNN,
    ),
    "rank 1 steps its schedule twice in the last step": StateBug(
        _LEARNER,
        _in_last_step_of_rank_1("pass", "last and self.scheduler.step()"),
        STATE,
        ("rank 1", "learning rate"),
        CNN,
    ),
    # what is restored
    "the scaler is not restored": StateBug(
        _STATE,
        _after_restore(
            "self.scaler.load_state_dict(dict(train['scaler'], scale=65536.0, _growth_tracker=0))"
        ),
        STATE,
        ("growth tracker",),
        FP16,
    ),
    "the scaler is restored with half its scale": StateBug(
        _STATE,
        _after_restore(
            "self.scaler.load_state_dict(dict(train['scaler'], scale=train['scaler']['scale'] / 2))"
        ),
        STATE,
        ("loss scale",),
        FP16,
    ),
    "the schedule is stepped once more per resume": StateBug(
        _STATE, _after_restore("self.scheduler.step()"), STATE, ("learning rate",)
    ),
    "the learning rate begins anew": StateBug(
        _STATE,
        _after_restore(
            "[group.update(lr=group['initial_lr']) for group in self.optimizer.param_groups]"
        ),
        STATE,
        ("learning rate",),
    ),
    "weight decay is lost": StateBug(
        _STATE,
        _after_restore("[group.update(weight_decay=0.0) for group in self.optimizer.param_groups]"),
        STATE,
        ("weight_decay",),
    ),
    "the momentum's factor is lost": StateBug(
        _STATE,
        _after_restore("[group.update(momentum=0.5) for group in self.optimizer.param_groups]"),
        STATE,
        ("momentum",),
    ),
    "the seed is set after the state is restored": StateBug(
        _STATE,
        _after_restore("import torch; torch.manual_seed(7)"),
        TRAJECTORY,
        ("first differing step is step 7",),
    ),
    "the generators of rank 1 are not restored": StateBug(
        _STATE,
        """
    restore = module.restore_rng
    def spoilt(states, device):
        import torch
        if torch.distributed.get_rank() == 0:
            restore(states, device)
    module.restore_rng = spoilt
""",
        TRAJECTORY,
        ("first differing step is step 7", "rank 1"),
    ),
    "momentum of rank 1 is lost": StateBug(
        _STATE,
        _optimizer_entry("momentum_buffer", "self.rank == 1"),
        STATE,
        ("step 7: ranks [0, 1]", "rank 1 differs in parameters, optimizer"),
        CNN,
    ),
    "exp_avg_sq is lost": StateBug(
        _STATE,
        _optimizer_entry("exp_avg_sq"),
        TRAJECTORY,
        ("first differing step is step 7", "optimizer"),
        ADAMW,
    ),
    "Adam counts its steps anew": StateBug(
        _STATE,
        _optimizer_entry("step"),
        TRAJECTORY,
        ("first differing step is step 7", "optimizer"),
        ADAMW,
    ),
    "running statistics are lost": StateBug(
        _STATE,
        _after_restore(
            "[buffer.zero_() for name, buffer in self.model.named_buffers() if 'running_mean' in"
            " name]"
        ),
        TRAJECTORY,
        ("first differing step is step 7", "buffers"),
        CNN,
    ),
    "parameters come back in half precision": StateBug(
        _STATE,
        _after_restore("[p.data.copy_(p.data.bfloat16()) for p in self.model.parameters()]"),
        TRAJECTORY,
        ("step 7 rank 0: loss",),
        CNN,
    ),
    "augmentation depends on the attempt": StateBug(
        "ecrl_cli.training.session",
        """
    load = module.RankSession.load
    def spoilt(self):
        loop = load(self)
        loop.loader._seed += self.order.attempt
        return loop
    module.RankSession.load = spoilt
""",
        INPUT,
        ("inputs",),
    ),
    "rank 1 resumes one window ahead": StateBug(
        _STATE, _after_restore("self.rank == 1 and self.sampler.advance()"), ONCE, ("rank 1",)
    ),
    "the sampler's epoch begins anew": StateBug(
        _STATE, _after_restore("self.sampler.epoch = 0"), ONCE, ("step 7", "epoch 0")
    ),
    "training goes on from an average": StateBug(
        _STATE,
        _after_restore("[p.data.mul_(0.999) for p in self.model.parameters()]"),
        TRAJECTORY,
        ("step 7 rank 0: loss",),
        CNN,
    ),
    # a death exactly on a checkpoint: no step is done again
    "momentum is lost where nothing is done again": StateBug(
        _STATE,
        _optimizer_entry("momentum_buffer"),
        TRAJECTORY,
        ("first differing step is step 7", "optimizer"),
        CNN,
        steps=(6,),
    ),
    "the model counts in an attribute": StateBug(
        "ecrl_cli.training.session",
        _model("self.calls += 1; return self.inner(x) * (1 + self.calls / 10)"),
        TRAJECTORY,
        ("first differing step is step 7",),
        CNN,
        steps=(6,),
        in_model=True,
    ),
    "the model counts in a buffer that is not saved": StateBug(
        "ecrl_cli.training.session",
        _model("self.counter += 1; return self.inner(x) * (1 + self.counter / 10)"),
        TRAJECTORY,
        ("first differing step is step 7",),
        CNN,
        steps=(6,),
        in_model=True,
    ),
    # who joins those who outlived a death
    "the newcomer has no momentum": StateBug(
        "ecrl_cli.training.in_place_session",
        _newcomer("[e['momentum_buffer'].zero_() for e in train_state.optimizer.state.values()]"),
        STATE,
        ("optimizer",),
        **_LOSSY,
    ),
    "the newcomer has twice the learning rate": StateBug(
        "ecrl_cli.training.in_place_session",
        _newcomer("[g.update(lr=2 * g['lr']) for g in train_state.optimizer.param_groups]"),
        STATE,
        ("learning rate",),
        **_LOSSY,
    ),
    "the newcomer has other parameters": StateBug(
        "ecrl_cli.training.in_place_session",
        _newcomer("[p.data.mul_(1.01) for p in train_state.model.parameters()]"),
        STATE,
        ("parameters",),
        **_LOSSY,
    ),
}
