"""Compares tensors with the sizes that mean the same in every architecture: vocabulary, width, experts, labels."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.config import HIDDEN, Config
from ckptcheck.checkpoint.decoder_families import family_of
from ckptcheck.checkpoint.expected.fault import Explained
from ckptcheck.checkpoint.experts import fused_names
from ckptcheck.checkpoint.heads import VALUE_HEADS, count_labels, explain_head_shape, is_scorer, score_head_modules
from ckptcheck.checkpoint.layout import INDEX, Stack
from ckptcheck.checkpoint.weights_table import WeightsTable
from ckptcheck.linter.rule import Problem
from ckptcheck.text.formatting import format_layers, format_shape, join_truncated

NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight")
FACTORED = (
    "embedding_size",
    "word_embed_proj_dim",
    "embedding_dim",
    "emb_dim",
    "input_embedding_size",
    "d_embed",
    "encoder_hidden_size",
    "backbone_hidden_size",
)
"""Settings of architectures whose embedding is narrower than the model (ALBERT, OPT-350m, ELECTRA, …), or wider (CSM)."""
LATENT = ("moe_latent_size", "moe_hidden_size")
"""Settings with the width of the experts' input, where a projection comes before them."""
EXPERT_WIDTH = ("moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size")
PADDED = ("padded_vocab_size", "embedding_size")
"""Settings that give the number of rows including padding."""
MULTIPLES = ("pad_vocab_size_multiple", "make_vocab_size_divisible_by")
WITH_MORE_ROWS = ("moshi", "cpmant", "csm", "kyutai_speech_to_text", "mllama", "mllama_text_model", "parakeet_tdt")
"""Model types whose embedding has more rows than the vocabulary; another setting of their config gives the number."""


def find_other_sizes(ckpt: Checkpoint, explained: Explained) -> Iterator[Problem]:
    """Yield tensors whose width, experts or labels differ from the config, where no learned table has decided that."""
    if ckpt.config is None:
        return
    if "num_key_value_heads" not in explained.sizes:
        yield from _find_unshareable_heads(ckpt.config)
    known = WeightsTable.of_layers(ckpt.config)
    learned = (
        {name: formulas for name, formulas in known.shapes.items() if "?" not in formulas} if known is not None else {}
    )
    yield from _find_other_width(ckpt, ckpt.config, learned, explained)
    yield from _find_other_expert_sizes(ckpt, ckpt.config, learned, explained)
    yield from _find_other_score_heads(ckpt, ckpt.config)


def find_other_vocabulary(ckpt: Checkpoint, explained: Explained) -> Iterator[Problem]:
    """Yield the embedding and the output head if they lack a row for each token of the vocabulary."""
    config = ckpt.config
    declared = config.number("vocab_size") if config is not None else None
    if config is None or ckpt.components.embedding is None or declared is None:
        return
    head = ckpt.components.lm_head if not is_scorer(config) else None  # a scorer's has a row for each label
    odd: dict[int, list[str]] = {}
    for name in (ckpt.components.embedding, head):
        if name is None or not _is_float(ckpt, name):
            continue
        rows = ckpt.tensors[name].shape[0]
        if rows != declared and not _has_own_rows(ckpt, config, name, rows):
            odd.setdefault(rows, []).append(name)
    for rows, (name, *others) in odd.items():
        explained.sizes.setdefault("vocab_size", rows)
        also = f", as has {others[0]}" if others else ""
        yield Problem(
            f"it has {rows:,} rows{also}, but {config.describe('vocab_size')}; transformers and vLLM refuse to load it",
            file=ckpt.tensor_to_file[name],
            key=name,
            hint="remove padding rows that an export left, or correct vocab_size if the rows are intended"
            if rows > declared
            else "correct vocab_size if the model has so few tokens; else export again, with the rows of all ranks",
            names=(name, *others),
        )


def _has_own_rows(ckpt: Checkpoint, config: Config, name: str, rows: int) -> bool:
    """Whether a table has another number of rows by design: extra tokens for audio, padding, a mask.

    A model of an unknown class with several vocabularies may have the table of any of them (Parler-TTS reads text and writes
    sound). A model that writes images, or several codebooks, has their rows. A model with its own code may pad the table, to a
    number of rows or to a multiple of one (the first OLMo, Mamba). The head of ImageGPT has one row less, because it never
    predicts the token that begins an image. A draft model may predict only the commonest tokens (EAGLE-3).
    """
    declared = config.number("vocab_size") or 0
    if config.resolved is None and rows in _list_vocabularies(config.value):
        return True
    if config.resolved is None and rows > declared:
        multiples = [size for key in MULTIPLES if (size := config.integer(key))]
        if rows in map(config.integer, PADDED) or any(
            rows == -(-declared // multiple) * multiple for multiple in multiples
        ):
            return True
    if name == ckpt.components.lm_head and rows == config.integer("draft_vocab_size"):
        return True
    codebooks = config.integer("num_codebooks") or 0
    if name == ckpt.components.embedding and rows == codebooks * declared:
        return True  # one table for all codebooks (CSM's depth decoder)
    if name == ckpt.components.lm_head and rows == config.integer("vision_vocab_size"):
        return True  # GLM-Image writes only images
    if config.get("model_type") == "imagegpt" and name == ckpt.components.lm_head:
        return rows == declared - 1
    rest = f"{name.removesuffix('embedding')}new_embedding"
    if name.endswith("wte.embedding") and rest in ckpt.tensors:  # transformers joins both parts of the table (Molmo 2)
        return rows + ckpt.tensors[rest].shape[0] >= declared
    return config.get("model_type") in WITH_MORE_ROWS and rows >= declared


def _list_vocabularies(value: Mapping[str, Any]) -> set[Any]:
    """Return the sizes of the vocabularies that a config and the configs in it give."""
    parts = [value, *(part for part in value.values() if isinstance(part, dict))]
    return {part["vocab_size"] for part in parts if type(part.get("vocab_size")) is int}


def _is_float(ckpt: Checkpoint, name: str) -> bool:
    return ckpt.tensors[name].dtype.endswith(("F16", "F32", "F64"))


def _find_unshareable_heads(config: Config) -> Iterator[Problem]:
    """Yield a number of key-value heads that does not divide the attention heads; vLLM and SGLang refuse it."""
    heads, groups = config.number("num_attention_heads"), config.number("num_key_value_heads")
    if family_of(config) is not None and heads and groups and heads % groups:
        yield Problem(
            f"{heads} attention heads cannot be shared by {groups} key-value heads",
            file=config.file,
            key=config.key_path("num_key_value_heads"),
            hint="use the config of this model",
        )


def _find_other_width(
    ckpt: Checkpoint, config: Config, learned: Collection[str], explained: Explained
) -> Iterator[Problem]:
    """Yield the embedding, head and layer norms that are not as wide as the model, where no learned table decides."""
    anatomy, width = ckpt.components, config.number(*HIDDEN)
    if width is None or anatomy.stack is None or not anatomy.layers or not anatomy.is_language_model:
        return
    if _is_of_another_part(config, anatomy.stack):
        return
    # Heads with other names may be wider than the model by design (Reformer's reads two streams).
    head = anatomy.lm_head if (anatomy.lm_head or "").endswith("lm_head.weight") else None
    is_factored = any(config.get(name) not in (None, width) for name in FACTORED)
    said = {explained.sizes.get(name) for name in HIDDEN}
    odd: dict[int, list[tuple[str, str]]] = {}
    for name in () if is_factored else (anatomy.embedding, head):
        if name is not None and INDEX.sub("{}", name) not in learned and _is_float(ckpt, name):
            shape = ckpt.tensors[name].shape
            if shape[1] not in (width, *said):
                odd.setdefault(shape[1], []).append((name, f"its shape is {format_shape(shape)}"))
    for norm in NORMS:
        layers: dict[tuple[int, ...], list[int]] = {}
        for layer, names in anatomy.layers.items():
            full = anatomy.stack.full_name(layer, norm)
            if norm not in names or INDEX.sub("{}", full) in learned or full in explained.tensors:
                continue
            if (shape := ckpt.tensors[full].shape) != (width,) and (len(shape) != 1 or shape[0] not in said):
                layers.setdefault(shape, []).append(layer)
        for shape, where in layers.items():
            text = f"in {format_layers(where)} {norm} has the shape {format_shape(shape)}"
            odd.setdefault(shape[-1] if shape else 0, []).append((anatomy.stack.full_name(where[0], norm), text))
    for found in odd.values():
        name, text = found[0]
        others = f"; the same is true of {join_truncated([other for other, _ in found[1:]])}" if len(found) > 1 else ""
        yield Problem(
            f"{text}, but {config.describe(*HIDDEN)}{others}",
            file=ckpt.tensor_to_file[name],
            key=name,
            hint="use the config of this model; if the size is a multiple of the width, ranks were concatenated: export again",
        )


def _is_of_another_part(config: Config, stack: Stack) -> bool:
    """Whether the layers are of a sub-config other than the language model's, as `esmc` in ESMFold 2 by its `esmc_config`."""
    resolved = config.resolved
    if resolved is None:
        return False
    path = f"{stack.prefix.partition('.')[0]}_config."
    return resolved.text.path != path and any(part.path == path for part in resolved.parts)


def _find_other_expert_sizes(
    ckpt: Checkpoint, config: Config, learned: Collection[str], explained: Explained
) -> Iterator[Problem]:
    """Yield fused expert tensors that have neither the model's order of dimensions nor its transpose."""
    stack = ckpt.components.stack
    hidden, width = config.integer(*LATENT, *HIDDEN), config.integer(*EXPERT_WIDTH)
    if not hidden or not width or stack is None:
        return
    for layer, name in fused_names(ckpt.components):
        full = stack.full_name(layer, name)
        tensor = ckpt.tensors[full]
        if INDEX.sub("{}", full) in learned or full in explained.tensors or not tensor.is_plain:
            continue
        rows = 2 * width if name.endswith(("gate_up_proj", "gate_up_proj.weight")) else width
        if len(tensor.shape) == 3 and sorted(tensor.shape[1:]) != sorted((rows, hidden)):
            yield Problem(
                f"its shape is {format_shape(tensor.shape)}; the config needs an expert of {rows} × {hidden}",
                file=ckpt.tensor_to_file[full],
                key=full,
                hint="compare moe_intermediate_size and hidden_size with the model's own config",
            )


def _find_other_score_heads(ckpt: Checkpoint, config: Config) -> Iterator[Problem]:
    """Yield reward, value and classification heads whose shape is not (labels, hidden size)."""
    hidden = config.integer(*HIDDEN)
    if hidden is None or (is_scorer(config) and not score_head_modules(config.architecture)):
        return
    for name in ckpt.components.score_head_tensors:
        found = ckpt.tensors[name].shape
        if name.endswith(VALUE_HEADS):
            rows, why, hint = 1, "a value head needs", "save the head of the trained critic, with one output"
        elif name == "score.weight" and is_scorer(config):
            rows, hint = count_labels(config), "set num_labels (or id2label) to what the head has"
            why = f"{rows} label{' needs' if rows == 1 else 's need'}"
        else:
            continue
        if found == (rows, hidden) or 0 in found:
            continue
        layout = explain_head_shape(found, (rows, hidden))
        yield Problem(
            f"the head has the shape {format_shape(found)}; {why} {format_shape((rows, hidden))}"
            + (f"; {layout.text}" if layout else ""),
            file=ckpt.tensor_to_file[name],
            key=name,
            hint=layout.hint if layout else hint,
        )
