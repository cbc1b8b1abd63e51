"""The adapter was not merged everywhere, not once, or not alone.

## What it checks
With `diff ADAPTER MERGED --base BASE`: each weight that the LoRA adapter changes is the base model's weight plus
`lora_alpha / r` times B·A, within the rounding of its dtype. The experts of a layer (`target_parameters`) are read as PEFT writes
them, before 0.19 and since. Modules that the adapter holds as a whole are equal to it. The rule
says where the update is missing, how many times it was added, and which modules of the adapter the base model lacks. All
other tensors must equal the base model's (CMP005).

## Why it matters
A merged model whose half of the layers lacks the update runs like any other, and answers worse than either parent. A wrong scale
(`alpha` for `alpha / r`, or a merge of a merged model) does the same to all layers.

## How to fix
Merge again from the base model: load base and adapter with PEFT in the dtype of training, then `merge_and_unload()`.

## When it can be wrong
A merge in lower precision rounds more than the rule allows for, and a tool may drop small updates on purpose (TIES, DARE): such a
module is reported as changed by something else. DoRA, and quantized models, are not computed: the report says so and is incomplete.
PEFT's merges into SmolLM2 in bf16, fp16 and fp32 were reproduced without a difference; a factor may be 0.1 from 1. An update that
vanishes in the rounding of the weights shows nothing: the rule is skipped where one does, as of an untrained adapter.

## Seen in
huggingface/peft#918, OpenBMB/MiniCPM-V#559 (the merged weights are the base model's); unslothai/unsloth#5410 (experts)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.compare.matching.comparison import Comparison
from ckptcheck.compare.matching.merged_adapter import ModuleMerge
from ckptcheck.compare.matching.name_groups import group_names
from ckptcheck.text.formatting import count, join_truncated

HINT = "merge again from the base model, and check with this command"


@rule("CMP012", "unmerged-adapter", severity="error", on="comparison", when=lambda pair: pair.adapter is not None)
def check(comparison: Comparison) -> Iterator[Problem]:
    merges = {name: merge for name, merge in comparison.merges.items() if isinstance(merge, ModuleMerge)}
    total = len(merges)
    unmerged = [name for name, merge in merges.items() if merge.outcome == "unmerged"]
    if unmerged:
        where = "any of the" if len(unmerged) == total else f"{len(unmerged):,} of"
        yield _problem(
            comparison,
            f"the adapter was not merged into {where} {count(total, 'weight')} that it changes: {group_names(unmerged)}",
            unmerged,
        )
    if misordered := [name for name, merge in merges.items() if merge.outcome == "misordered"]:
        yield _problem(
            comparison,
            f"the adapter was merged into {count(len(misordered), 'weight')} with the columns of lora_B of each expert in a row; "
            f"PEFT lays them out rank by rank: {group_names(misordered)}",
            misordered,
        )
    scaled: dict[str, list[str]] = {}
    for name, merge in merges.items():
        if merge.outcome == "scaled":
            scaled.setdefault(f"{merge.factor:.2g}", []).append(name)
    for factor, names in scaled.items():
        yield _problem(
            comparison,
            f"the adapter was merged {factor} times as strongly as lora_alpha / r says into {count(len(names), 'weight')}: "
            f"{group_names(names)}",
            names,
        )
    if different := [name for name, merge in merges.items() if merge.outcome == "different"]:
        yield _problem(
            comparison,
            f"{count(len(different), 'weight differs', 'weights differ')} from the base model by something else than the "
            f"adapter: {group_names(different)}",
            different,
        )
    if comparison.adapter is not None and comparison.adapter.lacking:
        lacking = comparison.adapter.lacking
        yield Problem(
            f"the base model lacks {count(len(lacking), 'module')} that the adapter changes: {join_truncated(lacking)}",
            hint="name the base model that the adapter was trained on",
        )
    if vanished := [name for name, merge in merges.items() if merge.outcome == "too-small"]:
        raise Skip(
            f"the update of {count(len(vanished), 'weight')} of {total:,} vanishes in rounding, so nothing tells whether it was "
            f"merged: {group_names(vanished)}"
        )


def _problem(comparison: Comparison, message: str, names: list[str]) -> Problem:
    return Problem(message, file=comparison.second.files.get(names[0]), key=names[0], hint=HINT, names=tuple(names))
