"""The trackers: each takes a run's figures to one place. Only the process that follows a run
imports these packages.

`place`: a folder, address or file (tracker.place); `ident`: names the run at the tracker, the same
over all its sessions and for its verdict.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from ecrl_cli.storage.files import write_whole

Values = Mapping[str, float]


class Tracker(Protocol):
    """One that shows more than figures has a method `records` too: at a session's end it gets all
    that is on record, a `history.load.RunRecords`. One with `LIVE = True` keeps no history: it is
    told each step at once, any other when a finished checkpoint covers the step.
    """

    def __init__(self, place: str, name: str, ident: str, config: Mapping[str, Any]) -> None: ...

    def step(self, step: int, values: Values) -> None:
        """Figures of one training step; steps increase."""

    def summary(self, step: int, values: Values, words: Mapping[str, str]) -> None:
        """Figures and words on the run as a whole; may come again with others."""

    def close(self) -> None:
        """Everything has been said."""


class TensorBoard:
    def __init__(self, place: str, name: str, ident: str, config: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer, self._summary = EventFileWriter(place), Summary
        self._text(0, {key: str(value) for key, value in config.items()})

    def step(self, step: int, values: Values) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        figures = [
            self._summary.Value(tag=key, simple_value=value) for key, value in values.items()
        ]
        self._writer.add_event(Event(step=step, summary=self._summary(value=figures)))

    def summary(self, step: int, values: Values, words: Mapping[str, str]) -> None:
        self.step(step, values)
        self._text(step, words)

    def _text(self, step: int, words: Mapping[str, str]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.util.tensor_util import make_tensor_proto

        metadata = create_summary_metadata(display_name=None, description=None)
        texts = [
            self._summary.Value(tag=key, metadata=metadata, tensor=make_tensor_proto(text))
            for key, text in words.items()
        ]
        self._writer.add_event(Event(step=step, summary=self._summary(value=texts)))

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """Tells what the store does not have yet: a session may have been killed before it could note
    how far it had come, and MLflow would keep both values of a step.
    """

    # of a run that has not ended: KILLED
    _ENDS: ClassVar = {"completed": "FINISHED", "gave_up": "FAILED", "refused": "FAILED"}
    _end = "KILLED"

    def __init__(self, place: str, name: str, ident: str, config: Mapping[str, Any]) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient

        self._client = MlflowClient(
            tracking_uri=place if "://" in place else Path(place).absolute().as_uri()
        )
        found = self._client.get_experiment_by_name("ecrl")
        experiment = found.experiment_id if found else self._client.create_experiment("ecrl")
        before = self._client.search_runs([experiment], f"tags.ecrl = '{ident}'", max_results=1)
        self._told: dict[str, int] = {}
        if before:
            self._run = before[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        self._run = self._client.create_run(
            experiment, tags={"ecrl": ident}, run_name=name
        ).info.run_id
        for key, value in config.items():
            self._client.log_param(self._run, key, value)

    def step(self, step: int, values: Values) -> None:
        for key, value in values.items():
            if step > self._last(key):
                self._client.log_metric(self._run, key, value, step=step)
                self._told[key] = step

    def _last(self, key: str) -> int:
        """The last step of which the store has this figure."""
        if key not in self._told:
            history = self._client.get_metric_history(self._run, key)
            self._told[key] = max((value.step for value in history), default=-1)
        return self._told[key]

    def summary(self, step: int, values: Values, words: Mapping[str, str]) -> None:
        there = self._client.get_run(self._run).data.metrics
        for key, value in values.items():
            if there.get(key) != value:
                self._client.log_metric(self._run, key, value, step=step)
        for key, text in words.items():
            self._client.set_tag(self._run, key, text)
        self._end = self._ENDS.get(words.get("status", ""), "KILLED")

    def close(self) -> None:
        self._client.set_terminated(self._run, self._end)


class WandB:
    def __init__(self, place: str, name: str, ident: str, config: Mapping[str, Any]) -> None:
        import wandb

        Path(place).mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            x_disable_stats=True,
            x_disable_meta=True,
            host="",
        )
        given = {
            "project": "ecrl",
            "name": name,
            "id": ident,
            "dir": place,
            "config": dict(config),
            "mode": "offline",
            "resume": "allow",
        }
        self._run = wandb.init(**given, settings=settings)

    def step(self, step: int, values: Values) -> None:
        self._run.log(dict(values), step=step)

    def summary(self, step: int, values: Values, words: Mapping[str, str]) -> None:
        self._run.summary.update({**values, **words})

    def close(self) -> None:
        self._run.finish()


class Prometheus:
    """NAME.prom in the folder `place`, written anew as a whole each time, by a rename: a reader
    never sees half of it.
    """

    LIVE = True

    def __init__(self, place: str, name: str, ident: str, config: Mapping[str, Any]) -> None:
        self._path, self._name = Path(place) / f"{name}.prom", name
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._whose = f"# run {ident}"
        self._gauges = self._before()
        self._trains = False
        self._words: dict[str, str] = {}

    def _before(self) -> dict[str, float]:
        """The values that an earlier session exported for this run, for when the run is judged only
        now; nothing where the file is another's.
        """
        try:
            lines = self._path.read_text(encoding="utf-8").split("\n")
            values = [
                line.removeprefix("ecrl_").partition("{")
                for line in lines
                if line.startswith("ecrl_") and ',is="' not in line
            ]
            return (
                {key: float(rest.rpartition(" ")[2]) for key, _, rest in values}
                if lines[0] == self._whose
                else {}
            )
        except (OSError, ValueError):
            return {}

    def step(self, step: int, values: Values) -> None:
        if not self._trains:  # goes on: what an earlier session ended in is past
            self._trains, self._gauges = True, {}
        self.summary(step, values, {})

    def summary(self, step: int, values: Values, words: Mapping[str, str]) -> None:
        self._gauges |= {"step": float(step), **values}
        self._words |= words
        lines = [self._whose]
        for key, value in sorted(self._gauges.items()):
            lines += [
                f"# TYPE ecrl_{key} gauge",
                f'ecrl_{key}{{run="{_label(self._name)}"}} {value!r}',
            ]
        for key, text in sorted(self._words.items()):
            lines += [
                f"# TYPE ecrl_{key} gauge",
                f'ecrl_{key}{{run="{_label(self._name)}",is="{_label(text)}"}} 1',
            ]
        write_whole(self._path, ("\n".join(lines) + "\n").encode(), durable=False)

    def close(self) -> None: ...


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


warnings.filterwarnings("ignore", module=r"(mlflow|wandb|tensorboard)\b.*")
