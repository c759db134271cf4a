"""The syntax of a failure: WHAT@STEP[.MOMENT][/SHARE][:WHO][*SECONDS][%POINT], one entry of
`failure.entries`.

`kill@40:1`, `kill@40.backward/0.25:1`, `kill@40:0+2`, `kill@40:all`, `kill@40:node`,
`writer@20%after_rename`, `slow_rank@30:1*0.05`, `kill@40.load:0` (in the first attempt that begins
once step 40 has been seen), `kill@3.5s:1` (after 3.5 s of supervised time).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise

from ecrl_cli.config.failure_kinds import BUILTIN
from ecrl_cli.config.registry import Registry, did_you_mean
from ecrl_cli.errors import ConfigError, shown

KEY = "failure.entries"
FORM = "WHAT@STEP[.MOMENT][/SHARE][:WHO][*SECONDS][%POINT]"
# by name, the class of a kind (failures/fault_kind.py)
FAILURES = Registry("failure", "ecrl.failures", BUILTIN)

# When a failure can happen: after a step and inside it; while its state is captured or saved; while
# an attempt starts; between two attempts (rest); at a wall time.
IN_STEP = ("boundary", "forward", "backward", "optimizer")
IN_SAVE = ("capture", "save")
STARTING = ("start", "rendezvous", "load")
MOMENTS = (*IN_STEP, *IN_SAVE, *STARTING, "rest", "wall")

_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?"
_ENTRY = re.compile(
    rf"(?P<what>[a-z_]+)@(?:(?P<after>{_NUMBER})s|(?P<step>[0-9]{{1,18}}))"
    rf"(?:\.(?P<moment>[a-z]+))?(?:/(?P<share>{_NUMBER}))?(?::(?P<who>[a-z]+|[0-9]{{1,6}}(?:\+[0-9]{{1,6}})*))?"
    rf"(?:\*(?P<seconds>{_NUMBER}))?(?:%(?P<point>[a-z_]+(?::[a-z0-9_.]+)?))?\Z"
)


@dataclass(frozen=True)
class Entry:
    """One failure as typed. What is empty or None is the kind's default. `who`: ranks in order, or
    `all`, or `node`.

    `after_s`: seconds of supervised time, for moment wall; `step` is then 0.
    """

    what: str
    step: int = 0
    moment: str = ""
    share: float | None = None
    who: tuple[int, ...] | str = ()
    seconds: float | None = None
    point: str = ""
    after_s: float | None = None

    def __str__(self) -> str:
        when = (
            f"{self.after_s!r}s"
            if self.after_s is not None
            else f"{self.step}{f'.{self.moment}' if self.moment else ''}"
        )
        share = "" if self.share is None else f"/{self.share!r}"
        who = self.who if isinstance(self.who, str) else "+".join(map(str, self.who))
        seconds = "" if self.seconds is None else f"*{self.seconds!r}"
        ranks = f":{who}" if who else ""
        point = f"%{self.point}" if self.point else ""
        return f"{self.what}@{when}{share}{ranks}{seconds}{point}"


def parse(text: str) -> Entry:
    """Parses one entry. ConfigError, quoting `text`, if it is invalid."""
    found = _ENTRY.match(text)
    if found is None:
        raise refused(
            text,
            f"is no failure: expected {FORM}",
            "for example kill@40:1 or kill@40.backward/0.25:0",
        )
    after, moment = found["after"], found["moment"] or ""
    what = found["what"]
    if what not in BUILTIN and what not in (known := FAILURES.names()):
        raise refused(
            text,
            f"unknown failure {what!r}",
            f"{did_you_mean(what, known)} known: {', '.join(known)}".strip(),
        )
    if moment and moment not in MOMENTS:
        raise refused(text, f"unknown moment {moment!r}", f"known: {', '.join(MOMENTS)}")
    if moment and (moment == "wall") != (after is not None):
        raise refused(
            text,
            "a wall time has no step and no other moment",
            "write seconds with an s: kill@3.5s:1",
        )
    share, seconds = (
        None if found[name] is None else float(found[name]) for name in ("share", "seconds")
    )
    if share is not None and share > 1:
        raise refused(text, f"a share must be in 0 .. 1, got {found['share']}")
    if not all(math.isfinite(float(found[name] or 0)) for name in ("after", "seconds")):
        raise refused(text, "seconds must be a finite number")
    return Entry(
        what=what,
        step=int(found["step"] or 0),
        moment="wall" if after is not None else moment,
        share=share,
        who=_victims(text, found["who"] or ""),
        seconds=seconds,
        point=found["point"] or "",
        after_s=None if after is None else float(after),
    )


def refused(text: str, fact: str, remedy: str = "") -> ConfigError:
    return ConfigError(KEY, f"{shown(text)}: {fact}", remedy)


def _victims(text: str, who: str) -> tuple[int, ...] | str:
    if not who or who in ("all", "node"):
        return who or ()
    if who.isalpha():
        raise refused(text, f"unknown victim {who!r}", "name ranks (1 or 0+2), all, or node")
    ranks = tuple(int(rank) for rank in who.split("+"))
    if any(after <= before for before, after in pairwise(ranks)):
        raise refused(
            text,
            f"ranks must be strictly increasing, got {who}",
            f"write {'+'.join(map(str, sorted(set(ranks))))}",
        )
    return ranks
