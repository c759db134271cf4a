"""Gives the documents' commands as a reader would, page by page, and says how each ended and what
it took: `python -m tests.docs_trial FOLDER`.

FOLDER is a fresh clone with its `.venv`. The suite only composes the commands: some take hours.
Those that need more than `--limit` seconds, or what only a reader has, are named as not run; the
exit code is 1 where another ended with a code that its page does not lead to expect.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.contract.test_docs_commands import _MARK, _SHELL, blocks

PAGES = (
    *(
        "README",
        "docs/get-started",
        "docs/cli",
        "docs/configuration",
        "docs/failures",
        "docs/recovery",
        "docs/elastic",
        "docs/checkpoint-store",
    ),
    *(
        "docs/checkpointers",
        "docs/audit",
        "docs/frameworks",
        "docs/statistics",
        "docs/studies",
        "docs/hydra",
    ),
)
# What a reader puts for a name of his own: the shell finds the digits that end a run's name.
STANDS_FOR = {
    "OTHER_RUN": "outputs/quickstart/quickstart-ref-s1337-*",
    "OTHER": "outputs/quickstart/quickstart-ref-s1337-*",
    "RUN": "outputs/quickstart/quickstart-blk-s1337-*",
    "MENDED": "outputs/mended",
    "WEIGHTS": "examples/jobs",  # any files that ECRL did not write
}
NOT_HERE = {
    r"^make (test|install|docs|bench|studies|results)|^pip ": "builds, tests or installs",
    r"exp4|cifar|dataset\.root|matrix=exp|scale=cpu": "hours, or the CIFAR archives",
    r"study=all|outputs/studies": "every study",
    r"(torchrun|python)[^#]* train\.py": "a script of the reader's",
    r"nightly|OTHER_SWEEP|KEY_FILE|A/checkpoints": "files of the reader's",
    r"fish": "another shell",
}
# An audit that finds the planted bug; steps of which quickstart has no checkpoint; the report on a
# run that restored damaged bytes.
EXPECTED = {r"--bug ": 1, r"--steps 600,800": 3, r"report outputs/damaged": 1}


def commands(page: Path) -> Iterator[tuple[str, str]]:
    """Each line of the page's shell blocks, continued lines joined, and why it is not to be run
    (empty: it is).
    """
    for before, language, body in blocks(page):
        if language in _SHELL:
            marked = re.sub(r"<!-- not run: | -->", "", before) if _MARK.match(before) else ""
            for line in body.replace("\\\n", " ").splitlines():
                text = re.split(r"\s+#\s", line.removeprefix("$ "))[0].strip()
                if re.match(r"(ecrl|make|python|pip|mkdir) ", text):
                    yield (
                        text,
                        marked
                        or next(
                            (why for pattern, why in NOT_HERE.items() if re.search(pattern, text)),
                            "",
                        ),
                    )


def give(text: str, folder: Path, limit: float) -> tuple[int | None, float, str]:
    """Exit code (None: stopped at the limit), seconds, and the last line that was printed."""
    for name, path in STANDS_FOR.items():
        text = re.sub(rf"(?<![\w.-]){name}(?![\w-])", path, text)
    environment = os.environ | {
        "PATH": f"{folder / '.venv' / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(folder / "src"),
    }
    began = time.monotonic()
    running = subprocess.Popen(
        ["bash", "-c", text],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = running.communicate(timeout=limit)
        code: int | None = running.returncode
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGINT)
        printed, _ = running.communicate()
        code = None
    lines = [line for line in printed.splitlines() if line.strip()]
    return code, time.monotonic() - began, lines[-1] if lines else ""


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one command")
    parser.add_argument("--pages", nargs="*", default=PAGES)
    options = parser.parse_args()
    folder, seen, wrong = options.folder.absolute(), set[str](), 0
    for page in options.pages:
        stopped = False  # a later command of the page may look at what one had not finished
        say(f"\n{page}")
        for text, why in commands(folder / f"{page}.md"):
            if text in seen:
                continue
            seen.add(text)
            if why:
                say(f"  not run    {text}: {why}")
                continue
            code, seconds, last = give(text, folder, options.limit)
            expected = next(
                (due for pattern, due in EXPECTED.items() if re.search(pattern, text)), 0
            )
            bad = code not in (None, expected, *((1, 3) if stopped else ()))
            wrong += bad
            stopped |= code is None
            ended = "over limit" if code is None else f"{'WRONG ' if bad else ''}exit {code}"
            say(
                f"  {ended:10} {seconds:5.1f} s  {text}"
                + (f"\n             {last[:150]}" if bad else "")
            )
    say(f"\n{wrong} of {len(seen)} commands ended otherwise than their page says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
