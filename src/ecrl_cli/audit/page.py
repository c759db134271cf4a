"""The HTML page of an audit: the diagnosis on top, the fingerprint of each arm, its promises."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment

from ecrl_cli.audit.components import BROKEN, COMPONENTS, KEPT, UNKNOWN, Judged, value_of
from ecrl_cli.audit.verdict import AuditVerdict
from ecrl_cli.errors import visible

_CELL, _ROW, _LEFT, _MOST = 8, 16, 112, 1200
_COLOURS = {"equal": "#3a9a5b", "different": "#c2382f", "not recorded": "#c8c8c8", "not compared": "#7d9ec0"}
_ORDER = {BROKEN: 0, UNKNOWN: 1, "not checked": 2, KEPT: 3}

_TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ name }}: {{ verdict.status }}</title>
<style>
body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:1100px;padding:0 1em;color:#222}
h1{font-size:1.3em;overflow-wrap:anywhere} .valid{color:#2c7a46} .invalid{color:#b02a22} .unknown{color:#8a6100}
table{border-collapse:collapse;width:100%}
td,th{text-align:left;vertical-align:top;padding:.3em .6em;border-bottom:1px solid #ddd;overflow-wrap:anywhere}
.broken{color:#b02a22;font-weight:600} .kept{color:#2c7a46} .scroll{overflow-x:auto} small{color:#666} svg{display:block}
</style></head><body>
<h1>{{ name }}: <span class="{{ verdict.status }}">{{ verdict.status }}</span></h1>
<p><strong>{{ verdict.diagnosis }}</strong></p>
<h2>Fingerprints</h2>
<p><small>Steps from left to right, what each step recorded from top to bottom: green where it equals the undisturbed run, red where it
differs, grey where it was not recorded, blue where it was not compared. A dark bar is a death: what is right of it was done by a
later attempt.</small></p>
{% for arm in arms %}<h3>{{ arm.name }}</h3><div class="scroll">
<svg width="{{ arm.width }}" height="{{ arm.height }}" role="img" aria-label="fingerprint of {{ arm.name }}">
{% for row in arm.rows %}<text x="0" y="{{ row.y + 12 }}" font-size="11">{{ row.name }}</text>
{% for cell in row.cells %}<rect x="{{ cell.x }}" y="{{ row.y }}" width="{{ cell.width }}" height="14" fill="{{ cell.colour }}">
<title>{{ cell.title }}</title></rect>{% endfor %}
{% endfor %}{% for death in arm.deaths %}<rect x="{{ death }}" y="0" width="2" height="{{ arm.height }}" fill="#111"></rect>{% endfor %}
</svg></div>{% endfor %}
<h2>Promises</h2>
<table><tr><th>status</th><th>promise</th><th>arm</th><th>what was found</th></tr>
{% for finding in findings %}<tr><td class="{{ finding.status | replace(' ', '-') }}">{{ finding.status }}</td>
<td>{{ finding.promise }}</td><td>{{ finding.arm }}</td>
<td>{{ finding.message }}{% for text in finding.evidence %}<br><small>{{ text }}</small>{% endfor %}</td></tr>{% endfor %}
</table>
<h2>Costs</h2>
<table><tr><th>arm</th><th>attempts</th><th>seconds of each</th><th>steps</th><th>steps done again</th></tr>
{% for cost in costs %}<tr><td>{{ cost.arm }}</td><td>{{ cost.attempts }}</td><td>{{ cost.seconds }}</td><td>{{ cost.steps }}</td>
<td>{{ cost.again }}</td></tr>{% endfor %}
</table>
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
    text = template.render(name=name, verdict=verdict, findings=findings, arms=fingerprints, costs=[_cost(judged) for judged in arms])
    return "\n".join(visible(line) for line in text.split("\n"))


def _cost(judged: Judged) -> dict[str, Any]:
    again = len({(step, attempt) for step, _, attempt, _, _ in judged.path.done_again})
    seconds = ", ".join(f"{launch.seconds:.1f}" for launch in judged.arm.launches) or "not known"
    return {"arm": judged.arm.name, "attempts": len(judged.arm.attempts), "seconds": seconds, "steps": judged.path.last, "again": again}


def _fingerprint(judged: Judged, compared: bool) -> dict[str, Any]:
    """The fingerprint of an arm as rectangles: consecutive steps of the same state share one, so a long job has few."""
    steps = sorted(judged.path.steps)
    width = max(1.0, min(float(_CELL), (_MOST - _LEFT) / max(1, len(steps))))
    rows = [_row(judged, component, place, steps, width, compared) for place, component in enumerate(COMPONENTS)]
    attempts = [min(attempt for attempt, _ in judged.path.steps[step].values()) for step in steps]
    deaths = [_LEFT + index * width for index in range(1, len(steps)) if attempts[index] != attempts[index - 1]]
    return {"name": judged.arm.name, "rows": rows, "width": _LEFT + width * len(steps), "height": _ROW * len(COMPONENTS), "deaths": deaths}


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
    return {"name": component, "y": place * _ROW, "cells": cells}


def _state(judged: Judged, component: str, step: int, compared: bool) -> str:
    if all(value_of(record, component) is None for _, record in judged.path.steps[step].values()):
        return "not recorded"
    if not compared or component in judged.ignored:
        return "not compared"
    return "different" if component in judged.differs.get(step, ()) else "equal"
