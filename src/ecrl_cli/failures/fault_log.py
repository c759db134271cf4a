"""Which entries of the plan have struck: one file in fired/ each, created before the failure is injected, so that none strikes twice."""

from __future__ import annotations

from ecrl_cli.config.codec import decode
from ecrl_cli.records.events import InjectedFault
from ecrl_cli.records.journal import line_of
from ecrl_cli.records.layout import RunLayout, is_folder
from ecrl_cli.records.safe_read import parsed, read_whole
from ecrl_cli.storage.files import create_once, sync_directory


def claim(layout: RunLayout, fired: InjectedFault) -> bool:
    """Take entry `fired.index` for this process, durably; False where any process of any attempt took it before."""
    layout.fired.mkdir(exist_ok=True)
    sync_directory(layout.root)  # also where it exists: who made it may have died before this
    return create_once(layout.fired_entry(fired.index), line_of(fired))


def fired_indices(layout: RunLayout) -> frozenset[int]:
    """The entries claimed so far, by the names of their files."""
    names = (path.stem for path in layout.fired.glob("*.json")) if is_folder(layout.fired) else ()
    return frozenset(int(name) for name in names if name.isascii() and name.isdigit())


def read_fired(layout: RunLayout) -> tuple[InjectedFault, ...]:
    """What each claim says, in order of the plan; one whose content is cut off is left out."""
    found = (_read(layout, index) for index in sorted(fired_indices(layout)))
    return tuple(fired for fired in found if fired)


def _read(layout: RunLayout, index: int) -> InjectedFault | None:
    try:
        return decode(InjectedFault, parsed(read_whole(layout.fired_entry(index))))
    except (ValueError, KeyError, TypeError):
        return None
