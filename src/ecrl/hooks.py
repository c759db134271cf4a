"""The hooks in torch by which a job is recorded without a change to its script.

Installed by `install()`, at once where torch is imported already, else when it is (a finder on
sys.meta_path: importing torch is the job's business). Every hook keeps the job's behaviour: what
fails in it is recorded as trouble and goes no further.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
import threading
from collections import deque
from typing import Any, Callable, Dict, List, Optional, Set

from ecrl import control, file_hooks, seeding
from ecrl.door import patch_module_call
from ecrl.recording import MAX_IDS, current
from ecrl.saves import patch_dcp, patch_lightning, patch_renames, patch_serialization, patch_signals
from ecrl.steps import StepRecorder, own, quietly, recorder, with_planned_failures

Patch = Callable[[Any], None]


def patch_optimizer(module: Any) -> None:
    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        closure = kwargs.get("closure") is not None or any(callable(value) for value in args[1:])
        with_planned_failures("optimizer step", lambda found: found.before_step(optimizer, closure))

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        with_planned_failures("optimizer step", lambda found: found.after_step(optimizer))

    made = module.Optimizer.__init__

    @functools.wraps(made)
    def constructed(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        quietly("optimizer", lambda found: found.constructed(self))

    module.Optimizer.__init__ = constructed
    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)
    told(module.Optimizer, "load_state_dict", "Optimizer.load_state_dict")
    control.leave_out(module.Optimizer, "optimizer", lambda: None)


def patch_backward(torch: Any) -> None:
    """torch.autograd.backward, which Tensor.backward calls."""
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        found = recorder()
        if found is None:
            return original(*args, **kwargs)
        tensors = args[0] if args else kwargs.get("tensors")
        loss = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
        try:
            with_planned_failures("backward", lambda found: found.backward_begins(loss), found)
            return original(*args, **kwargs)
        finally:
            quietly("backward", lambda found: found.backward_ends(), found)

    torch.autograd.backward = backward


def patch_loader(module: Any) -> None:
    base = module._BaseDataLoaderIter
    follow_loader(base)
    for kind in (module._SingleProcessDataLoaderIter, module._MultiProcessingDataLoaderIter):
        if "__next__" in vars(kind) or "_next_index" in vars(kind):
            follow_loader(kind)


def follow_loader(kind: Any) -> None:
    """Record what comes out of iterators of `kind`, with the indices that it asked its dataset
    for.
    """
    if "_next_index" in vars(kind):
        next_index = kind._next_index

        @functools.wraps(next_index)
        def asked(self: Any) -> Any:
            if getattr(own, "asking", False):
                return next_index(self)  # of a base class: one question
            own.asking = True
            try:
                index = next_index(self)
            finally:
                own.asking = False
            pending = self.__dict__.setdefault("_ecrl_indices", deque())
            pending.append(index)
            return index

        kind._next_index = asked
    if "__next__" not in vars(kind):
        return
    original = kind.__next__

    @functools.wraps(original)
    def following(self: Any) -> Any:
        found = recorder()
        if found is None or getattr(own, "inside", False):
            return original(self)  # one fetch, however many iterators wrap one another
        own.inside = True
        try:
            value = original(self)
        except StopIteration:
            quietly("loader", lambda found: found.exhausted(loader_of(self)), found)
            raise
        finally:
            own.inside = False

        def note(found: StepRecorder) -> None:
            found.iterates(loader_of(self), self)
            found.fetched(loader_of(self), ids_of(self), value)

        quietly("batch", note, found)
        return value

    kind.__next__ = following


def loader_of(iterator: Any) -> int:
    """A number for the loader's data set, the same in every epoch."""
    dataset = getattr(iterator, "_dataset", iterator)
    known = own.__dict__.setdefault("loaders", {})
    return int(known.setdefault(id(dataset), len(known)))


def ids_of(iterator: Any) -> Optional[List[int]]:
    """The indices of the batch that has just come out: the oldest asked for, because a loader
    delivers in the order of asking.
    """
    pending = iterator.__dict__.get("_ecrl_indices")
    index = pending.popleft() if pending else None
    if index is None or not getattr(iterator, "_in_order", True):
        return None
    items = (
        list(index) if isinstance(index, (list, tuple)) or hasattr(index, "__iter__") else [index]
    )
    if not items or len(items) > MAX_IDS or any(not hasattr(item, "__index__") for item in items):
        return None  # an iterable data set: its indices say nothing
    return [int(item) for item in items]


def told(
    kind: Any, name: str, what: str, details: Optional[Callable[..., Dict[str, Any]]] = None
) -> None:
    """Record each outermost call of `kind.name`."""
    original = getattr(kind, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        quietly(
            what, lambda found: found.call(what, **(details(*args, **kwargs) if details else {}))
        )
        return result

    setattr(kind, name, wrapper)


def patch_distributed_sampler(module: Any) -> None:
    told(
        module.DistributedSampler,
        "set_epoch",
        "DistributedSampler.set_epoch",
        lambda self, epoch: {"epoch": int(epoch)},
    )


def patch_scheduler(module: Any) -> None:
    kind = getattr(module, "LRScheduler", None) or module._LRScheduler
    told(
        kind,
        "load_state_dict",
        "LRScheduler.load_state_dict",
        lambda self, state: {"last_epoch": state.get("last_epoch")},
    )


def patch_scaler(module: Any) -> None:
    if "step" not in vars(module.GradScaler):
        return  # inherits from the one in torch.amp, which is patched
    told(
        module.GradScaler,
        "load_state_dict",
        "GradScaler.load_state_dict",
        lambda self, state: {"scale": state.get("scale")},
    )
    step, update = module.GradScaler.step, module.GradScaler.update

    @functools.wraps(step)
    def stepped(self: Any, *args: Any, **kwargs: Any) -> Any:
        def note(found: StepRecorder) -> None:
            if self.is_enabled():
                # no further wait for a GPU: step itself waits for what overflowed
                found.scale = float(self.get_scale())

        quietly("scaler", note)
        return step(self, *args, **kwargs)

    @functools.wraps(update)
    def updated(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = update(self, *args, **kwargs)

        def note(found: StepRecorder) -> None:
            if self.is_enabled():
                found.call("GradScaler.update", scale=float(self.get_scale()))
                found.left_out()

        quietly("scaler", note)
        return result

    module.GradScaler.step, module.GradScaler.update = stepped, updated


def patch_module(module: Any) -> None:
    patch_module_call(module)
    told(
        module.Module,
        "load_state_dict",
        "Module.load_state_dict",
        lambda self, *args, **kwargs: {"module": type(self).__name__},
    )
    control.leave_out(module.Module, "parameters", lambda: module._IncompatibleKeys([], []))


def patch_stateful_loader(module: Any) -> None:
    for name in (
        "_StatefulBaseDataLoaderIter",
        "_StatefulSingleProcessDataLoaderIter",
        "_StatefulMultiProcessingDataLoaderIter",
    ):
        kind = getattr(module, name, None)
        if kind is not None:
            follow_loader(kind)
    told(module.StatefulDataLoader, "load_state_dict", "StatefulDataLoader.load_state_dict")


def patch_streamed_data(module: Any) -> None:
    """Hugging Face's datasets, streamed."""
    kind, name = module.IterableDataset, "IterableDataset."
    told(kind, "load_state_dict", name + "load_state_dict")
    told(kind, "set_epoch", name + "set_epoch", lambda self, epoch, *args: {"epoch": epoch})

    def buffered(self: Any, *args: Any, **kwargs: Any) -> Dict[str, Any]:
        return {"buffer": args[2] if len(args) > 2 else kwargs.get("buffer_size", 1000)}

    told(kind, "shuffle", name + "shuffle", buffered)


def patch_torch(module: Any) -> None:
    patch_backward(module)
    patch_serialization(module)
    seeding.seed_torch(module)


PATCHES: Dict[str, Patch] = {
    "torch": patch_torch,
    "torch.optim.optimizer": patch_optimizer,
    "torch.optim.lr_scheduler": patch_scheduler,
    "torch.utils.data.dataloader": patch_loader,
    "torch.utils.data.distributed": patch_distributed_sampler,
    "torch.amp.grad_scaler": patch_scaler,
    "torch.cuda.amp.grad_scaler": patch_scaler,  # its own up to torch 2.2
    "torch.nn.modules.module": patch_module,
    "datasets.iterable_dataset": patch_streamed_data,
    "torch.distributed.checkpoint.state_dict_saver": patch_dcp,
    "torch.distributed.checkpoint.state_dict_loader": patch_dcp,
    "torchdata.stateful_dataloader.stateful_dataloader": patch_stateful_loader,
    "lightning.fabric.plugins.io.torch_io": patch_lightning,
    "lightning_fabric.plugins.io.torch_io": patch_lightning,
    **file_hooks.PATCHES,
    **seeding.PATCHES,
}


class PatchOnImport(importlib.abc.MetaPathFinder):
    """Patches a module of PATCHES right after it has been executed."""

    def __init__(self) -> None:
        self._busy = threading.local()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in PATCHES or getattr(self._busy, "name", None) == name:
            return None
        self._busy.name = name
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy.name = None
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return None
        execute = spec.loader.exec_module

        def executed(module: Any) -> None:
            execute(module)
            apply(name, module)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


_applied: Set[str] = set()
_installed = False


def apply(name: str, module: Any) -> None:
    """Patch once; a torch that lacks what is patched is recorded as trouble."""
    if name in _applied:
        return
    _applied.add(name)
    try:
        PATCHES[name](module)
    except Exception as error:
        recording = current()
        if recording is not None:
            recording.trouble("hook %s" % name, error)


def install() -> None:
    """Patch what is imported already, and the rest when it is; once."""
    global _installed
    if _installed:
        return
    _installed = True
    patch_renames()
    patch_signals()
    file_hooks.install()
    seeding.seed_python()
    for name in PATCHES:
        if name in sys.modules:
            apply(name, sys.modules[name])
    sys.meta_path.insert(0, PatchOnImport())
