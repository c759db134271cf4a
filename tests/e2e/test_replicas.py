"""Fixed replicas, for real: whatever the number of ranks and however often it changes under kills,
every run of one seed ends bit for bit alike.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from ecrl_cli.checkpoint.format.train_document import tensor_digests
from ecrl_cli.history.lineage import lineage, losses
from ecrl_cli.history.load import load
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.studies.mutants.recovery import REPLICA_BUGS
from ecrl_cli.verify.disk_state import on_disk
from ecrl_cli.verify.verdict import INVALID, VALID, render
from ecrl_cli.verify.verify_run import verify_run
from tests.conftest import Ecrl, run_ecrl
from tests.contract.test_verify_spoilt_runs import found
from tests.e2e.planting import plant, suite_of
from tests.e2e.runs import end_state, metrics, supervisor, tiny
from tests.in_process import ecrl_in_process

# Eight replicas of six samples, BatchNorm and dropout; 8 (or 3) -> 2 -> 4 -> 1 ranks, killed in
# three of the four phases, off every boundary.
SHAPE = (
    "elastic.replicas=8",
    "model.dropout=0.3",
    "target_steps=10",
    "checkpoint.every=4",
    "state_digests=true",
)
CHANGING = tiny(
    *SHAPE, "elastic.schedule={3: 2, 5: 4, 7: 1}", "failure.steps=[2,6,9]", "failure.rank=0"
)
UNSTRUCK = ("failure=", "failure.steps=", "failure.rank=")


def runs_of(sweep: Path) -> dict[tuple[str, int], Path]:
    """The run directories by variant and first world size."""
    with (sweep / "manifest.csv").open() as file:
        folders = [(row["variant"], sweep / row["run"]) for row in csv.DictReader(file)]
    return {
        (variant, load(RunLayout(run)).stored.config.world_size): run for variant, run in folders
    }


def committed_losses(run: Path) -> dict[int, dict[int, float]]:
    """By step and replica."""
    records = load(RunLayout(run))
    return losses(records, lineage(records))


def check_alike(runs: list[Path]) -> None:
    """Every digest, every tensor of the last checkpoint, every loss of every replica; and every
    verdict is valid.
    """
    first = runs[0]
    for run in runs:
        assert end_state(run) == end_state(first), run.name
        assert last_tensors(run) == last_tensors(first), run.name
        assert committed_losses(run) == committed_losses(first), run.name
        assert metrics(run)["mean_loss"] == metrics(first)["mean_loss"]
        verdict = verify_run(run)
        assert verdict.status == VALID and verdict.reference, render(verdict)
        assert (
            "in every loss of 10 steps and in the final state"
            in found(verdict, "same-trajectory").message
        ), render(verdict)


def last_tensors(run: Path) -> dict[str, str]:
    """Parameters, buffers, optimizer, generators: by name, so that nothing may have a name that
    depends on the ranks.
    """
    stored = {c.step: c.report.manifest for c in on_disk(load(RunLayout(run)), contents=False)}[10]
    assert stored is not None
    return tensor_digests(stored)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Undisturbed and changing under kills, each begun with 3 and with 8 ranks; 3 does not divide
    8.
    """
    folder = tmp_path_factory.mktemp("replicas")
    ecrl_in_process(folder, "-m", *CHANGING, "world_size=3,8", "variant=ref,ovl", "run_dir=sweep")
    return folder / "sweep"


def test_every_number_of_ranks_and_every_change_ends_alike(sweep: Path) -> None:
    runs = runs_of(sweep)
    assert set(runs) == {(variant, size) for variant in ("ref", "ovl") for size in (3, 8)}
    check_alike(list(runs.values()))


@pytest.mark.parametrize("size", [3, 8])
def test_the_sizes_changed_and_the_kills_struck(sweep: Path, size: int) -> None:
    record = supervisor(runs_of(sweep)["ovl", size])
    outcomes = [(a["outcome"], a["world_size"], a["last_step"]) for a in record["attempts"]]
    phases = [
        ("died", size, 2),
        ("resized", size, 3),
        ("resized", 2, 5),
        ("died", 4, 6),
        ("resized", 4, 7),
        ("died", 1, 9),
        ("completed", 1, 10),
    ]
    assert outcomes == phases and record["restarts"] == 3


def test_each_replica_is_its_own_and_the_generators_are_kept_once(sweep: Path) -> None:
    told = committed_losses(runs_of(sweep)["ref", 8])
    assert all(
        list(by_replica) == list(range(8)) and len(set(by_replica.values())) == 8
        for by_replica in told.values()
    )
    assert {name for name in last_tensors(runs_of(sweep)["ref", 8]) if name.startswith("rng.")} == {
        "rng.shared.numpy",
        "rng.shared.python",
        "rng.shared.torch",
    }


@pytest.mark.slow
def test_plain_data_parallelism_does_not_end_alike(ecrl: Ecrl, tmp_path: Path) -> None:
    """The control: what is equal above differs without replicas, so that equality proves
    something.
    """
    ecrl(
        "-m",
        *tiny(*SHAPE, *UNSTRUCK, "elastic.replicas=0", "world_size="),
        "world_size=1,2",
        "variant=ref",
        "run_dir=sweep",
    )
    one, two = (end_state(run) for run in runs_of(tmp_path / "sweep").values())
    assert all(
        one[f"{part}_digest"] != two[f"{part}_digest"]
        for part in ("parameters", "buffers", "optimizer", "rng")
    )


# Each makes numbers depend on the ranks, as an obvious implementation would.
SPOILT = {
    "sum in rank order": REPLICA_BUGS["sum in rank order"],
    "buffers not rewound": REPLICA_BUGS["buffers not rewound"],
    "statistics per rank": (
        "ecrl_cli.training.replicas",
        """
    take = module.ReplicaGradient.take
    def own(self, mean):
        mine = [buffer.clone() for buffer in self._buffers()]
        loss = take(self, mean)
        for buffer, value in zip(self._buffers(), mine):
            buffer.copy_(value)
        return loss
    module.ReplicaGradient.take = own
""",
    ),
    "streams per rank": (
        "ecrl_cli.training.replicas",
        """
    seed, begun = module.seed_replica, set()
    def once(number, step, replica):
        if step not in begun or replica == 8:
            seed(number, step, replica)
        begun.add(step)
    module.seed_replica = once
""",
    ),
    "replicas off by one": (
        "ecrl_cli.config.elastic",
        """
    from ecrl_cli.training import session
    from ecrl_cli.training import replicas
    owned = module.owned
    def off(replicas, rank, world_size):
        mine = owned(replicas, rank, world_size)
        return range(mine.start + (rank > 0), mine.stop + (rank < world_size - 1))
    module.owned = replicas.owned = session.owned = off
""",
    ),
}
CAUGHT = {
    "sum in rank order": ("same-trajectory", "the final parameters differ"),
    "statistics per rank": ("same-trajectory", "the final buffers differ"),
    "buffers not rewound": ("same-trajectory", "the final buffers differ"),
    "streams per rank": ("same-trajectory", "step 1, component loss (replica 1"),
    "replicas off by one": (
        "exactly-once",
        "step 1 rank 0 (attempt 0) consumed 18 samples, its shard has 12",
    ),
}


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run on three ranks with each bug."""
    folder = tmp_path_factory.mktemp("spoilt")
    named = f"suite_name={','.join(map(suite_of, SPOILT))}"
    shape = tiny(*SHAPE, *UNSTRUCK, "world_size=3")
    run_ecrl(
        folder,
        "-m",
        *shape,
        named,
        "variant=ref",
        "run_dir=sweep",
        environment=plant(folder / "plant", SPOILT),
    )
    return folder / "sweep"


@pytest.mark.slow
@pytest.mark.parametrize("bug", CAUGHT)
def test_a_planted_bug_is_found(sweep: Path, spoilt: Path, bug: str) -> None:
    """Against eight ranks without the bug; three ranks without it are valid above."""
    (run,) = spoilt.glob(f"{suite_of(bug)}-*")
    promise, words = CAUGHT[bug]
    verdict = verify_run(run, runs_of(sweep)["ref", 8])
    finding = found(verdict, promise)
    assert finding.status == INVALID, render(verdict)
    assert any(words in text for text in (finding.message, *finding.evidence)), render(verdict)


OTHER = {
    "vit": ("model=vit", "model.width=16", "model.depth=1", "optimizer=adamw"),
    "resnet18": ("model=resnet18", "dataset=fake", "dataset.size=96", "dataset.image_size=16"),
}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("other", OTHER)
def test_other_models_optimizers_and_precisions(
    ecrl: Ecrl, tmp_path: Path, precision: str, other: str
) -> None:
    keys = tiny(
        *SHAPE,
        f"precision={precision}",
        "failure.steps=[6]",
        "failure.rank=0",
        "elastic.schedule={5: 3}",
        *OTHER[other],
    )
    ecrl("-m", *keys, "world_size=1,4", "variant=ref,ovl", "run_dir=sweep")
    check_alike(list(runs_of(tmp_path / "sweep").values()))


@pytest.mark.slow
def test_every_power_of_two_and_random_failures(ecrl: Ecrl, tmp_path: Path) -> None:
    drawn = tiny(
        *SHAPE,
        "failure=mtbf",
        "failure.steps=",
        "failure.rank=",
        "failure.mtbf_steps=4",
        "elastic.schedule={3: 8, 6: 2}",
    )
    ecrl("-m", *drawn, "world_size=1,2,4,8", "variant=ref,blk", "run_dir=sweep")
    check_alike(list(runs_of(tmp_path / "sweep").values()))
