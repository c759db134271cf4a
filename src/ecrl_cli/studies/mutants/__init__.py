"""Bugs planted by the studies. `override` marks what each does otherwise: mypy refuses it where the product has no such method any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import override as override
else:

    def override(method):
        return method
