"""The recorder of one process: follows it from batch to batch and from step to step. What calls it
is patched into torch (hooks.py, saves.py).
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Set, Tuple

from ecrl import digests
from ecrl.faults import Faults, PlannedFailure
from ecrl.objects import OptimizerSet, State, alive, found_models, overall, rates
from ecrl.recording import Recording, current, rank_of_this_process, world_size

MOST_EARLIER = 20_000  # states that are kept to see whether a step is taken back
# how often, in steps, parameters and optimizer state are digested; 0: never
DIGESTS = "ECRL_DIGESTS"


class StepRecorder:
    """Follows this process from batch to batch and from update to update.

    A step is the outermost call of an optimizer's `step`; further calls before the next backward
    (of other optimizers) amend it, and those from inside backward (an optimizer per parameter) are
    one step when backward ends. Its line tells two instants: the state behind the update, and,
    under `before`, the state just before it, which is what a checkpoint holds and a restarted
    process begins with. A batch belongs to the backward pass that consumes it: of the loader that
    was asked last (validation loaders are asked in between) the oldest one not yet consumed that
    the job still holds. Frameworks fetch one batch ahead; a job that skips batches after a restart
    lets go of them.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.faults = Faults.from_environment(recording)
        self.every = int(os.environ.get(DIGESTS, "1") or 0)
        self.steps = 0
        self.optimizers = OptimizerSet()
        # Weakly: a model that the recorder kept would keep its memory and its process group.
        self._models: List["weakref.ref[Any]"] = []
        self._modelled = False  # whether the models are known that belong to the optimizers of now
        self.depth = 0  # of nested optimizer.step calls
        self.height = 0  # of the call stack at the outermost of them
        self.dummy = False  # the step under way is none of the training
        self.closure = False  # the step under way computes its loss itself
        self.waiting = False  # the step under way has a closure, whose backward is still to come
        self.backward_depth = 0
        self.stepped: List[Any] = []  # the optimizers that the step under way consists of
        self.amend = False  # no backward since the last step
        self.done_by: Set[int] = set()  # the optimizers (ids) that the last step consists of
        self.losses: List[Any] = []
        self.backwards = 0
        self.entered: List[str] = []  # digests of what entered the model since the last step
        self.queues: Dict[int, Deque[Any]] = {}
        self.asked: Optional[int] = None
        # by loader: its iterator and how many batches that gave; how many an epoch has
        self.given: Dict[int, Tuple[Any, int]] = {}
        self.lengths: Dict[int, int] = {}
        self.batches = 0
        self.consumed: List[int] = []
        self.began = time.monotonic()
        self.started = False
        self.scale: Optional[float] = None
        self.before: Optional[Dict[str, Any]] = None  # the state before the update under way
        self.told: State = {}  # what the record says of each optimizer by now
        self.digested = -1  # the step after which the state was digested last
        self.before_state: State = {}
        self.last_state: State = {}  # behind the last step, if it was digested
        # states before an update, and after which step that was: see `taken_back`
        self.earlier: Dict[Any, int] = {}
        # finished checkpoints, by path: the step after which it was written
        self.saves: Dict[str, Dict[str, Any]] = {}
        self.thread = 0  # that trains

    # -- batches, and what enters the model

    def fetched(self, loader: int, ids: Optional[List[int]], value: Any) -> None:
        self.batches += 1
        leaves = list(digests.tensors_in(value))
        rows = digests.rows(leaves) if ids is None else None
        self.recording.write(
            "batch",
            n=self.batches,
            loader=loader,
            ids=ids,
            hash=digests.of_named(leaves),
            rows=rows,
        )
        self.queues.setdefault(loader, deque()).append(
            (self.batches, [weakref.ref(leaf) for _, leaf in leaves if hasattr(leaf, "detach")])
        )
        self.asked = loader

    def iterates(self, loader: int, iterator: Any) -> None:
        """`iterator` has given one more batch. An epoch whose every batch came out is over when the
        next one begins, though nobody asked for more.
        """
        reference, given = self.given.get(loader, (None, 0))
        if reference is None or reference() is not iterator:
            if given and given == self.lengths.get(loader):
                self.exhausted(loader)
            if getattr(iterator, "_persistent_workers", False):
                self.call("persistent_workers")
            if type(iterator).__name__.startswith("_Stateful"):  # torchdata's
                self.call("StatefulDataLoader")
            reference, given = weakref.ref(iterator), 0
            try:
                self.lengths[loader] = len(iterator)
            except Exception:  # of a data set that does not know
                self.lengths[loader] = -1
        self.given[loader] = (reference, given + 1)

    def exhausted(self, loader: int) -> None:
        self.given.pop(loader, None)
        self.asked = loader
        self.recording.write("epoch", loader=loader, after_step=self.steps)

    def forward_begins(self, args: Any, kwargs: Any) -> None:
        """The outermost forward pass of a module."""
        if self.backward_depth:
            return  # computed once more inside backward (activation checkpointing)
        entered = digests.entering(args, kwargs)
        if entered:
            self.entered.append(entered)

    # -- backward

    def backward_begins(self, loss: Any) -> None:
        self.backward_depth += 1
        if self.backward_depth > 1 or digests.without_values(loss):
            return
        if not self.closure:
            # a step under way failed and the job goes on: torch calls no post hook then
            self.depth = 0
        self.amend = False
        self.backwards += 1
        queue = self.queues.get(self.asked) if self.asked is not None else None
        if queue:
            self.consumed.append(consumed_from(queue, on_device(loss)))
            for loader in [
                key for key in self.queues if key != self.asked and len(self.queues[key]) > 1
            ]:
                del self.queues[loader]  # a validation loader: nothing of it is trained on
        # the value alone: no graph is kept
        self.losses.append(loss.detach() if hasattr(loss, "detach") else loss)
        if self.waiting:
            self.waiting = False
            self.in_front(True)
        self.faults.in_backward(self.next_step(), self.optimizers.alive)

    def backward_ends(self) -> None:
        self.backward_depth -= 1
        if self.backward_depth == 0 and self.stepped and not self.depth:
            self.step_done()

    # -- steps

    def next_step(self) -> int:
        return self.steps + 1

    def constructed(self, optimizer: Any) -> None:
        if self.optimizers.add(optimizer, collect=bool(self.steps)):
            self._modelled = False

    def declared(self, step: int) -> None:
        """Step `step` of the job is done, by its own word; where no hook sees its steps, a failure
        due before the step happens now, and files are counted by such steps.
        """
        if self.recording.seen:
            return
        self.faults.offset = step - self.next_step()
        self.faults.before_step(self.next_step())
        self.steps += 1
        self.thread = threading.get_ident()

    def before_step(self, optimizer: Any, closure: bool = False) -> None:
        """`closure`: forward and backward happen inside the step, as in Lightning: what is due
        before the update waits for them.
        """
        height = stack_height()
        if self.depth and height <= self.height:
            self.depth = 0  # not inside the step under way: that one failed and the job goes on
        self.depth += 1
        if self.depth > 1:
            if not self.dummy:
                self.constructed(optimizer)
            return
        if id(optimizer) in self.done_by:
            self.amend = False  # with gradients that no backward pass of this process has made
        self.height, self.closure = height, closure
        self.dummy = not closure and self.moves_nothing(optimizer)
        if self.dummy:
            before, after = (f"_optimizer_step_{when}_hooks" for when in ("pre", "post"))
            hooks = len(getattr(optimizer, before, ())) + len(getattr(optimizer, after, ()))
            by = caller_in(_STATE_DICT)
            self.call("Optimizer.step", moves_nothing=True, by=by, hooks=hooks)
            return
        self.constructed(optimizer)
        first = not self.stepped  # of those that step inside one backward, or of one update
        self.waiting = closure
        if not closure:
            self.in_front(first and not self.amend)

    def in_front(self, faults: bool) -> None:
        """Gradients are there, or about to be; the parameters are those that the step before left,
        or what the job has made of them since.
        """
        if self.before is None and not self.amend:
            self.before = self.state_before()
        if not self.started:
            self.started = True
            self.start()
        if faults:
            try:
                self.faults.before_step(self.next_step())
            except PlannedFailure:
                self.depth = 0  # torch calls no post hook for a step that raised
                raise

    def moves_nothing(self, optimizer: Any) -> bool:
        """A step of no backward pass at a learning rate of 0: DCP and others make an optimizer's
        state so, before a load. Or one of tensors without values: memory is estimated so.
        """
        parameters = (one for group in optimizer.param_groups for one in group["params"])
        return digests.without_values(next(parameters, None)) or (
            self.backwards == 0
            and self.backward_depth == 0
            and not self.amend
            and not any(rates([optimizer]))
        )

    def after_step(self, optimizer: Any) -> None:
        self.depth = max(0, self.depth - 1)
        if self.depth or self.dummy:
            return
        self.stepped.append(optimizer)
        if self.backward_depth and not self.closure:
            return  # an optimizer inside backward: the step is over when backward is
        if not self.amend:
            self.faults.in_optimizer(self.next_step())
        self.step_done()

    def digests_due(self, step: int) -> bool:
        return bool(self.every) and (step + self.faults.offset) % self.every == 0

    def state_before(self) -> Dict[str, Any]:
        """Just before an update. The record needs only what differs from what it says of the last
        step.
        """
        # The first update is digested whatever audit.digests says: by it a restart is known.
        state = (
            self.optimizers.state()
            if not self.started
            or self.digests_due(self.steps)
            or self.digests_due(self.next_step())
            else {}
        )
        changed = {name: parts for name, parts in state.items() if self.told.get(name) != parts}
        before: Dict[str, Any] = {"settings_of": self.settings_in(state), **digests.generators()}
        if state:
            before["objects"] = changed
        taken_back = self.taken_back(state)
        if taken_back:
            before["taken_back"] = taken_back
        self.told.update(state)
        self.before_state = state
        return before

    def taken_back(self, state: State) -> int:
        """How many steps the job has undone: the same tensors hold again what they held before an
        earlier update, and did not right after it (a search for a learning rate, a step that is
        tried). They are no steps of the training.
        """
        if not state:
            return 0
        held = frozenset(parts["params"] for parts in state.values())
        now, undone = (self.optimizers.identity(), held), 0
        if (
            now in self.earlier
            and self.last_state
            and held != frozenset(parts["params"] for parts in self.last_state.values())
        ):
            undone = self.steps - self.earlier[now]
            self.steps = self.earlier[now]
        if len(self.earlier) > MOST_EARLIER:
            self.earlier.pop(next(iter(self.earlier)))
        self.earlier[now] = self.steps
        return undone

    def settings_in(self, state: State) -> Dict[str, str]:
        """By optimizer, the settings at the instant of `state`, which holds them unless nothing was
        digested.
        """
        if state:
            return {name: parts["settings"] for name, parts in state.items()}
        return self.optimizers.settings()

    def start(self) -> None:
        """The state before the first step, and which step that is, if an earlier attempt had it."""
        self.find_models()
        state, settings = self.before_state, self.settings_in(self.before_state)
        resumed = self.faults.resumed_after(state)
        self.recording.write(
            "start",
            params=overall(state, "params"),
            buffers=digests.buffers(alive(self._models)),
            optimizer=overall(state, "optimizer"),
            entries=sum(self.optimizers.entries().values()),
            settings=overall({name: {"settings": settings[name]} for name in settings}, "settings"),
            objects=state,
            entries_of=self.optimizers.entries(),
            trainable=self.optimizers.trainable(),
            models=[type(model).__name__ for model in alive(self._models)],
            rank=rank_of_this_process(),
            world_size=world_size(),
            lr=rates(self.optimizers.alive),
            resumed_after=resumed,
            digest=digests.NAME,
            parameters=sum(
                1 for o in self.optimizers.alive for g in o.param_groups for _ in g["params"]
            ),
            watched=digests.watched(self.recording.watched()),
            **digests.generators(),
        )

    def find_models(self) -> None:
        """Again where the job has made an optimizer since: its model may be a new one."""
        if not self._modelled:
            self._models = [
                weakref.ref(model) for model in found_models(self.recording, self.optimizers.alive)
            ]
            self._modelled = True

    def step_done(self) -> None:
        """The outermost call is over: one line, or one that amends the line before."""
        fields: Dict[str, Any] = {}
        if self.amend:
            fields["amends"] = True
        else:
            self.steps += 1
            self.done_by.clear()
            self.recording.seen = True
            self.thread = threading.get_ident()
        self.done_by.update(id(optimizer) for optimizer in self.stepped)
        self.find_models()
        if self.digests_due(self.steps):
            fields.update(self.state_digests({id(optimizer) for optimizer in self.stepped}))
        else:
            self.last_state = {}
        settings = self.settings_in(self.last_state)
        now = time.monotonic()
        self.recording.write(
            "step",
            step=self.steps,
            who=self.optimizers.names(self.stepped),
            batches=self.consumed,
            entered=digests.shortened(self.entered),
            backwards=self.backwards,
            losses=[as_number(loss) for loss in self.losses],
            lr=rates(self.optimizers.alive),
            scale=self.scale,
            settings=overall({name: {"settings": settings[name]} for name in settings}, "settings"),
            settings_of=settings,
            before=self.before or {},
            seconds=now - self.began,
            **digests.generators(),
            **fields,
        )
        self.began, self.amend, self.before = now, True, None
        self.losses, self.consumed, self.backwards, self.stepped, self.entered = [], [], 0, [], []

    def state_digests(self, stepped: Any = ()) -> Dict[str, Any]:
        """After the newest step: of parameters, optimizer state, buffers, and what the job watches
        by name.
        """
        state = self.last_state = self.optimizers.state(stepped)
        self.digested = self.steps
        self.told = dict(state)
        return {
            "params": overall(state, "params"),
            "optimizer": overall(state, "optimizer"),
            "objects": state,
            "buffers": digests.buffers(alive(self._models)),
            "watched": digests.watched(self.recording.watched()),
        }

    def save_begins(self, path: str, **more: Any) -> None:
        """With the state's digests where they are not those of the step before: a later attempt
        that resumes from this is known by them.
        """
        overlapped, digested = self.overlapped(), {}  # type: Dict[str, bool], Dict[str, Any]
        if self.started and not overlapped and not self.stepped:
            state = self.optimizers.state()
            if self.digested != self.steps or state != self.last_state:
                digested = {
                    "params": overall(state, "params"),
                    "optimizer": overall(state, "optimizer"),
                    "objects": state,
                }
        self.recording.write(
            "save",
            path=os.path.abspath(path),
            done=False,
            after_step=self.steps,
            **digested,
            **overlapped,
            **more,
        )

    def overlapped(self) -> Dict[str, bool]:
        """Marks what another thread saves than the one that trains: it holds the state of an
        earlier step, and which is not known.
        """
        return {"overlapped": True} if self.steps and threading.get_ident() != self.thread else {}

    def left_out(self) -> None:
        """The scaler has finished a window: if no optimizer stepped since backward, its gradients
        overflowed. What it consumed is on no step's account, so that a restart before the next
        window finds that window's batches alone in its first step.
        """
        if self.amend or not self.backwards or self.backward_depth:
            return
        self.recording.write(
            "skip", after_step=self.steps, batches=self.consumed, backwards=self.backwards
        )
        self.losses, self.consumed, self.backwards, self.entered = [], [], 0, []

    # -- checkpoints

    def saved(self, path: str, after_step: Optional[int] = None, **details: Any) -> None:
        """A checkpoint is complete. Its path is kept: many jobs give it its name by a rename."""
        path = os.path.abspath(path)
        self.saves[path] = (
            {"after_step": self.steps, **self.overlapped()}
            if after_step is None
            else {"after_step": after_step}
        )
        self.recording.write("save", path=path, done=True, **self.saves[path], **details)

    def renamed(self, source: Any, target: Any) -> None:
        """Records that the file or folder saved under `source` is called `target` now."""
        if not self.saves:
            return
        old, new = os.path.abspath(os.fspath(source)), os.path.abspath(os.fspath(target))
        for path in [path for path in self.saves if path == old or path.startswith(old + os.sep)]:
            renamed = new + path[len(old) :]
            self.saves[renamed] = self.saves.pop(path)
            self.recording.write(
                "save", path=renamed, done=True, renamed=path, **self.saves[renamed]
            )

    def call(self, what: str, **details: Any) -> None:
        self.recording.write("call", what=what, after_step=self.steps, **details)


# makes a step of a fresh optimizer, so that it has a state
_STATE_DICT = "torch.distributed.checkpoint.state_dict"


def caller_in(module: str) -> str:
    """The function of `module` that the job called, of those that are under way; empty if none."""
    frame, name = sys._getframe(), ""  # type: Any, str
    while frame is not None:
        if frame.f_globals.get("__name__") == module:
            name = frame.f_code.co_name
        frame = frame.f_back
    return name


def stack_height() -> int:
    """How many calls are under way in this thread."""
    frame, height = sys._getframe(), 0
    while frame is not None:
        frame, height = frame.f_back, height + 1  # type: ignore[assignment]
    return height


def consumed_from(queue: Deque[Any], moved: bool) -> int:
    """Which batch a backward pass consumed; it and those before it leave the queue. `moved`:
    batches are copied to a device, so that the job lets go of the tensors that came out of the
    loader: of two, the first is then the one.
    """
    held = [
        number
        for number, references in queue
        if any(reference() is not None for reference in references)
    ]
    if moved and len(queue) <= 2:
        chosen = queue[0][0]
    else:
        chosen = held[0] if held else queue[-1][0]
    while queue and queue[0][0] <= chosen:
        queue.popleft()
    return int(chosen)


def on_device(loss: Any) -> bool:
    return not getattr(loss, "is_cpu", True)


def as_number(loss: Any) -> Any:
    """A loss as a number; one that has several elements, or none, is left out. On a GPU this is
    read after the step, when it is there anyway.
    """
    try:
        return float(loss.item()) if hasattr(loss, "item") else float(loss)
    except (ValueError, TypeError, RuntimeError):
        return None


existing: Optional[StepRecorder] = None
# what this thread is inside of, for hooks that are called within one another
own = threading.local()


def recorder() -> Optional[StepRecorder]:
    """This process's; None where nothing is recorded. A forked child has its own."""
    global existing
    recording = current()
    if recording is None:
        return None
    if existing is None or existing.recording is not recording:
        existing = StepRecorder(recording)
    return existing


def quietly(
    what: str, work: Callable[[StepRecorder], Any], found: Optional[StepRecorder] = None
) -> Any:
    """Do `work` for the record: what fails there is recorded as trouble, and the job goes on.
    `found`: the recorder, where it is known.
    """
    found = found or recorder()
    if found is None:
        return None
    try:
        return work(found)
    except Exception as error:
        found.recording.trouble(what, error)
        return None


def with_planned_failures(
    what: str, work: Callable[[StepRecorder], Any], found: Optional[StepRecorder] = None
) -> None:
    """Like `quietly`, but a planned failure that is an exception goes through to the job."""
    found = found or recorder()
    if found is None:
        return
    try:
        work(found)
    except PlannedFailure as planned:
        raise planned.error from None
    except Exception as error:
        found.recording.trouble(what, error)
