"""What the package says of itself is the same wherever it says it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from ecrl_cli import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _requirement(text: str) -> str:
    return re.split(r"[<>=\[ ]", text)[0]


def test_the_citation_is_complete_and_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "type", "authors", "abstract", "keywords"} <= set(
        citation
    )
    assert (citation["cff-version"], citation["type"], citation["authors"]) == (
        "1.2.0",
        "software",
        PROJECT["authors"],
    )
    assert str(citation["version"]) == __version__
    assert citation["license"] == PROJECT["license"]
    assert not {"url", "repository-code"} & set(citation), (
        "optional, and there is no public address to cite yet"
    )
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert (
        f"## [{__version__}] - {citation['date-released']}\n" in changelog
        and "## [Unreleased]\n" in changelog
    )


def test_a_release_is_read_in_two_minutes() -> None:
    """At 250 words a minute. What is not released yet is folded when it is."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = {part.split("]")[0]: len(part.split()) for part in text.split("\n## [")[1:]}
    assert __version__ in releases
    limits = {name: 1500 if name == "Unreleased" else 500 for name in releases}
    assert {name: words for name, words in releases.items() if words > limits[name]} == {}
    unreleased = text.partition("## [Unreleased]\n")[2].partition("\n## [")[0]
    assert re.findall(r"^### (\w+)$", unreleased, re.MULTILINE) == ["Added", "Changed", "Fixed"]


def test_the_licence_is_the_one_that_is_named() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert (
        PROJECT["license"] == "Apache-2.0"
        and "Apache License\n                           Version 2.0" in text
    )
    assert "END OF TERMS AND CONDITIONS" in text and all(
        (ROOT / name).is_file() for name in PROJECT["license-files"]
    )


@pytest.mark.parametrize(
    ("page", "start", "end"),
    [
        ("CONTRIBUTING.md", "## Why each dependency is here", "No public address"),
        ("docs/decisions/dependencies.md", "# Why each dependency is here", "## What was tried"),
    ],
)
def test_each_dependency_has_its_reason(page: str, start: str, end: str) -> None:
    """On both pages, and none is named there that is gone."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert start in text and end in text
    table = text.partition(start)[2].partition(end)[0]
    named = {
        name
        for line in table.splitlines()
        if line.startswith("| ")
        for name in re.findall(r"[a-z][\w-]+", line.split("|")[1].partition("(")[0])
    }
    wanted = {_requirement(text) for text in PROJECT["dependencies"]}
    wanted |= {
        _requirement(text) for extra in PROJECT["optional-dependencies"].values() for text in extra
    } - {"ecrl"}
    plain = {re.sub(r"^(types-.*|.*-stubs)$", "stubs", name) for name in wanted}
    assert plain - named == set() and named - plain - {"package", "stubs"} == set()


def test_hosted_integration_runs_what_everybody_runs() -> None:
    workflow = yaml.safe_load(
        (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    )
    assert [
        step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step
    ][-1] == ".ci/run"
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert [repository["repo"] for repository in hooks] == ["local"], (
        "the tools of .venv, not versions of their own"
    )
