"""The files with which somebody else sees a broken promise again: `ecrl audit DIR --repro`.

For each arm with a broken promise, `DIR/repro/ARM/` gets `again.sh` (runs that arm three times and
counts), `difference.json` (where the two recordings first differ) and `issue.md` (a draft of the
report to whom it concerns).
"""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ecrl_cli import __version__
from ecrl_cli.audit.components import BROKEN, COMPONENTS, ArmFinding, Judged, value_of
from ecrl_cli.audit.verdict import CAUSES, AuditVerdict
from ecrl_cli.config.audit import AuditConfig
from ecrl_cli.config.codec import encode, flat
from ecrl_cli.config.keys import quote
from ecrl_cli.errors import EvidenceMissing, plural
from ecrl_cli.storage.files import write_json, write_whole
from ecrl_cli.storage.safe_read import refuse_links

FOLDER = "repro"
ROUNDS = 3
TITLE = 120  # letters of a title
_OWN = ("run_dir", "audit.only", "audit.cold")  # set by again.sh itself
# By promise, what a reader of the report may expect instead.
EXPECTED = {
    "exactly once": "the restarted job trains on the samples that were still due, each once",
    "same input": "the restarted job gets the same tensors for the same samples",
    "restored": "after the restart each part of the state is what it was at the checkpoint",
    "recoverable inside a save": "a job that dies inside a save goes on from a finished checkpoint",
    "right checkpoint": "the restarted job goes on from the newest finished checkpoint",
    "same trajectory": "the restarted job repeats the undisturbed run bit for bit",
    "same end": "the restarted job ends in the state of the undisturbed run",
    "same files": "the restarted job leaves the files of the undisturbed run",
    "state used": "a resumed job differs from one that had nothing to resume from",
    "progress": "the restarted job goes on and comes to its end",
}
_AGAIN = """#!/usr/bin/env bash
# {title}
# Runs this arm {rounds} times, each beside undisturbed runs of its own, and counts. Run it in the
# folder in which the audit was started, with the job's environment active and ecrl {version} in it.
# Exit code 0: broken each time.
set -u
command -v ecrl > /dev/null || {{ echo "put ecrl on the PATH" >&2; exit 2; }}
here=$(cd "$(dirname "$0")" && pwd)
{python} -m pip freeze > "$here/versions.txt" 2>/dev/null || rm -f "$here/versions.txt"
broken=0
for round in {numbers}; do
  ecrl audit --json {keys} run_dir="$here/round-$round" \\
    -- {command} \\
    > "$here/round-$round.json" 2> "$here/round-$round.log"
  python3 - "$here/round-$round.json" {promise} {arm} <<'END' && broken=$((broken + 1))
import json, sys
path, promise, arm = sys.argv[1:]
try:
    findings = json.load(open(path, encoding="utf-8"))["findings"]
except (OSError, ValueError, KeyError):
    sys.exit(f"no answer: see {{path.removesuffix('.json')}}.log")
seen = [f for f in findings if (f["promise"], f["arm"], f["status"]) == (promise, arm, "broken")]
print(seen[0]["message"] if seen else f"{{promise}}: not broken")
sys.exit(not seen)
END
done
echo "broken $broken of {rounds} times"
[ "$broken" = {rounds} ]
"""


def write_repro(folder: Path, verdict: AuditVerdict, asked: Mapping[str, Any]) -> list[Path]:
    """Write `repro/ARM/` for each arm with a broken promise; returns these folders.

    `asked`: command, configuration and plan of the audit, as audit.json holds them.
    EvidenceMissing where nothing is broken, or the recording is not of an audit that ECRL ran.
    """
    arms = {judged.arm.name: judged for judged in verdict.arms}
    broken = [one for one in verdict.findings if one.status == BROKEN and one.arm in arms]
    if not broken:
        raise EvidenceMissing(
            folder.name, "has no broken promise", "there is nothing to show again"
        )
    if not asked.get("command"):
        raise EvidenceMissing(
            folder.name,
            "does not say which command was audited",
            "judge the folder of `ecrl audit -- COMMAND`",
        )
    refuse_links(folder, (FOLDER,))
    written = []
    for name in dict.fromkeys(one.arm for one in broken):
        judged, own = arms[name], sorted((one for one in broken if one.arm == name), key=_rank)
        target = folder / FOLDER / name
        refuse_links(folder / FOLDER, (name,))
        target.mkdir(parents=True, exist_ok=True)
        difference = first_difference(judged, verdict.references)
        write_json(target / "difference.json", difference)
        write_whole(target / "again.sh", again(own[0], asked).encode(), durable=False)
        (target / "again.sh").chmod(0o755)
        draft = issue(own, judged, asked, difference)
        write_whole(target / "issue.md", draft.encode(), durable=False)
        written.append(target)
    return written


def _rank(finding: ArmFinding) -> int:
    return CAUSES.index(finding.promise) if finding.promise in CAUSES else len(CAUSES)


def again(finding: ArmFinding, asked: Mapping[str, Any]) -> str:
    """The script that runs the arm of `finding` again."""
    return _AGAIN.format(
        title=f"{finding.promise}, {finding.arm}: {_one_line(finding.message)}",
        rounds=ROUNDS,
        numbers=" ".join(str(number) for number in range(1, ROUNDS + 1)),
        version=__version__,
        python=shlex.quote(_interpreter(asked["command"])),
        keys=" ".join(shlex.quote(key) for key in keys_of(finding.arm, asked)),
        command=shlex.join(map(str, asked["command"])),
        promise=shlex.quote(finding.promise),
        arm=shlex.quote(finding.arm),
    )


def _interpreter(command: list[str]) -> str:
    """The Python that a command names, or the one on the PATH, whose packages it then has."""
    return str(command[0]) if Path(command[0]).name.startswith("python") else "python"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def keys_of(arm: str, asked: Mapping[str, Any]) -> list[str]:
    """The keys with which the audit was started, those left at their defaults left out, and the
    arm that is to be run alone.
    """
    config, defaults = asked.get("config", {}), dict(flat(encode(AuditConfig())))
    given = [(key, value) for key, value in flat(config) if value != defaults.get(key, value)]
    written = [
        f"failure={value}" if key == "failure.kind" else f"{key}={_value(value)}"
        for key, value in sorted(given)
        if key not in _OWN
    ]
    return [*written, f"audit.only=[{_quoted(arm)}]"]


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ",".join(_quoted(str(item)) for item in value) + "]"
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _quoted(text: str) -> str:
    plain = all(letter.isalnum() or letter in "-._" for letter in text)
    return text if plain else quote(text)


def first_difference(judged: Judged, references: Iterable[Judged]) -> dict[str, Any]:
    """The first step in which the arm differs from the undisturbed run: by rank and component, what
    each of them recorded. Empty where no step differs.
    """
    reference = next(iter(references), None)
    step = min(judged.differs, default=None)
    if reference is None or step is None:
        return {}
    ranks = {}
    for rank, (attempt, ours) in sorted(judged.path.steps[step].items()):
        if rank not in reference.path.steps[step]:
            continue
        due = reference.path.steps[step][rank][1]
        pairs = {name: (value_of(due, name), value_of(ours, name)) for name in COMPONENTS}
        ranks[str(rank)] = {
            "attempt": attempt,
            "components": {
                name: {"undisturbed": _plain(a), "restarted": _plain(b)}
                for name, (a, b) in pairs.items()
                if name in judged.differs[step] and a != b
            },
        }
    return {"step": step, "components": list(judged.differs[step]), "ranks": ranks}


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def issue(
    findings: list[ArmFinding], judged: Judged, asked: Mapping[str, Any], difference: dict[str, Any]
) -> str:
    """The draft of a report, in Markdown; `findings`: the arm's broken promises, by cause."""
    first, arm = findings[0], judged.arm
    happened = sorted(arm.planned.keys() & arm.happened)
    failures = "\n".join(f"- {arm.planned[number]}" for number in happened)
    return "\n".join(
        [
            f"# {_title(first.message)}",
            "",
            "<!-- A draft. Say which library saves and loads here, shorten the job to what is",
            "needed, look for an issue that says the same, and remove this comment. -->",
            "",
            "**What was done.** The command below was run undisturbed, and once more with these"
            f" failures{' (# is a number)' if '#' in failures else ''}. After each it was started"
            f" again with the same command{_resumed(asked)}; `{{dir}}` is one folder for all"
            " starts, empty at first.",
            "",
            *_block([shlex.join(map(str, asked["command"]))]),
            "",
            failures,
            "",
            f"**Expected.** {_sentence(EXPECTED.get(first.promise, 'the promise is kept'))}",
            "",
            "**Seen.**",
            "",
            *(line for one in findings for line in _told(one)),
            "",
            *_where(difference),
            f"**Versions.** {_versions(judged)}; the others: `versions.txt`, by `again.sh`.",
            "",
            f"**Again.** `bash again.sh` runs this arm {plural(ROUNDS, 'time')} with"
            f" ecrl {__version__} and counts.",
            "",
        ]
    )


def _title(message: str) -> str:
    words = textwrap.shorten(message, TITLE, placeholder=" ...")
    return f"A{words[1:]}" if words.startswith("after ") else f"After a restart: {words}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _resumed(asked: Mapping[str, Any]) -> str:
    keys = asked.get("config", {}).get("audit", {})
    words = keys.get("elastic") or keys.get("resume")
    kind = "this instead of it" if keys.get("elastic") else "these words behind it"
    return f" (from the second attempt on with {kind}: `{words}`)" if words else ""


def _block(lines: list[str]) -> list[str]:
    return ["```", *lines, "```"]


def _told(finding: ArmFinding) -> Iterator[str]:
    yield f"- {finding.promise}: {_one_line(finding.message)}"
    yield from (f"  - {_one_line(line)}" for line in finding.evidence)


def _where(difference: dict[str, Any]) -> list[str]:
    if not difference:
        return ["No step that was compared differs from the undisturbed run's.", ""]
    names = ", ".join(difference["components"])
    return [
        f"The first step that differs is step {difference['step']}: {names} (`difference.json`).",
        "",
    ]


def _versions(judged: Judged) -> str:
    told = next((process.versions for process in judged.arm.processes if process.versions), {})
    return ", ".join(f"{name} {version}" for name, version in told.items() if version) or "unknown"
