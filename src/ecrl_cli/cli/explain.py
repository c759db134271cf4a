"""`ecrl --explain E-config`: the page of an error, from `explained.md` beside this file (docs:
Errors).
"""

from __future__ import annotations

from pathlib import Path

from ecrl_cli.config.registry import did_you_mean
from ecrl_cli.errors import ConfigError, shown

PAGE = Path(__file__).with_name("explained.md")


def sections() -> dict[str, str]:
    """The text on each error by its code, `E-config` and so on, its heading included."""
    parts = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    return {
        code.strip(): f"{part.strip()}\n"
        for part in parts
        for code in part.partition("\n")[0].split(",")
    }


def explain(code: str) -> str:
    """The section of `code`, with or without its `E-`. ConfigError for an unknown one."""
    known = sections()
    named = code if code.startswith("E-") else f"E-{code}"
    if named not in known:
        raise ConfigError(
            "--explain",
            f"no error has the code {shown(code)}",
            did_you_mean(named, known) or f"codes: {', '.join(known)}",
        )
    return known[named]
