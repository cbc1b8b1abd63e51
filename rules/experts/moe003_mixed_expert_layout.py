"""Some layers store experts one by one, others fused.

## What it checks
All layers with experts use one layout: a tensor per expert (`experts.0.up_proj.weight`), or one tensor for all
(`experts.gate_up_proj`).

## Why it matters
Loaders decide once for the whole model. A loader for one layout stops, or leaves the layers of the other layout uninitialised.
transformers saves what it loaded fused as single experts, so a merge of two checkpoints easily mixes the layouts.

## How to fix
Convert all layers to the layout that this architecture uses on disk.

## When it can be wrong
- A loader of your own may read both, for example for a recipe that quantizes some layers expert by expert and leaves the others
  fused. Then `--ignore MOE003`.
- The rule knows fused tensors by the names `gate_up_proj` and `down_proj` and by three dimensions. It misses experts fused in
  another way.

## Seen in
NVIDIA-NeMo/Automodel#2595
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.experts import fused_names, iter_numbered_experts
from ckptcheck.checkpoint.views import LayeredCheckpoint
from ckptcheck.text.formatting import format_layers


@rule(
    "MOE003",
    "mixed-expert-layout",
    severity="error",
    on="layers",
    when=lambda ckpt: not ckpt.is_partial,
)
def check(ckpt: LayeredCheckpoint) -> Iterator[Problem]:
    components = ckpt.components
    single = {layer for layer, *_ in iter_numbered_experts(components)}
    fused = dict(fused_names(components))
    if single and fused:
        first = components.stack.full_name(min(fused), fused[min(fused)])
        yield Problem(
            f"experts are stored one by one in {format_layers(single)}, fused into one tensor in {format_layers(fused)}; "
            "loaders expect one layout",
            file=ckpt.tensor_to_file[first],
            key=first,
            hint="convert all layers to one layout",
        )
