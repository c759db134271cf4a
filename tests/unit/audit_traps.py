"""Small training loops that are hard to follow, each recorded: run as a script with a folder, one
recording per loop in it.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import itertools
import json
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import ecrl
from ecrl import adapters, hooks


def parts() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    return (
        model,
        torch.optim.AdamW(model.parameters()),
        DataLoader(TensorDataset(torch.arange(24.0).reshape(8, 3)), batch_size=2),
    )


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    out: torch.Tensor = model(batch[0]).square().mean()
    return out


def plain() -> None:
    model, optimizer, loader = parts()
    for batch in loader:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()


def one_batch_ahead() -> None:
    """As Accelerate and the HF Trainer fetch."""
    model, optimizer, loader = parts()
    iterator = iter(loader)
    current = next(iterator)
    while current is not None:
        following = next(iterator, None)
        optimizer.zero_grad()
        loss_of(model, current).backward()
        optimizer.step()
        current = following


def skipped_batches() -> None:
    """As a job does that goes on in the middle of an epoch."""
    model, optimizer, loader = parts()
    for number, batch in enumerate(loader):
        if number < 2:
            continue
        loss_of(model, batch).backward()
        optimizer.step()


def validation_between() -> None:
    model, optimizer, loader = parts()
    other = DataLoader(TensorDataset(torch.ones(6, 3)), batch_size=2)
    for batch in loader:
        loss_of(model, batch).backward()
        optimizer.step()
        with torch.no_grad():
            for held_out in other:
                loss_of(model, held_out)


def measured_on_meta() -> None:
    """As LitGPT counts operations, after a check of the validation that leaves a batch over."""
    model, optimizer, loader = parts()
    other = DataLoader(TensorDataset(torch.ones(6, 3)), batch_size=2)
    with torch.no_grad():
        for number, held_out in enumerate(other):
            if number == 1:
                break
            loss_of(model, held_out)
    twin = copy.deepcopy(model).to("meta")
    loss_of(twin, [torch.empty(2, 3, device="meta")]).backward()
    for batch in loader:
        loss_of(model, batch).backward()
        optimizer.step()


def estimated_with_fake_tensors() -> None:
    """As torchtitan estimates memory: a whole step without values."""
    model, optimizer, loader = parts()
    with FakeTensorMode():
        twin = nn.Linear(3, 2)
        dry = torch.optim.AdamW(twin.parameters())
        loss_of(twin, [torch.ones(2, 3)]).backward()
        dry.step()
    for batch in loader:
        loss_of(model, batch).backward()
        optimizer.step()


def accumulation() -> None:
    model, optimizer, loader = parts()
    for number, batch in enumerate(loader):
        loss_of(model, batch).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


def two_optimizers() -> None:
    model, _, loader = parts()
    first, second = torch.optim.SGD([model.weight], lr=0.1), torch.optim.SGD([model.bias], lr=0.1)
    for batch in loader:
        loss_of(model, batch).backward()
        first.step()
        second.step()


def optimizer_in_backward() -> None:
    model, _, loader = parts()
    optimizers = {
        parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()
    }
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: optimizers[parameter].step())
    for batch in loader:
        model.zero_grad()
        loss_of(model, batch).backward()


def step_calls_step() -> None:
    """As a subclass whose step calls its base's, and as ZeroRedundancyOptimizer."""

    class Outer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    model, _, loader = parts()
    optimizer = Outer(model.parameters(), lr=0.1)
    for batch in loader:
        loss_of(model, batch).backward()
        optimizer.step()


def overflow() -> None:
    """A step that the scaler leaves out."""
    model, optimizer, loader = parts()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for number, batch in enumerate(loader):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, batch) * (float("inf") if number == 1 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()


def loss_inside_the_step() -> None:
    """As Lightning trains: forward and backward inside `step`, dropout in it."""
    model, optimizer, loader = parts()
    for batch in loader:

        def inside(batch: Any = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = torch.nn.functional.dropout(loss_of(model, batch), 0.1)
            loss.backward()
            return loss

        optimizer.step(inside)


def gradients_from_elsewhere() -> None:
    """A server of parameters: others compute the gradients."""
    model, optimizer, _ = parts()
    for step in range(1, 4):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, float(step))
        optimizer.step()


def dummy_step() -> None:
    """As DCP makes the state of a fresh optimizer before a load."""
    model, optimizer, loader = parts()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.01
    for batch in loader:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()


def state_asked_for_before_the_first_step() -> None:
    model, optimizer, loader = parts()
    optimizer.register_step_post_hook(lambda *_: None)
    get_optimizer_state_dict(model, optimizer)
    for batch in loader:
        loss_of(model, batch).backward()
        optimizer.step()


def renamed() -> None:
    """A checkpoint gets its name when it is whole: a file, then a folder."""
    model, optimizer, loader = parts()
    where = Path(os.environ["ECRL_RECORD"]) / "out"
    (where / "new").mkdir(parents=True)
    for batch in loader:
        loss_of(model, batch).backward()
        optimizer.step()
    torch.save(model.state_dict(), where / "new" / "model.part")
    (where / "new" / "model.part").replace(where / "new" / "model.pt")
    (where / "new").rename(where / "step-4")


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.arange(24.0).reshape(8, 3)


def nothing_is_asked_for_after_the_last_batch() -> None:
    """As Lightning does, which knows how many there are; the third epoch is cut short."""
    model, optimizer, loader = parts()
    for count in (len(loader), len(loader), 1, len(loader)):
        for _, batch in zip(range(count), loader, strict=False):
            loss_of(model, batch).backward()
            optimizer.step()


def no_ids() -> None:
    model, optimizer, _ = parts()
    for batch in DataLoader(Stream(), batch_size=2):
        loss_of(model, [batch]).backward()
        optimizer.step()


def workers() -> None:
    model, optimizer, _ = parts()
    for batch in DataLoader(
        TensorDataset(torch.arange(24.0).reshape(8, 3)), batch_size=2, num_workers=2
    ):
        loss_of(model, batch).backward()
        optimizer.step()


def workers_that_persist() -> None:
    model, optimizer, _ = parts()
    data = TensorDataset(torch.arange(24.0).reshape(8, 3))
    for batch in DataLoader(data, batch_size=2, num_workers=1, persistent_workers=True):
        loss_of(model, batch).backward()
        optimizer.step()


def odd_batches() -> None:
    """Samples that are no tensors: whatever they are, the job goes on."""
    model, optimizer, _ = parts()
    for batch in DataLoader(
        [{"text": "a", "x": torch.ones(3)}, {"text": "b", "x": torch.zeros(3)}], batch_size=1
    ):
        loss_of(model, [batch["x"]]).backward()
        optimizer.step()


def fused_overflow() -> None:
    """A fused optimizer leaves the step out by itself: its hook fires, nothing changes."""
    model, _, loader = parts()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for number, batch in enumerate(loader):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, batch) * (float("inf") if number == 1 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()


def zero_redundancy() -> None:
    """The sharded optimizer and the one inside it: one step."""
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer

    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    model, _, loader = parts()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1)
    for batch in loader:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    dist.destroy_process_group()


def wrapped_iterators() -> None:
    """One fetch, however many iterators wrap one another, and a batch that becomes another before
    it is used.
    """
    model, optimizer, loader = parts()

    def moved(batches: Any) -> Iterator[Any]:
        for batch in batches:
            yield [tensor * 2 for tensor in batch]

    for batch in moved(iter(loader)):
        loss_of(model, batch).backward()
        optimizer.step()


def closure() -> None:
    """LBFGS calls backward many times inside one step."""
    model, _, loader = parts()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    for batch in loader:

        def again(batch: Any = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            return loss

        optimizer.step(again)


def dcp() -> None:
    """However the functions of DCP were imported; a save behind the job's back too."""
    import torch.distributed.checkpoint as package
    from torch.distributed.checkpoint.state_dict_loader import load

    model, optimizer, loader = parts()
    for batch in loader:
        loss_of(model, batch).backward()
        optimizer.step()
    folder = os.environ["ECRL_RECORD"] + "-dcp"
    package.save({"model": model.state_dict()}, checkpoint_id=folder, no_dist=True)
    load(
        {"model": model.state_dict()}, storage_reader=package.FileSystemReader(folder), no_dist=True
    )


def dcp_in_background() -> None:
    """async_save calls save in a thread of its own, which is still writing when the job has done
    two more steps.
    """
    import torch.distributed as dist
    import torch.distributed.checkpoint as package

    class Slow(package.FileSystemWriter):
        def set_up_storage_writer(self, *args: Any, **kwargs: Any) -> None:
            assert stepped.wait(60)
            super().set_up_storage_writer(*args, **kwargs)

    stepped = threading.Event()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model, optimizer, loader = parts()
    for number, batch in enumerate(loader):
        loss_of(model, batch).backward()
        optimizer.step()
        if number == 1:
            writer = Slow(os.environ["ECRL_RECORD"] + "-dcp")
            future = package.async_save({"model": model.state_dict()}, storage_writer=writer)
    stepped.set()
    future.result()
    dist.destroy_process_group()


def saved_by_a_thread() -> None:
    """The state of step 2, written when the job has done all four."""
    model, optimizer, loader = parts()
    stepped = threading.Event()

    def write(state: Any) -> None:
        assert stepped.wait(60)
        torch.save(state, os.environ["ECRL_RECORD"] + ".pt")

    for number, batch in enumerate(loader):
        loss_of(model, batch).backward()
        optimizer.step()
        if number == 1:
            writer = threading.Thread(target=write, args=(copy.deepcopy(model.state_dict()),))
            writer.start()
    stepped.set()
    writer.join()


def failed_steps() -> None:
    """The second step fails inside its update, the fourth in its closure, in front of its backward;
    the job goes on after both, one call deeper after the first.
    """
    model, optimizer, loader = parts()
    number = 0

    def fails() -> None:
        if number == 1:
            raise RuntimeError("a failed update")

    def loss() -> torch.Tensor:
        if number == 3:
            raise RuntimeError("out of memory")
        made = loss_of(model, batch)
        made.backward()
        return made

    def plain_step() -> None:
        loss()
        optimizer.step()

    optimizer.register_step_pre_hook(lambda *args: fails())
    for number, batch in zip(range(5), itertools.chain(loader, loader)):  # noqa: B905, B007
        optimizer.zero_grad()
        with contextlib.suppress(RuntimeError):
            if number < 2:
                loss()
                optimizer.step()
            elif number == 2:
                plain_step()
            else:
                optimizer.step(loss)


def planned_failure_caught() -> None:
    """It faults before the first backward, where no optimizer is known yet, and the job goes on."""
    planned = {
        "index": 0,
        "attempt": 0,
        "kind": "raise",
        "rank": 0,
        "step": 1,
        "moment": "backward",
    }
    os.environ["ECRL_STRIKES"] = json.dumps([planned])
    model, optimizer, loader = parts()
    for batch in loader:
        optimizer.zero_grad()
        with contextlib.suppress(RuntimeError):
            loss_of(model, batch).backward()
            optimizer.step()
    del os.environ["ECRL_STRIKES"]


def told_and_seen() -> None:
    """A job that the hooks see and that tells of its steps too: two undisturbed arms, and one that
    stops after step 2 and goes on from there.
    """
    where, state = Path(os.environ["ECRL_RECORD"]), None
    for arm, attempt, first, last in (
        ("struck", 0, 1, 2),
        ("ref", 0, 1, 4),
        ("struck", 1, 3, 4),
        ("ref2", 0, 1, 4),
    ):
        os.environ |= {"ECRL_RECORD": str(where / arm), "ECRL_ATTEMPT": str(attempt)}
        model, optimizer, loader = parts()
        if attempt and state is not None:
            model.load_state_dict(state[0])
            optimizer.load_state_dict(state[1])
        session = ecrl.session()
        session.watch(model=model, optimizer=optimizer)
        for step, batch in enumerate(loader, start=1):
            if first <= step <= last:
                optimizer.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                optimizer.step()
                session.step(step, loss=loss)
        if (arm, attempt) == ("struck", 0):
            state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    os.environ["ECRL_ATTEMPT"] = "0"


class Accelerated:
    """What Accelerate does with its models and hooks."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.hooks = model, list[Any]()

    def register_load_state_pre_hook(self, hook: Any) -> None:
        self.hooks.append(hook)

    def register_save_state_pre_hook(self, hook: Any) -> None: ...

    def load_state(self, folder: str) -> None:
        for hook in self.hooks:
            hook([self.model], folder)

    def save_state(self, folder: str) -> str:
        return folder


def adapted() -> None:
    """Trained as a part of another module; the second time it loads before its first step."""
    where = Path(os.environ["ECRL_RECORD"])
    for arm in ("fresh", "resumed"):
        os.environ["ECRL_RECORD"] = str(where / arm)
        _, _, loader = parts()
        whole = nn.Sequential(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)))
        optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
        plain = Accelerated(whole[0])
        accelerator = adapters.recorded(plain)
        assert accelerator is plain
        if arm == "resumed":
            accelerator.load_state("out/step-1")
        for batch in loader:
            loss_of(whole, batch).backward()
            optimizer.step()
        assert accelerator.save_state("out/step-5") == "out/step-5"


def graph_is_let_go() -> None:
    """The recorder keeps no loss with its graph: what the graph saved is gone when the job lets go
    of it.
    """
    model, optimizer, loader = parts()
    for batch in loader:
        out = model(batch[0])
        saved = weakref.ref(out)  # the square keeps it for its backward
        loss = out.square().mean()
        loss.backward(retain_graph=True)
        del out, loss
        assert saved() is None, "the recorder keeps the graph"
        optimizer.step()


def models_are_let_go() -> None:
    """The recorder keeps nothing of a job that is over: a model that it kept would keep its memory
    and its process group.
    """
    for watched in (False, True):
        model, optimizer, loader = parts()
        whole = nn.Sequential(model)
        if watched:
            ecrl.session().watch(whole, optimizer, ema=model)
        for batch in loader:
            loss_of(whole, batch).backward()
            optimizer.step()
        references = [weakref.ref(thing) for thing in (model, whole, optimizer, model.weight)]
        del model, whole, optimizer, batch
        gc.collect()
        assert [reference() for reference in references] == [None] * 4, (
            "the recorder keeps the job alive"
        )


def optimizer_made_anew() -> None:
    """A second phase with an optimizer of its own; the second time the job begins with it, as after
    a restart.
    """
    where = Path(os.environ["ECRL_RECORD"])
    for arm in ("whole", "resumed"):
        os.environ["ECRL_RECORD"] = str(where / arm)
        model, _, loader = parts()
        batches, weights = (
            list(loader),
            [parameter.detach().clone() for parameter in model.parameters()],
        )
        if arm == "whole":
            first = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
            first.itself = first  # type: ignore[attr-defined]  # in a cycle, as a schedule makes one
            loss_of(model, batches[0]).backward()
            first.step()
            del first
        second = torch.optim.AdamW(model.parameters(), lr=0.1)
        assert all(
            torch.equal(one, other) for one, other in zip(weights, model.parameters(), strict=True)
        )
        for batch in batches[1:]:
            model.zero_grad()
            loss_of(model, batch).backward()
            second.step()


LOOPS: tuple[Callable[[], None], ...] = (
    *(
        plain,
        one_batch_ahead,
        skipped_batches,
        validation_between,
        measured_on_meta,
        estimated_with_fake_tensors,
        accumulation,
        two_optimizers,
        optimizer_in_backward,
    ),
    *(
        nothing_is_asked_for_after_the_last_batch,
        step_calls_step,
        overflow,
        no_ids,
        workers,
        workers_that_persist,
        odd_batches,
    ),
    *(fused_overflow, zero_redundancy, wrapped_iterators, closure, dcp, graph_is_let_go),
    *(
        gradients_from_elsewhere,
        loss_inside_the_step,
        dummy_step,
        state_asked_for_before_the_first_step,
        renamed,
    ),
    *(
        dcp_in_background,
        saved_by_a_thread,
        failed_steps,
        planned_failure_caught,
        told_and_seen,
        adapted,
    ),
    *(models_are_let_go, optimizer_made_anew),
)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    hooks.install()
    for loop in LOOPS:
        os.environ["ECRL_RECORD"] = str(folder / loop.__name__)
        loop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
