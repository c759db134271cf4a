"""The models by name. A model's module is imported on demand only: those in `architectures.py` work
without torchvision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ecrl_cli.config.registry import Registry
from ecrl_cli.config.schema import ModelConfig

if TYPE_CHECKING:
    from torch import nn

# name -> builder: (ModelConfig, classes, shape) -> nn.Module; an installed package adds its own
# under the entry-point group.
REGISTRY = Registry(
    kind="model",
    group="ecrl.models",
    builtin={
        "small_cnn": "ecrl_cli.models.architectures:small_cnn",
        "resnet18": "ecrl_cli.models.resnet:resnet18",
        "resnet50": "ecrl_cli.models.resnet:resnet50",
        "resnet152": "ecrl_cli.models.resnet:resnet152",
        "vit": "ecrl_cli.models.architectures:VisionTransformer",
        "nt3": "ecrl_cli.models.architectures:nt3",
    },
)


def build(config: ModelConfig, classes: int, shape: tuple[int, ...]) -> nn.Module:
    """The model for inputs of `shape` (channels, height, width). Its weights depend on torch's
    current seed only.
    """
    model: nn.Module = REGISTRY.load(config.name)(config, classes, shape)
    return model
