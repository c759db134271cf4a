"""Every hostile input: what the adversary does, who looks, and who is to refuse it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ecrl_cli.studies.hostile.scene import Act, Scene


@dataclass(frozen=True)
class Hostile:
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


def all_inputs() -> dict[str, Hostile]:
    """By key, in a fixed order."""
    from ecrl_cli.studies.hostile import configurations, files, headers, json_texts, names, pickles

    made = [one for module in (pickles, json_texts, names, headers, files, configurations) for one in module.inputs()]
    found = {one.key: one for one in made}
    if len(found) != len(made):
        raise ValueError("two hostile inputs have the same name")
    return found
