"""A tensor holds NaN or infinite values.

## What it checks
- No floating-point tensor holds a NaN, in any dtype that has one (E4M3 and E8M0 included).
- No weight holds an Inf. Tensors that hold it on purpose are left out: scalars, bounds of clamps, attention masks.
- The finding is per file. It gives the number in the first such tensor, the place of the first one, and the other tensors and
  layers that hold some.

## Why it matters
One NaN in a weight makes every logit that depends on it NaN. The first product with an Inf is infinite, and the first
difference of two such products is NaN. Engines return empty or repeated tokens, and the trainer's loss is NaN from the first
step. A cast to F16 turns values above 65,504 into Inf.

## How to fix
Find where it came in (an overflow in training, a cast to F16, a corrupt download, a wrong dtype label), and take an earlier or
intact copy, or convert again from the original dtype. Keep BF16 or F32 for large values.

## When it can be wrong
- A NaN that no computation uses does no harm: the row of a token that never occurs, a buffer that is computed again on loading.
  It still makes sums and norms over all weights NaN, so it breaks a trainer's gradient clipping and checksums.
- A buffer may hold Inf on purpose: a bound of a clamp, an attention mask, a decay table. The rule knows those whose names end
  in `min`, `max`, `mask` or `masked_bias`, and `.bias` with more than two dimensions. A mask with another name is a false
  alarm.
- `--ignore VAL001`, or a reason under `[ignore]`, silences it.

## Seen in
ICTMCG/Make-Your-Anchor#9, NikoNairre/CT-CIG#3, huggingface/diffusers#5316, safetensors#220, NVIDIA-NeMo/RL#2671
"""

from collections.abc import Iterable, Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, format_ranges, format_shape, join_truncated
from ckptcheck.values.detectors.norms import find_offsets
from ckptcheck.values.detectors.roles import may_be_infinite
from ckptcheck.values.stats import TensorStats

HINT = (
    "export again from what this was made of; if it is NaN or infinite there too, take the last save in which it is not"
)
HINT_FOR_HALF = (
    "convert again from the original dtype (F16 ends at 65,504); if it is infinite there too, take the last save in which it"
    " is not"
)


@rule("VAL001", "non-finite-value", severity="error", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    # where every tensor holds its neighbour's bytes, NaN is a consequence, and VAL015 names the cause
    moved = find_offsets(ckpt) if any(stats.nan for stats in ckpt.values.tensors.values()) else {}
    tensors = [stats for stats in ckpt.values.tensors.values() if stats.shard not in moved]
    with_nan = [stats for stats in tensors if stats.nan]
    yield from _report(ckpt, with_nan, "NaN", HINT)
    with_inf = [stats for stats in tensors if stats.inf and not may_be_infinite(stats)]
    for is_half in (True, False):
        found = [stats for stats in with_inf if (stats.dtype == "F16") is is_half]
        yield from _report(ckpt, found, "infinite", HINT_FOR_HALF if is_half else HINT)
    ckpt.require_values()


def _report(ckpt: Checkpoint, bad: list[TensorStats], word: str, hint: str) -> Iterator[Problem]:
    """Yield one problem per shard for the tensors with such values: the first with its place, the others by name."""
    for shard in dict.fromkeys(stats.shard for stats in bad):
        names = [stats.name for stats in bad if stats.shard == shard]
        first = ckpt.values.tensors[names[0]]
        number, place = (first.nan, first.first_nan) if word == "NaN" else (first.inf, first.first_inf)
        others = f", and {count(len(names) - 1, 'more tensor')}: {join_truncated(names[1:])}" if names[1:] else ""
        yield Problem(
            f"{count(number, 'value')} {'is' if number == 1 else 'are'} {word}, the first at {_format_index(first, place)}{others}"
            f"{_format_layers(ckpt, names)}",
            file=shard,
            key=first.name,
            hint=hint,
            names=tuple(names),
        )


def _format_index(stats: TensorStats, flat: int) -> str:
    """Write a flat index as one index per dimension: ``[1, 5]``."""
    indices: list[int] = []
    for dimension in reversed(stats.shape):
        flat, index = divmod(flat, dimension)
        indices.append(index)
    return format_shape(reversed(indices))


def _format_layers(ckpt: Checkpoint, names: Iterable[str]) -> str:
    """Write the layers of the language model that hold these tensors: `` (layers 2,5-7)``; empty unless there are several."""
    if ckpt.components.stack is None:
        return ""
    inside = ckpt.components.stack.prefix + "."
    firsts = {name.removeprefix(inside).partition(".")[0] for name in names if name.startswith(inside)}
    numbers = [int(first) for first in firsts if first.isdigit()]
    return f" (layers {format_ranges(numbers)})" if len(numbers) > 1 else ""
