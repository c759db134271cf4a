"""One hostile input: what the adversary does, who looks, and who is to refuse it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ecrl_cli.studies.hostile.store_fixture import Act, Scene


@dataclass(frozen=True)
class MaliciousInput:
    """`look`: who examines the scene afterwards (see `looks`). `refusers`: who may refuse it: guard layers, or names of errors.

    `words`: the command line, where a command looks; `{run}` and `{outside}` stand for the scene's folders. `during`: what
    the adversary does before the call numbered `at` of the one who looks.
    """

    group: str
    name: str
    look: str
    refusers: tuple[str, ...]
    act: Act = lambda scene: None
    words: tuple[str, ...] = ()
    during: Callable[[Scene], None] | None = None
    at: int = -1

    @property
    def key(self) -> str:
        return f"{self.group}/{self.name}"
