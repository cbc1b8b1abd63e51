"""The output head is missing although it is not tied to the embedding.

## What it checks
A model with a language-modelling head whose config says `tie_word_embeddings: false` (or whose architecture does not tie by
default) holds a tensor for that head, recognized by name or by the embedding's shape. Classes that transformers 5 ties whatever
the config says are left out: T5, mT5, UMT5, LongT5, Udop.

## Why it matters
transformers initializes the head with random numbers and warns; other converters silently tie it. Either way the logits are
not those of the trained model. A head may be missing only if it is tied.

## How to fix
Save the head too, or set `tie_word_embeddings` to true if it is tied.

## When it can be wrong
A model that is used only for embeddings or hidden states may keep the architecture of its language model without a head:
`AutoModel` misses nothing. Where its tensors have the names of the model without a head (`layers.0.…`), it is only a warning, and
nothing beside files of sentence-transformers. Write the class without a head into `architectures`, or use `--ignore CFG007`. The
model's own code may tie the two whatever the config says. Where the architecture was not learned, another matrix of the
embedding's shape outside the layers, such as a second table, counts as the head and hides the loss of the real one. transformers
4 does not tie an untied T5 that has lost its head.

## Seen in
QwenLM/Qwen3-VL-Embedding#89, NVIDIA/TensorRT-LLM#3324
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.architecture import KnownModules
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.components import HEAD
from ckptcheck.checkpoint.heads import always_ties
from ckptcheck.checkpoint.packing import unquantized_names
from ckptcheck.checkpoint.weights_table import WeightsTable

PACKED_HEAD = re.compile(r"(^|\.)(lm_head|embed_out|output|head|unembed)\.weight$")
OF_EMBEDDERS = ("modules.json", "config_sentence_transformers.json")
"""Files beside a model from which sentence-transformers makes embeddings."""
WITH_HEAD = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


@rule(
    "CFG007",
    "missing-head",
    severity="error",
    when=lambda ckpt: (
        ckpt.config is not None
        and (ckpt.config.architecture or "").endswith(WITH_HEAD)
        and ckpt.components.is_tied is False
        and not always_ties(ckpt.config.architecture)
        and ckpt.components.embedding is not None
        and not ckpt.components.is_draft
        and not ckpt.is_partial
    ),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    anatomy = ckpt.components
    shape = ckpt.tensors[anatomy.embedding].shape if anatomy.embedding is not None else None
    table = WeightsTable.of(ckpt.config)
    # Where it is learned what the head is called, a matrix with another name is none.
    is_learned = table is not None and any(HEAD.search(name) for name in table.shapes)
    alike = not is_learned and any(
        name != anatomy.embedding and ckpt.tensors[name].shape == shape for name in anatomy.layout.outside
    )
    packed = any(PACKED_HEAD.search(name) for name in unquantized_names(anatomy.layout.outside))
    numbered = [prefix for prefix in anatomy.layout.stacks if "head" in prefix]
    # A model of speech may have no head for text (Higgs Audio has an `audio_lm_head`).
    numbered += [name for name in anatomy.layout.outside if not is_learned and name.endswith("_lm_head.weight")]
    if anatomy.lm_head is None and not alike and not numbered and not packed:
        said = ckpt.config is not None and ckpt.config.get("tie_word_embeddings") is False
        why = "tie_word_embeddings is false" if said else f"{ckpt.config.architecture} does not tie it"  # type: ignore[union-attr]
        missing = f"there is no output head (lm_head.weight), and {why}"
        if not _is_headless(ckpt):
            yield Problem(
                f"{missing}, so transformers initializes it with random numbers",
                file="config.json",
                key="tie_word_embeddings",
                hint="save the head too, or set tie_word_embeddings to true if it is tied",
            )
        elif not any(name in ckpt.files for name in OF_EMBEDDERS):
            yield Problem(
                f"{missing}; as the tensors are named, a model without a head was saved. That is enough for embeddings "
                "(AutoModel), but to write text transformers initializes the head with random numbers",
                file="config.json",
                key="architectures",
                severity="warning",
                hint="name the class without a head in architectures, or save the head too if the model is to write text",
            )


def _is_headless(ckpt: Checkpoint) -> bool:
    """Whether the tensors have the names of the model without its head: `layers.0`, and not `model.layers.0`."""
    known, stack = KnownModules.of(ckpt.config), ckpt.components.stack
    if stack is None:
        return False
    if known is None:  # its own code: most classes with a head call the model `model` or `transformer`
        return "." not in stack.prefix
    modules = {
        known.module(stack.full_name(layer, name)) for layer, names in ckpt.components.layers.items() for name in names
    }
    return not modules & known.modules and any(map(known.has, modules))
