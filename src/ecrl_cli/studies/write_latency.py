"""`write-latency`: duration of a save until its acknowledgement in each write mode. Published table
1, figures 1 and 2.

Modes are interleaved save by save in random order, so that machine drift affects all alike; the
first mode runs twice, and the difference of the two (A/A) is the noise level for all other
differences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ecrl_cli.checkpoint.format.image import CheckpointImage
from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.checkpoint.store.synthetic import synthetic_image, synthetic_plan
from ecrl_cli.config.studies import WriteLatency
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.studies.frame.published import published
from ecrl_cli.studies.frame.result import Figure, Findings, ResultTable, Series
from ecrl_cli.studies.frame.store_fixture import write_mode
from ecrl_cli.studies.frame.study import Arm, Study, StudyContext, Trial, TrialResults
from ecrl_cli.studies.frame.tables import Cells, cell, item, items, table

if TYPE_CHECKING:
    import pandas as pd

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
PUBLISHED = published("write-latency")["milliseconds"]  # by write mode: p50, p90, p99
OVERHEADS = published("write-latency")["overheads"]  # by write mode: percent of p50 and of p99
ADVICE = {
    "unsafe": "development and iteration: a lost checkpoint is annoying, not catastrophic",
    "atomic_nodirsync": "standard production training",
    "atomic_dirsync": "critical long jobs: multi-day training, releases, compliance",
}
_AGAIN = " (again)"
# the shorter of the intervals between checkpoints, 30 to 60 minutes, of which the study says what a
# save costs (section 7.1)
INTERVAL_S = 1800.0


def _arms(keys: Any) -> list[str]:
    return [*keys.modes, keys.modes[0] + _AGAIN]


def _plan(context: StudyContext) -> list[Trial]:
    """Seed by seed, save by save; the order of modes is redrawn each time, so that no mode always
    follows the same one.
    """
    found = []
    for seed in range(context.keys.seeds):
        for number in range(context.keys.checkpoints):
            arms = _arms(context.keys)
            context.rng(f"order/{seed}/{number}").shuffle(arms)
            for arm in arms:
                found.append(
                    Trial(
                        f"{seed:03d}/{number:04d}/{arm}",
                        {"arm": arm, "seed": seed, "checkpoint": number + 1},
                    )
                )
    return found


class _Stores:
    """A store per arm and seed, and the image that all arms save in turn."""

    def __init__(self, context: StudyContext) -> None:
        keys = context.keys
        self._scratch, self._seed, self._arms = context.scratch, context.seed, _arms(keys)
        self.plan = synthetic_plan(
            keys.model_bytes, keys.optimizer_bytes, single=keys.layout == "single"
        )
        self._stores: dict[tuple[str, int], CheckpointStore] = {}
        self._image: tuple[tuple[int, int], CheckpointImage] | None = None

    def image(self, seed: int, step: int) -> CheckpointImage:
        """Identical content for every arm; made once per round, untimed."""
        if self._image is None or self._image[0] != (seed, step):
            self._image = ((seed, step), synthetic_image(self._seed + seed, step + 1, self.plan))
        return self._image[1]

    def store(self, arm: str, seed: int) -> CheckpointStore:
        """A store in its own folder after one untimed save."""
        if (arm, seed) not in self._stores:
            mode = write_mode(arm.removesuffix(_AGAIN))
            store = CheckpointStore(
                self._scratch / f"{self._arms.index(arm)}-{seed}", StoreConfig(mode=mode, keep=2)
            )
            store.claim(0)
            store.save(synthetic_image(self._seed + seed, 1, self.plan), 0)
            self._stores[arm, seed] = store
        return self._stores[arm, seed]

    def close(self) -> None:
        for store in self._stores.values():
            store.close()


def _run(context: StudyContext, trial: Trial) -> dict[str, Any]:
    arm, seed, step = trial.facts["arm"], trial.facts["seed"], trial.facts["checkpoint"]
    image, store = (
        context.shared(_Stores).image(seed, step),
        context.shared(_Stores).store(arm, seed),
    )
    began = monotonic()
    saved = store.save(image, 0)
    done = monotonic()
    store.update_pointers_and_retire(saved, image)
    return {
        "latency_s": done - began,
        "write_s": saved.write_s,
        "commit_s": saved.commit_s,
        "settle_s": monotonic() - done,
    }


def _findings(results: TrialResults) -> Findings:
    import pandas as pd  # import takes a second

    frame = pd.DataFrame(
        [{"arm": record.facts["arm"], **record.found} for record in results.records]
    )
    rows = _rows(frame, [arm for arm in _arms(results.keys) if (frame["arm"] == arm).any()])
    payload = sum(part.nbytes for part in results.context.shared(_Stores).plan.parts)
    return Findings(
        (_latency(rows, payload), _deployment(rows)),
        (_percentiles(rows), _cdf(frame)),
        (),
        _notes(rows),
    )


STUDY = Study(
    keys=WriteLatency,
    description=(
        "How long a save takes in each write mode, until it is acknowledged. Published Table 1,"
        " Figures 1 and 2."
    ),
    arms=(Arm("saves", _plan, _run),),
    findings=(_findings,),
    alone=True,
)


def _rows(frame: pd.DataFrame, arms: list[str]) -> list[dict[str, Any]]:
    """Quantiles by pandas' linear interpolation; overhead (mode - unsafe) / unsafe. Seconds, and
    fractions.
    """
    quantiles = {
        arm: dict(
            zip(
                QUANTILES,
                frame.loc[frame["arm"] == arm, "latency_s"].quantile(list(QUANTILES.values())),
                strict=True,
            )
        )
        for arm in arms
    }
    base = quantiles.get("unsafe", {})
    return [
        {"mode": arm, "n": int((frame["arm"] == arm).sum()), **quantiles[arm]}
        | {
            f"{name}_overhead": (quantiles[arm][name] - reference) / reference
            for name, reference in base.items()
        }
        | _published(arm)
        for arm in arms
    ]


def _published(arm: str) -> dict[str, Any]:
    if arm not in PUBLISHED:
        return {}
    p50, p99 = OVERHEADS.get(arm, (0.0, 0.0))  # of unsafe over itself
    milliseconds = zip(QUANTILES, PUBLISHED[arm], strict=True)
    return {
        **{f"published_{name}": value / 1e3 for name, value in milliseconds},
        "published_p50_overhead": p50 / 100,
        "published_p99_overhead": p99 / 100,
    }


def _latency(rows: list[dict[str, Any]], payload: int) -> ResultTable:
    columns = (
        item("mode", "write mode"),
        item("n", "saves", "count"),
        *items("seconds", **{name: name for name in QUANTILES}),
        *items("change", **{f"{name}_overhead": f"{name} overhead" for name in QUANTILES}),
        *items("seconds", **{f"published_{name}": f"published {name}" for name in QUANTILES}),
        *items(
            "change",
            published_p50_overhead="published p50 overhead",
            published_p99_overhead="published p99 overhead",
        ),
    )
    note = (
        f"Files of {payload} bytes and their records, until the save is acknowledged. Overhead is"
        " (mode - unsafe) / unsafe; the published percentages are as printed, of milliseconds that"
        " were not rounded. They come from another machine (macOS 14.6, APFS)."
    )
    return table("latency", "Latency of a save by write mode", columns, rows, note)


def _deployment(rows: list[dict[str, Any]]) -> ResultTable:
    """The published advice beside its measured cost."""
    columns = (
        item("mode", "write mode"),
        cell("advice", "published advice", "text", lambda row: ADVICE[row["mode"]]),
        item("published_overhead", "published p50 overhead", "change", "published_p50_overhead"),
        item("overhead", "p50 overhead here", "change", "p50_overhead"),
        item("p99", "p99 here", "seconds"),
        _ppm("published_interval_ppm", "published p99 / 30 minutes (ppm)", "published_p99"),
        _ppm("interval_ppm", "p99 here / 30 minutes (ppm)", "p99"),
    )
    note = (
        "Published besides: the integrity check always, whatever the mode. What each mode loses:"
        " the studies power-loss and crash-points."
    )
    advised = [row for row in rows if row["mode"] in ADVICE]
    title = "The published advice beside what it costs here"
    return table("deployment", title, columns, advised, note)


def _ppm(key: str, label: str, of: str) -> Cells:
    """Parts per million of the interval between two saves."""
    return cell(key, label, "number", lambda row: row[of] / INTERVAL_S * 1e6)


def _percentiles(rows: list[dict[str, Any]]) -> Figure:
    series = tuple(
        Series(row["mode"], tuple(row[name] * 1e3 for name in QUANTILES)) for row in rows
    )
    names = tuple(QUANTILES)
    return Figure("percentiles", "Latency of a save", "bars", "percentile", "ms", series, names)


def _cdf(frame: pd.DataFrame) -> Figure:
    series = tuple(
        Series(str(arm), tuple((part["latency_s"] * 1e3).tolist()))
        for arm, part in frame.groupby("arm", sort=False)
    )
    title = "Latency of a save: share of saves that took at most so long"
    return Figure("cdf", title, "cdf", "ms", "share of saves", series, log_x=True)


def _notes(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    again = next((row for row in rows if row["mode"].endswith(_AGAIN)), None)
    first = next((row for row in rows if again and row["mode"] + _AGAIN == again["mode"]), None)
    if again is None or first is None:
        return ()
    apart = again["p50"] / first["p50"] - 1
    return (
        (
            f"The noise floor: {first['mode']} twice differs by {apart:+.1%} at the median (A/A);"
            " less between two modes says nothing."
        ),
    )
