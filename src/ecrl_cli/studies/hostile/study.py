"""What an adversary prepared: refused by name, in few calls, without reading it whole, and nothing of it is ever run."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from ecrl_cli.config.studies import Hostile as Config
from ecrl_cli.studies.frame.result import Findings
from ecrl_cli.studies.frame.study import PreparedStudy, Record, Skip, StudyContext, Trial
from ecrl_cli.studies.hostile import audit, canary_control
from ecrl_cli.studies.hostile.findings import findings
from ecrl_cli.studies.hostile.inputs import all_inputs
from ecrl_cli.studies.hostile.isolation import ROOM, isolated
from ecrl_cli.studies.hostile.malicious_input import MaliciousInput
from ecrl_cli.studies.hostile.readers import COMMAND_S, PROGRAMS, measured
from ecrl_cli.studies.hostile.store_fixture import Scene, Stage


def make(setting: StudyContext) -> PreparedStudy:
    return HostileStudy(setting)


class HostileStudy:
    def __init__(self, setting: StudyContext) -> None:
        self._setting = setting
        self._config: Config = setting.config.study
        self._stage = Stage(setting.scratch / "stage", setting.config.seed)
        self._inputs = all_inputs()

    def plan(self) -> list[Trial]:
        skipped = {skip.arm for skip in self.skips()}
        trials = [
            Trial(f"input/{key}", {"arm": "input", "input": key, "group": one.group, "look": one.look.split()[0]})
            for key, one in list(self._inputs.items())[:: self._config.every]
            if one.look != "load" or "torch" not in skipped
        ]
        arms = [("control", "torch"), ("audit", "strace")]
        return trials + [Trial(arm, {"arm": arm}) for arm, needs in arms if needs not in skipped]

    def skips(self) -> Sequence[Skip]:
        found = []
        if find_spec("torch") is None:
            found.append(Skip("torch", "torch is not installed: the control and the format torch are not tried"))
        if shutil.which("strace") is None:
            found.append(Skip("strace", "strace is not installed: which files are opened is not audited"))
        return found

    def run(self, trial: Trial) -> dict[str, Any]:
        scratch = self._setting.scratch
        if trial.facts["arm"] == "input":
            return self._try(self._inputs[trial.facts["input"]])
        folder = scratch / trial.facts["arm"]
        try:
            if trial.facts["arm"] == "control":
                return canary_control.run(folder)
            folder.mkdir()
            return audit.run(folder, self._setting.config.seed, self._config.every)
        finally:
            shutil.rmtree(folder)

    def findings(self, records: Sequence[Record]) -> Findings:
        return findings(records, self._config.every == 1)

    def close(self) -> None:
        shutil.rmtree(self._setting.scratch / "stage", ignore_errors=True)

    def _try(self, hostile: MaliciousInput) -> dict[str, Any]:
        with self._stage.scene() as scene:
            payload = _bytes(scene)
            hostile.act(scene)
            payload = min(max(payload, _bytes(scene)), 2**30)
            before = _names(scene)
            alone = hostile.look in PROGRAMS
            seconds = 2 * COMMAND_S if alone else self._config.deadline_s
            found = isolated(lambda: measured(hostile, scene), seconds, 0 if alone else ROOM)
            expected = found["by"] in hostile.refusers
            escaped = sorted(set(_names(scene)) ^ set(before)) if not hostile.during else []
            return found | {"payload": payload, "expected": expected, "canary": scene.canary.exists(), "escaped": escaped}


def _names(scene: Scene) -> list[str]:
    return [str(path.relative_to(scene.outside)) for path in scene.outside.rglob("*")]


def _bytes(scene: Scene) -> int:
    """What the checkpoint and the run's records really hold: what reading all of it once would read."""
    files = (path for path in scene.root.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(min(path.lstat().st_size, path.lstat().st_blocks * 512 + 4096) for path in files)
