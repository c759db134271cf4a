"""Runs an audit of a command: undisturbed runs first, then one arm per planned fault, then the
verdict and its page.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ecrl.masking import masked, masked_text
from ecrl_cli.audit.cold_and_warm import changed_by_warmth, steps_apart
from ecrl_cli.audit.components import judged_arm
from ecrl_cli.audit.control import CONTROL, component_of
from ecrl_cli.audit.costs import costs_of
from ecrl_cli.audit.files import write_inventory
from ecrl_cli.audit.lineage import path_of
from ecrl_cli.audit.page import page
from ecrl_cli.audit.plan import PlannedArm, PlannedFault, planned_arms, too_few_steps
from ecrl_cli.audit.progress import last_words
from ecrl_cli.audit.promises import COLD, COLD_STEPS, in_several_processes
from ecrl_cli.audit.records import Arm, read_arm
from ecrl_cli.audit.runner import Job, Say, failed, install_recorder, run_arm
from ecrl_cli.audit.verdict import AuditVerdict, arms_of, judge
from ecrl_cli.audit.warm import ColdStarts, WarmStarts
from ecrl_cli.config.audit import ORDERS, AuditConfig
from ecrl_cli.config.codec import encode
from ecrl_cli.config.estimates import human_seconds
from ecrl_cli.errors import ConfigError, EvidenceMissing, RecordError, plural
from ecrl_cli.records.journal import read_json
from ecrl_cli.runs.run_dir import check_space
from ecrl_cli.storage.files import write_json, write_whole
from ecrl_cli.storage.safe_read import refuse_links

SCHEMA_VERSION = 1


def folder_of(config: AuditConfig, words: tuple[str, ...]) -> Path:
    """`run_dir`, or outputs/audit/NAME-HASH derived from the command and configuration."""
    if config.run_dir:
        return Path(config.run_dir).expanduser().absolute()
    script = next((Path(word).stem for word in words if word.endswith(".py")), Path(words[0]).name)
    content = hashlib.sha256(repr((words, encode(config))).encode()).hexdigest()[:8]
    return (Path("outputs") / "audit" / f"{script}-{content}").absolute()


def run_audit(config: AuditConfig, words: tuple[str, ...], say: Say) -> tuple[Path, AuditVerdict]:
    """Run every arm and judge. ConfigError, with the last line of its output, if the command cannot
    be audited.
    """
    folder = folder_of(config, words)
    check_command(config, words)
    _check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for arm in folder.glob("*/arm.json"):
        # of an earlier audit, perhaps with other failures: who judges the folder again would judge
        # them too
        shutil.rmtree(arm.parent)
    recorder = install_recorder(folder)
    with closing(starts_of(config, recorder)) as starts:
        job = Job(words, config.audit, recorder, starts=starts)
        return folder, _run_arms(job, config, folder, say)


def starts_of(config: AuditConfig, recorder: Path) -> ColdStarts:
    """Warm ones need a second undisturbed run, which shows whether they change anything."""
    if config.audit.warm and config.audit.references > 1:
        return WarmStarts(recorder)
    return ColdStarts()


def _run_arms(job: Job, config: AuditConfig, folder: Path, say: Say) -> AuditVerdict:
    references = _references(job, config, folder, say)
    job, undisturbed = job.beside(references[0]), judged_arm(references[0])
    plan = planned_arms(config, undisturbed)
    if not plan:
        raise too_few_steps(undisturbed)
    spent = references[-1].launches[-1].seconds
    rest = (
        f"{plural(len(plan), 'arm')} with failures, roughly"
        f" {human_seconds(spent * sum(1 + len(arm.faults) for arm in plan))}"
    )
    how = ", started warm" if job.starts.warm else ""
    say(f"one undisturbed run took {human_seconds(spent)}{how}; then {rest}")
    asked = {
        "command": masked(job.words),
        "config": _without_secrets(config),
        "plan": [encode(arm) for arm in plan],
    }
    names, started_warm = [arm.name for arm in plan], job.starts.warm
    # of an audit that is stopped now
    write_result(folder, judge(references, [], config.audit.order, names), asked)
    faulted = [_faulted(job, arm, folder, say) for arm in plan]
    if config.audit.cold:
        faulted += _cold(job, references[0], folder, say)
    if config.audit.control:
        left_out = component_of(faulted)
        why = f"its restart leaves out the {left_out} on purpose"
        spoilt = PlannedArm(CONTROL, why, plan[0].faults)
        faulted.append(_faulted(replace(job, control=left_out), spoilt, folder, say))
    asked["starts"] = {"warm": job.starts.warm, "why_cold": job.starts.why_cold}
    if job.starts.why_cold and started_warm:
        say(f"the last attempts were started cold: {job.starts.why_cold}")
    verdict = judge(references, faulted, config.audit.order, anew=config.audit.anew)
    write_result(folder, verdict, asked)
    return verdict


def _without_secrets(config: AuditConfig) -> dict[str, Any]:
    """The configuration as audit.json holds it."""
    keys = replace(
        config.audit,
        resume=masked_text(config.audit.resume),
        elastic=masked_text(config.audit.elastic),
    )
    return cast(dict[str, Any], encode(replace(config, audit=keys)))


def check_command(config: AuditConfig, words: tuple[str, ...]) -> None:
    """ConfigError if two arms would write to the same place."""
    if not any("{dir}" in word for word in words) and not config.audit.own_dir:
        way = (
            "write {dir} where the job writes (train.py --out {dir}), or say audit.own_dir=true if"
            " it obeys ECRL_ARM_DIR"
        )
        raise ConfigError(
            "COMMAND",
            "names no {dir}: every arm would write to the same place, and resume from another's"
            " checkpoints",
            way,
        )
    if config.audit.elastic and "{dir}" not in config.audit.elastic and not config.audit.own_dir:
        raise ConfigError(
            "audit.elastic",
            "names no {dir}: it would not find what the command has saved",
            "write {dir} where the job writes",
        )


def _check_folder(folder: Path) -> None:
    check_space(folder)
    strange = [child.name for child in folder.iterdir()] if folder.is_dir() else []
    if strange and "audit.json" not in strange and "recorder" not in strange:
        raise ConfigError(
            "run_dir", f"{folder} holds other things ({strange[0]})", "name a new folder"
        )


def _references(job: Job, config: AuditConfig, folder: Path, say: Say) -> list[Arm]:
    undisturbed = replace(job, keys=replace(job.keys, max_restarts=0))
    references = [_reference(undisturbed, folder / "ref", say)]
    job.starts.warm_up()
    if job.starts.warm and config.audit.references > 1:
        no_longer = undisturbed.beside(references[0]).no_step_s
        undisturbed = replace(undisturbed, no_step_s=no_longer)
        references.append(_shown_warm(undisturbed, references[0], folder / "ref2", say))
    if job.starts.why_cold:
        say(f"each attempt is started cold: {job.starts.why_cold}")
    for number in range(len(references) + 1, config.audit.references + 1):
        references.append(_reference(undisturbed, folder / f"ref{number}", say))
    return references


def _reference(job: Job, arm: Path, say: Say) -> Arm:
    """One undisturbed run. ConfigError if it fails."""
    say(f"{arm.name}: undisturbed{', started warm' if job.starts.warm else ''}")
    launches = run_arm(job, arm, (), say)
    if launches[-1].exit_code != 0:
        raise failed(arm, launches[-1])
    write_inventory(arm)
    recorded = read_arm(arm)
    if (apart := in_several_processes([recorded])) is not None:
        what, _, way_out = apart.message.partition(": ")
        raise EvidenceMissing(str(arm), what, way_out)
    return recorded


def _shown_warm(job: Job, cold: Arm, folder: Path, say: Say) -> Arm:
    """The second undisturbed run, started warm. If that changes anything which a further one, that
    is started cold, does not, it is the latter, and so are all arms.
    """
    warm, why = _tried_warm(job, cold, folder, say)
    if warm is not None and not why:
        return warm
    aside = folder.parent / "recorder" / folder.name
    folder.rename(aside)
    say(f"{folder.name}: {why}: once more, started cold")
    again = _reference(replace(job, starts=ColdStarts()), folder, say)
    if warm is not None:
        apart = steps_apart(cold, again)
        why = (
            f"nothing shows that it changes nothing: two cold runs differ as well, {apart}"
            if apart
            else changed_by_warmth([cold, again], replace(warm, folder=aside))
        )
    if why:
        job.starts.cool(f"started warm, {why}")
    return again


def _tried_warm(job: Job, cold: Arm, folder: Path, say: Say) -> tuple[Arm | None, str]:
    """An undisturbed run started warm, None if it failed, and what differs in it."""
    try:
        warm = _reference(job, folder, say)
        return warm, changed_by_warmth([cold], warm)
    except (ConfigError, EvidenceMissing) as error:
        return None, f"it fails ({error.fact})"


def _faulted(job: Job, planned: PlannedArm, folder: Path, say: Say) -> Arm:
    what = ", ".join(map(str, planned.faults))
    say(f"{planned.name}: {what}; {planned.why}")
    if not planned.elastic:
        job = replace(job, keys=replace(job.keys, elastic=""))
    run_arm(job, folder / planned.name, planned.faults, say)
    write_inventory(folder / planned.name)
    return read_arm(folder / planned.name)


def _cold(job: Job, reference: Arm, folder: Path, say: Say) -> list[Arm]:
    """A few steps of the command of a second attempt, in an empty folder. No arm if the job does
    not start like that.
    """
    last, rank = path_of(reference).last, max(process.rank for process in reference.processes)
    say(f"{COLD}: a start with nothing to resume from, for {plural(COLD_STEPS, 'step')}")
    faults = (
        (PlannedFault(0, 0, "kill", rank, COLD_STEPS + 1, "before"),) if last > COLD_STEPS else ()
    )
    run_arm(
        replace(job, keys=replace(job.keys, max_restarts=0, elastic=""), cold=True),
        folder / COLD,
        faults,
        say,
    )
    try:
        return [read_arm(folder / COLD)]
    except EvidenceMissing:
        say(
            f"{COLD}: the job does not start without its state"
            f" ({last_words(folder / COLD) or 'it printed nothing'}): nothing to compare with"
        )
        shutil.rmtree(folder / COLD)
        return []


def asked_of(folder: Path) -> dict[str, Any]:
    """The command, configuration, plan and starts of an audit that was run in `folder`, as far as
    its audit.json tells.
    """
    refuse_links(folder, ("audit.json",))
    try:
        document = read_json(folder / "audit.json") if (folder / "audit.json").exists() else {}
    except RecordError:
        return {}  # it is written anew
    kinds = {"command": list, "config": dict, "plan": list, "starts": dict}
    return {
        key: document[key]
        for key, kind in kinds.items()
        if isinstance(document, dict) and isinstance(document.get(key), kind)
    }


def order_of(asked: dict[str, Any]) -> str:
    """The value of `audit.order` when it was recorded."""
    keys = asked.get("config", {}).get("audit")
    order = keys.get("order") if isinstance(keys, dict) else None
    return order if order in ORDERS else ORDERS[0]


def anew_of(asked: dict[str, Any]) -> bool:
    """The value of `audit.anew` when it was recorded."""
    keys = asked.get("config", {}).get("audit")
    return isinstance(keys, dict) and keys.get("anew") is True


def planned_of(asked: dict[str, Any]) -> list[str]:
    """The names of the arms that were planned then."""
    names = [arm.get("name") for arm in asked.get("plan", []) if isinstance(arm, dict)]
    return [name for name in names if isinstance(name, str)]


def judge_folder(
    folder: Path,
    reference: Path | None,
    order: str,
    planned: Iterable[str] = (),
    anew: bool = False,
) -> AuditVerdict:
    """Judge the recording under `folder`, whoever made it; `reference`: an arm, or a folder of
    arms, from elsewhere; `planned`: the arms that were to be run; `anew`: as `audit.anew`.
    """
    references, faulted = arms_of(folder)
    if reference is not None:
        others, arms = arms_of(reference)
        references = others or arms
    return judge(references, faulted, order, planned, anew)


def write_result(folder: Path, verdict: AuditVerdict, more: dict[str, Any]) -> None:
    """Write audit.json and report/index.html."""
    document = {
        "schema_version": SCHEMA_VERSION,
        **verdict.to_json(),
        "python": sys.version.split()[0],
        "costs": _costs(verdict),
        **more,
    }
    document["versions"] = next(
        (process.versions for judged in verdict.references for process in judged.arm.processes), {}
    )
    refuse_links(folder, ("report", "audit.json"))  # a stranger's recording may point elsewhere
    write_json(folder / "audit.json", document)
    (folder / "report").mkdir(exist_ok=True)
    write_whole(
        folder / "report" / "index.html",
        page(folder.name, verdict, document, folder).encode(),
        durable=False,
    )


def _costs(verdict: AuditVerdict) -> dict[str, Any]:
    """By arm."""
    return {
        judged.arm.name: encode(costs_of(judged)) for judged in (*verdict.references, *verdict.arms)
    }
