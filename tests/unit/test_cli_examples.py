"""`ecrl examples`: everything that the documentation's commands use, written anywhere, and over
nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ecrl_cli.cli.arguments import parse
from ecrl_cli.cli.compose import compose_grid
from ecrl_cli.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_they_are_written_once_and_over_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["examples"]) == 0
    names = {
        path.relative_to(EXAMPLES)
        for path in EXAMPLES.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {
        path.relative_to("examples") for path in Path("examples").rglob("*") if path.is_file()
    } == names
    assert {Path("sweep.ipynb"), Path("jobs/plain.py"), Path("conf/suite/tiny.yaml")} <= names
    assert f"{len(names)} files written, 0 already there" in capsys.readouterr().out
    Path("examples/jobs/plain.py").unlink()
    assert main(["examples"]) == 0 and "1 file written" in capsys.readouterr().out
    Path("examples/jobs/plain.py").write_text("mine")
    Path("examples/sweep.ipynb").unlink()
    assert main(["examples"]) == 2 and "holds another jobs/plain.py" in capsys.readouterr().err
    assert (
        not Path("examples/sweep.ipynb").exists()
        and Path("examples/jobs/plain.py").read_text() == "mine"
    )


def test_the_suite_is_one_of_ecrl() -> None:
    grid = compose_grid(
        parse(["-m", "--config-dir", str(EXAMPLES / "conf"), "+suite=tiny", "variant=ref,blk,ovl"])
    )
    assert [cell.config.suite_name for cell in grid.cells] == ["tiny"] * 3 and grid.cells[
        1
    ].config.failure.steps == (14, 23)
