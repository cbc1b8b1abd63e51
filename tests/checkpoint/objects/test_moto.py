"""The same against moto, a server of S3 that somebody else wrote. `pip install 'moto[s3]' flask flask-cors` runs it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

import ckptcheck
from ckptcheck.checkpoint.open import open_checkpoint
from tests.paths import FIXTURES

MOE = FIXTURES / "checkpoints" / "tiny-qwen3-moe"
pytestmark = pytest.mark.slow


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of S3 in a process of its own."""
    for package in ("moto", "flask", "flask_cors", "boto3"):
        pytest.importorskip(package, reason="pip install 'moto[s3]' flask flask-cors")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = "import sys; from moto.server import main; main(sys.argv[1:])"
    server = subprocess.Popen([sys.executable, "-c", program, "-p", str(port)], stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                urlopen(url, timeout=5).close()
                break
            except OSError:
                assert server.poll() is None
                time.sleep(0.1)
        for name, value in {
            "ENDPOINT_URL": url,
            "ACCESS_KEY_ID": "a",
            "SECRET_ACCESS_KEY": "b",
            "REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        yield url
    finally:
        server.kill()
        server.wait()


def test_a_real_server(endpoint: str, tmp_path: Path) -> None:
    import boto3

    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    client.create_bucket(Bucket="models")
    for path in MOE.iterdir():
        client.upload_file(str(path), "models", f"runs/a step/{path.name}")
    target = "s3://models/runs/a step"
    here, there = ckptcheck.scan(MOE).to_dict(), ckptcheck.scan(target, values=True).to_dict()
    assert {**there, "target": ""} == {**here, "target": ""}
    assert ckptcheck.manifest(target).tensors == ckptcheck.manifest(MOE).tensors
    for folder in (str(tmp_path), "s3://models/parts/"):
        for index in (0, 1, 2, 1):
            ckptcheck.write_part("scan", target, part=f"{index}/3", folder=folder)
        joined = ckptcheck.join(folder)
        assert isinstance(joined, ckptcheck.Reports)
        assert joined[0].to_dict() == there
    opened = open_checkpoint(target)
    assert opened.shards
    client.put_object(Bucket="models", Key="runs/a step/model.safetensors", Body=bytes(1 << 20))
    with pytest.raises(OSError, match="it was replaced while it was being read"):
        opened.source.read("model.safetensors", 0, 8)
    with pytest.raises(ckptcheck.CkptcheckError, match="there is no bucket s3://nobucket"):
        ckptcheck.scan("s3://nobucket/x")
