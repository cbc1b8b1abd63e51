"""A process that may map little memory gets its answer, or one sentence: never a hang, and never the exit code of findings."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from ckptcheck.cli import address_space
from tests.paths import ROOT

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux keeps a limit on addresses")
TARGET = str(ROOT / "fixtures" / "checkpoints" / "tiny-llama-sharded")


@pytest.mark.parametrize(("megabytes", "code"), [(120, 2), (300, 0)])
def test_little_memory_is_answered(megabytes: int, code: int) -> None:
    """With 300 MB a thread once got its stack and no object, and the scan waited for it."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    command = [sys.executable, "-m", "ckptcheck", "scan", TARGET]
    ended = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, timeout=300, check=False)
    assert ended.returncode == code, ended.stderr
    if code == 2:
        assert "this process may map only 120 MB of memory, and ckptcheck needs" in ended.stderr
        assert ended.stdout == ""


def test_without_a_limit_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert address_space.prepare_for_few_addresses() is None
    assert "OPENBLAS_NUM_THREADS" not in address_space.os.environ
