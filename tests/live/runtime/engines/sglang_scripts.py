"""Runs a script in SGLang's own Python, beside ckptcheck's worker: for SGLang's classes that need no running engine."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from ckptcheck.live.runtime.environments.interpreter import find_interpreter
from ckptcheck.live.runtime.worker import ckptcheck_worker

PREFIX = """\
import json

def answer(value):
    print("ANSWER", json.dumps(value))

"""


def run_in_sglang(script: str) -> Any:
    """Return what the script passed to its function `answer`."""
    interpreter = find_interpreter("sglang", None)
    folder = os.path.dirname(ckptcheck_worker.__path__[0])
    path = os.pathsep.join([folder, *filter(None, [interpreter.variables.get("PYTHONPATH")])])
    done = subprocess.run(
        [str(interpreter.python), "-c", PREFIX + script],
        env={**os.environ, **interpreter.variables, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.partition("ANSWER ")[2])
