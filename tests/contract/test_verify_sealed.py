"""A sealed run is the run that ended; what comes to it afterwards in good faith does not break the
seal.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.checkpoint.format.names import COMMIT
from ecrl_cli.cli.main import main
from ecrl_cli.errors import ConfigError
from ecrl_cli.history.load import load
from ecrl_cli.metrics.cache import differences
from ecrl_cli.metrics.document import metrics_document
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.seal import make_seal, reopen, write_seal
from ecrl_cli.verify.reference import References
from ecrl_cli.verify.verdict import INVALID, NOT_CHECKED, UNKNOWN, VALID, Finding
from ecrl_cli.verify.verify_run import verify_run
from tests.runs.builder import build_blk, flip
from tests.runs.continued import build_continued
from tests.runs.spoil import edit_json
from tests.runs.spoilt_metrics import (
    KEY,
    OTHER_KEY,
    SEALED,
    ask_for_signature,
    commits,
    key_file,
    names_in,
    seal,
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_blk(tmp_path_factory.mktemp("runs")).root


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> RunLayout:
    return RunLayout(Path(shutil.copytree(recorded, tmp_path / "blk", symlinks=True)))


def sealed(run: RunLayout, key: bytes = b"") -> Finding:
    return next(
        finding
        for finding in verify_run(run.root, None, References(key)).findings
        if finding.promise == SEALED
    )


def test_every_record_is_under_the_seal(run: RunLayout) -> None:
    seal(run)
    expected = {
        path.relative_to(run.root).as_posix() for path in run.root.rglob("*") if path.is_file()
    }
    outside = {"seal.json", *(name for name in expected if name.startswith("checkpoints/"))}
    assert names_in(run) == {
        name for name in expected - outside if not Path(name).name.startswith(".")
    }
    assert {
        "config.json",
        "supervisor.json",
        "metrics.json",
        "fired/000.json",
        "logs/attempt-00/spans_rank0.jsonl",
    } <= names_in(run)


def test_an_untouched_run_is_sealed(run: RunLayout) -> None:
    seal(run)
    found = sealed(run)
    assert found.status == VALID and found.message.startswith("sealed: ")


def test_a_run_without_a_seal_is_not_checked(run: RunLayout) -> None:
    assert sealed(run).status == NOT_CHECKED and sealed(run).message == "not sealed"
    edit_json(run.supervisor, lambda s: s | {"terminal_status": "running"})
    ask_for_signature(run)
    assert (
        sealed(run).status == NOT_CHECKED
        and sealed(run).message == "not sealed: the run has not ended"
    )


def test_a_seal_that_is_owed_is_unknown_where_it_is_missing(run: RunLayout) -> None:
    assert (
        sealed(run, KEY).status == UNKNOWN
        and "not sealed, and a key was given" in sealed(run, KEY).message
    )
    ask_for_signature(run)
    assert (
        sealed(run).status == UNKNOWN
        and "not sealed, and seal.key_file is set" in sealed(run).message
    )


def test_a_signature_is_checked_where_the_key_is_at_hand(run: RunLayout) -> None:
    seal(run, KEY)
    assert sealed(run, KEY).message.startswith("sealed and signed: ")
    assert sealed(run).status == VALID and sealed(run).message.startswith(
        "sealed, signature not checked (no key given: --seal-key FILE): "
    )
    wrong = sealed(run, OTHER_KEY)
    assert (
        wrong.status == INVALID and "the signature of seal.json is not of this key" in wrong.message
    )


def test_the_key_of_the_configuration_is_taken_where_it_is_there(run: RunLayout) -> None:
    ask_for_signature(run)
    seal(run, KEY)
    assert sealed(run).message.startswith(
        "sealed and signed with the key that its own configuration names: "
    )
    key_file(run).unlink()
    assert (
        sealed(run).status == VALID
        and "signature not checked (seal.key_file: " in sealed(run).message
    )


def test_a_key_in_the_run_itself_shows_nothing(
    run: RunLayout, capsys: pytest.CaptureFixture[str]
) -> None:
    own = run.root / "seal.key"
    own.write_bytes(KEY)
    own.chmod(0o600)
    edit_json(run.config, lambda c: c["config"]["seal"].update(key_file=str(own)))
    seal(run, KEY)
    found = sealed(run)
    said = "".join((found.message, *found.evidence))  # a long path is cut
    assert (
        found.status == UNKNOWN
        and f"signed with '{run.root.parts[0]}" in said
        and ", a key that lies in the run itself" in said
    )
    assert sealed(run, KEY).message.startswith("sealed and signed: "), (
        "given from elsewhere it may be trusted"
    )
    assert main(["verify", str(run.root), "--seal-key", str(own)]) == 2
    assert (
        f"E-config --seal-key: lies in {run.root}, which it is to vouch for; name a key"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("mac", ["\u00e4" * 64, "\ud800" * 64], ids=["umlauts", "half characters"])
@pytest.mark.parametrize("name", ["hmac_sha256", "seal_sha256"])
def test_a_signature_of_any_characters_is_wrong(mac: str, name: str, run: RunLayout) -> None:
    seal(run, KEY)
    edit_json(run.seal, lambda s: s.update({name: mac}))
    assert sealed(run, KEY).status == INVALID


def test_a_key_that_others_may_read_is_none(run: RunLayout) -> None:
    ask_for_signature(run)
    seal(run, KEY)
    key_file(run).chmod(0o644)
    assert "signature not checked (seal.key_file: " in sealed(run).message


def test_an_unsigned_seal_is_not_enough_where_a_key_is_given(run: RunLayout) -> None:
    seal(run)
    found = sealed(run, KEY)
    assert (
        found.status == INVALID and "seal.json is not signed, and a key was given" in found.message
    )


def test_what_comes_in_good_faith_does_not_break_it(run: RunLayout, tmp_path: Path) -> None:
    """A verdict, distances, a report, what others put beside the records, a copy, a move."""
    seal(run)
    run.verdict.write_text("{}")
    run.divergence.write_text("{}")
    (run.root / "report").mkdir()
    (run.root / "notes.txt").write_text("good run")
    (run.root / ".lock").write_text("{}")
    (run.fired / ".000.json.1234.tmp").write_text("{}")
    moved = RunLayout(Path(shutil.move(run.root, tmp_path / "elsewhere")))
    assert sealed(moved).status == VALID


@pytest.mark.parametrize(
    "spoil",
    [shutil.rmtree, lambda folder: flip(folder / "model.safetensors")],
    ids=["gone", "damaged"],
)
def test_a_lost_or_damaged_checkpoint_is_told_by_another_promise(run: RunLayout, spoil) -> None:  # type: ignore[no-untyped-def]
    seal(run)
    spoil(run.checkpoints / "step_00000012")
    verdict = verify_run(run.root)
    assert {f.promise for f in verdict.findings if f.status == INVALID} == {"no-acknowledged-loss"}


def test_a_replaced_checkpoint_breaks_it(run: RunLayout, tmp_path: Path) -> None:
    seal(run)
    other, name = build_blk(tmp_path / "other", bug_from=12), "step_00000024"
    shutil.rmtree(run.checkpoints / name)
    shutil.copytree(other.checkpoints / name, run.checkpoints / name)
    found = sealed(run)
    assert (
        found.status == INVALID
        and "changed since it was sealed: checkpoints/step_00000024 (another commit)"
        in found.message
    )


def test_a_damaged_commit_is_no_other_one(run: RunLayout) -> None:
    """It is told where checkpoints are judged."""
    seal(run)
    (run.checkpoints / "step_00000024" / COMMIT).write_text("{")
    assert sealed(run).status == VALID


def test_a_file_is_named_with_what_is_wrong(run: RunLayout) -> None:
    seal(run)
    flip(run.attempt(0).spans(0))
    with run.failures.open("a") as file:
        file.write("\n")
    run.disk.write_text("")
    run.attempt(1).launch.unlink()
    told = [
        text.removeprefix(f"Broke promise: {SEALED} - ")
        for text in (sealed(run).message, *sealed(run).evidence)
    ]
    size = run.failures.stat().st_size
    assert told == [
        "changed since it was sealed: disk.jsonl (was not there)",
        f"changed since it was sealed: failures.json ({size - 1} bytes then, {size} now)",
        (
            "changed since it was sealed: logs/attempt-00/spans_rank0.jsonl (other content of the"
            " same length)"
        ),
        "gone since it was sealed: logs/attempt-01/launch.json",
    ]


def test_a_run_that_goes_on_has_neither_seal_nor_metrics(run: RunLayout) -> None:
    seal(run)
    reopen(run)
    assert not run.seal.exists() and not run.metrics.exists()
    reopen(run)


def test_a_key_file_is_refused_by_its_name(run: RunLayout) -> None:
    from ecrl_cli.config.hmac_key import read_key

    with pytest.raises(ConfigError, match="--seal-key"):
        read_key(str(run.root / "missing"), "--seal-key")


def test_metrics_of_an_earlier_version_are_no_false_alarm(run: RunLayout) -> None:
    """Fields that it did not have, sums in another last bit."""
    document = metrics_document(load(run))
    said = {
        name: value
        for name, value in document.items()
        if name not in ("metrics_version", "recoveries", "snapshots", "world_size")
    }
    assert differences(said | {"wall_s": document["wall_s"] * (1 + 1e-13)}, document) == []
    assert len(differences(said | {"wall_s": document["wall_s"] * 1.0001}, document)) == 1
    assert len(differences(said | {"invented": 1}, document)) == 1
    assert len(differences(said | {"restarts": 2.0}, document)) == 1


# A run that went on after a sealed end

EARLIER = "seal-00000012.json"
WHO_ELSE = f"{EARLIER} is not the seal of this run's end at step 12"


@pytest.fixture(scope="module")
def went_on(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_continued(tmp_path_factory.mktemp("continued")).root


def seal_earlier(run: RunLayout, status: str = "completed", run_id: str = "") -> None:
    """The seal of the end at step 12, over all that is there now."""
    write_seal(run, make_seal(run, run_id or load(run).stored.run_id, status, {}))
    run.seal.rename(run.earlier_seal(12))


def sealed_then(*names: str) -> Callable[[RunLayout], None]:
    """These files were others when the run ended at step 12."""

    def spoil(run: RunLayout) -> None:
        now = {
            name: (run.root / name).read_bytes() if (run.root / name).exists() else None
            for name in names
        }
        for name in names:
            (run.root / name).write_bytes((now[name] or b"") + b"\n")
        seal_earlier(run)
        for name, content in now.items():
            (
                (run.root / name).write_bytes(content)
                if content is not None
                else (run.root / name).unlink()
            )

    return spoil


def garbled(run: RunLayout) -> None:
    run.earlier_seal(12).write_text("{")


def edited(run: RunLayout) -> None:
    seal_earlier(run)
    edit_json(
        run.earlier_seal(12), lambda s: s | {"checkpoints": {"checkpoints/step_00000012": "0" * 64}}
    )


def lost(run: RunLayout) -> None:
    seal_earlier(run)
    run.attempt(0).launch.unlink()


EARLIER_ENDS: dict[str, tuple[Callable[[RunLayout], None], str, str]] = {
    "untouched": (seal_earlier, VALID, ", and those of an earlier end as they were then"),
    "killed before it was sealed": (lambda run: None, VALID, "are as they were when the run ended"),
    "garbled": (garbled, INVALID, f"{EARLIER} cannot be read: "),
    "edited": (edited, INVALID, WHO_ELSE),
    "of another run": (lambda run: seal_earlier(run, run_id="0" * 64), INVALID, WHO_ELSE),
    "of a run that failed": (lambda run: seal_earlier(run, "failed"), INVALID, WHO_ELSE),
    "a record of then is another": (
        sealed_then("failures.json"),
        INVALID,
        "changed since the end at step 12 was sealed: failures.json (",
    ),
    "a record of then is gone": (
        lost,
        UNKNOWN,
        "gone since the end at step 12 was sealed: logs/attempt-00/launch.json",
    ),
    "what goes on has grown": (
        sealed_then("config.json", "environment.json", "supervisor.json", "metrics.json"),
        VALID,
        ", and those of an earlier end as they were then",
    ),
    "what goes on is not written any more": (
        sealed_then("disk.jsonl", "logs/writer.log"),
        VALID,
        ", and those of an earlier end as they were then",
    ),
}


@pytest.mark.parametrize("case", EARLIER_ENDS)
def test_what_an_earlier_end_sealed_is_still_so(went_on: Path, tmp_path: Path, case: str) -> None:
    """Sealed at step 12, continued, and sealed at step 24: only what was changed in between is
    told, with one reason.
    """
    spoil, status, text = EARLIER_ENDS[case]
    run = RunLayout(Path(shutil.copytree(went_on, tmp_path / "run", symlinks=True)))
    spoil(run)
    unsealed = sealed(run)
    assert unsealed.status == (NOT_CHECKED if status == VALID else status)
    seal(run)
    found = sealed(run)
    assert found.status == status and text in found.message and len(found.evidence) <= 1
    assert ("earlier end" in found.message) == ("earlier end" in text)


def test_a_seal_that_names_another_newest_checkpoint_is_none(run: RunLayout) -> None:
    """Also where it was sealed over anew."""
    made = make_seal(run, load(run).stored.run_id, "completed", commits(run))
    other = replace(made, final=next(iter(made.checkpoints.values())))
    write_seal(run, replace(other, seal_sha256=hashlib.sha256(other.body()).hexdigest()))
    found = sealed(run)
    assert (
        found.status == INVALID
        and "seal.json names another final checkpoint than its newest" in found.message
    )


def test_a_seal_of_another_run_is_none_of_this_one(run: RunLayout) -> None:
    write_seal(run, make_seal(run, "0" * 64, "completed", commits(run)))
    found = sealed(run)
    assert (
        found.status == INVALID
        and "seal.json is of run 00000000" in found.message
        and found.evidence == ()
    )
