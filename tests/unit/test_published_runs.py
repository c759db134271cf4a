"""The published matrix's own runs: logs of their form, made up here, and what is read in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.cli.main import main

STEPS, EVERY, FAILURES, RANKS = 40, 10, (20, 30), 2
STEP_S, LAUNCH_S = 0.5, 7.0
RESTART_S = {"reference": 0.0, "failure_blocking": 11.0, "failure_overlapped": 10.0}
PREFIX = "exp4_matrix_made_up"
Change = Callable[[str, dict[str, Any]], None]


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def loss(model: str, arm: str, step: int, rank: int) -> float:
    """ResNet-18 differs from step 2 on, by chance; ResNet-50 from the step behind the failure on,
    with both strategies alike.
    """
    value = 5.0 - 0.01 * step + rank
    if model == "resnet18" and step >= 2:
        return value + {"reference": 0.0, "failure_blocking": 0.25, "failure_overlapped": 0.5}[arm]
    return value + (0.125 if arm != "reference" and step > FAILURES[0] else 0.0)


def made_run(root: Path, model: str, arm: str, change: Change | None = None) -> Path:
    """A run with `change(arm, parts)` applied to its parts before they are written."""
    suite = f"{PREFIX}_cifar10_{model}_fbase_k{EVERY}_m4"
    name = f"{suite}_s1337_{arm}"
    failed = arm != "reference"
    ranks: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(RANKS)}
    clock = 1000.0 + LAUNCH_S
    for step in range(1, STEPS + 1):
        clock += STEP_S + (RESTART_S[arm] if step - 1 in FAILURES else 0.0)
        for rank, lines in ranks.items():
            lines.append(
                {
                    "global_step": step,
                    "loss": loss(model, arm, step, rank),
                    "sample_ids_hash": f"{step}.{rank}",
                    "time": clock,
                    "lr": 0.1,
                }
            )
    saves: list[dict[str, Any]] = []
    for step in range(EVERY, STEPS + 1, EVERY):
        line: dict[str, Any] = {"event": "checkpoint", "global_step": step}
        if arm == "failure_overlapped":
            line |= {
                "enqueue_latency_sec": 0.2,
                "backpressure_wait_sec": 1e-6,
                "inflight_after_enqueue": 1,
            }
        else:
            line["write_time_sec"] = 0.8
        saves.append(line)
    if arm == "failure_overlapped":  # the writes at the flushes alone
        saves += [
            {"event": "checkpoint_write_complete", "global_step": step, "write_time_sec": 0.6}
            for step in FAILURES
        ]
    same, other = ("a" * 8,) * 2, ("b" * 8, "a" * 8)
    states = {
        str(step): (same if model == "resnet50" and step <= FAILURES[0] else other)
        for step in (10, 20, 30, 40)
    }
    parts: dict[str, Any] = {
        "ranks": ranks,
        "saves": saves,
        "supervisor": {"duration_sec": clock - 1000.0 + 2.0, "restarts": 2 if failed else 0},
        "exits": list(FAILURES) if failed else [],
        "divergence": {
            "loss_divergence": {"mean_abs_diff": 0.1},
            "steps": {
                step: {
                    "available": True,
                    "candidate_digest": ours,
                    "reference_digest": theirs,
                    "l2_distance": 0.0 if ours == theirs else 30_000.0,
                }
                for step, (ours, theirs) in states.items()
            },
        },
    }
    if change is not None:
        change(arm, parts)
    folder = root / suite / "logs" / name
    for rank, lines in parts["ranks"].items():
        write_lines(folder / f"rank{rank}.jsonl", lines)
    write_lines(folder / "checkpoint_rank0.jsonl", parts["saves"])
    (folder / "supervisor.json").write_text(json.dumps(parts["supervisor"]))
    said = [
        f"[ECRL][fail-inject] step={step} all ranks exiting with 137" for step in parts["exits"]
    ]
    (folder / "attempt_001.log").write_text("\n".join(["$ python -m train", *said]))
    if failed:
        metrics = root / suite / "metrics" / name
        metrics.mkdir(parents=True)
        (metrics / "correctness.json").write_text('{"passed": true, "failures": []}')
        if parts["divergence"] is not None:
            (metrics / "divergence_vs_reference.json").write_text(json.dumps(parts["divergence"]))
    return folder


def made_matrix(root: Path, change: Change | None = None) -> Path:
    for model in ("resnet18", "resnet50"):
        for arm in ("reference", "failure_blocking", "failure_overlapped"):
            made_run(root, model, arm, change)
    return root


def answer(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    """The exit code and the one matrix of the document, findings by their id."""
    code = main(["published", "exp4", str(folder), "--json"])
    (matrix,) = json.loads(capsys.readouterr().out)["matrices"]
    matrix["findings"] = {finding["id"]: finding for finding in matrix["findings"]}
    return code, matrix


def test_logs_as_they_were_published_show_every_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, matrix = answer(made_matrix(tmp_path), capsys)
    found = matrix["findings"]
    assert code == 0 and matrix["runs"] == 6
    assert matrix["judged"] == {"invalid": 2, "unknown": 2}
    assert list(found) == [f"T-0{n}" for n in range(1, 9)] + ["T-11"]
    assert {finding["status"] for finding in found.values()} == {"shown"}
    assert found["T-01"]["figures"] == {
        "runs": 2,
        "differ_behind_failure": 2,
        "digests_before_equal": 4,  # at 10 and 20, of two runs
        "digests_before": 4,
        "digests_later_different": 4,
        "digests_later": 4,
        "pairs_of_strategies_equal": 1,
        "pairs_of_strategies": 1,
        "checks_passed": 2,
        "checks": 2,
    }
    assert found["T-02"]["figures"]["digests_at_failure_equal"] == 2
    assert found["T-03"]["figures"] == {"runs": 2, "of": 2, "first_step": 2, "last_first_step": 2}
    # 39 steps and the restarts; with the launch, the first step and the supervisor's end besides
    clocks = found["T-04"]["figures"]
    assert clocks["gain_published_clock"] == pytest.approx((19.5 + 22) / (19.5 + 20) - 1)
    assert clocks["gain_supervisor_clock"] == pytest.approx((29 + 22) / (29 + 20) - 1)
    assert clocks["left_out_s"] == pytest.approx(LAUNCH_S + STEP_S + 2.0)
    assert found["T-05"]["figures"]["failures"] == 8
    assert found["T-06"]["figures"]["overlapped_counted"] == 2
    assert found["T-06"]["figures"]["overlapped_submitted"] == 4
    assert found["T-06"]["figures"]["total_reduction"] == pytest.approx(1.2 / 3.2 - 1)
    assert found["T-06"]["figures"]["reduction_per_write"] == pytest.approx(0.6 / 0.8 - 1)
    assert found["T-07"]["figures"]["most_inflight"] == 1
    assert found["T-07"]["figures"]["waited_s"] == pytest.approx(4e-6)
    assert found["T-08"]["figures"]["gap_s"] == pytest.approx(10.5 + STEP_S)
    assert found["T-08"]["figures"]["longer_s"] == pytest.approx(22.0)
    assert found["T-11"]["figures"]["resnet50_l2"] == 30_000.0


def test_each_finding_says_where_to_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_matrix(tmp_path)
    assert main(["published", "exp4", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert f"{PREFIX}: 6 runs; of 4 with failures and a reference: 2 invalid, 2 unknown" in text
    assert "_s1337_failure_blocking/rank0.jsonl: step 21 has loss 4.915, its reference 4.79" in text
    for place in [line for line in text.splitlines() if line.startswith("  evidence: ")]:
        name = place.removeprefix("  evidence: ").partition(":")[0]
        assert list(tmp_path.glob(name)), name


def exact(arm: str, parts: dict[str, Any]) -> None:
    """A recovery that changes nothing."""
    for lines in parts["ranks"].values():
        for line in lines:
            line["loss"] = float(line["global_step"])
    for state in parts["divergence"]["steps"].values():
        state |= {"candidate_digest": "a", "reference_digest": "a", "l2_distance": 0.0}


def replayed(arm: str, parts: dict[str, Any]) -> None:
    if parts["exits"]:
        for lines in parts["ranks"].values():
            lines.insert(FAILURES[0], dict(lines[FAILURES[0] - 1]))


def other_samples(arm: str, parts: dict[str, Any]) -> None:
    if arm == "failure_blocking":
        parts["ranks"][1][30]["sample_ids_hash"] = "another"


def all_counted(arm: str, parts: dict[str, Any]) -> None:
    for line in parts["saves"]:
        line["write_time_sec"] = 0.5


def full(arm: str, parts: dict[str, Any]) -> None:
    parts["saves"][1]["inflight_after_enqueue"] = 4


def idle(arm: str, parts: dict[str, Any]) -> None:
    """A run with failures that loses three times what its restarts take."""
    if arm == "failure_blocking":
        for lines in parts["ranks"].values():
            for index, line in enumerate(lines):
                line["time"] += 2.0 * index


def on_one_clock(arm: str, parts: dict[str, Any]) -> None:
    lines = parts["ranks"][0]
    parts["supervisor"]["duration_sec"] = lines[-1]["time"] - lines[0]["time"]


@pytest.mark.parametrize(
    ("id", "change", "status"),
    [
        ("T-01", exact, "not shown"),
        ("T-02", exact, "unknown"),
        ("T-02", other_samples, "not shown"),
        ("T-03", exact, "not shown"),
        ("T-04", on_one_clock, "not shown"),
        ("T-05", replayed, "not shown"),
        ("T-06", all_counted, "not shown"),
        ("T-07", full, "not shown"),
        ("T-08", idle, "not shown"),
        ("T-11", exact, "not shown"),
    ],
)
def test_logs_that_do_not_show_a_finding_are_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], id: str, change: Change, status: str
) -> None:
    _, matrix = answer(made_matrix(tmp_path, change), capsys)
    assert matrix["findings"][id]["status"] == status


def test_exact_recoveries_are_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, matrix = answer(made_matrix(tmp_path, exact), capsys)
    assert matrix["judged"] == {"valid": 4}
    assert code == 3  # nothing was changed, so what changed it cannot be told


def test_a_run_that_differs_at_the_failing_step_itself_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The step was done before the failure, so recovery did not change it."""

    def at_failure(arm: str, parts: dict[str, Any]) -> None:
        exact(arm, parts)
        if arm == "failure_blocking":
            parts["ranks"][1][FAILURES[0] - 1]["loss"] = 0.0

    _, matrix = answer(made_matrix(tmp_path, at_failure), capsys)
    assert matrix["judged"] == {"unknown": 2, "valid": 2}


def test_weights_that_differ_where_losses_do_not_are_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def one_state(arm: str, parts: dict[str, Any]) -> None:
        exact(arm, parts)
        if arm == "failure_blocking":
            parts["divergence"]["steps"]["40"]["candidate_digest"] = "b"

    _, matrix = answer(made_matrix(tmp_path, one_state), capsys)
    assert matrix["judged"] == {"invalid": 2, "valid": 2}


def test_a_run_without_distances_leaves_that_finding_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def without(arm: str, parts: dict[str, Any]) -> None:
        parts["divergence"] = None

    code, matrix = answer(made_matrix(tmp_path, without), capsys)
    assert code == 3
    assert matrix["findings"]["T-11"]["status"] == "unknown"
    assert matrix["findings"]["T-01"]["status"] == "shown"  # by the losses alone


def test_a_run_without_its_reference_is_counted_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_matrix(tmp_path)
    (place,) = tmp_path.glob("*resnet50*/logs/*_reference/rank0.jsonl")
    place.unlink()
    main(["published", "exp4", str(tmp_path)])
    head = capsys.readouterr().out.splitlines()[0]
    assert head.endswith("of 2 with failures and a reference: 2 unknown; 2 without a reference")


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("rank1.jsonl", '{"global_step": 1}\n', "rank1.jsonl:1: is not of the published form"),
        ("rank0.jsonl", "{\n", "rank0.jsonl:1: is not of the published form"),
        ("rank0.jsonl", "", "rank0.jsonl: is empty"),
        ("supervisor.json", None, "supervisor.json: is missing"),
        ("supervisor.json", "[]", "supervisor.json: is not of the published form"),
    ],
)
def test_a_damaged_file_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    text: str | None,
    said: str,
) -> None:
    path = made_run(tmp_path, "resnet50", "reference") / file
    path.unlink()
    if text is not None:
        path.write_text(text)
    assert main(["published", "exp4", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_without_such_runs_is_told_where_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["published", "exp4", str(tmp_path)]) == 2
    assert "github.com/HaoWen46/Elastic-Correct-Recovery-Lab" in capsys.readouterr().err
    assert main(["published", "exp4", str(tmp_path / "none")]) == 2
    assert "is no folder" in capsys.readouterr().err
    assert main(["published", "exp5", str(tmp_path)]) == 2
    assert "did you mean exp4?" in capsys.readouterr().err
