"""Reinforcement learning that comes back exactly: no loader, an actor that fills a replay memory, a critic and a policy with an optimizer each, a
target network.

    ecrl audit -- python examples/jobs/rl.py --out {dir}
    ecrl audit -- python examples/jobs/rl.py --out {dir} --actor

`--actor`: a process of its own collects the transitions, with what the learner last sent it. `--bug NAME` plants a recovery bug; `--bugs` lists them.
"""

import copy
import multiprocessing
import sys
from pathlib import Path

import numpy as np
import torch
from options import parse
from torch import nn

BUGS = {
    "memory": "the replay memory is not restored: it begins empty, and fills with what the restored policy does",
    "target": "the target network is not restored: it is a copy of the online one",
    "critic's optimizer": "one of two optimizers is not loaded",
}
STEPS, SAVE_EVERY, COLLECT, BATCH, ROOM, WIDTH = 24, 5, 6, 16, 96, 4


class World:
    """A point that is to be kept at the origin: pushed by an action, and by noise. All of its state is in `state()`."""

    def __init__(self):
        self.draw = np.random.default_rng(3)
        self.place = self.draw.standard_normal(WIDTH).astype(np.float32)

    def collect(self, weights):
        """COLLECT transitions (place, action, reward, next place) under the policy of `weights`, with noise to explore."""
        rows = []
        for _ in range(COLLECT):
            noise = self.draw.standard_normal(WIDTH + 1).astype(np.float32)
            action = np.tanh(self.place @ weights["weight"][0] + weights["bias"][0]) + np.float32(0.2) * noise[-1]
            following = np.float32(0.9) * self.place + np.float32(0.3) * action + np.float32(0.1) * noise[:-1]
            rows.append(np.concatenate([self.place, [action], [-np.square(following).mean()], following]))
            self.place = following.astype(np.float32)
        return np.asarray(rows, dtype=np.float32)

    def state(self):
        return {"draw": self.draw.bit_generator.state, "place": self.place.tolist()}

    def restore(self, state):
        self.draw.bit_generator.state = state["draw"]
        self.place = np.asarray(state["place"], dtype=np.float32)


class OwnProcess:
    """A world in a process of its own, asked through a pipe. It ends with the learner: its pipe is closed then."""

    def __init__(self):
        self.pipe, theirs = multiprocessing.get_context("fork").Pipe()
        multiprocessing.get_context("fork").Process(target=self.serve, args=(theirs, self.pipe), daemon=True).start()
        theirs.close()

    @staticmethod
    def serve(pipe, learners_end):
        learners_end.close()
        world = World()
        try:
            while True:
                name, given = pipe.recv()
                pipe.send(getattr(world, name)(*given))
        except EOFError:
            return

    def ask(self, name, *given):
        self.pipe.send((name, given))
        return self.pipe.recv()

    def collect(self, weights):
        return self.ask("collect", weights)

    def state(self):
        return self.ask("state")

    def restore(self, state):
        self.ask("restore", state)


class Learner:
    def __init__(self, out, bug, world):
        self.file, self.bug, self.world, self.step = Path(out) / "last.pt", bug, world, 0
        torch.manual_seed(11)
        self.policy = nn.Linear(WIDTH, 1)
        self.critic = nn.Sequential(nn.Linear(WIDTH + 1, 16), nn.Tanh(), nn.Linear(16, 1))
        self.target = copy.deepcopy(self.critic)
        self.policy_optimizer = torch.optim.Adam(self.policy.parameters(), 0.01)
        self.critic_optimizer = torch.optim.AdamW(self.critic.parameters(), 0.01)
        self.memory, self.rows = torch.zeros(ROOM, 2 * WIDTH + 2), 0  # a ring: row number `rows % ROOM` is written next
        self.draw = np.random.default_rng(5)

    def parts(self):
        return {
            "policy": self.policy,
            "critic": self.critic,
            "target": self.target,
            "policy_optimizer": self.policy_optimizer,
            "critic_optimizer": self.critic_optimizer,
        }

    def save(self):
        state = {name: part.state_dict() for name, part in self.parts().items()}
        state |= {"memory": self.memory, "rows": self.rows, "draw": self.draw.bit_generator.state}
        torch.save(state | {"world": self.world.state(), "step": self.step}, f"{self.file}.tmp")
        Path(f"{self.file}.tmp").replace(self.file)

    def resume(self):
        if not self.file.exists():
            return
        state = torch.load(self.file, weights_only=True)
        for name, part in self.parts().items():
            if not (self.bug == "critic's optimizer" and name == "critic_optimizer"):
                part.load_state_dict(state["critic" if self.bug == "target" and name == "target" else name])
        if self.bug != "memory":
            self.memory.copy_(state["memory"])
            self.rows = state["rows"]
        self.draw.bit_generator.state = state["draw"]
        self.world.restore(state["world"])
        self.step = state["step"]

    def collect(self):
        weights = {name: value.numpy() for name, value in self.policy.state_dict().items()}
        for row in torch.from_numpy(self.world.collect(weights)):
            self.memory[self.rows % ROOM] = row
            self.rows += 1

    def train(self):
        self.resume()
        while self.step < STEPS:
            self.collect()
            self.update()
            self.step += 1
            if self.step % SAVE_EVERY == 0:
                self.save()

    def update(self):
        """The critic at each step; the policy and the target network at every second, as in TD3."""
        batch = self.memory[torch.from_numpy(self.draw.integers(0, min(self.rows, ROOM), BATCH))]
        place, action, reward, following = batch.split([WIDTH, 1, 1, WIDTH], dim=1)
        with torch.no_grad():
            wanted = reward + 0.9 * self.target(torch.cat([following, self.policy(following).tanh()], dim=1))
        self.critic_optimizer.zero_grad()
        (self.critic(torch.cat([place, action], dim=1)) - wanted).square().mean().backward()
        self.critic_optimizer.step()
        if self.step % 2:
            self.policy_optimizer.zero_grad()
            (-self.critic(torch.cat([place, self.policy(place).tanh()], dim=1)).mean()).backward()
            self.policy_optimizer.step()
            with torch.no_grad():
                for kept, value in zip(self.target.parameters(), self.critic.parameters()):
                    kept.lerp_(value, 0.1)


def main():
    own_process = "--actor" in sys.argv
    if own_process:
        sys.argv.remove("--actor")
    out, bug = parse(BUGS)
    torch.set_num_threads(1)
    Learner(out, bug, OwnProcess() if own_process else World()).train()


if __name__ == "__main__":
    main()
