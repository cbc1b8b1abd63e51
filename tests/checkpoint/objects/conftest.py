from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptcheck.checkpoint.objects import bucket_of_obstore as bucket
from tests.doubles.object_server import Kind, ObjectServer
from tests.paths import FIXTURES


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without credentials, proxies and settings of its own, on which no wait is long."""
    pytest.importorskip("obstore", reason="pip install obstore")
    for name in list(os.environ):
        if name.upper().startswith(("AWS_", "AZURE_", "GOOGLE_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(bucket, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(bucket, "RETRIES", 3)


@pytest.fixture
def kind() -> Kind:
    return "s3"


@pytest.fixture
def store(kind: Kind, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ObjectServer]:
    """A store with the checkpoint tiny-llama as runs/step_1 of the bucket `models`."""
    with ObjectServer(kind) as server:
        server.set_environment(monkeypatch.setenv, tmp_path)
        server.push("models", FIXTURES / "checkpoints" / "tiny-llama", "runs/step_1")
        yield server
