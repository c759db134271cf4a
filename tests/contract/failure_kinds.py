"""What every kind of failure must keep to. A test class that inherits `FailureKindContract` gives
the fixtures `kind` and `conf`.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ecrl_cli.config.fault_spec import FAILURES, MOMENTS
from ecrl_cli.config.schema import CheckpointConfig, FailureConfig, RunConfig
from ecrl_cli.errors import ConfigError
from ecrl_cli.failures.fault_kind import Ends, FaultKind, Victim, fault_kind
from ecrl_cli.failures.plan import describe, plan
from ecrl_cli.history.load import load
from ecrl_cli.verify.fault_effects import check_effect
from ecrl_cli.verify.verdict import VALID, FindingBuilder
from ecrl_cli.verify.verification_input import Case
from tests.runs.faulted import ListedBuilder, listed

STEP = 14  # of 24, a checkpoint every 6
LONG_S = "*5"  # seconds that no recorded step or save takes
IN_A_SAVE = (Victim.WRITER, Victim.SAVE)


def run_config(*entries: str, **more: Any) -> RunConfig:
    settings = {
        "world_size": 3,
        "target_steps": 100,
        "checkpoint": CheckpointConfig(every=6),
    } | more
    return replace(RunConfig(failure=FailureConfig("listed", entries=entries)), **settings)


class UndisturbedBuilder(ListedBuilder):
    """Its failures are claimed in attempt 0, and nothing comes of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.harmless = {entry.index for entry in plan(self.config)}


def refused(kind: FaultKind, text: str, fact: str) -> None:
    """One line, under the key that was typed, that quotes what was."""
    with pytest.raises(ConfigError, match=fact) as caught:
        plan(run_config(f"{kind.name}{text}"))
    assert (
        caught.value.key == "failure.entries"
        and "\n" not in caught.value.line()
        and f"'{kind.name}@" in caught.value.fact
    )


class FailureKindContract:
    def test_it_is_registered_under_its_own_name(self, kind: FaultKind) -> None:
        assert kind.name in FAILURES.names() and type(fault_kind(kind.name)) is type(kind)
        assert re.fullmatch("[a-z_]+", kind.name), "must fit into WHAT@STEP"

    def test_it_describes_itself_in_one_sentence(self, kind: FaultKind) -> None:
        for text in (kind.description, kind.shows, kind.text):
            assert (
                text
                and "\n" not in text
                and not text.endswith(".")
                and ". " not in text
                and len(text) <= 150
            ), text
        assert kind.text.format(seconds=kind.seconds)

    def test_its_yaml_file_names_it_and_begins_with_its_description(
        self, kind: FaultKind, conf: Path
    ) -> None:
        text = (conf / "failure" / f"{kind.name}.yaml").read_text(encoding="utf-8")
        assert text.startswith(f"# {kind.description}\n") and yaml.safe_load(text) == {
            "kind": kind.name
        }

    def test_what_it_says_of_itself_is_consistent(self, kind: FaultKind) -> None:
        own = type(kind)
        assert kind.moments and set(kind.moments) <= set(MOMENTS)
        assert ("save" in kind.moments) == (kind.victim in IN_A_SAVE)
        assert "wall" not in kind.moments or kind.sends is not None, (
            "the supervisor must have a signal to send"
        )
        assert "rest" not in kind.moments or own.inject_at_rest is not FaultKind.inject_at_rest
        by_itself = set(kind.moments) - {"rest", "wall"}
        assert (
            not by_itself
            or own.inject is not FaultKind.inject
            or own.inject_into_save is not FaultKind.inject_into_save
        )
        assert not kind.point or "save" in kind.moments
        assert kind.lasts == 1 or (kind.seconds > 0 and kind.ends is Ends.NOTHING)
        assert 0 <= kind.share <= 1 and kind.seconds >= 0
        if kind.ends is Ends.NOTHING:
            assert not (kind.death or kind.hangs or kind.graceful or kind.supervisor_exit), (
                "nothing ends of it"
            )
            assert own.trace is not FaultKind.trace, "what lives on must show what happened to it"
        elif kind.ends is Ends.VICTIM:
            assert (
                kind.victim.is_rank
                and kind.death
                and not (kind.hangs or kind.graceful or kind.supervisor_exit)
            )
        else:
            ends_by = (kind.death, kind.hangs, kind.graceful, kind.supervisor_exit)
            assert any(each not in (None, False) for each in ends_by), "how does its attempt end?"
        assert kind.death is None or (kind.death.exit_code is None) != (kind.death.signal is None)
        assert not kind.stalls_exchange or kind.hangs
        assert not kind.may_cut_update or kind.ends is not Ends.NOTHING, (
            "somebody would go on with half an update"
        )

    def test_it_is_planned_and_told_in_one_line_for_each_moment(self, kind: FaultKind) -> None:
        before = {
            "rest": f"kill@{STEP}:0",
            "start": f"kill@{STEP}:0",
            "rendezvous": f"kill@{STEP}:0",
            "load": f"kill@{STEP}:0",
        }
        for moment in kind.moments:
            text = f"{kind.name}@3.5s" if moment == "wall" else f"{kind.name}@{STEP}.{moment}"
            planned = plan(run_config(*([before[moment]] if moment in before else []), text))
            assert planned[-1].moment == moment
            lines = describe(planned)
            assert all("\n" not in line and "{" not in line for line in lines), lines

    def test_what_it_does_not_take_is_refused_in_one_line(self, kind: FaultKind) -> None:
        moment = kind.moments[0]
        for other in set(MOMENTS) - {*kind.moments, "wall"}:
            if plain(kind):
                refused(kind, f"@{STEP}.{other}", f"cannot be injected at {other}")
        if not kind.seconds:
            refused(kind, f"@{STEP}*3", "takes no time")
        if "save" not in kind.moments and plain(kind):
            refused(kind, f"@{STEP}%half_part", "has no point of the store's protocol")
        if not kind.takes_rank:
            refused(kind, f"@{STEP}:1", "not rank 1|rank 0 only")
        elif kind.victim is Victim.RANK:
            refused(kind, f"@{STEP}:0+1", "takes one rank alone")
        if plain(kind) and (
            not kind.takes_share or moment not in ("forward", "backward", "optimizer")
        ):
            refused(kind, f"@{STEP}/0.25", "has no share")
        if kind.takes_rank:
            with pytest.raises(ConfigError, match="rank 7 does not exist"):
                plan(run_config(f"{kind.name}@{STEP}:7"))

    def test_records_that_lack_its_trace_are_not_valid(
        self, kind: FaultKind, tmp_path: Path
    ) -> None:
        """The failure is claimed in a run to which nothing happened: each entry that it stands for
        is missed.
        """
        text = f"{kind.name}@{STEP}{LONG_S if kind.seconds else ''}"
        builder = UndisturbedBuilder(tmp_path / "run", listed(text))
        run = builder.build()
        for entry in plan(builder.config):
            at_step = 18 if entry.moment == "save" else STEP
            builder.fault_fired(
                entry.index,
                0,
                at_step=at_step,
                detail="checkpoints/step_00000018/model.safetensors: bytes 5 changed",
            )
        case = Case(load(run))
        for entry, fired in zip(plan(builder.config), case.run.fired, strict=True):
            notes = FindingBuilder("failures-once")
            check_effect(case, fired, entry, notes)
            finding = notes.finding("")
            assert finding.status != VALID and f"entry {entry.index}" in finding.message, (
                entry,
                finding,
            )

    def test_its_module_imports_torch_inside_functions_only(self, kind: FaultKind) -> None:
        """Supervisor and judge have no torch."""
        assert not re.search(
            r"^(import|from) torch\b",
            inspect.getsource(inspect.getmodule(type(kind)) or re),
            re.MULTILINE,
        )


def plain(kind: FaultKind) -> bool:
    """Whether an entry of the kind stands for itself alone."""
    return type(kind).expand is FaultKind.expand
