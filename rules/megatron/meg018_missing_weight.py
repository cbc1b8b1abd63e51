"""A weight that the model needs is missing.

## What it checks
The token embedding and the final norm are there; so is the output layer, or a value head in its place, where the arguments
say that embeddings are not tied. A layer has every weight that all other layers of its kind (with or without experts) have,
where there are at least three others.

## Why it matters
Megatron stops at a key it asks for and does not find, or, with a lenient `--dist-ckpt-strictness`, goes on with what was
allocated. A critic that was saved without its head is such a checkpoint too.

## How to fix
Save again; for a critic, make the head a part of `sharded_state_dict`.

## When it can be wrong
A pipeline stage checked by itself. A hybrid model whose one odd layer stands alone. `--ignore MEG018` silences it.

## Seen in
hiyouga/LlamaFactory#4379 (a value model without its head), NVIDIA-NeMo/RL#2124 (layers and keys lost in a conversion)
"""

from collections import Counter
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.checkpoint.megatron.structure import EMBEDDING, FINAL_NORM, OUTPUT, VALUE_HEADS


@rule(
    "MEG018",
    "missing-weight",
    severity="error",
    on="megatron",
    when=lambda run: bool(run.structure.layers) and bool(run.args),
)
def check(run: Megatron) -> Iterator[Problem]:
    has_head = any(name.endswith(VALUE_HEADS) for name in run.weights)
    for name, needed in (
        (EMBEDDING, True),
        (FINAL_NORM, True),
        (OUTPUT, run.args.get("untie_embeddings_and_output_weights") is True and not has_head),
    ):
        if needed and name not in run.weights:
            other = ", nor is there a value head in its place" if name == OUTPUT else ""
            yield Problem(f"this weight is missing{other}", file=run.place, key=name, hint="save again")
    kinds: dict[bool, list[int]] = {}
    for layer in run.structure.layers:
        kinds.setdefault(layer in run.structure.experts, []).append(layer)
    for layers in kinds.values():
        seen = Counter(name for layer in layers for name in run.structure.layers[layer])
        for layer in layers if len(layers) > 3 else []:
            for name in sorted(seen.keys() - run.structure.layers[layer]):
                if seen[name] == len(layers) - 1:
                    yield Problem(
                        f"this weight is missing, and all {len(layers) - 1} other layers of its kind have it",
                        file=run.place,
                        key=f"decoder.layers.{layer}.{name}",
                        hint="save again",
                    )
