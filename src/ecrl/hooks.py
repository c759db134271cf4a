"""What is hooked in torch, so that a job is recorded without a change to its script.

Installed by `install()`, at once where torch is imported already, else when it is (a finder on sys.meta_path: importing torch is the job's business).
Every hook keeps the job's behaviour: what fails in it is recorded as trouble and goes no further.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import os
import sys
import threading
import time
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Set

from ecrl import digests
from ecrl.recording import MAX_IDS, Recording, current
from ecrl.strikes import PlannedFailure, Strikes

DIGESTS = "ECRL_DIGESTS"  # how often, in steps, parameters and optimizer state are digested; 0: never

Patch = Callable[[Any], None]


class StepRecorder:
    """Follows this process from batch to batch and from step to step.

    A batch belongs to the backward pass that consumes it: of the loader that was asked last (validation loaders are asked in between) the oldest one
    not yet consumed that the job still holds. Frameworks fetch one batch ahead; a job that skips batches after a restart lets go of them.
    An optimizer step ends with the outermost call of `step`; further calls before the next backward (several optimizers) amend it, and those from
    inside backward (an optimizer per parameter) are one step when backward ends.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.strikes = Strikes.from_environment(recording)
        self.every = int(os.environ.get(DIGESTS, "1") or 0)
        self.steps = 0
        self.optimizers: List[Any] = []
        self.models: List[Any] = []
        self.depth = 0  # of nested optimizer.step calls
        self.height = 0  # of the call stack at the outermost of them
        self.dummy = False  # the step under way is none of the training
        self.closure = False  # the step under way computes its loss itself
        self.waiting = False  # the step under way has a closure, whose backward is still to come
        self.backward_depth = 0
        self.stepped_in_backward = False
        self.amend = False  # no backward since the last step
        self.losses: List[Any] = []
        self.backwards = 0
        self.queues: Dict[int, Deque[Any]] = {}
        self.asked: Optional[int] = None
        self.batches = 0
        self.consumed: List[int] = []
        self.began = time.monotonic()
        self.started = False
        self.scale: Optional[float] = None
        self.digested = -1  # the step behind which the state was digested last
        self.saves: Dict[str, Dict[str, Any]] = {}  # finished checkpoints, by path: the step behind which it was written
        self.thread = 0  # that trains

    # -- batches

    def fetched(self, loader: int, ids: Optional[List[int]], value: Any) -> None:
        self.batches += 1
        leaves = list(digests.tensors_in(value))
        rows = digests.rows(leaves) if ids is None else None
        self.recording.write("batch", n=self.batches, loader=loader, ids=ids, hash=digests.of_named(leaves), rows=rows)
        self.queues.setdefault(loader, deque()).append((self.batches, [weakref.ref(leaf) for _, leaf in leaves if hasattr(leaf, "detach")]))
        self.asked = loader

    def exhausted(self, loader: int) -> None:
        self.asked = loader
        self.recording.write("epoch", loader=loader, after_step=self.steps)

    # -- backward

    def backward_begins(self, loss: Any) -> None:
        self.backward_depth += 1
        if self.backward_depth > 1:
            return
        if not self.closure:
            self.depth = 0  # a step under way failed and the job goes on: torch calls no post hook then
        self.amend = False
        self.backwards += 1
        queue = self.queues.get(self.asked) if self.asked is not None else None
        if queue:
            self.consumed.append(consumed_from(queue, on_device(loss)))
            for loader in [key for key in self.queues if key != self.asked and len(self.queues[key]) > 1]:
                del self.queues[loader]  # a validation loader: nothing of it is trained on
        self.losses.append(loss.detach() if hasattr(loss, "detach") else loss)  # the value alone: no graph is kept
        if self.waiting:
            self.waiting = False
            self.in_front(True)
        self.strikes.in_backward(self.next_step(), self.optimizers)

    def backward_ends(self) -> None:
        self.backward_depth -= 1
        if self.backward_depth == 0 and self.stepped_in_backward:
            self.stepped_in_backward = False
            self.step_done()

    # -- steps

    def next_step(self) -> int:
        return self.steps + 1

    def before_step(self, optimizer: Any, closure: bool = False) -> None:
        """`closure`: forward and backward happen inside the step, as in Lightning: what is due in front of the update waits for them."""
        height = stack_height()
        if self.depth and height <= self.height:
            self.depth = 0  # not inside the step under way: that one failed and the job goes on
        self.depth += 1
        if self.depth > 1:
            if not self.dummy:
                self.know(optimizer)
            return
        self.height, self.closure = height, closure
        self.dummy = not closure and self.moves_nothing(optimizer)
        if self.dummy:
            return
        self.know(optimizer)
        self.waiting = closure
        if not closure:
            self.in_front(self.backward_depth == 0 and not self.amend)

    def in_front(self, strikes: bool) -> None:
        """Gradients are there, or about to be; the parameters are those of the step before."""
        if not self.started:
            self.started = True
            self.start()
        if strikes:
            try:
                self.strikes.before_step(self.next_step())
            except PlannedFailure:
                self.depth = 0  # torch calls no post hook for a step that raised
                raise

    def know(self, optimizer: Any) -> None:
        if not any(known is optimizer for known in self.optimizers):
            self.optimizers.append(optimizer)

    def moves_nothing(self, optimizer: Any) -> bool:
        """A step of no backward pass at a learning rate of 0: DCP and others make an optimizer's state so, in front of a load."""
        return self.backwards == 0 and self.backward_depth == 0 and not self.amend and not any(rates([optimizer]))

    def after_step(self, optimizer: Any) -> None:
        self.depth = max(0, self.depth - 1)
        if self.depth or self.dummy:
            return
        if self.backward_depth:
            self.stepped_in_backward = True
            return
        if not self.amend:
            self.strikes.in_optimizer(self.next_step())
        self.step_done()

    def start(self) -> None:
        """The state in front of the first step, and which step that is, if an earlier attempt had it."""
        self.models = found_models(self.recording, self.optimizers)
        params, optimizer, entries = self.state()
        self.digested = 0
        resumed = self.strikes.resumed_after(params, optimizer)
        self.recording.write(
            "start",
            params=params,
            buffers=digests.buffers(self.models),
            optimizer=optimizer,
            entries=entries,
            settings=digests.settings(self.optimizers),
            lr=rates(self.optimizers),
            resumed_after=resumed,
            digest=digests.NAME,
            parameters=sum(1 for o in self.optimizers for g in o.param_groups for _ in g["params"]),
            watched=digests.watched(self.recording.watched),
            **digests.generators(),
        )

    def state(self) -> Any:
        optimizer, entries = digests.optimizer_state(self.optimizers)
        return digests.parameters(self.optimizers), optimizer, entries

    def step_done(self) -> None:
        """The outermost call is over: one line, or one that amends the line before."""
        fields: Dict[str, Any] = {}
        if self.amend:
            fields["amends"] = True
        else:
            self.steps += 1
            self.recording.seen = True
            self.thread = threading.get_ident()
        if self.every and (self.steps + self.strikes.offset) % self.every == 0:
            fields.update(self.state_digests())
        now = time.monotonic()
        self.recording.write(
            "step",
            step=self.steps,
            batches=self.consumed,
            backwards=self.backwards,
            losses=[number(loss) for loss in self.losses],
            lr=rates(self.optimizers),
            scale=self.scale,
            settings=digests.settings(self.optimizers),
            seconds=now - self.began,
            **digests.generators(),
            **fields,
        )
        self.began, self.amend = now, True
        self.losses, self.consumed, self.backwards = [], [], 0

    def state_digests(self) -> Dict[str, Any]:
        """Behind the newest step: of parameters, optimizer state, buffers, and what the job watches by name."""
        params, optimizer, _ = self.state()
        self.digested = self.steps
        return {
            "params": params,
            "optimizer": optimizer,
            "buffers": digests.buffers(self.models),
            "watched": digests.watched(self.recording.watched),
        }

    def save_begins(self, path: str, **more: Any) -> None:
        """With the state's digests where the step had none: a later attempt that resumes from this is known by them."""
        overlapped = self.overlapped()
        state = self.state_digests() if self.started and self.digested != self.steps and not overlapped else {}
        self.recording.write("save", path=os.path.abspath(path), done=False, after_step=self.steps, **state, **overlapped, **more)

    def overlapped(self) -> Dict[str, bool]:
        """Marks what another thread saves than the one that trains: it holds the state of an earlier step, and which is not known."""
        return {"overlapped": True} if self.steps and threading.get_ident() != self.thread else {}

    def left_out(self) -> None:
        """The scaler has finished a window: if no optimizer stepped since backward, its gradients overflowed. What it consumed is on no step's
        account, so that a restart in front of the next window finds that window's batches alone in its first step."""
        if self.amend or not self.backwards or self.backward_depth:
            return
        self.recording.write("skip", after_step=self.steps, batches=self.consumed, backwards=self.backwards)
        self.losses, self.consumed, self.backwards = [], [], 0

    # -- checkpoints

    def saved(self, path: str, after_step: Optional[int] = None, **details: Any) -> None:
        """A checkpoint is complete. Its path is kept: many jobs give it its name by a rename."""
        path = os.path.abspath(path)
        self.saves[path] = {"after_step": self.steps, **self.overlapped()} if after_step is None else {"after_step": after_step}
        self.recording.write("save", path=path, done=True, **self.saves[path], **details)

    def renamed(self, source: Any, target: Any) -> None:
        """What was saved under `source`, a file or a folder, is called `target` now."""
        if not self.saves:
            return
        old, new = os.path.abspath(os.fspath(source)), os.path.abspath(os.fspath(target))
        for path in [path for path in self.saves if path == old or path.startswith(old + os.sep)]:
            renamed = new + path[len(old) :]
            self.saves[renamed] = self.saves.pop(path)
            self.recording.write("save", path=renamed, done=True, renamed=path, **self.saves[renamed])

    def call(self, what: str, **details: Any) -> None:
        self.recording.write("call", what=what, after_step=self.steps, **details)


def stack_height() -> int:
    """How many calls are under way in this thread."""
    frame, height = sys._getframe(), 0
    while frame is not None:
        frame, height = frame.f_back, height + 1  # type: ignore[assignment]
    return height


def consumed_from(queue: Deque[Any], moved: bool) -> int:
    """Which batch a backward pass consumed; it and those before it leave the queue. `moved`: batches are copied to a device, so that the job lets
    go of the tensors that came out of the loader: of two, the first is then the one."""
    held = [number for number, references in queue if any(reference() is not None for reference in references)]
    if moved and len(queue) <= 2:
        chosen = queue[0][0]
    else:
        chosen = held[0] if held else queue[-1][0]
    while queue and queue[0][0] <= chosen:
        queue.popleft()
    return int(chosen)


def on_device(loss: Any) -> bool:
    return getattr(getattr(loss, "device", None), "type", "cpu") != "cpu"


_recorder: Optional[StepRecorder] = None
_own = threading.local()


def recorder() -> Optional[StepRecorder]:
    """This process's; None where nothing is recorded. A forked child has its own."""
    global _recorder
    recording = current()
    if recording is None:
        return None
    if _recorder is None or _recorder.recording is not recording:
        _recorder = StepRecorder(recording)
    return _recorder


def quietly(what: str, work: Callable[[StepRecorder], Any], found: Optional[StepRecorder] = None) -> Any:
    """Do `work` for the record: what fails there is recorded as trouble, and the job goes on. `found`: the recorder, where it is known."""
    found = found or recorder()
    if found is None:
        return None
    try:
        return work(found)
    except Exception as error:
        found.recording.trouble(what, error)
        return None


def number(loss: Any) -> Any:
    """A loss as a number; one that has several elements, or none, is left out. On a GPU this is read after the step, when it is there anyway."""
    try:
        return float(loss.detach().double().item()) if hasattr(loss, "detach") else float(loss)
    except (ValueError, TypeError, RuntimeError):
        return None


def rates(optimizers: List[Any]) -> List[float]:
    return [float(group["lr"]) for optimizer in optimizers for group in optimizer.param_groups if "lr" in group]


def found_models(recording: Recording, optimizers: List[Any]) -> List[Any]:
    """The outermost modules that own the parameters: those that the job named, else those that are found in memory."""
    import gc

    import torch

    named = [value for key, value in sorted(recording.watched.items()) if isinstance(value, torch.nn.Module)]
    if named:
        return named
    owned = {id(parameter) for optimizer in optimizers for group in optimizer.param_groups for parameter in group["params"]}
    candidates = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module)]
    holders = [module for module in candidates if any(id(parameter) in owned for parameter in module.parameters())]
    inner = {id(child) for module in holders for child in module.modules() if child is not module}
    return sorted((module for module in holders if id(module) not in inner), key=lambda module: type(module).__name__)


# -- what is patched, by module


def patch_optimizer(module: Any) -> None:
    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        closure = kwargs.get("closure") is not None or any(callable(value) for value in args[1:])
        strike_through("optimizer step", lambda found: found.before_step(optimizer, closure))

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        strike_through("optimizer step", lambda found: found.after_step(optimizer))

    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)
    told(module.Optimizer, "load_state_dict", "Optimizer.load_state_dict")


def strike_through(what: str, work: Callable[[StepRecorder], Any], found: Optional[StepRecorder] = None) -> None:
    """As `quietly`, but a planned failure that is an exception goes through to the job."""
    found = found or recorder()
    if found is None:
        return
    try:
        work(found)
    except PlannedFailure as planned:
        raise planned.error from None
    except Exception as error:
        found.recording.trouble(what, error)


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
            strike_through("backward", lambda found: found.backward_begins(loss), found)
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
    """Record what comes out of iterators of `kind`, with the indices that it asked its dataset for."""
    if "_next_index" in vars(kind):
        next_index = kind._next_index

        @functools.wraps(next_index)
        def asked(self: Any) -> Any:
            if getattr(_own, "asking", False):
                return next_index(self)  # of a base class: one question
            _own.asking = True
            try:
                index = next_index(self)
            finally:
                _own.asking = False
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
        if found is None or getattr(_own, "inside", False):
            return original(self)  # one fetch, however many iterators wrap one another
        _own.inside = True
        try:
            value = original(self)
        except StopIteration:
            quietly("loader", lambda found: found.exhausted(loader_of(self)), found)
            raise
        finally:
            _own.inside = False
        quietly("batch", lambda found: found.fetched(loader_of(self), ids_of(self), value), found)
        return value

    kind.__next__ = following


def loader_of(iterator: Any) -> int:
    """A number for the loader's data set, the same in every epoch."""
    dataset = getattr(iterator, "_dataset", iterator)
    known = _own.__dict__.setdefault("loaders", {})
    return int(known.setdefault(id(dataset), len(known)))


def ids_of(iterator: Any) -> Optional[List[int]]:
    """The indices of the batch that has just come out: the oldest asked for, because a loader delivers in the order of asking."""
    pending = iterator.__dict__.get("_ecrl_indices")
    index = pending.popleft() if pending else None
    if index is None or not getattr(iterator, "_in_order", True):
        return None
    items = list(index) if isinstance(index, (list, tuple)) or hasattr(index, "__iter__") else [index]
    if not items or len(items) > MAX_IDS or any(not hasattr(item, "__index__") for item in items):
        return None  # an iterable data set: its indices say nothing
    return [int(item) for item in items]


def told(kind: Any, name: str, what: str, details: Optional[Callable[..., Dict[str, Any]]] = None) -> None:
    """Record each outermost call of `kind.name`."""
    original = getattr(kind, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        quietly(what, lambda found: found.call(what, **(details(*args, **kwargs) if details else {})))
        return result

    setattr(kind, name, wrapper)


def patch_distributed_sampler(module: Any) -> None:
    told(module.DistributedSampler, "set_epoch", "DistributedSampler.set_epoch", lambda self, epoch: {"epoch": int(epoch)})


def patch_scheduler(module: Any) -> None:
    kind = getattr(module, "LRScheduler", None) or module._LRScheduler
    told(kind, "load_state_dict", "LRScheduler.load_state_dict", lambda self, state: {"last_epoch": state.get("last_epoch")})


def patch_scaler(module: Any) -> None:
    if "step" not in vars(module.GradScaler):
        return  # inherits from the one in torch.amp, which is patched
    told(module.GradScaler, "load_state_dict", "GradScaler.load_state_dict", lambda self, state: {"scale": state.get("scale")})
    step, update = module.GradScaler.step, module.GradScaler.update

    @functools.wraps(step)
    def stepped(self: Any, *args: Any, **kwargs: Any) -> Any:
        def note(found: StepRecorder) -> None:
            if self.is_enabled():
                found.scale = float(self.get_scale())  # no further wait for a GPU: step itself waits for what overflowed

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
    told(module.Module, "load_state_dict", "Module.load_state_dict", lambda self, *args, **kwargs: {"module": type(self).__name__})


def patch_serialization(torch: Any) -> None:
    save, load = torch.save, torch.load

    @functools.wraps(save)
    def saving(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        found, path = recorder(), path_of(f)
        if found is None or not path or getattr(_own, "saving", False):
            return save(obj, f, *args, **kwargs)
        _own.saving = True
        began = time.monotonic()
        try:
            quietly("save", lambda found: found.save_begins(path))
            strike_through("save", lambda found: found.strikes.in_save(found.steps, lambda: save(obj, path + ".ecrl-whole", *args, **kwargs), path))
            result = save(obj, f, *args, **kwargs)
        finally:
            _own.saving = False
        seconds = time.monotonic() - began
        quietly("save", lambda found: found.saved(path, seconds=seconds))
        return result

    @functools.wraps(load)
    def loading(f: Any, *args: Any, **kwargs: Any) -> Any:
        result = load(f, *args, **kwargs)
        path = path_of(f)
        if path:
            quietly("load", lambda found: found.recording.write("load", path=os.path.abspath(path), after_step=found.steps))
        return result

    torch.save, torch.load = saving, loading
    torch.serialization.save, torch.serialization.load = saving, loading


def patch_lightning(module: Any) -> None:
    """Lightning serialises into memory and writes the bytes itself."""
    original = module.TorchCheckpointIO.save_checkpoint

    @functools.wraps(original)
    def saving(self: Any, checkpoint: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        place, began = os.path.abspath(str(path)), time.monotonic()
        quietly("save", lambda found: found.save_begins(place, by="lightning"))
        strike_through("save", lambda found: found.strikes.at_save(found.steps))
        original(self, checkpoint, path, *args, **kwargs)
        quietly("save", lambda found: found.saved(place, by="lightning", seconds=time.monotonic() - began))

    module.TorchCheckpointIO.save_checkpoint = saving


def path_of(file: Any) -> str:
    """The path that is written or read; empty for a buffer in memory."""
    if isinstance(file, (str, os.PathLike)):
        return os.fspath(file) if isinstance(os.fspath(file), str) else ""
    name = getattr(file, "name", "")
    return name if isinstance(name, str) else ""


def patch_dcp(module: Any) -> None:
    """Where DCP's functions are defined, and where its package has them already."""
    package = sys.modules.get("torch.distributed.checkpoint")
    for name in ("save", "async_save", "load"):
        original = getattr(module, name, None)
        if original is not None:
            followed = followed_dcp(original, name)
            setattr(module, name, followed)
            if getattr(package, name, None) is original:
                setattr(package, name, followed)


_in_background: Dict[str, int] = {}  # checkpoints that async_save is writing, and the thread that asked for each


def followed_dcp(original: Any, kind: str) -> Any:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if recorder() is None or getattr(_own, "saving", False):
            return original(*args, **kwargs)  # one save calls another
        path, began, thread = dcp_path(args, kwargs), time.monotonic(), threading.get_ident()
        inner = kind == "save" and _in_background.get(path, thread) != thread  # async_save calls save in a thread of its own
        if kind != "load" and not inner:
            quietly("save", lambda found: found.save_begins(path, by="dcp"))
            strike_through("save", lambda found: found.strikes.at_save(found.steps))
        if kind == "async_save":
            _in_background[path] = thread
        _own.saving = True
        try:
            result = original(*args, **kwargs)
        except BaseException:
            _in_background.pop(path, None)
            raise
        finally:
            _own.saving = False
        if not inner:
            quietly(kind, lambda found: tell_dcp(found, kind, path, time.monotonic() - began, result))
        return result

    return wrapper


def tell_dcp(found: StepRecorder, kind: str, path: str, seconds: float, result: Any) -> None:
    """A load is over. A save too; or, where it goes on behind the job's back, when its future is done. `seconds`: what the job waited."""
    if kind == "load":
        found.recording.write("load", path=path, after_step=found.steps, by="dcp", seconds=seconds)
        return
    steps, future = found.steps, getattr(result, "upload_completion", result)

    def done(future: Any = None) -> None:
        _in_background.pop(path, None)
        if future is None or future.exception() is None:
            found.saved(path, steps, by="dcp", seconds=seconds)

    if hasattr(future, "add_done_callback"):
        future.add_done_callback(done)
    else:
        done()


def dcp_path(args: Any, kwargs: Any) -> str:
    """What `checkpoint_id` names, else the folder of the storage writer or reader."""
    named = kwargs.get("checkpoint_id")
    storage = kwargs.get("storage_writer") or kwargs.get("storage_reader")
    for place in (named, *args[1:2], getattr(storage, "path", None)):
        if isinstance(place, (str, os.PathLike)):
            return str(place)
    return ""


def patch_stateful_loader(module: Any) -> None:
    for name in ("_StatefulBaseDataLoaderIter", "_StatefulSingleProcessDataLoaderIter", "_StatefulMultiProcessingDataLoaderIter"):
        kind = getattr(module, name, None)
        if kind is not None:
            follow_loader(kind)
    told(module.StatefulDataLoader, "load_state_dict", "StatefulDataLoader.load_state_dict")


def patch_torch(module: Any) -> None:
    patch_backward(module)
    patch_serialization(module)


PATCHES: Dict[str, Patch] = {
    "torch": patch_torch,
    "torch.optim.optimizer": patch_optimizer,
    "torch.optim.lr_scheduler": patch_scheduler,
    "torch.utils.data.dataloader": patch_loader,
    "torch.utils.data.distributed": patch_distributed_sampler,
    "torch.amp.grad_scaler": patch_scaler,
    "torch.cuda.amp.grad_scaler": patch_scaler,  # its own up to torch 2.2
    "torch.nn.modules.module": patch_module,
    "torch.distributed.checkpoint.state_dict_saver": patch_dcp,
    "torch.distributed.checkpoint.state_dict_loader": patch_dcp,
    "torchdata.stateful_dataloader.stateful_dataloader": patch_stateful_loader,
    "lightning.fabric.plugins.io.torch_io": patch_lightning,
    "lightning_fabric.plugins.io.torch_io": patch_lightning,
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


def patch_renames() -> None:
    """os.replace and os.rename, through which a finished checkpoint gets its name."""
    for name in ("replace", "rename"):
        setattr(os, name, followed_rename(getattr(os, name)))


def followed_rename(original: Any) -> Any:
    @functools.wraps(original)
    def moving(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
        original(src, dst, *args, **kwargs)
        if _recorder is not None:
            quietly("rename", lambda found: found.renamed(src, dst))

    return moving


def install() -> None:
    """Patch what is imported already, and the rest when it is; once."""
    global _installed
    if _installed:
        return
    _installed = True
    patch_renames()
    for name in PATCHES:
        if name in sys.modules:
            apply(name, sys.modules[name])
    sys.meta_path.insert(0, PatchOnImport())
