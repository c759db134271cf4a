"""Checks what each checkpoint consists of against the configuration: its form, its MAC, the names
and shapes of the parameters, what the optimizer keeps of each, and the kinds of generators.
"""

from __future__ import annotations

from collections.abc import Iterator

from ecrl_cli.checkpoint.format.manifest import Manifest
from ecrl_cli.checkpoint.format.names import suffix_of
from ecrl_cli.config.parameter_shapes import parameter_shapes
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.config.tasks import TASKS
from ecrl_cli.errors import shown
from ecrl_cli.verify.disk_state import StoredCheckpoint
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case, checkpoint_events

# how far the sizes of checkpoints of one model may be apart: what their documents say
_APART_BYTES, _APART = 2**16, 0.01
# what the optimizers keep of each parameter
KEPT = {"sgd": {"momentum_buffer"}, "adamw": {"exp_avg", "exp_avg_sq", "step"}}
Shapes = dict[str, tuple[int, ...]]


def check_contents(case: Case, notes: FindingBuilder) -> None:
    """Check every whole checkpoint of ECRL's own. What another checkpointer writes only it can
    read.
    """
    if strategy_of(case.run.stored.config).checkpointer:
        return
    due = suffix_of(case.run.stored.config.checkpoint)
    for c in case.disk:
        if not c.report.ok or c.report.manifest is None:
            continue
        if (form := c.path.partition(".")[2]) != due.lstrip("."):
            notes.broken(f"{c.path} is {_form(form)}, config.json has {_form(due.lstrip('.'))}")
        shapes = _shapes(c.report.manifest)
        for text in (*_wrong_parameters(case, shapes), *_wrong_optimizer(case, c, shapes)):
            notes.broken(f"{c.path} {text}")
        _check_generators(case, c, shapes, notes)
        _check_signature(case, c, notes)
    _check_sizes(case, notes)


def _form(suffix: str) -> str:
    return f"a single file ({suffix})" if suffix else "a folder of parts"


def _shapes(manifest: Manifest) -> Shapes:
    return {
        name: tensor.shape
        for part in manifest.parts.values()
        for name, tensor in part.tensors.items()
    }


def _of(component: str, shapes: Shapes) -> Shapes:
    """The tensors of one component, without its name."""
    prefix = f"{component}."
    return {
        name.removeprefix(prefix): shape
        for name, shape in shapes.items()
        if name.startswith(prefix)
    }


def _due(case: Case, there: Shapes) -> Shapes:
    """The parameters of the configured model; empty where it is not one of ECRL's, or where no
    parameter has a name of it: that may be one under the same name.
    """
    record = case.run.dataset
    if record is None:
        return {}
    due = parameter_shapes(case.run.stored.config.model, record.classes, record.shape)
    return due if due.keys() & there.keys() else {}


def _wrong_parameters(case: Case, shapes: Shapes) -> Iterator[str]:
    """The first parameter that is not as the configured model has it."""
    there = _of("parameters", shapes)
    due = _due(case, there)
    for name in sorted(due.keys() | there.keys()) if due else ():
        if due.get(name) != there.get(name):
            yield (
                f"has parameter {shown(name)} {_shaped(there.get(name))}, the configured model has"
                f" it {_shaped(due.get(name))}"
            )
            return


def _shaped(shape: tuple[int, ...] | None) -> str:
    return "not at all" if shape is None else f"with shape {list(shape)}"


def _wrong_optimizer(case: Case, c: StoredCheckpoint, shapes: Shapes) -> Iterator[str]:
    """The first parameter that no optimizer of this kind updates, and the first thing that it does
    not keep of one. A task of another package may keep more.
    """
    config, parameters = case.run.stored.config, _of("parameters", shapes)
    optimizer = c.train.get("optimizer")
    groups = optimizer.get("param_groups") if isinstance(optimizer, dict) else None
    given = [
        name
        for group in (groups if isinstance(groups, list) else [])
        if isinstance(group, dict) and isinstance(group.get("params"), list)
        for name in map(str, group["params"])
    ]
    known = _due(case, parameters)
    if len(given) != len(set(given)) or set(given) - parameters.keys():
        yield "gives its optimizer a parameter twice, or one that it does not hold"
    elif left := sorted(known.keys() - set(given)):
        yield f"gives its optimizer no parameter {shown(left[0])}: it is never updated"
    if config.task.name not in TASKS.builtin:
        return
    kept = [name.rpartition(".") for name in _of("optimizer", shapes)]
    keys = {key for _, _, key in kept}
    if other := sorted(keys - KEPT.get(config.optimizer.name, keys)):
        yield f"keeps {shown(other[0])} for its optimizer, {config.optimizer.name} has none"
    # a scaler may have skipped every step; without momentum there is nothing to keep
    if config.precision == "fp16" or (config.optimizer.name, config.optimizer.momentum) == (
        "sgd",
        0.0,
    ):
        return
    without = sorted(known.keys() - {owner for owner, _, _ in kept})
    if without:
        yield f"keeps nothing of parameter {shown(without[0])} for its optimizer"


def _check_generators(
    case: Case, c: StoredCheckpoint, shapes: Shapes, notes: FindingBuilder
) -> None:
    """A CUDA generator for each rank on a CUDA device, none on a CPU; `auto` may be either."""
    device = case.run.stored.config.device
    owners = {name.rpartition(".")[0] for name in _of("rng", shapes)}
    on_cuda = {name.rpartition(".")[0] for name in _of("rng", shapes) if name.endswith(".cuda")}
    if (device == "cuda" and on_cuda != owners) or (device == "cpu" and on_cuda):
        how = "with" if on_cuda else "without"
        notes.broken(f"{c.path} was saved {how} CUDA generators, config.json has device={device}")


def _check_signature(case: Case, c: StoredCheckpoint, notes: FindingBuilder) -> None:
    """A commit is signed where a key is configured. A session may have gone on with another key
    than config.json names.
    """
    keyed = bool(case.run.stored.config.checkpoint.hmac_key_file)
    if keyed != c.signed:
        how, what = ("is", "names no") if c.signed else ("is not", "names a")
        text = f"the commit of {c.path} {how} signed, config.json {what} key for it"
        (notes.broken if len(case.run.sessions) == 1 else notes.missing)(text)


def _check_sizes(case: Case, notes: FindingBuilder) -> None:
    """All checkpoints of a run have the tensors of those that are there, and about their size,
    where as many ranks saved them. In fp16 the optimizer may have kept nothing yet.
    """
    config, sizes = case.run.stored.config, dict[int, int]()
    for c in case.disk:
        line = case.committed(c)
        if c.report.ok and c.report.manifest and line:
            known = _due(case, _of("parameters", _shapes(c.report.manifest)))
            if known and config.precision != "fp16" and config.task.name in TASKS.builtin:
                sizes[c.report.manifest.world_size] = line.bytes
    for line in checkpoint_events(case.run):
        a = case.attempt(line.attempt)
        kept = sizes.get(a.world_size, 0) if a and line.event == "committed" else 0
        if kept and line.bytes and abs(line.bytes - kept) > _APART_BYTES + _APART * kept:
            notes.broken(
                f"attempt {line.attempt} committed step {line.global_step} with {line.bytes} bytes,"
                f" a checkpoint of the same state that is there has {kept}"
            )
