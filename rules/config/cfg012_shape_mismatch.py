"""A tensor has another shape than the config, or its siblings, give it.

## What it checks
- Each dimension of each tensor of an architecture of transformers, against the fields of the config that decide it: these were
  learned by building every architecture with one size changed after the other. Where config.json lacks a field, the default of
  its class counts.
- A tensor that alone among at least four siblings, layers of a kind or experts of a layer, has another shape.
- In any architecture: `vocab_size` rows of the embedding and the output head, `hidden_size` columns of these and of the common
  norms, the size of fused experts in either order; key-value heads that divide the heads.
- A reward or value head: `[num_labels, hidden_size]`, or `[1, hidden_size]`.

- Shards that no one joined, as one finding: all tensors flat, or some 1/k of what the model has along one dimension where no
  single setting can be to blame.

One wrong setting is one finding: what fits as soon as the setting is the stored size is counted and not said again. Packed tensors
are left out; FP8 and INT8 weights with one element a number are not.

## Why it matters
transformers stops with a size mismatch, and vLLM with that or an assertion. A tensor-parallel loader may read the wrong slices. A
head `[hidden, 1]` is transposed, and `[8, hidden/8]` was saved in its tensor-parallel layout.

## How to fix
Use the config of this model, or add the key that it lacks. If one tensor alone is wrong, export it again: it was cut, transposed,
or joined over ranks. Gather shards from
all ranks before the export. Remove the padding rows that Megatron adds to a vocabulary.

## When it can be wrong
With `--dry-load transformers` the loader itself answers, and this rule is skipped. Without it, use `--ignore CFG012` where the
model's own code, under an architecture of transformers, builds other shapes: a padded vocabulary, layers that were pruned one by
one, a value head with several outputs. Dimensions that depend on a list, or on more than three switches, are not checked. Where
two sizes are equal, a transposed matrix has the right shape; 16 heads of 64 need the same shapes as 8 of 128. The rule does not
compare the vocabulary with the tokenizer (TOK001).

## Seen in
NVIDIA-NeMo/Megatron-Bridge#5375, NVIDIA-NeMo/Megatron-Bridge#625 (vocabulary); verl-project/verl#7610, verl-project/verl#7612
(joined over ranks); ggml-org/llama.cpp#20200, modal-projects/training-gym#100, huggingface/transformers#47031 (experts);
ISEEKYAN/Megatron-LM#104, NVIDIA/Model-Optimizer#931 (shards of ranks); Open-Reasoner-Zero#63 (head)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.expected.find_faults import iter_problems


@rule("CFG012", "shape-mismatch", severity="error", when=lambda ckpt: bool(ckpt.tensors) and not ckpt.is_partial)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    yield from iter_problems(ckpt, "shape")
