"""The number of experts per token is none, or more than there are.

## What it checks
Where the tensors show routed experts, or every model of the architecture has them: `num_experts_per_tok` (and its synonyms) is
at least 1 and at most the number of experts; in DeepSeek-V3 and GLM-4.5, `n_group` divides the experts and
`topk_group` is at most `n_group`. Where config.json lacks a key, the default of its class counts.

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
from ckptcheck.checkpoint.config import EXPERTS, EXPERTS_PER_TOKEN, GROUPED_ROUTERS
from ckptcheck.checkpoint.experts import fused_names, iter_numbered_experts
from ckptcheck.checkpoint.setting_text import describe
from ckptcheck.checkpoint.views import ConfiguredCheckpoint
from ckptcheck.checkpoint.weights_table import WeightsTable


@rule(
    "CFG026",
    "experts-per-token",
    severity="error",
    on="config",
    when=lambda ckpt: not ckpt.is_partial and isinstance(ckpt.components.num_experts, int) and _has_experts(ckpt),
)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    config, experts = ckpt.config, ckpt.components.num_experts
    chosen, resolved = config.number(*EXPERTS_PER_TOKEN), config.resolved
    setting = resolved.find(*EXPERTS_PER_TOKEN) if resolved is not None else None
    is_null = setting is not None and setting.source == "config" and setting.value is None
    # Where the class refuses null, CFG023 reports it.
    if (
        is_null
        and setting is not None
        and resolved is not None
        and resolved.text.config_class.accepts(setting.name, None)
    ):
        yield Problem(
            f"{setting.key_path} is null, but the layers have experts; transformers stops in the first forward pass",
            file=config.file,
            key=setting.key_path,
            hint="copy the number from the model's own config",
        )
    elif (
        setting is not None
        and setting.value is not None
        and type(setting.value) is not int
        and resolved is not None
        and setting.name not in resolved.text.config_class.types  # CFG023 has those
    ):
        yield Problem(
            f"{describe(setting)}, but it must be an integer; transformers stops in the first forward pass",
            file=config.file,
            key=setting.key_path,
            hint="copy the number from the model's own config",
        )
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
    """Whether any layer has routed experts: by its tensors, or because every model of the architecture chooses among some."""
    anatomy, table = ckpt.components, WeightsTable.of(ckpt.config)
    if table is not None and any(path.rpartition(".")[2] in EXPERTS_PER_TOKEN for path in table.refused.most):
        return True
    return any(True for _ in iter_numbered_experts(anatomy)) or any(True for _ in fused_names(anatomy))
