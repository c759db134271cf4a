"""The help texts of `ecrl`, and its completion for bash, zsh and fish."""

from __future__ import annotations

VERBS = (
    "train",
    "verify",
    "compare",
    "report",
    "study",
    "audit",
    "doctor",
    "examples",
    "published",
    "completion",
)

_CODES = """\
Exit codes: 0 done, valid; 1 invalid; 2 bad input (nothing was written); 3 evidence missing; 4 no valid checkpoint; 5 storage error;
6 hang; 7 no progress; 8 the run directory is held; 9 fenced; 70 a defect of ecrl; 130/143 stopped, the same command resumes.
"""

_ECRL = """\
ecrl: when a PyTorch DDP job dies, does it come back exactly, and what does that cost?

  ecrl train [KEY=VALUE ...]     train under planned failures and recover (no verb means train)
  ecrl verify DIR...             judge recorded runs: valid, invalid or unknown; scrub checkpoints
  ecrl compare RUN OTHER         how far the states of two runs are apart: L2, units in the last place, what differs
  ecrl report DIR...             tables, figures and a page of recorded runs and studies; --against: of two sweeps
  ecrl study study=NAME          an experiment on the checkpoint store: crash points, power loss, corruption, ...
  ecrl audit -- COMMAND          judge a training job that ECRL did not write: does it come back exactly?
  ecrl doctor [DIR]              what this machine gives a run, and what follows from it
  ecrl examples [DIR]            the jobs, the suite and the notebook of the documentation, written into DIR
  ecrl published exp4 DIR        the raw runs of the published matrix, fetched by you: what they show, with evidence
  ecrl completion SHELL          completion for bash, zsh or fish: source <(ecrl completion bash)
  ecrl --version
  ecrl --explain E-CODE          what an error means, and the way out

Examples
  ecrl train +suite=digits-cnn variant=blk
  ecrl -m +suite=digits-cnn variant=clean,ref,blk,ovl
  ecrl verify outputs/*
`ecrl VERB --help` says more; --debug adds the traceback to an error; --plugin FILE.py adds a model, data set, task, strategy or failure of
your own to any of them (docs/extend.md).

"""

_TRAIN = """\
ecrl train [-m] [--config-dir DIR] [--cfg job] [--json] [--mix] [--yes] [GROUP=OPTION ...] [KEY=VALUE ...]

Trains under a supervisor that brings the job back after each planned failure. Nothing is written before everything is checked.
Started again, the same command goes on where the run stopped.

Examples
  ecrl train +suite=cifar10-r50-late scale=smoke
  ecrl train dataset=digits model=small_cnn target_steps=200 failure=kill failure.steps=[40,70] failure.rank=1
  ecrl -m +suite=cifar10-r18-base variant=ref,blk,ovl seed=1337,2027,4242
  ecrl -m +matrix=exp4 scale=smoke                     a published matrix at its smallest scale
  ecrl -m dataset=cifar10,cifar100 model=resnet18,resnet50 schedule=base,late variant=ref,blk,ovl world_size=4      its suites, by their axes
  ecrl -m +matrix=exp4 hydra/launcher=submitit_slurm hydra.launcher.partition=gpu      a Slurm job per run
  ecrl -m +matrix=failures hydra.launcher.n_jobs=2                                     two runs at once; the report compares no times then
  ecrl train --config-dir my_conf +suite=mine run_dir=outputs/mine

  -m, --multirun     a folder for a sweep: every combination of the values with commas
  --config-dir DIR   your own YAML files join (DIR/suite/mine.yaml gives +suite=mine); those of an installed package are found without it
  --cfg job          show the resolved configuration and stop, as YAML that can be fed back: as DIR/suite/mine.yaml, by --config-dir DIR +suite=mine
  --json             print how each run ended as JSON (with --cfg job: the configurations)
  --mix              a sweep may take up runs that another code or machine began; manifest.csv names them, the report averages no such suite
  --yes, -y          start without asking where it takes longer than ten minutes (asked at a terminal only; never in CI or a batch job)
  --debug            add the traceback to an error

reference=auto (the default) trains an undisturbed run after those with planned failures, in references/ beside them, unless one is there:
ecrl verify holds them against it. reference=none leaves it out, reference=always trains it for any run.
After recovery=lossy_forward or skip, always also trains the rest again, from the first checkpoint after the death.

Groups
{groups}

Failures (failure=NAME; docs/failures.md says more)
{failures}

"""

_VERIFY = """\
ecrl verify DIR... [--reference DIR | --with-reference] [--seal-key FILE] [--scrub] [--track] [--junit FILE] [--github] [--json]
ecrl verify CHECKPOINT... [--sample N] [--deep] [--repair OUT_DIR] [--max-bytes N] [--json]
ecrl verify FOLDER... --manifest [--max-bytes N] [--json]

Judges recorded runs by their records alone. A sweep folder stands for all its runs. 0 valid, 1 invalid, 3 unknown.
Scrubs checkpoints, newest first: one of them (step_00000050), a run's checkpoints/, or any folder of such. Of a damaged one it names the file, the
chunk and the tensors, of flipped bits each byte and bit. 0 all valid; 1 one is refused, or latest.json or latest_ok is damaged or points to
nothing; 4 there are checkpoints and none is valid; 2 the folder holds neither runs nor checkpoints. Nothing is changed.
With --manifest: folders of files that ECRL did not write. The first time digests of every file, and of every tensor in .safetensors, .npz and .npy,
are written to FOLDER/ecrl-manifest.json; from then on it says which file and which tensor changed, is damaged or gone. Nothing is unpickled. 0 all
as in the manifest; 1 something changed; 3 a file is not in it.

Examples
  ecrl verify outputs/digits-cnn-blk-s1337-0123abcd
  ecrl verify outputs/quickstart --json
  ecrl verify RUN --reference REFERENCE_RUN
  ecrl verify RUN --with-reference           train the missing undisturbed run, then judge
  ecrl verify RUN --scrub                    the run, and its checkpoints
  ecrl verify RUN/checkpoints
  ecrl verify /backup/step_00000050 --repair repaired
  ecrl verify weights/ --manifest            the first time digests are written, then held against

  --seal-key FILE    every run must be sealed and signed with the key in FILE; else the one of its seal.key_file is used, where it is there
  --reference DIR    hold the runs against this one; without it against undisturbed runs beside them, and in references/ there
  --with-reference   a run with failures is unknown without an undisturbed one: train that one first. Its time is estimated before.
  --junit FILE       the promises as JUnit XML; --github: those that are broken or not proven as annotations of a workflow
  --track            take verdict and metrics to the tracker of each run (tracker=), which writes where the run's configuration says
  --scrub            scrub the checkpoints of the runs too
  --sample N         look at N checkpoints (the newest, others evenly spread); one bad one, and all are looked at
  --deep             of a .pt file and of format version 1 digest each tensor as well: twice the time. Without it the file's digest stands
                     for its tensors; --deep would see a writer that digested other bytes than it wrote. Elsewhere it is always seen.
  --repair OUT_DIR   write corrected copies of damaged checkpoints, if the corrected bytes match all hashes and the integrity check passes them;
                     OUT_DIR must be new or empty. The damaged ones stay as they are, and so does the exit code (5: the disk refused).
  --max-bytes N      read checkpoints of up to N bytes, not of what their run allows (64 GiB by default)

In a run's checkpoints/, a checkpoint of another run is refused, and so is one that holds NaN or infinity where the run's checkpoint.finite forbids
it (elsewhere: in parameters, buffers and optimizer). A .pt file is read without unpickling. A MAC (checkpoint.hmac_key_file) is not looked at:
only who has the key can.

"""

_COMPARE = """\
ecrl compare RUN OTHER [--steps STEP,...] [--json]

How far the checkpoints of two runs are apart, at each step that both have: of parameters, buffers and optimizer the L2 of the difference, also
relative to OTHER's length, the largest distance in units in the last place, elements that are not finite, and how many tensors differ; of the
generators how many differ. Both layouts and formats, .pt files too (read without unpickling), after the integrity check; runs that diverged as well.
0 the same bits everywhere; 1 they differ; 3 a step is missing, or a checkpoint is refused.

Examples
  ecrl compare outputs/digits-cnn-blk-s1337-0123abcd outputs/digits-cnn-ref-s1337-89abcdef
  ecrl compare RUN OTHER --steps 600,800
  ecrl compare A/checkpoints/step_00000050 B/checkpoints/step_00000060.pt

  --steps STEP,...   these steps; without it every step that both have. checkpoint.keep=N keeps more of them.
  --json             print it as JSON

"""

_REPORT = """\
ecrl report DIR... [--against OTHER] [--out DIR] [--runs] [--judge | --no-verify] [--junit FILE] [--github] [--json]
ecrl report --history DIR... [--out DIR] [--judge | --no-verify] [--junit FILE] [--github] [--json]

Writes index.html, Markdown, CSV, JSON and figures of recorded runs and studies, into DIR/report unless --out names a folder.
Runs that have ended and have no verdict that holds are verified first, as `ecrl verify` does.
0; 1 where a gate failed or a study is incomplete; 3 where a verdict or a study's result is missing.

Arms are compared pair by pair (one suite, one seed), with intervals, sign counts and the noise floor: add variant=...,ref2 to measure it.
A suite that fails a gate is listed and not averaged.

Examples
  ecrl report outputs/quickstart
  ecrl report outputs/corruption-s1337-0123abcd
  ecrl report RUN OTHER_RUN --out comparison
  ecrl report outputs/exp4 --against /mnt/other-machine/exp4 --out compared
  ecrl report --history nightly              the sweeps in nightly/, one per build, over time

  --against OTHER    compare with another sweep of the same suites (another machine, another commit): run by run, with the same statistics,
                     and what differs between the two environments; differences are DIR relative to OTHER
  --history          builds over time: each DIR is a sweep or a run, or a folder of those; in the order of when they ran, failing arms first, and
                     what changed from the build before; the exit code is that of the newest build
  --out DIR          where the report goes
  --judge            judge every run anew. Without it the verdicts on file are shown, where records and checkpoints have not changed since; they are
                     not signed: use it for runs that somebody else verified
  --runs             a row for each run too, and every table that fits a terminal; without it the arms by suite
  --no-verify        show the verdicts on file and verify nothing
  --junit FILE       gates and verdicts as JUnit XML; --github: those that failed as annotations of a workflow
  --json             print it as JSON

"""

_STUDY = """\
ecrl study study=NAME [-m] [--config-dir DIR] [--cfg job] [--json] [KEY=VALUE ...]

Runs an experiment that is no training run, at its published number of trials. Started again, the same command runs only what is missing;
`ecrl report DIR` shows its tables and figures.

Studies
{studies}
  all                  each of them, one after the other

Examples
  ecrl study study=crash-points
  ecrl study study=corruption study.trials=1000 seed=7
  ecrl study -m study=write-latency,crash-points seed=1,2
  ecrl study study=all run_dir=outputs/studies
  ecrl study study=writers study.trials=20   any study, smaller: no number of repetitions is larger than study.trials
  ecrl study study=corruption trial=KEY      one trial alone, by its key in trials.jsonl
  ecrl study study=write-latency --cfg job   every key and its default, as YAML that can be fed back: as DIR/study/mine.yaml, by --config-dir DIR
                                             study=mine; with --json as JSON

"""

_AUDIT = """\
ecrl audit [KEY=VALUE ...] [run_dir=DIR] [--junit FILE] [--github] [--json] [--repro] -- COMMAND
ecrl audit DIR [--reference DIR] [--order declared|free] [--junit FILE] [--github] [--json] [--repro]
ecrl audit --state A B

Judges a torch training job that ECRL did not write, with no change to its script: runs it undisturbed (twice), then once for each planned failure,
restarts it after each death, and compares what was recorded: samples, inputs, generators, settings, losses, parameters, optimizer state.
0 every promise kept, 1 one broken, 2 bad input, 3 unknown. The answer begins with the diagnosis; DIR/audit.json and DIR/report/index.html hold it.

Examples
  ecrl audit -- torchrun --nproc-per-node 2 train.py --out {dir}
  ecrl audit audit.resume='--resume {dir}/last.pt' failure=kill 'failure.steps=[31,40]' -- torchrun train.py --out {dir}
  ecrl audit outputs/audit/train-0123abcd            judge again what is recorded
  ecrl audit --state A.pt B.pt                       two states value by value: torch.save, safetensors, DCP folders

  {dir}              in the command: a folder of the arm's own, the same over its restarts (also ECRL_ARM_DIR); {attempt}: 0, 1, ...
  audit.resume=TEXT  appended to the command from the second attempt on; {latest:GLOB} is the newest match in {dir}
  failure=KIND       kill, term, exit, stop, raise, oom, at failure.steps=[STEP] or [STEP.MOMENT] (before, backward, optimizer, save) of failure.rank;
                     several steps: one after the other; STEP.save:FILE:HOW at one file of a save (before, empty, torn, after). Without it
                     up to audit.failures (5) arms are drawn: between two checkpoints, twice, in a later epoch, inside a save, by SIGTERM
  audit.seed=N       seeds Python, numpy and torch in each process of a job that sets no seed itself
  audit.references=N undisturbed runs (2); audit.order=free: samples in any order
  audit.digests=N    digest the state every N steps (1) and at each checkpoint; 0: at checkpoints only
  audit.cold=true    also start it with nothing to resume from: a resumed attempt must differ from that
  audit.control=true one more arm, whose restart leaves out the optimizers' state on purpose: it must be seen
  audit.elastic=TEXT the command from the second attempt on of one more arm, with another number of processes
  audit.warm=false   start each attempt cold; else python SCRIPT.py is forked from its imports, where that is shown to change nothing
  audit.only=[ARM]   runs no other of the drawn arms
  --repro            for each arm with a broken promise: a script that shows it again, the first difference, a draft of a report
  --reference DIR    an undisturbed recording from elsewhere
  --order WORD       of a recording: declared, free, or auto; as the audit was run, if it says nothing
  --junit FILE       the promises as JUnit XML; --github: those that are broken or not proven as annotations of a workflow

"""

_DOCTOR = """\
ecrl doctor [DIR] [--json]

Examines this machine and DIR, where runs would be written (default: the current folder), in about five seconds: Python, cores, instructions, memory,
/dev/shm, limits, clocks, loopback, tools, disk (room, fsync, direct I/O), torch, gloo, GPUs. Each line is ok, note (a run works, with the limit
that is stated) or bad (a run cannot work). 0; 1 where a line is bad.

Examples
  ecrl doctor
  ecrl doctor /mnt/scratch --json

"""

_PUBLISHED = """\
ecrl published exp4 DIR [--json]

Judges the raw runs of the published matrix (experiment 4), which its authors keep at https://github.com/HaoWen46/Elastic-Correct-Recovery-Lab (results/;
no licence, so none of them comes with ECRL): fetch it and name the folder. Of each matrix below DIR: which runs with failures are valid, invalid or
unknown beside their reference, then each finding (shown, not shown, unknown) with its counts and a place to look. 0; 3 where a finding lacks files.

Examples
  git clone https://github.com/HaoWen46/Elastic-Correct-Recovery-Lab
  ecrl published exp4 Elastic-Correct-Recovery-Lab/results

"""

HELP = {
    "ecrl": _ECRL + _CODES,
    "train": _TRAIN + _CODES,
    "verify": _VERIFY + _CODES,
    "compare": _COMPARE + _CODES,
    "report": _REPORT + _CODES,
    "study": _STUDY + _CODES,
    "audit": _AUDIT + _CODES,
    "doctor": _DOCTOR + _CODES,
    "examples": _ECRL + _CODES,
    "published": _PUBLISHED + _CODES,
    "completion": _ECRL + _CODES,
}

_BASH = """\
_ecrl() {
  local word="${COMP_WORDS[COMP_CWORD]}" line="${COMP_LINE:0:COMP_POINT}"
  word="${line##* }"
  local choices="{verbs} -m --help {keys}"
  case "${COMP_WORDS[1]}" in
    verify|compare|report|published) COMPREPLY=($(compgen -o dirnames -- "$word")); return ;;
  esac
  COMPREPLY=($(compgen -W "$choices" -- "$word"))
  # Bash splits words at '=': give back only what stands after it.
  if [[ "$word" == *=* && "$COMP_WORDBREAKS" == *=* ]]; then
    COMPREPLY=("${COMPREPLY[@]#"${word%=*}="}")
  fi
}
complete -o nospace -F _ecrl ecrl
"""

_ZSH = """\
_ecrl() {
  if (( CURRENT > 2 )) && [[ ${words[2]} == (verify|compare|report|doctor|published) ]]; then
    _files -/
    return
  fi
  local -a choices=({verbs} -m --help {keys})
  compadd -S '' -- $choices
}
(( $+functions[compdef] )) || { autoload -U compinit && compinit }
compdef _ecrl ecrl
"""

_FISH = """\
complete -c ecrl -f
complete -c ecrl -n 'not __fish_seen_subcommand_from verify compare report doctor published' -a '{verbs} -m --help {keys}'
complete -c ecrl -n '__fish_seen_subcommand_from verify compare report doctor published' -a '(__fish_complete_directories)'
"""

# {verbs} and {keys} are filled in: words of letters, digits and `.=_+-` only.
COMPLETION = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
