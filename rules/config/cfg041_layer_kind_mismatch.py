"""A layer is of another kind than the config gives it.

## What it checks
- Experts or a dense feed-forward block: the settings that decide it (`first_k_dense_replace`, `decoder_sparse_step`,
  `mlp_only_layers`, `moe_layer_freq`, `mlp_layer_types`, …) were learned from transformers for each architecture.
- Attention, convolution, linear attention, Mamba: the layers to which `layer_types` or `layers_block_type` gives one type hold the
  same kind of mixer. Two mixers are of different kinds if each has tensors that the other lacks. For the architectures of
  transformers the tensors that only layers of one type have were learned, and each layer is compared with its own type.

If config.json lacks a setting, the default of its class counts.

## Why it matters
transformers builds the layers by the config, initializes them at random and leaves out the stored tensors, with an easily missed
warning; vLLM stops or leaves it uninitialized. A config that lost a key, a list of another size of the family, or one that an
export script sorted, does this.

## How to fix
Copy the setting or the list from the config of the model this one was trained or converted from.

## When it can be wrong
With `--dry-load transformers` the loader itself answers, and this rule is skipped. The model's own code may choose by another
setting, under an architecture of transformers: use `--ignore CFG041`. Layers after the last one of `num_hidden_layers` are not
checked. In an unknown architecture a list in which two types have changed places everywhere passes, and so does one that gives
each type to one layer only.

## Seen in
No public report: configs that lost a key. What transformers does with them was measured.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.expected.find_faults import iter_problems


@rule("CFG041", "layer-kind-mismatch", severity="error", when=lambda ckpt: bool(ckpt.tensors) and not ckpt.is_partial)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    yield from iter_problems(ckpt, "kind")
