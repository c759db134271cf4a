"""What `ecrl.adapters` does without a framework: those in their frameworks are in
tests/e2e/test_adapters.py.
"""

from __future__ import annotations

import pytest

from ecrl.adapters import ray_workers


def test_workers_of_a_ray_cluster_get_the_recorder_and_keep_what_the_job_gives_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {"env_vars": {"MINE": "1", "PYTHONPATH": "/mine"}, "working_dir": "/job"}
    monkeypatch.setenv("PYTHONPATH", "/recorder:/shell")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    monkeypatch.delenv("ECRL_RECORD", raising=False)
    assert ray_workers(given) == given and ray_workers(None) == {}, "no recording is asked for"
    monkeypatch.setenv("ECRL_RECORD", "/runs/ref")
    monkeypatch.setenv("ECRL_ATTEMPT", "1")
    there = ray_workers(given)
    assert there["working_dir"] == "/job" and given["env_vars"]["PYTHONPATH"] == "/mine"
    assert (
        there["env_vars"].items()
        >= {
            "MINE": "1",
            "ECRL_RECORD": "/runs/ref",
            "ECRL_ATTEMPT": "1",
            "PYTHONPATH": "/recorder:/shell:/mine",
            "PYTHONHASHSEED": "7",
        }.items()
    )
    assert ray_workers(None)["env_vars"]["PYTHONPATH"] == "/recorder:/shell"
