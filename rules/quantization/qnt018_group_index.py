"""A GPTQ group index names groups that the weight has no scales for.

## What it checks
No number in `g_idx` is as large as the number of groups that `scales` has. Where the config declares an activation order
(`desc_act`) and there are several groups, `g_idx` is not all zero.

## Why it matters
`g_idx` says for each input which group's scale belongs to it. Numbers beyond the groups read other memory on a GPU, or stop
with an index error; an index that is all zero scales every input by the first group. Nothing else about the file is wrong.

## How to fix
Quantize again, or copy `g_idx` from the checkpoint that this one was made of.

## When it can be wrong
Indices that count from the end (negative ones) are left out, for some kernels take them. An index of zeros without an
activation order is sound: older tools wrote it, and engines compute the groups themselves. One that is merely in another
order than the weights is not seen. `--ignore QNT018`, or a reason under `[ignore]`, silences it.

## Seen in
Faults injected into real checkpoints of GPTQModel
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count, few


@rule(
    "QNT018",
    "group-index",
    severity="error",
    when=lambda ckpt: ckpt.quantization is not None and any("g_idx" in way.parts for way in ckpt.quantization.stored),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.quantization is not None
    ordered = ckpt.quantization.config.get("desc_act") is True and not ckpt.quantization.config.get("dynamic")
    beyond: dict[str, list[str]] = {}
    empty: dict[str, list[str]] = {}
    for stored, modules in ckpt.quantization.stored.items():
        scales = stored.parts.get("scales")
        if "g_idx" not in stored.parts or scales is None or not scales.shape:
            continue
        groups = scales.shape[0]
        for name in (stored.name(module, "g_idx") for module in modules):
            stats = ckpt.values.tensors.get(name)
            if stats is not None and groups <= stats.absmax < 2**31:  # patterns: negative numbers are larger
                beyond.setdefault(stats.shard, []).append(name)
            elif stats is not None and stats.zero and ordered and groups > 1:
                empty.setdefault(stats.shard, []).append(name)
    for found, one, many in (
        (beyond, "names a group beyond those that have scales", "name groups beyond those that have scales"),
        (
            empty,
            "is all zero, though the config declares an order",
            "are all zero, though the config declares an order",
        ),
    ):
        for shard, names in found.items():
            yield Problem(
                f"{count(len(names), 'group index ' + one, 'group indices ' + many)}: {few(names)}",
                file=shard,
                key=names[0],
                hint="quantize again, or copy g_idx from the checkpoint that this one was made of",
            )
    ckpt.require_values()
