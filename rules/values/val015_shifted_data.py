"""Norms of a shard have the signs of a matrix: its data are shifted.

## What it checks
Norms have weights of one sign, with few exceptions. The rule reports a shard if all of these hold:
- At least four of its norms, in three layers or more, have 35 to 65 % negative weights.
- From the first of them on, three in four norms of the shard do.
- At least a third of the same norms in other layers have no more than 1 % negative weights.

It also reports a shard in which one distance leads from the places of at least four norms, and of half of those that it looks
at, to their numbers: as many positive ones in a row as the norm has, up to 64 KiB away.

Norms of fewer than 64 weights are left out, and models whose norms are centred at zero (VAL013 lists them), where any sign is
sound. The rule does not look for this on the Hub.

## Why it matters
A writer that is off by some bytes, a page that was written twice, or a header that belongs to other data gives every tensor the
numbers of its neighbour. Matrices still look like matrices; a norm shows the shift. The model answers with nonsense.

## How to fix
Compare the file's hash with the original's, and fetch or write it again.

## When it can be wrong
- A model whose norms are positive in most layers and have both signs in three neighbouring ones. The first norm of a model may
  have both signs by itself (SmolLM2's has); that alone is not enough.
- It misses data that are shifted by more than 64 KiB in all of a model's norms, and norms with negative weights of their own.
- `--ignore VAL015`, or a reason under `[ignore]`, silences it.

## Seen in
ggml-org/llama.cpp#18291 (a converter that took the data to begin some bytes later than they do)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, join_truncated
from ckptcheck.values.detectors.byte_compare import require_sampling
from ckptcheck.values.detectors.norms import find_misplaced_norms, find_offsets


@rule("VAL015", "shifted-data", severity="error", on="values", when=lambda ckpt: bool(ckpt.components.layers))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    require_sampling(ckpt, "norms")
    offsets = find_offsets(ckpt)
    for distance in dict.fromkeys(each for each, _ in offsets.values()):
        shards = sorted(shard for shard, (each, _) in offsets.items() if each == distance)
        names = [name for shard in shards for name in offsets[shard][1]]
        where = f"of {len(shards)} files " if len(shards) > 1 else ""
        side = "behind" if distance > 0 else "before"
        yield Problem(
            f"all data {where}lie {count(abs(distance), 'byte')} {side} the places that the header gives: the numbers "
            f"of {count(len(names), 'norm')} begin there, so that every tensor holds its neighbour's",
            file=shards[0],
            key=names[0],
            hint="write or fetch the file again; what wrote it counted another length of the header, or left out a tensor's bytes",
        )
    for shard, names in find_misplaced_norms(ckpt).items() if not offsets else ():
        yield Problem(
            f"{count(len(names), 'norm has', 'norms have')} about as many negative as positive weights, unlike the same norms of "
            f"other layers; the data look shifted by some bytes: {join_truncated(names)}",
            file=shard,
            key=names[0],
            hint="compare the file's hash with the original's, and fetch or write it again",
        )
    ckpt.require_values()
