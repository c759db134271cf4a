"""Record a training job so that `ecrl audit` can judge it. Standard library only; does nothing
unless a recording is asked for.

A job needs none of this: `ecrl audit -- COMMAND` records by itself. A job whose steps the recorder
cannot see (an optimizer that is no torch.optim.Optimizer, say) tells of them itself:

    import ecrl
    rec = ecrl.session()
    for step in range(first, last):
        ...
        rec.step(step, loss=loss, samples=ids)

`ecrl.session()` writes where `ECRL_RECORD` names a folder, and is a no-op otherwise.

`ecrl.load("outputs/mine")` is the other direction: recorded runs as pandas DataFrames
(docs/data.md). It needs ECRL itself and what ECRL depends on, which are imported when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable, Optional

from ecrl.recording import Recording, current

if TYPE_CHECKING:
    from ecrl_cli.report.frames import Results

__all__ = ["Session", "load", "session"]


class Session:
    """A job's own record of its training. `recording` None: every call does nothing."""

    def __init__(self, recording: Optional[Recording]) -> None:
        self._recording = recording

    @property
    def active(self) -> bool:
        return self._recording is not None

    def step(
        self, step: int, loss: Any = None, samples: Optional[Iterable[int]] = None, **more: Any
    ) -> None:
        """One optimizer step is done: its number (from 1), its loss and the ids of its samples on
        this rank, in order.

        `more`: anything JSON can hold, such as `lr`, or digests of the state by the names of
        docs/recording.md (`params`, `optimizer`, `rng`).
        """
        if self._recording is None:
            return
        from ecrl.steps import with_planned_failures

        with_planned_failures("declared step", lambda found: found.declared(int(step)))
        value = float(loss) if loss is not None else None
        losses = [] if value is None else [value]
        ids = None if samples is None else [int(sample) for sample in samples]
        self._recording.declared_step(int(step), losses, ids, more)

    def watch(self, model: Any = None, optimizer: Any = None, **modules: Any) -> None:
        """Name what the state consists of, where it cannot be found by itself: `model`,
        `optimizer`, and others by name (`ema=...`).
        """
        if self._recording is not None:
            self._recording.watch(model, optimizer, modules)

    def saved(self, path: str) -> None:
        """A checkpoint is complete at `path`."""
        if self._recording is not None:
            self._recording.write("save", path=str(path), done=True)

    def loaded(self, path: str) -> None:
        """The job goes on from the checkpoint at `path`."""
        if self._recording is not None:
            self._recording.write("load", path=str(path))


def session() -> Session:
    """The session of this process."""
    return Session(current())


def load(*folders: Any, judge: bool = True) -> "Results":
    """Runs as DataFrames: `.runs`, `.steps`, `.checkpoints`, `.restarts`, `.recoveries`,
    `.verdicts`, `.effects`. Nothing is written.

    `folders`: run directories and sweep folders, as text or Path. `judge=False`: verdicts on file
    only.
    """
    # the recorder itself needs nothing but the standard library
    from ecrl_cli.report.frames import load as load_frames

    return load_frames(folders, judge)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from ecrl_cli import __version__

        return __version__
    raise AttributeError("module 'ecrl' has no attribute " + repr(name))
