"""The launchers that start the ranks of an attempt: one object per launcher with all its
properties. Torch-free.

From another package: a `LauncherKind` as an entry point in the group `ecrl.launchers`.
tests/contract/test_launchers.py checks each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ecrl_cli.config.registry import VariantRegistry, import_attribute
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError, plural


@dataclass(frozen=True, kw_only=True)
class LauncherKind:
    """`description`: one sentence, also the first of conf/supervision/NAME.yaml.

    `implementation`: "module:attribute" of a class with the interface of
    supervision/launch/launcher.py; its `make(config)` gives a launcher.
    `several_nodes`: the ranks may be spread over the nodes of an allocation, with an agent on each.
    Otherwise all are on this machine.
    `warm`: ranks are forked from a process that has imported torch and survives attempts. Otherwise
    each attempt is a new process tree.
    `in_place`: a rank's process may take part in successive attempts, with spares standing by:
    required for in-place recovery.
    """

    name: str
    description: str
    implementation: str
    several_nodes: bool = False
    warm: bool = False
    in_place: bool = False

    def load(self) -> Any:
        """Imports the class `implementation`."""
        return import_attribute("launcher", self.name, self.implementation)

    def refuse(self, config: RunConfig) -> None:
        """ConfigError for the first thing in `config` that this launcher does not support."""
        nodes = config.supervision.nodes
        if nodes > 1 and not self.several_nodes:
            able = " or ".join(
                name for name in LAUNCHERS.builtin if LAUNCHERS.of(name).several_nodes
            )
            raise ConfigError(
                "supervision.nodes",
                f"{plural(nodes, 'node needs', 'nodes need')} supervision.launcher={able}, got"
                f" {self.name}",
                "add it",
            )


TORCHRUN = LauncherKind(
    name="torchrun",
    description="ranks started by torchrun, anew for each attempt: 3 s to the first step",
    implementation="ecrl_cli.supervision.launch.torchrun:TorchrunLauncher",
    several_nodes=True,
)
ZYGOTE = LauncherKind(
    name="zygote",
    description=(
        "ranks forked from a process that has imported torch: 0.7 s to the first step instead"
        " of 3 s"
    ),
    implementation="ecrl_cli.supervision.launch.zygote:ZygoteLauncher",
    warm=True,
    in_place=True,
)

LAUNCHERS = VariantRegistry("launcher", "ecrl.launchers", LauncherKind, (TORCHRUN, ZYGOTE))


def launcher_of(config: RunConfig) -> LauncherKind:
    """The launcher that `config` names."""
    return LAUNCHERS.of(config.supervision.launcher)
