"""Asks a Python what it is and which packages it has, without importing any of them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ckptcheck.environments.clean import clean_environment
from ckptcheck.errors import CkptcheckError

PATIENCE = 60
"""Seconds: a Python on a cold network disk takes a while to start."""

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


class Probe(msgspec.Struct, frozen=True):
    """python: its version; site: its site-packages; versions: package → version, of those asked for that it has."""

    python: str
    site: str
    versions: dict[str, str]


def probe(python: Path, packages: Sequence[str]) -> Probe:
    """Ask an interpreter. Raises CkptcheckError when it is none, or does not answer."""
    try:
        done = subprocess.run(
            [str(python), "-c", PROGRAM, *packages],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=clean_environment(),
            timeout=PATIENCE,
            check=False,
        )
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=Probe)
    except OSError as error:
        raise CkptcheckError(f"cannot run {python}: {error.strerror or error}") from error
    except subprocess.TimeoutExpired:
        raise CkptcheckError(f"{python} did not answer within {PATIENCE} seconds") from None
    except (IndexError, msgspec.MsgspecError):
        raise CkptcheckError(f"{python} is not a Python 3.8 or newer") from None
