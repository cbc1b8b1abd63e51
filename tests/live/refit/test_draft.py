"""What a trial does about a draft that its trainer does not hold: cold loads get it, and a sync may send it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.refit.draft import FILE, DraftWeights, find_draft_folder, find_untrained
from ckptcheck.live.refit.feasibility import require_draft_update
from ckptcheck.live.runtime.engines.base import Bucket, EngineInfo, UpdateResult
from ckptcheck.live.runtime.engines.engine_options import parse_switches
from ckptcheck.live.runtime.engines.transports import find_transport
from tests.factories.checkpoint_cases import CHECKPOINTS

MTP = "model.mtp_layers.0.input_proj.weight"


def test_layers_that_the_trainer_does_not_hold_come_from_the_source(tmp_path: Path) -> None:
    source, saved = tmp_path / "source", tmp_path / "saved"
    source.mkdir()
    saved.mkdir()
    held = {"model.norm.weight": np.ones(8, np.float32)}
    layer = np.arange(32, dtype=np.float16).reshape(4, 8)
    save_file(
        {
            **held,
            MTP: layer,
            "lm_head.weight": np.ones((4, 8), np.float32),
            "a.rotary_emb.inv_freq": np.ones(4, np.float32),
        },
        source / "model.safetensors",
    )
    (source / "config.json").write_text('{"model_type": "qwen2", "tie_word_embeddings": true}', encoding="utf-8")
    save_file(held, saved / "model-00001-of-00001.safetensors")
    index = {"metadata": {}, "weight_map": {"model.norm.weight": "model-00001-of-00001.safetensors"}}
    (saved / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")

    opened = open_checkpoint(str(source))
    names = find_untrained(opened, held.keys())
    assert names == (MTP,)  # neither the tied head, nor a buffer
    draft = DraftWeights(opened, is_own_model=False)
    draft.hold(names)
    draft.step(1.0, seed=1)  # what is not sent never moves
    draft.save(saved)
    written = load_file(saved / FILE)
    assert written[MTP].dtype == np.float16
    assert np.array_equal(written[MTP], layer)
    assert open_checkpoint(str(saved)).tensors.keys() == {*held, MTP}


def test_a_trainer_that_holds_everything_leaves_nothing() -> None:
    source = open_checkpoint(str(CHECKPOINTS / "tiny-deepseek"))
    assert find_untrained(source, source.tensors.keys()) == ()
    assert "model.layers.3.eh_proj.weight" in find_untrained(
        source, [name for name in source.tensors if "layers.3" not in name]
    )


class Taker:
    """Reads what a trial sends its draft model."""

    info = EngineInfo("fake", "1", "float32", 1, "FakeForCausalLM")

    def __init__(self) -> None:
        self.taken: dict[str, np.ndarray] = {}
        self.buckets = 0

    def update_draft(self, buckets: list[Bucket], transport: str) -> UpdateResult:
        self.buckets = len(buckets)
        for bucket in buckets:
            found = load_file(bucket.address["path"])
            assert list(found) == sorted(bucket.names)
            assert sum(values.nbytes for values in found.values()) == bucket.nbytes == bucket.address["bytes"]
            self.taken |= found
        return UpdateResult(True, "", 0.0)


def test_a_draft_that_is_sent_is_what_the_cold_load_gets(tmp_path: Path) -> None:
    source, saved, exchange = tmp_path / "source", tmp_path / "saved", tmp_path / "exchange"
    for folder in (source, saved, exchange):
        folder.mkdir()
    values = {"a.weight": np.arange(64, dtype=np.float32).reshape(8, 8), "b.weight": np.ones(8, np.float16)}
    save_file(values, source / "model.safetensors")
    (source / "config.json").write_text("{}", encoding="utf-8")
    draft = DraftWeights(open_checkpoint(str(source)), is_own_model=True, exchange=exchange)
    draft.hold(())
    engine: Any = Taker()
    assert draft.send(engine, 100, "gloo") == UpdateResult(True, "", 0.0)
    assert engine.buckets == 2
    assert all(np.array_equal(engine.taken[name], values[name].astype(np.float32)) for name in values)
    draft.step(None, seed=1)
    draft.send(engine, 100, "gloo")
    assert not list(exchange.iterdir())  # the files of many syncs would fill the memory
    assert not np.array_equal(engine.taken["b.weight"], values["b.weight"])
    draft.save(saved)
    own = find_draft_folder(saved)
    assert own is not None
    written = load_file(Path(own) / "model.safetensors")
    assert all(np.array_equal(engine.taken[name], written[name]) for name in values)


def test_a_draft_is_rounded_as_torch_rounds(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    source, exchange = tmp_path / "source", tmp_path / "exchange"
    source.mkdir()
    exchange.mkdir()
    draw = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    save_file({"a.weight": draw}, source / "model.safetensors")
    draft = DraftWeights(open_checkpoint(str(source)), is_own_model=True, dtype="bfloat16", exchange=exchange)
    draft.hold(())
    draft.save(tmp_path)
    found = open_checkpoint(str(tmp_path / "draft"))
    tensor = found.tensors["a.weight"]
    raw = found.source.read("model.safetensors", found.shards["model.safetensors"].data_start, tensor.nbytes)
    assert tensor.dtype == "BF16"
    assert raw == torch.from_numpy(draw).bfloat16().view(torch.int16).numpy().tobytes()


def test_a_draft_is_sent_where_something_takes_it() -> None:
    with pytest.raises(CkptcheckError, match=r"--set send-draft=on: the engine has no draft model"):
        require_draft_update("vllm", find_transport("vllm", "gloo"), None)
    with pytest.raises(
        CkptcheckError, match=r"--set send-draft=on: reload does not bring vLLM the weights of a draft model"
    ):
        require_draft_update("vllm", find_transport("vllm", "reload"), "mtp")
    with pytest.raises(
        CkptcheckError, match=r"--set send-draft=on: disk does not bring SGLang the weights of a draft model"
    ):
        require_draft_update("sglang", find_transport("sglang", "disk"), "mtp")
    require_draft_update("vllm", find_transport("vllm", "gloo"), "mtp")
    require_draft_update("sglang", find_transport("sglang", None), "mtp")


def test_a_draft_is_mtp_or_a_model() -> None:
    assert parse_switches(["draft=mtp"]).draft == "mtp"
    folder = parse_switches([f"draft={CHECKPOINTS / 'tiny-llama'}"]).draft
    assert folder is not None
    assert Path(folder).is_absolute()
    with pytest.raises(
        CkptcheckError, match=r"draft is mtp or the folder of a draft model, and nowhere has no config\.json"
    ):
        parse_switches(["draft=nowhere"])
