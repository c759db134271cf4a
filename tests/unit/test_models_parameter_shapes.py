"""Shapes worked out without torch are those of the models."""

from __future__ import annotations

import pytest

from ecrl_cli.config.parameter_shapes import parameter_shapes
from ecrl_cli.config.schema import MODELS, ModelConfig
from ecrl_cli.models import build

PICTURE = (1, 16, 16)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("stem", "width", "dropout", "shape"),
    [
        ("cifar", 8, 0.0, PICTURE),
        ("imagenet", 16, 0.1, (3, 32, 32)),
        ("imagenet", 64, 0.0, (1, 16, 16)),
    ],
    ids=["small", "narrow", "full"],
)
def test_the_shapes_are_those_of_the_model(
    name: str, stem: str, width: int, dropout: float, shape: tuple[int, ...]
) -> None:
    config = ModelConfig(name=name, stem=stem, width=width, depth=5, dropout=dropout)
    model = build(config, 10, shape)
    assert parameter_shapes(config, 10, shape) == {
        name: tuple(parameter.shape) for name, parameter in model.named_parameters()
    }


def test_nothing_is_said_of_other_models_and_samples() -> None:
    assert parameter_shapes(ModelConfig(name="mine"), 10, PICTURE) == {}
    assert parameter_shapes(ModelConfig(name="vit"), 10, (64,)) == {}
