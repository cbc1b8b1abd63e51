"""A weight looks freshly initialised, and the rest of the model does not.

## What it checks
Four things, each only if the rest of the model is trained:

- A matrix looks freshly drawn: its values have a uniform or normal distribution without a single outlier, and the norms of its
  rows, and of its columns, differ no more than by chance. Its siblings (the same matrix in other layers or experts), or most
  other kinds of matrices in the model, do not look so.
- A norm is one number, as norms start, and at least eight times as many siblings are not. VAL013 reports a norm that is zero.
- All norms of the layers are one number each, while the final norm is not and the matrices do not look drawn.
- A reward, value or classification head is uniform exactly within ± 1 / sqrt(columns), as `torch.nn.Linear` starts it.

It reads 4 KiB of every matrix of at least 32 × 32 (of at most 256 siblings, those with the smallest largest magnitude), and
512 KiB or 64 rows of those that remain suspect.

## Why it matters
A loader that misses a key starts the weight from random numbers and reports it in one line of a log, in transformers "Some weights
were not initialized from the model checkpoint and are newly initialized". Once somebody saves that model, nothing shows it any
more: names, shapes and sizes are right. A converter that allocates a weight and never fills it leaves the same.

## How to fix
Look for "newly initialized" or "MISSING" in the log of the program that loaded the checkpoint before this one was saved. Take the
weight from that checkpoint, under the name that the loader expects, and save again.

## When it can be wrong
- The weight is new on purpose and will be trained: a reward head, layers of multi-token prediction, an added projector. Train it
  before you serve the model.
- It is random by design and frozen. Names with `lora_A`, `vera`, `random`, `fourier`, `gaussian_matrix`, `quantizer` or `pooler`
  are left out; the rule does not know others.
- Nothing ever used it: an expert that the router never chose, a projection whose output is dropped. That is worth knowing, but it
  is not an error of saving.
- The norms of the layers could not move while the final one did: a step that is small beside the precision of BF16 leaves a 1 as it
  is. If a method multiplies norms into the matrices that follow (QuaRot), they are one, and so may the final one alone be: the rule
  reports neither. So it cannot see that a model lost all its norms; `ckptcheck diff` against its source does.
- The model was trained briefly and unevenly: some kinds of matrices moved, others hardly did. If most have not moved, the rule
  reports nothing.
- It misses a part of a matrix that was drawn anew. VAL031 sees one of a feed-forward block: in four layers of SmolLM2-135M 32 of
  36 halves, quarters and eighths of gate, up and down.
- It misses a fresh matrix with fewer than 32 rows or columns, one that was quantized, one expert in a tensor that holds them all,
  and a head that started from a normal distribution.
- `--ignore VAL012`, or a reason under `[ignore]`, silences it.

## Seen in
NVIDIA/Megatron-LM#5844 (every expert as it was allocated), sgl-project/sglang#16235 (a layer from random numbers),
huggingface/transformers#34759, hiyouga/LlamaFactory#9369 (a value head as it started)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, join_truncated
from ckptcheck.values.detectors.bare_codes import find_bare_codes
from ckptcheck.values.detectors.byte_compare import require_sampling
from ckptcheck.values.detectors.init_detection import (
    find_constant_norms,
    find_init_groups,
    find_init_heads,
    looks_untrained,
)
from ckptcheck.values.detectors.norms import (
    find_lost_norms,
    find_zero_norms,
)
from ckptcheck.values.detectors.roles import group_by_file

HINT = "look for newly initialized weights in the log of what loaded it before it was saved; if it is new on purpose, train it"


@rule(
    "VAL012",
    "freshly-initialised",
    severity="warning",
    on="values",
    when=lambda ckpt: bool(ckpt.tensors) and not ckpt.is_adapter,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    values = ckpt.values
    require_sampling(ckpt)
    if looks_untrained(ckpt):
        raise Skip("the checkpoint looks freshly initialised: its norms are constant")
    codes = {name for found in find_bare_codes(ckpt) for name in found.names}  # VAL036
    drawn = [
        (sample, group) for group in find_init_groups(ckpt) for sample in group.at_init if sample.name not in codes
    ]
    for shard, samples in group_by_file(ckpt, drawn, lambda pair: pair[0].name).items():
        sample, group = samples[0]
        others = [other.name for other, _ in samples[1:]]
        more = f"; {count(len(others), 'more matrix looks', 'more matrices look')} so: {join_truncated(others)}"
        yield Problem(
            f"its values look freshly initialised ({sample.distribution} distribution, row norms equal within "
            f"{100 * sample.norm_spread:.2g} %), "
            + (
                "most other matrices of the model do not"
                if group.is_mostly_at_init
                else f"those of {count(group.trained_count, 'sibling')} do not"
            )
            + (more if others else ""),
            file=shard,
            key=sample.name,
            hint=HINT,
            names=(sample.name, *others),
        )
    zero = (
        {stats.name for stats in find_zero_norms(ckpt)}
        if ckpt.config is not None or ckpt.arguments is not None
        else set()
    )
    for norms in find_constant_norms(ckpt).values():
        # VAL013 reports norms that are zero.
        constant = [stats for stats in norms if stats.name not in zero]
        if not constant:
            continue
        names = [stats.name for stats in constant]
        yield Problem(
            f"{count(len(names), 'norm holds', 'norms hold')} {constant[0].absmax:.3g} everywhere, as before training, "
            f"and most siblings do not: {join_truncated(names)}",
            file=constant[0].shard,
            key=names[0],
            hint=HINT,
        )
    lost_norms, final_norm = find_lost_norms(ckpt)
    if final_norm is not None:
        yield Problem(
            f"all {len(lost_norms)} norms of the layers are one number each, as before training, but the matrices and {final_norm} "
            "are trained",
            file=lost_norms[0].shard,
            key=lost_norms[0].name,
            hint="take them from the checkpoint this one was converted from",
            names=tuple(stats.name for stats in lost_norms),
        )
    for name in find_init_heads(ckpt):
        columns = values.tensors[name].shape[1]
        yield Problem(
            f"this head is uniform within ± 1 / sqrt({columns:,}), as torch.nn.Linear initialises it: it was never trained",
            file=ckpt.tensor_to_file[name],
            key=name,
            hint="train it before anything is scored with it",
        )
    ckpt.require_values()
