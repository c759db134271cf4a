"""The launchers by the name a user types: a closed registry."""

from __future__ import annotations

from collections.abc import Callable

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.supervision.launcher import Launcher
from ecrl_cli.supervision.torchrun import TorchrunLauncher
from ecrl_cli.supervision.zygote import ZygoteLauncher, preload

LAUNCHERS: dict[str, Callable[[RunConfig], Launcher]] = {
    "torchrun": lambda config: TorchrunLauncher(),
    "zygote": lambda config: ZygoteLauncher(preload(config)),
}


class Launchers:
    """What the runs of one command share: at most one launcher of a kind, started when first wanted, so that a sweep has one zygote."""

    def __init__(self) -> None:
        self._made: dict[str, Launcher] = {}

    def of(self, config: RunConfig) -> Launcher:
        """The launcher of `config`, warm: what all runs share is paid before the clock of any of them starts."""
        name = config.supervision.launcher
        if name not in self._made:
            self._made[name] = LAUNCHERS[name](config)
        self._made[name].warm(config)
        return self._made[name]

    def close(self) -> None:
        for launcher in self._made.values():
            launcher.close()
        self._made = {}
