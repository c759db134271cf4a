"""The reference: what may be recovered, by what was begun, acknowledged, damaged and lost. Knows nothing of files and of how a store works.

A step is known by its content, which is (step, ranks). What was acknowledged and is among the newest `KEEP` must be there, whole; what was begun
may be; nothing else may. Only a loss of power under a mode that does not promise to outlive it makes an acknowledged step one that may be there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

KEEP = 2
NOBODY = -1

Content = tuple[int, int]


@dataclass
class Model:
    """`durable`: the mode promises that what is acknowledged outlives a loss of power. `atomic`: no half may stand under a name that counts.

    `owner`: the newest attempt that has recovered; `resumed`: from which step. `torn`: every step, and the
    worst loss of power since it was last acknowledged.
    """

    durable: bool
    atomic: bool
    begun: dict[int, set[Content]] = field(default_factory=dict)
    acked: dict[int, Content] = field(default_factory=dict)
    damaged: set[int] = field(default_factory=set)
    owner: int = NOBODY
    resumed: int = 0
    torn: dict[int, str] = field(default_factory=dict)

    def begin(self, content: Content, attempt: int | None = None) -> None:
        """A save of this content has begun: from now on it may be found, unless it is one of an attempt that another has taken over from."""
        if attempt is None or attempt >= self.owner:
            self.begun.setdefault(content[0], set()).add(content)
            self.torn.setdefault(content[0], "")

    def acknowledge(self, content: Content, attempt: int) -> str:
        """The writer of `attempt` says that it is committed; gives what is wrong with that."""
        step = content[0]
        if attempt < self.owner and step > self.resumed and self.acked.get(step) != content:
            return f"fence: attempt {attempt} commits step {step} behind the back of attempt {self.owner}, which resumed from step {self.resumed}"
        if step in self.acked and self.acked[step] != content and step not in self.damaged:
            return f"overwritten: step {step} was acknowledged with another content"
        self.acked[step], self.torn[step] = content, ""
        self.damaged.discard(step)
        return ""

    def damage(self, step: int) -> None:
        """Bytes of this step at rest have changed."""
        self.damaged.add(step)

    def lose_power(self, model: str) -> None:
        """Under `model` O or X. What was being removed may be there again in part; what was acknowledged, only if the mode is not durable."""
        worst = "X" if model == "X" or not self.durable else "O"
        self.torn = {step: max(worst, before) for step, before in self.torn.items()}
        if not self.durable:
            for content in self.acked.values():
                self.begin(content)
            self.acked.clear()

    def required(self, visible: Collection[int] = ()) -> dict[int, Content]:
        """What must be found whole, by step: retention leaves at least the newest KEEP of what it takes for whole, damaged ones included."""
        newest = sorted({*self.acked, *self.damaged, *visible}, reverse=True)[:KEEP]
        return {step: self.acked[step] for step in newest if step in self.acked and step not in self.damaged}

    def look(self, visible: Mapping[int, Content], named: Collection[int]) -> str:
        """Of the steps `named` on the disk these are `visible`, whole; gives what is wrong with that. What is gone rightly is due no more."""
        for step, content in visible.items():
            if not self.may_be(content):
                return f"silent_wrong: step {step} lies there and was never saved so"
        required = self.required(visible)
        if gone := [step for step, content in required.items() if visible.get(step) != content]:
            return f"gone: step {gone[0]} is due and does not lie there"
        for step in [step for step in self.acked if step not in visible and step not in self.damaged]:
            self.begin(self.acked.pop(step))
        self.damaged &= {*named, *self.acked}
        return ""

    def may_be(self, content: Content) -> bool:
        """Has this ever been on its way to the disk?"""
        return self.acked.get(content[0]) == content or content in self.begun.get(content[0], ())

    def may_be_half(self, step: int, committed: bool, grouped: bool) -> bool:
        """May a step be refused that has its name? `committed`: its commit record is whole; `grouped`: it has one name only."""
        if not self.atomic or step in self.damaged or self.torn.get(step) == "X":
            return True
        return not committed and (self.torn.get(step) == "O" or not grouped)

    def recover(self, found: Content | None, refused: set[int], attempt: int) -> str:
        """What `attempt` goes on from, `refused` being what it passed over because the disk would not show it; gives what is wrong with that."""
        step = found[0] if found else 0
        if found and not self.may_be(found):
            return f"silent_wrong: step {step} was never saved"
        lost = [each for each in self.required() if each > step and each not in refused]
        if lost:
            return f"{'lost_ack' if found else 'lost_all'}: step {max(lost)} is due, step {step} is found"
        self.owner, self.resumed = attempt, step
        for each in [each for each in self.begun if each > step and self.durable and each not in refused]:
            del self.begun[each]  # it did not come to the disk, or is set aside
        for each in [each for each in self.acked if each > step]:
            content = self.acked.pop(each)
            if each in refused or not self.durable:
                self.begin(content)
        if found:
            self.acked[step] = found
        return ""
