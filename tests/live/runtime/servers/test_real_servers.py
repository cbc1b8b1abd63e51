"""Real servers on this machine's CPU, started as a user starts them, with a tiny model: what they serve, and what they should."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import live
import pytest
from safetensors.numpy import load_file, save_file

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.refit.running_servers import probe as attaching
from ckptcheck.live.refit.running_servers.probe import ProbeSettings
from ckptcheck.live.refit.scoring_inputs import scoring_sequences
from ckptcheck.live.runtime.engines.cpu_affinity import cpu_affinity_variables
from ckptcheck.live.runtime.process.exchange import TensorExchange
from ckptcheck.live.runtime.servers.client import ServerClient
from ckptcheck.live.runtime.servers.detect_engine import detect_engine
from ckptcheck.live.runtime.servers.layout import ServerLayout
from ckptcheck.live.runtime.servers.reference import ReferenceServer
from ckptcheck.live.runtime.trainers.base import TrainerInfo
from ckptcheck.live.runtime.trainers.transformers import start_transformers
from tests.conftest import needs_engine
from tests.factories.attached_servers import build_evidence

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("servers")]
RULES = rule_loader.load_rules()
NORM = "model.layers.0.input_layernorm.weight"
MATRIX = "model.layers.1.mlp.down_proj.weight"
ASKED = ProbeSettings(scoring_sequences(511), seconds=300)


@dataclass(frozen=True)
class Models:
    """served: what the servers start with. wanted: the same with a norm and a matrix changed. truth: of the wanted one."""

    served: Path
    wanted: Path
    trainer: TrainerInfo
    trainer_scores: tuple[tuple[float, ...], ...]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    needs_engine("megatron")  # which has transformers
    folder = tmp_path_factory.mktemp("models")
    served = live.write("qwen3", folder / "served")
    wanted = shutil.copytree(served, folder / "wanted")
    tensors = load_file(wanted / "model.safetensors")
    tensors[NORM][3] += 0.01
    tensors[MATRIX] *= 1.01
    save_file(tensors, wanted / "model.safetensors", {"format": "pt"})
    with TensorExchange() as exchange:
        trainer = start_transformers(open_checkpoint(str(wanted)), exchange)
        try:
            return Models(served, wanted, trainer.info, tuple(trainer.score(ASKED.sequences)))
        finally:
            trainer.close()


def report(models: Models, seen: attaching.ServerState, reference: attaching.ServerState) -> Report:
    evidence = build_evidence(
        "wanted",
        seen,
        ASKED.sequences,
        reference=reference,
        trainer=models.trainer,
        trainer_scores=models.trainer_scores,
    )
    return run_rules(evidence, RULES)


def codes(found: Report) -> dict[str, str | None]:
    return {finding.code: finding.key for finding in reversed(found.findings)}  # of each rule the first finding


def test_sglang(models: Models) -> None:
    needs_engine("sglang")
    with ReferenceServer("sglang", models.served, dtype="float32") as other:
        for_user(models.served, other.client.url)
        with ReferenceServer("sglang", models.wanted, dtype="float32") as own:
            reference = attaching.probe_server(own.server, ASKED)
            unlike(other.client.url, own.client.url)
        assert (reference.info.version, reference.info.device, reference.info.dtype) == ("0.5.23", "cpu", "float32")

        found = report(models, attaching.probe_server(other.server, ASKED), reference)
        assert codes(found) == {"REF030": NORM, "REF031": None}
        assert f"in 2 of 19 tensors: {NORM}, {MATRIX}" in found.findings[0].message
        assert found.skipped == ()

        before = attaching.probe_server(other.server, ASKED)
        *_, failed = attaching.overwrite_and_update(other.server, before, models.wanted / "nowhere", ASKED)
        assert codes(report(models, failed, reference))["REF034"] is None
        *_, written = attaching.overwrite_and_update(other.server, failed, models.wanted, ASKED)
        found = report(models, written, reference)
        assert (found.verdict, found.findings, found.skipped) == ("clean", (), ())
        assert "REF034" in found.passed
        assert written.info.weight_version == "ckptcheck"

        scheduler = below(other.pid, "scheduler")
        os.kill(scheduler, signal.SIGSTOP)
        hung = attaching.probe_server(other.server, ProbeSettings(ASKED.sequences, seconds=3))
        assert codes(report(models, hung, reference)) == {"REF028": None}
        os.kill(scheduler, signal.SIGCONT)
        assert not attaching.probe_server(other.server, ASKED).dead_reason


def test_vllm(models: Models) -> None:
    needs_engine("vllm")
    with ReferenceServer("vllm", models.served, dtype="float32") as other:
        more, env = ["--data-parallel-size", "2"], cpu_affinity_variables("vllm", 2)
        with ReferenceServer("vllm", models.wanted, dtype="float32", more=more, env=env) as own:
            reference = attaching.probe_server(own.server, ASKED)
            unlike(other.client.url, own.client.url)
        info = reference.info
        assert (info.version, info.dtype, info.device) == ("0.32.0", "float32", "cpu")
        assert info.layout == ServerLayout(1, copies=2), "it has two copies of the model, which say the same"
        assert (len(reference.checksums), len(reference.weights), reference.missing_ranks) == (38, 11, "")

        found = report(models, attaching.probe_server(other.server, ASKED), reference)
        assert codes(found) == {"REF030": NORM, "REF031": None}
        assert any(f"in 1 of 11 tensors: {NORM}" in finding.message for finding in found.findings), (
            "the matrix is packed: its checksum is of nothing"
        )

        code, told = attach(other.client.url, "--source", str(models.wanted), "--allow-write")
        assert (code, [finding["code"] for finding in told["findings"]], told["skipped"]) == (0, ["REF030"], [])
        assert {"REF028", "REF031", "REF034"} <= set(told["passed"])
        assert "vllm 0.32.0 started here and transformers 5" in told["subject"]
        assert other.server.weight_version(seconds=60) == "ckptcheck"
        twice = report(models, reference, attaching.probe_server(other.server, ASKED))
        assert codes(twice) == {"REF030": "model.layers.0.self_attn.qkv_proj.weight"}, "two copies of the same"
        assert twice.skipped == ()

        worker = below(other.pid, "VLLM::EngineCor")
        os.kill(worker, signal.SIGSTOP)
        hung = attaching.probe_server(other.server, ProbeSettings(ASKED.sequences, seconds=3))
        assert codes(report(models, hung, reference)) == {"REF028": None}
        os.kill(worker, signal.SIGCONT)


def for_user(source: Path, url: str) -> None:
    """What a user sees of a server that serves what it should: the whole command."""
    code, told = attach(url, "--source", str(source))
    assert (code, told["verdict"], told["findings"], told["skipped"]) == (0, "clean", [], [])
    assert {"REF028", "REF030", "REF031"} <= set(told["passed"])
    assert "sglang 0.5.23 started here and transformers 5" in told["subject"]


def unlike(one: str, other: str) -> None:
    """What a user sees of two replicas of which one is behind. Each says which it is, and says the same again."""
    mine, again, theirs = (
        detect_engine(ServerClient(url), seconds=60).info(seconds=60).instance for url in (one, one, other)
    )
    assert mine == again != theirs
    assert mine
    assert theirs
    code, told = attach(one, other)
    assert (code, next((finding["code"], finding["key"]) for finding in told["findings"])) == (1, ("REF029", NORM))


def attach(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the whole command; return its exit code and its report."""
    command = [sys.executable, "-m", "ckptcheck", "attach", *arguments, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def below(parent: int, name: str) -> int:
    """Return the process below another whose name (as it calls itself) contains `name`."""
    return next(process for process in descendants(parent) if name in words(process))


def descendants(parent: int) -> Iterator[int]:
    for task in Path(f"/proc/{parent}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield int(child)
            yield from descendants(int(child))


def words(process: int) -> str:
    folder = Path(f"/proc/{process}")
    return (folder / "comm").read_text() + (folder / "cmdline").read_text()
