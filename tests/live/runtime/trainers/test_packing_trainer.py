"""Weights that are packed on their way to an engine, without one: what is sent, what is saved, what comes out of it again."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import live
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.runtime.engines.digest import digest
from ckptcheck.live.runtime.process.exchange import TensorExchange
from ckptcheck.live.runtime.trainers.base import TrainerInfo, Weight
from ckptcheck.live.runtime.trainers.quantized import QuantizedTrainer
from ckptcheck.live.runtime.trainers.remote import INDEX
from ckptcheck.live.runtime.trainers.schemes import QuantizationScheme, build_scheme
from tests.conftest import needs
from tests.factories import sent_buckets

pytestmark = pytest.mark.slow

MOE = "Qwen3MoeForCausalLM"
Q, ROUTER, EXPERT = (
    "model.layers.0.self_attn.q_proj",
    "model.layers.1.mlp.gate",
    "model.layers.1.mlp.experts.3.down_proj",
)


class Holder:
    """A trainer that only holds weights."""

    info = TrainerInfo("holder", "1", "float32", "", MOE)

    def __init__(self, source: Path, exchange: TensorExchange) -> None:
        self.held, self._source, self._exchange, self.closed = (
            sent_buckets.read_weights(source),
            source,
            exchange,
            False,
        )

    def weights(self) -> list[Weight]:
        return [Weight(name, values.shape, "F32", (f"own.{name}",), (0,)) for name, values in self.held.items()]

    def export(self, bucket_bytes: int) -> list[Any]:
        return sent_buckets.write_buckets(self.held, self._exchange, bucket_bytes)

    def perturb(self, scale: float, *, seed: int = 0) -> None:
        self.held = sent_buckets.perturb_weights(self.held, scale, seed)

    def save(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        save_file(self.held, folder / "model-1.safetensors", {"format": "pt"})
        (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(self.held, "model-1.safetensors")}))
        (folder / "config.json").write_text((self._source / "config.json").read_text())

    def close(self) -> None:
        self.closed = True


class Reference:
    """Stands in for transformers: its logprobs are the sums of the weights it was started with."""

    def __init__(self, folder: Path) -> None:
        self.held, self.closed = load_file(next(folder.glob("*.safetensors"))), False

    def score(self, sequences: Any, **_: Any) -> Any:
        return [tuple(float(values.sum()) for values in self.held.values())]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def exchange() -> Iterator[TensorExchange]:
    with TensorExchange() as made:
        yield made


def quantized(
    tmp_path: Path, exchange: TensorExchange, name: str, **more: Any
) -> tuple[QuantizedTrainer, Holder, QuantizationScheme, list[Reference]]:
    needs("torch", "compressed_tensors")
    inner = Holder(live.write("qwen3-wide", tmp_path / "source"), exchange)
    shapes = {weight.name: weight.shape for weight in inner.weights()}
    chosen = build_scheme(name, shapes, MOE, "sglang", **more)
    started: list[Reference] = []

    def start(folder: Path, _: Any) -> Any:
        started.append(Reference(folder))
        return started[-1]

    made = QuantizedTrainer(
        inner, chosen, python=Path(sys.executable), variables={}, start=start, exchange=exchange, folder=tmp_path
    )  # type: ignore[arg-type]
    return made, inner, chosen, started


@pytest.mark.parametrize(
    ("name", "roles", "off"),
    [
        ("w4a16", {"weight_packed", "weight_scale", "weight_shape"}, 1 / 14),
        ("w8a8", {"weight", "weight_scale"}, 1 / 250),
        ("fp8", {"weight", "weight_scale"}, 1 / 25),
    ],
)
def test_what_is_sent_and_saved_is_what_a_scan_finds_sound(
    tmp_path: Path, exchange: TensorExchange, name: str, roles: set[str], off: float
) -> None:
    trainer, inner, chosen, started = quantized(tmp_path, exchange, name)
    try:
        assert {Q, EXPERT} <= chosen.served
        assert not {ROUTER, "lm_head", "model.embed_tokens"} & chosen.served
        digests = dict(trainer.digests())
        parcels = trainer.export(40_000)
        assert len(parcels) > 2
        arrived = {name: digest(values) for each in parcels for name, values in raw(each.address["path"]).items()}
        assert arrived == digests
        assert {weight.name for weight in trainer.weights()} == set(digests)
        assert {part.removeprefix(f"{Q}.") for part in digests if part.startswith(f"{Q}.")} == roles
        assert next(weight for weight in trainer.weights() if weight.name == f"{Q}.weight_scale").trainer_names == (
            f"own.{Q}.weight",
        )
        saved = tmp_path / "saved"
        trainer.save(saved)
        report = run_rules(open_checkpoint(str(saved)), rule_loader.load_rules())
        assert [f"{each.code} {each.message}" for each in report.findings if each.severity == "error"] == []
        held = {name: digest(values) for name, values in raw(str(saved / "model-1.safetensors")).items()}
        assert held == digests
        size = json.loads((saved / INDEX).read_text())["metadata"]["total_size"]
        assert size == sum(values.nbytes for values in raw(str(saved / "model-1.safetensors")).values())
        trainer.score([])
        again = started[0].held
        assert set(again) == set(inner.held)
        gap = np.abs(again[f"{Q}.weight"] - inner.held[f"{Q}.weight"])
        assert 0 < gap.max() <= off * np.abs(inner.held[f"{Q}.weight"]).max() * 1.01
        assert np.array_equal(again[f"{ROUTER}.weight"], inner.held[f"{ROUTER}.weight"])
    finally:
        trainer.close()
    assert inner.closed
    assert started[0].closed


def test_after_a_step_all_is_packed_anew(tmp_path: Path, exchange: TensorExchange) -> None:
    trainer, _, _, started = quantized(tmp_path, exchange, "w4a16")
    try:
        before, first = dict(trainer.digests()), trainer.score([])
        assert trainer.score([]) == first
        assert len(started) == 1
        trainer.perturb(0.1)
        assert trainer.score([]) != first
        assert len(started) == 2
        after = trainer.digests()
        changed = {name for name in before if before[name] != after[name]}
        assert changed == {name for name in before if not name.endswith("weight_shape")}
    finally:
        trainer.close()


def test_slime_packs_the_router_that_the_engine_leaves_alone(tmp_path: Path, exchange: TensorExchange) -> None:
    ignore = ["lm_head", "model.embed_tokens", r"re:.*mlp\.gate$"]
    trainer, _, chosen, _ = quantized(tmp_path, exchange, "w4a16", ignore=ignore, quantizer="slime")
    trainer.close()
    assert chosen.sent - chosen.served == {"model.layers.0.mlp.gate", ROUTER}
    ignore[-1] = r"re:.*mlp\.gate(\.weight)?$"
    shapes = {f"{module}.weight": (64, 64) for module in (Q, ROUTER, EXPERT)}
    fixed = build_scheme("w4a16", shapes, MOE, "sglang", ignore=ignore, quantizer="slime")
    assert fixed.sent == fixed.served == {Q, EXPERT}
    assert fixed.config["config_groups"]["group_0"]["weights"]["group_size"] == 64


def test_what_cannot_be_packed_is_said() -> None:
    with pytest.raises(CkptcheckError, match="no group of 128, 64, 32 divides rows of 40"):
        build_scheme("w4a16", {f"{Q}.weight": (64, 40)}, MOE, "sglang")
    with pytest.raises(CkptcheckError, match="there is no scheme w2a2"):
        build_scheme("w2a2", {}, MOE, "sglang")


def raw(path: str) -> dict[str, np.ndarray]:
    """Read a file's tensors as bytes: numpy has no FP8."""
    data = Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(data, np.uint8)[8 + size + entry["data_offsets"][0] : 8 + size + entry["data_offsets"][1]]
        for name, entry in header.items()
    }
