"""A norm is zero while others are not.

## What it checks
- No norm's weight is all zero. In a family that transformers does not know, at least half of the norms have to be nonzero.
- No norm has a stretch of zeros of more than an eighth of its elements, if other norms of its length have none. The rule does not
  look for this on the Hub.

It leaves out models whose norms are centred at zero, where a zero means one:
families such as Gemma, Qwen3-Next, Nemotron and Step-3.5 by any `model_type` in the config, and Megatron runs with
`apply_layernorm_1p`.

## Why it matters
A layer multiplies its input by the norm's weight. With zeros the block computes nothing, and with a zero final norm every logit
is the same. Zeros in a part of it switch off these channels. Nothing stops.

## How to fix
Take the norm from the checkpoint this one was converted from. If all zeros lie together, the file lost a block.

## When it can be wrong
- A family with norms centred at zero may be unknown here, and a folder of torch.distributed.checkpoint does not name its family.
- A method may start gains at zero on purpose, to switch a new block off. A kind of norm that is zero in every layer of a checkpoint
  that looks freshly initialised is left out.
- A method may prune adjacent channels in some layers only.
- `--ignore VAL013`, or a reason under `[ignore]`, silences it.

## Seen in
paiml/aprender#2337 (tensors of a lost block)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, list_unless_single
from ckptcheck.values.detectors.byte_compare import require_sampling
from ckptcheck.values.detectors.init_detection import find_initial_constants
from ckptcheck.values.detectors.norms import find_torn_norms, find_zero_norms
from ckptcheck.values.detectors.roles import is_norm, name_pattern

HINT = "compare the file's hash with the original's; if it is the same, take the norm from what this was made of"


@rule(
    "VAL013",
    "zero-norm",
    severity="error",
    on="values",
    when=lambda ckpt: ckpt.config is not None or ckpt.arguments is not None,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    zero = find_zero_norms(ckpt)
    # A norm that has no siblings, such as the final one, is never zero by its initialiser.
    initial = {name for name in find_initial_constants(ckpt) if name != name_pattern(name)} if zero else set()
    initial &= {stats.name for stats in zero}
    zero = [stats for stats in zero if stats.name not in initial]
    if zero and len(zero) == sum(map(is_norm, ckpt.values.tensors.values())):
        yield Problem(
            f"every norm is zero ({len(zero):,}), and this architecture multiplies by them: all logits are equal",
            file=zero[0].shard,
            key=zero[0].name,
            hint=HINT,
        )
        zero = []
    for shard in dict.fromkeys(stats.shard for stats in zero):
        names = [stats.name for stats in zero if stats.shard == shard]
        yield Problem(
            f"{count(len(names), 'norm is', 'norms are')} all zero, and the others are not{list_unless_single(names)}",
            file=shard,
            key=names[0],
            hint=HINT,
        )
    for name, (begin, end) in find_torn_norms(ckpt).items():
        yield Problem(
            f"elements {begin:,}-{end - 1:,} of {ckpt.tensors[name].shape[0]:,} are zero, and most other norms "
            "of this length have no such stretch",
            file=ckpt.tensor_to_file[name],
            key=name,
            hint=HINT,
        )
    ckpt.require_values()
    if initial:
        raise Skip("the checkpoint looks freshly initialised: its norms are constant")
    require_sampling(ckpt, "norms")
