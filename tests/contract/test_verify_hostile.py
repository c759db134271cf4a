"""What somebody else wrote into one run costs little, and never the verdicts on the others: neither
when judged nor when reported.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ecrl_cli.records.layout import RunLayout
from tests.runs.builder import build_blk, build_ref
from tests.runs.hostile import ATTACKS

# of processor time and of addresses: a judgement takes a tenth, on its own; a slow machine may take
# longer
SECONDS, BYTES = 10, 2**30
FAR_AWAY = "a launch far away"
JUDGE = """
import json, resource, sys
from pathlib import Path
from ecrl_cli.cli.main import main
from ecrl_cli.cli.verify import verify
from ecrl_cli.report.figures import runs
drawn = runs.run_pictures
# Pictures are as slow as all else together, and of the same numbers: drawn only where a time is
# out of all bounds.
runs.run_pictures = lambda *given: drawn(*given) if sweep.name == "DRAWN" else []
for sweep in sorted(Path(sys.argv[1]).iterdir()):
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime) + SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))
    Path(sys.argv[2]).write_text(sweep.name)
    verify([str(sweep), "--json"])
    sys.stdout.write("\\n--\\n")
    code = main(["report", str(sweep), "--json"])
    assert code in (0, 1, 3) and (sweep / "report" / "index.html").exists(), code
    sys.stdout.write("\\n--\\n")
"""


Statuses = dict[str, dict[str, str]]  # by attack and run


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Statuses, Statuses]:
    """What `verify` says, and what `report` shows then; all attacks in one process, each within the
    bounds.
    """
    folder = tmp_path_factory.mktemp("hostile")
    build_blk(folder / "base")
    build_ref(folder / "base")
    for number, attack in enumerate(ATTACKS.values()):
        sweep = folder / "sweeps" / f"{number:03d}"
        shutil.copytree(folder / "base", sweep, symlinks=True)
        attack(RunLayout(sweep / "blk"))
    command = [
        sys.executable,
        "-c",
        JUDGE.replace("SECONDS", str(SECONDS)).replace(
            "DRAWN", f"{list(ATTACKS).index(FAR_AWAY):03d}"
        ),
        str(folder / "sweeps"),
        str(folder / "at"),
    ]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, preexec_fn=_bounded
    )
    at = list(ATTACKS)[int((folder / "at").read_text())]
    assert ended.returncode == 0, f"{at}: {ended.returncode}: {ended.stderr[-2000:]}"
    assert "Traceback" not in ended.stderr
    said = [json.loads(text) for text in ended.stdout.split("\n--\n") if text.strip()]
    verdicts = [
        {Path(run).name: answer["status"] for run, answer in answers.items()}
        for answers in said[::2]
    ]
    shown = [{run["run"]: run["verdict"] for run in document["runs"]} for document in said[1::2]]
    return dict(zip(ATTACKS, verdicts, strict=True)), dict(zip(ATTACKS, shown, strict=True))


def _bounded() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))


@pytest.mark.parametrize("attack", ATTACKS)
def test_one_run_costs_little_and_never_the_verdict_on_another(
    judged: tuple[Statuses, Statuses], attack: str
) -> None:
    statuses, shown = (said[attack] for said in judged)
    assert statuses["ref"] == "valid"
    assert statuses["blk"] in ("valid", "unknown", "invalid")
    harmless = attack.startswith(("an odd file", "a verdict"))
    assert (statuses["blk"] == "valid") == harmless
    assert shown["ref"] == "valid"
    assert shown["blk"] in (
        statuses["blk"],
        "missing",
    ), "a report shows the verdict, or that none could be given"
    assert (shown["blk"] == "valid") == harmless
