"""Any back end, with a sign of life around each call: who watches can then tell a slow disk from a writer that stands still."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from ecrl_cli.storage.fs import Fs


class _Beating:
    def __init__(self, fs: Fs, beat: Callable[[], None]) -> None:
        self._fs, self._beat = fs, beat

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._fs, name)

        def beats(*given: Any, **named: Any) -> Any:
            self._beat()
            result = call(*given, **named)
            self._beat()
            return result

        return beats


def beating(fs: Fs, beat: Callable[[], None]) -> Fs:
    """`fs`, calling `beat` before and after each of its calls: a piece written, a file synced."""
    return cast(Fs, _Beating(fs, beat))
