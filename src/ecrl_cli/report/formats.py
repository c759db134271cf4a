"""Formats numbers for readers, as plain text; the page replaces hyphens before digits by minus
signs.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from ecrl_cli import errors
from ecrl_cli.config.schema import ScaleConfig

NONE = "-"


def duration(seconds: float | None) -> str:
    """`seconds` with a suitable unit, about three digits."""
    if seconds is None:
        return NONE
    size = abs(seconds)
    if size < 5e-7:
        return "0 s"
    if size < 9.995e-4:  # what rounds to a thousand gets the next unit
        return f"{seconds * 1e6:.0f} us"
    if size < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if size < 120:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(size), 60)
    sign = "-" if seconds < 0 else ""
    return (
        f"{sign}{minutes} min {rest:02d} s"
        if minutes < 120
        else f"{sign}{minutes // 60} h {minutes % 60:02d} min"
    )


def change(ratio: float | None) -> str:
    """A relative difference as a signed percentage."""
    return NONE if ratio is None else f"{ratio * 100:+.1f}%"


def distance(low: float, high: float) -> str:
    """A range of relative differences in words: `3.1% below`, `2.0% to 4.5% above`; signed where it
    crosses zero.
    """
    if low < 0 < high:
        return f"{change(low)} to {change(high)} against"
    near, far = sorted((share(abs(low)), share(abs(high))), key=lambda text: float(text[:-1]))
    return (
        f"{near if near == far else f'{near} to {far}'}"
        f" {'below' if high <= 0 and low < 0 else 'above'}"
    )


def identical(low: float, high: float) -> bool:
    """Whether an interval has no width: everything that it is of was the same, to rounding. It then
    says nothing of what another run would do.
    """
    return abs(high - low) <= 1e-12 * max(abs(low), abs(high), 1e-300)


def magnitude(value: float | None) -> str:
    """A distance; only an exact zero is shown as 0."""
    return NONE if value is None else "0" if value == 0 else f"{value:.3g}"


def date(seconds: float | None, form: str = "%Y-%m-%d %H:%M") -> str:
    """A wall time as a date in UTC; empty if it is none."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime(form) if seconds is not None else ""
    except (ValueError, OverflowError, OSError):  # a time that a record claims may be anything
        return ""


def share(part: float | None) -> str:
    """A fraction as a percentage without sign."""
    return NONE if part is None else f"{part * 100:.1f}%"


def proportion(part: float | None) -> str:
    """A counted proportion: only an exact 0 or 1 is shown as 0% or 100%."""
    if part is None:
        return NONE
    percent = part * 100
    if percent in (0, 100):
        return f"{percent:.0f}%"
    if 0 < percent < 0.005 or 99.995 <= percent < 100:
        return "<0.01%" if percent < 50 else ">99.99%"
    return f"{percent:.2f}%" if percent < 1 or percent > 99 else f"{percent:.1f}%"


def number(value: float | None) -> str:
    """Any other number: integers in full, the rest with four digits."""
    if value is None:
        return NONE
    return count(value) if float(value).is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def rate(value: float | None) -> str:
    """Steps per second."""
    return NONE if value is None else f"{value:#.4g}".rstrip(".")


def count(value: float | None) -> str:
    """A count, or a mean of counts."""
    return (
        NONE if value is None else f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"
    )


def size(value: float | None) -> str:
    """Bytes in decimal units."""
    if value is None:
        return NONE
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def at_scale(scale: str, form: str = ", scale {}") -> str:
    """The scale of runs in words, to follow others; empty for the default, at which nothing was
    made smaller, and without runs.
    """
    return "" if scale in (ScaleConfig.name, listed([])) else form.format(scale)


def in_brackets(scale: str) -> str:
    return at_scale(scale, " (scale {})")


def plural(number: int, one: str, many: str = "") -> str:
    """`1 run`, `2,000 runs`."""
    return f"{number:,} {errors.plural(number, one, many).partition(' ')[2]}"


_NUMBERS = (
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)


def spelled(number: int) -> str:
    """A count in words up to twelve."""
    return _NUMBERS[number] if 0 <= number < len(_NUMBERS) else f"{number:,}"


def listed(words: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return (
        words[0]
        if len(words) == 1
        else f"{', '.join(words[:-1])} and {words[-1]}"
        if words
        else "none"
    )


def minus(text: str) -> str:
    """`text` with true minus signs in front of its numbers; names such as r18-2 keep their
    hyphens.
    """
    return re.sub(r"(?<![\w.\])-])-(?=\d)", "\N{MINUS SIGN}", text)


def printable(text: object) -> str:
    """`text` with control characters replaced, which tables and XML cannot hold."""
    given = str(text)
    return (
        given
        if given.isprintable()
        else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in given)
    )


def short(text: str, limit: int = 150) -> str:
    """`text` cut to `limit` characters."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


# Characters that a browser, pager or editor interprets instead of showing: control characters,
# bidirectional marks, lone surrogates.
_OBEYED = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)


def harmless(text: str) -> str:
    """Replaces such characters in a whole document: a last safeguard after the escaping of each
    value.
    """
    return _OBEYED.sub("\N{REPLACEMENT CHARACTER}", text)


def by_value(seed: str) -> tuple[int, str]:
    """The key that sorts seeds, which are text, as numbers."""
    return len(seed), seed
