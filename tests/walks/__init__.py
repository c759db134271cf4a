"""How much the five walks of docs/architecture.md go up and down the rooms: `python -m tests.walks
[SOURCE]`, about a minute.

One real run is traced in all its processes (train with two kills and a reference, then verify and
report), and every call from one file of `ecrl_cli` to another is noted once. A climb is a pair of
files between which a call goes against the order of imports: code in a lower room calls code in a
higher one, through a function or an object that was handed down. What a module does while it is
imported does not count, nor does an expression written as an argument (a generator), nor a class
that is only asked for by its name. The caller is the nearest file of ours on the stack.

Each call belongs to one walk: `configuration` is all that the command does before it writes
config.json; of the rest, what touches the rooms `failures` or `recovery` is of the failure walk,
then `data` or `models` of the sample walk, then `checkpoint` or `storage` of the checkpoint walk;
what is left, with all of verify and report, is the event walk. `turns`: in the order in which the
files of a walk are first called, how often the next one stands in a higher room; some are natural,
since a command calls one room after another.

SOURCE is another checkout, whose rooms are read from its own pyproject.toml. Only what this one run
reaches is seen.
"""
