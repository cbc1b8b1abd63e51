"""Reads a Python script without running it: the calls that it makes, with those arguments that are constants of the script.

Followed are assignments, arithmetic, texts and f-strings, lists, dicts, conditions, loops over known items, functions and
classes of the script and of modules that lie beside it, and defaults of dataclasses, argparse, typer and ``os.environ.get``.
Everything else is an `Unknown` with its reason. Of an unknown condition it reads both branches, and their common part
stays known. It imports and executes nothing.

To use it for a class whose keywords are settings::

    script = read_python_file(text, "train.py")
    for call in script.calls:                       # in the order in which the script makes them
        if call.ends_with("GRPOConfig"):            # trl.GRPOConfig, by the script's imports
            document.update(call.to_document())     # a Leaf for each keyword; nested dicts become sections
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.python_source.evaluator import Evaluator
from ckptcheck.jobs.python_source.script import Find, PythonCall, PythonScript, parse_python
from ckptcheck.jobs.python_source.values import Value
from ckptcheck.text.file_io import real_path

__all__ = ["Find", "PythonCall", "PythonScript", "find_modules_beside", "read_python_file"]


def read_python_file(
    text: str,
    name: str,
    *,
    find: Find | None = None,
    environment: Mapping[str, str] | None = None,
    results: Mapping[str, Value] | None = None,
) -> PythonScript:
    """Read a Python script.

    Args:
        text: The script.
        name: The file as the report names it.
        find: Finds the modules that the script imports; None reads the script alone.
        environment: Values of environment variables that the user gives.
        results: Last part of a function's name → what it returns. Such a function is not followed, and its calls are listed.

    Raises:
        CkptcheckError: It is not Python; the message has the line.
    """
    script = PythonScript()
    evaluator = Evaluator(script, find or (lambda module: None), dict(environment or {}), dict(results or {}))
    evaluator.run(parse_python(text, name), name, text)
    return script


def find_modules_beside(
    folder: Path, shown: Callable[[Path], str], read: Callable[[Path], str], others: Collection[str] = ()
) -> Find:
    """Return a function that finds ``a.b`` as ``a/b.py`` in a folder and in the four above it.

    Args:
        folder: The script's folder.
        shown: Returns the name of a file for the report.
        read: Returns the text of a file.
        others: Packages that are not looked for.
    """
    folders = [folder, *list(real_path(folder).parents)[:4]]

    def find(module: str) -> tuple[str, str] | None:
        parts = module.split(".")
        if parts[0] in others or not all(part.isidentifier() for part in parts):
            return None
        for start in folders:
            for file in (start.joinpath(*parts[:-1], f"{parts[-1]}.py"), start.joinpath(*parts, "__init__.py")):
                try:
                    if file.is_file():
                        return read(file), shown(file)
                except (OSError, CkptcheckError):
                    return None
        return None

    return find
