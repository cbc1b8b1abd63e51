"""Two projections of a layer hold each other's weights: keys and values, or gate and up.

## What it checks
In the same layer, `k_proj` and `v_proj` of one shape, and `gate_proj` and `up_proj`, agree with their own partners and not with
each other's (also under the names of BERT, DistilBERT, DeBERTa, T5 and Llama's first release).

Training makes the two sides of a product alike. So the norms of up's rows correlate with the norms of down's columns, the values'
rows with the output projection's columns, and the keys' rows with the queries' rows. For each partner (down, output, queries) the
rule takes a difference: the correlation with the matrix that belongs to it, less the correlation with the other matrix of the pair.
A pair counts as exchanged if

- the median of this difference over the layers (at least four) is more than 0.4; in an untrained model it is 0;
- the difference of the pair is negative, by at least 0.4 times the median, and for keys and values with both partners;
- for gate and up, the gate correlates with down at least half as well as the ups of other layers. This excludes a fresh matrix.

If the median itself is as far below zero, most layers are exchanged, as by a converter that takes one name for the other.

It rests on 256 rows and columns of each of these matrices, which are sampled while the values are read; where several query heads
share a key head, it reads up to 1,024 rows of the queries again. The rule does not look for this on the Hub.

## Why it matters
Exchanged offsets in a header, or a converter that maps one name to the other, leave every shape and size as it was. The layer
computes nonsense in every consumer, and the model answers almost sensibly if it is one layer of many.

## How to fix
Compare with the checkpoint that this one was made from: `ckptcheck diff`, or `ckptcheck verify` with a manifest.

## When it can be wrong
Measured on trained models, difference of correlations in sound layers (exchanged ones have the negative):

| model | pair | least | median | layers seen if exchanged |
|---|---|---|---|---|
| SmolLM2-135M | gate and up | 0.39 | 0.70 | 28 of 30 |
| SmolLM2-135M | keys and values | 0.31 | 1.07 | 27 of 30 |
| all-MiniLM-L6-v2 | keys and values | 1.02 | 2.28 | 6 of 6 |
| three BERTs of rxnfp | keys and values | 0.94 | 2.06 | 36 of 36 |

- These are few models. The rule would report most layers of a family that exchanges the names (up for the matrix before the
  activation), and a single layer whose keys correlate with the output projection and whose values with the queries.
- It cannot see an exchange of queries and keys, because their product is the same. If query and output projection are exchanged,
  VAL021 reports both as transposed. VAL031 finds matrices that two layers hold in exchange.
- It does not judge experts, fused projections (`qkv_proj`, `gate_up_proj`), quantized weights, multi-head latent attention, biases,
  and matrices of fewer than 128 rows or columns. Methods that rotate the channels of heads (QuaRot) leave nothing to see.
- `--ignore VAL019`, or a reason under `[ignore]`, silences it.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#1984 (right shapes, wrong values in some parameters)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import format_layers
from ckptcheck.values.detectors.byte_compare import require_sampling
from ckptcheck.values.detectors.exchanged_projections import find_exchanged_projections


@rule(
    "VAL019", "exchanged-projections", severity="warning", on="values", when=lambda ckpt: bool(ckpt.components.layers)
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    require_sampling(ckpt)
    for pair in find_exchanged_projections(ckpt):
        yield Problem(
            f"{pair.first} and {pair.second} of {format_layers(pair.layers)} seem to hold each other's weights: their norms follow "
            f"the other one's partners (difference of correlations {pair.agreement:.2f}"
            + (f", and {pair.usual:.2f} in the median layer)" if pair.usual > 0 else ", in most layers)"),
            file=ckpt.tensor_to_file[pair.tensors[0]],
            key=pair.tensors[0],
            hint="compare with the checkpoint that this one was made from: ckptcheck diff",
        )
    ckpt.require_values()
