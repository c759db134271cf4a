"""The applications of the published study of failures within a mini-batch (applications.yaml): its
Table I, which two replications stand beside.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from ecrl_cli.config.codec import decode


@dataclass(frozen=True)
class Application:
    """A column of Table I as printed. `per_epoch`: mini-batches, `in_epoch`: those that its samples
    give; names ending in _s are mean seconds.
    """

    name: str
    size: str
    layers: int
    batch: int
    per_epoch: int
    in_epoch: int
    epochs: int
    mini_batch_s: float
    init_s: float
    checkpoint_s: float
    restart_s: float


_PRINTED = yaml.safe_load(Path(__file__).with_name("applications.yaml").read_text(encoding="utf-8"))
PUBLISHED = {key: decode(Application, printed) for key, printed in _PRINTED.items()}
