"""Every model trains on the shapes it is made for, and its weights come from torch's seed alone."""

from __future__ import annotations

import dataclasses
from importlib.metadata import EntryPoint

import pytest
import torch
from torch import nn

from ecrl_cli.config.schema import MODELS, ModelConfig
from ecrl_cli.errors import ConfigError
from ecrl_cli.models import REGISTRY, build

SHAPES = [(1, 8, 8), (3, 32, 32)]
SMALL = ModelConfig(width=8, depth=2)


def model(name: str, shape: tuple[int, ...], **fields: object) -> nn.Module:
    torch.manual_seed(5)
    return build(dataclasses.replace(SMALL, name=name, **fields), 7, shape)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_of_every_model_gets_a_gradient(name: str, shape: tuple[int, ...]) -> None:
    net = model(name, shape)
    logits = net(torch.randn(4, *shape))
    assert logits.shape == (4, 7)
    nn.functional.cross_entropy(logits, torch.arange(4)).backward()  # type: ignore[no-untyped-call]
    lacking = [
        name
        for name, parameter in net.named_parameters()
        if parameter.grad is None or not parameter.grad.isfinite().all()
    ]
    assert not lacking


@pytest.mark.parametrize("name", MODELS)
def test_the_seed_decides_the_weights(name: str) -> None:
    one, same = model(name, (1, 8, 8)), model(name, (1, 8, 8))
    torch.manual_seed(6)
    other = build(dataclasses.replace(SMALL, name=name), 7, (1, 8, 8))
    assert all(
        torch.equal(a, b)
        for a, b in zip(one.state_dict().values(), same.state_dict().values(), strict=True)
    )
    assert not all(
        torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True)
    )


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_the_stem_decides_what_the_first_block_sees(name: str) -> None:
    sides = {}
    for stem in ("cifar", "imagenet"):
        net = model(name, (3, 32, 32), stem=stem)
        net.get_submodule("layer1").register_forward_pre_hook(
            lambda _, inputs, stem=stem: sides.update({stem: inputs[0].shape[-1]})
        )
        net.eval()(torch.randn(1, 3, 32, 32))
    assert sides == {"cifar": 32, "imagenet": 8}


def test_resnet18_has_the_published_number_of_parameters() -> None:
    net = build(ModelConfig(name="resnet18", stem="imagenet", width=64), 1000, (3, 224, 224))
    assert sum(p.numel() for p in net.parameters()) == 11_689_512


def test_the_width_and_depth_of_the_small_cnn() -> None:
    convolutions = [
        m.out_channels
        for m in model("small_cnn", (3, 32, 32), width=16, depth=5).modules()
        if isinstance(m, nn.Conv2d)
    ]
    assert convolutions == [16, 32, 64, 128, 128]


def test_the_layers_of_the_vit_start_from_weights_of_their_own() -> None:
    weights = [
        p
        for name, p in model("vit", (3, 32, 32)).named_parameters()
        if name.endswith("linear1.weight")
    ]
    assert len(weights) == 2
    assert not torch.equal(weights[0], weights[1])


@pytest.mark.parametrize("name", MODELS)
def test_dropout_draws_from_the_rng_where_it_is_asked_for(name: str) -> None:
    x = torch.randn(2, 1, 8, 8)
    for dropout, differs in ((0.5, True), (0.0, False)):
        net = model(name, (1, 8, 8), dropout=dropout, width=32)
        torch.manual_seed(1)
        one = net(x)
        torch.manual_seed(2)
        assert (not torch.equal(one, net(x))) is differs


def test_nt3_is_the_network_of_the_benchmark() -> None:
    """60,483 features: convolutions of 20 and 10 without padding, a pool of 10, dense layers of 200
    and 20.
    """
    with torch.device("meta"):
        net = build(ModelConfig(name="nt3", width=128, dropout=0.1), 2, (1, 1, 60_483))
    shapes = [tuple(p.shape) for name, p in net.named_parameters() if name.endswith("weight")]
    assert shapes == [(128, 1, 20), (128, 128, 10), (200, 128 * 6045), (20, 200), (2, 20)]
    with pytest.raises(ConfigError, match="nt3 needs 38 features or more, the data set has 36"):
        build(ModelConfig(name="nt3"), 2, (1, 6, 6))


def test_an_unknown_model_is_answered_with_the_nearest() -> None:
    known = "small_cnn, resnet18, resnet50, resnet152, vit, nt3"
    with pytest.raises(
        ConfigError, match=rf"unknown model 'resnet9000'; did you mean resnet50\? known: {known}$"
    ):
        REGISTRY.load("resnet9000")


def installed(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    def entry_points(group: str, name: str | None = None) -> list[EntryPoint]:
        return [point for point in points if point.group == group and name in (None, point.name)]

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)


def test_an_installed_model_joins_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(
        monkeypatch,
        EntryPoint("mine", f"{__name__}:mine", "ecrl.models"),
        EntryPoint("vit", f"{__name__}:mine", "ecrl.models"),
    )
    assert REGISTRY.names() == (*MODELS, "mine")
    assert isinstance(build(ModelConfig(name="mine"), 3, (1, 2, 2)), nn.Linear)
    assert not isinstance(model("vit", (1, 8, 8)), nn.Linear)  # a built-in name is not taken over


def test_an_installed_model_that_does_not_import_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed(monkeypatch, EntryPoint("mine", "no_such_package:mine", "ecrl.models"))
    with pytest.raises(ConfigError, match="cannot be imported"):
        REGISTRY.load("mine")


def mine(config: ModelConfig, classes: int, shape: tuple[int, ...]) -> nn.Module:
    return nn.Linear(shape[1], classes)
