"""Values of the config do not go together.

## What it checks
Where transformers knows the `model_type`, in the config and its nested configs:

- sizes are at least 1, and where the model demands it, the heads divide the hidden size;
- what the config class checks of its settings when it is built, learned from its code: that a size divides another, or is the
  product of others, that lists have one length, that a choice is one of a few;
- the sliding window, or the chunk, has a token, where layers attend within one;
- a number is at most as large as another one, or divides it, where the model chooses so many of others, groups them, or rotates
  so much of each head: learned from transformers;
- nothing is null, 0, 1, negative or a list, no list is shorter, no word is another than a model knows, and no part is
  empty, where the model cannot be built, or cannot compute, with that: learned from transformers;
- no layer has a setting for itself (`per_layer_config`) of which the model reads one value for all layers, or for all of a kind;
- a list with an entry for each layer does not end before the last layer;
- a number of layers is at least as large as another one, where a decoder has its cache by it (Bart's, alone);
- a part of each head is rotated only by models that do not rotate the whole;
- a width of heads that the class does not declare, but the model rotates by, is the one that it computes;
- a number that the class computes as a copy of another setting is that copy where config.json gives it: learned from transformers;
- sizes that the config class does not declare, but the model reads, are integers;
- `pad_token_id` is a row of the embedding, where the model looks it up;
- lists of layer kinds (`layer_types`, `mlp_layer_types`) have an entry that transformers knows for each layer;
- `rope_scaling` and `rope_parameters` have a type that transformers computes, the keys that it needs, numbers where transformers
  computes with them, as many factors as the heads have rotated pairs of channels, and, where the class fills in nothing, a base
  and an entry for each kind of layer.

CFG014 compares key-value heads with heads, and both with the tensors.

## Why it matters
transformers stops when it builds the config or the model, and so do vLLM and SGLang, which read the config through it.

## How to fix
Copy the values from the config of the model this one was trained or converted from.

## When it can be wrong
A config with its own class (`auto_map`) is not checked. Older versions of transformers only warned about a rotary embedding
that lacks a key.

## Seen in
huggingface/transformers#32167, huggingface/transformers#32182: which missing keys of `rope_scaling` stop transformers
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.config_refusals import (
    iter_broken_demands,
    iter_empty_windows,
    iter_impossible_sizes,
    iter_wrong_layer_lists,
)
from ckptcheck.checkpoint.model_refusals import iter_refused_by_model
from ckptcheck.checkpoint.parameters_table import ParametersTable
from ckptcheck.checkpoint.rope_refusals import iter_lost_rope, iter_wrong_rope
from ckptcheck.checkpoint.views import ConfiguredCheckpoint
from ckptcheck.checkpoint.weights_table import WeightsTable


@rule(
    "CFG024",
    "impossible-combination",
    severity="error",
    on="config",
    when=lambda ckpt: not ckpt.is_partial and ckpt.config.resolved is not None,
)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    config = ckpt.config
    found: dict[str, str] = {}
    if (resolved := config.resolved) is None:
        return
    for part in resolved.parts:
        for path, fault in (
            *iter_impossible_sizes(part),
            *iter_broken_demands(part, resolved),
            *iter_wrong_layer_lists(part),
            *iter_empty_windows(part),
            *iter_wrong_rope(part),
            *iter_lost_rope(part, ParametersTable.find_needed_rope(part.config_class.models)),
        ):
            found.setdefault(path, fault)
    if (table := WeightsTable.of(config)) is not None:
        for path, fault in iter_refused_by_model(table, resolved):
            found.setdefault(path, fault)
    for path, fault in found.items():
        if path not in config.malformed_counts:
            yield Problem(
                f"{fault}; transformers stops when it builds or runs the model",
                file=config.file,
                key=path,
                hint="copy the values from the model's own config",
            )
