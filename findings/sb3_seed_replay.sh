#!/usr/bin/env bash
# A loaded Stable-Baselines3 model plays its first rollout again after every restart.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_VENV:+$FINDINGS_VENV/bin/python}
if [ -z "$python" ]; then
    python3 -m venv "$work/venv"
    python=$work/venv/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check torch==2.14.1 numpy==2.4.6 stable-baselines3==2.9.2 gymnasium==1.4.0
fi
cd "$work"
"$python" -W ignore - <<'PY'
import sys

import gymnasium
import numpy
import stable_baselines3
from stable_baselines3 import PPO

print("stable-baselines3", stable_baselines3.__version__, "gymnasium", gymnasium.__version__)
print("expected: load, learn(reset_num_timesteps=False): new episodes, new exploration noise, even")
print("          if the process was seeded otherwise (seed= was an argument of the first run)")


def rollout(model):
    model.learn(64, reset_num_timesteps=False)
    return model.rollout_buffer.observations.copy(), model.rollout_buffer.actions.copy()


def same(one, other):
    return all(numpy.array_equal(a, b) for a, b in zip(one, other, strict=True))


# No learning here, so that the same noise and starts show as the same rollout.
model = PPO("MlpPolicy", "CartPole-v1", seed=0, n_steps=64, n_epochs=1, learning_rate=0.0)
first = rollout(model)
model.save("saved")
second = rollout(model)
resumed = []
for seed in (7, 8):
    stable_baselines3.common.utils.set_random_seed(seed)
    loaded = PPO.load("saved", env=gymnasium.make("CartPole-v1"))
    resumed.append(rollout(loaded))
repeats = [same(first, rollout_after_load) for rollout_after_load in resumed]
print("seen: undisturbed, the second rollout repeats the first:", same(first, second))
print("      after a load it does:", repeats, "(the saved seed is set again)")
if same(first, second) or repeats != [True, True]:
    sys.exit("changed")
PY
