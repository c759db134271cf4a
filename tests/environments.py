"""`python -m tests.environments [NAME...]`: the tests that could depend on the machine, in one
environment after another, a line with counts each.

Without names, all of them. What this machine cannot provide is skipped with its reason. Exit code 1
where a test failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.hiding import path_without, python_without

ROOT = Path(__file__).parents[1]
NOBODY = 65534
# What parts of ECRL and of its tests need and a machine may lack (ecrl_cli/linux/prerequisites.py),
# by what it is hidden with.
PROGRAMS = {
    "chromium": r"chrom(e|ium)|google-chrome",
    "strace": "strace",
    "mkfs.ext4": r"mkfs\.ext|mke2fs",
    "mkfs.xfs": r"mkfs\.xfs",
    "mkfs.btrfs": r"mkfs\.btrfs",
    "fuse": "fusermount",
    "unshare": "^unshare$",
    "fish": "^fish$",
    "zsh": "^zsh",
    "rsync": "^rsync$",
    "slurm": "slurm|sbatch|srun|munge",
}
LIBRARIES = {"libfuse": ("fuse3", "fuse")}
DEVICES = {"loop devices": "/dev/loop-control", "/dev/fuse": "/dev/fuse"}
EXTRAS = {  # by extra: the distributions that it brings
    "rigs": ("mfusepy",),
    "slurm": ("hydra_submitit_launcher", "submitit"),
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow_skinny", "mlflow"),
    "wandb": ("wandb",),
    "otel": ("opentelemetry_sdk", "opentelemetry_exporter_otlp_proto_http"),
    "rivals": ("ckpt_chaos", "pytest_torch"),
    "frameworks": ("lightning", "pytorch_lightning", "accelerate", "transformers", "torchdata"),
    "checkpointers": ("torch_checkpointing", "torchsnapshot", "aiofiles", "nest_asyncio"),
}
HIDEABLE = (*PROGRAMS, *LIBRARIES, *DEVICES, *EXTRAS)

# Exact to the bit: what one process computes, what ranks exchange, what a run ends in.
QUICK_BITS = (
    "unit/test_memory_alignment.py",
    "unit/test_training_replicas.py",
    "unit/test_training_tree_reduce.py",
    "unit/test_checkpoint_train_state.py",
    "unit/test_replication_masked_average.py",
    "unit/test_models_optimization.py",
    "e2e/test_interruption.py::test_a_checkpoint_damaged_between_two_attempts_is_rejected_by_name",
)
BITS = (
    *QUICK_BITS[:-1],
    "e2e/test_exact_recovery.py",
    "unit/test_data_loading.py",
    "unit/test_data_order.py",
    "unit/test_models_build.py",
    "unit/test_training_loop.py",
    "contract/test_ddp_buckets.py",
    "e2e/test_replicas.py",
)
SIGNALS = (
    "unit/test_studies_frame.py",
    "unit/test_supervision_supervisor.py",
    "unit/test_supervision_hung.py",
    "unit/test_supervision_grace_budget.py",
    "unit/test_supervision_writer_process.py",
    "unit/test_studies_trial_timeout.py",
    "unit/test_runs_supervisor_restarter.py",
    "unit/test_session_guards.py",
    "e2e/test_interruption.py",
)
FILES = (
    "unit/test_checkpoint_store.py",
    "unit/test_checkpoint_server.py",
    "unit/test_checkpoint_integrity.py",
    "unit/test_storage_fs.py",
    "unit/test_storage_files.py",
    "unit/test_runs_run_dir.py",
    "unit/test_cli_main.py",
    "unit/test_cli_scrub.py",
    "unit/test_linux_run_lock.py",
    "unit/test_linux_processes.py",
    "unit/test_metrics_disk.py",
)
TOOLS = (
    "contract/test_system_calls.py",
    "unit/test_study_io_errors.py",
    "unit/test_study_power_loss_real.py",
    "unit/test_study_disk_timeline.py",
    "e2e/test_report_page.py",
    "e2e/test_full_disk.py",
)
# Real runs: launched in each way, resumed, judged, reported.
RUNS = (
    "contract/test_launchers.py",
    "e2e/test_sweep_killed.py",
    "e2e/test_reference.py",
    "e2e/test_exact_recovery.py::test_torchrun_gives_the_same_bits_and_a_planned_exit_flushes_first",
    "unit/test_runs_sweep.py",
)
# What looks at the machine for something that it may lack, and either does without it or is skipped
# by name.
LOOKING = (
    "contract/test_studies.py",
    "contract/test_prerequisites.py",
    "contract/test_system_calls.py",
    "contract/test_trackers.py",
    "unit/test_cli_doctor.py",
    "unit/test_cli_main.py",
    "unit/test_study_io_errors.py",
    "unit/test_study_power_loss_real.py",
    "e2e/test_full_disk.py",
    "e2e/test_report_page.py",
    "e2e/test_audit_page.py",
)
# Of those, what plans a study: what is missing decides which of its arms can run.
PLANS = (
    "contract/test_studies.py::test_each_trial_names_its_arm_and_each_arm_that_can_run_has_trials"
)
TEXTS = (
    "unit/test_report_markdown.py",
    "unit/test_report_csv_files.py",
    "unit/test_report_page.py",
    "unit/test_supervision_console.py",
    "unit/test_study_hostile.py",
)


@dataclass(frozen=True)
class Environment:
    """`tests`: below tests/. `variables`: added to the environment. `prefix`: words in front of the
    command. `options`: pytest's.

    `why_not`: why this machine does not have it, or nothing. `around`: what is there while the
    tests run; it may add variables.
    `hidden`: what of HIDEABLE the tests do not see.
    """

    tests: Sequence[str]
    variables: dict[str, str] = field(default_factory=dict)
    prefix: Sequence[str] = ()
    options: Sequence[str] = ()
    why_not: Callable[[], str] = lambda: ""
    around: Callable[[Path], Iterator[dict[str, str]]] | None = None
    hidden: Sequence[str] = ()


def shell(script: str, *more: str) -> tuple[str, ...]:
    """Words that run `script` in front of the command, which is "$@"."""
    return ("sh", "-c", f'{script} exec "$@"', "sh", *more)


def without_flag(flag: str) -> Callable[[], str]:
    return lambda: (
        ""
        if re.search(rf"\b{flag}\b", Path("/proc/cpuinfo").read_text())
        else f"the processor has no {flag}"
    )


def not_root() -> str:
    return "" if os.geteuid() == 0 else "only root may do that"


def nobody_cannot_read() -> str:
    if os.geteuid() != 0:
        return "this is not root already"
    # In a process of its own: setpriv itself may start an interpreter that the other user cannot
    # reach.
    again = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import ecrl_cli,"
        " tests.conftest, torch'], check=True)"
    )
    words = [
        "setpriv",
        f"--reuid={NOBODY}",
        f"--regid={NOBODY}",
        "--clear-groups",
        sys.executable,
        "-c",
        again,
    ]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    return (
        ""
        if ended.returncode == 0
        else (
            "another user cannot run this interpreter in this checkout"
            f" ({ended.stderr.strip().splitlines()[-1]})"
        )
    )


def no_onednn(scratch: Path) -> Iterator[dict[str, str]]:
    """torch has no variable for it: a sitecustomize.py switches it off when torch has been
    imported, in each process.
    """
    (scratch / "sitecustomize.py").write_text(
        "import importlib.util, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name != 'torch': return None\n"
        "        sys.meta_path.remove(self)\n"
        "        spec = importlib.util.find_spec(name)\n"
        "        execute = spec.loader.exec_module\n"
        "        def then(module):\n"
        "            execute(module)\n"
        "            module._C._set_mkldnn_enabled(False)\n"
        "        spec.loader.exec_module = then\n"
        "        return spec\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    yield {"PYTHONPATH": str(scratch)}


def busy_cores(scratch: Path) -> Iterator[dict[str, str]]:
    burning = [
        subprocess.Popen([sys.executable, "-I", "-S", "-c", "while True: pass"])
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield {}
    finally:
        for process in burning:
            process.kill()
            process.wait()


def without(names: Sequence[str], folder: Path) -> tuple[str, str]:
    """The PATH and the Python of a machine that lacks what `names` stand for, made in `folder`."""
    path = path_without([PROGRAMS[name] for name in names if name in PROGRAMS], folder / "programs")
    libraries = [library for name in names for library in LIBRARIES.get(name, ())]
    distributions = [each for name in names for each in EXTRAS.get(name, ())]
    return path, python_without(
        distributions,
        libraries,
        [DEVICES[name] for name in names if name in DEVICES],
        folder / "python",
    )


def unprivileged() -> tuple[str, ...]:
    """Words in front of a command that root runs without the right to mount: what a container takes
    from it.
    """
    return (
        ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
        if os.geteuid() == 0 and shutil.which("setpriv")
        else ()
    )


def a_path_with_spaces(scratch: Path) -> Iterator[dict[str, str]]:
    """A copy of the checkout, from which the tests and the package come."""
    copy = scratch / "a path with spaces"
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    yield {"PYTHONPATH": str(copy / "src"), "ECRL_TEST_CHECKOUT": str(copy)}


def owned_by_nobody(scratch: Path) -> Iterator[dict[str, str]]:
    for path in (scratch.parent, scratch):
        os.chown(path, NOBODY, NOBODY)
    yield {"HOME": str(scratch), "TMPDIR": str(scratch), "PYTHONDONTWRITEBYTECODE": "1"}


ENVIRONMENTS = {
    "kernels-default": Environment(BITS, {"ATEN_CPU_CAPABILITY": "default"}),
    "kernels-avx2": Environment(
        BITS, {"ATEN_CPU_CAPABILITY": "avx2"}, why_not=without_flag("avx2")
    ),
    "kernels-avx512": Environment(
        BITS, {"ATEN_CPU_CAPABILITY": "avx512"}, why_not=without_flag("avx512f")
    ),
    "mkl-compatible": Environment(QUICK_BITS, {"MKL_CBWR": "COMPATIBLE"}),
    "mkl-avx2": Environment(QUICK_BITS, {"MKL_CBWR": "AVX2"}, why_not=without_flag("avx2")),
    "mkl-instructions-sse4": Environment(QUICK_BITS, {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}),
    "mkl-instructions-avx2": Environment(
        QUICK_BITS, {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}, why_not=without_flag("avx2")
    ),
    "onednn-sse41": Environment(QUICK_BITS, {"ONEDNN_MAX_CPU_ISA": "SSE41"}),
    "onednn-off": Environment(QUICK_BITS, around=no_onednn),
    "one-core": Environment((*QUICK_BITS, *SIGNALS), prefix=("taskset", "-c", "0")),
    "busy-cores": Environment((*QUICK_BITS, *SIGNALS), around=busy_cores),
    "signals-ignored": Environment(SIGNALS, prefix=shell("trap '' INT HUP QUIT;")),
    "not-root": Environment(
        (*FILES, *TOOLS, *RUNS),
        prefix=("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
        why_not=nobody_cannot_read,
        around=owned_by_nobody,
    ),
    "path-with-spaces": Environment(
        (*FILES, *RUNS, "unit/test_session_guards.py"), around=a_path_with_spaces
    ),
    "umask-077": Environment((*FILES, *RUNS), prefix=shell("umask 077;")),
    "tiny-shared-memory": Environment(
        (
            "unit/test_study_crash_points.py",
            "unit/test_checkpoint_in_memory.py",
            "contract/test_launchers.py",
            "e2e/test_report_page.py",
        ),
        prefix=("unshare", "--mount", *shell("mount -t tmpfs -o size=64k tmpfs /dev/shm &&")),
        why_not=not_root,
    ),
    "as-it-is": Environment((PLANS, "unit/test_cli_doctor.py")),
    # As in a container: root, but not allowed to mount.
    "without-optional": Environment(LOOKING, prefix=unprivileged(), hidden=HIDEABLE),
    **{
        f"without-{name.replace('/dev/', 'dev-').replace(' ', '-')}": Environment(
            (PLANS,), hidden=(name,)
        )
        for name in HIDEABLE
    },
    "locale-c": Environment(
        (*TEXTS, *FILES), {"LC_ALL": "C", "LANG": "", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ),
    "random-order": Environment(
        (*QUICK_BITS[:-1], *SIGNALS[:-2], *FILES, *TEXTS), options=("--shuffle", "1")
    ),
}

# What `.ci/run` runs beside the suite: what looks at the machine, on one that has nothing of all
# that.
BARE = ("as-it-is", "without-optional", "without-libfuse")
# What `make test-capabilities` runs in the time that continuous integration has.
CAPABILITIES = ("kernels-default", "kernels-avx2")


def run(name: str, quick: bool) -> bool:
    """Run one; says how it went. False where a test failed."""
    environment, began = ENVIRONMENTS[name], time.monotonic()
    if reason := environment.why_not():
        print(f"{name}: skipped: {reason}", flush=True)  # noqa: T201
        return True
    tests = QUICK_BITS if quick else environment.tests
    with (
        tempfile.TemporaryDirectory(prefix="ecrl-environment-") as folder,
        surroundings(environment, Path(folder)) as more,
    ):
        root = Path(more.get("ECRL_TEST_CHECKOUT", ROOT))
        variables = {**os.environ, **environment.variables, **more}
        options = [
            "-q",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            f"--basetemp={folder}/tests of this",
            *environment.options,
        ]
        python = sys.executable
        if environment.hidden:
            variables["PATH"], python = without(environment.hidden, Path(folder))
        command = [
            *environment.prefix,
            python,
            "-m",
            "pytest",
            *options,
            *(f"tests/{each}" for each in tests),
        ]
        ended = subprocess.run(
            command,
            cwd=root,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    counted = [
        line
        for line in ended.stdout.splitlines()
        if re.match(r"\d+ (passed|failed|skipped|deselected|error).* in \d", line)
    ]
    answer = f"{counted[-1] if counted else 'no answer'} ({time.monotonic() - began:.0f} s)"
    print(f"{name}: {answer}", flush=True)  # noqa: T201
    if ended.returncode:
        print(ended.stdout[-20000:] + ended.stderr[-4000:], flush=True)  # noqa: T201
    return ended.returncode == 0


@contextmanager
def surroundings(environment: Environment, folder: Path) -> Iterator[dict[str, str]]:
    scratch = folder / "scratch"
    scratch.mkdir()
    if environment.around is None:
        yield {}
    else:
        with contextmanager(environment.around)(scratch) as variables:
            yield variables


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.environments",
        description="Run tests in one environment after another.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ENVIRONMENTS))
    parser.add_argument(
        "--bare",
        action="store_true",
        help=f"what looks at the machine, on one that lacks it: {' and '.join(BARE)}",
    )
    parser.add_argument(
        "--capabilities",
        action="store_true",
        help=f"the quick tests that compare bits, under {' and '.join(CAPABILITIES)}",
    )
    asked = parser.parse_args()
    if unknown := [name for name in asked.names if name not in ENVIRONMENTS]:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(ENVIRONMENTS)}")
    names = (
        CAPABILITIES if asked.capabilities else BARE if asked.bare else asked.names or ENVIRONMENTS
    )
    went_well = [run(name, asked.capabilities) for name in names]
    return 0 if all(went_well) else 1


if __name__ == "__main__":
    sys.exit(main())
