"""Lets a process with torch try data set, model and task together, before anything of a run is written or launched."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable

from ecrl_cli.config.codec import encode
from ecrl_cli.config.schema import DATASETS, MODELS, RunConfig
from ecrl_cli.config.tasks import CLASSIFICATION
from ecrl_cli.errors import ConfigError, visible


def probe(configs: Iterable[RunConfig]) -> None:
    """ConfigError for the first of `configs` whose data set, model and task do not fit together. What comes with ECRL and classifies is known to."""
    tried = set()
    for config in configs:
        parts = (config.dataset, config.model, config.task, config.precision)
        known = config.dataset.name in DATASETS and config.model.name in MODELS and config.task.name == CLASSIFICATION.name
        if not known and parts not in tried:
            tried.add(parts)
            _probe(config)


def _probe(config: RunConfig) -> None:
    what = f"dataset={config.dataset.name} model={config.model.name} task={config.task.name}"
    command, limit = [sys.executable, "-m", "ecrl_cli.training.probe"], config.supervision.start_timeout_s
    given = json.dumps(encode(config))
    try:
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired as error:
        raise ConfigError("dataset", f"{what}: two samples took more than {limit:.0f} s", "raise supervision.start_timeout_s") from error
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError) as error:
        last = visible((done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1])
        raise ConfigError("dataset", f"{what}: trying two samples ended with {last}", "mend its package") from error
    if answer:
        raise ConfigError(answer["key"], answer["fact"], answer["remedy"])
