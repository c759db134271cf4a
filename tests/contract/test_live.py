"""A live run, with ranks that play a part: a death is told to the others, they leave, and go on as
the recovery says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.config.codec import decode, encode
from ecrl_cli.config.launchers import LAUNCHERS
from ecrl_cli.config.schema import CheckpointConfig, RecoveryConfig, RunConfig, SupervisionConfig
from ecrl_cli.errors import NoProgress, Stopped
from ecrl_cli.failures.plan import plan
from ecrl_cli.records.events import SupervisorRecord
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import AttemptSpec
from ecrl_cli.records.run_config import write_run_config
from ecrl_cli.supervision.console import SilentUI
from ecrl_cli.supervision.launch import zygote
from ecrl_cli.supervision.launch.launcher import Launcher, LaunchSpec, RunningAttempt
from ecrl_cli.supervision.supervisor import supervise
from tests.contract.standin import PYTHONPATH, registered_launcher, scripted

MODULE = "tests.contract.standin_live"


class LiveLauncher:
    """Any launcher whose ranks may outlive others, but of stand-in ranks."""

    def __init__(self, name: str) -> None:
        self.real = registered_launcher(name, MODULE)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(zygote, "preload", lambda config: (MODULE,))
            self.real.warm(RunConfig())

    def warm(self, config: RunConfig) -> None:
        """Nothing is heavy here."""

    def launch(self, spec: LaunchSpec) -> RunningAttempt:
        return self.real.launch(replace(spec, module=MODULE, preload=(MODULE,)))

    def close(self) -> None:
        self.real.close()


@pytest.fixture(
    scope="module", params=[name for name in LAUNCHERS.names() if LAUNCHERS.of(name).in_place]
)
def launcher(request: pytest.FixtureRequest) -> Iterator[Launcher]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PYTHONPATH)
        made = LiveLauncher(request.param)
        yield made
        made.close()


def config(recovery: str, ranks: int, spares: int = 0) -> RunConfig:
    return RunConfig(
        target_steps=100,
        global_batch=60,
        world_size=ranks,
        checkpoint=CheckpointConfig(strategy="none"),
        recovery=RecoveryConfig(recovery),
        supervision=SupervisionConfig(
            launcher="zygote",
            max_restarts=3,
            spares=spares,
            hang_timeout_s=2.0,
            start_timeout_s=60.0,
        ),
    )


def ran(
    launcher: Launcher, root: Path, config: RunConfig, *script: dict[int | str, str]
) -> tuple[SupervisorRecord, RunLayout]:
    layout = scripted(root / "run", *script)  # type: ignore[arg-type]
    layout.failures.write_text(json.dumps(encode(plan(config))))
    write_run_config(layout, config)
    return supervise(config, layout, SilentUI(), launcher), layout


def pids(layout: RunLayout, attempt: int) -> dict[int, int]:
    """By rank of `attempt`, its process, by its own word."""
    return {
        int(path.name[3:]): int(path.read_text().split()[0])
        for path in layout.attempt(attempt).folder.glob("pid*")
    }


def test_the_survivors_of_a_death_go_on_as_the_same_processes(
    launcher: Launcher, tmp_path: Path
) -> None:
    record, layout = ran(
        launcher,
        tmp_path,
        config("lossy_forward", 3),
        {0: "40:leave", 1: "39:kill", 2: "40:leave"},
        {0: "100:done", 1: "100:0"},
    )
    assert (record.terminal_status, record.restarts) == ("completed", 0)
    first, second = record.attempts
    assert (first.outcome, first.rank, first.signal, first.exit_code, first.last_step) == (
        "survived",
        1,
        9,
        None,
        40,
    )
    assert (second.continues, second.memory, second.origins, second.joined) == (
        0,
        "survivors",
        (0, 2),
        (),
    )
    assert (second.resumed_from, second.resumed_from_step, second.world_size, second.outcome) == (
        None,
        40,
        2,
        "completed",
    )
    told = decode(AttemptSpec, read_json(layout.attempt(1).launch))
    assert (told.world_size, told.resume_step, told.continues, told.origins) == (2, 40, 0, (0, 2))
    before, after = pids(layout, 0), pids(layout, 1)
    assert after == {0: before[0], 1: before[2]}


def test_ranks_outlive_the_one_that_speaks_for_all(launcher: Launcher, tmp_path: Path) -> None:
    record, _ = ran(
        launcher,
        tmp_path,
        config("lossy_forward", 3),
        {0: "39:kill", 1: "40:leave", 2: "40:leave"},
        {0: "100:done", 1: "100:0"},
    )
    first, second = record.attempts
    assert (first.outcome, first.rank, first.first_step, first.last_step) == ("survived", 0, 1, 40)
    assert (second.origins, second.resumed_from_step, record.terminal_status) == (
        (1, 2),
        40,
        "completed",
    )


def test_one_who_dies_after_it_left_is_not_in_the_next_attempt(
    launcher: Launcher, tmp_path: Path
) -> None:
    record, _ = ran(
        launcher,
        tmp_path,
        config("lossy_forward", 4),
        {0: "40:leave,last", 1: "39:kill", 2: "40:leave,kill", 3: "40:leave"},
        {0: "100:done", 1: "100:0"},
    )
    assert [(a.outcome, a.world_size, a.origins) for a in record.attempts] == [
        ("survived", 4, ()),
        ("completed", 2, (0, 3)),
    ]


def test_a_spare_takes_the_place_of_the_dead(launcher: Launcher, tmp_path: Path) -> None:
    record, layout = ran(
        launcher,
        tmp_path,
        config("immediate_rollback", 3, spares=1),
        {0: "40:leave", 1: "40:kill", 2: "40:leave"},
        {0: "50:kill", 1: "50:leave", 2: "50:leave"},
        {0: "100:done", 1: "100:0", 2: "100:0"},
    )
    assert (record.terminal_status, record.restarts) == ("completed", 0)
    assert [(a.outcome, a.origins, a.joined) for a in record.attempts] == [
        ("survived", (), ()),
        ("survived", (0, 1, 2), (1,)),
        ("completed", (0, 1, 2), (0,)),
    ]
    first, second, third = (pids(layout, attempt) for attempt in range(3))
    assert (second[0], second[2]) == (first[0], first[2])
    assert second[1] not in first.values()
    assert (third[1], third[2]) == (second[1], second[2])
    assert third[0] not in second.values()


def test_with_fewer_spares_than_dead_a_rollback_begins_anew_from_a_checkpoint(
    launcher: Launcher, tmp_path: Path
) -> None:
    record, _ = ran(
        launcher,
        tmp_path,
        config("immediate_rollback", 3, spares=1),
        {0: "40:leave", 1: "40:kill", 2: "40:kill"},
        {0: "100:done", 1: "100:0", 2: "100:0"},
    )
    assert (record.terminal_status, record.restarts) == ("completed", 1)
    assert [(a.outcome, a.continues, a.origins) for a in record.attempts] == [
        ("died", None, ()),
        ("completed", None, ()),
    ]


def test_survivors_and_spares_go_back_to_a_checkpoint_together(
    launcher: Launcher, tmp_path: Path
) -> None:
    record, layout = ran(
        launcher,
        tmp_path,
        config("checkpoint_restart", 2, spares=1),
        {0: "40:leave", 1: "40:kill"},
        {0: "100:done", 1: "100:0"},
    )
    assert (record.terminal_status, record.restarts) == ("completed", 1)
    first, second = record.attempts
    assert (first.outcome, second.continues, second.memory, second.resumed_from_step) == (
        "died",
        None,
        "",
        0,
    )
    assert (second.origins, second.joined) == ((0, 1), (1,))
    assert pids(layout, 1)[0] == pids(layout, 0)[0]


def test_where_nobody_is_left_all_begin_anew(launcher: Launcher, tmp_path: Path) -> None:
    record, _ = ran(
        launcher,
        tmp_path,
        config("lossy_forward", 2),
        {0: "40:kill", 1: "40:kill"},
        {0: "100:done", 1: "100:0"},
    )
    assert [(a.outcome, a.world_size, a.continues) for a in record.attempts] == [
        ("died", 2, None),
        ("completed", 2, None),
    ]
    assert record.restarts == 1


def test_survivors_that_cannot_share_the_batch_begin_anew(
    launcher: Launcher, tmp_path: Path
) -> None:
    seven = replace(config("lossy_forward", 2), global_batch=7 * 2, world_size=7)
    left = dict.fromkeys(range(6), "40:leave")
    record, _ = ran(
        launcher,
        tmp_path,
        seven,
        {**left, 6: "40:kill"},
        {0: "100:done", **dict.fromkeys(range(1, 7), "100:0")},
    )
    assert [(a.outcome, a.world_size, a.continues) for a in record.attempts] == [
        ("died", 7, None),
        ("completed", 7, None),
    ]


def test_survivors_that_contradict_each_other_begin_anew(
    launcher: Launcher, tmp_path: Path
) -> None:
    record, _ = ran(
        launcher,
        tmp_path,
        config("lossy_forward", 3),
        {0: "40:leave", 1: "40:kill", 2: "41:leave"},
        {0: "100:done", 1: "100:0", 2: "100:0"},
    )
    assert [(a.outcome, a.continues) for a in record.attempts] == [
        ("died", None),
        ("completed", None),
    ]


@pytest.mark.parametrize("recovery", ["immediate_rollback", "lossy_forward"])
def test_nobody_goes_on_with_a_state_that_a_rank_calls_spoilt(
    launcher: Launcher, tmp_path: Path, recovery: str
) -> None:
    record, layout = ran(
        launcher,
        tmp_path,
        config(recovery, 3, spares=1),
        {0: "40:leave", 1: "40:spoilt", 2: "40:leave"},
        {0: "100:done", 1: "100:0", 2: "100:0"},
    )
    assert [(a.outcome, a.continues, a.memory, a.resumed_from_step) for a in record.attempts] == [
        ("died", None, "", 0),
        ("completed", None, "", 0),
    ]
    assert record.attempts[0].rank == 1
    assert not set(pids(layout, 0).values()) & set(pids(layout, 1).values())


def test_a_survivor_that_never_leaves_is_a_hang(launcher: Launcher, tmp_path: Path) -> None:
    patient = config("lossy_forward", 3)
    short = replace(patient, supervision=replace(patient.supervision, start_timeout_s=6.0))
    record, _ = ran(
        launcher,
        tmp_path,
        short,
        {0: "40:leave", 1: "40:kill", 2: "40:hang"},
        {0: "100:done", 1: "100:0", 2: "100:0"},
    )
    assert [a.outcome for a in record.attempts] == ["hung", "completed"]
    assert record.attempts[0].hang is not None
    assert 1 not in record.attempts[0].hang.ranks


def test_a_spare_that_dies_is_replaced(launcher: Launcher, tmp_path: Path) -> None:
    record, layout = ran(
        launcher,
        tmp_path,
        config("immediate_rollback", 2, spares=1),
        {0: "40:leave", 1: "40:kill", "spare0": "kill"},
        {0: "100:done", 1: "100:0"},
    )
    assert (record.terminal_status, record.restarts, record.attempts[-1].joined) == (
        "completed",
        0,
        (1,),
    )
    assert (layout.root / "spare1").exists()


def test_spares_that_never_stand_by_are_given_up(launcher: Launcher, tmp_path: Path) -> None:
    dying = {f"spare{number}": "kill" for number in range(9)}
    record, layout = ran(
        launcher,
        tmp_path,
        config("immediate_rollback", 2, spares=1),
        {0: "40:leave", 1: "40:kill", **dying},
        {0: "100:done", 1: "100:0", **dying},
    )
    assert [a.outcome for a in record.attempts] == ["died", "completed"]
    assert not (layout.root / "spare4").exists()


def test_a_run_is_stopped_while_survivors_wait_for_a_spare(
    launcher: Launcher, tmp_path: Path
) -> None:
    slow = config("immediate_rollback", 2, spares=1)
    with pytest.raises(Stopped):
        ran(launcher, tmp_path, slow, {0: "40:leave", 1: "40:kill", "spare0": "stop"})
    record = decode(SupervisorRecord, read_json(RunLayout(tmp_path / "run").supervisor))
    assert record.terminal_status == "stopped"
    assert [a.outcome in ("died", "stopped") for a in record.attempts] == [True], (
        "nobody took its state along"
    )


def test_a_stop_while_survivors_go_on_lets_them_save_what_they_alone_have(
    launcher: Launcher, tmp_path: Path
) -> None:
    saving = replace(config("lossy_forward", 2), checkpoint=CheckpointConfig(strategy="blocking"))
    with pytest.raises(Stopped):
        ran(launcher, tmp_path, saving, {0: "40:leave,stop", 1: "40:kill"}, {0: "99:obey"})
    first, second = decode(
        SupervisorRecord, read_json(RunLayout(tmp_path / "run").supervisor)
    ).attempts
    assert (first.outcome, second.outcome, second.memory) == ("survived", "stopped", "survivors")
    assert (second.first_step, second.last_step) == (
        41,
        42,
    ), "agreed after the first, stopped after the second"


def test_a_stop_while_survivors_leave_with_nothing_of_their_own_ends_the_attempt(
    launcher: Launcher, tmp_path: Path
) -> None:
    saving = replace(
        config("checkpoint_restart", 2, spares=1), checkpoint=CheckpointConfig(strategy="blocking")
    )
    with pytest.raises(Stopped):
        ran(
            launcher,
            tmp_path,
            saving,
            {0: "40:leave,stop", 1: "40:kill"},
            {0: "100:done", 1: "100:0"},
        )
    (attempt,) = decode(
        SupervisorRecord, read_json(RunLayout(tmp_path / "run").supervisor)
    ).attempts
    assert attempt.outcome == "stopped"


def test_at_the_end_no_spare_is_left(launcher: Launcher, tmp_path: Path) -> None:
    ran(
        launcher,
        tmp_path,
        config("immediate_rollback", 2, spares=2),
        {0: "40:leave", 1: "40:kill"},
        {0: "100:done", 1: "100:0"},
    )
    spares = [int(path.read_text()) for path in (tmp_path / "run").glob("standby*")]
    assert spares
    assert not [pid for pid in spares if os.path.exists(f"/proc/{pid}")]  # noqa: PTH110


def test_survivors_that_gain_nothing_over_and_over_end_the_run(
    launcher: Launcher, tmp_path: Path
) -> None:
    with pytest.raises(NoProgress):
        ran(
            launcher,
            tmp_path,
            config("immediate_rollback", 2, spares=1),
            {0: "40:leave", 1: "40:kill"},
            {0: "40:leave", 1: "40:kill"},
        )
    record = decode(SupervisorRecord, read_json(RunLayout(tmp_path / "run").supervisor))
    assert [a.outcome for a in record.attempts] == ["survived", "survived", "died"]
