"""Norms of the layers are off by one: many weights are negative, or none lies below one.

## What it checks
In an architecture that multiplies by the weight itself, one of these:
- In at least half of the norms of a kind (the same norm in all layers), and at least four, 35 % or more of the weights are
  negative. Or in a single norm of the layers 90 % are.
- In three quarters of the norms of a kind, and at least six, no more than 1 % of the weights are below one, and the norms are
  trained (a warning).

It leaves out norms of queries and keys, norms of fewer than 16 weights, and models whose norms are or may be centred at zero:
families such as Gemma by any `model_type` in the config (VAL013), architectures that transformers does not know, and Megatron
runs with `apply_layernorm_1p` or without saved arguments. The rule does not look for this on the Hub.

Measured: of the 60 norms in the layers of SmolLM2-135M the first has 47 % negative weights, and all others at most 0.5 %; with
one subtracted, they have 99.6 % and more. In all-MiniLM-L6-v2 the largest share is 0.8 %. In every norm of both at least 98 %
of the weights are below one; with one added, at most 0.8 % of a norm's, except for the first norm of SmolLM2.

## Why it matters
Gemma, Qwen3-Next and Megatron with `apply_layernorm_1p` multiply by 1 + weight, and store the gain less one. A converter that
does so for another family, or that adds nothing when it leaves such a family, gives transformers and vLLM gains that are
negative or near zero. One that takes another family's norms for Gemma's adds one to weights that are complete already: the
gains of all layers are several times too large. The layers compute nonsense, and nothing stops.

## How to fix
Add or subtract one, or convert again with the convention of the target. `ckptcheck diff` with the original shows which norms
changed.

## When it can be wrong
- A model that was trained to negative gains in most layers, or whose gains all grew beyond one in every channel. None is known:
  gains start at one, but few models were measured.
- A variant of a known architecture, in a fork of the trainer, multiplies by 1 + weight, and its config does not say so. A model
  that was converted from Gemma to the architecture of Llama, where adding one is right, may have gains above one alone.
- It misses a norm to which one was added alone, and norms whose weights are well above one, such as final norms. For Gemma and
  its relatives it does not judge the reverse (one added to their weights): only a comparison (`ckptcheck diff`) tells.
- `--ignore VAL017`, or a reason under `[ignore]`, silences it.

## Seen in
NVIDIA/Megatron-LM (`apply_layernorm_1p`, "zero-centred gamma"), ggml-org/llama.cpp (`convert_hf_to_gguf.py` adds one to the
norms of Gemma, by the names of the tensors)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, join_truncated, list_unless_single
from ckptcheck.values.detectors.byte_compare import require_sampling
from ckptcheck.values.detectors.norms import find_negative_norms, find_raised_norms


@rule("VAL017", "shifted-norm", severity="error", on="values", when=lambda ckpt: bool(ckpt.components.layers))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    require_sampling(ckpt, "norms")
    if names := find_negative_norms(ckpt):
        yield Problem(
            f"{count(len(names), 'norm of the layers has', 'norms of the layers have')} many negative weights, as if one had been "
            f"subtracted{list_unless_single(names)}",
            file=ckpt.tensor_to_file[names[0]],
            key=names[0],
            hint="add one to these norms, or convert again; if the model is of a family that adds one itself, correct model_type",
        )
    if names := find_raised_norms(ckpt):
        yield Problem(
            f"{len(names)} norms of the layers have no weights below one, as if one had been added: {join_truncated(names)}",
            file=ckpt.tensor_to_file[names[0]],
            key=names[0],
            severity="warning",
            hint="compare them with the original's; subtract one if this architecture multiplies by the weight itself",
        )
    ckpt.require_values()
