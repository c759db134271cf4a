"""What the verdicts on the runs of `spoilt` say."""

from __future__ import annotations

# What the verdict on a spoilt run says, word for word: one promise may be broken in several ways at
# once, and each must be told.
SAID: tuple[tuple[str, str], ...] = (
    ("a step dropped", "attempt 0 rank 0 logged step 5 after step 3: step 4 is dropped"),
    ("a step dropped", "step 4 of attempt 0 rank 0 left no line: missing"),
    ("a step repeated", "attempt 2 rank 1 logged step 24 after step 24: step 24 is repeated"),
    ("a step repeated", "step 24 was logged 2 times by attempt 2 rank 1: duplicates"),
    (
        "two samples swapped between ranks",
        "step 3 rank 0 (attempt 0) logged samples of no shard of this run: extra",
    ),
    ("two samples swapped between ranks", "epoch 0: duplicates 0, missing 8, extra 8"),
    (
        "two shards swapped between ranks",
        "step 16 rank 0 (attempt 1) logged the shard of step 16 rank 1",
    ),
    ("two windows swapped", "step 3 rank 1 (attempt 0) logged the shard of step 4 rank 1"),
    ("too few samples", "step 2 rank 0 (attempt 0) consumed 3 samples, its shard has 4"),
    (
        "a cursor shifted",
        "step 2 rank 0 (attempt 0) is at epoch 0 cursor 2, the step is epoch 0 cursor 1",
    ),
    ("a line of another rank", "attempt 0 rank 1 holds a line of attempt 0 rank 0 of 2 (step 2)"),
    ("a log of a rank too many", "attempt 0 rank 2 left a log, the attempt had 2 ranks"),
    ("a rank's log removed", "the log of steps 7 to 18 of attempt 1 rank 1 is not there"),
    ("a rank's log removed", "epoch 0: 16 samples are not on record"),
    ("a last line torn", "the log ends before step 24 of attempt 2 rank 1, its last line is torn"),
    (
        "resumed from an older one",
        "attempt 2 rank 0 began with step 19, the attempt resumed after step 12",
    ),
    (
        "resumed from an older one",
        (
            "attempt 2 resumed from step 12 although step 18 was committed and is on no record as"
            " refused"
        ),
    ),
    (
        "resumed at another step",
        "attempt 2 says it resumed at step 12, its checkpoint is of step 18",
    ),
    (
        "resumed at another step",
        "attempt 2 was told to resume after step 18, supervisor.json says step 12",
    ),
    ("resumed from nowhere", "which no earlier attempt committed"),
    (
        "began anew",
        "attempt 1 began anew although step 6 was committed and is on no record as refused",
    ),
    (
        "resumed from a retired one",
        "attempt 2 resumed from step 18, which was retired, refused or replaced before",
    ),
    (
        "a bit flipped in what was resumed from",
        "which the integrity check refuses: hash: model.safetensors does not match its BLAKE3",
    ),
    ("a committed checkpoint is gone", "step 24 was committed (attempt 2) and is gone"),
    ("another run's checkpoint", "checkpoints/step_00000018 belongs to run"),
    (
        "a refusal of what is older",
        "attempt 2 refused checkpoints/step_00000012, which is not newer than what it resumed from",
    ),
    (
        "a refusal of what it resumed from",
        "attempt 2 refused checkpoints/step_00000018, which is not newer than what it resumed from",
    ),
    ("a loss changed", "the first differing step is step 21 at the latest, component loss"),
    ("a replayed loss changed", "step 8 rank 0: loss"),
    ("a final digest changed", "the final optimizer differ"),
    ("the final generators changed", "the final rng differ"),
    ("a failure fired again", "entry 0 fired in attempt 0 and attempt 1 died of it again"),
    ("a failure fired again", "the run completed and entries [1] never fired"),
    ("an attempt armed again", "entry 0 fired in attempt 0 and attempt 1 was armed with it again"),
    ("one entry fired twice", "entry 0 fired 2 times"),
    (
        "a failure that was not planned",
        "entry 1 fired (kill, rank 1, step 19), which was not planned",
    ),
    ("a failure that was not planned", "entry 1 fired after step 19, rank 1 went on to step 20"),
    (
        "another death",
        "entry 0 (kill of rank 1) is not how attempt 0 died: rank 1, exit code 1, signal None",
    ),
    ("the seed changed", "config.json does not hash to its run_id"),
    ("the seed changed", "config.json does not hash to its reference_id"),
    ("another target", "supervisor.json aims at step 30, config.json at step 24"),
    ("another run's supervisor", "supervisor.json is of run 00000000"),
    ("an attempt dropped", "supervisor.json numbers its attempts [0, 2]"),
    ("an attempt dropped", "attempt 1 left logs and is not in supervisor.json"),
    ("an attempt's logs dropped", "attempt 1 is in supervisor.json and left no logs"),
    ("a restart not counted", "supervisor.json counts 1 restart, 2 attempts follow one that died"),
    ("an attempt of no session", "an attempt belongs to no session"),
    ("an attempt of three ranks", "attempt 1 had 3 ranks, the configuration says 2"),
    ("an attempt that completed too soon", "attempt 1 completed and another attempt follows it"),
    (
        "another last step",
        "attempt 1 did steps 7 to 19 by supervisor.json, 7 to 20 by the log of rank 0",
    ),
    ("launch.json gone", "attempt 1 has no launch.json"),
    ("a line damaged in the middle", "logs/attempt-01/rank0.jsonl cannot be read"),
    (
        "a line forged",
        (
            "the lines of rank 1 up to step 24 are not those that checkpoints/step_00000024 was"
            " taken after"
        ),
    ),
    (
        "a rank's log emptied",
        "12 lines of rank 1 up to step 24 are gone, checkpoints/step_00000024 was taken after them",
    ),
    ("seconds moved to another account", "in metrics.json seconds.launch is "),
    ("metrics of another goodput", "in metrics.json goodput is 9.0, the records fold to "),
    ("metrics without a restart", "in metrics.json restarts is 0, the records fold to 2"),
    ("metrics of another end", "in metrics.json final.loss is 0.0, the records fold to "),
    ("metrics that lose more", "in metrics.json checkpoints.lost is 1, the records fold to 0"),
    ("metrics.json gone", "the run is completed and metrics.json is missing"),
    ("a replayed state changed", "step 8 rank 1: the state in attempt 1 is not that in attempt 0"),
    ("a replayed state not hashed", "step 8 rank 1: no digest of the state in attempt 1"),
    (
        "ranks that hold two states",
        "step 22: ranks [0, 1] do not hold the same state (1 such steps)",
    ),
    ("time counted twice", "counted twice"),
    ("completed early", "final.json is of step 22, the target is step 24"),
    ("completed early", "the run is said to be completed, its logs end at step 22 of 24"),
    ("completed in an attempt that died", "the run is said to be completed, its last attempt died"),
    (
        "a final record too many",
        "attempt 1 left the final record of attempt 2, the last attempt is 2",
    ),
    ("final.json gone", "attempt 2 left no final.json"),
    ("final.json gone", "this run has no final record: its end state is not known"),
    ("not completed", "the run is stopped at step 24 of 24"),
)
