"""Real runs with bugs planted into them, by the code path of `ecrl train`: all of one zygote, which
imports torch once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ecrl_cli.config.build import build
from ecrl_cli.runs.run import RunContext, run
from ecrl_cli.runs.run_plan import plan_run
from ecrl_cli.supervision.console import SilentUI
from ecrl_cli.supervision.launch.launcher import LauncherCache
from ecrl_cli.verify.reference import References
from ecrl_cli.verify.verdict import Verdict
from ecrl_cli.verify.verify_run import verify_run
from tests.e2e.planting import suite_of
from tests.e2e.state_bugs import STATE_BUGS, Keys, StateBug

# Five steps an epoch: a run ends in the third. What is not said stays at its default.
_TINY: Keys = {
    "target_steps": 12,
    "global_batch": 8,
    "device": "cpu",
    "dataset": {"name": "fake", "size": 40, "image_size": 8, "channels": 1},
    "optimizer": {"name": "sgd", "lr": 0.05},
}


class PlantedRuns:
    """`folder`: where the runs lie. Each is made, and judged, when it is first asked for, by
    `launchers`, whose ranks have STATE_BUGS planted.
    """

    def __init__(self, folder: Path, launchers: LauncherCache) -> None:
        self._folder, self._launchers = folder, launchers
        self._known, self._verdicts = References(), dict[str, Verdict]()

    def of(self, name: str) -> tuple[Path, Verdict]:
        """The run with that bug, and the verdict on it."""
        bug = STATE_BUGS[name]
        reference = self._run(
            f"ref-{_key(bug.model)}" + suite_of(name) * bug.in_model,
            bug.model,
            suite_of(name) if bug.in_model else "",
        )
        return self._judged(suite_of(name), bug, reference, suite_of(name))

    def resized(self, name: str) -> Path:
        """Two ranks, then one, not struck, with that bug: any reference with the same sizes would
        have it too.
        """
        return self._run(
            f"{suite_of(name)}-resized",
            STATE_BUGS[name].model | {"elastic": {"schedule": {6: 1}}},
            suite_of(name),
        )

    def honest(self, bug: StateBug) -> tuple[Path, Verdict]:
        """The same run without the bug."""
        reference = self._run(f"ref-{_key(bug.model)}", bug.model, "")
        return self._judged(
            f"honest-{_key(bug.model)}-{bug.recovery}-{bug.steps}", bug, reference, ""
        )

    def _judged(
        self, name: str, bug: StateBug, reference: Path, suite: str
    ) -> tuple[Path, Verdict]:
        struck = {
            "failure": {"kind": "kill", "steps": list(bug.steps), "rank": 1},
            "checkpoint": {"every": 6},
        }
        lossy = {
            "recovery": {"name": bug.recovery},
            "supervision": {"launcher": "zygote", "spares": int(bug.recovery == "lossy_forward")},
        }
        made = self._run(name, bug.model | struck | lossy, suite)
        if name not in self._verdicts:
            self._verdicts[name] = verify_run(made, reference, self._known)
        return made, self._verdicts[name]

    def _run(self, name: str, keys: Keys, suite: str) -> Path:
        root = self._folder / name
        if not root.exists():
            config = build(
                _merged(
                    {"checkpoint": {"every": 6}, "supervision": {"launcher": "zygote"}},
                    _TINY,
                    keys,
                    {"suite_name": suite},
                )
            )
            result = run(
                plan_run(config, root),
                RunContext(lambda line: None, self._launchers, show=lambda *given: SilentUI()),
            )
            assert result.exit_code == 0, result
        return root


def _key(model: Keys) -> str:
    return "".join(letter for letter in json.dumps(model) if letter.isalnum())


def _merged(*parts: Mapping[str, Any]) -> Keys:
    """Mappings of mappings, the later ones first in what both have."""
    found: Keys = {}
    for part in parts:
        for key, value in part.items():
            found[key] = (
                _merged(found[key], value)
                if isinstance(value, dict) and isinstance(found.get(key), dict)
                else value
            )
    return found
