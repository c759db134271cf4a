"""Locates the configuration files: beside the package in a wheel, at the top of the repository in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_CANDIDATES = (_PACKAGE / "conf", _PACKAGE.parents[1] / "conf")


def conf_dir() -> Path:
    """The folder that holds train.yaml, absolute."""
    return next((path for path in _CANDIDATES if (path / "train.yaml").is_file()), _CANDIDATES[0])


def groups(folders: list[Path]) -> dict[str, list[str]]:
    """Each configuration group of `folders` with its options, sorted."""
    found: dict[str, set[str]] = {}
    for folder in folders:
        for group in (path for path in folder.iterdir() if path.is_dir()):
            found.setdefault(group.name, set()).update(file.stem for file in group.glob("*.y*ml"))
    return {name: sorted(options) for name, options in sorted(found.items()) if options}


def summary(folder: Path, group: str, option: str) -> str:
    """The first sentence of the leading comment of an option's file; empty where there is none."""
    try:
        first = (folder / group / f"{option}.yaml").read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return ""
    return first.removeprefix("#").strip().partition(". ")[0].rstrip(".") if first.startswith("#") else ""
