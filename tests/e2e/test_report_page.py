"""The page in a real browser: it loads without a complaint, its figures have a size, its script works, it fits a phone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from ecrl_cli.config.studies import Corruption
from ecrl_cli.config.study import StudyConfig
from ecrl_cli.report.build import report
from tests.unit.report_runs import arms, make_sweep
from tests.unit.test_report_studies import findings, make_study

CHROMIUM = shutil.which("chromium")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--enable-logging=stderr", "--virtual-time-budget=4000"),
)
PROBE = """
<script>
addEventListener("load", () => {
  const box = (e) => e.getBoundingClientRect();
  const first = document.querySelector("details.run");
  const at = first ? 2 : 1;
  const table = document.querySelector("table.sortable");
  table.tHead.rows[0].cells[at].querySelector("button").click();
  const column = [...table.tBodies[0].rows].map((row) => Number(row.cells[at].dataset.value));
  if (first) location.hash = first.id;
  setTimeout(() => {
    const found = {
      figures: [...document.querySelectorAll("figure svg[role=img], svg.timeline")].map((e) => [box(e).width, box(e).height]),
      plots: document.querySelectorAll("figure").length,
      sorted: column,
      opened: first?.open ?? null,
      folded: document.querySelectorAll("details.more:not([open]) table").length,
      overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
      background: getComputedStyle(document.body).backgroundColor,
    };
    const note = document.createElement("pre");
    note.id = "probe";
    note.textContent = JSON.stringify(found);
    document.body.append(note);
  }, 100);
});
</script>
"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on 24 runs."""
    plans = [plan for suite in ("cifar10-r18-base", "cifar100-r50-late") for seed in (1337, 2027, 4242) for plan in arms(suite, seed)]
    return report([make_sweep(tmp_path_factory.mktemp("report") / "sweep", plans)]).page


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on two studies: a figure of each kind, a table that folds, a failed gate, a skipped arm."""
    folder = tmp_path_factory.mktemp("report") / "studies"
    make_study(folder / "crash-points", findings(rows=70), gates=[{"name": "never wrong", "passed": False, "message": "2 of 400"}])
    make_study(folder / "corruption", of=StudyConfig(Corruption()), skips=[{"arm": "loop", "reason": "no loop devices"}])
    return report([folder]).page


def browse(page: Path, *more: str) -> tuple[str, list[str]]:
    """The DOM after loading, and what the console said."""
    with tempfile.TemporaryDirectory() as profile:
        command = [str(CHROMIUM), *FLAGS, *more, f"--user-data-dir={profile}", "--dump-dom", page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env={**os.environ, "HOME": profile})
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def probed(page: Path, folder: Path, *more: str) -> dict[str, object]:
    """What the page measures of itself, with its security policy lifted for the probe alone."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    copy = folder / "probed.html"
    copy.write_text(text.replace("</body>", PROBE + "</body>"))
    dom, console = browse(copy, *more)
    assert not console
    found = re.search(r'<pre id="probe">(.*?)</pre>', dom, re.DOTALL)
    assert found, "the probe did not run"
    measured: dict[str, object] = json.loads(found[1])
    return measured


@pytest.mark.parametrize("kind", ["page", "studies"])
def test_the_page_loads_without_a_complaint(request: pytest.FixtureRequest, kind: str) -> None:
    dom, console = browse(request.getfixturevalue(kind))
    assert not console, "\n".join(console)
    assert "<button" in dom, "the script was not allowed to run"


def test_its_figures_are_drawn_and_its_script_works(page: Path, tmp_path: Path) -> None:
    found = probed(page, tmp_path, "--window-size=1200,1600")
    sizes = found["figures"]
    assert isinstance(sizes, list) and found["plots"] == 3
    assert sum(width > 300 and height > 80 for width, height in sizes) >= 3 + 4
    column = found["sorted"]
    assert isinstance(column, list) and column == sorted(column) and len(column) == 4
    assert found["opened"] is True


def test_the_figures_of_studies_are_drawn_and_their_tables_sort_and_fold(studies: Path, tmp_path: Path) -> None:
    found = probed(studies, tmp_path, "--window-size=1200,1600")
    sizes = found["figures"]
    assert isinstance(sizes, list) and len(sizes) == found["plots"] == 2 * 4
    assert all(width > 500 and height > 80 for width, height in sizes)
    assert found["sorted"] == [0, 1, 312] and found["folded"] == 1


@pytest.mark.parametrize("kind", ["page", "studies"])
def test_it_fits_a_phone(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> None:
    assert probed(request.getfixturevalue(kind), tmp_path, "--window-size=500,900")["overflow"] == 0


@pytest.mark.parametrize("kind", ["page", "studies"])
def test_it_follows_the_readers_theme(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> None:
    shown = request.getfixturevalue(kind)
    light = probed(shown, tmp_path, "--blink-settings=preferredColorScheme=1")["background"]
    dark = probed(shown, tmp_path, "--blink-settings=preferredColorScheme=0")["background"]
    assert (light, dark) == ("rgb(255, 255, 255)", "rgb(20, 23, 27)")
