"""Bugs planted into one sweep: each into the run whose suite is named after it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ecrl_cli.studies.training.planted import site

# A rank begins its session with the bug that its run is named after.
_CHOICE = """
    begin = module.Session.__init__
    def spoilt(self, config, *rest):
        BUGS.get(config.suite_name, lambda: None)()
        begin(self, config, *rest)
    module.Session.__init__ = spoilt
"""


def suite_of(bug: str) -> str:
    """What the run with `bug` is called."""
    return re.sub(r"\W+", "_", bug)


def plant(folder: Path, bugs: dict[str, tuple[str, str]]) -> dict[str, str]:
    """The environment in which each run has its own of `bugs`: by name, the module that is spoilt, and how."""
    text = ["import importlib", site("ecrl_cli.training.session", _CHOICE), "BUGS = {}"]
    for name, (module, body) in bugs.items():
        text += [f"def bug(module):\n{body}", f"BUGS[{suite_of(name)!r}] = lambda bug=bug: bug(importlib.import_module({module!r}))"]
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("\n".join(text))
    return {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
