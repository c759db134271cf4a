"""Loss curves of experiments 1 to 3: a panel per seed, the distances to the reference beside the published ones."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ecrl_cli.replication.report.experiments import ARM_WORDS
from ecrl_cli.replication.report.sample import DIVERGENCES, Experiment
from ecrl_cli.replication.report.values import ExperimentValues
from ecrl_cli.report.figures.export import WIDTH, say
from ecrl_cli.report.figures.palette import INK, Colour, variant_colours
from ecrl_cli.report.figures.plots import curves
from ecrl_cli.report.formats import count, magnitude, printable
from ecrl_cli.report.model.run_record import Run
from ecrl_cli.report.model.timeline_view import thinned

MOST_POINTS = 240


def draw_losses(experiment: Experiment, values: ExperimentValues) -> Figure | None:
    """None where no run has losses. Wide curves under narrow ones, so that equal ones stay visible."""
    runs = {arm: [run for run in experiment.runs_of(arm) if _losses(run)] for arm in values.goodput}
    seeds = sorted({run.seed for members in runs.values() for run in members}, key=lambda seed: (len(seed), seed))
    if not seeds:
        return None
    columns = min(2, len(seeds))
    rows = -(-len(seeds) // columns)
    figure = Figure(figsize=(WIDTH, 2.6 * rows + 0.4), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    colours = variant_colours(list(values.goodput))
    for axes in panels.flat[len(seeds) :]:
        axes.set_axis_off()
    for axes, seed in zip(panels.flat, seeds, strict=False):
        members = [(arm, run) for arm, found in runs.items() for run in found if run.seed == seed]
        _panel(axes, members, colours)
        axes.set_title(f"seed {printable(seed)}: {_areas(members, values)}", fontsize=8, loc="left", color=INK.light)
    panels[0][0].set_ylabel("loss")
    handles = [Patch(color=colours[arm].light, label=ARM_WORDS[arm]) for arm in values.goodput]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), fontsize=8, handlelength=1, handleheight=0.5)
    return figure


def _panel(axes: Axes, members: Sequence[tuple[str, Run]], colours: dict[str, Colour]) -> None:
    points = [_losses(run) for _, run in members]
    widths = [max(1.0, 5.0 - 1.7 * number) for number in range(len(members))]
    for number, line in curves(axes, points, [colours[arm].light for arm, _ in members], widths).items():
        step, loss = points[number][-1]
        say(line, f"{ARM_WORDS[members[number][0]]}: loss {loss:.4g} at step {count(step)}")
    axes.set_xlabel("step")


def _areas(members: Sequence[tuple[str, Run]], values: ExperimentValues) -> str:
    """The area between each arm's curve and its reference's, and the published ones."""
    told = [f"{arm} {magnitude(DIVERGENCES['auc'](run))}" for arm, run in members if arm in values.drops]
    there = [f"{arm} {distances['auc']:.4g}" for arm, distances in values.divergence.items()]
    return f"loss AUC {', '.join(told)}\npublished: {', '.join(there)}" if told else "losses"


def _losses(run: Run) -> tuple[tuple[int, float], ...]:
    recorded = run.counted.mean_loss if run.counted else {}
    return thinned([(step, loss) for step, loss in sorted(recorded.items()) if loss is not None], MOST_POINTS)
