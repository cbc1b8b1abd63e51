"""Joined projections and plain ones are one set of weights: in files, in a trainer, in a job, and in an engine's ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ckptcheck import identity, manifest, verify
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.weights import is_weight
from ckptcheck.checkpoint.open import open_checkpoint, open_target
from ckptcheck.errors import EvidenceError
from ckptcheck.live.refit.weight_identity import (
    identify_engine,
    identify_trainer,
    list_weight_parts,
    split_joined_weights,
)
from ckptcheck.live.runtime.engines import codec
from ckptcheck.live.runtime.engines.base import TensorDigest
from ckptcheck.live.runtime.trainers.base import ShardDigest, Weight
from ckptcheck.live.runtime.worker.ckptcheck_worker.inventory import sum_parts
from ckptcheck.live.runtime.worker.ckptcheck_worker.shard_digest import sum_pieces
from ckptcheck.live.runtime.worker.ckptcheck_worker.shard_digest import sum_shard as sum_torch
from ckptcheck.watch.set_identity import SetIdentity
from tests.factories.identities import list_differences
from tests.paths import ROOT

torch = pytest.importorskip("torch", reason="pip install torch")
QKV, GATE_UP = "self_attn.qkv_proj.weight", "mlp.gate_up_proj.weight"
ROWS = {"q": (0, 32), "k": (32, 48), "v": (48, 64)}
"""Of the joined projection of `phi`: four heads of 8 over two key-value heads."""


@pytest.fixture(scope="module")
def phi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Phi-3 as transformers saves it."""
    transformers = pytest.importorskip("transformers", reason="pip install 'ckptcheck[fixtures]'")
    torch.manual_seed(0)
    config = transformers.Phi3Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("phi") / "joined"
    transformers.Phi3ForCausalLM(config).float().save_pretrained(folder)
    return Path(folder)


def split(joined: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    plain = {}
    for name, value in joined.items():
        if name.endswith(QKV):
            at = name.removesuffix("qkv_proj.weight")
            plain |= {f"{at}{part}_proj.weight": value[begin:end].copy() for part, (begin, end) in ROWS.items()}
        elif name.endswith(GATE_UP):
            at, half = name.removesuffix("gate_up_proj.weight"), len(value) // 2
            plain |= {f"{at}gate_proj.weight": value[:half].copy(), f"{at}up_proj.weight": value[half:].copy()}
        else:
            plain[name] = value
    return plain


def save(tensors: dict[str, np.ndarray], config: dict[str, Any], folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def read(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    return load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("family", ["phi3", "llama", "mistral"])
def test_joined_and_plain_files_have_one_name(family: str, phi: Path, tmp_path: Path) -> None:
    tensors, config = read(phi)
    plain = save(split(tensors), {**config, "model_type": family, "architectures": []}, tmp_path / "plain")
    joined = identity(phi)
    assert list_differences(joined, identity(plain)) == []
    assert joined.identity == identity(plain).identity
    assert "model.layers.1.self_attn.k_proj.weight" in joined.tensors
    (found,) = verify(plain, manifest(phi)).findings
    assert (found.code, found.severity) == ("MAN005", "info")


def test_what_differs_in_a_joined_tensor_is_the_part(phi: Path, tmp_path: Path) -> None:
    tensors, config = read(phi)
    name = "model.layers.1.self_attn.qkv_proj.weight"
    tensors[name][40, 3] += 1
    changed = save(tensors, config, tmp_path / "changed")
    assert list_differences(identity(phi), identity(changed)) == ["model.layers.1.self_attn.k_proj.weight"]
    # the same numbers in the order of Megatron: for each key-value head its queries, its key, its value
    rows = tensors[name].reshape(8, 8, 32)
    tensors[name] = rows[[0, 1, 4, 6, 2, 3, 5, 7]].reshape(64, 32)
    assert len(list_differences(identity(phi), identity(save(tensors, config, tmp_path / "interleaved")))) == 3


def test_a_trainer_sums_the_parts_of_what_it_exports_joined(phi: Path) -> None:
    tensors, source = read(phi)[0], open_checkpoint(str(phi))
    weights = [Weight(name, value.shape, "F32") for name, value in tensors.items()]
    pieces = codec.encode_pieces(split_joined_weights(weights, source).pieces)
    assert pieces.keys() == {name for name in tensors if name.endswith((QKV, GATE_UP))}
    shards = []
    for name, value in tensors.items():
        held = torch.from_numpy(value)
        apart = tuple(codec.decode_sums(each.tolist()) for each in sum_pieces(held, pieces.get(name, ())))
        sums = codec.decode_sums(sum_torch(held).tolist())
        shards.append(ShardDigest(name, 0, 0, len(value), 0, name, "", "", sums, apart))
    assert identify_trainer("trainer", shards, weights, source).identity == identity(phi).identity
    deaf = [ShardDigest(each.name, 0, 0, each.end, 0, each.own, "", "", each.sums) for each in shards]
    with pytest.raises(EvidenceError, match=r"joins several tensors, and the trainer does not sum them apart"):
        identify_trainer("trainer", deaf, weights, source)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_job_that_sends_joined_tensors_sends_the_set_of_its_checkpoint(kind: str, phi: Path) -> None:
    tensors, source = read(phi)[0], open_checkpoint(str(phi))
    for sent in (tensors, split(tensors)):
        found = SetIdentity()
        for name, value in sent.items():
            # of every second column of a larger one: what a job sends need not be contiguous
            strided = np.repeat(value, 2, -1)[..., ::2]
            found.add(name, torch.from_numpy(strided) if kind == "torch" else strided, source)
        assert found.compute(source) == identity(phi).identity
    # one that cannot be split leaves the set without a name
    found.add("model.layers.0.mlp.down_proj.weight", tensors["model.norm.weight"], source)
    with pytest.raises(EvidenceError, match=r"qkv_proj\.weight cannot be split"):
        found.add("model.layers.0.self_attn.qkv_proj.weight", tensors["model.norm.weight"], source)
    assert found.compute(source) is None


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("exports_joined", [True, False])
def test_ranks_of_an_engine_hold_a_share_of_each_part(ranks: int, exports_joined: bool, phi: Path) -> None:
    """Half of a joined projection on a rank is half of the queries, half of the keys and half of the values."""
    joined, source = read(phi)[0], open_checkpoint(str(phi))
    plain = split(joined)
    sent = joined if exports_joined else plain
    weights = [Weight(name, value.shape, "F32") for name, value in sent.items()]
    held: dict[tuple[int, str], np.ndarray] = {}
    for rank in range(ranks):
        for name, value in joined.items():
            axis = 1 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0
            sources = [value]
            if name.endswith((QKV, GATE_UP)):
                parts = ("q", "k", "v") if name.endswith(QKV) else ("gate", "up")
                at = name.rpartition(".weight")[0].rpartition(".")[0]
                sources = [plain[f"{at}.{part}_proj.weight"] for part in parts]
            whole = name.endswith("norm.weight")
            held[rank, name] = np.concatenate(
                [each if whole else np.split(each, ranks, axis)[rank] for each in sources]
            )
    digests = {
        key: TensorDigest(key[1], key[0], "parameter", "F32", value.shape, value.nbytes, "", "")
        for key, value in held.items()
    }
    parts = list_weight_parts(digests, weights, source, ranks)
    by_rank = []
    for rank, asked in enumerate(codec.encode_parts(parts, ranks)):
        own = [(name, "parameter", torch.from_numpy(value), "") for (at, name), value in held.items() if at == rank]
        by_rank.append(sum_parts(own, asked))
    named = identify_engine("engine", parts, codec.decode_part_sums(parts, by_rank), weights, source)
    assert list_differences(identity(phi), named) == []


def test_an_engine_that_may_rearrange_joined_experts_has_no_identity(tmp_path: Path) -> None:
    """Gates and ups that alternate: which way round an engine stores them is its own affair."""
    config = {"model_type": "gpt_oss", "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 8}
    source = open_checkpoint(str(save({"model.norm.weight": np.ones(8, np.float32)}, config, tmp_path / "oss")))
    weights = [Weight("model.layers.0.mlp.experts.gate_up_proj", (2, 8, 12), "F32")]
    plain = split_joined_weights(weights, source)
    assert [each.name for each in plain.weights] == [
        f"model.layers.0.mlp.experts.{number}.{part}_proj.weight" for number in (0, 1) for part in ("gate", "up")
    ]
    with pytest.raises(EvidenceError, match="how the engine arranges them is not known"):
        list_weight_parts({}, weights, source, 1)
    values = torch.arange(192, dtype=torch.float32).view(2, 8, 12)
    pieces = plain.pieces[weights[0].name]
    sums = sum_pieces(values, codec.encode_pieces(plain.pieces)[weights[0].name])
    for piece, each in zip(pieces, sums, strict=True):
        number, part = int(piece.tensor.split(".")[5]), int("up_proj" in piece.tensor)
        assert torch.equal(each, sum_torch(values[number, :, part::2].T.contiguous()))


@pytest.mark.parametrize("run", ["tp2-pp2", "legacy-tp2"])
def test_a_megatron_run_and_joined_projections_have_one_name(run: str, tmp_path: Path) -> None:
    """For each key-value head Megatron has its queries, its key and its value; Phi-3 has all queries, all keys, all values."""
    whole = open_target(str(ROOT / "fixtures/megatron/dense"))
    assert isinstance(whole, Megatron)
    heads, groups, width = 4, 2, 8
    names = {
        "embedding.word_embeddings.weight": "model.embed_tokens.weight", "output_layer.weight": "lm_head.weight",
        "decoder.final_layernorm.weight": "model.norm.weight",
    }  # fmt: skip
    inner = {
        "self_attention.linear_proj.weight": "self_attn.o_proj.weight", "mlp.linear_fc2.weight": "mlp.down_proj.weight",
        "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight", "mlp.linear_fc1.weight": GATE_UP,
        "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight", "self_attention.linear_qkv.weight": QKV,
        "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
        "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
    }  # fmt: skip
    tensors: dict[str, np.ndarray] = {}
    for key, tensor in whole.tensors.items():
        if not is_weight(key) or key.endswith("_extra_state"):
            continue
        value = np.ascontiguousarray(whole.read(tensor)).view(np.float32).reshape(tensor.shape)
        if key in names:
            tensors[names[key]] = value
            continue
        for layer in range(tensor.shape[0]):
            part, own = value[layer], inner[key.removeprefix("decoder.layers.")]
            if own == QKV:
                grouped = part.reshape(groups, heads // groups + 2, width, -1)
                parts = (grouped[:, : heads // groups], grouped[:, -2:-1], grouped[:, -1:])
                part = np.concatenate([each.reshape(-1, part.shape[-1]) for each in parts])
            tensors[f"model.layers.{layer}.{own}"] = np.ascontiguousarray(part)
    vocabulary = len(tensors["model.embed_tokens.weight"])
    config = {
        "model_type": "qwen3", "num_attention_heads": heads, "num_key_value_heads": groups, "head_dim": width,
        "vocab_size": vocabulary, "tie_word_embeddings": False,
    }  # fmt: skip
    joined = save(tensors, config, tmp_path / "joined")
    ours, theirs = identity(ROOT / "fixtures/megatron" / run, like=joined), identity(joined)
    assert list_differences(ours, theirs) == []
    assert ours.tensors["model.layers.1.self_attn.k_proj.weight"].shape == (groups * width, 16)
