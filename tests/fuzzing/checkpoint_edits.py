"""Edits what a checkpoint says of itself, in its config, its index or a header, and leaves the file well-formed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

STRINGS = (
    "",
    "x",
    "silu",
    "gelu",
    "relu",
    "bfloat16",
    "float32",
    "float16",
    "default",
    "linear",
    "llama3",
    "yarn",
    "eager",
    "sdpa",
    "LlamaForCausalLM",
    "qwen2",
)
ADDED: dict[str, Any] = {
    "attention_bias": True,
    "mlp_bias": True,
    "qkv_bias": True,
    "use_bias": True,
    "bias": True,
    "tie_word_embeddings": True,
    "sliding_window": 4,
    "use_sliding_window": True,
    "head_dim": 8,
    "num_key_value_heads": 1,
    "num_hidden_layers": 3,
    "hidden_size": 48,
    "hidden_act": "x",
    "rope_theta": 500000.0,
    "partial_rotary_factor": 0.5,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "rope_parameters": {"rope_type": "yarn", "factor": 4.0},
    "pad_token_id": 10**6,
    "pruned_heads": {"0": [0]},
    "num_labels": 3,
    "id2label": {"0": "no", "1": "yes", "2": "perhaps"},
    "quantization_config": {"quant_method": "fp8"},
    "dtype": "float64",
    "torch_dtype": "auto",
    "layer_types": ["full_attention"],
    "mlp_layer_types": ["dense"],
    "use_cache": False,
    "is_decoder": False,
    "is_encoder_decoder": True,
    "add_cross_attention": True,
    "chunk_size_feed_forward": 2,
    "text_config": {"hidden_size": 16},
    "first_k_dense_replace": 2,
    "mlp_only_layers": [0],
    "num_experts": 2,
    "num_experts_per_tok": 10**6,
    "attn_implementation": "x",
    "problem_type": "x",
    "tokenizer_class": "LlamaTokenizer",
}
"""Keys that a config may get from another model's."""
ARCHITECTURES = (
    ("LlamaForCausalLM", "llama"),
    ("MistralForCausalLM", "mistral"),
    ("Qwen2ForCausalLM", "qwen2"),
    ("Qwen3MoeForCausalLM", "qwen3_moe"),
    ("DeepseekV3ForCausalLM", "deepseek_v3"),
    ("GPT2LMHeadModel", "gpt2"),
    ("MambaForCausalLM", "mamba"),
    ("BertForMaskedLM", "bert"),
    ("LlamaForSequenceClassification", "llama"),
    ("LlamaModel", "llama"),
    ("XForCausalLM", "x"),
)
"""Names that another model's config has."""


def edit_files(folder: Path, dice: random.Random) -> str:
    """Edit one file in one place or two, and say what was edited."""
    indexes = sorted(folder.glob("*.index.json"))
    generation = folder / "generation_config.json"
    kinds = ["config"] * 8 + ["header"] * 4 + ["index"] * (3 if indexes else 0)
    kind = dice.choice(kinds + ["generation"] * generation.exists())
    if kind in ("config", "generation"):
        path = generation if kind == "generation" else folder / "config.json"
        config = json.loads(path.read_text())
        said = [edit_config(config, dice) for _ in range(dice.choice([1, 1, 1, 2]))]
        path.write_text(json.dumps(config))
    elif kind == "index":
        document = json.loads(indexes[0].read_text())
        said = [edit_index(document, dice)]
        indexes[0].write_text(json.dumps(document))
    else:
        said = [edit_header_of(dice.choice(sorted(folder.glob("*.safetensors"))), dice)]
    return f"{kind}: " + " and ".join(said)


def edit_header_of(shard: Path, dice: random.Random) -> str:
    """Edit the header of a file of safetensors, and leave its values as they are."""
    raw = shard.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    said = edit_header(header, dice)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    shard.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
    return said


def edit_config(config: dict[str, Any], dice: random.Random) -> str:
    """Remove, empty, add, change, exchange or rename keys of a config, at its top or in what it nests."""
    inner = [(path, part) for path, part in iter_parts(config) if part]
    path, place = dice.choice(inner) if inner and dice.random() < 0.35 else ("", config)
    key = dice.choice(sorted(place))
    way = dice.choice(
        ["remove", "null", "add", *["change"] * 4, "exchange", "retype", "retype", "architecture", "rename"]
    )
    if way == "remove":
        del place[key]
    elif way == "null":
        place[key] = None
    elif way == "add":
        key = dice.choice(sorted(ADDED))
        place[key] = ADDED[key]
    elif way == "exchange":
        other = dice.choice(sorted(place))
        place[key], place[other] = place[other], place[key]
        return f"exchange {path}{key} and {other}"
    elif way == "retype":
        place[key] = dice.choice(RETYPES)(place[key])
    elif way == "rename":
        place[f"{key}_"] = place.pop(key)
        return f"rename {path}{key}"
    elif way == "architecture":
        key = dice.choice(["architectures", "model_type"])
        architecture, model_type = dice.choice(ARCHITECTURES)
        path, config[key] = "", [architecture] if key == "architectures" else model_type
        place = config
    else:
        place[key] = change_value(place[key], dice)
    return f"{way} {path}{key}" + ("" if way in ("remove", "null") else f" {json.dumps(place.get(key))[:60]}")


def iter_parts(config: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects within an object, with their JSON path and a dot."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield f"{path}{key}.", value
            yield from iter_parts(value, f"{path}{key}.")


def to_float(value: Any) -> Any:
    """Return a whole number with a decimal point, as a careless conversion leaves it, and a number with one as whole."""
    if isinstance(value, float):
        return int(value)
    return float(value) if type(value) is int else value


RETYPES: tuple[Callable[[Any], Any], ...] = (
    str,
    to_float,
    lambda value: [value],
    lambda value: {"value": value},
    lambda value: True,
)


def change_value(value: Any, dice: random.Random) -> Any:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return dice.choice([0, 1, -1, value + 1, value - 1, value * 2, value // 2, value + 8, 10**6, 2**40])
    if isinstance(value, float):
        return dice.choice([0.0, -value, value * 10, value / 10, 1e30, 1.0])
    if isinstance(value, str):
        return dice.choice(STRINGS)
    if isinstance(value, list):
        return dice.choice(
            [[], value[:-1], [*value, *value[-1:]], value[::-1], ["x", *value[1:]], value[:1] * len(value)]
        )
    return dice.choice([None, {}, 0, "x", 1])


def edit_index(document: dict[str, Any], dice: random.Random) -> str:
    """Remove, add or redirect an entry of an index, or change what it says of all."""
    weight_map = document["weight_map"]
    name = dice.choice(sorted(weight_map))
    files = sorted(set(weight_map.values()))
    way = dice.choice(["remove", "add", "redirect", "rename", "lose shard", "total"])
    if way == "remove":
        del weight_map[name]
    elif way == "add":
        weight_map[f"{name}.more"] = weight_map[name]
    elif way == "redirect":
        weight_map[name] = dice.choice([*sorted({*files} - {weight_map[name]}), "model.safetensors"])
    elif way == "rename":
        weight_map[f"x.{name}"] = weight_map.pop(name)
    elif way == "lose shard":
        lost = dice.choice(files)
        document["weight_map"] = {name: file for name, file in weight_map.items() if file != lost}
        return f"lose {lost}"
    else:
        document["metadata"] = dice.choice([None, {}, {"total_size": 1}, {"total_size": "x"}, "x"])
        return f"metadata {json.dumps(document['metadata'])}"
    return f"{way} {name}"


def edit_header(header: dict[str, Any], dice: random.Random) -> str:
    """Rename, remove, repeat, exchange or describe otherwise an entry of a header."""
    names = sorted(name for name in header if name != "__metadata__")
    name, other = dice.choice(names), dice.choice(names)
    entry = header[name]
    module, _, last = name.rpartition(".")
    ways: dict[str, Callable[[], Any]] = {
        "rename": lambda: header.__setitem__(
            dice.choice(
                [
                    f"{name}s",
                    name.upper(),
                    f"{module}.{'bias' if last == 'weight' else 'weight'}",
                    f"model.{name}",
                    f"{module}_.{last}",
                    name.partition(".")[2] or f"x.{name}",
                    f"module.{name}",
                ]
            ),
            header.pop(name),
        ),
        "prefix": lambda: header.update({f"module.{each}": header.pop(each) for each in names}),
        "remove": lambda: header.pop(name),
        "remove module": lambda: [header.pop(each) for each in names if each.startswith(f"{module}.")],
        "exchange": lambda: header.update({name: header[other], other: header[name]}),
        "dtype": lambda: entry.update(
            dtype=dice.choice(["F32", "F16", "BF16", "I32", "U32", "F64", "I16", "F8_E4M3", "U8"])
        ),
        "shape": lambda: entry.update(
            shape=dice.choice(
                [entry["shape"][::-1], [1, *entry["shape"]], [*entry["shape"], 1], [], [size_of(entry["shape"])]]
            )
        ),
        "offsets": lambda: entry.update(data_offsets=list(header[other]["data_offsets"])),
    }
    way = dice.choice(sorted(ways))
    ways[way]()
    return f"{way} {name}" + (f" and {other}" if way in ("exchange", "offsets") else "")


def size_of(shape: list[int]) -> int:
    """Return the number of elements of a shape."""
    size = 1
    for each in shape:
        size *= each
    return size
