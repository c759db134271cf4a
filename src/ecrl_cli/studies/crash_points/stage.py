"""The study's side of a crash: the connection to the crash server, and rank 0 of the overlapped strategy."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

from ecrl_cli.checkpoint.format.image import CheckpointImage, ImagePlan
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.studies.crash_points.crash_targets import Save
from ecrl_cli.studies.crash_points.store_fixture import VICTIM, Payload


class KillerProcess:
    """`folder`: where the trials lie; removed when this is closed, or when this process is killed."""

    def __init__(self, where: str, payload: Payload) -> None:
        command = [sys.executable, "-m", "ecrl_cli.studies.crash_points.crash_server", where]
        command += [str(number) for number in (payload.seed, payload.model_bytes, payload.optimizer_bytes)]
        single = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # no threads before a fork
        # In its own process session: a signal to the study's process group must not end the process that removes the folder.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=single, start_new_session=True)
        self.folder = Path(self._heard()["folder"])

    def ask(self, do: str, run: RunLayout, save: Save, **values: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, "root": str(run.root), "save": dataclasses.asdict(save), **values}) + "\n")
        self._process.stdin.flush()
        return self._heard()

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _heard(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process that forks the victims has ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def hand_over(run: RunLayout, plan: ImagePlan, image: CheckpointImage) -> bool:
    """Submit `image` to the run's background writer as rank 0 does; returns whether the writer survived to acknowledge the save."""
    from ecrl_cli.checkpoint.writer.client import WriterClient, WriterGone  # imported late: it imports torch

    client = WriterClient(run, lambda memory: cast(Any, memory))  # plain memory instead of a staging buffer of tensors
    try:
        client.open(VICTIM, plan.nbytes, 1, plan.parts)
        number, slot = client.take()
        view = cast(Any, slot).view
        view[: len(image.memory)] = image.memory
        client.submit(number, CheckpointImage(image.stamp, view, image.parts, image.documents))
        client.wait_idle()
    except WriterGone:
        return False
    finally:
        client.close()
    return True
