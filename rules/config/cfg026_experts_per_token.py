"""The number of experts per token is none, or more than there are.

## What it checks
Where the tensors show routed experts: `num_experts_per_tok` (and its synonyms) is at least 1 and at most the number of
experts. Where config.json lacks a key, the default of its class counts.

## Why it matters
With 0, every token skips the experts, and the model computes something else without a word. With more than there are,
transformers, vLLM and SGLang stop in the first forward pass.

## How to fix
Copy the number from the config of the model this one was trained or converted from.

## When it can be wrong
A model whose own code gives the key another meaning, under a known `model_type`: use `--ignore CFG026`. A number that is
possible and wrong passes.

## Seen in
No public report: configs edited by hand, and experts removed by pruning.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.config import EXPERTS, EXPERTS_PER_TOKEN
from ckptcheck.checkpoint.experts import fused_names, iter_numbered_experts
from ckptcheck.checkpoint.views import ConfiguredCheckpoint


@rule(
    "CFG026",
    "experts-per-token",
    severity="error",
    on="config",
    when=lambda ckpt: not ckpt.is_partial and isinstance(ckpt.components.num_experts, int) and _has_experts(ckpt),
)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    config, experts = ckpt.config, ckpt.components.num_experts
    chosen = config.number(*EXPERTS_PER_TOKEN)
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


def _has_experts(ckpt: ConfiguredCheckpoint) -> bool:
    """Whether any layer has routed experts."""
    anatomy = ckpt.components
    return any(True for _ in iter_numbered_experts(anatomy)) or any(True for _ in fused_names(anatomy))
