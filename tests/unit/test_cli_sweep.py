"""`ecrl train` from the command line to its runs, with a stand-in for the run itself."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from ecrl_cli.cli import compose, hydra_jobs
from ecrl_cli.cli import prepare as train_prepare
from ecrl_cli.cli.arguments import parse
from ecrl_cli.cli.compose import compose_grid
from ecrl_cli.cli.main import main
from ecrl_cli.cli.prepare import prepare
from ecrl_cli.config.identity import run_name
from ecrl_cli.config.schema import FailureConfig, RunConfig, VariantConfig
from ecrl_cli.errors import ConfigError, RunHeld
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.runs import run_plan
from ecrl_cli.runs.run import RunContext, RunResult, init_run_dir
from ecrl_cli.runs.run_plan import RunPlan, plan_run
from ecrl_cli.runs.sweep import fair_order

Run = Callable[[RunPlan, RunContext], RunResult]
ARGUMENTS = ["-m", "+suite=digits-cnn", "variant=ref,blk,ovl"]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """The configurations that were started, in order; each run ends well."""
    configs: list[RunConfig] = []

    def run(planned: RunPlan, context: RunContext) -> RunResult:
        configs.append(planned.config)
        init_run_dir(planned)
        return RunResult(0, "completed", "target reached")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hydra_jobs, "run", run)
    return configs


def use(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(hydra_jobs, "run", run)


def manifest(sweep: Path) -> list[dict[str, str]]:
    with (sweep / "manifest.csv").open() as file:
        return list(csv.DictReader(file))


def only(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def test_a_single_run_has_its_own_folder_and_no_manifest(
    started: list[RunConfig], tmp_path: Path
) -> None:
    assert main(["train", "+suite=digits-cnn", "variant=blk"]) == 0
    (config,) = started
    folder = only(tmp_path / "outputs")
    assert folder.name == run_name(config) and config.variant.name == "blk"
    assert sorted(item.name for item in folder.iterdir()) == [
        ".hydra",
        "config.json",
        "environment.json",
        "failures.json",
    ]
    assert {"config.yaml", "hydra.yaml", "overrides.yaml"} <= {
        item.name for item in (folder / ".hydra").iterdir()
    }


def test_no_verb_means_train(started: list[RunConfig]) -> None:
    assert main(["seed=3"]) == 0
    assert started[0].seed == 3


def test_run_dir_is_used_as_it_stands_and_nothing_beside_it(
    started: list[RunConfig], tmp_path: Path
) -> None:
    assert main(["train", "run_dir=deep/er/my run's"]) == 2
    assert main(["train", 'run_dir="deep/er/my run\'s"']) == 0
    assert RunLayout(tmp_path / "deep" / "er" / "my run's").config.exists()
    assert [item.name for item in tmp_path.iterdir()] == ["deep"] and len(
        list((tmp_path / "deep" / "er").iterdir())
    ) == 1


@pytest.mark.parametrize(
    ("umask", "keys", "folder", "file"),
    [
        (0o022, [], 0o755, 0o644),
        (0o027, [], 0o750, 0o640),
        (0o002, [], 0o755, 0o644),  # nobody else writes there, whatever the umask
        (0o077, [], 0o700, 0o600),
        (0o022, ["private=true"], 0o700, 0o600),
    ],
)
def test_who_may_read_a_run(
    started: list[RunConfig], tmp_path: Path, umask: int, keys: list[str], folder: int, file: int
) -> None:
    old = os.umask(umask)
    try:
        assert main(["train", "run_dir=run", *keys]) == 0
        assert os.umask(umask) == umask, "the caller's umask was not given back"
    finally:
        os.umask(old)
    assert (tmp_path / "run").stat().st_mode & 0o777 == folder
    assert (tmp_path / "run" / ".hydra" / "config.yaml").stat().st_mode & 0o777 == file


def test_a_sweep_has_a_manifest_and_a_folder_per_run(
    started: list[RunConfig], tmp_path: Path
) -> None:
    assert main(ARGUMENTS) == 0
    sweep = only(tmp_path / "outputs")
    assert sweep.name.startswith("digits-cnn-")
    rows = manifest(sweep)
    assert (
        [row["variant"] for row in rows]
        == [config.variant.name for config in started]
        == ["ref", "blk", "ovl"]
    )
    assert {row["status"] for row in rows} == {"completed"} and list(rows[0]) == [
        "run",
        "run_id",
        "suite",
        "variant",
        "seed",
        "status",
        "reason",
    ]
    for row in rows:
        assert (sweep / row["run"] / ".hydra" / "overrides.yaml").exists() and row[
            "run_id"
        ].startswith(row["run"][-8:])
    assert sorted(item.name for item in sweep.iterdir()) == sorted(
        [".hydra", ".lock", "manifest.csv", *(row["run"] for row in rows)]
    )


def test_what_was_composed_for_a_run_that_is_left_alone_stays(
    started: list[RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sealed with the run, and its sessions began with it."""
    again, composed = (
        ["train", "run_dir=run", "suite_name=other"],
        RunLayout(tmp_path / "run").composed,
    )
    assert main(["train", "run_dir=run"]) == 0
    before = composed.read_text()
    with monkeypatch.context() as patched:
        patched.setattr(hydra_jobs, "leaves_alone", lambda planned: True)
        assert main(again) == 0 and composed.read_text() == before
    assert main(again) == 0 and "suite_name: other" in composed.read_text()
    (tmp_path / "run" / "supervisor.json").write_text("{}")  # a session has begun
    assert main(["train", "run_dir=run"]) == 0
    assert "suite_name: other" in composed.read_text()
    assert "suite_name: other" not in (composed.parent / "next" / "config.yaml").read_text()
    assert len(started) == 4


@pytest.mark.parametrize(("words", "composed"), [(["train", "seed=3"], 2), (["-m", "seed=3,4"], 4)])
def test_hydra_composes_each_run_once(
    words: list[str],
    composed: int,
    started: list[RunConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside them only the command's own configuration, where it is more than one run's, and the
    one that nobody has touched.
    """
    calls: list[object] = []
    compose._bare.cache_clear()
    monkeypatch.setattr(
        compose, "compose", lambda *given, real=compose.compose: calls.append(given) or real(*given)
    )
    assert main(words) == 0 and len(calls) == composed
    recorded = [
        yaml.safe_load(path.read_text()) for path in sorted(tmp_path.rglob(".hydra/config.yaml"))
    ]
    assert [document["seed"] for document in recorded] == sorted(config.seed for config in started)


@pytest.mark.parametrize(
    ("words", "checked"), [(["train", "seed=3"], [True]), (["-m", "seed=3,4"], [True, False])]
)
def test_what_is_known_of_a_run_is_worked_out_once(
    words: list[str],
    checked: list[bool],
    started: list[RunConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hours may lie between the start of a sweep and a later run of it: that one's directory and
    data are looked at again.
    """
    seen: list[bool] = []
    calls: list[object] = []
    plan, check_run_dir = run_plan.plan, train_prepare.check_run_dir
    monkeypatch.setattr(run_plan, "plan", lambda config: calls.append(config) or plan(config))
    monkeypatch.setattr(
        train_prepare, "check_run_dir", lambda run: calls.append(run) or check_run_dir(run)
    )
    use(
        monkeypatch,
        lambda planned, context: seen.append(planned.checked) or RunResult(0, "completed", ""),
    )
    assert main([*words, "failure=kill", "failure.steps=[40]", "reference=none"]) == 0
    assert seen == checked and len(calls) == 2 * len(checked)


def test_the_same_sweep_finds_its_folder_again(
    started: list[RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(ARGUMENTS) == 0
    use(monkeypatch, lambda planned, context: RunResult(0, "completed_prev", "finished before"))
    assert main(ARGUMENTS) == 0
    assert {row["status"] for row in manifest(only(tmp_path / "outputs"))} == {"completed_prev"}


def test_runs_of_another_code_are_not_taken_up_unless_told(
    started: list[RunConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = ["-m", "seed=1,2", "run_dir=all"]
    assert main(sweep) == 0
    before = (tmp_path / "all" / "manifest.csv").read_bytes()
    for row in manifest(tmp_path / "all")[:1]:
        record = tmp_path / "all" / row["run"] / "environment.json"
        record.write_text(record.read_text().replace('"kernel": "', '"kernel": "older-'))
    assert main(sweep) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert (
        "kernel 'older-" in said
        and "--mix" in said
        and (tmp_path / "all" / "manifest.csv").read_bytes() == before
    )
    assert main([*sweep, "--mix"]) == 0
    reasons = [row["reason"] for row in manifest(tmp_path / "all")]
    assert reasons[0].startswith("mixed: kernel 'older-") and reasons[1] == ""


def test_another_start_in_the_same_folder_keeps_the_earlier_lines(
    started: list[RunConfig], tmp_path: Path
) -> None:
    assert main(["-m", "seed=1,2", "run_dir=all"]) == 0
    assert main(["-m", "seed=2,3", "run_dir=all"]) == 0
    assert [row["seed"] for row in manifest(tmp_path / "all")] == ["1", "2", "3"]


def test_the_manifest_says_running_while_a_run_runs(
    started: list[RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def run(planned: RunPlan, context: RunContext) -> RunResult:
        seen.append([row["status"] for row in manifest(planned.layout.root.parent)])
        return RunResult(0, "completed", "")

    use(monkeypatch, run)
    assert main(["-m", "seed=1,2"]) == 0
    assert seen == [["running", "pending"], ["completed", "running"]]


def failing(code: int, on_seed: int) -> Run:
    def run(planned: RunPlan, context: RunContext) -> RunResult:
        return (
            RunResult(code, "failed", "why")
            if planned.config.seed == on_seed
            else RunResult(0, "completed", "")
        )

    return run


def test_a_failed_run_is_recorded_and_the_sweep_goes_on(
    started: list[RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, failing(7, on_seed=1))
    assert main(["-m", "seed=1,2", "run_dir=all"]) == 7
    assert [(row["status"], row["reason"]) for row in manifest(tmp_path / "all")] == [
        ("failed", "why"),
        ("completed", ""),
    ]


@pytest.mark.parametrize("code", [130, 143])
def test_a_stop_leaves_the_rest_to_do(
    code: int, started: list[RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, failing(code, on_seed=2))
    assert main(["-m", "seed=1,2,3", "run_dir=all"]) == code
    assert [row["status"] for row in manifest(tmp_path / "all")] == [
        "completed",
        "pending",
        "pending",
    ]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RunHeld("run", "held"), 8),
        (ConfigError("x", "y"), 2),
        (OSError(28, "full", "f"), 5),
        (ValueError("bug"), 70),
    ],
)
def test_whatever_a_run_raises_is_a_result(
    error: Exception,
    code: int,
    started: list[RunConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(planned: RunPlan, context: RunContext) -> RunResult:
        if planned.config.seed == 1:
            raise error
        return RunResult(0, "completed", "")

    use(monkeypatch, run)
    assert main(["-m", "seed=1,2", "run_dir=all"]) == code
    assert [row["status"] for row in manifest(tmp_path / "all")] == ["failed", "completed"]
    assert "Traceback" not in capsys.readouterr().err


def test_json_says_how_each_run_ended(
    started: list[RunConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "run_dir=run", "--json"]) == 0
    (ended,) = json.loads(capsys.readouterr().out).values()
    assert ended == {
        "run_dir": str(tmp_path / "run"),
        "exit_code": 0,
        "status": "completed",
        "reason": "target reached",
    }


def test_a_sweep_needs_a_folder_of_its_own(
    started: list[RunConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "run_dir=run"]) == 0
    assert main(["-m", "seed=1,2", "run_dir=run"]) == 2
    assert "is a run directory" in capsys.readouterr().err.splitlines()[-1]


def test_a_damaged_manifest_is_not_overwritten(started: list[RunConfig], tmp_path: Path) -> None:
    assert main(["-m", "seed=1,2", "run_dir=all"]) == 0
    (tmp_path / "all" / "manifest.csv").write_text("something else\n1\n")
    assert main(["-m", "seed=1,2", "run_dir=all"]) == 2
    assert (tmp_path / "all" / "manifest.csv").read_text() == "something else\n1\n"


def test_the_configuration_is_shown_without_a_run(
    started: list[RunConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--cfg", "job", "seed=5", "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out).values()
    assert shown["seed"] == 5 and not started and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        "seed=5",
        "+suite=cifar10-r50-late scale=smoke variant=ovl",
        "+suite=exp2 scale=cpu variant=elastic world_size=4",
        "+suite=digits-replicas variant=elastic elastic.schedule={40:1}",
        "+suite=exp3 scale=gpu failure=none",
        (
            "dataset=fake failure=listed failure.entries=[kill@40.backward/0.25:1,'nan@50']"
            " setting=published"
        ),
        (
            "model=vit optimizer=adamw schedule=between failure=nan optimizer.lr=1e-05"
            " target_steps=600 scale=smoke"
        ),
        (
            "failure=mtbf failure.mtbf_steps=30.5 recovery=checkpoint_restart state_digests=false"
            " suite_name=1e5"
        ),
    ],
)
def test_what_is_shown_can_be_fed_back(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a suite of the user's own it makes the same run, and is shown as the same text."""
    monkeypatch.chdir(tmp_path)
    assert main(["train", *words.split(), "--cfg", "job"]) == 0
    first = capsys.readouterr().out
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "mine.yaml").write_text(first)
    assert main(["train", "--config-dir", ".", "+suite=mine", "--cfg", "job"]) == 0
    assert capsys.readouterr().out == first  # with the run's name, in which its run id is


def test_the_runs_of_a_sweep_are_shown_as_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["-m", "seed=1,2", "--cfg", "job"]) == 0
    assert [shown["seed"] for shown in yaml.safe_load_all(capsys.readouterr().out)] == [1, 2]


def test_the_arms_of_a_suite_and_seed_take_turns_in_going_first() -> None:
    arms, suites, seeds = (
        ("ref", "blk", "ovl"),
        [f"suite{number}" for number in range(8)],
        (1337, 2027, 4242),
    )
    cells = [(suite, arm, seed) for suite in suites for arm in arms for seed in seeds]
    configs = {
        f"{s}-{a}-{n}": RunConfig(suite_name=s, seed=n, variant=VariantConfig(name=a))
        for s, a, n in cells
    }
    ordered = [
        configs[name]
        for name in fair_order(
            {name: plan_run(config, Path(name)) for name, config in configs.items()}
        )
    ]
    assert len(ordered) == 72
    groups = [ordered[number : number + 3] for number in range(0, 72, 3)]
    assert all(len({(config.suite_name, config.seed) for config in group}) == 1 for group in groups)
    assert all({config.variant.name for config in group} == set(arms) for group in groups)
    first = [group[0].variant.name for group in groups]
    assert [first.count(arm) for arm in arms] == [8, 8, 8]


def test_a_run_that_comes_up_again_is_done_once_and_a_value_listed_twice_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference meets no failures: their rate is no matter to it."""
    monkeypatch.chdir(tmp_path)
    plan = prepare(parse(["--cfg", "job", "+matrix=failure-rate"]), lambda line: None)
    variants = [run.config.variant.name for run in plan.runs.values()]
    assert [variants.count(name) for name in ("ref", "blk", "ovl")] == [3, 12, 12]
    with pytest.raises(ConfigError, match="comes up twice; look for a value that is listed twice"):
        prepare(parse(["--cfg", "job", "-m", "variant=ref,blk", "seed=1,1"]), lambda line: None)


@pytest.mark.parametrize(("matrix", "seeds"), [("exp1", 1), ("exp3", 2)])
def test_a_matrix_is_its_published_runs_and_a_noise_floor(matrix: str, seeds: int) -> None:
    grid = compose_grid(parse(["-m", f"+matrix={matrix}"]))
    assert grid.matrix == matrix and len({run_name(cell.config) for cell in grid.cells}) == len(
        grid.cells
    )
    arms = Counter(cell.config.variant.name for cell in grid.cells)
    assert arms == {"ref": seeds, "blk": seeds, "ovl": seeds, "ref2": seeds}, "ref2 repeats ref"


def test_what_differs_in_the_arm_alone_stands_together_whatever_else_is_swept_over() -> None:
    cells = [
        ("ref", 0),
        *(("blk", mtbf) for mtbf in (100, 200, 400)),
        *(("ovl", mtbf) for mtbf in (100, 200, 400)),
    ]
    failures = {
        mtbf: FailureConfig("mtbf", mtbf_steps=mtbf) if mtbf else FailureConfig()
        for mtbf in (0, 100, 200, 400)
    }
    configs = {
        f"{arm}-{mtbf}": RunConfig(
            suite_name="s", variant=VariantConfig(name=arm), failure=failures[mtbf]
        )
        for arm, mtbf in cells
    }
    ordered = fair_order({name: plan_run(config, Path(name)) for name, config in configs.items()})
    assert sorted(ordered) == sorted(configs)
    assert [set(ordered[:3]), set(ordered[3:5]), set(ordered[5:])] == [
        {"ref-0", "blk-100", "ovl-100"},
        {"blk-200", "ovl-200"},
        {"blk-400", "ovl-400"},
    ]
    assert [block[0].split("-")[0] for block in (ordered[:3], ordered[3:5], ordered[5:])] == [
        "ref",
        "ovl",
        "blk",
    ]


@pytest.mark.parametrize(
    ("matrix", "narrowed", "suites", "runs"),
    [
        ("exp2", ["variant=ref,elastic"], {"exp2"}, 2),
        ("sensitivity", ["variant=ovl", "checkpoint.every=10,50"], {"cifar10-r18-between"}, 6),
        (
            "storage",
            ["variant=ovl"],
            {f"cifar10-r18-late-{name}" for name in ("disk", "tmpfs", "throttled")},
            3,
        ),
        (
            "state-size",
            ["variant=blk"],
            {
                f"cifar10-{m}-{o}"
                for m in ("resnet18", "resnet50", "resnet152", "vit")
                for o in ("sgd", "adamw")
            },
            8,
        ),
        ("failure-rate", ["variant=ref,blk"], {"mtbf"}, 8),
        ("recoveries", [], {"recoveries"}, 10),
    ],
)
def test_a_matrix_beyond_the_published_varies_what_it_says(
    matrix: str, narrowed: list[str], suites: set[str], runs: int
) -> None:
    grid = compose_grid(parse(["-m", f"+matrix={matrix}", "seed=1337", "scale=smoke", *narrowed]))
    assert {cell.config.suite_name for cell in grid.cells} == suites and len(grid.cells) == runs
    names = {run_name(cell.config) for cell in grid.cells}
    assert len(names) == (5 if matrix == "failure-rate" else runs), (
        "the reference meets no failure and is one run"
    )
