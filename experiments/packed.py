"""Runs as one compressed file, by which anybody can judge them: `mkdir DIR && tar xf records.tar.xz
-C DIR && ecrl verify DIR`.

Left out are locks, what was composed (it names folders of the machine that trained, and no verdict
reads it), and the verdicts: whoever unpacks judges.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

LEFT_OUT = frozenset({".lock", ".hydra", "verdict.json", "report"})


def pack(folders: list[Path], target: Path) -> None:
    """The runs in `folders` into `target`, each folder's own name left away; the same runs give the
    same bytes.
    """
    with tarfile.open(target, "w:xz", preset=9) as archive:
        for folder in folders:
            for path in sorted(folder.rglob("*")):
                inside = path.relative_to(folder)
                if not LEFT_OUT & set(inside.parts) and not (
                    len(inside.parts) == 1 and path.is_file()
                ):
                    archive.add(path, inside.as_posix(), recursive=False, filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
