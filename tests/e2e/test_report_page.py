"""The page in a real browser: no complaint, figures that say their values, a filter, keys, both
themes, a phone, paper.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ecrl_cli.config.studies import Corruption
from ecrl_cli.config.study import StudyConfig
from ecrl_cli.report.build import report
from ecrl_cli.report.history import history_report
from tests.e2e.chromium import Chromium, Tab, address, chromium
from tests.runs.builder import build_ref
from tests.runs.survived import LOSSY, Death, SurvivedBuilder, build_rollback, build_spared
from tests.unit.report_runs import Plan, arms, make_run, make_sweep
from tests.unit.test_report_history import at
from tests.unit.test_report_page import HOSTILE
from tests.unit.test_report_studies import findings, make_study

Show = Callable[..., Tab]
SHOWN_RUNS = (
    "[...document.querySelectorAll('details.run')].filter((run) => run.offsetParent).map((run) =>"
    " run.dataset.name)"
)
LISTED_RUNS = SHOWN_RUNS.replace(
    "run.offsetParent", "run.offsetParent && !run.parentElement.closest('details:not([open])')"
)
SHOWN_ROWS = (
    "[...document.querySelectorAll('#goodput tbody tr')].filter((row) => row.offsetParent).length"
)

pytestmark = pytest.mark.needs("chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with chromium() as started:
        yield started


@pytest.fixture
def show(browser: Chromium) -> Iterator[Show]:
    """Opens tabs, and closes them after the test; the console of each must have stayed empty."""
    tabs: list[Tab] = []

    def opened(page: Path, query: str = "", width: int = 1200, **media: str) -> Tab:
        tabs.append(
            browser.open(
                address(page, query),
                width,
                media={key.replace("_", "-"): value for key, value in media.items()},
            )
        )
        return tabs[-1]

    yield opened
    complaints = [line for tab in tabs for line in tab.complaints()]
    for tab in tabs:
        tab.close()
    assert not complaints, "\n".join(complaints)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on 24 runs, one of them judged invalid."""
    plans = [
        plan
        for suite in ("cifar10-r18-base", "cifar100-r50-late")
        for seed in (1337, 2027, 4242)
        for plan in arms(suite, seed)
    ]
    plans[-1].verdict = "invalid"
    return report([make_sweep(tmp_path_factory.mktemp("report") / "sweep", plans)]).page


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on two studies: a figure of each kind, a table that folds, a failed gate, a
    skipped arm.
    """
    folder = tmp_path_factory.mktemp("report") / "studies"
    make_study(
        folder / "crash-points",
        findings(rows=70),
        gates=[{"name": "never wrong", "passed": False, "message": "2 of 400"}],
    )
    make_study(
        folder / "corruption",
        of=StudyConfig(Corruption()),
        skips=[{"arm": "loop", "reason": "no loop devices"}],
    )
    return report([folder]).page


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The history of three builds; the last one broke a promise, and lacks an arm."""
    folder = tmp_path_factory.mktemp("report") / "builds"
    for number, name in enumerate(("first", "second", "third")):
        plans = [
            plan
            for seed in (1, 2)
            for plan in arms("digits-cnn", seed)
            if number < 2 or plan.variant != "clean"
        ]
        plans[-1].verdict = "invalid" if number == 2 else "valid"
        at(make_sweep(folder / name, plans), number, git_revision=f"{number}c0ffee" * 5)
    return history_report([folder]).page


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on 32 runs, one of them judged invalid: too many to list. Without figures, which
    take most of the time.
    """
    plans = [
        plan
        for suite in ("cifar10-r18-base", "cifar100-r50-late")
        for seed in (1, 2, 3, 4)
        for plan in arms(suite, seed)
    ]
    plans[-1].verdict = "invalid"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ecrl_cli.report.figures.runs.run_pictures", lambda *given: [])
        return report([make_sweep(tmp_path_factory.mktemp("report") / "sweep", plans)]).page


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on the live recoveries, against another build of them: with the tables that have
    the most columns.
    """
    root = tmp_path_factory.mktemp("report")
    for sweep in (root / "sweep", root / "other"):
        for build in (build_ref, build_rollback, build_spared):
            build(sweep)
        SurvivedBuilder(sweep / "lossy", LOSSY, (Death(9, first=(0,), spares=1),)).build()
    return report([root / "sweep"], None, root / "other").page


@pytest.mark.parametrize("kind", ["page", "studies"])
def test_it_loads_without_a_complaint_and_its_figures_are_there(
    request: pytest.FixtureRequest, show: Show, kind: str
) -> None:
    tab = show(request.getfixturevalue(kind))
    sizes = tab.run(
        "[...document.querySelectorAll('figure svg')].map((e) => [e.getBoundingClientRect().width,"
        " e.getBoundingClientRect().height])"
    )
    assert len(sizes) >= 4 and all(width > 500 and height > 80 for width, height in sizes)
    assert tab.run("document.querySelectorAll('th button').length") > 10, (
        "the script was not allowed to run"
    )


def test_what_a_script_may_not_do_is_seen_by_the_test(browser: Chromium, tmp_path: Path) -> None:
    """The console that every test here finds empty is not deaf."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        '<meta http-equiv=Content-Security-Policy content="script-src'
        " 'none'\"><script>alert(1)</script>"
    )
    tab = browser.open(address(bad))
    assert any("Content Security Policy" in line for line in tab.complaints())
    tab.close()


def test_hostile_names_stay_text_when_a_run_is_opened(show: Show, tmp_path: Path) -> None:
    tab = show(
        report(
            [
                make_sweep(
                    tmp_path / "sweep", [Plan("ref", HOSTILE, kills=()), Plan(HOSTILE, HOSTILE)]
                )
            ]
        ).page
    )
    tab.run("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    tab.await_two_frames()
    assert tab.run(
        "[document.scripts.length, document.images.length, document.querySelectorAll('details.run"
        " h4').length > 4]"
    ) == [1, 0, True]


def test_the_filter_narrows_every_table_and_the_runs_and_can_be_linked(
    show: Show, page: Path
) -> None:
    tab = show(page)
    assert len(tab.run(SHOWN_RUNS)) == 24
    everything = tab.run(SHOWN_ROWS)
    tab.press("/")
    assert tab.run("document.activeElement.name") == "q"
    tab.press(*"r18 ovl")
    assert {name[:20] for name in tab.run(SHOWN_RUNS)} == {"cifar10-r18-base-ovl"}
    assert tab.run("document.getElementById('found').value") == "3 of 24 runs"
    assert 0 < tab.run(SHOWN_ROWS) < everything
    assert (
        tab.run("document.querySelectorAll('#goodput .caption span')[0].textContent")
        == "3 of 24 rows"
    )
    assert (
        tab.run(
            "[...document.querySelectorAll('#clock details')].filter((one) =>"
            " one.offsetParent).length"
        )
        == 1
    )
    linked = tab.run("location.hash")
    again = show(page, linked[1:])
    assert (
        len(again.run(SHOWN_RUNS)) == 3
        and again.run("document.querySelector('[name=q]').value") == "r18 ovl"
    )
    tab.press("Escape")
    assert len(tab.run(SHOWN_RUNS)) == 24 and tab.run(SHOWN_ROWS) == everything


def test_the_choices_narrow_by_what_they_name(show: Show, page: Path) -> None:
    tab = show(page, "verdict=invalid")
    assert tab.run(SHOWN_RUNS) == ["cifar100-r50-late-ovl-s4242"]
    tab.run(
        "(() => { const s = document.querySelector('[name=verdict]'); s.value = '';"
        " s.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )
    tab.run(
        "(() => { const s = document.querySelector('[name=seed]'); s.value = '2027';"
        " s.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )
    assert len(tab.run(SHOWN_RUNS)) == 8 and tab.run("location.hash") == "#seed=2027"
    assert (
        show(page, "q=nowhere")
        .run("document.getElementById('found').value")
        .startswith("0 of 24 runs")
    )


def test_a_figure_says_its_values_under_the_pointer_and_to_the_keys(show: Show, page: Path) -> None:
    tab = show(page)
    said = "document.querySelector('#tip.shown')?.textContent ?? ''"
    x, y = tab.point("#figures figure .mark path")
    assert re.search(r"cifar10-r18-base clean: \d+\.\d+ steps/s, mean of 3 runs", tab.run(said))
    tab.press("Escape")
    assert tab.run(said) == ""
    tab.run("document.querySelector('#clock svg.timeline').focus()")
    seen = []
    for key in ("ArrowRight", "ArrowRight", "End"):
        tab.press(key)
        seen.append(tab.run(said))
    assert len(set(seen)) == 3 and seen[0].startswith("attempt 0: steps 1 to 60") and all(seen)
    tab.run(
        "document.body.dispatchEvent(new PointerEvent('pointerover', {bubbles: true, clientX:"
        f" {x}, clientY: {y}}}))"
    )
    assert tab.run(said) == seen[-1], "the page has moved under the pointer, which rests"
    assert tab.run("document.activeElement.getAttribute('aria-label')") == seen[-1]
    x, y = tab.point("#figures figure .mark path")
    tab.run("(document.querySelector('#figures').style.paddingTop = '400px', 0)")
    tab.await_two_frames()
    tab.move(x + 1, y)
    assert tab.run(said) == "", (
        "the mark has moved away from under the pointer, which has moved since"
    )


def test_a_run_opens_from_the_table_and_shows_its_evidence(show: Show, page: Path) -> None:
    tab = show(page, "verdict=invalid")
    assert tab.run("document.querySelectorAll('details.run h4').length") == 0, (
        "a closed run costs nothing"
    )
    tab.run(
        "[...document.querySelectorAll('#goodput tbody a')].find((a) => a.offsetParent &&"
        " a.textContent.includes('invalid')).focus()"
    )
    tab.press("Enter")
    tab.await_two_frames()
    opened = tab.run("document.querySelector('details.run[open]').innerText")
    assert "same-trajectory" in opened and "losses of 60 steps" in opened and "Attempts" in opened
    assert (
        tab.run(
            "document.querySelector('details.run[open] svg.timeline').getBoundingClientRect().width"
        )
        > 500
    )


def test_tables_sort_by_their_values(show: Show, page: Path) -> None:
    tab = show(page)
    column = (
        "[...document.querySelectorAll('#goodput table')[1].tBodies[0].rows].map((row) =>"
        " Number(row.cells[5].dataset.value))"
    )
    button = (
        "document.querySelectorAll('#goodput"
        " table')[1].tHead.rows[0].cells[5].querySelector('button')"
    )
    before = tab.run(column)
    tab.run(f"{button}.focus()")
    tab.press("Enter")
    assert tab.run(column) == sorted(before) != before
    tab.press("Enter")
    assert tab.run(column) == sorted(before, reverse=True)


def test_the_tables_of_studies_sort_and_fold(show: Show, studies: Path) -> None:
    tab = show(studies)
    tab.run(
        "document.querySelector('table.sortable').tHead.rows[0].cells[1].querySelector('button').click()"
    )
    assert tab.run(
        "[...document.querySelector('table.sortable').tBodies[0].rows].map((row) =>"
        " Number(row.cells[1].dataset.value))"
    ) == [0, 1, 312]
    assert tab.run("document.querySelectorAll('details.more:not([open]) table').length") == 1
    tab.point("figure .mark path")
    assert tab.run("document.querySelector('#tip.shown').textContent") == tab.run(
        "document.querySelector('figure .mark').getAttribute('aria-label')"
    )


@pytest.mark.parametrize("kind", ["page", "studies", "history", "many"])
def test_it_fits_a_phone(request: pytest.FixtureRequest, show: Show, kind: str) -> None:
    tab = show(request.getfixturevalue(kind), width=400)
    assert (
        tab.run("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    )


# Of every table's cells, what is inside is shown whole: no cell and no box around it cuts something
# off that cannot be scrolled to.
CUT = """(() => {
  for (const fold of document.querySelectorAll("details")) fold.open = true;
  const cut = [];
  for (const cell of document.querySelectorAll("th, td")) {
    if (!cell.offsetParent) continue;
    for (let box = cell; box && box !== document.body; box = box.parentElement) {
      const how = getComputedStyle(box).overflowX;
      const edge = box.getBoundingClientRect();
      const inside = cell.getBoundingClientRect();
      const beyond = box === cell
        ? box.scrollWidth > box.clientWidth + 1
        : inside.right > edge.right + 1;
      if (["hidden", "clip"].includes(how) && beyond) {
        cut.push(`${box.tagName}.${box.className}: ${cell.textContent.trim().slice(0, 40)}`);
      }
      if (["auto", "scroll"].includes(how)) break;
    }
  }
  return cut.slice(0, 5).join("; ");
})()"""


# Tables whose last columns are reached by scrolling sideways only, and by how many pixels.
ASIDE = """(() => [...document.querySelectorAll(".scroll")]
  .filter((box) => box.offsetParent && box.querySelector("table"))
  .filter((box) => box.scrollWidth > box.clientWidth + 1)
  .map((box) => `${box.getAttribute("aria-label")}: ${box.scrollWidth - box.clientWidth}`)
  .join("; "))()"""


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("kind", ["page", "studies", "history", "many", "wide"])
def test_no_column_is_cut_off(
    request: pytest.FixtureRequest, show: Show, kind: str, width: int
) -> None:
    tab = show(request.getfixturevalue(kind), width=width)
    assert tab.run("document.querySelectorAll('td').length") > 20
    assert tab.run(CUT) == ""
    assert tab.run(ASIDE) == ""
    tab.run(
        "(document.querySelector('td').style.cssText = 'display: block; overflow: hidden; width:"
        " 4px; white-space: nowrap', 0)"
    )
    assert tab.run(CUT) != "", "the test can see it"


def test_many_runs_are_a_picture_first_and_what_broke_is_listed(show: Show, many: Path) -> None:
    tab = show(many)
    assert tab.run(
        "[document.querySelectorAll('#goodput .matrix .cell').length,"
        " document.querySelectorAll('#goodput details[open]').length]"
    ) == [
        32,
        0,
    ]
    assert tab.run(LISTED_RUNS) == ["cifar100-r50-late-ovl-s4"]
    tab.run("document.querySelector('.cell.tone-good').click()")
    tab.await_two_frames()
    assert (
        tab.run("document.querySelector('details.run[open]').dataset.name")
        == "cifar10-r18-base-clean-s1"
    )
    filtered = show(many, "q=ovl")
    assert len(filtered.run(LISTED_RUNS)) == 8, "what is filtered is not hidden in a fold"


def test_the_statistics_of_a_sentence_are_folded(show: Show, many: Path) -> None:
    tab = show(many)
    assert "mean of ratios" not in tab.run("document.querySelector('.answer').innerText")
    tab.run("document.querySelector('.how summary').click()")
    assert "mean of ratios, 95%" in tab.run("document.querySelector('.answer').innerText")


def test_a_history_opens_on_what_fails(show: Show, history: Path) -> None:
    tab = show(history)
    assert tab.run("document.querySelector('h1').textContent") == "1 of 3 arms failing in third."
    assert tab.run("document.querySelectorAll('table.matrix td.state').length") == 12
    assert tab.run("document.querySelector('table.matrix tbody tr').innerText").split()[:3] == [
        "digits-cnn",
        "ovl",
        "✓",
    ]
    assert (
        len(
            tab.run(
                "[...document.querySelectorAll('figure svg')].map((e) =>"
                " e.getBoundingClientRect().height)"
            )
        )
        == 3
    )


@pytest.mark.parametrize("kind", ["page", "studies"])
def test_it_follows_the_readers_theme_and_can_be_told_otherwise(
    request: pytest.FixtureRequest, show: Show, kind: str
) -> None:
    shown = request.getfixturevalue(kind)
    colour = "getComputedStyle(document.body).backgroundColor"
    light, dark = (
        show(shown, prefers_color_scheme="light"),
        show(shown, prefers_color_scheme="dark"),
    )
    assert (light.run(colour), dark.run(colour)) == ("rgb(255, 255, 255)", "rgb(20, 23, 27)")
    assert light.picture() != dark.picture()
    dark.run("document.getElementById('theme').click()")
    assert dark.run(colour) == "rgb(255, 255, 255)" and "theme=light" in dark.run("location.hash")


def test_it_prints_in_light_with_what_is_folded(show: Show, page: Path) -> None:
    tab = show(page, "theme=dark")
    pdf = tab.printed()
    assert pdf.startswith(b"%PDF") and len(re.findall(rb"/Type\s*/Page\b", pdf)) > 3
    assert tab.run("document.querySelectorAll('#statistics details[open]').length") == 0, (
        "what was opened for paper is folded again"
    )
    tab.call("Emulation.setEmulatedMedia", media="print")
    assert tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.run("getComputedStyle(document.getElementById('filter')).display") == "none"
    tab.run("dispatchEvent(new Event('beforeprint'))")
    assert tab.run("document.querySelectorAll('#statistics details[open] table').length") >= 3
    assert tab.run(
        "[...document.querySelectorAll('details.run[open]')].map((run) => run.dataset.verdict)"
    ) == ["invalid"]


def test_a_single_run_is_a_page_too(show: Show, tmp_path: Path) -> None:
    tab = show(report([make_run(tmp_path / "run")]).page)
    assert tab.run(
        "[document.getElementById('filter') === null,"
        " document.querySelectorAll('details.run').length]"
    ) == [True, 1]
    assert "What it costs" in tab.run("document.getElementById('answer').innerText")


def test_it_reads_without_a_script(browser: Chromium, page: Path) -> None:
    """Everything is there: tables, every run unfolded by hand, no filter that does nothing."""
    tab = browser.open("about:blank")
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    tab.browser.events.clear()
    tab.call("Page.navigate", url=page.as_uri())
    tab.wait_for("Page.loadEventFired")
    shown = (
        "[document.querySelectorAll('details.run .inside h4').length > 48,"
        " document.getElementById('filter').offsetParent]"
    )
    assert tab.run(shown) == [True, None]
    tab.close()
