"""environment.json: what the machine is, and nothing that is secret."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ecrl_cli.records.layout import RunLayout
from ecrl_cli.runs import environment
from tests.e2e.runs import tiny
from tests.in_process import SharedLaunchers, ecrl_in_process

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "planted-aws",
    "HF_TOKEN": "planted-hf",
    "WANDB_API_KEY": "planted-wandb",
    "DATABASE_URL": "postgres://me:planted-db@host/db",
    "HTTPS_PROXY": "http://me:planted-proxy@127.0.0.1:9",
    "CUDA_SECRET": "planted-prefix",  # passed on by its prefix, and recorded nowhere
    "MY_PASSWORD": "planted-password",
}


def test_memory_swap_and_gpus_are_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, GPU-0a, 575.57.08, 81559 MiB'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(environment, "_machine", environment._machine.__wrapped__)
    found = environment.environment(tmp_path)
    assert found["gpus"] == [
        {
            "name": "NVIDIA H100 80GB HBM3",
            "uuid": "GPU-0a",
            "driver": "575.57.08",
            "memory": "81559 MiB",
        }
    ]
    totals = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    assert found["swap_bytes"] == int(totals["SwapTotal"].split()[0]) * 1024
    assert found["memory_bytes"] == int(totals["MemTotal"].split()[0]) * 1024


def test_more_swap_is_no_other_machine(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    layout.config.write_text("{}")
    here = environment.environment(tmp_path)
    layout.environment.write_text(json.dumps(here | {"swap_bytes": here["swap_bytes"] + 4096}))
    assert environment.disagreements({"run": layout}) == {}
    layout.environment.write_text(json.dumps(here | {"memory_bytes": 1}))
    assert "memory_bytes" in environment.disagreements({"run": layout})["run"]


def test_no_file_of_a_run_holds_a_secret_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the supervisor or of its ranks, one of which dies with a traceback; nor do verdict, report
    and tracker, nor a study.
    """
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    environment._machine.cache_clear()  # of the time before
    launchers = SharedLaunchers(SECRETS)
    try:
        keys = tiny(
            "failure=raise",
            "failure.steps=[9]",
            "reference=auto",
            "tracker=prometheus",
            "tracker.place=told",
        )
        ecrl_in_process(tmp_path, "train", *keys, "run_dir=run", launchers=launchers)
    finally:
        launchers.end()
    ecrl_in_process(tmp_path, "report", "run")
    ecrl_in_process(tmp_path, "study", "study=write-latency", "study.trials=2", "run_dir=study")
    assert list(tmp_path.glob("told/*.prom")) and (tmp_path / "study" / "result.json").exists()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert (
        "Traceback" in (tmp_path / "run" / "logs" / "attempt-00" / "output.log").read_text()
        and len(files) > 60
    )
    assert not [str(path) for path in files if b"planted-" in path.read_bytes()]
