"""A drawn figure as bytes; nothing here imports what draws."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Picture:
    """A drawn figure: its file name, its title, and its contents by format."""

    name: str
    title: str
    svg: str  # empty if not shown in the page as SVG
    png: bytes
    pdf: bytes


def picture_files(pictures: Iterable[Picture]) -> dict[str, bytes]:
    """The files of the pictures by their path in the report's folder."""
    return {
        f"figures/{picture.name}.{kind}": data
        for picture in pictures
        for kind, data in (("png", picture.png), ("pdf", picture.pdf))
    }
