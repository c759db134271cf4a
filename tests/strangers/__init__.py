"""Jobs that people brought to `ecrl audit`: healthy ones, and ones with the fault of a bug
report. jobs.yaml says what the right answer to each is."""
