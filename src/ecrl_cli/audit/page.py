"""The HTML page of an audit: the diagnosis on top, the fingerprint of each arm in colours and in
words, its promises, attempts and costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

from jinja2 import Environment

from ecrl_cli import __version__
from ecrl_cli.audit.components import BROKEN, COMPONENTS, WORST_FIRST, Judged, value_of
from ecrl_cli.audit.costs import costs_of
from ecrl_cli.audit.progress import ending
from ecrl_cli.audit.records import Launch
from ecrl_cli.audit.verdict import AuditVerdict
from ecrl_cli.errors import visible

_CELL, _ROW, _LEFT, _MOST, _TOP = 16, 16, 112, 1050, 16
# By state: the class of its colour, and what it says.
STATES = {
    "different": "differs from the undisturbed run",
    "not done undisturbed": "the undisturbed run never did this step",
    "not recorded": "not recorded",
    "not compared": "not compared",
    "equal": "equal to the undisturbed run",
}
_SIGNS = dict(zip(WORST_FIRST, "\u2717?\u2013\u2713", strict=True))
_LAST_BYTES, _LAST_LINES = 4000, 6  # of what an attempt printed

_TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{{ name }}: {{ verdict.status }}</title>
<style>
:root{--ink:#222;--dim:#5d5d5d;--line:#d8d8d8;--paper:#fff;--sunken:#f5f5f3;--good:#2c7a46;--bad:#b02a22;--open:#8a6100;
--equal:#3a9a5b;--different:#c2382f;--not-done-undisturbed:#8d5fb8;--not-recorded:#c8c8c8;--not-compared:#7d9ec0;--death:#111}
@media(prefers-color-scheme:dark){:root{--ink:#e6e4df;--dim:#a9a6a0;--line:#3d3c3a;--paper:#191918;--sunken:#232322;--good:#6cc48a;--bad:#f0857c;
--open:#e0b450;--equal:#3f9e61;--different:#e0564c;--not-done-undisturbed:#a97fd2;--not-recorded:#56554f;--not-compared:#5d7fa3;--death:#f5f5f5}}
body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:1100px;padding:0 1em;color:var(--ink);background:var(--paper)}
h1{font-size:1.4em;overflow-wrap:anywhere} h3{margin-bottom:.2em} a{color:inherit}
.valid,.kept{color:var(--good)} .invalid,.broken{color:var(--bad)} .unknown{color:var(--open)} .broken{font-weight:600}
.lead{font-size:1.1em} small,.dim{color:var(--dim)} code,pre{font:13px/1.45 ui-monospace,monospace;overflow-wrap:anywhere}
pre{background:var(--sunken);padding:.6em .8em;white-space:pre-wrap;margin:.3em 0}
table{border-collapse:collapse;width:100%} td,th{text-align:left;vertical-align:top;padding:.3em .6em;border-bottom:1px solid var(--line)}
td:first-child{white-space:nowrap}
td.said{min-width:14em;overflow-wrap:anywhere} .scroll{overflow-x:auto} svg{display:block} svg text{fill:var(--ink)} .death{fill:var(--death)}
{% for state in states %}.{{ state | replace(" ", "-") }}{fill:var(--{{ state | replace(" ", "-") }})}
{% endfor %}.legend{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:.2em 1.2em}
.legend svg{display:inline;vertical-align:-2px;margin-right:.4em}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2em 1em} dd{margin:0;overflow-wrap:anywhere}
@media(max-width:600px){body{margin:1em auto} dl{display:block} dd{margin-bottom:.5em} thead{display:none} table,tbody,tr,td{display:block;border:0}
tr{border-bottom:1px solid var(--line);padding:.4em 0} td{padding:.1em 0} td[data-name]::before{content:attr(data-name) ": ";color:var(--dim)}}
</style></head><body>
<h1>{{ name }}: <span class="{{ verdict.status }}">{{ verdict.status }}</span></h1>
<p class="lead"><strong>{{ verdict.diagnosis }}</strong>{% if cause %}<br><small>{{ cause }}</small>{% endif %}</p>
<dl>{% if command %}<dt class="dim">command</dt><dd><code>{{ command }}</code></dd>{% endif %}
{% if versions %}<dt class="dim">versions</dt><dd>{{ versions }}</dd>{% endif %}
<dt class="dim">promises</dt><dd>{{ counted }}</dd></dl>
<h2>Fingerprints</h2>
<p class="dim">Steps from left to right, what each recorded from top to bottom. A bar is a death: what is right of it was done by a later
attempt, whose number stands above.</p>
<ul class="legend">{% for state, text in states.items() %}<li><svg width="14" height="14" aria-hidden="true">
<rect class="{{ state | replace(" ", "-") }}"
width="14" height="14"></rect></svg>{{ text }}</li>{% endfor %}</ul>
{% for arm in arms %}<h3>{{ arm.name }}</h3>{% for line in arm.words %}<div class="dim">{{ line }}</div>{% endfor %}<div class="scroll">
<svg width="{{ arm.width }}" height="{{ arm.height }}" role="img" aria-label="fingerprint of {{ arm.name }}: {{ arm.words | join('; ') }}">
{% for row in arm.rows %}<text x="0" y="{{ row.y + 12 }}" font-size="11">{{ row.name }}</text>
{% for cell in row.cells %}<rect class="{{ cell.state | replace(" ", "-") }}" x="{{ cell.x }}" y="{{ row.y }}" width="{{ cell.width }}" height="14">
<title>{{ cell.title }}</title></rect>{% endfor %}
{% endfor %}{% for attempt in arm.attempts %}<text x="{{ attempt.x + 3 }}" y="11" font-size="10">{{ attempt.text }}</text>{% endfor %}
{% for tick in arm.ticks %}<text x="{{ tick.x }}" y="{{ arm.height - 3 }}" font-size="10" text-anchor="{{ tick.anchor }}">{{ tick.step }}</text>
{% endfor %}{% for death in arm.deaths %}<rect class="death" x="{{ death }}" y="0" width="2" height="{{ arm.height - 14 }}"></rect>
{% endfor %}
</svg></div>{% endfor %}
<h2>Promises</h2>
<div class="scroll"><table><thead><tr><th>status</th><th>promise</th><th>arm</th><th>what was found</th></tr></thead><tbody>
{% for finding in findings %}<tr><td class="{{ finding.status | replace(' ', '-') }}">{{ signs[finding.status] }} {{ finding.status }}</td>
<td>{{ finding.promise }}</td><td>{{ finding.arm }}</td>
<td class="said">{{ finding.message }}{% for text in finding.evidence %}<br><small>{{ text }}</small>{% endfor %}</td></tr>{% endfor %}
</tbody></table></div>
<h2>Attempts</h2>
<div class="scroll"><table><thead><tr><th>arm</th><th>attempt</th><th>how it ended</th><th>seconds</th><th>its output</th></tr></thead><tbody>
{% for each in attempts %}<tr><td>{{ each.arm }}</td><td data-name="attempt">{{ each.number }}</td><td>{{ each.ended }}</td>
<td data-name="seconds">{{ each.seconds }}</td><td class="said">{% if each.log %}<a href="{{ each.log }}">output.log</a>{% endif %}</td></tr>
{% endfor %}
</tbody></table></div>
{% for each in attempts if each.words %}<details{% if each.open %} open{% endif %}><summary>last words of {{ each.arm }}, attempt {{ each.number
}}</summary><pre>{% for line in each.words %}{{ line }}
{% endfor %}</pre></details>{% endfor %}
<h2>Costs</h2>
<div class="scroll"><table><thead><tr><th>arm</th><th>steps</th><th>done again</th><th>seconds of each attempt</th><th>back after a death</th>
<th>stall of a save</th><th>goodput</th></tr></thead><tbody>
{% for cost in costs %}<tr><td>{{ cost.arm }}</td><td data-name="steps">{{ cost.steps }}</td><td data-name="done again">{{ cost.again }}</td>
<td data-name="seconds of each attempt">{{ cost.seconds }}</td><td data-name="back after a death">{{ cost.restarts }}</td>
<td data-name="stall of a save">{{ cost.saves }}</td><td data-name="goodput">{{ cost.goodput }}</td></tr>{% endfor %}
</tbody></table></div>
<p><small>Back after a death: from the last step before it to the end of the first one after it, start of the processes and the load included.
Goodput: the share of the wall time that went into steps which count. Recording is part of all of this.</small></p>
{% if verdict.troubles %}<h2>Not seen</h2><ul>{% for trouble in verdict.troubles %}<li>{{ trouble }}</li>{% endfor %}</ul>{% endif %}
</body></html>
"""


def page(
    name: str,
    verdict: AuditVerdict,
    document: Mapping[str, Any] | None = None,
    folder: Path | None = None,
) -> str:
    """The content of report/index.html; all recorded text is escaped and free of control
    characters.

    `document`: audit.json, for the command and the versions. `folder`: of the recording, for what
    its attempts printed.
    """
    findings = verdict.in_order()
    arms = [*sorted(verdict.arms, key=lambda judged: not judged.differs), *verdict.references]
    first = verdict.references[0] if verdict.references else None
    template = Environment(autoescape=True).from_string(_TEMPLATE)
    text = template.render(
        name=name,
        verdict=verdict,
        cause=_cause(verdict),
        command=" ".join(map(str, (document or {}).get("command") or ())),
        versions=_versions((document or {}).get("versions")),
        counted=_counted([finding.status for finding in findings]),
        findings=findings,
        signs=_SIGNS,
        states=STATES,
        arms=[_fingerprint(judged, first if judged is not first else None) for judged in arms],
        attempts=[each for judged in arms for each in _attempts(judged, folder)],
        costs=[_cost(judged) for judged in arms],
    )
    return "\n".join(visible(line) for line in text.split("\n"))


def _counted(statuses: list[str]) -> str:
    return ", ".join(
        f"{statuses.count(status)} {status}" for status in WORST_FIRST if status in statuses
    )


def _versions(recorded: object) -> str:
    found = {"ECRL": __version__, **(recorded if isinstance(recorded, dict) else {})}
    return ", ".join(f"{name} {version}" for name, version in found.items() if version)


def _attempts(judged: Judged, folder: Path | None) -> list[dict[str, Any]]:
    """Each attempt of an arm: how it ended, and, where the recording has it, its output and the
    last lines of that.
    """
    rows = []
    for launch in judged.arm.launches:
        log = Path(judged.arm.name) / f"attempt-{launch.attempt:02d}" / "output.log"
        # a stranger's recording may point elsewhere
        inside = folder is not None and (folder / log).resolve().is_relative_to(folder.resolve())
        there = folder is not None and inside and (folder / log).is_file()
        row = {
            "arm": judged.arm.name,
            "number": launch.attempt,
            "ended": _ended(launch),
            "seconds": f"{launch.seconds:.1f}",
        }
        row |= {
            "log": f"../{quote(log.as_posix())}" if there else "",
            "words": _last_lines(folder / log) if folder is not None and there else [],
        }
        rows.append(row | {"open": launch.exit_code not in (0, None) and not launch.planned})
    return rows


def _ended(launch: Launch) -> str:
    how = (
        "ended well"
        if launch.exit_code == 0
        else f"ended with {ending(launch.exit_code, launch.signal)}"
    )
    notes = [*(["as planned"] if launch.planned else []), *(["hung"] if launch.hung else [])]
    return ", ".join([how, *notes])


def _last_lines(log: Path) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LAST_BYTES))
        lines = file.read(_LAST_BYTES).decode("utf-8", "replace").splitlines()
    return [line[:300] for line in lines if line.strip()][-_LAST_LINES:]


def _cause(verdict: AuditVerdict) -> str:
    """Promise, step and arm that the diagnosis is about."""
    for finding in verdict.findings:
        if finding.status == BROKEN and finding.message == verdict.diagnosis:
            return ", ".join(
                filter(
                    None,
                    (
                        finding.promise,
                        f"step {finding.step}" if finding.step else "",
                        finding.arm and f"arm {finding.arm}",
                    ),
                )
            )
    return ""


def _cost(judged: Judged) -> dict[str, Any]:
    found = costs_of(judged)
    saves = found.save_seconds
    return {
        "arm": judged.arm.name,
        "steps": found.steps,
        "again": found.steps_done_again,
        "seconds": ", ".join(f"{seconds:.1f}" for seconds in found.attempt_seconds) or "not known",
        "restarts": ", ".join(f"{seconds:.1f} s" for seconds in found.restart_seconds) or "-",
        "saves": (
            f"{1000 * median(saves):.0f} ms, at most {1000 * max(saves):.0f} ms ({len(saves)})"
            if saves
            else "-"
        ),
        "goodput": f"{100 * found.goodput:.0f} %" if found.goodput is not None else "not known",
    }


def _fingerprint(judged: Judged, reference: Judged | None) -> dict[str, Any]:
    """The fingerprint of an arm as rectangles: consecutive steps of the same state share one, so a
    long job has few. `reference` None: it is compared with nothing.
    """
    steps = sorted(judged.path.steps)
    width = max(1.0, min(float(_CELL), (_MOST - _LEFT) / max(1, len(steps))))
    rows = [
        _row(judged, component, place, steps, width, reference)
        for place, component in enumerate(COMPONENTS)
    ]
    attempts = [judged.path.attempt_of(step) for step in steps]
    deaths = [
        _LEFT + index * width
        for index in range(1, len(steps))
        if attempts[index] != attempts[index - 1]
    ]
    begun = [
        index for index in range(len(steps)) if index == 0 or attempts[index] != attempts[index - 1]
    ]
    labels = [
        {
            "x": _LEFT + index * width,
            "text": f"attempt {attempts[index]}" if index == 0 else str(attempts[index]),
        }
        for index in begun
    ]
    ends = (
        [(0, "start"), (len(steps) - 1, "end")]
        if len(steps) > 1
        else [(0, "start")]
        if steps
        else []
    )
    ticks = [
        {"x": _LEFT + (index + (anchor == "end")) * width, "step": steps[index], "anchor": anchor}
        for index, anchor in ends
    ]
    drawn = {"rows": rows, "deaths": deaths, "attempts": labels, "ticks": ticks}
    drawn["words"] = _in_words(rows)
    return {
        "name": judged.arm.name,
        "width": _LEFT + max(width * len(steps), 60),
        "height": _TOP + _ROW * len(COMPONENTS) + 16,
        **drawn,
    }


def _row(
    judged: Judged,
    component: str,
    place: int,
    steps: list[int],
    width: float,
    reference: Judged | None,
) -> dict[str, Any]:
    cells: list[dict[str, Any]] = []
    for index, step in enumerate(steps):
        state = _state(judged, component, step, reference)
        if cells and cells[-1]["state"] == state:
            cells[-1]["width"] += width
            cells[-1]["last"] = step
        else:
            cells.append(
                {
                    "x": _LEFT + index * width,
                    "width": width,
                    "state": state,
                    "first": step,
                    "last": step,
                }
            )
    for cell in cells:
        cell["title"] = f"{component}, steps {cell['first']} to {cell['last']}: {cell['state']}"
    return {"name": component, "y": _TOP + place * _ROW, "cells": cells}


def _state(judged: Judged, component: str, step: int, reference: Judged | None) -> str:
    """One of STATES. Equal only where both recorded it: in a step that the undisturbed run never
    did, or by another number of processes, nothing is.
    """
    records = judged.path.steps[step]
    if all(value_of(record, component) is None for _, record in records.values()):
        return "not recorded"
    if reference is None or component in judged.ignored:
        return "not compared"
    if step not in reference.path.steps:
        return "not done undisturbed"
    if component in judged.differs.get(step, ()):
        return "different"
    others = reference.path.steps[step]
    pairs = [
        (record, others[rank][1])
        for rank, (attempt, record) in records.items()
        if rank in others and attempt not in judged.path.resized
    ]
    compared = any(
        value_of(one, component) is not None and value_of(other, component) is not None
        for one, other in pairs
    )
    return "equal" if compared else "not compared"


def _in_words(rows: list[dict[str, Any]]) -> list[str]:
    """The colours of a fingerprint in words: by state, the components with their steps; of equal
    ones, where all of it is equal.
    """
    lines = []
    for state, text in STATES.items():
        parts = [
            (row["name"], [_steps(cell) for cell in row["cells"] if cell["state"] == state])
            for row in rows
        ]
        named = [(spans, name) for name, spans in parts if spans]
        by_spans = groupby(sorted(named, key=lambda each: each[0]), key=lambda each: each[0])
        texts = [
            f"{', '.join(name for _, name in alike)}"
            f" ({', '.join(spans[:3])}{', ...' if len(spans) > 3 else ''})"
            for spans, alike in by_spans
        ]
        lines += [f"{text}: {'; '.join(texts)}"] if texts else []
    return lines


def _steps(cell: dict[str, Any]) -> str:
    return (
        f"step {cell['first']}"
        if cell["first"] == cell["last"]
        else f"steps {cell['first']} to {cell['last']}"
    )
