"""`python3 tests/readme.py`: runs the README's first block of commands as it stands, one after
another, in this checkout.

For continuous integration, before anything optional is installed; with the standard library alone,
as there is no environment yet. The exit code is that of the first command that fails; those after
it are not run. What the suite's own runs are helped with is taken from the environment.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

HELPS = ("ECRL_TEST_DATA", "VIRTUAL_ENV", "PYTHONPATH")


def commands(readme: str) -> list[str]:
    """The commands of the first shell block, without what is said of them."""
    block = re.search(r"^```bash\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    lines = block[1].splitlines() if block else []
    return [command for line in lines if (command := re.split(r"\s+#\s", line)[0].strip())]


def main() -> int:
    folder = Path(__file__).parents[1]
    environment = {name: value for name, value in os.environ.items() if name not in HELPS}
    for command in commands((folder / "README.md").read_text(encoding="utf-8")):
        began = time.monotonic()
        code = subprocess.run(
            ["sh", "-c", command], cwd=folder, env=environment, check=False
        ).returncode
        sys.stdout.write(f"README: {command}: exit {code} after {time.monotonic() - began:.0f} s\n")
        sys.stdout.flush()
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
