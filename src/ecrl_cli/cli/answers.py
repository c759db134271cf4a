"""What `ecrl verify` says about one of the things that it was asked about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class VerifyOutput:
    """Text for people, a document for programs, an exit code."""

    text: str
    document: dict[str, Any]
    exit_code: int
