"""Every hostile input by its key."""

from __future__ import annotations

from functools import cache

from ecrl_cli.studies.hostile import configurations, contents, files, pickles
from ecrl_cli.studies.hostile.malicious_input import MaliciousInput


@cache
def all_inputs() -> dict[str, MaliciousInput]:
    """By key, in a fixed order."""
    made = [*pickles.inputs(), *contents.json_inputs(), *contents.name_inputs(), *contents.header_inputs(), *files.inputs(), *configurations.inputs()]
    found = {one.key: one for one in made}
    if len(found) != len(made):
        raise ValueError("two hostile inputs have the same name")
    return found
