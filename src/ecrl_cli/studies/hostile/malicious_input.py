"""One malicious input: what the attacker does, which reader reads it, and which check must reject it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ecrl_cli.studies.hostile.store_fixture import Act, Scene


@dataclass(frozen=True)
class MaliciousInput:
    """`look`: which of the `readers` reads the scene afterwards. `refusers`: what may reject it: layers of the integrity check, or names of
    errors.

    `words`: the command line, if a command reads it; `{run}` and `{outside}` stand for the scene's folders. `during`: what the attacker does
    before the reader's call number `at`.
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
