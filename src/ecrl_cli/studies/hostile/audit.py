"""Records with strace which files each reader opens, and counts everything outside the run. Also a
program.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from ecrl_cli.studies.hostile.inputs import all_inputs
from ecrl_cli.studies.hostile.readers import read_input
from ecrl_cli.studies.hostile.store_fixture import FixtureTemplate
from ecrl_cli.supervision.launch.child_environment import child_environment

BEGIN, END = "/ecrl-look-begins", "/ecrl-look-ends"
IN_PROCESS = ("guard", "newest", "records", "sweep", "lock")
AUDIT_S = 300.0
# The reader's Python: its own files, the kernel's tables, and nothing else.
_OWN = re.compile(
    r"^(/proc/|/sys/|/dev/(null|urandom)$|.*/(site-packages|lib-dynload|lib/python3[^/]*|__pycache__|ecrl_cli)(/|$))"
)
_OPENED = re.compile(r"\b(open|openat|openat2|creat)\(.*\)\s+=\s+\d+<([^>]*)>")
_CHANGED = re.compile(
    r"\b(mkdir|mkdirat|unlink|unlinkat|rmdir|rename|renameat|renameat2|symlink|symlinkat|link|linkat|truncate)\((.*)\)\s+=\s+0"
)
_NAMED = re.compile(r'"((?:[^"\\]|\\.)*)"')


def keys(every: int) -> list[str]:
    """The audited inputs: those read in this process, without the ones of a hundred thousand
    entries, which would dominate the log.
    """
    chosen = [
        key
        for key, one in all_inputs().items()
        if one.look.split()[0] in IN_PROCESS and "hundred thousand" not in key
    ]
    return chosen[::every]


def run(folder: Path, seed: int, every: int) -> dict[str, Any]:
    """Read every `every`-th input under strace; returns what was opened or changed outside."""
    log = folder / "strace.log"
    trace = ["strace", "-f", "-y", "-e", "trace=%file", "-o", str(log)]
    command = [
        *trace,
        sys.executable,
        "-m",
        "ecrl_cli.studies.hostile.audit",
        str(folder / "stage"),
        str(seed),
        str(every),
    ]
    try:
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=AUDIT_S,
            env=child_environment(None, 1),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"looks": 0, "opened": 0, "outside": [f"no end within {AUDIT_S:g} s"]}
    if ended.returncode:
        return {
            "looks": 0,
            "opened": 0,
            "outside": [f"exit {ended.returncode}: {ended.stderr[-200:]}"],
        }
    return outside(
        log.read_text(encoding="utf-8", errors="replace").splitlines(),
        str(folder / "stage" / "now" / "run"),
    )


def outside(lines: list[str], run_dir: str) -> dict[str, Any]:
    """From the log: number of reads, number of files opened in `run_dir` during one, and what was
    touched elsewhere.
    """
    looking, looks, opened, found = False, 0, 0, []
    for line in lines:
        if BEGIN in line:
            looking, looks = True, looks + 1
        elif END in line:
            looking = False
        elif looking:
            path = _touched(line)
            if path.startswith(run_dir):
                opened += 1
            elif path and not _OWN.match(path):
                found.append(line[:200])
    return {"looks": looks, "opened": opened, "outside": found[:20]}


def _touched(line: str) -> str:
    """The file that the call opened or changed, or nothing. After `<` strace writes a descriptor's
    target.
    """
    if match := _OPENED.search(line):
        return match[2]
    if match := _CHANGED.search(line):
        names = _NAMED.findall(match[2])
        return str(names[-1]) if names else ""
    return ""


def main(folder: str, seed: str, every: str) -> None:
    template, found = FixtureTemplate(Path(folder), int(seed)), all_inputs()
    Path(folder).mkdir()
    with template.fixture() as fixture:
        # import everything that is imported on first use
        read_input(found["COMMIT/another step"], fixture)
    for key in keys(int(every)):
        with template.fixture() as fixture:
            found[key].act(fixture)
            Path(BEGIN).exists()
            read_input(found[key], fixture)
            Path(END).exists()


if __name__ == "__main__":
    main(*sys.argv[1:])
