"""Converts a Megatron run to a Hugging Face checkpoint, which a trainer can load and an engine can start from.

It reads the run as `ckptcheck diff` does: it runs no pickle (Megatron's own loader runs the pickles of common.pt), and
works for any number of ranks that wrote the run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.compare.bridge.families import TABLES
from ckptcheck.compare.bridge.family_table import split_tensor
from ckptcheck.compare.bridge.model_dimensions import ModelDimensions
from ckptcheck.compare.bridge.tensor_layout import LayoutError, TensorLayout
from ckptcheck.compare.matching.megatron_side import build_megatron_side
from ckptcheck.compare.matching.tensor_files import TensorFiles, UnreadableFile
from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.live.runtime.worker.ckptcheck_worker.buckets import split_into_buckets

if TYPE_CHECKING:
    from ckptcheck.checkpoint.megatron.megatron import Megatron

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


def write_hf_checkpoint(run: Megatron, folder: Path, described: Mapping[str, Any] | None = None) -> Checkpoint:
    """Write a Megatron run to a folder as a Hugging Face checkpoint, without a tokenizer, and open it.

    described: the content of config.json, if the arguments of the run do not say enough. Raises CkptcheckError for a critic, for
    a model that its arguments do not describe, and for weights that are neither float32 nor bfloat16; EvidenceError if the run
    cannot be read.
    """
    side = build_megatron_side(run)
    if any("value_head" in name for name in side.stored):
        raise CkptcheckError(
            f"{run.target} is a critic, and no engine serves one: there is nothing to sync it into",
            hint="ckptcheck scan and ckptcheck diff check critics",
        )
    if side.malformed:
        name, reason = min(side.malformed.items())
        raise EvidenceError(f"{name} of {run.target} cannot be read: {reason}", hint="ckptcheck scan says more")
    if described is None:
        config, dimensions = hf_config_from_args(run.args, run.target), side.dimensions
    else:
        config, dimensions = (
            dict(described),
            ModelDimensions.from_config(Config("config.json", dict(described), readable=True)),
        )
    layouts = _hf_layouts(side.stored, config, run, dimensions)
    folder.mkdir(parents=True, exist_ok=True)
    names = [*layouts]
    buckets = split_into_buckets([layouts[name].nbytes for name in names], SHARD)
    index: dict[str, str] = {}
    with TensorFiles(side.source) as files:
        for number, bucket in enumerate(buckets):
            file = f"model-{number + 1:05d}-of-{len(buckets):05d}.safetensors"
            _write_safetensors(
                {names[position]: layouts[names[position]] for position in bucket}, files, folder / file, run.target
            )
            index.update(dict.fromkeys((names[position] for position in bucket), file))
    total = sum(layout.nbytes for layout in layouts.values())
    config["dtype"] = DTYPES[next(iter(layouts.values())).dtype]
    for name, content in (
        ("model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index}),
        ("config.json", config),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return open_checkpoint(str(folder))


def hf_config_from_args(args: Mapping[str, Any], target: str) -> dict[str, Any]:
    """Return the config.json for the arguments of Megatron-LM. Raises CkptcheckError if they do not say enough.

    The family follows from the parts of the layers: experts, norms on queries and keys, biases on them.
    """
    required = ("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size")
    if missing_names := [name for name in required if type(args.get(name)) is not int]:
        raise CkptcheckError(
            f"the arguments in {target} do not say {missing_names[0]}, so no model can be built from it",
            hint="--set hf-config=DIR takes the model's config.json from there",
        )
    if args.get("normalization", "RMSNorm") != "RMSNorm" or not args.get("swiglu", True) or args.get("add_bias_linear"):
        raise CkptcheckError(f"{target} is no Llama or Qwen: they have RMSNorm, SwiGLU and no biases in linear layers")
    experts, has_qk_norms = args.get("num_experts"), bool(args.get("qk_layernorm"))
    if experts and not has_qk_norms:
        raise CkptcheckError(
            f"{target} has experts and no norms on queries and keys, and ckptcheck knows no such model family"
        )
    family = "qwen3_moe" if experts else "qwen3" if has_qk_norms else "qwen2" if args.get("add_qkv_bias") else "llama"
    heads = args["num_attention_heads"]
    is_grouped = args.get("group_query_attention", True) and args.get("num_query_groups")
    config = {
        "architectures": [CLASSES[family]],
        "model_type": family,
        "num_hidden_layers": args["num_layers"],
        "hidden_size": args["hidden_size"],
        "intermediate_size": args["ffn_hidden_size"],
        "num_attention_heads": heads,
        "num_key_value_heads": args["num_query_groups"] if is_grouped else heads,
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


def _hf_layouts(
    stored: Mapping[str, TensorLayout], config: dict[str, Any], run: Megatron, dimensions: ModelDimensions
) -> dict[str, TensorLayout]:
    """Return Hugging Face name → layout of the tensor in the run, without the rows that pad the vocabulary."""
    table, is_tied = TABLES.get(config.get("model_type", "")), bool(config.get("tie_word_embeddings"))
    if table is None:
        raise CkptcheckError(
            f"Megatron's names for a model of the type {config.get('model_type')} are not known here",
            hint=f"ckptcheck knows {', '.join(sorted(TABLES))}",
        )
    layouts: dict[str, TensorLayout] = {}
    for name, layout in stored.items():
        if is_tied and name == "output_layer.weight":
            continue
        try:
            converted = split_tensor(table.megatron, name, layout, dimensions)
        except LayoutError as error:
            raise CkptcheckError(f"{name} of {run.target} does not fit its config: {error}") from error
        if converted is None:
            raise CkptcheckError(f"{run.target} has {name}, for which {config['model_type']} has no name")
        layouts |= converted
    rows = config.get("vocab_size")
    for name in VOCABULARY:
        if name in layouts and rows:
            layouts[name] = layouts[name].cut(0, 0, min(rows, layouts[name].shape[0]))
    if other_dtypes := [name for name, layout in layouts.items() if layout.dtype not in DTYPES]:
        raise CkptcheckError(
            f"{other_dtypes[0]} of {run.target} is {layouts[other_dtypes[0]].dtype}, and a trainer holds float32 or bfloat16"
        )
    if not layouts:
        raise CkptcheckError(f"{run.target} holds no weights")
    return layouts


def _write_safetensors(layouts: Mapping[str, TensorLayout], files: TensorFiles, path: Path, target: str) -> None:
    """Write a safetensors file with one tensor in memory at a time.

    The safetensors library needs all tensors of a file at once, and does not take bfloat16 from numpy.
    """
    ends = list(accumulate(layout.nbytes for layout in layouts.values()))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for (name, layout), end in zip(layouts.items(), ends, strict=True):
        header[name] = {"dtype": layout.dtype, "shape": list(layout.shape), "data_offsets": [end - layout.nbytes, end]}
    header_bytes = json.dumps(header, separators=(",", ":")).encode()
    header_bytes += b" " * (-len(header_bytes) % 8)
    try:
        with path.open("wb") as file:
            file.write(len(header_bytes).to_bytes(8, "little") + header_bytes)
            for layout in layouts.values():
                file.write(files.read_tensor(layout).tobytes())
    except UnreadableFile as error:
        raise EvidenceError(f"cannot read {error.file} of {target}: {error.reason}") from error
    except OSError as error:
        raise CkptcheckError(f"cannot write {path}: {error.strerror or error}") from error
