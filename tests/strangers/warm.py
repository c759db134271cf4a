"""Warm starts as the audit has them (ecrl_cli/audit/warm.py), from the first attempt on and shared
by all rows: what they import is made once, not once an audit.

torchrun is stood in for by ranks.py, which forks the ranks of an attempt; a launcher's own
behaviour is not tried.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from ecrl_cli.audit.runner import install_recorder
from ecrl_cli.audit.warm import ColdStarts, Process, ScriptCommand, WarmStarts

IMPORTS = "import numpy, torch, torch.distributed, torch.utils.data, torch._dynamo\n"
RANKS = Path(__file__).with_name("ranks.py")


class SharedStarts(WarmStarts):
    """Starts attempts of `interpreter`, of any script; `end` ends it."""

    def __init__(self, interpreter: str, folder: Path) -> None:
        folder.mkdir()
        recorder = install_recorder(folder)
        super().__init__(recorder)
        script = folder / "imports.py"
        script.write_text(IMPORTS)
        noted = {"PYTHONPATH": str(recorder), "ECRL_RECORD": str(folder / "noted")}
        with (folder / "output").open("wb") as output:
            environment = os.environ | noted | super().environment()
            child = super().start([interpreter, str(script)], environment, output, 0)
            assert child.wait() == 0, (folder / "output").read_text()
        super().warm_up()
        assert self.warm, self.why_cold

    def environment(self) -> dict[str, str]:
        return {}

    def warm_up(self) -> None:
        """It is."""

    def cool(self, why: str) -> None:
        """A row that is not deterministic leaves the next ones warm."""

    def close(self) -> None:
        """An audit is over, and others follow."""

    def end(self) -> None:
        super().close()

    def start(
        self, words: Sequence[str], environment: Mapping[str, str], output: BinaryIO, attempt: int
    ) -> Process:
        command = ScriptCommand.of(words)
        if command is not None:
            importer = self._importers[attempt % len(self._importers)]
            forked = importer.fork(words, command, environment, output)
            assert forked is not None, importer.why_not()
            return forked
        return ColdStarts().start(words, environment, output, attempt)
