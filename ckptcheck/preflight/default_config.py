"""Finds the configuration that a program reads where its launch line names none: ``args.config = os.path.join(…)`` in its source.

NeMo-RL's programs say it so: ``if not args.config: args.config = os.path.join(os.path.dirname(__file__), "configs",
"grpo_math_1B.yaml")`` (examples/run_grpo.py of NVIDIA-NeMo/RL at 7ea279abf).
"""

from __future__ import annotations

import ast
from pathlib import Path

from ckptcheck.errors import CkptcheckError
from ckptcheck.preflight.document import read_text_file
from ckptcheck.preflight.python_source.script import parse_python


def find_default_config(program: Path, shown: str) -> Path | None:
    """Return the configuration that a program sets as its default, None where its source sets none that is there.

    Args:
        program: The Python file.
        shown: Its name in error messages.
    """
    try:
        tree = parse_python(read_text_file(program, shown), shown)
    except CkptcheckError:
        return None
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        target = node.targets[0]
        if not isinstance(target, ast.Attribute) or target.attr != "config":
            continue
        parts = [
            each.value for each in node.value.args if isinstance(each, ast.Constant) and isinstance(each.value, str)
        ]
        file = program.parent.joinpath(*parts)
        if parts and ast.unparse(node.value.func).endswith("path.join") and file.is_file():
            return file
    return None
