"""A GPTQ group index names groups that the weight has no scales for, or is empty.

## What it checks
- No number in `g_idx` reaches the number of groups in `scales`.
- If the config declares an activation order (`desc_act`) and there are several groups, `g_idx` is not all zero.

## Why it matters
`g_idx` names for each input the group whose scale belongs to it. On a GPU, numbers beyond the groups read other memory or stop
with an index error. An index that is all zero scales every input by the first group. Nothing else in the file is wrong.

## How to fix
Quantize again, or copy `g_idx` from the checkpoint that this one was made from.

## When it can be wrong
- Negative indices, which count from the end, are left out: some kernels accept them.
- An index of zeros without an activation order is sound: older tools wrote it, and engines compute the groups themselves.
- The rule misses an index that is only in another order than the weights.
- `--ignore QNT018`, or a reason under `[ignore]`, silences it.

## Seen in
Faults injected into real checkpoints of GPTQModel
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "QNT018",
    "group-index",
    severity="error",
    on="quantization",
    when=lambda ckpt: any("g_idx" in way.parts for way in ckpt.quantization.storages),
)
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    ordered = ckpt.quantization.config.get("desc_act") is True and not ckpt.quantization.config.get("dynamic")
    beyond: dict[str, list[str]] = {}
    empty: dict[str, list[str]] = {}
    for stored, modules in ckpt.quantization.storages.items():
        scales = stored.parts.get("scales")
        if "g_idx" not in stored.parts or scales is None or not scales.shape:
            continue
        groups = scales.shape[0]
        for name in (stored.name(module, "g_idx") for module in modules):
            stats = ckpt.values.tensors.get(name)
            # absmax of integers is the largest pattern, and patterns of negative numbers start at 2**31.
            if stats is not None and groups <= stats.absmax < 2**31:
                beyond.setdefault(stats.shard, []).append(name)
            elif stats is not None and stats.zero and ordered and groups > 1:
                empty.setdefault(stats.shard, []).append(name)
    for by_shard, one, many in (
        (beyond, "names a group beyond those that have scales", "name groups beyond those that have scales"),
        (
            empty,
            "is all zero, although the config declares an activation order",
            "are all zero, although the config declares an activation order",
        ),
    ):
        for shard, names in by_shard.items():
            yield Problem(
                f"{count(len(names), 'group index ' + one, 'group indices ' + many)}: {join_truncated(names)}",
                file=shard,
                key=names[0],
                hint="quantize again, or copy g_idx from the checkpoint that this one was made of",
            )
    ckpt.require_values()
