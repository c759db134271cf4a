"""Names and shapes of the parameters of ECRL's own models, worked out from the configuration
without torch, so that verify can hold a checkpoint against it.

tests/unit/test_models_parameter_shapes.py compares them with the models themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

from ecrl_cli.config.schema import ModelConfig

Shapes = dict[str, tuple[int, ...]]
WIDEST = 8  # small_cnn: most channels, as a multiple of the first layer's
PATCHES_PER_SIDE = 8  # vit
# nt3_default_model.txt: conv = [128, 20, 1, 128, 10, 1], pool = [1, 10], dense = [200, 20].
NT3_FIRST, NT3_SECOND, NT3_POOL, NT3_DENSE = 20, 10, 10, (200, 20)
# blocks of each layer, and how many times the planes a block gives
_RESNETS = {
    "resnet18": ((2, 2, 2, 2), 1),
    "resnet50": ((3, 4, 6, 3), 4),
    "resnet152": ((3, 8, 36, 3), 4),
}


def parameter_shapes(config: ModelConfig, classes: int, shape: tuple[int, ...]) -> Shapes:
    """By name, for samples of `shape`; empty for a model of another package, and where the samples
    do not fit.
    """
    if config.name == "nt3":
        return dict(_nt3(config, classes, shape))
    if len(shape) != 3:
        return {}
    if config.name in _RESNETS:
        return dict(_resnet(config, classes, shape))
    made = {"small_cnn": _small_cnn, "vit": _vit}.get(config.name)
    return dict(made(config, classes, shape)) if made else {}


Named = Iterator[tuple[str, tuple[int, ...]]]


def _both(name: str, *shape: int) -> Named:
    """A layer's weight of `shape`, and its bias."""
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[:1]


def _small_cnn(config: ModelConfig, classes: int, shape: tuple[int, ...]) -> Named:
    inputs = shape[0]
    for block in range(config.depth):
        width = config.width * min(2**block, WIDEST)
        yield f"{block}.0.weight", (width, inputs, 3, 3)
        yield from _both(f"{block}.1", width)
        inputs = width
    yield from _both(f"{config.depth + 3}", classes, inputs)


def _vit(config: ModelConfig, classes: int, shape: tuple[int, ...]) -> Named:
    (channels, height, across), width = shape, config.width
    patch = max(1, height // PATCHES_PER_SIDE)
    yield from _both("embed", width, channels, patch, patch)
    yield "positions", (1, (height // patch) * (across // patch), width)
    for number in range(config.depth):
        layer = f"layers.{number}"
        yield f"{layer}.self_attn.in_proj_weight", (3 * width, width)
        yield f"{layer}.self_attn.in_proj_bias", (3 * width,)
        yield from _both(f"{layer}.self_attn.out_proj", width, width)
        yield from _both(f"{layer}.linear1", 4 * width, width)
        yield from _both(f"{layer}.linear2", width, 4 * width)
        yield from _both(f"{layer}.norm1", width)
        yield from _both(f"{layer}.norm2", width)
    yield from _both("norm", width)
    yield from _both("head", classes, width)


def _nt3(config: ModelConfig, classes: int, shape: tuple[int, ...]) -> Named:
    features, width = 1, config.width
    for size in shape:
        features *= size
    pooled = (features - NT3_FIRST - NT3_SECOND + 2) // NT3_POOL
    yield from _both("2", width, 1, NT3_FIRST)
    yield from _both("4", width, width, NT3_SECOND)
    inputs = width * pooled
    for number, outputs in zip((8, 11), NT3_DENSE, strict=True):
        yield from _both(f"{number}", outputs, inputs)
        inputs = outputs
    yield from _both("14", classes, inputs)


def _resnet(config: ModelConfig, classes: int, shape: tuple[int, ...]) -> Named:
    blocks, expansion = _RESNETS[config.name]
    kernel = 3 if config.stem == "cifar" else 7
    yield "conv1.weight", (config.width, shape[0], kernel, kernel)
    yield from _both("bn1", config.width)
    inputs = config.width
    for layer, count in enumerate(blocks, 1):
        planes = 64 * 2 ** (layer - 1) * config.width // 64
        for block in range(count):
            here = f"layer{layer}.{block}"
            yield from _block(here, inputs, planes, expansion)
            if not block and (layer > 1 or inputs != planes * expansion):
                yield f"{here}.downsample.0.weight", (planes * expansion, inputs, 1, 1)
                yield from _both(f"{here}.downsample.1", planes * expansion)
            inputs = planes * expansion
    yield from _both("fc.1" if config.dropout else "fc", classes, inputs)


def _block(here: str, inputs: int, planes: int, expansion: int) -> Named:
    """The convolutions of a block, each with its batch norm: two of 3x3, or 1x1, 3x3 and 1x1."""
    sizes = (
        [(planes, inputs, 3), (planes, planes, 3)]
        if expansion == 1
        else [(planes, inputs, 1), (planes, planes, 3), (planes * expansion, planes, 1)]
    )
    for number, (outputs, channels, kernel) in enumerate(sizes, 1):
        yield f"{here}.conv{number}.weight", (outputs, channels, kernel, kernel)
        yield from _both(f"{here}.bn{number}", outputs)
