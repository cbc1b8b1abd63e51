"""A GPTQ group index names groups that the weight has no scales for, or is empty.

## What it checks
- No number in `g_idx` reaches the number of groups in `scales`.
- Where there are several groups, `g_idx` is not all zero: an error if the config declares an activation order (`desc_act`), else
  a warning.

## Why it matters
`g_idx` names for each input the group whose scale belongs to it. On a GPU, numbers beyond the groups read other memory or stop
with an index error. An index that is all zero scales every input by the first group. Nothing else in the file is wrong.

Without an activation order vLLM and SGLang compute the groups themselves. GPTQModel 7.7, with which transformers loads the
checkpoint, reads the index: its kernel for CPUs stops at the first token, others scale by the first group.

## How to fix
Quantize again, or copy `g_idx` from the checkpoint that this one was made from.

## When it can be wrong
- Negative indices, which count from the end, are left out: some kernels accept them.
- An index of zeros without an activation order is sound for an engine that computes the groups itself, and older tools wrote it.
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
    unread: dict[str, list[str]] = {}
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
            elif stats is not None and stats.zero and groups > 1:
                (empty if ordered else unread).setdefault(stats.shard, []).append(name)
    zeros = ", although the config declares an activation order"
    groups_lost = (
        ", although there are several groups, so that GPTQModel scales all inputs by the first one or stops (vLLM and SGLang do "
        "not read it without an activation order)"
    )
    for by_shard, one, many in (
        (beyond, "names a group beyond those that have scales", "name groups beyond those that have scales"),
        (empty, f"is all zero{zeros}", f"are all zero{zeros}"),
        (unread, f"is all zero{groups_lost}", f"are all zero{groups_lost}"),
    ):
        for shard, names in by_shard.items():
            yield Problem(
                f"{count(len(names), 'group index ' + one, 'group indices ' + many)}: {join_truncated(names)}",
                file=shard,
                key=names[0],
                hint="quantize again, or copy g_idx from the checkpoint that this one was made of",
                severity="warning" if by_shard is unread else None,
            )
    ckpt.require_values()
