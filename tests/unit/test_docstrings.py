"""Docstrings say what something is, in plain English: a noun, or what is done."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
# Half a sentence: "That of the running span." is "Category of the current span."
_HALF = re.compile(r'^ *r?"""((?:What|As|Of|Those|That|Who)\b.*)', re.MULTILINE)


@pytest.mark.parametrize(
    ("docstring", "half"),
    [
        ('"""That of the running span."""', True),
        ('    """As `verify`, hashing no byte twice.', True),
        ('    """Category of the current span."""', False),
        ('    """Whatever it is."""', False),
        ('text = """What stands in a file."""', False),
    ],
)
def test_half_a_sentence_is_seen(docstring: str, half: bool) -> None:
    assert bool(_HALF.findall(f"def a():\n{docstring}\n")) == half


def test_no_docstring_opens_with_half_a_sentence() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)}: {text[:60]}"
        for path in sorted(SOURCE.rglob("*.py"))
        for text in _HALF.findall(path.read_text(encoding="utf-8"))
    ]
    assert not wrong, "\n".join(wrong)
