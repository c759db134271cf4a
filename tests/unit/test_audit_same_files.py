"""The promise "same files": what a job leaves must be what the undisturbed runs agree in, and
nothing that a healthy recovery changes is broken.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

from ecrl_cli.audit.audit import judge_folder
from ecrl_cli.audit.components import ArmFinding
from ecrl_cli.audit.file_contents import content_of
from ecrl_cli.audit.files import write_inventory
from ecrl_cli.audit.same_files import differences_of_values
from ecrl_cli.audit.text_files import Restarts, differences_of_lines
from tests.unit.audit_recordings import healthy

Leave = Callable[[Path], Any]
ARMS = ("ref", "ref2", "struck")


def _judged(
    folder: Path, undisturbed: Leave, disturbed: Leave, other: Leave | None = None
) -> ArmFinding:
    """The finding about an arm that leaves what `disturbed` writes; `other`: what the second
    undisturbed run writes, if not the same.
    """
    healthy(folder)
    for arm, leave in zip(ARMS, (undisturbed, other or undisturbed, disturbed), strict=True):
        (folder / arm / "work").mkdir()
        leave(folder / arm / "work")
        write_inventory(folder / arm)
    verdict = judge_folder(folder, None, "auto")
    (finding,) = [finding for finding in verdict.findings if finding.promise == "same files"]
    assert (verdict.status == "invalid") == (finding.status == "broken")
    return finding


def _saves(**files: Any) -> Leave:
    def leave(folder: Path) -> None:
        for name, value in files.items():
            torch.save(value, folder / f"{name}.pt")

    return leave


def _state(step: int, best: float = 0.5) -> dict[str, Any]:
    return {
        "model": {"w": torch.full((3,), float(step)), "b": torch.zeros(1)},
        "step": step,
        "best": best,
    }


@pytest.mark.parametrize(
    ("disturbed", "said"),
    [
        (
            _saves(last=_state(20, 0.25), ema=torch.ones(3)),
            "last.pt: best is 0.25, in both undisturbed runs 0.5",
        ),
        (
            _saves(last=_state(20), ema=torch.zeros(3)),
            "ema.pt: its only tensor differs",
        ),
        (_saves(last=_state(20)), "ema.pt: missing, the undisturbed runs leave it"),
        (
            _saves(last={"step": 20, "best": 0.5}, ema=torch.ones(3)),
            "last.pt: 2 of 2 tensors differ, first model.w",
        ),
    ],
)
def test_a_file_that_differs_is_named_with_its_key(
    tmp_path: Path, disturbed: Leave, said: str
) -> None:
    finding = _judged(tmp_path, _saves(last=_state(20), ema=torch.ones(3)), disturbed)
    assert (finding.status, finding.message, finding.arm) == ("broken", said, "struck")


def test_a_lost_value_is_told_beside_the_tensors_that_follow_from_it(tmp_path: Path) -> None:
    undisturbed = _saves(best=torch.ones(3), copy=torch.ones(3), last=_state(20))
    disturbed = _saves(best=torch.zeros(3), copy=torch.zeros(3), last=_state(20, 0.25))
    finding = _judged(tmp_path, undisturbed, disturbed)
    assert finding.message == (
        "best.pt: its only tensor differs;"
        " last.pt: best is 0.25, in both undisturbed runs 0.5; 1 more file differs"
    )
    assert finding.evidence == ("copy.pt: its only tensor differs",)


@pytest.mark.parametrize("hooks", [0, 1])
def test_hooks_that_ran_in_a_restart_are_named(tmp_path: Path, hooks: int) -> None:
    call = {"type": "call", "what": "Optimizer.step", "by": "set_state_dict", "hooks": hooks}

    def disturbed(folder: Path) -> None:
        torch.save(torch.zeros(3), folder / "ema.pt")
        (record,) = (folder.parent / "attempt-01").glob("rank0-*.jsonl")
        record.write_text(record.read_text() + json.dumps(call | {"after_step": 0}) + "\n")

    finding = _judged(tmp_path, _saves(ema=torch.ones(3)), disturbed)
    assert finding.status == "broken"
    assert ["set_state_dict made a step" in line for line in finding.evidence] == [True] * hooks


def test_files_saved_after_a_load_are_the_same(tmp_path: Path) -> None:
    def disturbed(folder: Path) -> None:
        torch.save(_state(20), folder / "last.pt")
        torch.save(torch.load(folder / "last.pt"), folder / "last.pt")

    finding = _judged(tmp_path, _saves(last=_state(20)), disturbed)
    assert (finding.status, finding.message) == (
        "kept",
        "1 file with 4 values is as in the undisturbed runs",
    )


def test_without_an_inventory_it_is_not_checked(tmp_path: Path) -> None:
    healthy(tmp_path)
    (finding,) = [
        finding
        for finding in judge_folder(tmp_path, None, "auto").findings
        if finding.promise == "same files"
    ]
    assert finding.status == "not checked"


@dataclass
class Meter:
    """What a job may keep in a `.pt`."""

    count: int
    seconds: float


def _text(**files: str) -> Leave:
    """`name__suffix` stands for `name.suffix`, `folder___name` for `folder/name`."""

    def leave(folder: Path) -> None:
        for name, text in files.items():
            path = folder / name.replace("___", "/").replace("__", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("{dir}", str(folder)))

    return leave


def _both(*leaves: Leave) -> Leave:
    def leave(folder: Path) -> None:
        for each in leaves:
            each(folder)

    return leave


def _lightning(version: int) -> Leave:
    """A logger's folder of its own for each process, with the callback's checkpoints in it; rows
    that were not yet written are lost.
    """

    def leave(folder: Path) -> None:
        home = folder / f"version_{version}"
        (home / "checkpoints").mkdir(parents=True)
        callback = {
            "best_model_path": str(home / "checkpoints" / "epoch=1-step=20.ckpt"),
            "best_model_score": torch.tensor(0.5),
        }
        torch.save(
            {"state_dict": {"w": torch.ones(2)}, "callbacks": {"ModelCheckpoint": callback}},
            home / "checkpoints" / "epoch=1-step=20.ckpt",
        )
        rows = range(10, 20) if version else range(20)
        (home / "metrics.csv").write_text(
            "step,loss\n" + "".join(f"{row},{0.5 / (row + 1)}\n" for row in rows)
        )

    return leave


def _trainer(runtime: float, first_mean: float, total_mean: float, resumed: str | None) -> Leave:
    """HF Trainer: the mean loss since the last log, and that of the process, begin anew with a
    process.
    """
    log = [{"step": step, "loss": first_mean if step == 4 else 0.1 * step} for step in range(1, 7)]
    state = {
        "global_step": 7,
        "best_metric": 0.5,
        "log_history": [*log, {"step": 7, "train_loss": total_mean, "train_runtime": runtime}],
    }

    def leave(folder: Path) -> None:
        (folder / "trainer_state.json").write_text(json.dumps(state))
        (folder / "all_results.json").write_text(
            json.dumps({"epoch": 2.0, "train_loss": total_mean})
        )
        torch.save(
            {"python": (3, tuple(range(625)), None), "cpu": torch.arange(8)},
            folder / "rng_state.pth",
        )
        torch.save(
            Namespace(output_dir=str(folder), learning_rate=0.1, resume_from_checkpoint=resumed),
            folder / "training_args.bin",
        )

    return leave


def _accelerate(tuples: bool) -> Leave:
    """`random_states_0.pkl` is a zip of torch.save; what was loaded is saved with another order and
    as lists.
    """
    state = {
        "step": 4,
        "numpy": np.random.RandomState(3).get_state(),
        "torch": torch.arange(4),
        "betas": (0.9, 0.99) if tuples else [0.9, 0.99],
    }
    return lambda folder: torch.save(
        dict(sorted(state.items(), reverse=tuples)), folder / "random_states_0.pkl"
    )


def _slot(last: str, best: float = 0.5) -> Leave:
    """A checksum, and then what torch.save wrote; `last` and the name of the first entry are one
    text or two for pickle.
    """

    def leave(folder: Path) -> None:
        buffer = io.BytesIO()
        torch.save({"a name": torch.ones(2), "last": last, "best": best}, buffer)
        raw = buffer.getvalue()
        (folder / "slot0.bin").write_bytes(hashlib.sha256(raw).digest() + raw)

    return leave


def test_a_file_of_torch_behind_a_checksum_is_judged_by_its_content(tmp_path: Path) -> None:
    same = "".join(["a", " name"])  # equal to the key, and another object
    assert _judged(tmp_path / "a", _slot("a name"), _slot(same)).status == "kept"
    wrong = _judged(tmp_path / "b", _slot("a name"), _slot(same, best=0.25))
    assert wrong.message == "slot0.bin: best is 0.25, in both undisturbed runs 0.5"


def _dcp(folder: Path) -> None:
    dcp.save({"w": torch.ones(4), "n": 3}, checkpoint_id=folder / "step-20", no_dist=True)


def _retention(*steps: int) -> Leave:
    def leave(folder: Path) -> None:
        for step in steps:
            torch.save({"step": step}, folder / f"step-{step}.pt")

    return leave


LINES = [json.dumps({"step": step, "loss": 1 / step}) for step in range(1, 9)]
CSV = ["step,loss,seconds", *(f"{step},{1 / step},0.1" for step in range(1, 8))]
UPDATES = [
    "update,epoch,loss,time",
    *(f"{step},{step // 3},{round(1 / step, 2)},{step}" for step in range(1, 9)),
]
NAMES, CELLS = (",".join(f"{word}{n}" for n in range(40)) for word in ("loss_", "0.12"))
HEALTHY: dict[str, tuple[Leave, Leave]] = {
    "lightning's folders of one version each": (
        _lightning(0),
        _both(_text(version_0___metrics__csv="step,loss\n0,0.5\n"), _lightning(1)),
    ),
    "hf trainer": (_trainer(5.1, 0.4, 0.3, None), _trainer(3.2, 0.45, 0.1, "checkpoint-3")),
    "accelerate": (_accelerate(True), _accelerate(False)),
    "dcp": (_dcp, _dcp),
    "jsonl with steps done twice": (
        _text(log__jsonl="\n".join(LINES)),
        _text(log__jsonl="\n".join([*LINES[:5], "{}", *LINES[3:]])),
    ),
    "memory in bytes, and when each epoch began": (
        _text(h__json='{"n": 1, "gpu_mem": 3, "times": [5, 9]}'),
        _text(h__json='{"n": 1, "gpu_mem": 4, "times": [5, 8]}'),
    ),
    "a wide csv whose times have more digits": (
        _text(a__csv=f"time,{NAMES},n\n0.5,{CELLS},416"),
        _text(a__csv=f"time,{NAMES},n\n0.54321,{CELLS},416"),
    ),
    "steps done twice in a csv whose rows are updates of an epoch": (
        _text(a__csv="\n".join(UPDATES)),
        _text(a__csv="\n".join([*UPDATES[:5], "3,1,0.33,9", *UPDATES[4:]])),
    ),
    "csv with a mean that the restart cut": (
        _text(a__csv="\n".join(CSV)),
        _text(a__csv="\n".join(CSV).replace("0.25,0.1", "0.26,0.2")),
    ),
    "csv whose first rows were lost": (
        _text(a__csv="\n".join(CSV)),
        _text(a__csv="\n".join([CSV[0], *CSV[5:]])),
    ),
    "a log that says where it resumed": (
        _text(train__log="start\nend\n"),
        _text(train__log="start\nresumed at 4\nend\n"),
    ),
    "a log begun anew": (
        _text(train__log="start\n1\n2\nend\n"),
        _text(train__log="resumed at 4\n2\nend\n"),
    ),
    "tensorboard": (_text(events__out__tfevents__1="a"), _text(events__out__tfevents__2="b")),
    "leftovers": (_retention(15, 20), _both(_retention(5, 10, 15, 20), _text(torn__pt__tmp="PK"))),
    "another was counted": (_retention(15, 20), _retention(17, 20)),
    "numpy's generator": (_saves(a=np.random.default_rng(2)), _saves(a=np.random.default_rng(2))),
    "a dataclass": (_saves(a=Meter(3, 0.5)), _saves(a=Meter(3, 0.7))),
    "how it was started": (
        _text(
            args__json='{"lr": 1, "resume": null, "start_epoch": 0}',
            config__yaml="lr: 1\nresume: false\n",
        ),
        _text(
            args__json='{"lr": 1, "resume": "{dir}/last.pt", "start_epoch": 2}',
            config__yaml="lr: 1\nresume: true\n",
        ),
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("shape", HEALTHY)
def test_what_a_healthy_recovery_changes_is_not_broken(tmp_path: Path, shape: str) -> None:
    undisturbed, disturbed = HEALTHY[shape]
    anchor = _saves(anchor=torch.ones(2))
    finding = _judged(tmp_path, _both(undisturbed, anchor), _both(disturbed, anchor))
    assert finding.status == "kept", finding


BROKEN_TEXTS = {
    "a history that is shorter": (
        _text(h__json="[0.5, 0.4, 0.3]"),
        _text(h__json="[0.3]"),
        "h.json: [0] is 0.3, in both undisturbed runs 0.5",
    ),
    "a replay memory": (
        _text(h__json='{"mem": {"data": [[0.5, 1]]}}'),
        _text(h__json='{"mem": {"data": [[0.6, 1]]}}'),
        "h.json: mem.data[0][0] is 0.6, in both undisturbed runs 0.5",
    ),
    "a count that a restart never lowers": (
        _text(h__json='{"n": 1, "warm_restarts": 5}'),
        _text(h__json='{"n": 1, "warm_restarts": 3}'),
        "h.json: warm_restarts is 3, in both undisturbed runs 5",
    ),
    "seconds that no clock has measured": (
        _text(h__json='{"n": 1, "seconds_of_audio": 199.0625}'),
        _text(h__json='{"n": 1, "seconds_of_audio": 126.5}'),
        "h.json: seconds_of_audio is 126.5, in both undisturbed runs 199.0625",
    ),
    "a list of lists under such a name": (
        _text(h__json='{"user": [[0.5, 1]]}'),
        _text(h__json='{"user": [[0.6, 1]]}'),
        "h.json: user[0][0] is 0.6, in both undisturbed runs 0.5",
    ),
    "a row of many values": (
        _text(h__jsonl='{"time": 1, "name": "%s", "loss": 0.5}' % ("x" * 300)),
        _text(h__jsonl='{"time": 2, "name": "%s", "loss": 0.6}' % ("x" * 300)),
        "h.jsonl: loss of row 1 is 0.6, in both undisturbed runs 0.5",
    ),
    "a record that stays wrong": (
        _text(h__json='{"loss": [0.5, 0.4, 0.3, 0.2]}'),
        _text(h__json='{"loss": [0.5, 0.4, 0.6, 0.7]}'),
        "h.json: loss[2] is 0.6, in both undisturbed runs 0.3",
    ),
    "a pointer to an older one": (
        _text(latest="step-20"),
        _text(latest="step-15"),
        "latest: has 'step-15', in both undisturbed runs 'step-20'",
    ),
    "a column that stays wrong": (
        _text(a__csv="\n".join(CSV)),
        _text(a__csv="\n".join(CSV).replace("0.25,0.1", "0.26,0.1").replace(",0.2,", ",0.3,")),
        "a.csv: loss of step 4 is 0.26, in both undisturbed runs 0.25",
    ),
    "an update of an epoch of several": (
        _text(a__csv="\n".join(UPDATES)),
        _text(a__csv="\n".join(UPDATES).replace("0.25", "0.26").replace("0.2,", "0.3,")),
        "a.csv: loss of update 4, epoch 1 is 0.26, in both undisturbed runs 0.25 (2 values differ)",
    ),
    "an evaluation": (
        _text(a__csv="step,val\n1,3.5\n2,3.4\n3,3.3"),
        _text(a__csv="step,val\n1,3.5\n2,3.4\n3,3.2"),
        "a.csv: val of step 3 is 3.2",
    ),
}


@pytest.mark.parametrize("shape", BROKEN_TEXTS)
def test_a_wrong_text_is_broken(tmp_path: Path, shape: str) -> None:
    undisturbed, disturbed, said = BROKEN_TEXTS[shape]
    finding = _judged(tmp_path, undisturbed, disturbed)
    assert finding.status == "broken" and said in finding.message, finding


@pytest.mark.parametrize(("after", "cut"), [(8, False), (9, True), (None, True)])
def test_a_mean_is_cut_only_by_a_restart_inside_its_steps(after: int | None, cut: bool) -> None:
    """Rows of four steps each: the third is of steps 9 to 12."""
    rows = [["step,accuracy", "4,0.5", "8,0.6", f"12,{value}"] for value in ("0.7", "0.65")]
    restarts = Restarts(1, () if after is None else (after,), 12)
    differences, aside, _ = differences_of_lines("a.csv", [rows[0]] * 2, rows[1], restarts)
    assert (len(differences), len(aside)) == ((0, 1) if cut else (1, 0))


@pytest.mark.parametrize("written", ["csv", "json", "lists"])
@pytest.mark.parametrize(
    ("loss", "rate", "cut"),
    [
        ("3.46410", 0.1, True),  # of the last step: it tells nothing of a mean
        ("3.23575", 0.1, False),  # the mean of all four losses
        ("3.46410", 0.7321, False),
    ],
)
def test_what_is_on_record_of_its_steps_refutes_a_cut_mean(
    tmp_path: Path, loss: str, rate: float, cut: bool, written: str
) -> None:
    """Rows of four steps; the loss of step N is the square root of N."""
    losses = tuple(math.sqrt(step) for step in range(1, 13))
    restarts = Restarts(1, (9,), 12, losses, frozenset([rate]))
    rows = [[("0.51", "1"), ("0.62", "1"), (value, loss)] for value in ("0.7321", "0.65")]
    if written == "csv":
        due, here = (["acc,l", *(",".join(cells) for cells in table)] for table in rows)
        differences, aside, _ = differences_of_lines("a.csv", [due, due], here, restarts)
    else:
        contents = []
        for number, table in enumerate(rows):
            path = tmp_path / f"{number}.json"
            pairs = [(float(acc), float(mean)) for acc, mean in table]
            named = [dict(zip(("acc", "l"), pair, strict=True)) for pair in pairs]
            path.write_text(json.dumps({"hist": named if written == "json" else pairs}))
            contents.append(content_of(path, "{dir}"))
        differences, aside, _ = differences_of_values([contents[0]] * 2, contents[1], restarts)
    assert (len(differences), len(aside)) == ((0, 1) if cut else (1, 0))


@pytest.mark.parametrize(("removed", "status"), [("step-2.pt", "kept"), ("step-12.pt", "broken")])
def test_files_that_are_kept_by_their_score_are_not_counted(
    tmp_path: Path, removed: str, status: str
) -> None:
    def undisturbed(folder: Path) -> None:
        _retention(5, 20)(folder)
        (record,) = (folder.parent / "attempt-00").glob("rank0-*.jsonl")
        event = {"type": "file", "op": "remove", "path": removed, "after_step": 12}
        record.write_text(record.read_text() + json.dumps(event) + "\n")

    anchor = _saves(anchor=torch.ones(2))
    finding = _judged(tmp_path, _both(undisturbed, anchor), _both(_retention(15, 20), anchor))
    assert finding.status == status
    assert status == "kept" or finding.message == (
        "step-5.pt: missing, the undisturbed runs leave it"
    )


def test_what_is_taken_for_an_attempts_own_is_named(tmp_path: Path) -> None:
    finding = _judged(
        tmp_path,
        _text(h__json='{"n": 1, "restarts": 0}'),
        _text(h__json='{"n": 1, "restarts": 1}'),
    )
    assert finding.status == "kept" and finding.message.endswith(
        "taken for a count, time or path of one attempt, not of the training: h.json: restarts"
    )


@pytest.mark.parametrize(
    ("after", "rows", "cut"),
    [
        ((3, 7), [0, 1], True),  # one in each epoch of four steps
        ((3, 7), [0, 2], False),
        ((3,), [0, 1], False),
        ((), [0, 1], False),
        ((), [0, 2], True),
    ],
)
def test_each_restart_cuts_one_mean(after: tuple[int, ...], rows: list[int], cut: bool) -> None:
    assert Restarts(max(1, len(after)) if after else 2, after, 12).cut(rows, 3) == cut


WRITE = {"type": "file", "op": "write", "path": "a.csv", "after_step": 0}
ADDED = WRITE | {"append": True}


@pytest.mark.parametrize(
    ("first", "then", "erased"),
    [
        ([WRITE, ADDED], WRITE, True),
        ([WRITE, ADDED], ADDED, False),
        ([WRITE], WRITE | {"emptied": 22}, True),
        ([WRITE], WRITE | {"emptied": 10}, False),  # its header: rows were lost with the process
        ([WRITE], WRITE, False),
    ],
)
def test_rows_that_a_restart_erased_are_missing(
    tmp_path: Path, first: list[dict[str, Any]], then: dict[str, Any], erased: bool
) -> None:
    """Rows that were lost with a process are not."""
    written, kept = "step,loss\n1,3.5\n2,3.4\n3,3.3\n", "step,loss\n3,3.3\n"
    healthy(tmp_path)
    for attempt, events in ((0, first), (1, [then])):
        for path in (tmp_path / "struck" / f"attempt-{attempt:02d}").glob("rank0-*.jsonl"):
            process, *rest = path.read_text().splitlines()
            path.write_text("\n".join([process, *map(json.dumps, events), *rest]) + "\n")
    for arm, text in zip(ARMS, (written, written, kept), strict=True):
        (tmp_path / arm / "work").mkdir()
        (tmp_path / arm / "work" / "a.csv").write_text(text)
        write_inventory(tmp_path / arm)
    findings = judge_folder(tmp_path, None, "auto").findings
    (finding,) = [one for one in findings if one.promise == "same files"]
    assert (finding.status, finding.message) == (
        (
            "broken",
            "a.csv: has 1 row (attempt 1 began it anew), in both undisturbed runs 3 rows",
        )
        if erased
        else ("kept", "a part of a.csv is as in the undisturbed runs (2 values)")
    )


def test_where_the_undisturbed_runs_differ_nothing_is_judged(tmp_path: Path) -> None:
    finding = _judged(
        tmp_path,
        _saves(a={"n": 1, "x": 1.0}),
        _saves(a={"n": 1, "x": 3.0}),
        _saves(a={"n": 1, "x": 2.0}),
    )
    assert finding.status == "kept"
