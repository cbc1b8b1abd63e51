"""There are more layers than the config declares.

## What it checks
No layer of the language model has a number at or beyond `num_hidden_layers`, except layers of multi-token prediction. The rule
recognizes these by their tensors (`eh_proj`, `enorm`, `hnorm`, `shared_head`, or a name with `mtp` or `nextn`), or by the config,
which counts them (`num_nextn_predict_layers` and the like), if they are not built as the layers before them.

Of several stacks of layers, the language model's is the one nearest to the token embedding: encoders of images or sound, and
heads that draft tokens, have a depth of their own.

## Why it matters
transformers omits the surplus layers, so the model runs with fewer layers than it was trained with; vLLM stops with a
KeyError for most architectures.

## How to fix
Correct `num_hidden_layers`, or delete the layers if they come from another model.

## When it can be wrong
Layers of multi-token prediction count as surplus if their tensors have the names of ordinary layers, or other names that the
config does not count. So do blocks beyond the declared ones that the model's own code (`auto_map`) reads. Use `--ignore CFG004`
in both cases. A surplus layer with one of the names above passes, whatever the config declares.

## Seen in
No public report: configs copied from a smaller sibling.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import LayeredCheckpoint
from ckptcheck.text.formatting import format_ranges


@rule(
    "CFG004",
    "surplus-layer",
    severity="error",
    on="layers",
    when=lambda ckpt: ckpt.components.num_layers is not None and not ckpt.is_partial,
)
def check(ckpt: LayeredCheckpoint) -> Iterator[Problem]:
    anatomy = ckpt.components
    declared = anatomy.num_layers
    surplus = {layer for layer in anatomy.layers if declared is not None and layer >= declared}
    if surplus and ckpt.config is not None:
        key = ckpt.config.key_path(*anatomy.depth_names)
        yield Problem(
            f"{ckpt.config.describe(*anatomy.depth_names)}, but {anatomy.stack.prefix} has layers beyond that: "
            f"{format_ranges(surplus)}; transformers omits them",
            file=ckpt.config.file,
            key=key,
            hint="correct the number, or delete the layers if they come from another model",
        )
