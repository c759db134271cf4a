"""Writes the lines of checkpoint_rank0.jsonl, for rank 0 and the background writer: one save from
image to outcome. Torch-free.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ecrl_cli.checkpoint.format.image import CheckpointImage
from ecrl_cli.checkpoint.store.store import CheckpointStore, Retired, Saved
from ecrl_cli.config.codec import decode
from ecrl_cli.errors import EcrlError, Fenced, StorageError
from ecrl_cli.linux.clock import monotonic, wall
from ecrl_cli.records.events import CHECKPOINT_ENDS, CheckpointLine
from ecrl_cli.records.journal import Journal, read_journal, read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import AttemptSpec


@dataclass(frozen=True)
class SaveTimes:
    """Seconds of a save: writing the files, waiting for their hashes, all else up to the
    acknowledgement. A failed save counts as writing only.
    """

    write_s: float = 0.0
    hash_s: float = 0.0
    commit_s: float = 0.0


class CheckpointLog:
    """One attempt's checkpoint journal. `failure`: the first failed save that was logged, in words;
    empty if none.
    `last_save`: the seconds of the save that was logged last.
    """

    def __init__(self, journal: Journal, layout: RunLayout, attempt: int) -> None:
        self._journal, self._layout, self._attempt = journal, layout, attempt
        self.failure = ""
        self.last_save = SaveTimes()

    def write(self, event: str, global_step: int, **values: Any) -> None:
        self._journal.append(
            CheckpointLine(event, global_step, self._attempt, monotonic(), wall(), **values)
        )

    def committed(self, global_step: int, saved: Saved) -> None:
        self.last_save = SaveTimes(saved.write_s, saved.hash_s, saved.commit_s)
        self.write(
            "committed",
            global_step,
            write_s=saved.write_s,
            hash_s=saved.hash_s,
            commit_s=saved.commit_s,
            bytes=saved.bytes,
            path=self._layout.relative(saved.path),
            commit_sha256=saved.commit_sha256,
            saved_state=saved.state,
        )

    def failed(self, global_step: int, error: EcrlError, write_s: float = 0.0) -> None:
        self.last_save = SaveTimes(write_s)
        text = self._layout.relative_text
        self.failure = self.failure or text(
            f"step {global_step} was not saved ({error.key}: {error.fact})"
        )
        self.write("failed", global_step, reason=text(error.line()), write_s=write_s)

    def pointer_failed(self, global_step: int, error: EcrlError) -> None:
        self.write("pointer_failed", global_step, reason=self._layout.relative_text(error.line()))

    def retired(self, gone: tuple[Retired, ...]) -> None:
        for checkpoint in gone:
            self.write(
                "retired",
                checkpoint.global_step,
                path=self._layout.relative(checkpoint.path),
                commit_sha256=checkpoint.commit_sha256,
            )

    def confirm(self, global_step: int, *, curable: bool) -> None:
        """Raise if `global_step` was logged as submitted but not as committed: StorageError, or
        EcrlError if `curable` by a restart.
        """
        events = read_journal(
            self._layout.attempt(self._attempt).checkpoints, CheckpointLine
        ).events
        found = {line.event: line for line in events if line.global_step == global_step}
        if "submitted" not in found or "committed" in found:
            return
        reason = (
            next((found[end].reason for end in CHECKPOINT_ENDS if end in found), None)
            or "the background writer has ended"
        )
        kind, code = (EcrlError, "unsaved") if curable else (StorageError, "")
        raise kind(
            "checkpoint",
            f"step {global_step} ends the attempt and was not saved ({reason})",
            "resume the run",
            code=code,
        )

    def close(self) -> None:
        self._journal.close()


def submitted(layout: RunLayout, order: AttemptSpec) -> bool:
    """Whether an attempt that `order` continues has already submitted a checkpoint of the step from
    which `order` resumes.
    """
    before = order.continues
    while before is not None:
        logs = layout.attempt(before)
        lines = read_journal(logs.checkpoints, CheckpointLine).events
        if any(
            line.event == "submitted" and line.global_step == order.resume_step for line in lines
        ):
            return True
        earlier = decode(AttemptSpec, read_json(logs.launch))
        older = earlier.continues if earlier.resume_step == order.resume_step else None
        # else a record that names itself would be followed for ever
        before = older if older is not None and older < before else None
    return False


def save_and_record(
    store: CheckpointStore, image: CheckpointImage, attempt: int, log: CheckpointLog
) -> bool:
    """Commit `image` and log the outcome: `committed`, or `failed` with the reason. Returns whether
    it is committed.

    StorageError is not raised: `log.failure` has it, and `checkpoint.on_error` decides what
    follows. Fenced is logged and raised. Errors with pointers or retention do not make a committed
    checkpoint a failed one; the next save tries both again.
    """
    step, began = image.stamp.global_step, monotonic()
    try:
        saved = store.save(image, attempt)
    except (StorageError, Fenced) as error:
        log.failed(step, error, monotonic() - began)
        if isinstance(error, Fenced):
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _retire(store, log)  # the disk is full: remove what an earlier save could not
        return False
    except Exception as error:
        # a bug here must not leave a submitted checkpoint without an outcome
        log.failed(
            step,
            EcrlError("save", f"{type(error).__name__}: {error}", "report this"),
            monotonic() - began,
        )
        return False
    log.committed(step, saved)
    with suppress(StorageError):
        log.retired(store.update_pointers_and_retire(saved, image))
        if store.pointer_error is not None:
            log.pointer_failed(step, store.pointer_error)
    return True


def _retire(store: CheckpointStore, log: CheckpointLog) -> None:
    with suppress(StorageError):
        log.retired(store.retire())
