"""Finds what a model lacks at its ends: token embedding, output head, score head, or layers of multi-token prediction."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckptcheck.checkpoint.architecture import KnownModules
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.components import EMBEDDING, HEAD, SCORE
from ckptcheck.checkpoint.config import MTP_LAYERS
from ckptcheck.checkpoint.expected.fault import Explained, Fault
from ckptcheck.checkpoint.expected.foreign_layout import list_layer_modules
from ckptcheck.checkpoint.expected.stored_parameters import StoredParameters
from ckptcheck.checkpoint.heads import always_ties, find_likely_heads, is_scorer, score_head_modules
from ckptcheck.checkpoint.layout import ASIDE
from ckptcheck.checkpoint.packing import PACKED, unquantized_names
from ckptcheck.checkpoint.weights_table import WeightsTable
from ckptcheck.linter.rule import Problem

PARAMETRIZED = re.compile(r"\.parametrizations\.weight\.original$")
"""The name that torch gives the plain weight under a parametrization, such as the adapters in jina-embeddings-v3."""
PACKED_HEAD = re.compile(r"(^|\.)(lm_head|embed_out|output|head|unembed)\.weight$")
OF_EMBEDDERS = ("modules.json", "config_sentence_transformers.json")
"""Files that sentence-transformers keeps beside a model of embeddings."""
WITH_HEAD = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


def find_lost_ends(ckpt: Checkpoint, explained: Explained) -> Iterator[Fault]:
    """Yield what is missing before and after the layers. Mark both ends as decided, so that no later step reports them."""
    for find in (_find_lost_embedding, _find_lost_head, _find_lost_score_head):
        is_said = find is _find_lost_embedding and EMBEDDING in explained.patterns
        if not is_said and (problem := find(ckpt)) is not None:
            yield Fault("missing", problem)
    if (problem := _find_lost_prediction(ckpt)) is not None:
        yield Fault("missing", problem, is_of_engines=True)
    stored = StoredParameters.of(ckpt)
    # An embedding under a name that the class does not read is stored, and the model's own is missing all the same.
    is_unread = stored is not None and any(EMBEDDING.search(name) for name in stored.absent)
    explained.patterns += [*(() if is_unread else (EMBEDDING,)), HEAD, *((SCORE,) if is_scorer(ckpt.config) else ())]
    explained.except_for.append(ASIDE)


def _find_lost_embedding(ckpt: Checkpoint) -> Problem | None:
    anatomy, config = ckpt.components, ckpt.config
    if config is None or not config.architecture or not anatomy.is_language_model:
        return None
    if anatomy.stack is None or not anatomy.layers or anatomy.is_draft or anatomy.is_sequential:
        return None
    if anatomy.embedding is not None or (anatomy.is_tied and anatomy.lm_head is not None):
        return None
    # A quantization may pack the embedding into other shapes; MusicGen has a table for each codebook.
    named = [
        *(PARAMETRIZED.sub(".weight", PACKED.sub("weight", name)) for name in anatomy.layout.outside),
        *anatomy.layout.outside,
        *(f"{prefix}.weight" for prefix in anatomy.layout.stacks),
    ]
    if any("char_embeddings." in name for name in named):  # CANINE hashes characters into several tables
        return None
    if any(EMBEDDING.search(name) and not ASIDE.search(name) for name in named):
        return None
    if "embed_tokens.embed_audio_tokens.weight" in named:  # the backbone of CSM reads only audio tokens
        return None
    return Problem(
        f"there are {len(anatomy.layers)} layers in {anatomy.stack.prefix}, but no token embedding; "
        "transformers initializes it with random numbers",
        file=ckpt.file_of(anatomy.stack.full_name(min(anatomy.layers))),
        hint="convert again from a checkpoint that has it",
    )


def _find_lost_head(ckpt: Checkpoint) -> Problem | None:
    """Return the problem of an untied output head that is not stored, by its name or by the embedding's shape."""
    anatomy, config = ckpt.components, ckpt.config
    if config is None or not (config.architecture or "").endswith(WITH_HEAD):
        return None
    if anatomy.is_tied is not False or always_ties(config.architecture):
        return None
    if anatomy.embedding is None or anatomy.is_draft or anatomy.lm_head is not None:
        return None
    shape, table = ckpt.tensors[anatomy.embedding].shape, WeightsTable.of(config)
    # If the table knows the head's name, a matrix with another name is no head.
    is_learned = table is not None and any(HEAD.search(name) for name in table.shapes)
    alike = not is_learned and any(
        name != anatomy.embedding and ckpt.tensors[name].shape == shape for name in anatomy.layout.outside
    )
    packed = any(PACKED_HEAD.search(name) for name in unquantized_names(anatomy.layout.outside))
    numbered = any("head" in prefix for prefix in anatomy.layout.stacks)
    # A model of speech may have no head for text (Higgs Audio has an `audio_lm_head`).
    speaks = not is_learned and any(name.endswith("_lm_head.weight") for name in anatomy.layout.outside)
    if alike or packed or numbered or speaks:
        return None
    is_said = config.get("tie_word_embeddings") is False
    why = "tie_word_embeddings is false" if is_said else f"{config.architecture} does not tie it"
    missing = f"there is no output head (lm_head.weight), and {why}"
    if not _is_headless(ckpt):
        return Problem(
            f"{missing}, so transformers initializes it with random numbers",
            file="config.json",
            key="tie_word_embeddings",
            hint="save the head too, or set tie_word_embeddings to true if it is tied",
        )
    if any(name in ckpt.files for name in OF_EMBEDDERS):
        return None
    return Problem(
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
    modules = list_layer_modules(ckpt, known)
    return not modules & known.modules and any(map(known.has, modules))


def _find_lost_score_head(ckpt: Checkpoint) -> Problem | None:
    """Return the problem of a classifier, a reward model or a critic without its head."""
    config, components = ckpt.config, ckpt.components
    if config is None or not is_scorer(config) or not ckpt.tensors or components.score_head_tensors:
        return None
    if config.get("classifier_from_token") or "auto_map" in config.value:
        return None  # vLLM takes the head's rows from the LM head (model_executor/models/adapters.py, 0.32)
    own = score_head_modules(config.architecture)
    if find_likely_heads(components) or any(
        name.startswith(tuple(f"{head}." for head in own)) for name in ckpt.tensors
    ):
        return None
    lm_head = ", only a language-modelling head" if components.lm_head else ""
    needed = f"needs a head ({own[0]})" if own else "needs a head"
    return Problem(
        f"{config.architecture} {needed}, but there is none{lm_head}; "
        f"{'transformers' if own else 'what loads it'} initializes it with random numbers",
        file=config.file,
        key="architectures",
        hint="export the head with the model, or correct architectures",
    )


def _find_lost_prediction(ckpt: Checkpoint) -> Problem | None:
    """Return the problem of multi-token prediction layers that the config counts and no file stores."""
    config, components = ckpt.config, ckpt.components
    if config is None or not components.layers or components.has_mtp or (config.integer(*MTP_LAYERS) or 0) <= 0:
        return None
    key = config.key_path(*MTP_LAYERS)
    return Problem(
        f"{key.rpartition('.')[2]} is {config.integer(*MTP_LAYERS)}, but there are no tensors of multi-token prediction; "
        "speculative decoding with it would accept nothing",
        file=config.file,
        key=key,
        severity="warning",
        hint="copy them from the original checkpoint, or set the number to 0",
    )
