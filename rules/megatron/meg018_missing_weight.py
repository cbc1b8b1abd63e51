"""A weight that the model needs is missing.

## What it checks
- The token embedding and the final norm exist, and so does the output layer (or a value head) if the arguments say that
  embeddings are not tied.
- Where the arguments describe a plain GPT, every layer has what megatron-core builds: both norms, `linear_qkv` (with a bias
  under `add_qkv_bias`) and `linear_proj`, the norms of queries and keys under `qk_layernorm`, and either `linear_fc1` and
  `linear_fc2` or, where `num_experts` and `moe_layer_freq` put experts, the router. MEG017 checks the experts.
- Hybrid and heterogeneous models, layers of a custom spec and adapters are only compared layer with layer (MEG036).

## Why it matters
Megatron stops at a key that it needs and does not find or, with a lenient `--dist-ckpt-strictness`, continues with
uninitialized memory. A critic that was saved without its head is such a checkpoint too.

## How to fix
Save again. For a critic, include the head in `sharded_state_dict`.

## When it can be wrong
A pipeline stage checked by itself. A custom provider that builds other layers than the arguments say. `--ignore MEG018`
silences it.

## Seen in
hiyouga/LlamaFactory#4379 (a value model without its head), NVIDIA-NeMo/RL#2124 (layers and keys lost in a conversion)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.required_weights import ADAPTER, lacking
from ckptcheck.checkpoint.megatron.structure import EMBEDDING, FINAL_NORM, OUTPUT, VALUE_HEADS
from ckptcheck.text.formatting import count, format_layers, join_truncated

NESTED = "language_model."
NORMS = (FINAL_NORM, "decoder.final_norm.weight", "encoder.final_layernorm.weight", "encoder.final_norm.weight")
"""Names of the final norm: GPT's, that of Mamba and hybrids, and the encoder's, the name of the decoder in old checkpoints."""


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
            other = ", and there is no value head in its place" if OUTPUT in names else ""
            yield Problem(f"this weight is missing{other}", file=run.finding_file, key=names[0], hint="save again")
    layers_by_missing: dict[frozenset[str], list[int]] = {}
    for layer, lost in lacking(run.args, run.structure).items():
        layers_by_missing.setdefault(frozenset(lost), []).append(layer)
    for missing, layers in layers_by_missing.items():
        every = f"all {count(len(layers), 'layer')}" if len(layers) == len(run.structure.layers) else None
        which = every or format_layers(layers)
        yield Problem(
            f"{which} {'lacks' if len(layers) == 1 else 'lack'} {join_truncated(missing, 4)}",
            file=run.finding_file,
            key=f"decoder.layers.{min(layers)}.{min(missing)}",
            hint="save again",
        )
