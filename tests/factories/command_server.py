"""Runs commands as ``python -m ckptcheck`` does, each in a fork of one process that has imported the package.

To start Python and to import the package takes ten times as long as most commands that the tests run. Reads one JSON object a line:
``{"cwd", "arguments", "environment", "stdout", "stderr"}``, the last two being files; answers with one exit code a line.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
from typing import Any, NoReturn

from ckptcheck.linter import rule_loader

PRELOADED = (
    "ckptcheck.cli.app", "ckptcheck.verbs.scan", "ckptcheck.verbs.scanning", "ckptcheck.values.value_pass",
    "ckptcheck.reporters.text", "numpy", "rich.progress",
)  # fmt: skip


def serve() -> None:
    """Answer until standard input ends."""
    for name in PRELOADED:
        importlib.import_module(name)
    rule_loader.load_rules()
    for request in sys.stdin:
        child = os.fork()
        if child == 0:
            _run_command(json.loads(request))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run_command(request: dict[str, Any]) -> NoReturn:
    """Become the process of the command: its folder, environment, streams and arguments."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["stdout"], os.O_WRONLY),
        (2, request["stderr"], os.O_WRONLY),
    ):
        file = os.open(path, flags)
        os.dup2(file, number)
        os.close(file)
    sys.argv = ["ckptcheck", *request["arguments"]]
    sys.path[0] = request["cwd"]
    code = 1
    try:
        runpy.run_module("ckptcheck", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
