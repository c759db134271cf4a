"""The page of an audit in a browser: wide and narrow, with nothing cut off and no script."""

from __future__ import annotations

from pathlib import Path

import pytest

from ecrl_cli.audit.audit import judge_folder, write_result
from tests.e2e.chromium import CHROMIUM, address, chromium
from tests.unit.audit_recordings import change, healthy

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium"
)


def test_an_audits_page_fits_a_wide_and_a_narrow_screen(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "audit")
    change(
        folder,
        2,
        lambda line: (
            line | {"losses": [9.0]} if line["type"] == "step" and line["step"] > 1 else line
        ),
    )
    change(
        folder,
        0,
        lambda line: (
            line | {"path": "<img src=x onerror=document.title=1>"}
            if line["type"] == "save"
            else line
        ),
    )
    write_result(folder, judge_folder(folder, None, "auto"), {})
    with chromium() as browser:
        colours = set()
        for width, scheme in ((1440, "light"), (390, "light"), (1440, "dark"), (390, "dark")):
            tab = browser.open(
                address(folder / "report" / "index.html", ""),
                width,
                media={"prefers-color-scheme": scheme},
            )
            colours.add((scheme, tab.run("getComputedStyle(document.body).backgroundColor")))
            assert tab.run("document.documentElement.scrollWidth") <= width
            assert tab.run("document.querySelector('h1').textContent") == "audit: invalid"
            assert (
                tab.run(
                    "document.querySelector('.scroll svg .different').getBoundingClientRect().width"
                )
                > 20
            )
            status = (
                "document.querySelector('td.broken').getBoundingClientRect().height /"
                " parseFloat(getComputedStyle(document.body).lineHeight)"
            )
            assert tab.run(f"{status} > 0 && document.querySelector('td.broken').scrollWidth < 400")
            assert (
                tab.run("document.querySelectorAll('svg .death').length") == 2
                and tab.run("document.images.length") == 0
            )
        assert colours == {("light", "rgb(255, 255, 255)"), ("dark", "rgb(25, 25, 24)")}
