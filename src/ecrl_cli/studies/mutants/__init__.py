"""Bugs planted by the studies. `override` marks what each changes, so that mypy reports a method
that the product no longer has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import override as override
else:

    def override(method):
        return method
