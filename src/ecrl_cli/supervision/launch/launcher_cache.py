"""The launchers of one command."""

from __future__ import annotations

from collections.abc import Iterable

from ecrl_cli.config.launchers import launcher_of
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.records.events import PlannedFailure
from ecrl_cli.supervision.launch.child_environment import kernel_choices
from ecrl_cli.supervision.launch.launcher import Launcher
from ecrl_cli.supervision.launch.netns_command import parts


class LauncherCache:
    """What the runs of one command share: at most one launcher of a kind, started when first wanted, so that a sweep has one zygote (and one
    more for the runs whose network is parted). One that was started under other choices of kernels than are set now serves no run."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], Launcher] = {}

    def of(self, config: RunConfig, failures: Iterable[PlannedFailure]) -> Launcher:
        """The launcher of a run against which `failures` are planned, warm: what all runs share is paid before the clock of any of them starts."""
        key = (config.supervision.launcher, parts(failures), *kernel_choices().items())
        if key not in self._made:
            self._made[key] = launcher_of(config).load().make(config)
        self._made[key].warm(config)
        return self._made[key]

    def close(self) -> None:
        for launcher in self._made.values():
            launcher.close()
        self._made = {}
