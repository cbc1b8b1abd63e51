"""Edits a sound checkpoint, and holds each verdict `clean` against what transformers makes of the edited files.

Run ``python -m tests.fuzzing.false_clean --seed 1 --count 2000`` (or ``make false-clean``). An edit changes what a config, an index
or a header *says* and leaves it well-formed. What a scan then calls clean (not even a warning) is loaded: it is a false clean
where transformers refuses it, fills weights with random numbers, or leaves stored ones out. Where only the logits differ, the
edited value is one that a model may have (another rotary base): no scan can know it, so that the keys are listed, and not counted.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.paths import FIXTURES

MODELS = ("tiny-llama", "tiny-llama-sharded", "tiny-qwen2-tied", "tiny-qwen3-moe")
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
    "tie_word_embeddings": True,
    "sliding_window": 4,
    "use_sliding_window": True,
    "head_dim": 8,
    "num_key_value_heads": 1,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "rope_parameters": {"rope_type": "yarn", "factor": 4.0},
    "pad_token_id": 10**6,
    "pruned_heads": {"0": [0]},
    "num_labels": 3,
    "quantization_config": {"quant_method": "fp8"},
    "dtype": "float64",
    "torch_dtype": "auto",
    "layer_types": ["full_attention"],
    "use_cache": False,
    "is_encoder_decoder": True,
    "add_cross_attention": True,
    "chunk_size_feed_forward": 2,
}
"""Keys that a config may get from another model's."""


@dataclass(frozen=True)
class Loaded:
    """What transformers made of a checkpoint."""

    refused: str
    """Why it did not load; "" where it did."""
    invented: tuple[str, ...] = ()
    """Weights that it filled with random numbers."""
    unused: tuple[str, ...] = ()
    """Stored weights that the model has no place for."""
    logits: Any = None


def main() -> int:
    """Edit, scan, load; print what was called clean and is not. Returns the number of false cleans, at most 100."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--count", type=int, default=500, help="how many seeds")
    parser.add_argument(
        "--model", type=Path, help="a checkpoint that transformers loads; else the small ones in fixtures/"
    )
    options = parser.parse_args()
    outcomes: Counter[str] = Counter()
    keys: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as work:
        for seed in range(options.seed, options.seed + options.count):
            edit, outcome = check_edit(seed, Path(work) / "edited", options.model)
            kind = outcome.partition(":")[0]
            outcomes[kind] += 1
            if kind == "false clean":
                print(f"--seed {seed}: {edit}\n  {outcome}", flush=True)
            elif kind == "another model":
                keys[edit.partition(" of ")[0]] += 1
    print("; ".join(f"{number} {kind}" for kind, number in outcomes.most_common()))
    print(
        "what changes logits and may be meant:", ", ".join(f"{key} ({number})" for key, number in keys.most_common(40))
    )
    return min(outcomes["false clean"], 100)


def check_edit(seed: int, folder: Path, model: Path | None = None) -> tuple[str, str]:
    """Return what was edited, and ``noticed``, ``same``, ``another model``, or ``false clean: why``."""
    import ckptcheck

    dice = random.Random(seed)
    base = model or FIXTURES / "checkpoints" / dice.choice(MODELS)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base, folder)
    edit = f"{edit_files(folder, dice)} of {base.name}"
    report = ckptcheck.scan(folder)
    baseline = describe_findings(base)
    if any((one.code, one.severity) not in baseline for one in report.findings if one.severity != "info"):
        return edit, "noticed"
    before, after = load_sound(base), load_model(folder)
    if after.refused:
        return edit, f"false clean: transformers refuses it: {after.refused[:200]}"
    if set(after.invented) - set(before.invented):
        return edit, f"false clean: transformers invents {', '.join(after.invented[:5])}"
    if set(after.unused) - set(before.unused):
        return edit, f"false clean: transformers leaves out {', '.join(after.unused[:5])}"
    if before.logits.shape != after.logits.shape or not bool((before.logits == after.logits).all()):
        return edit, "another model"
    return edit, "same"


@cache
def describe_findings(base: Path) -> frozenset[tuple[str, str]]:
    """Return the codes and severities of the findings of a sound checkpoint."""
    import ckptcheck

    return frozenset((one.code, one.severity) for one in ckptcheck.scan(base).findings)


@cache
def load_sound(base: Path) -> Loaded:
    """Return what transformers makes of the checkpoint before it is edited."""
    loaded = load_model(base)
    assert not loaded.refused, f"{base} is not sound: {loaded.refused}"
    return loaded


def load_model(folder: Path) -> Loaded:
    """Load a checkpoint as transformers does, and score ten tokens."""
    import torch
    import transformers

    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, output_loading_info=True, dtype=torch.float32
        )
        model.eval()
        model.set_experts_implementation("eager")  # the grouped kernel wants rows of 16 bytes
        with torch.no_grad():
            logits = model(torch.arange(1, 11)[None]).logits
    except Exception as error:  # whatever it is, a user gets no model
        return Loaded(f"{type(error).__name__}: {error}".replace("\n", " "))
    mismatched = [str(each[0]) for each in info["mismatched_keys"]]
    return Loaded(
        "", tuple(sorted([*info["missing_keys"], *mismatched])), tuple(sorted(info["unexpected_keys"])), logits
    )


def edit_files(folder: Path, dice: random.Random) -> str:
    """Edit one file in one place or two, and say what was edited."""
    indexes = sorted(folder.glob("*.index.json"))
    kind = dice.choice(["config"] * 6 + ["header"] * 4 + ["index"] * (3 if indexes else 0))
    if kind == "config":
        path = folder / "config.json"
        config = json.loads(path.read_text())
        said = [edit_config(config, dice) for _ in range(dice.choice([1, 1, 1, 2]))]
        path.write_text(json.dumps(config))
    elif kind == "index":
        document = json.loads(indexes[0].read_text())
        said = [edit_index(document["weight_map"], dice)]
        indexes[0].write_text(json.dumps(document))
    else:
        path = dice.choice(sorted(folder.glob("*.safetensors")))
        raw = path.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + length])
        said = [edit_header(header, dice)]
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
    return f"{kind}: " + " and ".join(said)


def edit_config(config: dict[str, Any], dice: random.Random) -> str:
    """Remove, empty, add, change or exchange keys of a config, at its top or one level down."""
    inner = [value for value in config.values() if isinstance(value, dict) and value]
    place = dice.choice(inner) if inner and dice.random() < 0.25 else config
    key = dice.choice(sorted(place))
    way = dice.choice(["remove", "null", "add", "change", "change", "change", "change", "exchange", "retype"])
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
        return f"exchange {key} and {other}"
    elif way == "retype":
        place[key] = dice.choice([str, lambda value: [value], lambda value: {"value": value}, lambda value: True])(
            place[key]
        )
    else:
        place[key] = change_value(place[key], dice)
    return f"{way} {key}" + ("" if way in ("remove", "null") else f" {json.dumps(place.get(key))[:60]}")


def change_value(value: Any, dice: random.Random) -> Any:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return dice.choice([0, 1, -1, value + 1, value - 1, value * 2, value // 2, value + 8, 10**6])
    if isinstance(value, float):
        return dice.choice([0.0, -value, value * 10, value / 10, 1e30, 1.0])
    if isinstance(value, str):
        return dice.choice(STRINGS)
    if isinstance(value, list):
        return dice.choice([[], value[:-1], [*value, *value[-1:]], value[::-1]])
    return dice.choice([None, {}, 0, "x"])


def edit_index(weight_map: dict[str, str], dice: random.Random) -> str:
    """Remove, add or redirect an entry of an index."""
    name = dice.choice(sorted(weight_map))
    way = dice.choice(["remove", "add", "redirect", "rename"])
    if way == "remove":
        del weight_map[name]
    elif way == "add":
        weight_map[f"{name}.more"] = weight_map[name]
    elif way == "redirect":
        weight_map[name] = dice.choice([*sorted(set(weight_map.values()) - {weight_map[name]}), "model.safetensors"])
    else:
        weight_map[f"x.{name}"] = weight_map.pop(name)
    return f"{way} {name}"


def edit_header(header: dict[str, Any], dice: random.Random) -> str:
    """Rename, remove, exchange or describe otherwise an entry of a header."""
    names = sorted(name for name in header if name != "__metadata__")
    name, other = dice.choice(names), dice.choice(names)
    entry = header[name]
    ways: dict[str, Callable[[], Any]] = {
        "rename": lambda: header.__setitem__(
            dice.choice([f"{name}s", name.upper(), name.replace("weight", "bias"), f"model.{name}"]), header.pop(name)
        ),
        "remove": lambda: header.pop(name),
        "exchange": lambda: header.update({name: header[other], other: header[name]}),
        "dtype": lambda: entry.update(
            dtype=dice.choice(["F32", "F16", "BF16", "I32", "U32", "F64", "I16", "F8_E4M3", "U8"])
        ),
        "shape": lambda: entry.update(
            shape=dice.choice([entry["shape"][::-1], [1, *entry["shape"]], [*entry["shape"], 1], []])
        ),
        "offsets": lambda: entry.update(data_offsets=list(header[other]["data_offsets"])),
    }
    way = dice.choice(sorted(ways))
    ways[way]()
    return f"{way} {name}" + (f" and {other}" if way in ("exchange", "offsets") else "")


if __name__ == "__main__":
    sys.exit(main())
