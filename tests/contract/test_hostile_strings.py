"""No string of a record, and no name of a folder, is more than text: on a terminal, in Markdown, in
a spreadsheet, on the page.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.cli.main import main
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.report.build import report
from tests.runs.builder import build_blk, build_ref

HOSTILE = "x\x1b[2K\x1b]0;owned\x07\r\nforged: valid (10 promises kept)\n\u202e\x9b2J\ttail"
FORMULA = '=HYPERLINK("http://evil.example")'
MARKDOWN = (
    "[click](http://evil.example)\n\n# forged heading\n\n<script>alert(1)</script>"
    " https://evil.example \x1b[31m"
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strings")
    build_blk(folder)
    build_ref(folder)
    return folder


def documents(run: Path) -> list[Path]:
    return sorted(
        path for path in run.rglob("*.json*") if "checkpoints" not in path.relative_to(run).parts
    )


def kinds(run: Path) -> Iterator[tuple[str, str]]:
    """Every field that holds text, by the kind of file (numbers in its name left out) and its
    name.
    """
    found = {
        (re.sub(r"\d+", "", path.name), name)
        for path in documents(run)
        for line in values(path)
        for name in texts(line)
    }
    yield from sorted(found)


def values(path: Path) -> list[Any]:
    return (
        [json.loads(line) for line in path.read_text().splitlines()]
        if path.suffix == ".jsonl"
        else [json.loads(path.read_text())]
    )


def texts(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, str):
        yield name
    for key, item in (
        value.items()
        if isinstance(value, dict)
        else ((name, each) for each in value)
        if isinstance(value, list)
        else ()
    ):
        yield from texts(item, key)


def replaced(value: Any, field: str, text: str, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: replaced(item, field, text, key) for key, item in value.items()}
    if isinstance(value, list):
        return [replaced(item, field, text, name) for item in value]
    return text if isinstance(value, str) and name == field else value


def spoil(run: Path, kind: str, field: str, text: str) -> None:
    for path in documents(run):
        if re.sub(r"\d+", "", path.name) == kind:
            lines = [json.dumps(replaced(value, field, text)) for value in values(path)]
            path.write_text("\n".join(lines) + "\n")


def check_terminal(text: str) -> None:
    assert text.replace("\n", "").isprintable(), [c for c in text if not c.isprintable()]
    assert not any(line.startswith("forged") for line in text.splitlines())


def test_no_string_of_any_record_reaches_the_terminal_as_it_stands(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = list(kinds(recorded / "blk"))
    assert {
        ("supervisor.json", "outcome"),
        (".json", "kind"),
        ("rank.jsonl", "sample_ids_hash"),
    } <= set(fields)
    for number, (kind, field) in enumerate(fields):
        sweep = tmp_path / str(number)
        shutil.copytree(recorded / "blk", sweep / "blk", symlinks=True)
        spoil(sweep / "blk", kind, field, HOSTILE)
        main(["verify", str(sweep)])
        shown = capsys.readouterr()
        check_terminal(shown.out)
        check_terminal(shown.err)
        shutil.rmtree(sweep)


def test_the_fields_that_the_judge_repeats_are_shown_as_escapes(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind, field in ((".json", "kind"), ("supervisor.json", "terminal_status")):
        run = tmp_path / field / "blk"
        shutil.copytree(recorded / "blk", run, symlinks=True)
        spoil(run, kind, field, HOSTILE)
        assert main(["verify", str(run)]) in (1, 3)
        assert "\\x1b[2K\\x1b]0;owned\\x07\\r\\nforged" in capsys.readouterr().out


def test_the_name_of_a_folder_forges_no_line(
    recorded: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    name = b"blk\x1b[2K\nforged: valid (10 promises kept)\xff"
    shutil.copytree(recorded / "blk", tmp_path / "blk", symlinks=True)
    (tmp_path / "blk").rename(tmp_path / name.decode(errors="surrogateescape"))
    RunLayout(tmp_path / name.decode(errors="surrogateescape")).supervisor.unlink()
    assert main(["verify", str(tmp_path)]) == 3
    check_terminal(capsysbinary.readouterr().out.decode())
    assert main(["verify", str(tmp_path / f"no{HOSTILE}")]) == 2
    check_terminal(capsysbinary.readouterr().err.decode())


def test_a_report_shows_every_string_as_text(recorded: Path, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    for name in ("blk", "ref"):
        shutil.copytree(recorded / name, sweep / name, symlinks=True)
    for kind in ("metrics.json", "config.json"):
        spoil(sweep / "blk", kind, "scale" if kind == "metrics.json" else "suite_name", MARKDOWN)
        spoil(sweep / "blk", kind, "variant", FORMULA)
    spoil(sweep / "blk", "supervisor.json", "reason", HOSTILE)
    (sweep / "blk").rename(sweep / "\t=1+1\x1b[31m")
    (sweep / "manifest.csv").write_text(
        'run,run_id,suite,variant,seed,status,"=cmd()"\nref,1,"=2+2",ref,7,completed,"\t=3\x1b"\n'
    )
    made = report([sweep], tmp_path / "report")
    check_terminal(made.text)
    for path in sorted((tmp_path / "report").rglob("*")):
        if path.suffix == ".csv":
            cells = [
                cell
                for row in csv.reader(io.StringIO(path.read_text(), newline=""))
                for cell in row
            ]
            assert not [
                cell
                for cell in cells
                if cell[:1] in ("=", "+", "@", "\t", "\r") or not cell.isprintable()
            ], path.name
        if path.suffix in (".md", ".html"):
            text = path.read_text()
            assert (
                text.replace("\n", "")
                .replace("\u200b", "")
                .replace("\u00a0", "")
                .replace("\t", "")
                .isprintable()
            ), path.name
            assert "<script>alert" not in text
        if path.suffix == ".md":
            assert "[click](" not in text
            assert "://evil" not in text
            assert "\n# forged" not in text
