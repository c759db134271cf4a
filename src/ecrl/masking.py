"""Secrets in a command line are masked wherever a command line is written."""

from __future__ import annotations

import re
from typing import List, Sequence

MASK = "***"
_SECRET = re.compile(
    r"(?i)(^|[-_.])(\w*?(token|secret|password|passwd|credentials?)|(api|access|private|auth|secret)?[-_.]?key)$"
)
_OPTION = re.compile(r"^(--?[A-Za-z][\w.-]*|\+*[A-Za-z_][\w.-]*)=(.*)$", re.DOTALL)
_URL = re.compile(r"(\w+://[^/\s:@]*:)[^@\s/]+@")


def masked(words: Sequence[str]) -> List[str]:
    """`words` with *** for the value of each option or variable whose name ends with token, key,
    secret or password: `--api-key X`, `--api-key=X`, `HF_TOKEN=X`; and for the password in an
    address.
    """
    shown: List[str] = []
    hide = False
    for word in map(str, words):
        option = _OPTION.match(word)
        if hide and not word.startswith("-"):
            shown.append(MASK)
            hide = False
            continue
        hide = word.startswith("-") and not option and _secret(word.lstrip("-"))
        if option and option.group(2) and _secret(option.group(1).lstrip("-+")):
            shown.append("%s=%s" % (option.group(1), MASK))
        else:
            shown.append(_URL.sub(r"\1%s@" % MASK, word))
    return shown


def masked_text(text: str) -> str:
    """The same for words in one text; its spaces are kept."""
    parts = re.split(r"(\s+)", text)
    parts[::2] = masked(parts[::2])
    return "".join(parts)


def _secret(name: str) -> bool:
    return bool(_SECRET.search(name))
