"""What a spare does before it is needed, and what is left of a step that a death aborts."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ecrl_cli.checkpoint.capture.rng import capture_rng
from ecrl_cli.config.schema import ModelConfig, RunConfig
from ecrl_cli.errors import ConfigError
from ecrl_cli.models import build
from ecrl_cli.records.events import DatasetRecord
from ecrl_cli.records.messages import AttemptSpec
from ecrl_cli.recovery.fault_tolerant_allreduce import PeersLost
from ecrl_cli.training.in_place_session import InPlaceSession, warm_up_model
from ecrl_cli.training.rendezvous import Rendezvous
from ecrl_cli.training.train_step import DataParallelTrainStep, FaultTolerantTrainStep, WarmUp

RECORD = DatasetRecord("fake", size=64, classes=10, shape=(3, 16, 16))


@pytest.mark.parametrize(
    ("device", "found", "refused"),
    [("auto", True, True), ("auto", False, False), ("cpu", True, False)],
)
def test_a_live_run_does_not_slip_onto_a_gpu(
    monkeypatch: pytest.MonkeyPatch, device: str, found: bool, refused: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: found)
    session = InPlaceSession.__new__(InPlaceSession)
    session.config, session.order, session.rank = (
        RunConfig(device=device),
        AttemptSpec(0, 1, 0, None, 0, ()),
        0,
    )
    session.rendezvous = Rendezvous(0, 1)
    with (
        pytest.raises(ConfigError, match="ranks that outlive others work on the CPU")
        if refused
        else nullcontext()
    ):
        assert session.set_up_device() == torch.device("cpu")


@pytest.mark.parametrize("name", ["small_cnn", "resnet18", "vit"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_rehearsal_reaches_every_parameter_and_leaves_the_model_as_it_was(
    name: str, precision: str
) -> None:
    model = build(ModelConfig(name=name, width=32), RECORD.classes, RECORD.shape)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    reached = set[str]()
    for key, parameter in model.named_parameters():
        parameter.register_hook(lambda gradient, key=key: reached.add(key))
    try:
        warm_up_model(
            model, WarmUp.of(RunConfig(precision=precision), RECORD, torch.device("cpu")), samples=4
        )
    except RuntimeError as error:
        # torch 2.15, on a processor with AMX under ATEN_CPU_CAPABILITY=avx2
        if "only supported when avx512" not in str(error):
            raise
        pytest.skip(f"torch cannot do attention in bf16 here: {error}")
    assert reached == {key for key, _ in model.named_parameters()}
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("at_once", [True, False])
def test_an_aborted_step_is_told_of_with_the_buffers_of_before_it(
    monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """`at_once`: the peers are known to be lost as the step begins."""
    buffer, told, device = torch.zeros(2), list[bool](), torch.device("cpu")

    def lose(*given: object) -> None:
        buffer.add_(1)
        raise PeersLost

    monkeypatch.setattr(DataParallelTrainStep, "run", lose)
    step: Any = FaultTolerantTrainStep.__new__(FaultTolerantTrainStep)
    step._buffers, step._states, step.device = [buffer], capture_rng(device), device
    step.optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    step._peers = SimpleNamespace(begin=lose if at_once else lambda global_step: None)
    step.aborted = lambda before: told.append(bool(buffer.all()) and not before[buffer].any())
    with pytest.raises(PeersLost):
        step.run(None, 3)
    assert told == [True] and not buffer.any()
