"""One save from image to log line, for a rank that writes itself and for the background writer. Torch-free."""

from __future__ import annotations

import errno
from contextlib import suppress

from ecrl_cli.checkpoint.format.image import CheckpointImage
from ecrl_cli.checkpoint.store.checkpoint_log import CheckpointLog
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.errors import EcrlError, Fenced, StorageError
from ecrl_cli.linux.clock import monotonic


def save_and_record(store: CheckpointStore, image: CheckpointImage, attempt: int, log: CheckpointLog) -> bool:
    """Commit `image` and log the outcome: `committed`, or `failed` with the reason. Returns whether it is committed.

    StorageError is not raised: `log.failure` has it, and `checkpoint.on_error` decides what follows. Fenced is logged and raised.
    Errors with pointers or retention do not make a committed checkpoint a failed one; the next save tries both again.
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
    except Exception as error:  # a bug here must not leave a submitted checkpoint without an outcome
        log.failed(step, EcrlError("save", f"{type(error).__name__}: {error}", "report this"), monotonic() - began)
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
