"""What a user of TrainParity adds to a job that has no last step to choose: runs a script and ends
it before the optimizer step after the N-th; 0 lets it run to its end."""

import runpy
import sys
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_pre_hook

last, done = int(sys.argv[1]), 0


def before(*_):
    global done
    done += 1
    if last and done > last:
        raise SystemExit(0)


register_optimizer_step_pre_hook(before)
sys.argv = sys.argv[2:]
sys.path.insert(0, str(Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
