#!/usr/bin/env bash
# A study that is resumed with a seeded sampler proposes its first trials again.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_VENV:+$FINDINGS_VENV/bin/python}
if [ -z "$python" ]; then
    python3 -m venv "$work/venv"
    python=$work/venv/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check optuna==5.0.0
fi
cd "$work"
"$python" -W ignore - <<'PY'
import sys

import optuna

optuna.logging.set_verbosity(optuna.logging.ERROR)
print("optuna", optuna.__version__)
print("expected: a stored study that goes on proposes new values; TPE even looks at the old ones")


def process(sampler, trials):
    study = optuna.create_study(
        storage="sqlite:///study.db", study_name=sampler.__name__, load_if_exists=True, sampler=sampler(seed=1)
    )
    study.optimize(lambda trial: trial.suggest_float("rate", 0, 1), n_trials=trials)
    return [round(trial.params["rate"], 4) for trial in study.trials]


tpe = optuna.samplers.TPESampler
process(tpe, 4)
resumed = process(tpe, 4)
undisturbed = optuna.create_study(sampler=tpe(seed=1))
undisturbed.optimize(lambda trial: trial.suggest_float("rate", 0, 1), n_trials=8)
undisturbed = [round(trial.params["rate"], 4) for trial in undisturbed.trials]
print("seen: eight trials at a stretch", undisturbed)
print("      in two processes", resumed)
if resumed[4:] != resumed[:4] or len(set(undisturbed)) != 8:
    sys.exit("changed")
PY
