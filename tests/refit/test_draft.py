"""What a trial does about layers for multi-token prediction that its trainer does not hold."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.errors import CkptcheckError
from ckptcheck.refit.draft import FILE, add_untrained, find_untrained
from ckptcheck.runtime.engines.engine_options import parse_switches
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
    add_untrained(saved, opened, names)
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


def test_a_draft_is_mtp_or_a_model() -> None:
    assert parse_switches(["draft=mtp"]).draft == "mtp"
    folder = parse_switches([f"draft={CHECKPOINTS / 'tiny-llama'}"]).draft
    assert folder is not None
    assert Path(folder).is_absolute()
    with pytest.raises(
        CkptcheckError, match=r"draft is mtp or the folder of a draft model, and nowhere has no config\.json"
    ):
        parse_switches(["draft=nowhere"])
