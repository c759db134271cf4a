"""Runs at the start of every Python process of an audited job: the job's own sitecustomize first,
then the recorder's hooks.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _run_the_hidden_one() -> None:
    """Only one sitecustomize wins: run the one that this one hides (Debian ships one, and so may
    the job).
    """
    import importlib.machinery

    others = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    import importlib.util

    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    _run_the_hidden_one()
except Exception as error:  # as Python itself does: it is shown and goes no further
    sys.stderr.write(
        "ecrl: the sitecustomize that the job has failed: %s: %s\n" % (type(error).__name__, error)
    )

if os.environ.get("ECRL_RECORD"):
    try:
        from ecrl.hooks import install

        install()
        if os.environ.get("ECRL_IMPORTS"):
            from ecrl.warm import note_imports

            note_imports()
    except Exception as error:
        sys.stderr.write(
            "ecrl: this process is not recorded: %s: %s\n" % (type(error).__name__, error)
        )
