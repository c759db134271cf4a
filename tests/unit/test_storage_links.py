"""Nothing is written through a link that somebody else put into a run or a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from ecrl_cli.errors import RunDirectoryError
from ecrl_cli.records.journal import Journal
from ecrl_cli.report.build import report
from ecrl_cli.runs.run_dir import check_run_dir
from ecrl_cli.runs.run_plan import plan_run
from ecrl_cli.storage.safe_read import refuse_links
from tests.runs.builder import build_clean, config_of


@pytest.mark.parametrize(
    "link",
    [
        "logs",
        "logs/attempt-01",
        "logs/attempt-00/output.log",
        "logs/attempt-00/spans_rank1.jsonl",
        "fired",
        ".hydra",
        "checkpoints",
    ],
)
def test_a_run_with_a_link_where_it_would_write_is_not_resumed(tmp_path: Path, link: str) -> None:
    layout = build_clean(tmp_path)
    check_run_dir(plan_run(config_of("clean"), layout.root))
    outside = tmp_path / "outside"
    outside.mkdir()
    place = layout.root / link
    if place.exists():
        place.rename(outside / "moved")
    place.symlink_to(outside)
    with pytest.raises(RunDirectoryError, match="is a symbolic link"):
        check_run_dir(plan_run(config_of("clean"), layout.root))


def test_a_journal_is_not_appended_to_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").touch()
    (tmp_path / "spans_rank1.jsonl").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="symbolic"):
        Journal(tmp_path / "spans_rank1.jsonl")


@pytest.mark.parametrize("link", ["report", "report/figures"])
def test_a_report_is_not_written_through_a_link(tmp_path: Path, link: str) -> None:
    layout = build_clean(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (layout.root / link).parent.mkdir(exist_ok=True)
    (layout.root / link).symlink_to(outside)
    with pytest.raises(RunDirectoryError, match="is a symbolic link"):
        report([layout.root])
    assert not list(outside.iterdir())


def test_the_links_that_submitit_makes_are_its_own(tmp_path: Path) -> None:
    folder = tmp_path / ".hydra" / ".submitit"
    folder.mkdir(parents=True)
    (folder / "submission.sh").symlink_to(tmp_path / "elsewhere")
    refuse_links(tmp_path, (".hydra",))
    (tmp_path / "run" / ".hydra").mkdir(parents=True)
    (tmp_path / "run" / ".hydra" / ".submitit").symlink_to(folder)
    with pytest.raises(RunDirectoryError, match="is a symbolic link"):
        refuse_links(tmp_path / "run", (".hydra",))
