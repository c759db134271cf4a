"""Records injected failures: one file in fired/ per entry of the plan, created before the
injection, so that none is injected twice.
"""

from __future__ import annotations

from ecrl_cli.config.codec import decode
from ecrl_cli.records.events import InjectedFault
from ecrl_cli.records.journal import line_of
from ecrl_cli.records.layout import RunLayout, is_folder
from ecrl_cli.records.safe_read import parsed, read_whole
from ecrl_cli.storage.files import create_once, sync_directory


def claim(layout: RunLayout, fired: InjectedFault) -> bool:
    """Claims entry `fired.index` durably; returns False if any process of any attempt has claimed
    it before.
    """
    layout.fired.mkdir(exist_ok=True)
    sync_directory(layout.root)  # even if it exists: its creator may have died before syncing
    return create_once(layout.fired_entry(fired.index), line_of(fired))


def fired_indices(layout: RunLayout) -> frozenset[int]:
    """The entries claimed so far, from the file names."""
    names = (path.stem for path in layout.fired.glob("*.json")) if is_folder(layout.fired) else ()
    return frozenset(int(name) for name in names if name.isascii() and name.isdigit())


def read_fired(layout: RunLayout) -> tuple[InjectedFault, ...]:
    """The content of each claim, in order of the plan; unreadable ones are left out."""
    found = (_read(layout, index) for index in sorted(fired_indices(layout)))
    return tuple(fired for fired in found if fired)


def _read(layout: RunLayout, index: int) -> InjectedFault | None:
    try:
        return decode(InjectedFault, parsed(read_whole(layout.fired_entry(index))))
    except (ValueError, KeyError, TypeError):
        return None
