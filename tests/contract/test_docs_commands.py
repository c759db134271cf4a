"""The documents hold: every command in them composes, every file that they name is there, every
option and every study is listed.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.cli import audit, compare, examples, published, report, verify
from ecrl_cli.cli.arguments import Arguments, check_overrides, parse, read_overrides, typed
from ecrl_cli.cli.compose import PRIMARY as TRAIN
from ecrl_cli.cli.compose import compose, expand, initialized
from ecrl_cli.cli.help_text import HELP
from ecrl_cli.cli.main import main
from ecrl_cli.config.audit import build_audit
from ecrl_cli.config.build import build
from ecrl_cli.config.conf_paths import conf_dir, groups
from ecrl_cli.config.omegaconf_bridge import raw
from ecrl_cli.config.scale import SCALED_IN_A_MATRIX
from ecrl_cli.config.study import StudyConfig
from ecrl_cli.data import preflight
from ecrl_cli.failures.plan import plan
from ecrl_cli.studies.frame.registry import names
from ecrl_cli.studies.frame.study import Record, StudyContext
from ecrl_cli.verify.registry import CHECKS
from tests.e2e.chromium import address, chromium
from tests.rooms import rooms
from tests.test_architecture import PACKAGE

ROOT = Path(__file__).parents[2]
TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = [
    *(ROOT / name for name in TOP),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
]
PAGES.append(ROOT / "docs" / "results" / "README.md")
_BLOCK = re.compile(
    r"^(?P<before>[^\n]*)\n```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
_MARK = re.compile(r"<!-- not run: \S.* -->")
_SHELL = ("bash", "console", "sh")
_COMMAND = re.compile(r"^(\$ )?(ecrl|make|pip|python|pytest|sbatch|mkdocs) ", re.MULTILINE)


def blocks(page: Path) -> Iterator[tuple[str, str, str]]:
    """The line before each fenced block, its language and its body."""
    for found in _BLOCK.finditer("\n" + page.read_text(encoding="utf-8")):
        yield found["before"], found["language"], found["body"]


def commands(text: str) -> list[list[str]]:
    """The words of each command; a line may hold several, and may go on in the next one."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=";&|")
        lexer.whitespace_split, lexer.commenters = True, "#"
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set(";&|"):
                found.append(words)
                words = []
            else:
                words.append(word)
    return [words for words in found if words]


def unmarked(page: Path) -> Iterator[tuple[str, ...]]:
    for before, language, body in blocks(page):
        if language in _SHELL and not _MARK.match(before):
            yield from map(tuple, commands(body))


CHECKED = sorted({words for page in PAGES for words in unmarked(page)})


def check(words: tuple[str, ...]) -> None:
    """Raises for a command that could not be given."""
    program, rest = words[0], list(words[1:])
    if program == "ecrl":
        check_ecrl(rest)
    elif program == "make":
        targets = re.findall(
            r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        )
        assert set(rest) <= set(targets), f"no such target in {targets}"
    elif program in ("python", ".venv/bin/python"):
        module = rest[0] == "-m"
        script = ROOT / (rest[1].replace(".", "/") + ".py" if module else rest[0])
        assert script.is_file() or (script.with_suffix("") / "__main__.py").is_file(), script
    elif program == "pytest":
        assert all((ROOT / word).exists() for word in rest if "/" in word)
    else:
        pytest.fail(
            f"{' '.join(words)}: neither composed nor marked: put <!-- not run: WHY --> above its"
            " block"
        )


def check_ecrl(words: list[str]) -> None:
    verb = words[0] if words[0] in HELP else "train"
    rest = words[1:] if words[0] in HELP else words
    if "--help" in words or verb == "completion":
        assert main(words) == 0
    elif verb == "verify":
        verify.parser().parse_args(rest)
    elif verb == "compare":
        compare.parser().parse_args(rest)
    elif verb == "published":
        published.parser().parse_args(rest)
    elif verb == "examples":
        examples.parser().parse_args(rest)
    elif verb == "report":
        report.parser().parse_args(rest)
    elif "study=all" in words:
        parse(rest, "study")  # what it composes is tested with the studies
    elif verb == "study":
        # runs of a command before it
        rest = [
            "study.source=published" if word.startswith("study.source=outputs/") else word
            for word in rest
        ]
        assert main(["study", *rest, *(["--cfg", "job"] if "--cfg" not in rest else [])]) == 0
    elif verb == "audit" and "--" in rest:
        keys = parse([audit.quoted(key) for key in rest[: rest.index("--")]], audit.PRIMARY)
        with initialized(audit.PRIMARY):
            build_audit(
                compose(audit.PRIMARY, [override.input_line or "" for override in keys.overrides])
            )
        assert rest[rest.index("--") + 1 :]
    elif verb == "audit":
        audit.parser().parse_args(rest)
    elif verb == "train":
        check_train(parse([word for word in rest if word not in ("--yes", "--mix")]))


@cache
def default_groups() -> tuple[str, ...]:
    return tuple(
        name
        for name in raw(compose(TRAIN, []).hydra)["runtime"]["choices"]
        if not name.startswith("hydra/")
    )


def check_train(arguments: Arguments) -> None:
    """The first and the last run of the grid: composing one takes a tenth of a second."""
    with initialized(TRAIN):
        check_overrides(arguments.overrides, groups([conf_dir()]), default_groups())
        texts = [override.input_line or "" for override in arguments.overrides]
        if matrix := [text for text in texts if text.startswith("+matrix=")]:
            params = raw(compose(TRAIN, matrix).hydra)["sweeper"]["params"]
            texts = [f"{key}={value}" for key, value in params.items()] + texts
        jobs = expand(texts)
        for job in jobs[:1] + jobs[1:][-1:]:
            plan(build(compose(TRAIN, job), typed(read_overrides(job)) - SCALED_IN_A_MATRIX))


@pytest.mark.parametrize("words", CHECKED, ids=" ".join)
def test_a_command_in_the_documents_can_be_given(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    check(words)


def test_a_wrong_command_would_be_found() -> None:
    for text in (
        "ecrl train dataset=digts",
        "ecrl verify --depe RUN",
        "ecrl study study=crash",
        "make docz",
        "python bench/no.py",
        "curl example.org",
    ):
        with pytest.raises(BaseException):  # noqa: B017 - pytest.fail's and the parsers' own alike
            check(tuple(shlex.split(text)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_stand_where_they_are_checked(page: Path) -> None:
    """In a block that says its language: one without would be passed over."""
    for _, language, body in blocks(page):
        if language not in _SHELL:
            assert not _COMMAND.search(body), body


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    """In `backquotes`: a path of the repository, or of a room of the package."""
    text = page.read_text(encoding="utf-8")
    for name in re.findall(
        r"`((?:src|tests|conf|docs|bench|examples)/[\w./-]+|(?:[a-z_]+/)+[a-z_]+\.py)`", text
    ):
        assert "NAME" in name or any(
            (base / name).exists() for base in (ROOT, PACKAGE, ROOT / "src")
        ), name


def test_the_readme_fits_on_three_screens() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120 and max(map(len, lines)) <= 120
    first_screen = "\n".join(lines[:40])
    assert "ecrl audit -- torchrun train.py" in first_screen and "ecrl train" in first_screen


def test_the_readme_opens_with_bugs_that_were_found_each_with_its_public_thread() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first_screen = text.partition("## ")[0]
    threads = dict(re.findall(r"^\[([\w#-]+)\]: (https://github\.com/\S+)$", text, re.MULTILINE))
    assert len(threads) >= 5 and all(f"| [{name}] |" in first_screen for name in threads)
    elsewhere = "".join(
        (ROOT / "docs" / page).read_text(encoding="utf-8")
        for page in ("surprises.md", "frameworks.md")
    )
    assert [name for name, address in threads.items() if f"({address})" not in elsewhere] == []


def test_every_thread_that_a_planted_bug_is_from_names_owner_repository_and_number() -> None:
    rows = json.loads((ROOT / "examples/jobs/catalogue.json").read_text(encoding="utf-8"))
    threads = {thread for row in rows for thread in row["threads"]}
    assert [name for name in threads if not re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", name)] == []


def test_contributing_is_read_in_minutes() -> None:
    """What takes longer to say has a page of its own in docs/."""
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")) <= 6000


def test_what_the_architecture_names_in_a_file_is_defined_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`(\w+)` (?:in|of) `([\w/]+\.py)`", text)
    assert len(named) >= 8
    for name, path in named:
        source = (PACKAGE / path).read_text(encoding="utf-8")
        assert re.search(rf"^(?:class |def )?{name}\b", source, re.MULTILINE), (name, path)


def test_the_page_of_configuration_lists_every_option_of_every_group() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    text = text.partition("## Groups")[2].partition("##")[0]
    rows = {match[1]: match[0] for match in re.finditer(r"^\| `(\w+)`.*$", text, re.MULTILINE)}
    for group, options in groups([conf_dir()]).items():
        assert group in rows, group
        missing = [option for option in options if f"`{option}`" not in rows[group]]
        # the studies have a page of their own
        assert not missing or group == "study", (group, missing)


def test_the_page_of_configuration_says_where_each_data_set_and_model_comes_from() -> None:
    text = (
        (ROOT / "docs" / "configuration.md")
        .read_text(encoding="utf-8")
        .partition("## Where data and models come from")[2]
        .partition("\n## ")[0]
    )
    rows = {match[1]: match[0] for match in re.finditer(r"^\| `(\w+)`.*$", text, re.MULTILINE)}
    options = groups([conf_dir()])
    assert {*rows} == {*options["dataset"]}
    for name, archive in preflight.ARCHIVES.items():
        assert f"`{archive.url}`, MD5 `{archive.md5}`" in rows[name]
    assert (
        preflight.TINY_URL in rows["tinyimagenet"]
        and f"{preflight.DIGITS_SIZE:,} samples" in rows["digits"]
    )
    assert all(part in rows["nt3"] for part in (preflight.NT3_URL, *preflight.NT3_FILES.values()))
    assert [model for model in options["model"] if f"`{model}`" not in text] == []


def test_the_page_of_commands_lists_every_promise() -> None:
    text = (
        (ROOT / "docs" / "cli.md")
        .read_text(encoding="utf-8")
        .partition("| promise |")[2]
        .partition("The verdict of a run")[0]
    )
    assert re.findall(r"^\| ([\w-]+) \| [^-]", text, re.MULTILINE) == list(CHECKS)


def test_the_page_of_studies_lists_every_study() -> None:
    rows = re.findall(
        r"^\| `([\w-]+)` \|",
        (ROOT / "docs" / "studies.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert sorted(set(rows)) == sorted(names())


def half_written() -> str:
    return next(
        body for _, language, body in blocks(ROOT / "docs" / "studies.md") if language == "python"
    )


def test_the_study_on_the_page_of_studies_runs_and_finds_its_planted_bug(tmp_path: Path) -> None:
    example: dict[str, Any] = {"__name__": "half_written"}
    exec(compile(half_written(), "docs/studies.md", "exec", dont_inherit=True), example)
    study = example["STUDY"].open(
        StudyContext(StudyConfig(example["HalfWritten"](), seed=1), tmp_path)
    )
    records = [Record(trial.key, trial.facts, study.run(trial), 0.0) for trial in study.plan()]
    findings = study.findings(records)
    assert [gate.passed for gate in findings.gates] == [True, True] and len(records) == 21
    assert [(row["arm"], row["k"]) for row in findings.tables[0].rows] == [
        ("rename", 0),
        ("planted", 1),
    ]
    torn = [
        Record(record.key, record.facts, {"torn": True, "found": False}, 0.0) for record in records
    ]
    assert [gate.passed for gate in study.findings(torn).gates] == [False, False]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "yaml",
    ["", "defaults: [keys-half-written, _self_]\nname: half-written\ntrials: 7\n"],
    ids=["no YAML", "a YAML"],
)
def test_the_study_on_the_page_of_studies_is_one_of_ecrl_by_its_entry_point_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], yaml: str
) -> None:
    """As another package has it: its module, and the entry point that the page shows."""
    package, point = (
        tmp_path / "package",
        next(
            body for _, language, body in blocks(ROOT / "docs" / "studies.md") if language == "toml"
        ),
    )
    (package / "half_written-1.dist-info").mkdir(parents=True)
    (package / "half_written-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: half-written\nVersion: 1\n"
    )
    (package / "half_written-1.dist-info" / "entry_points.txt").write_text(
        "[ecrl.studies]\n" + point.partition("\n")[2].replace('"', "")
    )
    (package / "half_written.py").write_text(half_written())
    monkeypatch.syspath_prepend(str(package))
    monkeypatch.chdir(tmp_path)
    searched = ["--config-dir", "conf"] if yaml else []
    (tmp_path / "conf" / "study").mkdir(parents=True)
    (tmp_path / "conf" / "study" / "half-written.yaml").write_text(yaml)
    try:
        assert main(["study", "--help"]) == 0
        assert re.search(r"half-written +A reader beside a writer", capsys.readouterr().out)
        assert (
            main(["study", *searched, "study=half-written", "study.trails=3"]) == 2
            and "did you mean study.trials?" in capsys.readouterr().err
        )
        words = [] if yaml else ["study.trials=7"]
        assert (
            main(
                [
                    "study",
                    *searched,
                    "study=half-written",
                    *words,
                    "seed=3",
                    "workers=1",
                    "run_dir=out",
                    "--json",
                ]
            )
            == 0
        )
        (answer,) = json.loads(capsys.readouterr().out).values()
        assert (answer["name"], answer["done"], answer["complete"], answer["exit_code"]) == (
            "half-written",
            8,
            True,
            0,
        )
        assert {gate["name"]: gate["passed"] for gate in answer["gates"]} == {
            "trials": True,
            "rename": True,
            "planted": True,
        }
    finally:
        sys.modules.pop("half_written", None)


def test_the_page_of_the_architecture_lists_every_room() -> None:
    text = (
        (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("Beside them")[0]
    )
    drawing = (ROOT / "docs" / "architecture.svg").read_text(encoding="utf-8")
    named = re.findall(
        r"`(\w+)`", "".join(re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", text, re.MULTILINE))
    )
    assert sorted(named) == sorted(rooms())
    assert sorted(re.findall(r'font-weight="bold"[^>]*>(\w+)</text>', drawing)) == sorted(rooms())


def test_the_glossary_has_each_word_once_and_in_order() -> None:
    words = re.findall(
        r"^\| ([^|]+) \|", (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8"), re.MULTILINE
    )[2:]
    assert words == sorted(set(words))


def test_every_decision_is_dated_and_in_the_list() -> None:
    folder, row = (
        ROOT / "docs" / "decisions",
        re.compile(r"^\| ([\d-]+) \| .*\(([\w-]+\.md)\) \|$", re.MULTILINE),
    )
    listed = {
        name: date for date, name in row.findall((folder / "README.md").read_text(encoding="utf-8"))
    }
    dated = {}
    for page in folder.glob("*.md"):
        if page.name != "README.md":
            date = re.match(
                r"# .*\n\n\*Decided (\d{4}-\d\d-\d\d)\.\*\n", page.read_text(encoding="utf-8")
            )
            dated[page.name] = date[1] if date else "no date"
    assert listed == dated


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[a page](nowhere.md)", True),
        ("[a title](cli.md#nowhere)", True),
        ('<img src="https://elsewhere.example/a.png">', True),
        ("plain", False),
    ],
)
def test_the_site_is_not_built_over_a_broken_link_or_with_anything_from_elsewhere(
    text: str, wrong: bool, tmp_path: Path
) -> None:
    """A site of two of our pages, by our own configuration and hooks."""
    from mkdocs.commands.build import build as build_site
    from mkdocs.config import load_config
    from mkdocs.exceptions import MkDocsException

    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "costs.md").write_text(f"# Page\n\n{text}\n")
    (tmp_path / "docs" / "cli.md").write_text("# Page\n")
    folders = {"docs_dir": str(tmp_path / "docs"), "site_dir": str(tmp_path / "site")}
    config = load_config(
        str(ROOT / "mkdocs.yml"),
        strict=True,
        nav=[{"One": "costs.md"}, {"Two": "cli.md"}],
        **folders,
    )
    config.hooks["mkdocs_hooks.py"].PAGES.clear()
    if wrong:
        with pytest.raises(MkDocsException):
            build_site(config)
    else:
        build_site(config)


# Types a word, as a reader does, and waits for what is found: addresses without their marks.
_SEARCH = """new Promise((found) => {
  const field = document.querySelector(".md-search__input");
  const list = document.querySelector(".md-search-result__list");
  new MutationObserver(() => {
    const links = [...list.querySelectorAll(".md-search-result__item a")];
    if (links.length) found([...new Set(links.map((link) => link.href.split(/[?#]/)[0]))]);
  }).observe(list, { childList: true });
  field.focus();
  field.value = "zebra";
  field.dispatchEvent(new Event("keyup", { bubbles: true }));
})"""


@pytest.mark.needs("chromium")
def test_the_search_works_in_a_page_that_is_opened_from_the_disk(tmp_path: Path) -> None:
    from mkdocs.commands.build import build as build_site
    from mkdocs.config import load_config

    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "costs.md").write_text("# Costs\n\nsnapshots in flight\n")
    (tmp_path / "docs" / "cli.md").write_text("# Commands\n\nwhat a zebra costs\n")
    shutil.copy(ROOT / "docs" / "worker-from-disk.js", tmp_path / "docs")
    config = load_config(
        str(ROOT / "mkdocs.yml"),
        nav=[{"One": "costs.md"}, {"Two": "cli.md"}],
        docs_dir=str(tmp_path / "docs"),
        site_dir=str(tmp_path / "site"),
    )
    config.hooks["mkdocs_hooks.py"].PAGES.clear()
    build_site(config)
    with chromium() as browser:
        tab = browser.open(address(tmp_path / "site" / "costs.html"))
        found = tab.run(_SEARCH)
    assert found == [(tmp_path / "site" / "cli.html").as_uri()]
