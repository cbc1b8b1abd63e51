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
from math import sqrt
from statistics import median

from ckptcheck import Problem, Skip, rule
from ckptcheck.compare.matching.comparison import Comparison
from ckptcheck.compare.matching.merged_adapter import ModuleMerge
from ckptcheck.compare.matching.name_groups import group_names
from ckptcheck.errors import EvidenceError
from ckptcheck.text.formatting import count, join_truncated

HINTS = {
    "scaled": "merge again, once, into the base model, with lora_alpha / r, or lora_alpha / sqrt(r) if use_rslora is set",
    "different": "make sure that --base is the model into which the adapter was merged; if it is, merge again",
}
"""Outcome → what to do, where it is not to merge again."""
CLOSE = 0.03
"""Relative distance of a factor from one that a known mistake makes."""
ORDER = ("unmerged", "misordered", "scaled", "different", "merged")


@rule("CMP012", "unmerged-adapter", severity="error", on="comparison", when=lambda pair: pair.adapter is not None)
def check(comparison: Comparison) -> Iterator[Problem]:
    merges = {name: merge for name, merge in comparison.merges.items() if isinstance(merge, ModuleMerge)}
    by_outcome: dict[tuple[str, str], list[str]] = {}
    for name, merge in merges.items():
        factor = f"{merge.factor:.2g}" if merge.outcome == "scaled" else ""
        by_outcome.setdefault((merge.outcome, factor), []).append(name)
    total = len(merges)
    vanished = by_outcome.pop(("too-small", ""), [])
    for (outcome, factor), names in sorted(by_outcome.items(), key=lambda item: ORDER.index(item[0][0])):
        number = count(len(names), "weight")
        if outcome == "unmerged":
            where = "any of the" if len(names) == total else f"{len(names):,} of"
            text = f"the adapter was not merged into {where} {count(total, 'weight')} that it changes"
        elif outcome == "misordered":
            text = (
                f"the adapter was merged into {number} with the columns of lora_B of each expert in a row; PEFT lays them out "
                "rank by rank"
            )
        elif outcome == "scaled":
            rank = comparison.adapter.rank if comparison.adapter is not None else None
            cause = _explain_factor(median(merges[name].factor for name in names), rank)
            text = f"the adapter was merged {factor} times as strongly as lora_alpha / r says into {number}{cause}"
        elif outcome == "different":
            differ = count(len(names), "weight differs", "weights differ")
            text = f"{differ} from the base model by something else than the adapter"
        else:
            continue
        yield Problem(
            f"{text}: {group_names(names)}",
            file=comparison.second.files.get(names[0]),
            key=names[0],
            hint=HINTS.get(outcome, "merge again from the base model, and check with this command"),
            names=tuple(names),
        )
    if comparison.adapter is not None and comparison.adapter.lacking:
        lacking = comparison.adapter.lacking
        yield Problem(
            f"the base model lacks {count(len(lacking), 'module')} that the adapter changes: {join_truncated(lacking)}",
            hint="name the base model that the adapter was trained on; if this is it, the adapter's names are wrong",
        )
    if vanished:
        why = f"the update of {count(len(vanished), 'weight')} of {total:,} vanishes in rounding, so nothing tells whether it was"
        why += f" merged: {group_names(vanished)}"
        # where nothing can be told, what --base asks has no answer
        raise EvidenceError(why) if len(vanished) == total else Skip(why)


def _explain_factor(factor: float, rank: int | None) -> str:
    """Return what makes such a factor, as an insertion into a sentence; empty for none."""
    known = [(2.0, "merged twice"), (-1.0, "subtracted")]
    if rank is not None and rank > 1:
        known += [(float(rank), "lora_alpha without / r"), (sqrt(rank), "lora_alpha / sqrt(r), as rslora has it")]
        known += [(1 / sqrt(rank), "lora_alpha / r for an adapter of rslora")]
    causes = [text for each, text in known if abs(factor / each - 1) <= CLOSE]
    return f" ({' or '.join(causes)})" if causes else ""
