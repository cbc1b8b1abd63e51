"""The number of experts per token is none, or more than there are.

## What it checks
Where the tensors show routed experts: `num_experts_per_tok` (and its synonyms) is at least 1 and at most the number of experts; in
DeepSeek-V3 and GLM-4.5, `n_group` divides the experts and `topk_group` is at most `n_group`. Where config.json lacks a key, the
default of its class counts.

## Why it matters
With 0, every token skips the experts, and the model computes something else without a word. With more than there are,
transformers, vLLM and SGLang stop in the first forward pass.

## How to fix
Copy the number from the config of the model this one was trained or converted from.

## When it can be wrong
A model whose own code gives the key another meaning, under a known `model_type`: use `--ignore CFG026`. A number that is
possible and wrong passes.

## Seen in
No public report: what transformers does was measured. Tools that remove experts write the numbers anew
(vllm-project/llm-compressor#2864).
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.config import EXPERTS, EXPERTS_PER_TOKEN, GROUPED_ROUTERS
from ckptcheck.checkpoint.views import ConfiguredCheckpoint

ROUTED = re.compile(r"\bexperts\b|_moe\b|\brouter\b")
"""Names of modules with routed experts: `mlp.experts`, GraniteMoE's `block_sparse_moe`."""


@rule(
    "CFG026",
    "experts-per-token",
    severity="error",
    on="config",
    when=lambda ckpt: not ckpt.is_partial and isinstance(ckpt.components.num_experts, int) and _has_experts(ckpt),
)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    config, experts, chosen = ckpt.config, ckpt.components.num_experts, ckpt.config.number(*EXPERTS_PER_TOKEN)
    if chosen is None or not isinstance(experts, int) or experts < 1:
        return
    if chosen < 1 or chosen > experts:
        what = "so no token reaches an expert" if chosen < 1 else f"but {config.describe(*EXPERTS)}"
        yield Problem(
            f"{config.describe(*EXPERTS_PER_TOKEN)}, {what}; transformers "
            f"{'computes without the experts' if chosen == 0 else 'stops in the first forward pass'}",
            file=config.file,
            key=config.key_path(*EXPERTS_PER_TOKEN),
            hint="copy the number from the model's own config",
        )
    groups, chosen_groups = config.number("n_group"), config.number("topk_group")
    given = {"n_group", "topk_group"} & config.text.keys()
    if not given or config.text.get("model_type") not in GROUPED_ROUTERS:
        return
    if groups is None or chosen_groups is None or groups < 1 or experts % groups or not 1 <= chosen_groups <= groups:
        yield Problem(
            f"{config.describe('n_group')}, {config.describe('topk_group')} and {config.describe(*EXPERTS)}, which do not go "
            "together; transformers stops in the first forward pass",
            file=config.file,
            key=config.key_path("n_group"),
            hint="copy the numbers from the model's own config",
        )


def _has_experts(ckpt: ConfiguredCheckpoint) -> bool:
    """Whether any layer has routed experts, by the names of its tensors."""
    return any(ROUTED.search(template) for template in ckpt.layout.names_by_template)
