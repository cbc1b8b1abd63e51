"""The checkpoints that several benchmarks read, each written once."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path

import numpy as np

from tests.benchmarks.processes import temporary_folder
from tests.paths import FIXTURES

sys.path.insert(0, str(FIXTURES))
import large
import smollm2
import wide

TINY = FIXTURES / "checkpoints/tiny-llama"
HIDDEN, VOCABULARY = 4096, 32768
GIGABYTES = 4.3
SMALL_EXPERTS = {
    "hidden_size": 256, "moe_intermediate_size": 128, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 32, "vocab_size": 32768,
}  # fmt: skip
EXPERTS_GIGABYTES = 1.366
"""As many layers of 128 small experts as make 20,439 tensors."""


@cache
def write_headers(layers: int) -> tuple[Path, int]:
    """Write a checkpoint in sparse files, with real headers; return its folder and how many tensors it has."""
    folder = temporary_folder() / f"headers-{layers}"
    return folder, large.write(folder, layers)


@cache
def write_experts() -> Path:
    """Write a mixture of 20,439 small tensors."""
    return wide.write(temporary_folder() / "experts", EXPERTS_GIGABYTES, SMALL_EXPERTS)


@cache
def find_smollm2() -> Path | None:
    """Return SmolLM2-135M-Instruct if it was built before (make demo does), and say so if it was not."""
    folder = smollm2.default_folder()
    if (folder / smollm2.DONE).exists():
        return folder
    print(f"left out: {folder} is not there (make demo)")
    return None


def count_bytes(folder: Path) -> int:
    """Return the bytes of a checkpoint's shards."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


@cache
def write_dense() -> Path:
    """Write a Llama of large matrices in bf16 with random weights, in a shard for each layer."""
    folder = temporary_folder() / "dense"
    folder.mkdir()
    random = np.random.default_rng(0)
    values = (random.standard_normal(1 << 25, dtype=np.float32) * 0.02).view(np.uint32) >> 16
    block = memoryview(values.astype(np.uint16).tobytes())
    layers = round((GIGABYTES * 1e9 - 4 * VOCABULARY * HIDDEN) / (24 * HIDDEN * HIDDEN))
    shapes = {"q": (HIDDEN, HIDDEN), "k": (HIDDEN, HIDDEN), "v": (HIDDEN, HIDDEN), "o": (HIDDEN, HIDDEN)}
    groups: list[dict[str, tuple[int, ...]]] = [
        {
            "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
            "lm_head.weight": (VOCABULARY, HIDDEN),
            "model.norm.weight": (HIDDEN,),
        }
    ]
    for layer in range(layers):
        at = f"model.layers.{layer}"
        part = {f"{at}.self_attn.{name}_proj.weight": shape for name, shape in shapes.items()}
        part |= {f"{at}.mlp.{name}_proj.weight": (8 * HIDDEN // 3, HIDDEN) for name in ("gate", "up")}
        part |= {f"{at}.mlp.down_proj.weight": (HIDDEN, 8 * HIDDEN // 3)}
        part |= {f"{at}.{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")}
        groups.append(part)
    weight_map, size, shift = {}, 0, 0
    for number, part in enumerate(groups):
        name = f"model-{number + 1:05}-of-{len(groups):05}.safetensors"
        header, reached = {"__metadata__": {"format": "pt"}}, 0
        for tensor, shape in part.items():
            nbytes = 2 * int(np.prod(shape))
            header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [reached, reached + nbytes]}  # type: ignore[dict-item]
            reached += nbytes
            weight_map[tensor] = name
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (folder / name).open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for tensor, shape in part.items():
                if "norm" in tensor:  # from 0.94 to 1.24, as training leaves them
                    file.write(random.integers(0x3F70, 0x3FA0, shape[0], dtype=np.uint16).tobytes())
                    continue
                left = 2 * int(np.prod(shape))
                while left:  # each tensor begins elsewhere in the block, so that no two are the same
                    piece = block[shift % len(block) :][:left]
                    file.write(piece)
                    left -= len(piece)
                    shift += len(piece) + 2 * 4099
        size += reached
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": layers,
        "intermediate_size": 8 * HIDDEN // 3, "num_attention_heads": 32, "vocab_size": VOCABULARY, "tie_word_embeddings": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
