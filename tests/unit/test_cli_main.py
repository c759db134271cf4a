"""The verbs: help, version, completion; verify and report with stand-ins for what judges and
writes.
"""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest

import ecrl_cli
from ecrl_cli import __version__
from ecrl_cli.cli import report, verify
from ecrl_cli.cli.explain import sections
from ecrl_cli.cli.help_text import VERBS
from ecrl_cli.cli.main import main
from ecrl_cli.errors import DEFECT, EvidenceMissing, RecordError
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.report.model.run_record import Judging
from ecrl_cli.runs import run_dir
from tests.needs import require


@pytest.mark.parametrize("verb", ["train", "verify", "report"])
def test_each_verb_has_help_with_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Examples" in text and f"ecrl {verb}" in text and "Exit codes" in text


def test_the_help_of_train_lists_the_groups(capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", "--help"])
    text = capsys.readouterr().out
    assert "cifar10-r50-late" in text and "atomic_nodirsync" in text


def test_what_takes_long_hears_ctrl_c_where_it_was_ignored_and_only_that() -> None:
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)
    }
    try:
        assert (
            main(["verify", "nowhere"]) == 2 and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        )
        for words in (["train", "seed=-1"], ["study", "seed=-1"], ["seed=-1"]):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            assert main(words) == 2
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ecrl {__version__}\n"


def test_each_error_has_a_page_that_explain_prints(capsys: pytest.CaptureFixture[str]) -> None:
    source = "".join(
        path.read_text(encoding="utf-8")
        for path in sorted(Path(ecrl_cli.__file__).parent.rglob("*.py"))
    )
    codes = {
        *re.findall(r'^    code = "([\w-]+)"$', source, re.MULTILINE),
        *re.findall(r'\bcode="([\w-]+)"', source),
        *re.findall(r"\bE-([\w-]+) \{", source),
    }
    assert {f"E-{code}" for code in codes - {"error"}} == {*sections()} and "config" in codes
    for words in (["--explain", "E-config"], ["--explain", "config"], ["--explain=E-config"]):
        assert main(words) == 0
        text = capsys.readouterr().out
        assert (
            text.startswith("E-config\n")
            and "ecrl train --cfg job" in text
            and "E-run-dir\n" not in text
        )
    assert (
        main(["--explain", "E-confg"]) == 2 and "did you mean E-config?" in capsys.readouterr().err
    )
    assert main(["--explain"]) == 2


def test_an_error_at_a_terminal_names_its_page_and_elsewhere_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "sed=1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["train", "sed=1"]) == 2
    assert capsys.readouterr().err.endswith("\n  ecrl --explain E-config says more\n")


def test_audit_alone_says_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit"]) == 2
    assert "type `ecrl audit -- torchrun train.py --out {dir}`" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["train", "checkpoint=none"],
        ["train"],
        ["-m", "checkpoint=none", "seed=1,2"],
        ["study", "study=compat"],
        ["audit", "--", sys.executable, "{dir}"],
    ],
    ids=lambda words: words[0],
)
def test_a_disk_that_is_full_at_the_start_is_named_with_what_is_free_and_needed(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    here = os.statvfs(tmp_path)
    full = os.statvfs_result([*here[:3], 0, 0, *here[5:]])
    monkeypatch.setattr(run_dir.os, "statvfs", lambda path: full)
    own = [
        "run_dir=here",
        *(["dataset=digits", "model=small_cnn"] if words[0] in ("train", "-m") else []),
    ]
    monkeypatch.chdir(tmp_path)
    cut = words.index("--") if "--" in words else len(words)
    assert main([*words[:cut], *own, *words[cut:]]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "E-" in line]
    assert (
        "E-run-dir run_dir: needs " in line
        and f" free on {tmp_path}; free space" in line
        and "run_dir=DIR" in line
    )
    assert not list(tmp_path.iterdir())


@cache
def loaded(*words: str) -> frozenset[str]:
    """The modules that `ecrl WORDS...` has imported when it ends."""
    code = (
        f"import sys; from ecrl_cli.cli.main import main; main({words!r}); sys.stdout.write('\\n' +"
        " ' '.join(sys.modules))"
    )
    return frozenset(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        .stdout.splitlines()[-1]
        .split()
    )


@pytest.mark.parametrize(
    "module", ["torch", "torchvision", "pandas", "matplotlib", "scipy", "psutil", "rich", "hydra"]
)
def test_help_loads_nothing_heavy(module: str) -> None:
    assert module not in loaded("--help") and "ecrl_cli.cli.main" in loaded("--help")


@pytest.mark.parametrize("module", ["torch", "torchvision", "pandas", "matplotlib"])
def test_refusing_loads_nothing_heavy(module: str) -> None:
    assert module not in loaded("seed=-1") and "hydra" in loaded("seed=-1")


def completions(line: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What bash would offer at the end of `line`."""
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    words = line.split(" ")
    setting = (
        f"COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1};"
        f" COMP_LINE={line!r}; COMP_POINT={len(line)}"
    )
    result = subprocess.run(
        ["bash", "-c", f"{script}\n{setting}; _ecrl; printf '%s\\n' \"${{COMPREPLY[@]}}\""],
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.split()


def test_bash_completes_verbs_keys_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(VERBS) <= set(completions("ecrl ", capsys))
    assert completions("ecrl train checkpoint.ev", capsys) == ["checkpoint.every="]
    assert completions("ecrl train +suite=cifar100-r50-l", capsys) == ["cifar100-r50-late"]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("ecrl train checkpoint.ev", "checkpoint.every="),
        ("ecrl train task=regr", "task=regression"),
    ],
)
def test_fish_completes_keys_and_options(
    line: str, offered: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require("fish")
    assert main(["completion", "fish"]) == 0
    (tmp_path / "ecrl.fish").write_text(capsys.readouterr().out)
    said = subprocess.run(
        ["fish", "-N", "-c", f"source {tmp_path}/ecrl.fish; complete -C '{line}'"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split() == [offered] and not said.stderr


@pytest.mark.parametrize(
    ("line", "became"),
    [
        ("ecrl train checkpoint.ev", "train checkpoint.every="),
        ("ecrl train task=regr", "train task=regression"),
    ],
)
def test_zsh_completes_keys_and_options(
    line: str, became: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At a terminal: what a tab makes of the line is what runs."""
    require("zsh")
    assert main(["completion", "zsh"]) == 0
    (tmp_path / "ecrl.zsh").write_text(capsys.readouterr().out)
    ours, theirs = pty.openpty()
    setup = (
        "autoload -U compinit; compinit -D -u; ecrl() { print -r -- 'now:' $* ':end' }; source"
        f" {tmp_path}/ecrl.zsh; PROMPT='read''y> '\r"
    )
    with subprocess.Popen(
        ["zsh", "-f", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as shell:
        os.close(theirs)
        os.write(ours, setup.encode())
        said = _until(ours, b"ready> ")
        os.write(ours, f"{line}\t\r".encode())
        said += _until(ours, b":end\r\n")
        os.write(ours, b"exit\r")
        shell.wait(timeout=60)
    os.close(ours)
    assert f"now: {became} :end".encode() in said, said


def _until(terminal: int, mark: bytes) -> bytes:
    said = b""
    while mark not in said:
        said += os.read(terminal, 4096)
    return said


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "csh"]) == 2
    assert "must be one of bash, zsh, fish" in capsys.readouterr().err


def test_a_misspelt_verb_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verfy", "outputs"]) == 2
    assert "did you mean verify?" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["verify", "report"])
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing", "does not exist"),
        ("file", "is a file"),
        ("empty", "run directory"),
        ("--wrong", "arguments:"),
    ],
)
def test_folders_that_hold_no_run_are_refused(
    verb: str,
    name: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    Path("empty").mkdir()
    assert main([verb, name]) == 2
    text = capsys.readouterr().err
    assert says in text and text.count("\n") == 1 and text.startswith("ecrl: error: E-")


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sweep of three runs, whose verdict is their name."""
    for name in ("gone", "invalid", "unknown", "unreadable", "valid"):
        (tmp_path / "sweep" / name).mkdir(parents=True)
        (
            tmp_path / "sweep" / name / ("supervisor.json" if name == "gone" else "config.json")
        ).write_text("{}")
    (tmp_path / "sweep" / "report").mkdir()

    def judge(run: Path, reference: Path | None, known: object) -> SimpleNamespace:
        if run.name in ("unreadable", "gone"):
            raise (
                RecordError("rank0.jsonl:3", "torn")
                if run.name == "unreadable"
                else EvidenceMissing(run.name, "has no config.json")
            )
        return SimpleNamespace(
            status=run.name, judged_to_step=None, to_json=lambda: {"status": run.name}
        )

    monkeypatch.setattr(verify, "verify_run", judge)
    monkeypatch.setattr(verify, "render", lambda verdict: f"it is {verdict.status}")
    return tmp_path / "sweep"


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["valid"], 0),
        (["valid", "unknown"], 3),
        (["gone", "valid"], 3),
        (["unknown", "invalid"], 1),
        (["unknown", "unreadable"], 2),
        ([""], 1),
        (["invalid", "valid"], 1),
    ],
)
def test_verify_answers_with_the_worst(names: list[str], code: int, sweep: Path) -> None:
    assert main(["verify", *(str(sweep / name) for name in names)]) == code


def test_verify_takes_a_sweep_for_all_its_runs(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["verify", str(sweep)])
    captured = capsys.readouterr()
    assert captured.out.splitlines() == ["it is invalid", "it is unknown", "it is valid"]
    assert [line.split(": E-")[1].split(" ")[0] for line in captured.err.splitlines()] == [
        "unknown",
        "record",
    ]


def test_verify_keeps_the_verdict_beside_the_records(sweep: Path) -> None:
    main(["verify", str(sweep)])
    assert json.loads(RunLayout(sweep / "valid").verdict.read_text())["status"] == "valid"
    assert not RunLayout(sweep / "gone").verdict.exists()


def test_a_copy_that_cannot_be_written_is_judged_all_the_same(
    sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path, value: object) -> None:
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr(verify, "write_json", refuse)
    assert main(["verify", str(sweep / "valid")]) == 0
    assert "the verdict is not stored (Read-only file system)" in capsys.readouterr().err


def test_verify_prints_json(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["verify", str(sweep / "valid"), "--json"])
    assert json.loads(capsys.readouterr().out) == {str(sweep / "valid"): {"status": "valid"}}


def test_a_reference_that_is_missing_is_refused(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(sweep / "valid"), "--reference", str(sweep / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_report_says_where_the_page_is(
    sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[object] = []
    made = SimpleNamespace(page=Path("p.html"), text="table\n", notes=(), exit_code=3)
    monkeypatch.setattr(
        report, "build_report", lambda *given, every_run: asked.append((*given, every_run)) or made
    )
    assert main(["report", str(sweep), "--out", "o", "--against", str(sweep), "--runs"]) == 3
    assert asked == [
        ([sweep], Path("o"), sweep, Judging(anew=False, missing=report.verify_all), True)
    ]
    assert capsys.readouterr().out == "table\np.html\n"


def ended(
    *words: str, out: int | IO[bytes] = subprocess.DEVNULL, err: int | IO[bytes] = subprocess.PIPE
) -> tuple[int, bytes | None]:
    """The exit code of the command in a process of its own, which buffers what it prints, and what
    it says on standard error.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-m", "ecrl_cli.cli.main", *words],
        stdout=out,
        stderr=err,
        env=environment,
        check=False,
    )
    return done.returncode, done.stderr


def test_a_full_disk_is_told_in_one_line() -> None:
    with Path("/dev/full").open("wb") as full:
        assert ended("--help", out=full) == (
            5,
            b"ecrl: error: E-storage ecrl: ENOSPC (No space left on device)\n",
        )
        assert ended("verify", "nowhere", err=full)[0] == 2, (
            "where nothing can be told, the exit code stays"
        )


def test_a_closed_pipe_is_told_in_one_line() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        assert ended("--help", out=pipe) == (
            5,
            b"ecrl: error: E-storage ecrl: EPIPE (Broken pipe)\n",
        )


def test_a_closed_standard_output_is_no_defect() -> None:
    closed = f"exec {shlex.quote(sys.executable)} -m ecrl_cli.cli.main --version >&-"
    done = subprocess.run(["sh", "-c", closed], stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_what_a_terminal_cannot_show_is_shown_as_escapes(
    sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "render", lambda verdict: "Łódź: valid")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    assert main(["verify", str(sweep / "valid")]) == 0
    sys.stdout.seek(0)
    assert sys.stdout.read() == "\\u0141ód\\u017a: valid\n"


def test_a_defect_is_told_as_one_with_its_traceback_and_is_no_verdict(
    sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "build_report", lambda *given, every_run: [].pop())
    assert main(["report", str(sweep)]) == DEFECT == 70
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first == "Traceback (most recent call last):"
    assert (
        last == "ecrl: error: E-internal IndexError: pop from empty list; a defect in ECRL and no"
        " verdict: please report it with the lines above"
    )


LOOKS_LIKE_COMMANDS = "::stop-commands::x: valid\n  ::error::no\nof ::these ##[group]two"


@pytest.mark.parametrize(
    ("there", "shown"),
    [
        ("", LOOKS_LIKE_COMMANDS),
        (
            "true",
            "\u200b::stop-commands::x: valid\n  \u200b::error::no\nof ::these ##\u200b[group]two",
        ),
    ],
)
def test_github_obeys_nothing_that_a_run_is_named(
    there: str,
    shown: str,
    sweep: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Annotations are for it to obey."""
    monkeypatch.setenv("GITHUB_ACTIONS", there)
    monkeypatch.setattr(verify, "render", lambda verdict: LOOKS_LIKE_COMMANDS)
    assert main(["verify", str(sweep / "invalid"), "--github"]) == 1
    captured = capsys.readouterr()
    assert captured.out == shown + "\n"
    assert captured.err == "::error title=invalid%3A verify::invalid\n"
