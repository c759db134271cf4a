"""Recording from within a framework: where the recorder cannot come in by PYTHONPATH (`python -I`, a frozen environment, a launcher that clears it).

Each does nothing unless ECRL_RECORD names a folder; the framework is imported when its adapter is made. Each names the model, so that its buffers are
on record, and says when a checkpoint is complete; what a step consumed and changed is seen by the hooks, as in `ecrl audit`.

    lightning.Trainer(callbacks=[ecrl.adapters.lightning_callback()])
    transformers.Trainer(..., callbacks=[ecrl.adapters.trainer_callback()])
    accelerator = ecrl.adapters.recorded(Accelerator())
"""

from __future__ import annotations

import os
from typing import Any

from ecrl import Session, session
from ecrl.recording import FOLDER

__all__ = ["begin", "lightning_callback", "recorded", "trainer_callback"]


def begin(model: Any = None, optimizer: Any = None) -> Session:
    """Hook torch in this process, if a recording is asked for and nobody has, and name what is trained."""
    if os.environ.get(FOLDER):
        from ecrl.hooks import install

        install()
    found = session()
    found.watch(model, optimizer)
    return found


def lightning_callback() -> Any:
    """A `lightning.pytorch.Callback`."""
    from lightning.pytorch import Callback

    class EcrlCallback(Callback):  # type: ignore[misc,unused-ignore]
        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            begin(pl_module)

    begin()
    return EcrlCallback()


def trainer_callback() -> Any:
    """A `transformers.TrainerCallback`."""
    from transformers import TrainerCallback

    class EcrlCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            begin(kwargs.get("model"), kwargs.get("optimizer"))

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            session().saved(os.path.join(args.output_dir, "checkpoint-%d" % state.global_step))

    begin()
    return EcrlCallback()


def recorded(accelerator: Any) -> Any:
    """The `accelerate.Accelerator` itself: its models are named when it saves or loads."""
    begin()

    def saving(models: Any, weights: Any, folder: str) -> None:
        for model in models[:1]:
            begin(model)

    def loading(models: Any, folder: str) -> None:
        for model in models[:1]:
            begin(model).loaded(folder)

    accelerator.register_save_state_pre_hook(saving)
    accelerator.register_load_state_pre_hook(loading)
    return accelerator
