"""The output head is missing although it is not tied to the embedding.

## What it checks
A model with a language-modelling head whose config says `tie_word_embeddings: false` (or whose architecture does not
tie by default) holds a tensor for that head: by name, or by the embedding's shape.

## Why it matters
transformers starts the head from random numbers and warns; other converters tie it without a word. Either way logits
are not what the author trained. A missing head is right only where it is tied.

## How to fix
Save the head too, or set `tie_word_embeddings` to true if it is tied.

## When it can be wrong
A model that is used for embeddings or hidden states alone may keep the architecture of the language model it came
from and do without a head: loaded with `AutoModel` nothing is missing. Write the class without a head into
`architectures`, or `--ignore CFG007`. Code of the model's own may tie the two whatever the config says. Another
matrix of the embedding's shape outside of the layers, such as a second table, is taken for the head, so that the loss
of the real one is not seen.

## Seen in
QwenLM/Qwen3-VL-Embedding#89, NVIDIA/TensorRT-LLM#3324
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint

PACKED_HEAD = re.compile(
    r"(^|\.)(lm_head|embed_out|output|head|unembed)\.(qweight|weight_packed|weight|weight_blocks)$"
)
WITH_HEAD = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


@rule(
    "CFG007",
    "missing-head",
    severity="error",
    when=lambda ckpt: (
        ckpt.config is not None
        and (ckpt.config.architecture or "").endswith(WITH_HEAD)
        and ckpt.anatomy.tied is False
        and ckpt.anatomy.embedding is not None
        and not ckpt.is_partial
    ),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    anatomy = ckpt.anatomy
    assert anatomy.embedding is not None
    shape = ckpt.tensors[anatomy.embedding].shape
    alike = [name for name in anatomy.layout.outside if name != anatomy.embedding and ckpt.tensors[name].shape == shape]
    packed = any(PACKED_HEAD.search(name) for name in anatomy.layout.outside)
    numbered = [prefix for prefix in anatomy.layout.stacks if "head" in prefix]
    if anatomy.head is None and not alike and not numbered and not packed:
        said = ckpt.config is not None and ckpt.config.get("tie_word_embeddings") is False
        why = "tie_word_embeddings is false" if said else f"{ckpt.config.architecture} does not tie it"  # type: ignore[union-attr]
        yield Problem(
            f"there is no output head (lm_head.weight), and {why}, so transformers starts it from random numbers",
            file="config.json",
            key="tie_word_embeddings",
            hint="save the head too, or set tie_word_embeddings to true if it is tied",
        )
