"""A test of examples/jobs/plain.py with pytest-torch: the job's loop taken apart into a setup, a
step, a save and a load. The variable RACE_BUG plants a bug in the load."""

import os
import shutil
import sys

import torch.nn.functional as F
from pytest_torch import TrainingSetup, assert_resume_equivalent

sys.path.insert(0, os.environ["RACE_JOBS"])
import plain

STEPS, HALF = 10, 5


def batches():
    job = plain.Job(".", "")
    for epoch in range(2):
        job.data.epoch = epoch
        job.sampler.set_epoch(epoch)
        yield from job.loader


def test_resume(tmp_path):
    loaded, jobs = list(batches()), {}
    data = [loaded[i : i + plain.MICRO] for i in range(0, len(loaded), plain.MICRO)]

    def setup():
        job = plain.Job(tmp_path / "run", "")
        job.out.mkdir(exist_ok=True)
        made = TrainingSetup(job.net, job.optimizer, job.schedule, job.scaler)
        jobs[id(made)] = job
        return made

    def step(setup, batch):
        job, total = jobs[id(setup)], 0.0
        for x, y in batch:
            loss = F.cross_entropy(job.model(x), y) / plain.MICRO
            job.scaler.scale(loss).backward()
            total += loss.item()
        job.update()
        return total

    def save(setup, path):  # update() has saved
        shutil.copytree(jobs[id(setup)].out, path.parent / "saved")

    def load(setup, path):
        job = jobs[id(setup)]
        job.out, job.bug = path.parent / "saved", os.environ["RACE_BUG"]
        job.resume()

    assert_resume_equivalent(
        setup, data, step, steps=STEPS, resume_at=HALF, save=save, load=load, rtol=0, atol=0
    )
