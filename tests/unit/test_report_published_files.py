"""What the publication writes: claims that can fail, findings counted from records, an artifact per
suite, figures with both values.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.metrics.statistics import paired
from ecrl_cli.replication.report import claims as claims_module
from ecrl_cli.replication.report.claims import Claim, claims
from ecrl_cli.replication.report.findings import NewFinding, limits, new_findings
from ecrl_cli.replication.report.publication import publication
from ecrl_cli.replication.report.sample import Experiment, experiments
from ecrl_cli.replication.report.values import SUITES
from ecrl_cli.report.build import report
from ecrl_cli.report.model.arms import arms_of
from ecrl_cli.report.model.contrast import Contrast
from ecrl_cli.report.render.publication import Publication
from tests.unit.published_runs import SEEDS, cell, diverge, matrix, read, recorded, run_of
from tests.unit.report_runs import Plan, edit, make_sweep

BASE, LATE = "cifar10-r18-base", "cifar10-r18-late"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two suites whose references are the same runs under two names."""
    return matrix(tmp_path_factory.mktemp("matrix") / "sweep", (BASE, LATE))


@pytest.fixture(scope="module")
def published(sweep: Path) -> Publication:
    return publication(read(sweep))


def claimed(*folders: Path) -> dict[str, Claim]:
    return {claim.claim: claim for claim in claims(experiments(read(*folders)))}


def found(*folders: Path) -> dict[str, NewFinding]:
    return {entry.finding: entry for entry in new_findings(experiments(read(*folders)), [])}


def document(published: Publication, name: str) -> Any:
    return json.loads(published.files[name])


def slowed(folder: Path, variant: str, factor: Callable[[int], float]) -> Path:
    """The sweep with the goodput of one arm scaled, seed by seed."""
    for suite in (BASE, LATE):
        for number, seed in enumerate(SEEDS):
            metrics = run_of(folder, suite, variant, seed).metrics
            said = json.loads(metrics.read_text())
            edit(metrics, goodput=said["goodput"] * factor(number))
    return folder


GAIN = "overlapped has more goodput than blocking, launch to target"


def test_a_claim_is_supported_where_its_interval_and_the_noise_say_so(sweep: Path) -> None:
    told = claimed(sweep)
    assert (
        told[GAIN].verdict == "supported"
        and "above the floor (means of equal runs differ by up to" in told[GAIN].why
    )
    assert told["overlapped stalls less than blocking"].verdict == "supported"
    assert (
        told["every run is correct"].verdict == "supported"
        and told["every run is correct"].measured == "18 of 18 valid"
    )


def test_a_claim_is_contradicted_by_what_was_measured(tmp_path: Path) -> None:
    told = claimed(slowed(matrix(tmp_path / "sweep", (BASE, LATE)), "ovl", lambda _: 0.5))
    assert (
        told[GAIN].verdict == "contradicted"
        and told[GAIN].measured.startswith("mean of ratios -")
        and "; ratio of means -" in told[GAIN].measured
    )
    assert "outside the interval" in told[GAIN].why
    assert told["overlapped beats blocking in every suite"].measured == "0 of 2 above zero"


def test_a_claim_within_the_noise_is_undecided(tmp_path: Path) -> None:
    folder = slowed(
        matrix(tmp_path / "sweep", (BASE, LATE)), "ovl", lambda number: 0.5 + 0.5 * number
    )
    assert claimed(folder)[GAIN].verdict == "undecided"


def test_equal_runs_that_differ_more_than_the_effect_decide_nothing(tmp_path: Path) -> None:
    folder = matrix(tmp_path / "sweep", (BASE, LATE))
    metrics = run_of(folder, LATE, "ref", 2027).metrics
    edit(metrics, goodput=json.loads(metrics.read_text())["goodput"] * 3)
    told = claimed(folder)[GAIN]
    assert told.verdict == "undecided" and "within the floor" in told.why


def test_one_broken_run_contradicts_correctness(tmp_path: Path) -> None:
    folder = matrix(tmp_path / "sweep", (BASE,), (1337,))
    edit(run_of(folder, BASE, "blk").verdict, status="invalid")
    told = claimed(folder)
    assert (
        told["every run is correct"].verdict == "contradicted"
        and told[GAIN].verdict == "not measured"
    )


@pytest.mark.parametrize("without", ["unknown", "not judged", "changed"])
def test_correctness_is_not_supported_while_a_run_is_unjudged(tmp_path: Path, without: str) -> None:
    folder = matrix(tmp_path / "sweep", (BASE,), (1337,))
    assert claimed(folder)["every run is correct"].verdict == "supported"
    run = run_of(folder, BASE, "blk")
    if without == "unknown":
        edit(run.verdict, status="unknown")
    elif without == "not judged":
        run.verdict.unlink()
    else:
        run.environment.write_text("{}")
    told = claimed(folder)["every run is correct"]
    assert (
        told.verdict == "undecided"
        and told.measured == "2 of 3 valid"
        and "0 broke a promise, 1 not judged" in told.why
    )


def at_scale(folder: Path, scale: str) -> Path:
    """One suite, three seeds, with overlapped twice as slow as blocking."""
    make_sweep(folder, [plan for seed in SEEDS for plan in cell(BASE, seed, scale=scale)])
    for seed in SEEDS:
        metrics = run_of(folder, BASE, "ovl", seed).metrics
        edit(metrics, goodput=json.loads(metrics.read_text())["goodput"] / 2)
    return folder


@pytest.mark.parametrize(
    ("scale", "verdict"),
    [
        ("paper", "contradicted"),
        ("cpu", "scale too small to say"),
        ("smoke", "scale too small to say"),
    ],
)
def test_a_published_claim_is_judged_at_its_own_scale_only(
    tmp_path: Path, scale: str, verdict: str
) -> None:
    told = claimed(at_scale(tmp_path / "sweep", scale))
    assert told[GAIN].verdict == verdict and told[GAIN].n == 3
    assert ("claimed at scale paper, measured at" in told[GAIN].why) == (scale != "paper")
    verdicts = {claim.verdict for claim in told.values()} - {"not measured"}
    assert ("scale too small to say" in verdicts) == (scale != "paper") and (
        scale == "paper" or len(verdicts) == 1
    )
    against = [
        entry
        for entry in new_findings(experiments(read(tmp_path / "sweep")), list(told.values()))
        if entry.finding == GAIN
    ]
    assert [(entry.kind, entry.n) for entry in against] == (
        [("against", 3)] if scale == "paper" else []
    )


class EverySuite:
    """An experiment over all eight suites, of which some gains are not statistically
    distinguishable.
    """

    comparison = None

    def __init__(self, indistinct: int) -> None:
        names = [values.suite for values in SUITES]
        self.pairs = {name: paired([1.1, 1.2, 1.3], [1.0, 1.1, 1.2]) for name in names}
        self.pairs |= {
            name: paired([1.0, 3.0, 1.6], [1.0, 1.0, 1.9]) for name in names[:indistinct]
        }

    def contrast(self, variant: str, base: str, measure: str, suites: list[str]) -> Contrast:
        return Contrast(variant, base, measure, self.pairs[suites[0]], None)


@pytest.mark.parametrize(
    ("indistinct", "verdict"), [(0, "supported"), (1, "undecided"), (8, "undecided")]
)
def test_every_suite_supports_only_where_every_suite_is_distinguishable(
    monkeypatch: pytest.MonkeyPatch, indistinct: int, verdict: str
) -> None:
    experiment: Any = EverySuite(indistinct)
    monkeypatch.setattr(
        claims_module,
        "gains",
        lambda e: {name: pair.mean_of_ratios.mean for name, pair in e.pairs.items()},
    )
    told = claims_module._unanimous(experiment)
    assert (told.verdict, told.measured, told.n) == (verdict, "8 of 8 above zero", 24)


def test_the_two_reports_claim_opposite_signs(tmp_path: Path) -> None:
    """Experiments 1 and 3 found overlapped slower; three seeds of one that is faster contradict
    them.
    """
    sweep = make_sweep(tmp_path / "sweep", [plan for seed in SEEDS for plan in cell("exp3", seed)])
    told = claimed(sweep)
    clocks = [
        told[f"overlapped does not beat blocking, {clock}"]
        for clock in ("published clock", "launch to target")
    ]
    assert [(claim.verdict, claim.published) for claim in clocks] == [
        ("contradicted", "-1.693% (ratio of means)"),
        ("contradicted", "-"),
    ]
    assert "no size was published on this clock" in clocks[1].why


def test_a_published_size_is_of_the_clock_and_the_ratio_that_it_stands_beside(sweep: Path) -> None:
    told = claimed(sweep)
    assert told[GAIN].published == "+2.43% (mean of ratios)"
    assert (
        told["overlapped has more goodput than blocking, published clock"].published
        == "+3.227% (ratio of means)"
    )
    ends = "overlapped ends sooner than blocking, published clock"
    ovl, blk = (
        [n - 1 for s in (BASE, LATE) for n in recorded(sweep, s, arm, "wall_s")]
        for arm in ("ovl", "blk")
    )
    assert told[ends].published == "-3.444% (ratio of means)"
    assert f"ratio of means {100 * (sum(ovl) / sum(blk) - 1):+.2f}%" in told[ends].measured


def test_two_restarts_are_looked_for_in_every_run(tmp_path: Path) -> None:
    """One restart in one run and three in another have the right mean."""
    claim = "two restarts in every run with failures"
    shown = read(matrix(tmp_path / "sweep", (BASE,)))
    assert {entry.claim: entry for entry in claims(experiments(shown))}[
        claim
    ].measured == "in 6 of 6 runs"
    changes = {("blk", "1337"): 1, ("ovl", "1337"): 3}
    told_of = [(run, changes.get((run.variant, run.seed), 2)) for run in shown.runs]
    runs = [
        replace(run, metrics=replace(run.metrics, restarts=number))
        for run, number in told_of
        if run.metrics
    ]
    spoilt = Experiment(
        "exp4",
        replace(shown, runs=tuple(runs), arms=tuple(arms_of(runs, [run.suite for run in runs]))),
        (BASE,),
        {},
        (),
    )
    told = {entry.claim: entry for entry in claims([spoilt])}[claim]
    assert (told.verdict, told.measured) == ("contradicted", "in 4 of 6 runs")


def test_walls_and_writes_are_ordered_only_where_both_are_sure(tmp_path: Path) -> None:
    claim = "the wall time falls by less than the write time"
    folder = matrix(tmp_path / "sweep", (BASE,))
    for number, seed in enumerate(SEEDS):
        for variant, write, wall in (
            ("blk", 10.0, 5.0),
            ("ovl", 4.0 + 0.01 * number, 4.5 + 0.01 * number),
        ):
            metrics = run_of(folder, BASE, variant, seed).metrics
            said = json.loads(metrics.read_text())
            edit(
                metrics,
                checkpoints={**said["checkpoints"], "write_s": write},
                goodput_published_clock=20 / wall,
            )
    assert claimed(folder)[claim].verdict == "supported"
    for number, seed in enumerate(SEEDS):
        edit(
            run_of(folder, BASE, "ovl", seed).metrics,
            goodput_published_clock=20 / (1.0 + 3 * number),
        )
    assert claimed(folder)[claim].verdict == "undecided"


def test_a_published_drift_is_contradicted_by_exact_recovery_alone(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", cell("exp3"))
    claim = "arms with failures: the losses leave the reference's"
    assert claimed(sweep)[claim].verdict == "not measured"
    for variant in ("blk", "ovl"):
        diverge(run_of(sweep, "exp3", variant), 0.0, equal=True)
    assert claimed(sweep)[claim].verdict == "contradicted"
    diverge(run_of(sweep, "exp3", "ovl"), 0.1, equal=False)
    assert claimed(sweep)[claim].verdict == "supported"


def test_end_states_and_replays_are_counted_from_the_records(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", cell(BASE))
    diverge(run_of(sweep, BASE, "blk"), 0.0, equal=True)
    diverge(run_of(sweep, BASE, "ovl"), 0.1, equal=False)
    told = found(sweep)
    assert (
        told["recovery leaves the trajectory"].measured
        == "1 of 2 runs with failures end bit for bit as their reference"
    )
    steps = sum(
        sum(recorded(sweep, BASE, variant, "replayed_steps", (1337,))) for variant in ("blk", "ovl")
    )
    assert (
        steps > 0
        and told["steps done again"].measured == f"{steps:.0f} steps"
        and told["steps done again"].kind == "beyond"
    )


def test_a_run_that_was_not_compared_stays_in_the_count(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", cell(BASE))
    diverge(run_of(sweep, BASE, "blk"), 0.0, equal=True)
    partly = found(sweep)["recovery is not shown to keep the trajectory"]
    assert (
        partly.measured
        == "1 of 2 runs with failures end bit for bit as their reference, 1 not compared"
        and partly.kind == "limit"
    )
    diverge(run_of(sweep, BASE, "ovl"), 0.0, equal=True)
    assert found(sweep)["recovery keeps the trajectory"].kind == "against"


def test_the_gain_depends_on_the_clock_only_where_the_clocks_disagree(tmp_path: Path) -> None:
    folder = matrix(tmp_path / "sweep", (BASE,))
    assert "the gain of overlapped has one sign on both clocks (mean of ratios)" in found(folder)
    for seed in SEEDS:
        edit(run_of(folder, BASE, "ovl", seed).metrics, goodput_published_clock=0.5)
    assert "the gain of overlapped depends on the clock (mean of ratios)" in found(folder)


def test_losses_are_equal_by_their_steps(tmp_path: Path) -> None:
    """Equal runs whose losses end in NaN have no distance, and are equal all the same; one that was
    not compared decides nothing.
    """
    claim = "blocking: the losses equal the reference's"
    sweep = make_sweep(
        tmp_path / "sweep", [plan for seed in SEEDS[:2] for plan in cell("exp1", seed)]
    )
    diverge(run_of(sweep, "exp1", "blk"), float("nan"), equal=True)
    assert claimed(sweep)[claim].verdict == "undecided"
    diverge(run_of(sweep, "exp1", "blk", SEEDS[1]), 0.0, equal=True)
    told = claimed(sweep)[claim]
    assert told.verdict == "supported" and told.measured.startswith(
        "2 of 2 runs equal in every step, 0 not compared"
    )


def test_checkpoints_that_were_lost_are_counted_as_lost(tmp_path: Path) -> None:
    sweep = make_sweep(
        tmp_path / "sweep",
        [replace(plan, kills=(9, 13) if plan.kills else ()) for plan in cell(BASE)],
    )
    sums = {
        key: sum(sum(recorded(sweep, BASE, v, key, (1337,))) for v in ("ref", "blk", "ovl"))
        for key in ("submitted", "committed", "failed", "lost")
    }
    expected = (
        f"{sums['submitted']:.0f} submitted: {sums['committed']:.0f} committed,"
        f" {sums['failed']:.0f} failed, {sums['lost']:.0f} lost"
    )
    assert (
        sums["lost"] >= 2
        and found(sweep)["every submitted checkpoint is accounted for"].measured == expected
    )


def test_the_price_of_checkpoints_needs_an_arm_without_them(sweep: Path, tmp_path: Path) -> None:
    what = "what checkpointing itself costs (reference against clean)"
    assert found(sweep)[what].kind == "limit"
    clean = replace(cell(BASE)[0], variant="clean", strategy="none")
    assert found(make_sweep(tmp_path / "sweep", [clean, *cell(BASE)]))[what].kind == "beyond"


@pytest.mark.parametrize(("kills", "said"), [((8, 16), True), ((7, 16), False)])
def test_failures_that_lie_on_checkpoints_are_a_limit(
    tmp_path: Path, kills: tuple[int, ...], said: bool
) -> None:
    sweep = make_sweep(tmp_path / "sweep", [Plan(suite=BASE, steps=20, every=4, kills=kills)])
    assert (
        any(
            "planned failures lie on a checkpoint" in text
            for text in limits(experiments(read(sweep)))
        )
        is said
    )


def test_every_suite_has_its_artifact(sweep: Path, published: Publication) -> None:
    artifact = document(published, f"reports/{BASE}_publishable.json")
    assert (
        artifact["configuration"]["dataset"]["name"]
        and "root" not in artifact["configuration"]["dataset"]
    ), "it is read on other machines"
    assert artifact["accepted"] is True and artifact["scale"] == "paper"
    assert [(arm["arm"], arm["seeds"]) for arm in artifact["arms"]] == [
        (arm, list(map(str, SEEDS))) for arm in ("ref", "blk", "ovl")
    ]
    statistics = {row["arm"]: row for row in artifact["statistics"]}
    assert statistics["blk"]["goodput_mean"] == pytest.approx(
        sum(recorded(sweep, BASE, "blk", "goodput")) / 3
    )
    assert {run["verdict"]["status"] for run in artifact["runs"]} == {"valid"} and len(
        artifact["runs"]
    ) == 9
    assert (
        artifact["code_revisions"] == ["ecrl ? a1"]
        and artifact["environment"]["python"] == "3.11.7"
    )
    text = published.files[f"reports/{LATE}_publishable.md"].decode()
    assert text.startswith(f"# {LATE}: accepted") and "steps 20 instead of 1,600" in text


@pytest.mark.usefixtures("undrawn")
def test_a_refused_suite_has_an_artifact_without_averages(tmp_path: Path) -> None:
    folder = matrix(tmp_path / "sweep", (BASE, LATE), (1337,))
    edit(run_of(folder, BASE, "blk").verdict, status="invalid")
    made = publication(read(folder))
    refused = document(made, f"reports/{BASE}_publishable.json")
    assert refused["accepted"] is False and refused["comparisons"] == []
    assert all(row["goodput_mean"] is None for row in refused["statistics"])
    assert document(made, f"reports/{LATE}_publishable.json")["accepted"] is True
    assert "**failed**: verified" in made.files[f"reports/{BASE}_publishable.md"].decode()


@pytest.mark.usefixtures("undrawn")
def test_the_manifest_is_the_sweeps_own(
    sweep: Path, published: Publication, tmp_path: Path
) -> None:
    assert published.files["manifest.csv"] == (sweep / "manifest.csv").read_bytes()
    other = make_sweep(tmp_path / "other", cell("exp1"))
    both = publication(read(sweep, other)).files
    assert (
        both["manifest-sweep.csv"] == (sweep / "manifest.csv").read_bytes()
        and both["manifest-other.csv"] == (other / "manifest.csv").read_bytes()
    )


def test_the_summary_holds_tables_claims_findings_and_limits(published: Publication) -> None:
    summary = document(published, "publication_summary.json")
    assert [table["ident"] for table in summary["tables"]] == [
        table.ident for table in published.tables
    ]
    assert summary["claims"] and summary["limits"] and len(summary["statistics"]) >= 6
    rows = list(
        csv.DictReader(io.StringIO(published.files["new_findings.csv"].decode(), newline=""))
    )
    assert [row["finding"] for row in rows] == [
        entry["finding"] for entry in summary["new_findings"]
    ]
    text = published.files["publication_summary.md"].decode()
    assert (
        all(table.table.title in text for table in published.tables)
        and "2 of 2 suites accepted" in text
    )


def test_figures_show_the_measured_and_the_published_value(
    sweep: Path, published: Publication
) -> None:
    pictures = {picture.name: picture for picture in published.pictures}
    assert list(pictures) == [
        "exp4_fig2_normalised_goodput",
        "exp4_fig3_overlapped_gain",
        "exp4_fig4_stall_and_gain",
    ]
    ovl, blk = (sum(recorded(sweep, BASE, arm, "goodput")) for arm in ("ovl", "blk"))
    assert (
        f"CIFAR-10 ResNet-18 base: {100 * (ovl / blk - 1):+.2f}% measured, launch to target"
        in pictures["exp4_fig3_overlapped_gain"].svg
    )
    assert "CIFAR-10 ResNet-18 base: +4.04% published" in pictures["exp4_fig3_overlapped_gain"].svg
    assert (
        "CIFAR-10 ResNet-18 late blk: 0.849 published"
        in pictures["exp4_fig2_normalised_goodput"].svg
    )
    assert "ResNet-50 base" not in pictures["exp4_fig3_overlapped_gain"].svg  # it was not run
    for picture in published.pictures:
        assert (
            published.files[f"figures/{picture.name}.png"] == picture.png
            and published.files[f"figures/{picture.name}.pdf"][:4] == b"%PDF"
        )
        assert "scale paper" in picture.title


def test_the_first_experiments_have_their_curves(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", cell("exp1"))
    diverge(run_of(sweep, "exp1", "ovl"), 0.5, equal=False)
    pictures = {picture.name: picture.svg for picture in publication(read(sweep)).pictures}
    assert list(pictures) == ["goodput_exp1", "loss_curves_exp1"]
    assert (
        "blocking: 7.795 published" in pictures["goodput_exp1"]
        and "ovl 9.5" in pictures["loss_curves_exp1"]
    )


@pytest.mark.parametrize(
    "environment",
    [
        {
            "memory_bytes": "much",
            "cpu": {"model": 5},
            "packages": {"torch": []},
            "gpus": [{}],
            "python": None,
        },
        {"cpu": 3, "gpus": "no"},
    ],
)
@pytest.mark.usefixtures("undrawn")
def test_records_of_another_shape_stop_nothing(
    tmp_path: Path, environment: dict[str, object]
) -> None:
    sweep = make_sweep(tmp_path / "sweep", cell(BASE))
    run_of(sweep, BASE, "ref").config.unlink()
    for variant in ("ref", "blk", "ovl"):
        run_of(sweep, BASE, variant).environment.write_text(json.dumps(environment))
    made = publication(read(sweep))
    assert (
        len(made.tables) == 8
        and document(made, f"reports/{BASE}_publishable.json")["accepted"] is False
    )


def test_the_report_writes_all_of_it_and_other_suites_get_their_artifact_alone(
    tmp_path: Path,
) -> None:
    folder = report([make_sweep(tmp_path / "sweep", cell("digits-cnn"))]).page.parent
    assert (folder / "reports" / "digits-cnn_publishable.json").exists() and (
        folder / "publication_summary.md"
    ).exists()
    assert not list((folder / "figures").glob("exp*")) and not (folder / "new_findings.md").exists()
    assert (
        "None of them is a suite of a published experiment"
        in (folder / "publication_summary.md").read_text()
    )
