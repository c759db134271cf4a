"""The HTML page of an audit: the diagnosis on top, the fingerprint of each arm, its promises."""

from __future__ import annotations

from statistics import median
from typing import Any

from jinja2 import Environment

from ecrl_cli.audit.components import BROKEN, COMPONENTS, KEPT, UNKNOWN, Judged, value_of
from ecrl_cli.audit.costs import costs_of
from ecrl_cli.audit.verdict import AuditVerdict
from ecrl_cli.errors import visible

_CELL, _ROW, _LEFT, _MOST, _TOP = 16, 16, 112, 1050, 16
_COLOURS = {"equal": "#3a9a5b", "different": "#c2382f", "not recorded": "#c8c8c8", "not compared": "#7d9ec0"}
_ORDER = {BROKEN: 0, UNKNOWN: 1, "not checked": 2, KEPT: 3}

_TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ name }}: {{ verdict.status }}</title>
<style>
body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:1100px;padding:0 1em;color:#222}
h1{font-size:1.3em;overflow-wrap:anywhere} .valid{color:#2c7a46} .invalid{color:#b02a22} .unknown{color:#8a6100}
table{border-collapse:collapse;width:100%}
td,th{text-align:left;vertical-align:top;padding:.3em .6em;border-bottom:1px solid #ddd} td.said{min-width:14em;overflow-wrap:anywhere}
.broken{color:#b02a22;font-weight:600} .kept{color:#2c7a46} .scroll{overflow-x:auto} small{color:#666} svg{display:block}
</style></head><body>
<h1>{{ name }}: <span class="{{ verdict.status }}">{{ verdict.status }}</span></h1>
<p><strong>{{ verdict.diagnosis }}</strong>{% if cause %}<br><small>{{ cause }}</small>{% endif %}</p>
<h2>Fingerprints</h2>
<p><small>Steps from left to right, what each step recorded from top to bottom: green where it equals the undisturbed run, red where it
differs, grey where it was not recorded, blue where it was not compared. A dark bar is a death: what is right of it was done by a
later attempt, whose number stands above.</small></p>
{% for arm in arms %}<h3>{{ arm.name }}</h3><div class="scroll">
<svg width="{{ arm.width }}" height="{{ arm.height }}" role="img" aria-label="fingerprint of {{ arm.name }}">
{% for row in arm.rows %}<text x="0" y="{{ row.y + 12 }}" font-size="11">{{ row.name }}</text>
{% for cell in row.cells %}<rect x="{{ cell.x }}" y="{{ row.y }}" width="{{ cell.width }}" height="14" fill="{{ cell.colour }}">
<title>{{ cell.title }}</title></rect>{% endfor %}
{% endfor %}{% for attempt in arm.attempts %}<text x="{{ attempt.x + 3 }}" y="11" font-size="10">{{ attempt.text }}</text>{% endfor %}
{% for tick in arm.ticks %}<text x="{{ tick.x }}" y="{{ arm.height - 3 }}" font-size="10" text-anchor="{{ tick.anchor }}">{{ tick.step }}</text>
{% endfor %}{% for death in arm.deaths %}<rect class="death" x="{{ death }}" y="0" width="2" height="{{ arm.height - 14 }}" fill="#111"></rect>
{% endfor %}
</svg></div>{% endfor %}
<h2>Promises</h2>
<div class="scroll"><table><tr><th>status</th><th>promise</th><th>arm</th><th>what was found</th></tr>
{% for finding in findings %}<tr><td class="{{ finding.status | replace(' ', '-') }}">{{ finding.status }}</td>
<td>{{ finding.promise }}</td><td>{{ finding.arm }}</td>
<td class="said">{{ finding.message }}{% for text in finding.evidence %}<br><small>{{ text }}</small>{% endfor %}</td></tr>{% endfor %}
</table></div>
<h2>Costs</h2>
<div class="scroll"><table><tr><th>arm</th><th>steps</th><th>done again</th><th>seconds of each attempt</th><th>back after a death</th>
<th>stall of a save</th><th>goodput</th></tr>
{% for cost in costs %}<tr><td>{{ cost.arm }}</td><td>{{ cost.steps }}</td><td>{{ cost.again }}</td><td>{{ cost.seconds }}</td>
<td>{{ cost.restarts }}</td><td>{{ cost.saves }}</td><td>{{ cost.goodput }}</td></tr>{% endfor %}
</table></div>
<p><small>Back after a death: from the last step before it to the end of the first one after it, start of the processes and the load included.
Goodput: the share of the wall time that went into steps which count. Recording is part of all of this.</small></p>
{% if verdict.troubles %}<h2>Not seen</h2><ul>{% for trouble in verdict.troubles %}<li>{{ trouble }}</li>{% endfor %}</ul>{% endif %}
</body></html>
"""


def page(name: str, verdict: AuditVerdict) -> str:
    """The content of index.html; all recorded text is escaped and free of control characters."""
    findings = sorted(verdict.findings, key=lambda finding: _ORDER[finding.status])
    arms = [*sorted(verdict.arms, key=lambda judged: not judged.differs), *verdict.references]
    first = verdict.references[0] if verdict.references else None
    fingerprints = [_fingerprint(judged, first is not None and judged is not first) for judged in arms]
    template = Environment(autoescape=True).from_string(_TEMPLATE)
    costs = [_cost(judged) for judged in arms]
    text = template.render(name=name, verdict=verdict, cause=_cause(verdict), findings=findings, arms=fingerprints, costs=costs)
    return "\n".join(visible(line) for line in text.split("\n"))


def _cause(verdict: AuditVerdict) -> str:
    """Promise, step and arm that the diagnosis is about."""
    for finding in verdict.findings:
        if finding.status == BROKEN and finding.message == verdict.diagnosis:
            return ", ".join(filter(None, (finding.promise, f"step {finding.step}" if finding.step else "", finding.arm and f"arm {finding.arm}")))
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
        "saves": f"{1000 * median(saves):.0f} ms, at most {1000 * max(saves):.0f} ms ({len(saves)})" if saves else "-",
        "goodput": f"{100 * found.goodput:.0f} %" if found.goodput is not None else "not known",
    }


def _fingerprint(judged: Judged, compared: bool) -> dict[str, Any]:
    """The fingerprint of an arm as rectangles: consecutive steps of the same state share one, so a long job has few."""
    steps = sorted(judged.path.steps)
    width = max(1.0, min(float(_CELL), (_MOST - _LEFT) / max(1, len(steps))))
    rows = [_row(judged, component, place, steps, width, compared) for place, component in enumerate(COMPONENTS)]
    attempts = [judged.path.attempt_of(step) for step in steps]
    deaths = [_LEFT + index * width for index in range(1, len(steps)) if attempts[index] != attempts[index - 1]]
    begun = [index for index in range(len(steps)) if index == 0 or attempts[index] != attempts[index - 1]]
    labels = [{"x": _LEFT + index * width, "text": f"attempt {attempts[index]}" if index == 0 else str(attempts[index])} for index in begun]
    ends = [(0, "start"), (len(steps) - 1, "end")] if len(steps) > 1 else [(0, "start")] if steps else []
    ticks = [{"x": _LEFT + (index + (anchor == "end")) * width, "step": steps[index], "anchor": anchor} for index, anchor in ends]
    drawn = {"rows": rows, "deaths": deaths, "attempts": labels, "ticks": ticks}
    return {"name": judged.arm.name, "width": _LEFT + max(width * len(steps), 60), "height": _TOP + _ROW * len(COMPONENTS) + 16, **drawn}


def _row(judged: Judged, component: str, place: int, steps: list[int], width: float, compared: bool) -> dict[str, Any]:
    cells: list[dict[str, Any]] = []
    for index, step in enumerate(steps):
        state = _state(judged, component, step, compared)
        if cells and cells[-1]["state"] == state:
            cells[-1]["width"] += width
            cells[-1]["last"] = step
        else:
            cells.append({"x": _LEFT + index * width, "width": width, "state": state, "first": step, "last": step})
    for cell in cells:
        cell["colour"] = _COLOURS[cell["state"]]
        cell["title"] = f"{component}, steps {cell['first']} to {cell['last']}: {cell['state']}"
    return {"name": component, "y": _TOP + place * _ROW, "cells": cells}


def _state(judged: Judged, component: str, step: int, compared: bool) -> str:
    if all(value_of(record, component) is None for _, record in judged.path.steps[step].values()):
        return "not recorded"
    if not compared or component in judged.ignored:
        return "not compared"
    return "different" if component in judged.differs.get(step, ()) else "equal"
