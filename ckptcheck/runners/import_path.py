"""Decides from where a Python of ckptcheck imports: never from a folder only because it is the working directory.

That folder may be a downloaded checkpoint, and a json.py in it would run. The command drops it from its own path. Each child has
this file as its script (child_python.py), and so gets no working directory on its path::

    python import_path.py -m MODULE ARGUMENTS…
    python import_path.py -c CODE ARGUMENTS…
    python import_path.py FILE ARGUMENTS…

Python's own ``-m`` and ``-c`` put it there: -P is for Python 3.11 alone, and -I also hides the user's own packages. This file
imports only what Python imports at its start, for it decides about the imports after that, and it runs on Python 3.9.
"""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""The folder that ckptcheck itself is imported from."""


def without_working_directory(path: list[str]) -> list[str]:
    """Return the folders of a path without the working directory, and without what PYTHONPATH names relative to it.

    `ROOT` stays wherever it is: the code that runs already comes from there.
    """
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    try:
        dropped = {os.path.realpath(entry) for entry in ("", *entries) if not os.path.isabs(entry)}
        return [
            folder
            for folder in map(os.path.abspath, path)
            if os.path.realpath(folder) not in dropped or os.path.realpath(folder) == os.path.realpath(ROOT)
        ]
    except OSError:  # the working directory was removed
        return [folder for folder in path if os.path.isabs(folder)]


def run() -> None:
    """Run what the arguments name, as Python itself would."""
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the folder of this file
    sys.argv[:] = sys.argv[1:]
    if sys.argv[0] == "-m":
        import runpy

        sys.argv[:] = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    name = sys.argv[0]
    if name == "-c":
        source: str | bytes = sys.argv.pop(1)
    else:
        with open(name, "rb") as file:
            source = file.read()
    exec(compile(source, name, "exec"), {"__name__": "__main__", "__file__": name})


if __name__ == "__main__":
    run()
