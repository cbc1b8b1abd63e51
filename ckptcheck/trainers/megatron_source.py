"""A Megatron run in Hugging Face form, so that a trainer can load it and an engine can start from it.

It is read as `ckptcheck diff` reads it: no pickle is run (Megatron's own loader runs those of common.pt), and it does not
matter by how many ranks it was written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.bridge.area import Area, LayoutError
from ckptcheck.bridge.families import TABLES
from ckptcheck.bridge.geometry import Geometry
from ckptcheck.bridge.table import parts
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.comparison.megatron_side import megatron_side
from ckptcheck.comparison.reading import Files, Unreadable
from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.host.far.ckptcheck_far.buckets import fill

if TYPE_CHECKING:
    from ckptcheck.checkpoint.megatron.run import Megatron

SHARD = 1 << 30
"""Bytes of one file."""
DTYPES = {"F32": "float32", "BF16": "bfloat16"}
CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
VOCABULARY = ("model.embed_tokens.weight", "lm_head.weight")


def hugging_face_form(run: Megatron, folder: Path, described: Mapping[str, Any] | None = None) -> Checkpoint:
    """Write a Megatron run to a folder as a Hugging Face checkpoint, without a tokenizer, and open it.

    described: what config.json is to say, where the arguments of the run say too little. Raises CkptcheckError for a critic, for a
    model whose arguments do not say what it is, and for weights that are neither float32 nor bfloat16; EvidenceError where it
    cannot be read.
    """
    side = megatron_side(run)
    if any("value_head" in name for name in side.stored):
        raise CkptcheckError(
            f"{run.target} is a critic, and no engine serves one: there is nothing to sync it into",
            hint="ckptcheck scan and ckptcheck diff check critics",
        )
    if side.strange:
        name, why = min(side.strange.items())
        raise EvidenceError(f"{name} of {run.target} cannot be read: {why}", hint="ckptcheck scan says more")
    if described is None:
        config, geometry = config_of(run.args, run.target), side.geometry
    else:
        config, geometry = dict(described), Geometry.of_config(Config("config.json", dict(described), readable=True))
    areas = _areas(side.stored, config, run, geometry)
    folder.mkdir(parents=True, exist_ok=True)
    names = [*areas]
    buckets = fill([areas[name].nbytes for name in names], SHARD)
    index: dict[str, str] = {}
    with Files(side.source) as files:
        for number, bucket in enumerate(buckets):
            file = f"model-{number + 1:05d}-of-{len(buckets):05d}.safetensors"
            _write({names[which]: areas[names[which]] for which in bucket}, files, folder / file, run.target)
            index.update(dict.fromkeys((names[which] for which in bucket), file))
    total = sum(area.nbytes for area in areas.values())
    config["dtype"] = DTYPES[next(iter(areas.values())).dtype]
    for name, content in (
        ("model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index}),
        ("config.json", config),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return open_checkpoint(str(folder))


def config_of(args: Mapping[str, Any], target: str) -> dict[str, Any]:
    """Return the config.json that the arguments of Megatron-LM amount to. Raises CkptcheckError where they say too little.

    The family is told by what the layers have: experts, norms on queries and keys, biases on them.
    """
    needed = ("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size")
    if lacking := [name for name in needed if type(args.get(name)) is not int]:
        raise CkptcheckError(
            f"the arguments in {target} do not say {lacking[0]}, so no model can be built from it",
            hint="--hf-config DIR takes the model's config.json from there",
        )
    if args.get("normalization", "RMSNorm") != "RMSNorm" or not args.get("swiglu", True) or args.get("add_bias_linear"):
        raise CkptcheckError(f"{target} is no Llama or Qwen: they have RMSNorm, SwiGLU and no biases in linear layers")
    experts, norms = args.get("num_experts"), bool(args.get("qk_layernorm"))
    if experts and not norms:
        raise CkptcheckError(
            f"{target} has experts and no norms on queries and keys, and of such a family none is known here"
        )
    family = "qwen3_moe" if experts else "qwen3" if norms else "qwen2" if args.get("add_qkv_bias") else "llama"
    heads = args["num_attention_heads"]
    grouped = args.get("group_query_attention", True) and args.get("num_query_groups")
    config = {
        "architectures": [CLASSES[family]],
        "model_type": family,
        "num_hidden_layers": args["num_layers"],
        "hidden_size": args["hidden_size"],
        "intermediate_size": args["ffn_hidden_size"],
        "num_attention_heads": heads,
        "num_key_value_heads": args["num_query_groups"] if grouped else heads,
        "head_dim": args.get("kv_channels") or args["hidden_size"] // heads,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": args.get("norm_epsilon", 1e-5),
        "max_position_embeddings": args.get("max_position_embeddings") or args.get("seq_length") or 2048,
        "rope_parameters": {"rope_type": "default", "rope_theta": float(args.get("rotary_base", 10000))},
        "tie_word_embeddings": not args.get("untie_embeddings_and_output_weights", False),
        "vocab_size": args.get("vocab_size") or args.get("padded_vocab_size"),
    }
    if experts:
        config |= {
            "num_experts": experts,
            "num_experts_per_tok": args.get("moe_router_topk", 2),
            "moe_intermediate_size": args.get("moe_ffn_hidden_size") or args["ffn_hidden_size"],
            "norm_topk_prob": not args.get("moe_router_pre_softmax", False),
        }
        frequency = args.get("moe_layer_freq", 1)
        if isinstance(frequency, list):
            config["mlp_only_layers"] = [layer for layer, sparse in enumerate(frequency) if not sparse]
        elif frequency != 1:
            config["mlp_only_layers"] = [layer for layer in range(args["num_layers"]) if layer % frequency]
    return config


def _areas(stored: Mapping[str, Area], config: dict[str, Any], run: Megatron, geometry: Geometry) -> dict[str, Area]:
    """Return Hugging Face name → where it lies, the rows that pad the vocabulary cut off."""
    table, tied = TABLES.get(config.get("model_type", "")), bool(config.get("tie_word_embeddings"))
    if table is None:
        raise CkptcheckError(
            f"Megatron's names for a model of the type {config.get('model_type')} are not known here",
            hint=f"known are {', '.join(sorted(TABLES))}",
        )
    areas: dict[str, Area] = {}
    for name, area in stored.items():
        if tied and name == "output_layer.weight":
            continue
        try:
            found = parts(table.megatron, name, area, geometry)
        except LayoutError as error:
            raise CkptcheckError(f"{name} of {run.target} does not fit its config: {error}") from error
        if found is None:
            raise CkptcheckError(f"{run.target} has {name}, for which {config['model_type']} has no name")
        areas |= found
    rows = config.get("vocab_size")
    for name in VOCABULARY:
        if name in areas and rows:
            areas[name] = areas[name].cut(0, 0, min(rows, areas[name].shape[0]))
    if odd := [name for name, area in areas.items() if area.dtype not in DTYPES]:
        raise CkptcheckError(
            f"{odd[0]} of {run.target} is {areas[odd[0]].dtype}, and a trainer holds float32 or bfloat16"
        )
    if not areas:
        raise CkptcheckError(f"{run.target} holds no weights")
    return areas


def _write(areas: Mapping[str, Area], files: Files, path: Path, target: str) -> None:
    """Write a safetensors file, one tensor in memory at a time (the library wants all of a file, and no bfloat16 of numpy)."""
    ends = list(accumulate(area.nbytes for area in areas.values()))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for (name, area), end in zip(areas.items(), ends, strict=True):
        header[name] = {"dtype": area.dtype, "shape": list(area.shape), "data_offsets": [end - area.nbytes, end]}
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    try:
        with path.open("wb") as file:
            file.write(len(raw).to_bytes(8, "little") + raw)
            for area in areas.values():
                file.write(files.whole(area).tobytes())
    except Unreadable as error:
        raise EvidenceError(f"cannot read {error.file} of {target}: {error.reason}") from error
    except OSError as error:
        raise CkptcheckError(f"cannot write {path}: {error.strerror or error}") from error
