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
    """Launchers shared by the runs of one command: at most one of each kind, started on first use.

    So a sweep has one zygote, and one more for runs that need a private network. Other settings of the math kernels also need another launcher.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], Launcher] = {}

    def of(self, config: RunConfig, failures: Iterable[PlannedFailure]) -> Launcher:
        """The launcher, warmed up, for a run with the planned `failures`: shared start-up work is done before the clock of any run starts."""
        key = (config.supervision.launcher, parts(failures), *kernel_choices().items())
        if key not in self._made:
            self._made[key] = launcher_of(config).load().make(config)
        self._made[key].warm(config)
        return self._made[key]

    def close(self) -> None:
        for launcher in self._made.values():
            launcher.close()
        self._made = {}
