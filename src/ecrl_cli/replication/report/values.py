"""Every number of the published tables, with where it stands. `S0`: the matrix report (experiment 4); `S1`: the project report (1 to 3).

Data alone: what the numbers say of one another is worked out where it is shown.
"""

from __future__ import annotations

from dataclasses import dataclass

EXP4_PREFIX = "exp4_matrix_20260216_221349"  # S0 section 5.3, appendix B


@dataclass(frozen=True)
class SuiteValues:
    """A suite's row of Tables 6 and 8 (S0). Goodputs in steps/s, gains and drops in percent, stalls and walls in seconds; changes are ovl - blk."""

    dataset: str
    model: str
    failure: str
    ref: float
    blk: float
    ovl: float
    ovl_gain: float
    blk_drop: float
    ovl_drop: float
    stall_change: float
    blk_stall: float
    ovl_stall: float
    wall_change: float

    @property
    def suite(self) -> str:
        return f"{self.dataset}-{self.model}-{self.failure}"


# S0, Tables 6 and 8, in the order of Table 8.
SUITES = (
    SuiteValues("cifar10", "r18", "base", 14.3302, 12.0825, 12.5711, 4.0441, -15.6849, -12.2751, -6.1894, 12.0978, 5.9084, -5.7718),
    SuiteValues("cifar10", "r18", "late", 14.5432, 12.3472, 12.6464, 2.4235, -15.1004, -13.0428, -5.6287, 12.2920, 6.6633, -3.0335),
    SuiteValues("cifar10", "r50", "base", 8.4189, 7.5410, 7.8045, 3.4943, -10.4277, -7.2977, -13.5956, 23.9814, 10.3857, -7.1632),
    SuiteValues("cifar10", "r50", "late", 8.4124, 7.5360, 7.8680, 4.4050, -10.4179, -6.4718, -15.4540, 25.5258, 10.0718, -8.9575),
    SuiteValues("cifar100", "r18", "base", 14.1061, 11.8239, 12.1600, 2.8426, -16.1790, -13.7963, -7.2699, 12.5359, 5.2660, -3.7356),
    SuiteValues("cifar100", "r18", "late", 16.3530, 13.6529, 13.8934, 1.7612, -16.5115, -15.0411, -6.4792, 11.4841, 5.0048, -2.0316),
    SuiteValues("cifar100", "r50", "base", 9.3980, 8.3523, 8.6963, 4.1186, -11.1265, -7.4662, -15.2675, 25.0834, 9.8159, -7.5732),
    SuiteValues("cifar100", "r50", "late", 9.4388, 8.4278, 8.7625, 3.9724, -10.7118, -7.1649, -14.6413, 24.4023, 9.7610, -7.2551),
)
BY_SUITE = {values.suite: values for values in SUITES}

# S0, Table 5: reference, blocking, overlapped, and what stands under "Ovl-Block" (percent, percentage points, else the measure's unit).
TABLE5: dict[str, tuple[float, float, float, float | None]] = {
    "pass_rate": (1.0, 1.0, 1.0, None),
    "goodput": (11.8751, 10.2204, 10.5503, 3.2272),
    "drop": (0.0, -13.9337, -11.1562, 2.7775),
    "restarts": (0.0, 2.0, 2.0, 0.0),
    "wall_s": (144.1635, 165.2386, 159.5484, -5.6902),
    "stall_s": (18.3314, 18.4253, 7.8596, -10.5657),
    "write_s": (18.2194, 18.3014, 1.3993, -16.9022),
    "snapshot_s": (0.0306, 0.0322, 0.0330, 0.0008),
}
STALL_REDUCTION, WRITE_REDUCTION, WALL_REDUCTION = 57.3434, 92.3544, 3.4436  # percent of blocking: S0 sections 6.1 and 7.1
WRITES_COUNTED = {"ref": 32, "blk": 32, "ovl": 3}  # in each run's write total: raw logs of the published artefact
WRITES_SUBMITTED = 32
SUPERVISOR_CLOCK_GAIN = (2.43, -0.06, 7.14)  # percent, ovl against blk on the supervisor's clock: mean, least, most of 24 pairs; same raw logs
FIRST_LINE_CLOCK_GAIN = 3.42  # the same pairs on the published clock
SUITE_DRIFT = 16.3530 / 14.1061 - 1  # S0 Table 6: one reference configuration, the two ResNet-18 suites of CIFAR-100
DIVERGED_AFTER_FAILURE = (24, 24)  # ResNet-50 runs with failures that left their reference right after the first failure; same raw logs
REPLAYED_STEPS = 0  # in all 48 runs with failures; same raw logs
MOST_INFLIGHT = 1  # of four; same raw logs
RESTART_GAP_S = 11.29  # mean, from the last log line before a failure to the first behind it; same raw logs


@dataclass(frozen=True)
class SliceValues:
    """A row of Table 7 (S0): overlapped against blocking in percent, stall in seconds, mean absolute loss difference."""

    axis: str
    group: str
    gain: float
    stall_change: float
    loss_change: float


TABLE7 = (
    SliceValues("dataset", "cifar10", 3.5015, -10.2169, -0.0054),
    SliceValues("dataset", "cifar100", 2.9708, -10.9145, 0.0006),
    SliceValues("model", "r18", 2.7340, -6.3918, -0.0048),
    SliceValues("model", "r50", 3.9999, -14.7396, 0.0000),
    SliceValues("failure", "base", 3.5986, -10.5806, -0.0007),
    SliceValues("failure", "late", 2.8750, -10.5508, -0.0041),
)
LOSS_DIFFERENCE = {"blk": 0.0703, "ovl": 0.0679, "change": -0.002395}  # S0 section 6.5, equation 8

# S0, Table 2.
TABLE2 = {
    "os": ("OS", "Arch Linux, kernel 6.12.53-1-lts, x86_64"),
    "cpu": ("CPU", "2x Intel Xeon Gold 5118 @ 2.30GHz"),
    "cores": ("Cores / threads", "24 physical cores, 48 logical CPUs"),
    "memory": ("System memory", "125 GiB RAM, 19 GiB swap"),
    "gpus": ("GPU inventory", "4x NVIDIA GeForce RTX 4090 (24564 MiB), 2x NVIDIA GeForce RTX 3090 (24576 MiB)"),
    "driver": ("NVIDIA stack", "driver 580.95.05, CUDA runtime 13.0"),
    "python": ("Python", "3.11.14"),
    "torch": ("PyTorch", "2.10.0+cu128"),
    "cuda_build": ("Torch CUDA build", "12.8"),
    "visible": ("Torch visible GPUs", "cuda_available=True, cuda_count=6"),
    "ranks": ("DDP launch shape", "nproc_per_node=4 for all reported runs"),
}
# S1, section 9: what experiments 1 to 3 ran on.
S1_ENVIRONMENT = {"python": "3.11.2", "torch": "2.10.0", "device": "cpu"}

# S0, Table 3: values, count, role.
TABLE3 = {
    "dataset": ("CIFAR-10; CIFAR-100", 2, "data complexity variation"),
    "model": ("ResNet-18; ResNet-50", 2, "compute and parameter scale variation"),
    "failure": ("base; late", 2, "failure timing sensitivity"),
    "variant": ("ref; blk; ovl", 3, "method comparison"),
    "suites": ("-", 8, "Cartesian product over the first three axes"),
    "units": ("-", 24, "8 suites x 3 variants"),
    "runs": ("3 seeds of each run unit", 72, "seed-runs (section 6.2)"),
}
# S0, section 5.5 and appendix B: whole suites by the manifest's status.
MANIFEST = {"completed": 3, "completed_prev": 5}

# S0, Table 4: factor, role, treatment.
TABLE4 = {
    "global_batch": ("GLOBAL_BATCH", "controlled", "fixed within suite and across restart attempts"),
    "world_size": ("World size (W)", "controlled", "fixed at 4"),
    "checkpoint.strategy": ("Checkpoint strategy", "varied", "blocking vs overlapped"),
    "failure.steps": ("Failure schedule", "varied", "base (400,1200), late (800,1400)"),
    "dataset.name": ("Dataset", "varied", "CIFAR-10/100"),
    "model.name": ("Model", "varied", "ResNet-18 and ResNet-50"),
    "seed": ("Seed count", "controlled", "three seeds per suite (1337, 2027, 4242)"),
}


@dataclass(frozen=True)
class ExperimentValues:
    """An experiment of S1, section 10. Goodputs in steps/s by arm; `drops`: printed percentages; `divergence`: printed distances to the reference."""

    ident: str
    title: str
    source: str
    goodput: dict[str, float]
    drops: dict[str, float]
    restarts: dict[str, float]
    divergence: dict[str, dict[str, float]]


# `pooled`: over all arms that had failures, as S1 prints it for experiment 3. `l2`: at the last step.
EXPERIMENTS = (
    ExperimentValues(
        "exp1",
        "failure recovery",
        "S1 section 10.1",
        {"ref": 8.4707, "blk": 7.7947, "ovl": 7.6332},
        {"blk": -7.98, "ovl": -9.89},
        {"ref": 0, "blk": 2, "ovl": 2},
        {"blk": {"auc": 0.0}, "ovl": {"auc": 0.0}},
    ),
    ExperimentValues(
        "exp2",
        "elastic resume, 2 -> 1",
        "S1 section 10.2",
        {"ref": 8.5400, "elastic": 7.6322},
        {"elastic": -10.63},
        {},
        {"elastic": {"auc": 26.0168, "l2": 12.2542}},
    ),
    ExperimentValues(
        "exp3",
        "larger data set and model, several seeds",
        "S1 section 10.3",
        {"ref": 1.0334, "blk": 0.9685, "ovl": 0.9521},
        {"blk": -6.28, "ovl": -7.86},
        {"ref": 0, "blk": 2, "ovl": 2},
        {"pooled": {"auc": 32.2130, "maximum": 0.3015, "l2": 23.4734}},
    ),
)
ARMS = {"exp4": ("ref", "blk", "ovl")} | {experiment.ident: tuple(experiment.goodput) for experiment in EXPERIMENTS}


def repeats(suite: str) -> str:
    """The published experiment that a suite of this name is part of; empty where it is of none."""
    return "exp4" if suite in BY_SUITE else suite if suite in ARMS else ""
