"""`ecrl audit -- COMMAND` on a real job: a healthy one is valid and unchanged by the recording, one
with a bug is found out.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.conftest import command, run_ecrl
from tests.e2e.test_environment_record import SECRETS
from tests.in_process import ecrl_in_process

JOB = str(Path(__file__).parents[2] / "examples" / "jobs" / "plain.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1")
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("audit")
    keys = ("failure=kill", "failure.steps=[13.backward,19]", "run_dir=job", "--junit", "job.xml")
    done = run_ecrl(
        folder,
        "audit",
        *keys,
        "--",
        sys.executable,
        JOB,
        "--out",
        "{dir}",
        environment=SECRETS,
        timeout=500,
    )
    return folder, done.stdout


def test_a_healthy_job_is_valid(healthy: tuple[Path, str]) -> None:
    folder, text = healthy
    assert text.startswith(
        "job: valid: 1 run with failures ended bit for bit as the undisturbed one"
    ), text
    document = json.loads((folder / "job" / "audit.json").read_text())
    kept = {finding["promise"] for finding in document["findings"] if finding["status"] == "kept"}
    assert {
        "exactly once",
        "same input",
        "same trajectory",
        "right checkpoint",
        "same end",
        "progress",
    } <= kept
    assert {
        "restored: parameters",
        "restored: optimizer",
        "restored: generators",
        "restored: scaler",
    } <= kept
    launches = json.loads((folder / "job" / "struck" / "arm.json").read_text())["launches"]
    assert [launch["signal"] for launch in launches] == [9, 9, None]
    report = ElementTree.parse(folder / "job.xml").getroot()
    cases = [(case.get("classname"), case.get("name")) for case in report.iter("testcase")]
    assert len(cases) == len(document["findings"]) and ("struck", "same end") in cases
    assert list(report.iter("failure")) == []


def test_no_file_of_an_audit_holds_a_secret_of_the_environment(healthy: tuple[Path, str]) -> None:
    folder, _ = healthy
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 20 and not [str(path) for path in files if b"planted-" in path.read_bytes()]


def test_recording_changes_no_bit(healthy: tuple[Path, str]) -> None:
    folder, _ = healthy
    (folder / "bare").mkdir()
    subprocess.run([sys.executable, JOB, "--out", str(folder / "bare")], check=True, timeout=170)
    ends = [str(folder / name / "step-24.pt") for name in ("bare", "job/ref/work")]
    assert ecrl_in_process(folder, "audit", "--state", *ends).stdout.startswith("equal: ")
    other = str(folder / "bare" / "step-20.pt")
    assert ecrl_in_process(folder, "audit", "--state", ends[0], other, check=1).stdout.startswith(
        "different: "
    )


def test_a_planted_bug_is_found_and_named(healthy: tuple[Path, str]) -> None:
    folder, _ = healthy
    keys = (
        "audit.references=1",
        "failure=kill",
        "failure.steps=[13]",
        "audit.resume=--out {dir} --bug optimizer",
        "run_dir=bug",
        "--junit",
        "bug.xml",
    )
    done = run_ecrl(
        folder,
        "audit",
        *keys,
        "--junit",
        "bug.xml",
        "--",
        sys.executable,
        JOB,
        "--out",
        "{dir}",
        check=1,
        timeout=500,
    )
    assert done.stdout.startswith(
        "bug: invalid: the optimizer's state before step 11 is that of no earlier step (0 entries):"
        " it was not loaded"
    )
    failed = [
        case.get("name")
        for case in ElementTree.parse(folder / "bug.xml").getroot().iter("testcase")
        if case.find("failure") is not None
    ]
    assert "restored: optimizer" in failed and "exactly once" not in failed
    again = ecrl_in_process(folder, "audit", "bug", check=1).stdout
    assert again.splitlines()[0] == done.stdout.splitlines()[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--", sys.executable, JOB], "COMMAND: names no {dir}"),
        (["--"], "COMMAND: is missing"),
        (
            ["audit.digest=2", "--", "true", "{dir}"],
            "audit.digest: unknown key 'audit.digest'; did you mean audit.digests?",
        ),
        (["foo=1", "--", "true", "{dir}"], "foo: unknown key 'foo'; known: audit.resume, "),
        (["+foo=1", "--", "true", "{dir}"], "foo: unknown key 'foo'; known: audit.resume, "),
        (["--cfg", "job", "--", "true", "{dir}"], "takes neither --cfg nor -m"),
        (["-m", "--", "true", "{dir}"], "takes neither --cfg nor -m"),
        (["failure=kill", "--", "true", "{dir}"], "no step is planned"),
        (
            ["failure=kill", "failure.steps=[3.lunch]", "--", "true", "{dir}"],
            "is neither STEP nor STEP.MOMENT",
        ),
        (
            ["failure=nan", "failure.steps=[3]", "--", "true", "{dir}"],
            "failure.kind: must be one of",
        ),
        (["--", "no-such-command", "{dir}"], "no-such-command cannot be started"),
        (
            ["--", sys.executable, "-c", "raise SystemExit('out of luck')", "{dir}"],
            "ended with exit code 1 without any failure: out of luck",
        ),
        (
            # as torchrun ends what it says
            [
                "--",
                sys.executable,
                "-c",
                "raise SystemExit('Signal 6 received\\n=====\\n')",
                "{dir}",
            ],
            "ended with exit code 1 without any failure: Signal 6 received",
        ),
        (
            [
                "--",
                sys.executable,
                "-c",
                "print('ValueError: once more', flush=True); raise SystemExit('out of luck')",
                "{dir}",
            ],
            # what the job got over is not what it died of
            "ended with exit code 1 without any failure: out of luck",
        ),
        (
            # as torch marks a rank's traceback
            [
                "--",
                sys.executable,
                "-c",
                "raise SystemExit('[rank0]: ValueError: out of luck')",
                "{dir}",
            ],
            "ended with exit code 1 without any failure: ValueError: out of luck",
        ),
        (
            [
                "--",
                *TORCHRUN,
                "--no-python",
                sys.executable,
                "-c",
                "import os; os.write(1, b'out of luck\\n'); os.abort()",
                "{dir}",
            ],
            "ended with exit code 1 without any failure: out of luck",
        ),
        (
            # the job's own words stand above torchrun's report
            ["--", *TORCHRUN, JOB, "--out", "/dev/null{dir}"],
            (
                "ended with exit code 1 without any failure: NotADirectoryError: [Errno 20] Not a"
                " directory: '/dev/null/"
            ),
        ),
        (["audit.elastic=python train.py", "--", "true", "{dir}"], "audit.elastic: names no {dir}"),
        (
            ["audit.resume=--from '{dir}", "--", "true", "{dir}"],
            "audit.resume: is no command line (no closing quotation)",
        ),
        (["nowhere"], "needs the folder of a recording"),
        (["--state", "a.pt"], "compares two states, got 1"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, words: list[str], said: str) -> None:
    done = ecrl_in_process(tmp_path, "audit", *words, check=2)
    lines = [line for line in done.stderr.splitlines() if "ecrl: error" in line]
    assert len(lines) == 1 and said in lines[0], done.stderr


_WAITS = (
    "import os, signal, sys; pipe = os.open(sys.argv[1], os.O_WRONLY); os.write(pipe, b'started');"
    " signal.pause()"
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_audit_that_is_stopped_leaves_no_process_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    """The job holds the pipe open as long as it lives."""
    os.mkfifo(tmp_path / "pipe")
    words = command(
        "audit", "run_dir=job", "--", sys.executable, "-c", _WAITS, str(tmp_path / "pipe"), "{dir}"
    )
    audit = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    with (tmp_path / "pipe").open("rb", buffering=0) as pipe:
        assert pipe.read(7) == b"started"
        audit.send_signal(number)
        _, said = audit.communicate(timeout=60)
        assert select.select([pipe], [], [], 10.0)[0] and pipe.read() == b"", "the job lives"
    assert audit.returncode == (130 if number == signal.SIGINT else 143)
    assert f"E-stopped {number.name}: the audit was stopped in arm ref" in said
    assert [
        launch["stopped"]
        for launch in json.loads((tmp_path / "job" / "ref" / "arm.json").read_text())["launches"]
    ] == [True]


def test_a_job_that_keeps_the_recorder_out_is_unknown_in_one_line(tmp_path: Path) -> None:
    done = ecrl_in_process(
        tmp_path, "audit", "--", sys.executable, "-I", "-c", "print('trained')", "{dir}", check=3
    )
    lines = [line for line in done.stderr.splitlines() if "ecrl: error" in line]
    assert (
        len(lines) == 1
        and "no step is on record" in lines[0]
        and "python -I, -E and -S keep the recorder out" in lines[0]
    ), done.stderr
