"""A line that is decoded in one go is decoded as by `decode`: none is taken that this refuses, and
no other value is read from it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecrl_cli.config.codec import decode
from ecrl_cli.records.events import (
    Attempt,
    CheckpointLine,
    DiskLine,
    RankLine,
    Span,
    SupervisorRecord,
)
from ecrl_cli.records.journal import line_decoder, line_of
from ecrl_cli.records.safe_read import parsed

LINES = (
    RankLine(
        7,
        0,
        6,
        1,
        2,
        "ab" * 32,
        128,
        0.5,
        0,
        0.01,
        1000.25,
        1.7e9,
        "cd" * 32,
        None,
        {"parameters": "ef" * 32},
        0.1,
        None,
        3,
    ),
    RankLine(7, 0, 6, 1, 2, "ab" * 32, 128, (0.5, 1e-300), 0, 0.01, 1000.25, 1.7e9),
    CheckpointLine(
        "committed",
        20,
        0,
        1.0,
        2.0,
        stall_parts={"write": 0.1},
        bytes=10**12,
        path="step_00000020",
        reason='Überlauf \\ "x" \u2028',
    ),
    Span("compute", 1.0, 2.5, 0, 3),
    DiskLine(1.0, 2.0, 1, 2, 3, 4, 5),
)
ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        -0.0,
        0.5,
        2**16,
        2**16 + 1,
        10**8,
        10**8 + 1,
        10**17,
        10**18,
        2**63 - 1,
        2**63,
        -(2**63),
        10**30,
        1e300,
        -1e300,
    ),
    *(
        float("nan"),
        float("inf"),
        "",
        "1",
        "a\x00b",
        "\ud800",
        "\x7f",
        [],
        [1],
        [0.5, 1],
        [None],
        ["a"],
        [2**64],
        {},
        {"a": 1},
        {"a": 2**64},
    ),
    *({"a": "b"}, {"a": None}, {"": 0.5}, {"a": {"b": 1}}),
)
RAW = (
    b"",
    b" ",
    b"null",
    b"[]",
    b"{}",
    b"1e999",
    b"01",
    b"1.",
    b"NaN",
    b"-Infinity",
    b'"\\ud800"',
    b'"\xff"',
    b"\xef\xbb\xbf",
    b"{",
    b"}",
    b",",
    b'"a":1',
    b"\x00",
)


def slow(kind: type[Any], line: bytes) -> Any:
    """What `decode` makes of it; None if it refuses it."""
    try:
        return decode(kind, parsed(line))
    except (ValueError, TypeError, KeyError):
        return None


def compare(kind: type[Any], line: bytes) -> None:
    quick = line_decoder(kind)(line)
    if quick is not None:
        expected = slow(kind, line)
        # repr: an int is no float, and -0.0 is not 0.0
        assert type(quick) is kind and repr(quick) == repr(expected)


@pytest.mark.parametrize("event", LINES, ids=lambda event: type(event).__name__)
def test_what_is_written_is_read_at_once(event: Any) -> None:
    found = line_decoder(type(event))(line_of(event))
    assert found == event and repr(found) == repr(event) and hash(str(found)) == hash(str(event))
    with pytest.raises(AttributeError):
        found.attempt = 1  # frozen, as any other


@pytest.mark.parametrize("event", LINES, ids=lambda event: type(event).__name__)
def test_every_odd_value_in_every_field_is_read_alike(event: Any) -> None:
    whole = json.loads(line_of(event))
    for name in whole:
        compare(
            type(event),
            json.dumps({key: value for key, value in whole.items() if key != name}).encode(),
        )
        for odd in ODD:
            compare(type(event), json.dumps(whole | {name: odd}).encode())
            compare(type(event), json.dumps(whole | {name + "s": odd}).encode())
        for raw in RAW:
            compare(
                type(event), json.dumps(whole | {name: "PLACE"}).encode().replace(b'"PLACE"', raw)
            )


@given(st.sampled_from(LINES), st.data())
def test_a_line_with_other_bytes_is_read_alike(event: Any, data: st.DataObject) -> None:
    line = bytearray(line_of(event))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(line) - 1))
        line[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.binary(max_size=2) | st.sampled_from(RAW)
        )
    compare(type(event), bytes(line))


def test_a_kind_with_other_kinds_within_is_left_to_the_strict_way() -> None:
    """Unknown keys within would not be noticed."""
    whole = SupervisorRecord(1, "run", 8, "running", 0, (Attempt(0, 2),), ())
    assert (
        line_decoder(SupervisorRecord)(line_of(whole)) is None
        and slow(SupervisorRecord, line_of(whole)) == whole
    )
