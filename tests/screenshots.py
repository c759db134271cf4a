"""Draws the pictures of report pages that the documents show: `python -m tests.screenshots NAME
FOLDER...` writes docs/NAME.png.

The page is that of `ecrl report FOLDER...`, opened in Chromium; what is kept is its beginning.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

from ecrl_cli.linux.prerequisites import lacking
from ecrl_cli.report.build import report
from tests.e2e.chromium import CHROMIUM, address, chromium

DOCS = Path(__file__).parents[1] / "docs"
WIDTH, HEIGHT = 1100, 1500
COLOURS = 64  # of the palette; a page has fewer, and the edges of its letters look the same


def draw(page: Path, height: int = HEIGHT) -> bytes:
    """The first `height` pixels of `page`, WIDTH pixels wide, in light colours, as PNG."""
    with chromium() as browser:
        tab = browser.open(address(page), WIDTH, height, media={"prefers-color-scheme": "light"})
        tab.await_two_frames()
        picture = Image.open(io.BytesIO(tab.picture())).convert("RGB")
    small = io.BytesIO()
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name")
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--height", type=int, default=HEIGHT, help="pixels")
    options = parser.parse_args()
    if CHROMIUM is None:
        sys.exit(f"screenshots: {lacking('chromium')}")
    with tempfile.TemporaryDirectory() as scratch:
        (DOCS / f"{options.name}.png").write_bytes(
            draw(report(options.folders, Path(scratch) / "report").page, options.height)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
