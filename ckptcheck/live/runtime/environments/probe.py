"""Asks a Python for its version and packages, without importing any of them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ckptcheck.errors import CkptcheckError
from ckptcheck.runners.child_python import run_python

PATIENCE = 60
"""Seconds to answer: a Python on a cold network disk takes a while to start."""

PROGRAM = """
import json, platform, sys, sysconfig
from importlib import metadata
versions = {}
for name in sys.argv[1:]:
    try:
        versions[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
site = sysconfig.get_paths()["purelib"]
print(json.dumps({"python": platform.python_version(), "site": site, "versions": versions}))
"""


class PythonInfo(msgspec.Struct, frozen=True):
    """What a Python reports about itself."""

    python: str
    """Its version."""
    site: str
    """Its site-packages folder."""
    versions: dict[str, str]
    """Package → version, of the requested packages that it has."""


def probe_python(python: Path, packages: Sequence[str]) -> PythonInfo:
    """Ask an interpreter for its version and packages. Raises CkptcheckError if it is no Python, or does not answer."""
    try:
        process = run_python(["-c", PROGRAM, *packages], python, timeout=PATIENCE)
        return msgspec.json.decode(process.stdout.splitlines()[-1], type=PythonInfo)
    except OSError as error:
        raise CkptcheckError(f"cannot run {python}: {error.strerror or error}") from error
    except subprocess.TimeoutExpired:
        raise CkptcheckError(f"{python} did not answer within {PATIENCE} seconds") from None
    except (IndexError, msgspec.MsgspecError):
        raise CkptcheckError(f"{python} is not a Python 3.9 or newer") from None
