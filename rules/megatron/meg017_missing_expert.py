"""A layer lacks experts, or parts of experts.

## What it checks
- Every layer with experts has all of them, 0 to `num_experts` - 1 of the saved arguments; without arguments, as many as the
  layer that has the most.
- Where the arguments describe a plain GPT, `num_experts` and `moe_layer_freq` say which layers have experts. The rule then
  also finds a layer that lost all of them.
- Every expert has both of its matrices (`linear_fc1`, `linear_fc2`), and everything that most other experts of its layer
  have.

## Why it matters
The job that saves only the experts of some ranks does not notice. The router still selects the missing experts, and whoever
loads the checkpoint computes with uninitialized memory.

## How to fix
Save again, with distinct expert numbers for every expert-parallel rank.

## When it can be wrong
Experts may be pruned layer by layer, and the model saved under its old arguments. `--ignore MEG017` silences it.

## Seen in
verl-project/verl#2086, KempnerInstitute/KempnerForge#202, NVIDIA-NeMo/Megatron-Bridge#1716
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.required_weights import FC1, FC2, expert_layers, is_plain, torn_experts
from ckptcheck.checkpoint.megatron.structure import positive_argument
from ckptcheck.text.formatting import count, format_ranges, join_truncated

HINT = "save again, with distinct expert numbers for every expert-parallel rank"


@rule(
    "MEG017",
    "missing-expert",
    severity="error",
    on="megatron",
    when=lambda run: (
        bool(run.structure.experts)
        or (bool(run.structure.layers) and positive_argument(run.args, "num_experts") is not None)
    ),
)
def check(run: Megatron) -> Iterator[Problem]:
    most = 1 + max((expert for experts in run.structure.experts.values() for expert in experts), default=-1)
    expected = positive_argument(run.args, "num_experts") or most
    experts_by_layer = {layer: set[int]() for layer in _layers_without_experts(run)} | run.structure.experts
    lacking = [
        layer for layer, experts in experts_by_layer.items() if sum(expert < expected for expert in experts) < expected
    ]
    if lacking:
        layer = min(lacking)
        missing = set(range(expected)) - experts_by_layer[layer]
        more = (
            f", and {count(len(lacking) - 1, 'more layer lacks', 'more layers lack')} some" if len(lacking) > 1 else ""
        )
        yield Problem(
            f"layer {layer} lacks {count(len(missing), 'expert')} of {expected} ({format_ranges(missing)}){more}",
            file=run.finding_file,
            hint=HINT,
        )
    incomplete = torn_experts(run.structure)
    if incomplete:
        layer, parts = min(incomplete.items())
        experts = set[int]().union(*parts.values())
        more = (
            f"; {count(len(incomplete) - 1, 'more layer has', 'more layers have')} the same gap"
            if len(incomplete) > 1
            else ""
        )
        yield Problem(
            f"{count(len(experts), 'expert')} of layer {layer} ({format_ranges(experts)}) "
            f"{'lacks' if len(experts) == 1 else 'lack'} {join_truncated(parts)}{more}",
            file=run.finding_file,
            hint=HINT,
        )


def _layers_without_experts(run: Megatron) -> list[int]:
    """Return the layers that should have experts by the arguments, and have neither those nor a dense block."""
    layers = run.structure.layers
    if not is_plain(run.args, layers):
        return []
    return [
        layer
        for layer in sorted(expert_layers(run.args, layers) or ())
        if not layers[layer] & {*FC1, *FC2} and not any(name.startswith("mlp.experts.") for name in layers[layer])
    ]
