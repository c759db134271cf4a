"""`ecrl study`: the plan is fixed, a stopped study goes on, a shortfall or a failed gate is said,
and nobody else's folder is touched.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ecrl_cli.cli.arguments import parse
from ecrl_cli.cli.main import main
from ecrl_cli.cli.study import _configs
from ecrl_cli.config.codec import encode
from ecrl_cli.config.studies import Corruption, WriteLatency
from ecrl_cli.config.study import StudyConfig
from ecrl_cli.errors import ConfigError, EcrlError, RecordError, RunDirectoryError, Stopped
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.records.journal import read_journal
from ecrl_cli.studies.frame import registry
from ecrl_cli.studies.frame.child import JsonProgram
from ecrl_cli.studies.frame.result import Findings, proportion, upper_bound
from ecrl_cli.studies.frame.runner import check_folder, replay, results, run_study
from ecrl_cli.studies.frame.study import Record, Skip, StudyContext, Trial
from ecrl_cli.studies.frame.tables import cell

CONFIG = StudyConfig(WriteLatency(), seed=5, workers=1)


class Toy:
    """Ten trials, each a random number; `before` runs first in each of them."""

    before: Callable[[Trial], None] = staticmethod(lambda trial: None)
    gates: tuple[Gate, ...] = ()
    ran: ClassVar[list[str]] = []

    def __init__(self, setting: StudyContext) -> None:
        self.setting = setting
        assert list(setting.scratch.iterdir()) == []

    def plan(self) -> Sequence[Trial]:
        return [Trial(f"toy/{number}", {"number": number}) for number in range(10)]

    def skips(self) -> Sequence[Skip]:
        return [Skip("arm", "there is no such arm")]

    def run(self, trial: Trial) -> dict[str, Any]:
        self.before(trial)
        self.ran.append(trial.key)
        return {"drawn": self.setting.rng(trial.key).random()}

    def findings(self, records: Sequence[Record]) -> Findings:
        return Findings(gates=self.gates, notes=(f"{len(records)} drawn",))

    def close(self) -> None:
        self.ran.append("closed")


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> type[Toy]:
    made = type("MyToy", (Toy,), {"ran": []})
    monkeypatch.setattr(registry, "make_study", made)
    monkeypatch.setattr("ecrl_cli.studies.frame.runner.make_study", made)
    return made


def result(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return document


def drawn(folder: Path) -> dict[str, float]:
    lines = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    return {line["key"]: line["found"]["drawn"] for line in lines}


def test_a_stopped_study_goes_on_and_ends_as_if_it_had_not_been(
    tmp_path: Path, toy: type[Toy]
) -> None:
    said: list[str] = []
    assert run_study(CONFIG, tmp_path / "whole", said.append) == 0

    def stop(trial: Trial) -> None:
        if trial.key == "toy/4":
            raise KeyboardInterrupt

    toy.before = staticmethod(stop)
    assert run_study(CONFIG, tmp_path / "cut", said.append) == 130
    assert result(tmp_path / "cut")["done"] == 4 and not result(tmp_path / "cut")["complete"]
    assert toy.ran[-1] == "closed" and not (tmp_path / "cut" / ".scratch").exists()

    toy.before, toy.ran[:] = staticmethod(lambda trial: None), []
    check_folder(CONFIG, tmp_path / "cut")
    assert run_study(CONFIG, tmp_path / "cut", said.append) == 0
    assert toy.ran == [f"toy/{number}" for number in range(4, 10)] + ["closed"]
    assert drawn(tmp_path / "cut") == drawn(tmp_path / "whole")
    assert any("there is no such arm" in line for line in said)


def test_sigterm_stops_a_study_with_its_own_code(tmp_path: Path, toy: type[Toy]) -> None:
    toy.before = staticmethod(
        lambda trial: signal.raise_signal(signal.SIGTERM) if trial.key == "toy/2" else None
    )
    before = signal.getsignal(signal.SIGTERM)
    assert run_study(CONFIG, tmp_path / "cut", lambda line: None) == 143
    assert result(tmp_path / "cut")["done"] == 2 and signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_before_the_first_trial_or_in_a_replay_has_the_code_of_its_signal(
    tmp_path: Path, toy: type[Toy], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def plan(study: Toy) -> Sequence[Trial]:
        signal.raise_signal(number)
        raise AssertionError

    monkeypatch.setattr(toy, "plan", plan)
    before = signal.getsignal(signal.SIGTERM)
    works: list[Callable[[], int]] = [
        lambda: run_study(CONFIG, tmp_path / "cut", lambda line: None),
        lambda: replay(replace(CONFIG, trial="toy/7")),
    ]
    for work in works:
        with pytest.raises((Stopped, KeyboardInterrupt)) as stopped:
            work()
        assert getattr(stopped.value, "exit_code", 130) == 128 + number
        assert toy.ran[-1] == "closed" and signal.getsignal(signal.SIGTERM) is before
    assert not (tmp_path / "cut" / ".scratch").exists()


def test_a_line_that_was_cut_off_is_run_again(tmp_path: Path, toy: type[Toy]) -> None:
    """The next start closes it with a newline; from then on it stands in the middle."""
    run_study(CONFIG, tmp_path / "torn", lambda line: None)
    trials = tmp_path / "torn" / "trials.jsonl"
    whole, lines = drawn(tmp_path / "torn"), trials.read_bytes().splitlines(keepends=True)
    trials.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    for _ in range(2):
        assert run_study(CONFIG, tmp_path / "torn", lambda line: None) == 0
    assert whole == {
        record.key: record.found["drawn"] for record in read_journal(trials, Record).events
    }


def test_what_a_killed_start_left_half_written_is_no_strangers_file(
    tmp_path: Path, toy: type[Toy]
) -> None:
    (tmp_path / ".environment.json.0badcafe.tmp").touch()
    check_folder(CONFIG, tmp_path)
    assert run_study(CONFIG, tmp_path, lambda line: None) == 0
    assert not list(tmp_path.glob("*.tmp"))


def die(trial: Trial) -> None:
    """What a worker does that the system kills."""
    os._exit(1)


def test_a_worker_that_dies_is_an_error_of_one_line(
    tmp_path: Path, toy: type[Toy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ecrl_cli.studies.frame.runner._work", die)
    study = toy(StudyContext(CONFIG, tmp_path))
    with pytest.raises(EcrlError, match="a worker process has died"):
        list(
            results(
                replace(CONFIG, study=Corruption(), workers=2),
                tmp_path,
                study,
                study.plan(),
                say=lambda line: None,
            )
        )


def test_a_trial_draws_the_same_whatever_ran_before_it(
    tmp_path: Path, toy: type[Toy], capsys: pytest.CaptureFixture[str]
) -> None:
    run_study(CONFIG, tmp_path / "all", lambda line: None)
    assert replay(replace(CONFIG, trial="toy/7")) == 0
    assert json.loads(capsys.readouterr().out)["found"]["drawn"] == drawn(tmp_path / "all")["toy/7"]
    run_study(replace(CONFIG, seed=6), tmp_path / "other", lambda line: None)
    assert drawn(tmp_path / "other")["toy/7"] != drawn(tmp_path / "all")["toy/7"]
    with pytest.raises(RunDirectoryError, match="no trial 'toy/77'"):
        replay(replace(CONFIG, trial="toy/77"))


def test_a_failed_gate_is_the_answer_and_is_named(tmp_path: Path, toy: type[Toy]) -> None:
    toy.gates = (Gate("kept", True, "fine"), Gate("lost", False, "3 of 10 were lost"))
    said: list[str] = []
    assert run_study(CONFIG, tmp_path / "bad", said.append) == 1
    assert any("lost: 3 of 10 were lost" in line for line in said)
    assert [gate["passed"] for gate in result(tmp_path / "bad")["gates"]] == [True, True, False]


def test_a_study_short_of_its_plan_fails(tmp_path: Path, toy: type[Toy]) -> None:
    """A study whose records were lost must not pass on those that are left."""
    run_study(CONFIG, tmp_path / "short", lambda line: None)
    trials = tmp_path / "short" / "trials.jsonl"
    trials.write_text("".join(trials.read_text().splitlines(keepends=True)[:6]))
    toy.before = staticmethod(lambda trial: (_ for _ in ()).throw(KeyboardInterrupt()))
    assert run_study(CONFIG, tmp_path / "short", lambda line: None) == 130
    (ran,) = result(tmp_path / "short")["gates"]
    assert not ran["passed"] and ran["message"] == "6 of 10 planned trials are on record"


def test_a_defect_in_a_trial_is_no_outcome(tmp_path: Path, toy: type[Toy]) -> None:
    toy.before = staticmethod(lambda trial: 1 // (trial.facts["number"] - 3))
    with pytest.raises(ZeroDivisionError):
        run_study(CONFIG, tmp_path / "broken", lambda line: None)
    assert result(tmp_path / "broken")["done"] == 3 and toy.ran[-1] == "closed"


def test_only_its_own_folder_is_used(tmp_path: Path, toy: type[Toy]) -> None:
    run_study(CONFIG, tmp_path / "mine", lambda line: None)
    with pytest.raises(RunDirectoryError, match="belongs to study"):
        check_folder(replace(CONFIG, seed=6), tmp_path / "mine")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.tex").write_text("x")
    with pytest.raises(RunDirectoryError, match=r"thesis\.tex"):
        check_folder(CONFIG, tmp_path / "theirs")
    (tmp_path / "mine" / "study.json").write_text("{")
    with pytest.raises(RecordError, match=r"study\.json"):
        check_folder(CONFIG, tmp_path / "mine")


def test_records_of_other_code_are_not_gone_on_with(
    tmp_path: Path, toy: type[Toy], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_study(CONFIG, tmp_path, lambda line: None)
    check_folder(CONFIG, tmp_path)
    monkeypatch.setattr("ecrl_cli.studies.frame.runner.code_revision", lambda: "ecrl 99")
    with pytest.raises(RunDirectoryError, match="trials of both would be mixed"):
        check_folder(CONFIG, tmp_path)


def test_a_record_that_tried_something_else_counts_for_nothing(
    tmp_path: Path, toy: type[Toy]
) -> None:
    run_study(CONFIG, tmp_path, lambda line: None)
    trials = tmp_path / "trials.jsonl"
    trials.write_text(trials.read_text().replace('"facts":{"number":3}', '"facts":{"number":33}'))
    toy.ran.clear()
    run_study(CONFIG, tmp_path, lambda line: None)
    assert toy.ran == ["toy/3", "closed"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "study: has no value"),
        (["study=corrupt"], "did you mean corruption?"),
        (["study=al"], "did you mean all?"),
        (["study=corruption", "study.trails=3"], "did you mean study.trials?"),
        (["study=corruption", "study.trials=0"], "study.trials: must be >= 1 and < 100001, got 0"),
        (["study=corruption", "study.trials=many"], "study.trials: must be an integer"),
        (
            ["study=write-latency", "study.modes=[atomic]"],
            "study.modes: must be one of unsafe, atomic_nodirsync, atomic_dirsync, got 'atomic'",
        ),
        (["study=write-latency", "study.modes=unsafe"], "study.modes: must be a list of names"),
        (["study=write-latency", "study.modes=[]"], "study.modes: must name at least one"),
        (
            ["study=write-latency", "study.modes=[unsafe,unsafe]"],
            "study.modes: must name at least one, each once",
        ),
        (
            ["study=write-latency", "study.checkpoints=100000000"],
            "study.checkpoints: must be >= 1 and < 100001, got 100000000",
        ),
        (
            ["study=write-latency", "study.checkpoints=100000", "study.seeds=2"],
            "are more than 100000 saves per mode",
        ),
        (["study=write-latency", "target_steps=3"], "target_steps: unknown key"),
        (["study=write-latency", "seed=-1"], "seed: must be in 0 .. 2^63-1"),
        (["study=write-latency", "seed=1", "seed=2"], "seed: given twice"),
        (["-m", "study=write-latency", "seed=1,1"], "comes up twice"),
        (["study=write-latency", "study._target_=os.system"], "is not accepted"),
        (["study=write-latency", "hydra.run.dir=/tmp"], "hydra.run.dir: is set by ECRL"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["study", *words]) == 2
    line = capsys.readouterr().err
    assert said in line and line.count("\n") == 1 and line.startswith("ecrl: error: E-")
    assert list(tmp_path.iterdir()) == []


def test_every_study_of_the_registry_is_listed_and_is_one_of_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["study", "--help"]) == 0
    listed = capsys.readouterr().out.partition("Studies\n")[2].partition("Examples")[0]
    assert [line.split()[0] for line in listed.splitlines() if line] == [*registry.names(), "all"]
    assert all(len(line.split()) > 1 for line in listed.splitlines() if line), (
        "a study's YAML begins with a comment that says what it does"
    )
    assert main(["study", "study=all", "seed=3", "--cfg", "job", "--json"]) == 0
    assert [
        (each["study"]["name"], each["seed"]) for each in json.loads(capsys.readouterr().out)
    ] == [(name, 3) for name in registry.names()]
    assert main(["study", "-m", "study=all,corruption"]) == 2


def test_a_study_that_cannot_run_does_not_keep_the_others_from_it(
    tmp_path: Path,
    toy: type[Toy],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)

    def refuse(study: Toy) -> list[Trial]:
        if study.setting.config.name == "compat":
            raise ConfigError("study", "needs what is not here", "")
        return [Trial("toy/0")]

    monkeypatch.setattr(toy, "plan", refuse)
    assert main(["study", "-m", "study=compat,hangs", "run_dir=both"]) == 2
    said = capsys.readouterr().err
    assert (
        "compat: error: E-config study: needs what is not here" in said and "hangs: 1 trial" in said
    )
    assert sorted(
        path.name[:5] for path in (tmp_path / "both").iterdir() if (path / "result.json").exists()
    ) == ["hangs"]


def test_the_real_command_sweeps_and_answers_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = [
        "study.seeds=1",
        "study.checkpoints=2",
        "study.model_bytes=4096",
        "study.optimizer_bytes=4096",
    ]
    assert main(["study", "-m", "study=write-latency", "seed=1,2", *small, "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)
    assert len(answers) == 2 and all(
        answer["complete"] and answer["exit_code"] == 0 for answer in answers.values()
    )
    latency, deployment = next(iter(answers.values()))["tables"]
    assert [row["mode"] for row in latency["rows"]] == [
        "unsafe",
        "atomic_nodirsync",
        "atomic_dirsync",
        "unsafe (again)",
    ]
    assert all(row["n"] == 2 and 0 < row["p50"] <= row["p99"] for row in latency["rows"])
    (durable,) = (row for row in deployment["rows"] if row["mode"] == "atomic_dirsync")
    assert durable["published_interval_ppm"] == pytest.approx(20.27e-3 / 1800 * 1e6), (
        "the study says about 0.001%, which is 10 ppm"
    )
    assert durable["interval_ppm"] == pytest.approx(durable["p99"] / 1800 * 1e6)


def test_every_option_of_a_study_can_be_composed(capsys: pytest.CaptureFixture[str]) -> None:
    for name in registry._STUDIES.builtin:
        try:
            assert main(["study", f"study={name}", "--cfg", "job", "--json"]) == 0
        except EcrlError as error:  # pragma: no cover
            pytest.fail(str(error))
        assert json.loads(capsys.readouterr().out)[0]["study"]["name"] == name


@pytest.mark.parametrize(
    "words",
    [
        "study=corruption seed=7 study.trials=50",
        "study=frameworks study.jobs=[dcp,fsdp]",
        "study=hangs run_dir='a b'",
    ],
)
def test_what_is_shown_of_a_study_can_be_fed_back(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a study of the user's own, by the command in its first line, it is shown as the same
    text.
    """
    monkeypatch.chdir(tmp_path)
    assert main(["study", *shlex.split(words), "--cfg", "job"]) == 0
    first = capsys.readouterr().out
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "mine.yaml").write_text(first)
    command = (
        first.splitlines()[0]
        .partition("ecrl study ")[2]
        .replace("DIR", ".")
        .replace("NAME", "mine")
    )
    assert main(["study", *shlex.split(command), "--cfg", "job"]) == 0
    assert capsys.readouterr().out == first


FIXED = ("hostile", "compat", "libraries")
# repeat within a trial, or try each once as it is
WITHIN = ("disk-timeline", "recovery-overhead", "signals", "rivals")


@pytest.mark.parametrize("name", registry._STUDIES.builtin)
def test_study_trials_sizes_every_study(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan with `study.trials=1` is no longer than the usual one, and shorter or of smaller
    trials; a fixed list says that it is one.
    """

    def planned(*words: str) -> tuple[dict[str, Any], list[str]]:
        (config,) = _configs(parse([f"study={name}", *words], "study"))
        opened = registry.make_study(StudyContext(config, tmp_path))
        try:
            return encode(config.study), [f"{trial.key} {trial.facts}" for trial in opened.plan()]
        finally:
            opened.close()

    if name in FIXED:
        assert main(["study", f"study={name}", "study.trials=2"]) == 2
        assert f"study.trials: {name} tries a fixed list" in capsys.readouterr().err
        return
    (keys, usual), (fewer, small) = planned(), planned("study.trials=1")
    assert len(small) <= len(usual)
    sizes = {
        "trials",
        *getattr(type(_configs(parse([f"study={name}"], "study"))[0].study), "SIZES", ()),
    } & set(keys)
    # below them there is nothing to say
    least = {"model_states": 64, "model_second": 4, "repetitions": 3}
    assert sizes and all(
        fewer[size] == min(keys[size], max(1, least.get(size, 0))) for size in sizes
    )
    assert (len(small) < len(usual)) == (name not in WITHIN), (len(small), len(usual))


def test_a_size_that_is_typed_stays() -> None:
    (config,) = _configs(parse(["study=corruption", "study.trials=3", "study.clean=7"], "study"))
    assert (config.study.trials, config.study.clean, config.study.flips) == (3, 7, 3)
    (config,) = _configs(parse(["study=writers", "study.trials=300"], "study"))
    assert (config.study.races, config.study.lies, config.study.saves) == (300, 100, 200)


def test_the_published_intervals() -> None:
    """0 of 10: Wilson [0, 27.8]%, Clopper-Pearson [0, 30.8]%; one-sided 25.9%."""
    none = proportion(0, 10)
    assert [
        round(100 * none[key], 1) for key in ("wilson_low", "wilson_high", "cp_low", "cp_high")
    ] == [0.0, 27.8, 0.0, 30.8]
    assert round(100 * upper_bound(10), 1) == 25.9
    assert proportion(0, 0)["rate"] is None


def test_a_program_that_gives_no_answer_and_one_that_has_ended_are_told_apart(
    tmp_path: Path,
) -> None:
    (tmp_path / "mute.py").write_text(
        "import sys\nfor line in sys.stdin:\n    if 'end' in line:\n        sys.exit(3)\n"
    )
    program = JsonProgram("mute", cwd=tmp_path)
    with pytest.raises(TimeoutError, match=r"^mute gave no answer in 0\.05 s$"):
        program.ask("wait", 0.05)
    with pytest.raises(EOFError, match=r"^mute ended without an answer \(exit code 3\)$"):
        program.ask("end", 60)
    with pytest.raises(BrokenPipeError):
        program.tell("anybody there?")
    program.close()
    assert program.process.returncode == 3


def test_a_column_of_a_kind_that_no_report_knows_is_refused_where_it_is_defined() -> None:
    with pytest.raises(ValueError, match="column seconds: 'float' is none of text, count"):
        cell("seconds", "seconds", "float", len)
