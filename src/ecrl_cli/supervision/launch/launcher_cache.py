"""The launchers by the name a user types: a closed registry."""

from __future__ import annotations

from collections.abc import Callable

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.supervision.launch.launcher import Launcher
from ecrl_cli.supervision.launch.netns_command import parts
from ecrl_cli.supervision.launch.torchrun import TorchrunLauncher
from ecrl_cli.supervision.launch.zygote import ZygoteLauncher, preload

LAUNCHERS: dict[str, Callable[[RunConfig], Launcher]] = {
    "torchrun": lambda config: TorchrunLauncher(),
    "zygote": lambda config: ZygoteLauncher(preload(config), parts(config)),
}


class LauncherCache:
    """What the runs of one command share: at most one launcher of a kind, started when first wanted, so that a sweep has one zygote (and one
    more for the runs whose network is parted)."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, bool], Launcher] = {}

    def of(self, config: RunConfig) -> Launcher:
        """The launcher of `config`, warm: what all runs share is paid before the clock of any of them starts."""
        name = config.supervision.launcher
        key = (name, parts(config))
        if key not in self._made:
            self._made[key] = LAUNCHERS[name](config)
        self._made[key].warm(config)
        return self._made[key]

    def close(self) -> None:
        for launcher in self._made.values():
            launcher.close()
        self._made = {}
