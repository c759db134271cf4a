"""`config.build`: every field is checked in our words, variants and scales apply, combinations that
cannot work are refused.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecrl_cli.config import convert
from ecrl_cli.config.build import build
from ecrl_cli.config.codec import encode
from ecrl_cli.config.keys import leaves, unknown_key
from ecrl_cli.config.launchers import LAUNCHERS
from ecrl_cli.config.recoveries import RECOVERIES
from ecrl_cli.config.registry import VariantRegistry
from ecrl_cli.config.schema import CheckpointConfig, RecoveryConfig, RunConfig, SupervisionConfig
from ecrl_cli.config.strategies import STRATEGIES
from ecrl_cli.errors import ConfigError


def values(**changes: Any) -> dict[str, Any]:
    """The schema's defaults as plain values, with dotted `changes` (`checkpoint__every=5`)."""
    made: dict[str, Any] = encode(RunConfig())
    for key, value in changes.items():
        section, _, name = key.rpartition("__")
        (made[section] if section else made)[name] = value
    return made


LIVE: dict[str, Any] = {"recovery__name": "lossy_forward", "supervision__launcher": "zygote"}
PLAN: dict[str, Any] = {
    "target_steps": 1600,
    "checkpoint__every": 50,
    "failure__kind": "kill",
    "failure__steps": [400, 1225],
    "failure__rank": 1,
}
SMOKE = {
    "scale__name": "smoke",
    "scale__steps": 0.02,
    "scale__batch": 0.0625,
    "scale__min_every": 4,
    "scale__launcher": "zygote",
}


def refusal(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        build(values(**changes))
    return caught.value.line()


def test_the_defaults_are_the_schema() -> None:
    assert build(values()) == RunConfig()


@pytest.mark.parametrize(
    ("section", "key", "registry"),
    [
        (CheckpointConfig, "strategy", STRATEGIES),
        (RecoveryConfig, "name", RECOVERIES),
        (SupervisionConfig, "launcher", LAUNCHERS),
    ],
    ids=["checkpoint", "recovery", "supervision"],
)
def test_a_key_offers_the_variants_of_its_registry(
    section: type[Any], key: str, registry: VariantRegistry[Any]
) -> None:
    rule = section.__dataclass_fields__[key].metadata
    assert rule == {"choices": registry.builtin, "group": registry.group}


def test_missing_keys_keep_their_default() -> None:
    assert build({"seed": 7}) == replace(RunConfig(), seed=7)


@pytest.mark.parametrize("key", leaves())
def test_no_field_takes_a_value_of_another_type(key: str) -> None:
    changed = values()
    section, _, name = key.rpartition(".")
    (changed[section] if section else changed)[name] = [["nonsense"]]
    with pytest.raises(ConfigError) as caught:
        build(changed)
    assert caught.value.key == key


@pytest.mark.parametrize("value", [True, "yes", 1.0, [1], None])
def test_an_integer_is_an_integer(value: Any) -> None:
    assert "seed:" in refusal(seed=value)


@given(st.one_of(st.floats(max_value=0.0), st.just(float("nan")), st.just(float("inf"))))
def test_a_learning_rate_is_finite_and_positive(value: float) -> None:
    assert "optimizer.lr: must be a finite number > 0" in refusal(optimizer__lr=value)


@given(batch=st.integers(1, 4000), ranks=st.integers(1, 16))
def test_divisible_or_refused_with_a_batch_that_would_do(batch: int, ranks: int) -> None:
    if batch % ranks == 0:
        assert build(values(global_batch=batch, world_size=ranks)).global_batch == batch
        return
    line = refusal(global_batch=batch, world_size=ranks)
    suggested = int(line.rsplit(" ", 1)[1])
    assert suggested % ranks == 0 and abs(suggested - batch) < ranks


def test_an_installed_package_adds_names(monkeypatch: pytest.MonkeyPatch) -> None:
    added = EntryPoint(name="mine", value="package:builder", group="ecrl.models")
    monkeypatch.setattr(
        convert, "entry_points", lambda group: [added] if group == "ecrl.models" else []
    )
    assert build(values(model__name="mine")).model.name == "mine"
    assert (
        "model.name: must be one of small_cnn, resnet18, resnet50, resnet152, vit, nt3, mine, got"
        " 'other'" in refusal(model__name="other")
    )
    assert "dataset.name: must be one of" in refusal(dataset__name="mine")


def test_an_unknown_key_is_named_with_the_nearest_one() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown key 'checkpoint.evry'; did you mean checkpoint.every\?"
    ):
        build({"checkpoint": {"evry": 5}})


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("optimizer.learning_rate", "optimizer.lr"),
        ("batch_size", "global_batch"),
        ("checkpoint.save_steps", "checkpoint.every"),
    ],
)
def test_a_name_that_other_trainers_use_is_answered_with_ours(key: str, ours: str) -> None:
    assert unknown_key(key).remedy == f"did you mean {ours}?"


def test_a_name_that_nobody_registered_is_answered_with_the_nearest_or_with_how_to_add_it() -> None:
    for name, remedy in (
        ("resnet51", "did you mean resnet50?"),
        ("gpt", "an entry point in ecrl.models: see docs/extend.md"),
    ):
        assert remedy in refusal(model__name=name)


@pytest.mark.parametrize("key", ["_target_", "_partial_", "_recursive_"])
def test_what_could_run_code_is_refused_anywhere(key: str) -> None:
    with pytest.raises(ConfigError, match="does not instantiate"):
        build({"elastic": {"schedule": {key: "os.system"}}})


@pytest.mark.parametrize("text", ["${oc.env:HOME}", "a-${now:%Y}", "${oc.decode:${seed}}"])
def test_resolvers_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="resolvers are not accepted"):
        build({"suite_name": text})


def test_interpolation_between_keys_is_resolved() -> None:
    assert build({"seed": 5, "target_steps": "${seed}"}).target_steps == 5


def test_interpolation_to_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="seed"):
        build({"seed": "${nowhere}"})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"failure__kind": "kill"}, "no step is planned"),
        ({"failure__kind": "kill", "failure__steps": [0, 5]}, "must be >= 1, got 0"),
        ({"failure__kind": "kill", "failure__steps": [1600]}, "nothing would be left to recover"),
        ({"failure__kind": "kill", "failure__steps": [5, 5]}, "strictly increasing"),
        ({"checkpoint__format": "torch"}, "add checkpoint.layout=single"),
        (
            {"supervision__spares": 1},
            (
                "supervision.spares: keeping spares needs supervision.launcher=zygote, got"
                " torchrun; add supervision=zygote"
            ),
        ),
        (
            {**LIVE, "supervision__launcher": "torchrun"},
            "recovery: lossy_forward needs supervision.launcher=zygote, got torchrun",
        ),
        (
            {**LIVE, "supervision__launcher": "torchrun", "supervision__nodes": 2},
            "recovery: lossy_forward needs all ranks on one machine",
        ),
        (
            {**LIVE, "elastic__replicas": 4},
            "recovery: lossy_forward and elastic.replicas cannot be combined",
        ),
        (
            {**LIVE, "elastic__schedule": {100: 1}},
            "recovery: lossy_forward and a planned change of the world size cannot be combined",
        ),
        (
            {**LIVE, "device": "cuda"},
            "recovery: lossy_forward works with gloo on the CPU only, got device=cuda",
        ),
        (
            {**LIVE, "backend": "nccl"},
            "recovery: lossy_forward works with gloo on the CPU only, got backend=nccl",
        ),
        ({**LIVE, "world_size": 128}, "world_size: lossy_forward serves at most 64 ranks, got 128"),
        (
            {**LIVE, "recovery__name": "immediate_rollback"},
            "recovery: immediate_rollback needs spares: nobody could take a dead rank's place",
        ),
        (
            {"elastic__replicas": 6},
            "elastic.replicas: global_batch 256 is not divisible by 6 replicas; use 4 or 8",
        ),
        (
            {"elastic__replicas": 512},
            "elastic.replicas: global_batch 256 is not divisible by 512 replicas; use 256",
        ),
        (
            {"elastic__replicas": 4, "world_size": 5},
            "world_size: 5 ranks cannot share 4 replicas: each needs one; use at most 4",
        ),
        (
            {"elastic__replicas": 4, "elastic__schedule": {100: 3, 200: 8}},
            "elastic.schedule: 8 ranks from step 200 on cannot share 4 replicas; use 4",
        ),
        (
            {"elastic__schedule": {100: 3}},
            "elastic.schedule: 3 ranks from step 100 on do not divide global_batch 256; use 2",
        ),
        (
            {"elastic__schedule": {100: 0}},
            "elastic.schedule: a world size must be >= 1, got 0 from step 100 on",
        ),
        ({"elastic__schedule": {-1: 1}}, "elastic.schedule: a step must be >= 0, got -1"),
        (
            {"elastic__schedule": {1600: 1}},
            "elastic.schedule: step 1600 is not below target_steps 1600",
        ),
        ({"elastic__schedule": {0: 3}}, "global_batch: 256 is not divisible by world size 3"),
        (
            {"elastic__schedule": {100: 1}, "checkpoint__strategy": "none"},
            "elastic.schedule: a change of the size goes on from a checkpoint",
        ),
        (
            {**PLAN, "elastic__schedule": {500: 1}},
            "failure.rank: rank 1 does not exist with 1 rank at step 1225; use 0 to 0",
        ),
        (
            {**PLAN, "elastic__schedule": {400: 1, 500: 2}},
            "failure.rank: rank 1 does not exist with 1 rank at step 400",
        ),
        (
            {"failure__kind": "mtbf"},
            "failure.mtbf_steps: must be >= 1 for failure=mtbf, got 0; give a mean",
        ),
        (
            {"failure__kind": "mtbf", "failure__mtbf_steps": 9, "failure__steps": [5]},
            "failure.steps: [5] planned, but failure.kind is mtbf",
        ),
        (
            {"failure__kind": "mtbf", "failure__mtbf_steps": 9, "failure__rank": 1},
            "failure.rank: rank 1 named, but failure.kind is mtbf",
        ),
        (
            {**PLAN, "failure__mtbf_steps": 9},
            "failure.mtbf_steps: a mean is given, but failure.kind is kill",
        ),
        (
            {"failure__mtbf_steps": 9},
            "failure.mtbf_steps: a mean is given, but failure.kind is none",
        ),
        (
            {"checkpoint__strategy": "overlapped", "checkpoint__memory_every": 5},
            "checkpoint.memory_every: checkpoint=overlapped keeps nothing",
        ),
        (
            {"checkpoint__strategy": "in_memory", "supervision__nodes": 2},
            "checkpoint: in_memory keeps its snapshots on one machine",
        ),
        ({"suite_name": "../../etc"}, "names a folder"),
        ({"variant__name": ""}, "names a folder"),
        ({"optimizer__min_lr": 1.0}, "is above optimizer.lr"),
        ({"scale__launcher": "slurm"}, "scale.launcher: must be one of"),
        ({"dataset__root": ""}, "dataset.root: has no value"),
        ({"run_dir": "a\nb"}, "one line of plain text"),
    ],
)
def test_what_cannot_work_together_is_refused(changes: dict[str, Any], says: str) -> None:
    assert says in refusal(**changes)


def test_without_checkpoints_their_interval_does_not_matter() -> None:
    assert (
        build(
            values(checkpoint__strategy="none", checkpoint__every=5000, checkpoint__final=False)
        ).checkpoint.strategy
        == "none"
    )


def test_failures_without_checkpoints_are_allowed_because_honest() -> None:
    assert build(values(**PLAN, checkpoint__strategy="none")).failure.steps == (400, 1225)


def test_a_variant_without_failures_drops_the_plan_and_nothing_else() -> None:
    with_plan, without = build(values(**PLAN)), build(values(**PLAN, variant__failures=False))
    assert without.failure.kind == "none" and without.failure.steps == ()
    assert replace(without, failure=with_plan.failure, variant=with_plan.variant) == with_plan


def test_failure_none_over_a_suites_plan_is_meant_only_when_typed() -> None:
    plan = {**PLAN, "failure__kind": "none"}
    assert build(values(**plan), frozenset({"failure"})).failure.steps == ()
    assert "failure.kind is none" in refusal(**plan)


def test_smoke_keeps_failures_on_and_off_the_boundary() -> None:
    small = build(values(**PLAN, **SMOKE))
    on, off = small.failure.steps
    assert (
        small.target_steps < 100
        and on % small.checkpoint.every == 0
        and off % small.checkpoint.every != 0
    )
    assert small.supervision.launcher == "zygote" and small.global_batch == 16


def test_a_scale_leaves_alone_what_was_typed() -> None:
    typed = frozenset(
        {
            "target_steps",
            "checkpoint.every",
            "failure.steps",
            "global_batch",
            "supervision.launcher",
        }
    )
    big, small = build(values(**PLAN)), build(values(**PLAN, **SMOKE), typed)
    assert replace(small, scale=big.scale) == big


def test_all_arms_are_scaled_alike() -> None:
    arms = [
        build(values(**PLAN, **SMOKE, variant__failures=failures)) for failures in (True, False)
    ]
    assert arms[0].target_steps == arms[1].target_steps and arms[0].checkpoint == arms[1].checkpoint


@given(
    factor=st.floats(0.01, 1.0),
    min_every=st.integers(1, 6),
    every=st.integers(2, 60),
    positions=st.lists(st.integers(1, 1500), min_size=1, max_size=4, unique=True).map(sorted),
)
def test_every_scaled_plan_is_a_plan(
    factor: float, min_every: int, every: int, positions: list[int]
) -> None:
    plan = values(
        failure__kind="kill",
        failure__steps=positions,
        checkpoint__every=every,
        scale__steps=factor,
        scale__min_every=min_every,
    )
    small = build(plan)
    kinds = [step % every == 0 for step in positions]
    assert [step % small.checkpoint.every == 0 for step in small.failure.steps] == kinds
    assert small.failure.steps[0] > 0 and small.failure.steps[-1] < small.target_steps <= 1600


def test_a_scale_with_one_rank_strikes_that_rank() -> None:
    assert build(values(**PLAN, scale__world_size=1)).failure.rank == 0
