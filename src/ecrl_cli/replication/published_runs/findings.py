"""Findings in the published runs' own logs, finding by finding, each with its evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ecrl_cli.replication.published_runs.logs import PublishedRun
from ecrl_cli.replication.published_runs.pairs import Matrix, Pair, first_difference, same
from ecrl_cli.report.formats import change, count, duration, magnitude, plural, share

SHOWN, NOT_SHOWN, UNKNOWN = "shown", "not shown", "unknown"


@dataclass(frozen=True)
class LogFinding:
    """One finding. `status`: `shown` by these logs, `not shown`, or `unknown` where they lack what
    it takes; `sentences`: the counts and means; `evidence`: a place where anybody can look;
    `figures`: the numbers in the sentences, in seconds, steps, counts and ratios.
    """

    id: str
    title: str
    status: str
    sentences: tuple[str, ...]
    evidence: tuple[str, ...]
    figures: Mapping[str, float]


def findings(matrix: Matrix, folder: Path) -> list[LogFinding]:
    """All findings of one matrix; paths in the evidence are relative to `folder`."""
    return [finding(matrix, folder) for finding in _FINDINGS]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _unknown(id: str, title: str, lack: str) -> LogFinding:
    return LogFinding(id, title, UNKNOWN, (f"these logs lack {lack}",), (), {})


def _models(pairs: Sequence[Pair]) -> str:
    return ", ".join(sorted({pair.run.name.model for pair in pairs})) or "no"


def _losses(pair: Pair, step: int, rank: int, folder: Path) -> str:
    ours, theirs = pair.run.steps[rank][step].loss, pair.reference.steps[rank][step].loss
    place = (pair.run.folder / f"rank{rank}.jsonl").relative_to(folder)
    return f"{place}: step {step} has loss {ours!r}, its reference {theirs!r}"


def _trajectory(matrix: Matrix, folder: Path) -> LogFinding:
    id, title = "T-01", "recovery changes the trajectory, and every published check passes"
    # Where a run is not its reference's before any failure, nothing can be said of a recovery.
    pairs = [pair for pair in matrix.pairs if pair.judged != "unknown"]
    if not pairs:
        return _unknown(id, title, "runs that are their reference's until the first failure")
    invalid = [pair for pair in pairs if pair.judged == "invalid"]
    behind = [pair for pair in invalid if pair.difference and _next_step(pair)]
    states = [(pair, step, state) for pair in pairs for step, state in pair.states()]
    before = [same(s) for pair, step, s in states if pair.failure and step <= pair.failure]
    later = [same(s) for pair, step, s in states if pair.failure and step > pair.failure]
    judged = {pair.run.name.pair for pair in pairs}
    twins = [(b, o) for b, o in matrix.strategies if b.name.pair in judged]
    equal = sum(first_difference(b, o) is None for b, o in twins)
    checked = [pair.run.correctness for pair in pairs if pair.run.correctness is not None]
    passed = sum(answer.passed for answer in checked)
    sentences = (
        f"{len(pairs)} runs with failures ({_models(pairs)}) are their reference's until the first"
        f" failure: the losses of every rank, and {sum(before)} of {len(before)} digests of the"
        " weights",
        f"{len(behind)} of {len(pairs)} differ from the very next step on;"
        f" {later.count(False)} of {len(later)} later digests differ",
        f"blocking and overlapped agree bit for bit in {equal} of {len(twins)} pairs, losses of"
        " every rank at every step: what changes the trajectory is no chance",
        f"the published correctness check passes {passed} of {len(checked)} of these runs",
    )
    evidence = tuple(
        _losses(pair, *pair.difference, folder) for pair in behind[:1] if pair.difference
    )
    figures = {
        "runs": len(pairs),
        "differ_behind_failure": len(behind),
        "digests_before_equal": sum(before),
        "digests_before": len(before),
        "digests_later_different": later.count(False),
        "digests_later": len(later),
        "pairs_of_strategies_equal": equal,
        "pairs_of_strategies": len(twins),
        "checks_passed": passed,
        "checks": len(checked),
    }
    return LogFinding(id, title, SHOWN if invalid else NOT_SHOWN, sentences, evidence, figures)


def _next_step(pair: Pair) -> bool:
    return (
        pair.difference is not None
        and pair.failure is not None
        and pair.difference[0] == pair.failure + 1
    )


def _cause(matrix: Matrix, folder: Path) -> LogFinding:
    id, title = "T-02", "what recovery changed is neither the samples nor the weights that it read"
    invalid = [pair for pair in matrix.pairs if pair.judged == "invalid"]
    if not invalid:
        return _unknown(id, title, "a run that recovery changed")
    other = sum(pair.other_samples for pair in invalid)
    at_failure = [
        same(state) for pair in invalid for step, state in pair.states() if step == pair.failure
    ]
    sentences = (
        f"{count(other)} steps of these {len(invalid)} runs took other samples than the reference",
        f"{sum(at_failure)} of {len(at_failure)} digests of the weights at the step of the first"
        " failure, from which it resumed, are the reference's",
        "generators and augmented inputs are not on record, so the cause is not either; a likely"
        " one: generators are restored before the next iterator of a DataLoader is made, which"
        " draws a seed from them, and every rank gets those of rank 0",
    )
    pair = invalid[0]
    place = pair.run.folder.relative_to(folder)
    step = pair.parted or 0
    evidence = (f"{place}/rank0.jsonl: sample_ids_hash of step {step}, as in its reference",)
    shown = other == 0 and all(at_failure)
    figures = {
        "runs": len(invalid),
        "steps_of_other_samples": other,
        "digests_at_failure_equal": sum(at_failure),
        "digests_at_failure": len(at_failure),
    }
    return LogFinding(id, title, SHOWN if shown else NOT_SHOWN, sentences, evidence, figures)


def _noise(matrix: Matrix, folder: Path) -> LogFinding:
    id, title = "T-03", "runs differ before any failure, and no repetition tells by how much"
    if not matrix.pairs:
        return _unknown(id, title, "references")
    noisy = [pair for pair in matrix.pairs if pair.judged == "unknown"]
    steps = [pair.parted for pair in noisy if pair.parted is not None]
    least, most = min(steps, default=0), max(steps, default=0)
    of = sum(pair.run.name.model in {p.run.name.model for p in noisy} for pair in matrix.pairs)
    sentences = (
        f"{len(noisy)} of {of} runs with failures of {_models(noisy)} differ from their reference"
        f" before the first failure"
        + (f", from step {least}{'' if most == least else f' to {most}'} on" if steps else ""),
        "no suite has a second reference, so their divergence cannot be told from what equal runs"
        " differ by",
    )
    evidence = tuple(
        _losses(pair, *pair.difference, folder) for pair in noisy[:1] if pair.difference
    )
    figures = {"runs": len(noisy), "of": of, "first_step": least, "last_first_step": most}
    return LogFinding(id, title, SHOWN if noisy else NOT_SHOWN, sentences, evidence, figures)


def _clock(matrix: Matrix, folder: Path) -> LogFinding:
    id, title = "T-04", "the published clock leaves out the first launch and charges restarts"
    pairs = matrix.strategies
    if not pairs:
        return _unknown(id, title, "a pair of blocking and overlapped")
    lines = [b.published_clock_s / o.published_clock_s - 1 for b, o in pairs]
    whole = [b.supervisor.duration_sec / o.supervisor.duration_sec - 1 for b, o in pairs]
    left_out = [run.supervisor.duration_sec - run.published_clock_s for run in matrix.runs]
    negative = sum(gain < 0 for gain in whole)
    sentences = (
        f"from rank 0's first line to its last, overlapped gains {_gain(lines)} over blocking, mean"
        f" of {len(pairs)} pairs ({_gain([min(lines)])} to {_gain([max(lines)])})",
        f"by the supervisor, from the first launch to the end, {_gain(whole)}"
        f" ({_gain([min(whole)])} to {_gain([max(whole)])}; {negative} of {len(pairs)} negative)",
        f"what the published clock leaves out is {duration(_mean(left_out))} a run on average",
    )
    blocking, overlapped = min(pairs, key=lambda pair: _supervised_gain(*pair))
    evidence = tuple(
        f"{run.folder.relative_to(folder)}/supervisor.json: duration_sec"
        f" {run.supervisor.duration_sec:.2f}"
        for run in (blocking, overlapped)
    )
    figures = {
        "pairs": len(pairs),
        "gain_published_clock": _mean(lines),
        "gain_supervisor_clock": _mean(whole),
        "least_supervisor_clock": min(whole),
        "most_supervisor_clock": max(whole),
        "negative": negative,
        "left_out_s": _mean(left_out),
    }
    status = SHOWN if _mean(left_out) > 0 else NOT_SHOWN
    return LogFinding(id, title, status, sentences, evidence, figures)


def _supervised_gain(blocking: PublishedRun, overlapped: PublishedRun) -> float:
    return blocking.supervisor.duration_sec / overlapped.supervisor.duration_sec


def _gain(gains: Sequence[float]) -> str:
    return f"{_mean(gains) * 100:+.2f}%"


def _gentle(matrix: Matrix, folder: Path) -> LogFinding:
    id, title = "T-05", "every failure lies on a checkpoint, behind a flush, of all ranks together"
    runs = [run for run in matrix.with_failures if run.exits]
    if not runs:
        return _unknown(id, title, "failures (attempt_*.log)")
    steps = sorted({step for run in runs for step in run.exits})
    on = [step for step in steps if all(step % run.name.every == 0 for run in runs)]
    replayed = sum(run.replayed for run in runs)
    exits = sum(len(run.exits) for run in runs)
    sentences = (
        f"{count(replayed)} steps were done again in {plural(len(runs), 'run')} with failures",
        f"{len(on)} of {len(steps)} failure steps ({', '.join(map(str, steps))}) are multiples of"
        f" the interval of checkpoints ({runs[0].name.every})",
        f"{exits} failures, each with all ranks leaving together after a flush: no torn write, no"
        " work lost, no rank that outlives another",
    )
    evidence = (
        f"{runs[0].folder.relative_to(folder)}/attempt_001.log: step={runs[0].exits[0]} all ranks"
        " exiting",
    )
    figures = {
        "runs": len(runs),
        "replayed_steps": replayed,
        "failure_steps": len(steps),
        "on_checkpoint": len(on),
        "failures": exits,
    }
    shown = replayed == 0 and len(on) == len(steps)
    return LogFinding(id, title, SHOWN if shown else NOT_SHOWN, sentences, evidence, figures)


def _writes(run: PublishedRun) -> list[float]:
    return [line.write_time_sec for line in run.saves if line.write_time_sec is not None]


def _submitted(run: PublishedRun) -> int:
    return sum(line.event == "checkpoint" for line in run.saves)


def _accounting(matrix: Matrix, folder: Path) -> LogFinding:
    id, title = "T-06", "the write total of overlapped counts few of its writes"
    arms = {arm: matrix.arm(arm) for arm in ("blk", "ovl")}
    if not all(arms.values()):
        return _unknown(id, title, "blocking or overlapped runs")
    totals = {arm: _mean([sum(_writes(run)) for run in runs]) for arm, runs in arms.items()}
    counted = {arm: _mean([len(_writes(run)) for run in runs]) for arm, runs in arms.items()}
    submitted = {arm: _mean([_submitted(run) for run in runs]) for arm, runs in arms.items()}
    if not all(counted.values()):
        return _unknown(id, title, "the times of writes")
    per = {arm: totals[arm] / counted[arm] for arm in arms}
    enqueued = _mean([sum(s.enqueue_latency_sec for s in run.saves) for run in arms["ovl"]])
    sentences = (
        *(
            f"{name}: {count(counted[arm])} of {count(submitted[arm])} writes a run are in its"
            f" total, {totals[arm]:.3f} s, so {per[arm]:.3f} s each"
            for arm, name in (("blk", "blocking"), ("ovl", "overlapped"))
        ),
        f"the published reduction of the total is {change(totals['ovl'] / totals['blk'] - 1)}; of a"
        f" write it is {change(per['ovl'] / per['blk'] - 1)}, and rank 0 spends"
        f" {duration(enqueued)} a run on handing snapshots over (enqueue_latency_sec)",
    )
    run = arms["ovl"][0]
    evidence = (
        f"{run.folder.relative_to(folder)}/checkpoint_rank0.jsonl: {_submitted(run)} lines"
        f" `checkpoint`, {len(_writes(run))} with write_time_sec",
    )
    figures = {
        "blocking_counted": counted["blk"],
        "overlapped_counted": counted["ovl"],
        "overlapped_submitted": submitted["ovl"],
        "total_reduction": totals["ovl"] / totals["blk"] - 1,
        "reduction_per_write": per["ovl"] / per["blk"] - 1,
        "blocking_write_s": per["blk"],
        "overlapped_write_s": per["ovl"],
        "enqueue_s": enqueued,
    }
    shown = counted["ovl"] < submitted["ovl"]
    return LogFinding(id, title, SHOWN if shown else NOT_SHOWN, sentences, evidence, figures)


def _queue(matrix: Matrix, folder: Path) -> LogFinding:
    id, title = "T-07", "the limit of writes under way was never reached"
    runs = matrix.arm("ovl")
    if not runs:
        return _unknown(id, title, "overlapped runs")
    fullest = max(runs, key=lambda run: max(save.inflight_after_enqueue for save in run.saves))
    most = max(save.inflight_after_enqueue for save in fullest.saves)
    limit = min(run.name.inflight for run in runs)
    waited = _mean([sum(save.backpressure_wait_sec for save in run.saves) for run in runs])
    sentences = (
        f"at most {most} of {limit} writes were under way in {plural(len(runs), 'overlapped run')}",
        f"training waited {duration(waited)} a run for room in the queue",
    )
    evidence = (
        f"{fullest.folder.relative_to(folder)}/checkpoint_rank0.jsonl: inflight_after_enqueue"
        f" {most}",
    )
    figures = {"runs": len(runs), "most_inflight": most, "limit": limit, "waited_s": waited}
    return LogFinding(id, title, SHOWN if most < limit else NOT_SHOWN, sentences, evidence, figures)


def _restarts(matrix: Matrix, folder: Path) -> LogFinding:
    id, title = "T-08", "what blocking loses against the reference is its restarts"
    pairs = [pair for pair in matrix.pairs if pair.run.name.arm == "blk" and pair.run.gaps_s]
    if not pairs:
        return _unknown(id, title, "blocking runs with a failure and their references")
    gaps = {
        arm: [gap for pair in matrix.pairs if pair.run.name.arm == arm for gap in pair.run.gaps_s]
        for arm in ("blk", "ovl")
    }
    lost = _mean([sum(pair.run.gaps_s) for pair in pairs])
    longer = _mean([p.run.published_clock_s - p.reference.published_clock_s for p in pairs])
    every = [*gaps["blk"], *gaps["ovl"]]
    sentences = (
        f"rank 0 is silent for {_mean(every):.2f} s at a failure, mean of {len(every)}"
        f" (blocking {_mean(gaps['blk']):.2f} s"
        + (f", overlapped {_mean(gaps['ovl']):.2f} s)" if gaps["ovl"] else ")"),
        f"a blocking run is silent for {lost:.1f} s at its failures and lasts {longer:.1f} s longer"
        f" than its reference ({share(lost / longer) if longer > 0 else 'no longer'} of it),"
        f" {plural(len(pairs), 'pair')}",
        "detection, launch, imports, rendezvous, loading and warm-up are not told apart",
    )
    run = pairs[0].run
    step = run.exits[0]
    evidence = (
        f"{run.folder.relative_to(folder)}/rank0.jsonl: {run.gaps_s[0]:.2f} s between steps {step}"
        f" and {step + 1}, at most {run.slowest_step_s:.2f} s between others",
    )
    figures = {
        "gap_s": _mean(every),
        "gap_blocking_s": _mean(gaps["blk"]),
        "silent_s": lost,
        "longer_s": longer,
    }
    # a tenth: two gaps also hold the time of two steps, and runs differ by some seconds anyway
    shown = longer > 0 and abs(lost / longer - 1) < 0.1
    return LogFinding(id, title, SHOWN if shown else NOT_SHOWN, sentences, evidence, figures)


def _distance(matrix: Matrix, folder: Path) -> LogFinding:
    id, title = "T-11", "the distance of states says little: it sums every tensor of the model"
    last = [(pair, *pair.states()[-1]) for pair in matrix.pairs if pair.states()]
    if not last:
        return _unknown(id, title, "distances (divergence_vs_*.json)")
    sentences: list[str] = []
    figures: dict[str, float] = {}
    for model in sorted({pair.run.name.model for pair, _, _ in last}):
        of = [(step, state) for pair, step, state in last if pair.run.name.model == model]
        l2 = [state.l2_distance or 0.0 for _, state in of]
        losses = [
            pair.run.divergence.loss_divergence.mean_abs_diff
            for pair, _, _ in last
            if pair.run.name.model == model and pair.run.divergence
        ]
        sentences.append(
            f"{model}: L2 at step {max(step for step, _ in of)} is {count(round(_mean(l2)))} on"
            f" average ({count(round(min(l2)))} to {count(round(max(l2)))}, {len(l2)} runs), where"
            f" losses differ by {magnitude(_mean(losses))} on average"
        )
        figures |= {f"{model}_l2": _mean(l2), f"{model}_loss_difference": _mean(losses)}
    sentences.append(
        "one number over weights, running statistics and counters: `ecrl compare` tells parameters,"
        " buffers and optimizer apart, in L2, relative L2 and units in the last place"
    )
    pair, step, state = max(last, key=lambda found: found[2].l2_distance or 0.0)
    place = pair.run.metrics.relative_to(folder)
    evidence = (f"{place}/divergence_vs_*.json: step {step}, l2_distance {state.l2_distance}",)
    status = SHOWN if state.l2_distance else NOT_SHOWN
    return LogFinding(id, title, status, tuple(sentences), evidence, figures)


_FINDINGS: tuple[Callable[[Matrix, Path], LogFinding], ...] = (
    _trajectory,
    _cause,
    _noise,
    _clock,
    _gentle,
    _accounting,
    _queue,
    _restarts,
    _distance,
)
