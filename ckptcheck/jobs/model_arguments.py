"""Reads the flags of a model that a Python file holds: miles keeps them in ``scripts/models/TYPE.py``.

Such a file has a function ``model_args()`` that returns the flags as one text; ``model_args_utils.py TYPE`` prints it
(miles/utils/external_utils/model_args_utils.py of radixark/miles at 31f1ca961).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.python_source.evaluator import read_python_file
from ckptcheck.jobs.python_source.values import Text
from ckptcheck.jobs.shell.word import MARK, Word

PRINTER = "model_args_utils.py"
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
SIBLING, RESULT = "load_sibling_model_args", "print_result"
DEEPEST = 3
"""Largest number of model files that build on each other; more are a loop."""


class ReadsFiles(Protocol):
    """Reads files of the job."""

    def text(self, path: Path, shown: str) -> str:
        """Read a file."""
        ...

    def name(self, path: Path) -> str:
        """Return the name of a file in the report."""
        ...


def print_model_arguments(words: Sequence[Word], files: ReadsFiles) -> str | None:
    """Return what ``python …/model_args_utils.py TYPE`` prints; None for any other command, and where it is not known.

    A `MARK` stands for each part that is not known.

    Args:
        words: The command; assignments such as ``MODEL_ARGS_ROTARY_BASE=5000000`` may come first.
        files: Reads the model's file.
    """
    environment: dict[str, str] = {}
    texts = [word.text for word in words]
    while texts and (match := ASSIGNMENT.fullmatch(texts[0])):
        environment[match[1]] = match[2]
        texts = texts[1:]
    if len(texts) != 3 or not re.fullmatch(r"(\S*/)?python3?", texts[0]) or not texts[1].endswith(PRINTER):
        return None
    folder = Path(texts[1]).parent / "../../../scripts/models"
    arguments = read_model_arguments(folder, texts[2], files, environment)
    if arguments is None:
        return None
    return " ".join("".join(MARK if piece.reason else piece.text for piece in arguments.pieces).split())


def read_model_arguments(
    folder: Path,
    kind: str,
    files: ReadsFiles,
    environment: Mapping[str, str],
    changes: Mapping[str, object] | None = None,
    depth: int = 0,
) -> Text | None:
    """Return the flags of a model, None where its file is not there.

    Args:
        folder: The folder ``scripts/models``.
        kind: The name of the model's file, without ``.py``.
        files: Reads the file.
        environment: Environment variables that the command sets.
        changes: Keyword arguments of ``model_args``.
        depth: How many model files build on this one.
    """
    path = folder / f"{kind}.py"
    if not re.fullmatch(r"[\w.-]+", kind) or not os.path.isfile(path) or depth > DEEPEST:
        return None
    helpers = folder / "../../miles/utils/external_utils" / PRINTER

    def find(module: str) -> tuple[str, str] | None:
        is_helpers = module == helpers.stem and os.path.isfile(helpers)
        return (files.text(helpers, files.name(helpers)), files.name(helpers)) if is_helpers else None

    written = ", ".join(f"{name}={value!r}" for name, value in (changes or {}).items())
    try:
        # model_args_utils.py calls the file's function in this way.
        text = f"{files.text(path, files.name(path))}\n\nimport {RESULT}\n{RESULT}.{RESULT}(model_args({written}))\n"
        script = read_python_file(text, files.name(path), find=find, environment=environment, results={SIBLING: None})
    except CkptcheckError:
        return None
    for call in script.calls:
        if call.ends_with(SIBLING) and len(call.arguments) == 2 and isinstance(call.arguments[1], Text):
            plain = {str(name): value for name, value in call.keywords.items() if isinstance(value, (int, float, bool))}
            return read_model_arguments(folder, call.arguments[1].shown, files, environment, plain, depth + 1)
    found = [call.arguments[0] for call in script.calls if call.ends_with(RESULT) and call.arguments]
    return next((value for value in found if isinstance(value, Text)), None)
