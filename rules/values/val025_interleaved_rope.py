"""Queries and keys have their channels in the order of the other rotary convention.

## What it checks
In families that pair the two halves of a head (Llama, Mistral, Mixtral, Qwen2, Qwen3, Gemma, OLMo, …), channels half a head apart
have norms alike in trained query and key projections. The rule reports a model in which neighbours are alike (a median correlation
of 0.4 or more over the layers) and halves are not (0.15 or less). It reads four heads of both matrices in eight layers.

## Why it matters
Meta's Llama files and GGUF pair neighbours. A converter that forgets to permute the rows of q_proj and k_proj, or permutes them
twice, writes a model that transformers, vLLM and SGLang load without a word: it turns the wrong pairs of channels, and the text
falls apart after a few words.

## How to fix
Permute the rows of q_proj and k_proj of each head: `w.view(heads, half, 2, -1).transpose(1, 2)`. `ckptcheck diff REFERENCE THIS`
names the permutation where you have a reference.

## When it can be wrong
- SmolLM2-135M has 0.64 and 0.70 as it is, and 0.70 and -0.12 interleaved. The rule does not report models whose norms show no trace
  of the frequencies (untrained models, layers without rotary embeddings), since their neighbours are not alike.
- It says nothing about other families, about heads that rotate only in part, or about a few wrong layers among right ones.

## Seen in
ggml-org/llama.cpp: convert_hf_to_gguf permutes both matrices, and a conversion back has to undo it; transformers:
`convert_llama_weights_to_hf.py`, `permute`
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.values.detectors.byte_compare import require_sampling
from ckptcheck.values.detectors.rope_order import PROJECTIONS, measure_rope_order


@rule("VAL025", "interleaved-rope", severity="warning", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_value_reader()
    require_sampling(ckpt)
    order = measure_rope_order(ckpt)
    stack = ckpt.components.stack
    if order is not None and stack is not None and order.is_interleaved:
        first = stack.full_name(min(stack.layers), PROJECTIONS[0])
        yield Problem(
            "the channels of queries and keys seem to be paired as neighbours (correlation of their norms "
            f"{order.neighbours:.2f}), and this family pairs halves of a head ({order.half:.2f})",
            file=ckpt.tensor_to_file.get(first),
            key=first,
            hint="permute the rows of q_proj and k_proj of each head; ckptcheck diff REFERENCE THIS shows the permutation",
        )
    ckpt.require_values()
