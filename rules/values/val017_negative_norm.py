"""Norms of the layers have negative weights, as if one had been subtracted from them.

## What it checks
In an architecture that multiplies by the weight itself, one of these:
- In at least half of the norms of a kind (the same norm in all layers), and at least four, 35 % or more of the weights are
  negative.
- In a single norm of the layers, 90 % are.

It leaves out norms of queries and keys, norms of fewer than 16 weights, and models whose norms are or may be centred at zero:
families such as Gemma by any `model_type` in the config (VAL013), architectures that transformers does not know, and Megatron
runs with `apply_layernorm_1p` or without saved arguments. The rule does not look for this on the Hub.

Measured: of the 60 norms in the layers of SmolLM2-135M the first has 47 % negative weights, and all others at most 0.5 %; with one
subtracted, they have 99.6 % and more. In all-MiniLM-L6-v2 the largest share is 0.8 %.

## Why it matters
Gemma, Qwen3-Next and Megatron with `apply_layernorm_1p` multiply by 1 + weight, and store the gain less one. A converter that
does so for another family, or that adds nothing when it leaves such a family, gives transformers and vLLM gains that are negative
or near zero. The layers compute nonsense, and nothing stops.

## How to fix
Add one to the norms, or convert again with the convention of the target. `ckptcheck diff` with the original shows which norms
changed.

## When it can be wrong
- A model that was trained to negative gains in most layers. None is known: gains start at one.
- A variant of a known architecture, in a fork of the trainer, multiplies by 1 + weight, and its config does not say so.
- It misses norms whose weights are well above one, such as final norms. For Gemma and its relatives it does not judge the reverse
  (one added to their weights): the weights may lie anywhere, and only a comparison (`ckptcheck diff`) tells.
- `--ignore VAL017`, or a reason under `[ignore]`, silences it.

## Seen in
NVIDIA/Megatron-LM (`apply_layernorm_1p`, "zero-centred gamma"), ggml-org/llama.cpp (`convert_hf_to_gguf.py` adds one to the norms
of Gemma)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, list_unless_single
from ckptcheck.values.detectors.norms import find_negative_norms


@rule("VAL017", "negative-norm", severity="error", on="values", when=lambda ckpt: bool(ckpt.components.layers))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if not ckpt.can_sample:
        raise Skip("norms are read again only on disk, and in an object store with --values")
    if names := find_negative_norms(ckpt):
        yield Problem(
            f"{count(len(names), 'norm of the layers has', 'norms of the layers have')} many negative weights, as if one had been "
            f"subtracted{list_unless_single(names)}",
            file=ckpt.tensor_to_file[names[0]],
            key=names[0],
            hint="add one to these norms, or convert again: this architecture multiplies by the weight itself",
        )
    ckpt.require_values()
