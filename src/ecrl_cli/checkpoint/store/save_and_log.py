"""One save from image to journal, the same for the rank that writes itself and for the background writer. Torch-free."""

from __future__ import annotations

import errno
from contextlib import suppress

from ecrl_cli.checkpoint.format.image import CheckpointImage
from ecrl_cli.checkpoint.store.checkpoint_log import CheckpointLog
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.errors import EcrlError, Fenced, StorageError
from ecrl_cli.linux.clock import monotonic


def save_and_record(store: CheckpointStore, image: CheckpointImage, attempt: int, log: CheckpointLog) -> bool:
    """Commit `image` and write how it ended: `committed`, or `failed` with the reason. Gives whether it is committed.

    A refusal by the file system does not raise: `log.failure` has it, and `checkpoint.on_error` decides what follows. Fenced does,
    after it is on record. Trouble with the pointers or with retention makes no committed checkpoint a failed one; the next save tries
    both again.
    """
    step, began = image.stamp.global_step, monotonic()
    try:
        saved = store.save(image, attempt)
    except (StorageError, Fenced) as error:
        log.failed(step, error, monotonic() - began)
        if isinstance(error, Fenced):
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _retire(store, log)  # what an earlier save could not remove is the space that the next one needs
        return False
    except Exception as error:  # a defect here must not leave a submitted checkpoint without an end
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
