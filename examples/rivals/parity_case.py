"""A case of TrainParity: how the job is started, where its checkpoint is, what in it is compared.
The variable RACE_CASE says which job."""

import json
import os

import torch
from trainparity import check_resume

RACE = json.loads(os.environ["RACE_CASE"])


class Case:
    name = RACE["name"]
    split_step, total_step = 1, 2  # the job's half and its end

    def command(self, plan):
        stop = RACE["updates"] if plan.end_step < self.total_step else 0
        words = RACE["first"] if plan.resume_from is None else RACE["again"]
        job = [word.replace("{dir}", str(plan.run_dir)) for word in words]
        return [*RACE["start"], str(stop), *job]

    def checkpoint_path(self, run_dir):
        last = run_dir / RACE["last"]
        return last if last.exists() else run_dir / RACE["saved"]

    def observe_checkpoint(self, path):
        return torch.load(path, map_location="cpu", weights_only=False)


if __name__ == "__main__":
    result = check_resume("parity_case:Case", environment={"RACE_CASE": os.environ["RACE_CASE"]})
    print(json.dumps(result.to_dict(), default=str))
