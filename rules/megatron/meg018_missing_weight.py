"""A weight that the model needs is missing.

## What it checks
The token embedding and the final norm are there; so is the output layer, or a value head in its place, where the arguments
say that embeddings are not tied. Where the arguments describe a plain GPT, every layer has what megatron-core builds for
them: both norms, `linear_qkv` (its bias with `add_qkv_bias`) and `linear_proj`, the norms of queries and keys with
`qk_layernorm`, and `linear_fc1` and `linear_fc2`, or the router where `num_experts` and `moe_layer_freq` put experts (those
are MEG017's). Hybrid and heterogeneous models, layers of a spec of one's own and adapters are compared layer with layer only
(MEG036).

## Why it matters
Megatron stops at a key it asks for and does not find, or, with a lenient `--dist-ckpt-strictness`, goes on with what was
allocated. A critic that was saved without its head is such a checkpoint too.

## How to fix
Save again; for a critic, make the head a part of `sharded_state_dict`.

## When it can be wrong
A pipeline stage checked by itself. A provider of one's own that builds other layers than the arguments say.
`--ignore MEG018` silences it.

## Seen in
hiyouga/LlamaFactory#4379 (a value model without its head), NVIDIA-NeMo/RL#2124 (layers and keys lost in a conversion)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.required import ADAPTER, lacking
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.checkpoint.megatron.structure import EMBEDDING, FINAL_NORM, OUTPUT, VALUE_HEADS
from ckptcheck.phrase import count, few, ranges

NESTED = "language_model."
NORMS = (FINAL_NORM, "decoder.final_norm.weight", "encoder.final_layernorm.weight", "encoder.final_norm.weight")
"""What the final norm is called: GPT's, that of Mamba and hybrids, and the encoder's, as old checkpoints call the decoder."""


@rule(
    "MEG018",
    "missing-weight",
    severity="error",
    on="megatron",
    when=lambda run: (
        bool(run.structure.layers) and bool(run.args) and not any(ADAPTER.search(name) for name in run.weights)
    ),
)
def check(run: Megatron) -> Iterator[Problem]:
    has_head = any(name.endswith(VALUE_HEADS) for name in run.weights)
    for names, needed in (
        ((EMBEDDING,), True),
        (NORMS, True),
        ((OUTPUT,), run.args.get("untie_embeddings_and_output_weights") is True and not has_head),
    ):
        if needed and not any(prefix + name in run.weights for name in names for prefix in ("", NESTED)):
            other = ", nor is there a value head in its place" if OUTPUT in names else ""
            yield Problem(f"this weight is missing{other}", file=run.place, key=names[0], hint="save again")
    found: dict[frozenset[str], list[int]] = {}
    for layer, lost in lacking(run.args, run.structure).items():
        found.setdefault(frozenset(lost), []).append(layer)
    for missing, layers in found.items():
        every = f"all {count(len(layers), 'layer')}" if len(layers) == len(run.structure.layers) else None
        which = every or f"{'layer' if len(layers) == 1 else 'layers'} {ranges(layers)}"
        yield Problem(
            f"{which} {'lacks' if len(layers) == 1 else 'lack'} {few(missing, 4)}",
            file=run.place,
            key=f"decoder.layers.{min(layers)}.{min(missing)}",
            hint="save again",
        )
