"""A weight looks freshly initialised, and the rest of the model does not.

## What it checks
Eight things, each only if the rest of the model is trained:

- A matrix looks freshly drawn: its values have a uniform or normal distribution without a single outlier, and the norms of its
  rows, and of its columns, differ no more than by chance. Its siblings (the same matrix in other layers or experts), or most
  other kinds of matrices in the model, do not look so.
- One part of a matrix looks freshly drawn, an eighth, a quarter or a half of its rows or columns, as one of eight, four or two
  ranks would hold it, while the rest is trained (below).
- A norm is one number, as norms start, and at least eight times as many siblings are not. VAL013 reports a norm that is zero.
- All norms of the layers are one number each, while the final norm is not and the matrices do not look drawn.
- All norms of the layers are 1, in 32 bits, while the biases of at least half of them, and of at least four, are trained.
- The final norm is one number, while at least half of the norms of the layers, and at least four, are not.
- Neighbouring rows of a table of learned positions are no more alike than chance makes them. Training makes neighbours alike: in
  seven trained models they have a cosine of at least 0.2, 75 times that of chance. The rule leaves out a table that the config does
  not use (`position_embedding_type`).
- A reward, value or classification head is uniform exactly within ± 1 / sqrt(columns), as `torch.nn.Linear` starts it.

It reads 4 KiB of every matrix of at least 32 × 32 (of at most 256 siblings, those with the smallest largest magnitude), and
512 KiB or 64 rows of those that remain suspect.

Trained parts of a matrix agree in which channels are large: of the mean squares of 256 channels over each eighth, that of the
median trained eighth has a correlation of at least 0.4 with that of the others (0.5 if a single eighth looks drawn). A part looks
drawn if these differ along both axes by chance only, if it has a correlation of at most 0.2 with the trained ones, and if its
values have the distribution of an initialiser. A part of an attention matrix counts only if it has two heads, because
training may leave a single head unchanged. It judges queries, keys, values, outputs and feed-forward matrices that are
not fused with others, of 128 × 192 and more. Of nine trained models that packages ship (SmolLM2-135M, Gemma 3 270M,
MiniLM-L6, AntiBERTy, two of IgLM, three of rxnfp), the part that comes nearest has a correlation of 0.33.

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
  is. If a method multiplies all norms into the matrices that follow (QuaRot), the rule reports nothing. A tool that multiplies only
  the final norm into the head leaves it one, which is sound. So the rule cannot see that a model without biases lost all its norms;
  `ckptcheck diff` against its source does.
- The model was trained briefly and unevenly: some kinds of matrices moved, others hardly did. If most have not moved, the rule
  reports nothing.
- A matrix was made wider by new rows or columns, which will be trained.
- It misses parts of matrices whose trained parts hardly agree, and random rows that no single rank held. Of the feed-forward
  matrices, queries and outputs of SmolLM2-135M, each with one rank's part drawn anew along the axis that tensor parallelism cuts,
  it sees 81 of 150 halves, 84 of 150 quarters, and 30 of 90 eighths.
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
from ckptcheck.values.detectors.drawn_positions import find_drawn_positions
from ckptcheck.values.detectors.fresh_shares import FreshShare, find_fresh_shares
from ckptcheck.values.detectors.init_detection import (
    InitSample,
    TensorGroup,
    find_constant_norms,
    find_init_groups,
    find_init_heads,
    looks_untrained,
)
from ckptcheck.values.detectors.norms import (
    find_lost_final_norm,
    find_lost_norms,
    find_norms_without_scale,
    find_zero_norms,
)

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
    if not ckpt.can_sample:
        raise Skip("matrices are read again only on disk, and in an object store with --values")
    if looks_untrained(ckpt):
        raise Skip("the checkpoint looks freshly initialised: its norms are constant")
    samples_by_shard: dict[str, list[tuple[InitSample, TensorGroup]]] = {}
    for group in find_init_groups(ckpt):
        for sample in group.at_init:
            samples_by_shard.setdefault(ckpt.tensor_to_file[sample.name], []).append((sample, group))
    for shard, samples in samples_by_shard.items():
        sample, group = samples[0]
        others = (
            f"; {count(len(samples) - 1, 'more matrix looks', 'more matrices look')} so" if len(samples) > 1 else ""
        )
        names_of_others = f": {join_truncated([other.name for other, _ in samples[1:]])}" if others else ""
        yield Problem(
            f"its values look freshly initialised ({sample.distribution} distribution, row norms equal within "
            f"{100 * sample.norm_spread:.2g} %), "
            + (
                "most other matrices of the model do not"
                if group.is_mostly_at_init
                else f"those of {count(group.trained_count, 'sibling')} do not"
            )
            + others
            + names_of_others,
            file=shard,
            key=sample.name,
            hint=HINT,
        )
    shares_by_shard: dict[str, list[FreshShare]] = {}
    for share in find_fresh_shares(ckpt):
        shares_by_shard.setdefault(ckpt.tensor_to_file[share.name], []).append(share)
    for shard, shares in shares_by_shard.items():
        first = shares[0]
        more = len(shares) - 1
        yield Problem(
            f"{('rows', 'columns')[first.axis]} {first.begin:,}-{first.end - 1:,} of {first.length:,} look freshly initialised "
            f"({first.distribution} distribution): which channels are large in them has nothing to do with the others "
            f"(correlation {first.correlation:.2f}), which agree ({first.usual:.2f})"
            + (
                f"; a part of {count(more, 'more matrix looks', 'more matrices look')} so: "
                f"{join_truncated([other.name for other in shares[1:]])}"
                if more
                else ""
            ),
            file=shard,
            key=first.name,
            hint="one rank's part seems not to be loaded: merge or load again from all ranks",
        )
    drawn = {sample.name for samples in samples_by_shard.values() for sample, _ in samples}
    for name in find_drawn_positions(ckpt):
        if name not in drawn:
            yield Problem(
                f"its {values.tensors[name].shape[0]:,} rows are like each other by chance alone, as before training, which makes "
                "neighbouring positions alike",
                file=ckpt.tensor_to_file[name],
                key=name,
                hint=HINT,
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
        )
    ones, biases = find_norms_without_scale(ckpt)
    if ones and final_norm is None:
        yield Problem(
            f"all {len(ones)} norms of the layers are 1 everywhere, as before training, but {biases} of their biases are trained",
            file=ones[0].shard,
            key=ones[0].name,
            hint="take them from the checkpoint this one was converted from",
        )
    constant_final_norm, trained = find_lost_final_norm(ckpt)
    if constant_final_norm is not None:
        yield Problem(
            f"the final norm holds {constant_final_norm.absmax:.3g} everywhere, as before training, and {trained} norms of "
            "the layers are trained",
            file=constant_final_norm.shard,
            key=constant_final_norm.name,
            hint=HINT,
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
