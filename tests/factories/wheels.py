"""Downloads wheels of frameworks from the package index, to read them and not to install them."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

OUT_OF_REACH = ("could not find a version", "no matching distribution", "connection", "timed out", "temporary failure")
"""What pip says where no index answers; any other failure is one of the test."""


def download_wheel(requirement: str, folder: Path) -> zipfile.ZipFile:
    """Download a wheel; skip where no package index is reachable."""
    options = ["--no-deps", "--only-binary=:all:", "-q", "-d", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, requirement]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    except subprocess.TimeoutExpired:
        pytest.skip("no package index answers within three minutes")
    if result.returncode:
        if any(phrase in result.stderr.lower() for phrase in OUT_OF_REACH):
            pytest.skip(f"no package index is reachable: {result.stderr.strip().splitlines()[-1][:200]}")
        pytest.fail(result.stderr)
    return zipfile.ZipFile(next(folder.glob("*.whl")))
