"""The reference model: what may be recovered after saves, acknowledgements, damage and losses,
independent of files and of the store.

A step is identified by its content, (step, ranks). What was acknowledged and is among the newest
`KEEP` must be there intact; what was started may be; nothing else may. Only a power loss under a
mode without durability turns an acknowledged step into one that may be there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

KEEP = 2
NO_OWNER = -1

Content = tuple[int, int]


@dataclass
class Model:
    """`durable`: the mode promises that acknowledged steps survive a power loss. `atomic`: no
    partial checkpoint may have a final name.

    `owner`: the newest attempt that has recovered; `resumed`: from which step. `torn`: every step,
    with the worst power loss since its last acknowledgement.
    """

    durable: bool
    atomic: bool
    begun: dict[int, set[Content]] = field(default_factory=dict)
    acked: dict[int, Content] = field(default_factory=dict)
    damaged: set[int] = field(default_factory=set)
    owner: int = NO_OWNER
    resumed: int = 0
    torn: dict[int, str] = field(default_factory=dict)

    def begin(self, content: Content, attempt: int | None = None) -> None:
        """A save of this content has started: from now on it may be found, unless its attempt has
        been superseded.
        """
        if attempt is None or attempt >= self.owner:
            self.begun.setdefault(content[0], set()).add(content)
            self.torn.setdefault(content[0], "")

    def acknowledge(self, content: Content, attempt: int) -> str:
        """The writer of `attempt` acknowledges the commit; returns what is wrong with that, or an
        empty string.
        """
        step = content[0]
        if attempt < self.owner and step > self.resumed and self.acked.get(step) != content:
            return (
                f"fence: attempt {attempt} commits step {step} behind the back of attempt"
                f" {self.owner}, which resumed from step {self.resumed}"
            )
        if step in self.acked and self.acked[step] != content and step not in self.damaged:
            return f"overwritten: step {step} was acknowledged with another content"
        self.acked[step], self.torn[step] = content, ""
        self.damaged.discard(step)
        return ""

    def damage(self, step: int) -> None:
        """Bytes of this step at rest have changed."""
        self.damaged.add(step)

    def lose_power(self, model: str) -> None:
        """A power loss under `model` O or X. Partly removed checkpoints may reappear; acknowledged
        ones may be lost only if the mode is not durable.
        """
        worst = "X" if model == "X" or not self.durable else "O"
        self.torn = {step: max(worst, before) for step, before in self.torn.items()}
        if not self.durable:
            for content in self.acked.values():
                self.begin(content)
            self.acked.clear()

    def required(self, visible: Collection[int] = ()) -> dict[int, Content]:
        """The checkpoints that must be found intact, by step: retention keeps at least the newest
        KEEP it considers intact, damaged ones included.
        """
        newest = sorted({*self.acked, *self.damaged, *visible}, reverse=True)[:KEEP]
        return {
            step: self.acked[step]
            for step in newest
            if step in self.acked and step not in self.damaged
        }

    def violation(self, visible: Mapping[int, Content], named: Collection[int]) -> str:
        """Returns what is wrong if, of the steps `named` on the disk, `visible` are intact; empty
        if nothing is. Steps rightly gone are no longer required.
        """
        for step, content in visible.items():
            if not self.may_be(content):
                return f"silent_wrong: step {step} lies there and was never saved so"
        required = self.required(visible)
        if gone := [step for step, content in required.items() if visible.get(step) != content]:
            return f"gone: step {gone[0]} is due and does not lie there"
        for step in [
            step for step in self.acked if step not in visible and step not in self.damaged
        ]:
            self.begin(self.acked.pop(step))
        self.damaged &= {*named, *self.acked}
        return ""

    def may_be(self, content: Content) -> bool:
        """Whether this content was ever being written to the disk."""
        return self.acked.get(content[0]) == content or content in self.begun.get(content[0], ())

    def may_be_half(self, step: int, committed: bool, grouped: bool) -> bool:
        """Whether a step with its final name may be rejected. `committed`: its commit record is
        whole; `grouped`: it has one name only.
        """
        if not self.atomic or step in self.damaged or self.torn.get(step) == "X":
            return True
        return not committed and (self.torn.get(step) == "O" or not grouped)

    def recover(self, found: Content | None, refused: set[int], attempt: int) -> str:
        """`attempt` resumes from `found`, having skipped `refused` because of read errors; returns
        what is wrong with that, or an empty string.
        """
        step = found[0] if found else 0
        if found and not self.may_be(found):
            return f"silent_wrong: step {step} was never saved"
        lost = [each for each in self.required() if each > step and each not in refused]
        if lost:
            return (
                f"{'lost_ack' if found else 'lost_all'}: step {max(lost)} is due, step {step} is"
                " found"
            )
        self.owner, self.resumed = attempt, step
        for each in [
            each for each in self.begun if each > step and self.durable and each not in refused
        ]:
            del self.begun[each]  # it was not written, or is quarantined
        for each in [each for each in self.acked if each > step]:
            content = self.acked.pop(each)
            if each in refused or not self.durable:
                self.begin(content)
        if found:
            self.acked[step] = found
        return ""
