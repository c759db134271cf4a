"""Bugs planted into one sweep: each into the run whose suite is named after it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ecrl_cli.studies.mutants.recovery import site

# A rank begins its session with the bug that its run is named after.
_CHOICE = """
    begin = module.RankSession.__init__
    def spoilt(self, config, *rest):
        BUGS.get(config.suite_name, lambda: None)()
        begin(self, config, *rest)
    module.RankSession.__init__ = spoilt
"""

# One process may supervise several runs, one after the other: what is patched for one is put back
# after it.
_SUPERVISED = """
    run = module.Supervisor.run
    def spoilt(self, lock):
        undo = []
        def patch(owner, name, value):
            undo.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)
        SUPERVISED.get(self._config.suite_name, lambda patch: None)(patch)
        try:
            return run(self, lock)
        finally:
            for owner, name, value in reversed(undo):
                setattr(owner, name, value)
    module.Supervisor.run = spoilt
"""


def suite_of(bug: str) -> str:
    """What the run with `bug` is called."""
    return re.sub(r"\W+", "_", bug)


def plant(
    folder: Path, bugs: dict[str, tuple[str, str]], of_supervisor: dict[str, str] | None = None
) -> dict[str, str]:
    """The environment in which each run has its own of `bugs`: by name, the module that is spoilt
    in every rank, and how.

    `of_supervisor`: by name, how the supervisor is spoilt: lines that have `patch(owner, name,
    value)`, which lasts as long as the run.
    """
    text = [
        "import importlib",
        site("ecrl_cli.training.session", _CHOICE),
        "BUGS = {}",
        "SUPERVISED = {}",
    ]
    text.append(
        site("ecrl_cli.supervision.supervisor", _SUPERVISED)
        .replace("Plant", "SupervisorPlant")
        .replace("spoil(", "spoil_supervisor(")
    )
    for name, (module, body) in bugs.items():
        text += [
            f"def bug(module):\n{body}",
            f"BUGS[{suite_of(name)!r}] = lambda bug=bug: bug(importlib.import_module({module!r}))",
        ]
    for name, body in (of_supervisor or {}).items():
        text += [f"def bug(patch):\n{body}", f"SUPERVISED[{suite_of(name)!r}] = bug"]
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("\n".join(text))
    return {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
