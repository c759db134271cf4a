"""The record of one process: JSON lines, one file per process, written straight to the kernel so
that a kill loses no line but those of batches that no step has consumed yet.

Format 1 (documented in docs/recording.md; unknown keys are allowed):

    process  who writes: rank, world_size, attempt, pid, versions, the name of the digest
    epoch    a loader begins anew
    batch    a batch came out of a loader: ids (map-style data), hash of its tensors
    start    the state before the first step: digests
    step     an optimizer step: batches, losses, lr, scale, digests after it
    save     a checkpoint: begun, then done; load: read
    call     something that restores or moves a position: set_epoch, load_state_dict, ...
    file     an operation on a file of the arm's folder
    strike   a planned failure, written before it
    trouble  the recorder could not see something: what, and why
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import weakref
from typing import Any, Callable, Dict, List, Optional

from ecrl.masking import masked

FORMAT = 1
FOLDER, ATTEMPT = "ECRL_RECORD", "ECRL_ATTEMPT"
# how long a batch may wait to be written: the auditor takes a record that does not grow for a job
# that hangs
_HELD_S = 1.0
MAX_IDS = 1_000_000  # of one batch: more are not written out

_current: Optional["Recording"] = None


# CPython's dictionary below `os.environ`, which decodes a value anew, several times a step
_variables: Any = getattr(os.environ, "_data", os.environ)
_key = FOLDER if _variables is os.environ else os.environ.encodekey(FOLDER)


def _encoder() -> Callable[[Any], str]:
    """Encodes like `json.dumps` with these separators, which makes an encoder anew for each line;
    CPython's own is kept where it is to be had.
    """
    try:
        make = json.encoder.c_make_encoder  # type: ignore[attr-defined,misc,unused-ignore]
        plain = json.encoder.encode_basestring_ascii
        made = make(None, str, plain, None, ":", ",", False, False, True)

        def encode(value: Any) -> str:
            return "".join(made(value, 0))

        if encode({"a": [1.5, None, True], "b": "\n"}) == '{"a":[1.5,null,true],"b":"\\n"}':
            return encode
    except Exception:  # another Python than CPython, or a later one
        pass
    return json.JSONEncoder(separators=(",", ":"), default=str).encode


_encode = _encoder()


def current() -> Optional["Recording"]:
    """The recording of this process; None where ECRL_RECORD names no folder."""
    global _current
    folder = _variables.get(_key)
    if not folder:
        return None
    if _current is None or _current.pid != os.getpid() or _current.named != folder:
        _current = Recording(os.fsdecode(folder))
        _current.named = folder
    return _current


def reference_to(thing: Any) -> Callable[[], Any]:
    """A weak reference to a model or an optimizer, which the recorder must not keep alive when the
    job lets go of it; else a strong one.
    """
    try:
        if hasattr(thing, "named_parameters") or hasattr(thing, "param_groups"):
            return weakref.ref(thing)
    except TypeError:  # of a class with __slots__
        pass
    return lambda: thing


def rank_of_this_process() -> int:
    """The rank according to torch.distributed, else to the launcher's environment, else 0."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank())
    except Exception:  # a group that is being taken apart
        pass
    return _from_environment(_RANKS, 0)


def world_size() -> int:
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_world_size())
    except Exception:
        pass
    return _from_environment(("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"), 1)


def attempt_number() -> int:
    """The launch that this process belongs to: those of the auditor, and the restarts that torchrun
    does by itself.
    """
    return _from_environment((ATTEMPT,), 0) + _from_environment(("TORCHELASTIC_RESTART_COUNT",), 0)


_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def rank_is_known() -> bool:
    """Whether the launcher or torch.distributed has told this process its rank."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return True
    except Exception:  # half imported
        pass
    return any(os.environ.get(name, "").isdigit() for name in _RANKS)


def _from_environment(names: Any, default: int) -> int:
    for name in names:
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return default


class Recording:
    """Writes the lines of this process. Nothing is created before the first line; no error of the
    recorder reaches the job.
    """

    def __init__(self, folder: str) -> None:
        self.folder, self.pid = folder, os.getpid()
        self.named: Any = folder  # as the environment has it
        self.attempt = attempt_number()
        self.broken = False
        self.seen = False  # the hooks see the steps of this process, and digest its state
        self._declared_at = 0.0  # the last step that the job itself told of
        self._watched: Dict[str, Callable[[], Any]] = {}
        self._fd = -1
        self._rank = 0
        # one thread at a time, which may be inside a write already: a handler of a signal
        self._lock = threading.RLock()
        self._held: List[str] = []  # batches that wait for the next line
        self._wrote = 0.0

    @property
    def rank(self) -> int:
        return self._rank if self._fd >= 0 else rank_of_this_process()

    def write(self, record: str, /, **fields: Any) -> None:
        """Append one line; that of a batch goes with the next one, up to a second later. What
        cannot be written is given up once, with a word on standard error.
        """
        if self.broken:
            return
        try:
            now = time.monotonic()
            line = _encode({"type": record, "at": now, "time": time.time(), **fields}) + "\n"
            with self._lock:
                if self._fd < 0:
                    self._open()
                self._held.append(line)
                if record != "batch" or now - self._wrote > _HELD_S:
                    held, self._held, self._wrote = self._held, [], now
                    os.write(self._fd, "".join(held).encode("utf-8", "replace"))
        except Exception as error:
            self.broken = True
            sys.stderr.write(
                "ecrl: this process is no longer recorded (%s: %s)\n"
                % (type(error).__name__, error)
            )

    @property
    def opened(self) -> bool:
        """Whether anything is written yet."""
        return self._fd >= 0

    def append(self, record: str, /, **fields: Any) -> None:
        """Append one line, from any thread: nothing that is held for another is touched."""
        if self.broken:
            return
        try:
            with self._lock:
                if self._fd < 0:
                    self._open()
            os.write(
                self._fd, (_encode({"type": record, **fields}) + "\n").encode("utf-8", "replace")
            )
        except Exception as error:
            self.broken = True
            sys.stderr.write(
                "ecrl: this process is no longer recorded (%s: %s)\n"
                % (type(error).__name__, error)
            )

    def trouble(self, what: str, error: BaseException) -> None:
        """The recorder could not do something: the verdict on it becomes unknown, the job goes
        on.
        """
        self.write("trouble", what=what, error="%s: %s" % (type(error).__name__, str(error)[:300]))

    def watch(self, model: Any, optimizer: Any, modules: Dict[str, Any]) -> None:
        named = dict(modules)
        if model is not None:
            named["model"] = model
        if optimizer is not None:
            named["optimizer"] = optimizer
        self._watched.update({name: reference_to(thing) for name, thing in named.items()})

    def watched(self) -> Dict[str, Any]:
        """The objects that the job watches by name, without the models and optimizers that it has
        let go of.
        """
        found = {name: reference() for name, reference in self._watched.items()}
        return {name: thing for name, thing in found.items() if thing is not None}

    def declared_step(
        self, step: int, losses: List[float], ids: Optional[List[int]], more: Dict[str, Any]
    ) -> None:
        """A step that the job itself tells of, with digests of what it watches; where the hooks see
        its steps, model and optimizer are on record.
        """
        now = time.monotonic()
        fields: Dict[str, Any] = {"step": step, "declared": True, "losses": losses}
        if self._declared_at:
            fields["seconds"] = now - self._declared_at
        self._declared_at = now
        try:
            fields.update(self._watched_digests())
        except Exception as error:
            self.trouble("watch", error)
        if ids is not None:
            fields["ids"] = ids[:MAX_IDS]
        fields.update(more)
        self.write("step", **fields)

    def _watched_digests(self) -> Dict[str, Any]:
        named = self.watched()
        if not named:
            return {}
        from ecrl import digests

        found: Dict[str, Any] = {"watched": digests.watched(named)}
        if self.seen:
            return found
        model, optimizer = named.get("model"), named.get("optimizer")
        if model is not None:
            found["params"] = digests.of_named(model.named_parameters())
            found["buffers"] = digests.buffers([model])
        if optimizer is not None:
            found["optimizer"], _ = digests.optimizer_state([optimizer])
            found["settings"] = digests.settings([optimizer])
        return found

    def _open(self) -> None:
        self._rank = rank_of_this_process()
        folder = os.path.join(self.folder, "attempt-%02d" % self.attempt)
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "rank%d-%d.jsonl" % (self._rank, self.pid))
        self._fd = os.open(
            path,
            os.O_WRONLY
            | os.O_CREAT
            | os.O_APPEND
            | getattr(os, "O_CLOEXEC", 0)
            | getattr(os, "O_NOFOLLOW", 0),
            0o644,
        )
        torch = sys.modules.get("torch")
        self.write(
            "process",
            format=FORMAT,
            rank=self._rank,
            world_size=world_size(),
            attempt=self.attempt,
            pid=self.pid,
            python="%d.%d.%d" % sys.version_info[:3],
            torch=str(getattr(torch, "__version__", "")),
            argv=masked([str(word) for word in sys.argv][:64]),
        )
