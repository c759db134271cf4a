"""Definitions of the report's terms; the page prints all of them."""

from __future__ import annotations

DEFINITIONS = (
    (
        "step",
        (
            "One committed logical step, counted from 1: every rank has updated, the cursor moved"
            " once. It counts once, however often it is done."
        ),
    ),
    (
        "goodput",
        (
            "Committed steps divided by wall time, on one clock: from the supervisor's launch to"
            " the target, recovering and replaying included."
        ),
    ),
    (
        "stall",
        (
            "Seconds the training thread could not compute because of a checkpoint: copying,"
            " handing over, waiting for a slot or for the disk."
        ),
    ),
    (
        "snapshot, write",
        (
            "Snapshot: copying the training state. Write: bringing the copy to disk, on the"
            " training thread or in the background."
        ),
    ),
    (
        "committed, failed, lost",
        (
            "How a checkpoint ended. Only committed means durable; lost means gone with a process"
            " that died. Together: all submitted."
        ),
    ),
    (
        "held-out",
        (
            "Quality on samples that are not trained on (evaluate.every): accuracy, loss or"
            " perplexity at the target. Its time is part of the wall time."
        ),
    ),
    (
        "attempt, restart",
        (
            "An attempt is one launch of the job; attempt 0 is the first. A restart is every"
            " further one."
        ),
    ),
    (
        "replay",
        (
            "Steps done again after a restart, because they came after the checkpoint that it"
            " resumed from."
        ),
    ),
    (
        "variant",
        (
            "What is compared: clean has neither failures nor checkpoints, ref has checkpoints and"
            " no failures, blk and ovl have both."
        ),
    ),
    (
        "arm",
        (
            "The runs of a variant that differ in the seed alone. Variants of one name that differ"
            " in another setting are arms of their own."
        ),
    ),
    (
        "blocking, overlapped",
        (
            "Two ways to save: training waits until the checkpoint is durable, or only for a copy"
            " that another process writes."
        ),
    ),
    ("suite", "One cell of a comparison: data set, model and failure schedule."),
    (
        "verdict",
        (
            "What ecrl verify says of a run from its records: valid, invalid (a promise was broken)"
            " or unknown (evidence is missing)."
        ),
    ),
    (
        "published clock",
        (
            "Committed steps over the time from rank 0's first log line to its last: the first"
            " launch is free, restarts are charged."
        ),
    ),
    (
        "pair",
        (
            "A run of one arm and the run of another of the same suite and seed, which must end in"
            " the same state."
        ),
    ),
    (
        "ratio of means, mean of ratios",
        (
            "Two ways to compare arms over several pairs: mean by mean, or pair by pair and then"
            " the mean. They differ."
        ),
    ),
    (
        "95% interval",
        (
            "Of a mean: Student's t, or the BCa bootstrap, which assumes no shape but is too narrow"
            " for few runs. None for a single run."
        ),
    ),
    (
        "sign count",
        (
            "How many pairs went up and how many down, with the exact interval of the share that"
            " went up and the sign test's p."
        ),
    ),
    (
        "noise floor",
        (
            "How far a mean over as many pairs may lie from zero where nothing differs: from ref2"
            " against ref, or equal runs of different suites."
        ),
    ),
    (
        "statistically distinguishable",
        (
            "The interval of the effect holds neither zero nor anything within the noise floor."
            " Only then is a winner named (column told_apart)."
        ),
    ),
    (
        "wall / stall",
        (
            "Of the stall that overlapping saved, the share that came back as wall time. The rest"
            " the writer took from the training."
        ),
    ),
    ("residual", "Wall time that no category accounts for; negative where time was counted twice."),
)

STUDY_DEFINITIONS = (
    (
        "trial",
        (
            "One try of a study, planned before the first one ran and repeatable by its key: its"
            " randomness follows from seed and key alone."
        ),
    ),
    (
        "gate",
        (
            "A target that a study set itself beforehand. It can fail, and then the study says so"
            " and its command ends with 1."
        ),
    ),
    (
        "skipped",
        "What this machine cannot try, with the reason. It counts neither as passed nor as failed.",
    ),
    (
        "planted",
        "Bugs put in on purpose. A study that does not find them is blind, whatever else it shows.",
    ),
    (
        "new, previous",
        (
            "Recovery took up the checkpoint that was being written, or an older one although the"
            " newer was never acknowledged: both allowed."
        ),
    ),
    (
        "detected, empty_ok",
        (
            "The integrity check refused what was damaged and said where; or there was nothing yet"
            " that could be lost."
        ),
    ),
    (
        "lost_ack, lost_all",
        (
            "An acknowledged checkpoint is gone, an older one is left; or all acknowledged ones are"
            " gone."
        ),
    ),
    (
        "silent_wrong",
        (
            "Something was loaded that is not what had been saved, and nobody noticed. The worst"
            " that can happen."
        ),
    ),
    ("untyped, hung", "The program fell over its input with a traceback, or never came back."),
    (
        "Wilson, Clopper-Pearson",
        (
            "Two 95% intervals for a proportion: the score interval (the published one) and the"
            " exact one, which is never too narrow. They differ."
        ),
    ),
    (
        "Before, Baseline, F-25%",
        (
            "The state before a mini-batch; after it without a failure; after it with one, once a"
            " quarter of the gradients had been applied."
        ),
    ),
    (
        "lost, repeated",
        (
            "A sample of a failed mini-batch has no influence on a layer, or twice its influence."
            " The record of lost samples names both."
        ),
    ),
    (
        "published",
        (
            "What the published study measured, on another machine. It stands beside, not in place"
            " of, what was measured here."
        ),
    ),
)

CATEGORY_WORDS = {
    "compute": "forward, backward, update, data",
    "sync": "barriers and collectives outside of the step's own",
    "evaluate": "measuring quality on held-out data",
    "snapshot": "copying the state for a checkpoint",
    "serialize": "turning the copy into bytes on the training thread",
    "enqueue": "handing the copy to the writer",
    "backpressure": "waiting for a free slot, too many writes in flight",
    "write_wait": "waiting until a checkpoint is durable",
    "detect": "from a death until the supervisor knew",
    "launch": "starting processes",
    "import": "importing libraries",
    "rendezvous": "ranks finding one another",
    "load": "data set, model and checkpoint",
    "warm_up": "the first step's extra time",
    "replay": "everything within a replayed step",
    "idle": "nothing of the above",
    "residual": "wall time on no account",
}

GATE_WORDS = {
    "arms": "Every arm with every seed",
    "target": "All arms at their target",
    "verified": "Every run judged valid",
    "checkpoints": "Every submitted checkpoint accounted for",
    "time": "Time accounted for",
    "artifacts": "Records of every run there",
    "records": "Records agree",
    "environment": "One environment",
    "alone": "One run at a time",
}
