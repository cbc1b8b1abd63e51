"""The same against Azurite, Microsoft's own emulator of Azure. `npm install azurite`, with its `azurite-blob` on PATH, runs it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

import ckptcheck
from ckptcheck.checkpoint.open import open_checkpoint
from tests.paths import FIXTURES

MOE = FIXTURES / "checkpoints" / "tiny-qwen3-moe"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account and the key that every Azurite has."""
pytestmark = pytest.mark.slow


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A server of Azure in a process of its own, with a container `models`."""
    if (program := shutil.which("azurite-blob")) is None:
        pytest.skip("npm install azurite")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--blobPort", str(port), "--location", str(tmp_path), "--skipApiVersionCheck", "--disableTelemetry"]
    server = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}/{ACCOUNT}"
    try:
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", port), 5).close()
                break
            except OSError:
                assert server.poll() is None
                time.sleep(0.1)
        create_container(url)
        for name, value in {"ACCOUNT_NAME": ACCOUNT, "ACCOUNT_KEY": KEY, "ENDPOINT": url}.items():
            monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)
        yield
    finally:
        server.kill()
        server.wait()


def create_container(url: str) -> None:
    """Create the container `models`, which obstore cannot."""
    date, version = formatdate(usegmt=True), "2021-08-06"
    lines = ["PUT", *[""] * 11, f"x-ms-date:{date}", f"x-ms-version:{version}", f"/{ACCOUNT}/{ACCOUNT}/models"]
    text = "\n".join([*lines, "restype:container"])
    signature = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
    headers = {"x-ms-date": date, "x-ms-version": version, "Authorization": f"SharedKey {ACCOUNT}:{signature}"}
    urlopen(Request(f"{url}/models?restype=container", method="PUT", headers=headers), timeout=60).close()


def test_a_real_server(container: None, tmp_path: Path) -> None:
    import obstore
    from obstore.store import from_url

    store = from_url("az://models", client_options={"allow_http": True})
    for path in MOE.iterdir():
        obstore.put(store, f"runs/a step/{path.name}", path.read_bytes())
    target, manifest = "az://models/runs/a step", "az://models/runs/manifest.json"
    here, there = ckptcheck.scan(MOE).to_dict(), ckptcheck.scan(target, values=True).to_dict()
    assert {**there, "target": ""} == {**here, "target": ""}
    assert ckptcheck.manifest(target, manifest).tensors == ckptcheck.manifest(MOE).tensors
    assert ckptcheck.verify(target, manifest).verdict == "clean"
    opened = open_checkpoint(target)
    assert opened.shards
    obstore.put(store, "runs/a step/model.safetensors", bytes(1 << 20))
    with pytest.raises(OSError, match="it was replaced while it was being read"):
        opened.source.read("model.safetensors", 0, 8)
    with pytest.raises(ckptcheck.CkptcheckError, match="there is no bucket az://nobucket"):
        ckptcheck.scan("az://nobucket/x")
