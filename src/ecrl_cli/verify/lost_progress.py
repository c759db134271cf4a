"""Checks what the supervisor recorded of ranks that stood still or were slow, against the configuration and the ranks' lines."""

from __future__ import annotations

import re
from itertools import pairwise

from ecrl_cli.failures.registry import recorded_kind
from ecrl_cli.records.events import Attempt, Hang, Straggler
from ecrl_cli.supervision.watch.hang_detector import FACTOR, FLOOR_S, HangTimeouts, named_ranks, place_of
from ecrl_cli.verify.clocks import local_ranks
from ecrl_cli.verify.rank_spans import ROUNDING_S
from ecrl_cli.verify.verification_input import Case

_TEXT_S = 0.051  # the text rounds to a tenth of a second


def hang_contradictions(case: Case, a: Attempt, hang: Hang) -> list[str]:
    """What is wrong with the ranks to blame, the limit and the text."""
    found, ranks = [], list(hang.ranks)
    if ranks != sorted(set(ranks)):
        found.append(f"names {ranks} as the ranks to blame")
    if text := _wrong_limit(case, a, hang):
        found.append(text)
    end = re.search(r"; nothing moved for ([0-9]+\.[0-9]) s \(limit ([0-9]+\.[0-9]) s\)\Z", hang.text)
    if end is None or abs(float(end[1]) - hang.waited_s) > _TEXT_S or abs(float(end[2]) - hang.limit_s) > _TEXT_S:
        found.append("says in words for how long nothing moved, which are not its numbers")
    if ranks and not hang.text.startswith(f"{named_ranks(hang.ranks)} "):
        found.append(f"does not say in words that {named_ranks(hang.ranks)} to blame")
    elif not ranks and re.match(r"ranks? [0-9]", hang.text):
        found.append("blames ranks in words, and names none")
    if f" {place_of(hang.phase, hang.global_step)}" not in hang.text and "launcher" not in hang.text:
        found.append(f"does not say in words that it was in {place_of(hang.phase, hang.global_step)}")
    lines = [case.run.logs(a.attempt).ranks.get(rank) for rank in ranks if rank < a.world_size]
    last = [each.events[-1].global_step if each and each.events else a.resumed_from_step for each in lines]
    if last and not min(last) <= hang.global_step <= max(last) + 1 and hang.global_step:
        found.append(f"says that ranks {ranks} stood still in step {hang.global_step}, their logs end at step {max(last)}")
    return found


def _wrong_limit(case: Case, a: Attempt, hang: Hang) -> str:
    """The limit is the start's, the configured one, or so many times a step: no longer than the longest that the lines have room for."""
    limits, gaps = HangTimeouts.of(case.run.stored.config.supervision), [0.0]
    for rank, lines in case.run.logs(a.attempt).ranks.items():
        if rank < local_ranks(case, a.attempt):
            gaps += [after.at - before.at for before, after in pairwise(lines.events)]
    longest = limits.factor * (max(gaps) + 2 * limits.check_every_s)  # steps are timed from check to check
    known = (limits.timeout_s, max(limits.start_s, limits.timeout_s))
    if any(abs(hang.limit_s - each) <= ROUNDING_S for each in known) or limits.timeout_s < hang.limit_s <= longest:
        return ""
    return f"was allowed {hang.limit_s:.3f} s of silence, the configuration says {limits.timeout_s:g} s, for a start or a save {limits.start_s:g} s"


def straggler_contradictions(case: Case, a: Attempt, each: Straggler) -> list[str]:
    """What is wrong with the seconds, by the lines of the step before and of the ranks that a fault held up in it."""
    found, before = [], each.global_step - 1
    took = {
        rank: line.seconds
        for rank, lines in case.run.logs(a.attempt).ranks.items()
        for line in lines.events
        if line.global_step == before and rank < a.world_size
    }
    if each.rank in took and each.own_s > took[each.rank] + ROUNDING_S:
        found.append(f"in which it had worked for {each.own_s:.6f} s, step {before} took it {took[each.rank]:.6f} s")
    others = [seconds for rank, seconds in took.items() if rank != each.rank]
    if others and each.others_s > max(others) + ROUNDING_S:
        found.append(f"to {each.others_s:.6f} s of the others, step {before} took them {max(others):.6f} s")
    if each.own_s <= FACTOR * each.others_s + FLOOR_S:
        found.append(f"with {each.own_s:.6f} s to {each.others_s:.6f} s, which is not slow")
    held = _held_up(case, a, before)
    if each.rank in held and each.own_s < held[each.rank] - ROUNDING_S:
        found.append(f"with {each.own_s:.6f} s of work, a fault alone held it up for {held[each.rank]:g} s")
    if a.world_size == 2 and (other := held.get(1 - each.rank, 0.0)) > each.others_s + ROUNDING_S:
        found.append(f"to {each.others_s:.6f} s of the other, which a fault held up for {other:g} s")
    return found


def _held_up(case: Case, a: Attempt, step: int) -> dict[int, float]:
    """By rank, for how many seconds a planned fault held it up in `step`."""
    planned = {entry.index: entry for entry in case.run.plan or ()}
    return {
        fired.rank: planned[fired.index].seconds
        for fired in case.run.fired
        if fired.attempt == a.attempt
        and fired.index in planned
        and (lasts := recorded_kind(fired.kind).lasts) > 1
        and (fired.at_step or 0) <= step < planned[fired.index].global_step + lasts
    }
