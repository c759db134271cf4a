"""Recording from within a framework: where the recorder cannot come in by PYTHONPATH (`python -I`,
a frozen environment, a launcher that clears it).

Each does nothing unless ECRL_RECORD names a folder; the framework is imported when its adapter is
made. Those of transformers and Accelerate say when a checkpoint is complete, those of Lightning and
transformers which model is trained; everything else is seen by the hooks, as in `ecrl audit`.

    lightning.Trainer(callbacks=[ecrl.adapters.lightning_callback()])
    transformers.Trainer(..., callbacks=[ecrl.adapters.trainer_callback()])
    accelerator = ecrl.adapters.recorded(Accelerator())

Workers of a Ray cluster that was there before the job have the environment of their node:

    RAY_RUNTIME_ENV_HOOK=ecrl.adapters.ray_workers ecrl audit -- python train.py --out {dir}
"""

from __future__ import annotations

import functools
import os
from typing import Any, Dict, Optional

from ecrl import Session, session
from ecrl.recording import FOLDER

__all__ = ["begin", "lightning_callback", "ray_workers", "recorded", "trainer_callback"]


def begin(model: Any = None, optimizer: Any = None) -> Session:
    """Hook torch in this process, if a recording is asked for and nobody has, and name what is
    trained.
    """
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
    """The `accelerate.Accelerator` itself, whose `save_state` and `load_state` are on record. Its
    models are found by their parameters.
    """
    save = accelerator.save_state

    @functools.wraps(save)
    def saving(*args: Any, **kwargs: Any) -> Any:
        folder = save(*args, **kwargs)
        session().saved(str(folder))
        return folder

    begin()
    accelerator.save_state = saving
    accelerator.register_load_state_pre_hook(lambda models, folder: session().loaded(str(folder)))
    return accelerator


def ray_workers(runtime_env: Optional[Dict[str, Any]]) -> Dict[str, Any]:
    """The runtime environment of a Ray job, with the variables of the recording for its workers:
    `ray.init` calls what RAY_RUNTIME_ENV_HOOK names with what the job gave it.
    """
    given = dict(runtime_env or {})
    if not os.environ.get(FOLDER):
        return given
    variables = dict(given.get("env_vars") or {})
    for name, value in os.environ.items():
        if name.startswith("ECRL_") or name == "PYTHONHASHSEED":
            variables[name] = value
    paths = (os.environ.get("PYTHONPATH", ""), variables.get("PYTHONPATH", ""))
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return {**given, "env_vars": variables}
