"""The measured parts that the model adds up, and their sources: the published table I, a recording, or typed values."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ecrl_cli.config.studies import RecoveryOverhead

# In a trial with gloo and three processes a killed rank was detected after 44 ms and the group rebuilt in 2 ms.
DETECT_S, REGROUP_S = 0.044, 0.002
# Assumed, as nobody published these: the state crosses the network once; a copy in memory costs a fiftieth of a mini-batch.
JOIN_S, SNAPSHOT_SHARE = 0.5, 0.02
TYPEABLE = ("mini_batch", "checkpoint", "init", "restart", "detect", "regroup", "join", "snapshot")


@dataclass(frozen=True)
class Parts:
    """Seconds, except `every`: mini-batches from one checkpoint to the next.

    `mini_batch`: mean duration. `checkpoint`: training stall per checkpoint. `init`: creating processes and communicators; `restart`: loading and
    warming up model, optimizer and data. `regroup`: the survivors' new group. `join`: their wait while a joiner gets the state. `snapshot`: a copy
    of the state into memory.
    """

    mini_batch: float
    checkpoint: float
    init: float
    restart: float
    every: int
    detect: float = DETECT_S
    regroup: float = REGROUP_S
    join: float = JOIN_S
    snapshot: float = 0.0

    @property
    def start(self) -> float:
        """The cost of a cold start."""
        return self.init + self.restart


# Table I. Its columns are swapped in the rows of model size and layers (600 MiB and 10 layers are NT3's, by the text and by counting ResNet-50's
# 23.9 million parameters: 91 MiB); the rows of times agree with the text as they are printed, and only they are used here.
PUBLISHED = {
    "ResNet-50": Parts(mini_batch=0.17, checkpoint=0.48, init=3.0, restart=4.09, every=390),
    "CANDLE-NT3": Parts(mini_batch=2.2, checkpoint=3.4, init=1.9, restart=2.5, every=55),
}


def typed(config: RecoveryOverhead, parts: Parts) -> Parts:
    """`parts`, overridden by typed values (0: not typed). No source has snapshots: unless typed they are derived from the mini-batch."""
    given = {name: value for name in TYPEABLE if (value := getattr(config, f"{name}_s")) > 0}
    made = replace(parts, **given, every=config.every or parts.every)
    return made if "snapshot" in given else replace(made, snapshot=SNAPSHOT_SHARE * made.mini_batch)


def typed_alone(config: RecoveryOverhead) -> Parts:
    """The parts for `study.source=typed`; values not typed are 0 or the assumed default."""
    return typed(config, Parts(mini_batch=0.0, checkpoint=0.0, init=0.0, restart=0.0, every=1))
