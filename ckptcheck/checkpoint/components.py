"""Identifies the components of a language model (layers, embedding, heads, MTP, experts) from tensor names and the config."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

import msgspec

from ckptcheck.checkpoint.architecture import can_tie, tied_by_default
from ckptcheck.checkpoint.config import EXPERTS, LAYERS, MTP_LAYERS, Config
from ckptcheck.checkpoint.layout import ASIDE, Layout, Stack
from ckptcheck.checkpoint.tensor import Tensor

EMBEDDING = re.compile(
    r"(^|\.)(embed_tokens|shared|wte|word_embeddings?|embed_in|tok(en)?_embeddings?|tok(en)?_emb|tokens_embed|embeddings?|embed"
    r"|embedding_layer|(text|input)_embeddings?|input_embeds_layers?|embed_text_tokens|codec_embeddings?|w)\.weight$|(^|\.)wte\.embedding$"
)
HEAD = re.compile(
    r"(^|\.)(lm_head|embed_out|output|head|lm_loss|pred_layer|output_projection|unembed|predictions|ff_out)"
    r"(\.decoder|\.proj)?\.weight$"
)
SCORE = re.compile(
    r"(^|\.)(score|classifier|classification_head|qa_outputs|logits_proj|sequence_summary"
    r"|(v|value|rewards?|rm|prm|regression|critic|score|scalar|cls)_(head|layer|proj))(\.|$)"
)
ENCODER = re.compile(
    r"For(CTC|RNNT|TDT|Audio\w+|XVector|ImageClassification)$|(?<!Text)Encoder$|QFormerModel$|Timestamp|VisionModel"
)
"""Architectures that read sound or images: some of them have a vocabulary without an embedding."""
ENCODER_KEYS = frozenset({"conv_stride", "image_size", "feature_projection_input_dim", "backbone_config"})
"""Settings that mark a model with a vocabulary as such an encoder."""
MTP = re.compile(r"(^|\.)(mtp\w*|nextn\w*|eh_proj|enorm|hnorm|shared_head)(\.|$)")
"""Names that only layers of multi-token prediction (MTP) contain (DeepSeek-V3, GLM-4.5, Qwen3-Next, MiMo)."""
MOST_LAYERS = 10**6
"""More layers than any model has. A config that declares more is a finding, and no code counts up to its number."""

HEADS_OF_TEXT_MODELS = frozenset((
    "blip-2", "instructblip", "instructblipvideo", "kosmos-2", "kosmos-2.5", "llama4", "pix2struct", "vision-encoder-decoder",
))  # fmt: skip
"""Composite models whose text model has the head, so that its config decides the tie (transformers 5.23, each built)."""

DRAFTING_HEADS = {"medusa": "num_heads", "mlp_speculator": "n_predict"}
"""Model types of vLLM that consist of heads, each drafting one token → the setting with the number of heads."""


class Components(msgspec.Struct, frozen=True, dict=True):
    """The components of the language model in a checkpoint."""

    config: Config | None
    """config.json; None where there is none."""
    layout: Layout
    """The layers that the tensor names show."""
    tensors: dict[str, Tensor]
    """The tensors of the model files, by name."""

    @cached_property
    def stack(self) -> Stack | None:
        """The language model's stack of layers.

        Among several candidates, nearness to a token embedding decides, then the declared number of layers, then the size: an
        image encoder may have more layers, and more tensors, than the language model.
        """
        candidates = self.layout.candidates
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        parents = [name.split(".")[:-2] for name in self._embeddings]

        def rank(stack: Stack) -> tuple[int, bool]:
            own = stack.prefix.split(".")[:-1]
            strange = [len(own) - _count_shared(own, parent) for parent in parents]
            declared = self.config.integer(*_depth_names(stack)) if self.config is not None else None
            return min(strange, default=0), len(stack.layers) != declared

        return min(candidates, key=rank)

    @cached_property
    def is_language_model(self) -> bool:
        """Whether the config describes a model that reads a vocabulary, not an encoder of images, or of speech into letters."""
        if self.config is None:
            return True
        keys = {*self.config.value, *self.config.text}
        if ENCODER_KEYS & self.config.text.keys() or ENCODER.search(self.config.architecture or ""):
            return False
        return self.config.number("vocab_size") is not None or any("vocab" in key for key in keys)

    @cached_property
    def _embeddings(self) -> list[str]:
        """The names of all matrices that may be the token embedding: matrices with vocab_size rows, if there are any."""
        names = [
            name
            for name in self.layout.outside
            if EMBEDDING.search(name)
            and len(self.tensors[name].shape) == 2
            and self.tensors[name].shape[1] != 1  # it maps a series of numbers (PatchTST), not tokens
            and not ASIDE.search(name)
        ]
        size = self.config.integer("vocab_size") if self.config is not None else None
        others = self._other_vocabularies
        return [name for name in names if self.tensors[name].shape[0] == size] or [
            name for name in names if self.tensors[name].shape[0] not in others
        ]

    @cached_property
    def _other_vocabularies(self) -> frozenset[int]:
        """The vocabularies of parts beside the language model that read text of their own (MusicGen's encoder, a Q-Former)."""
        resolved = self.config.resolved if self.config is not None else None
        found = [part.find("vocab_size") for part in resolved.parts if part is not resolved.text] if resolved else []
        return frozenset(each.value for each in found if each is not None and type(each.value) is int)

    @cached_property
    def depth_names(self) -> tuple[str, ...]:
        """The config keys that may declare the number of layers, most specific first."""
        return _depth_names(self.stack) if self.stack is not None else LAYERS

    @cached_property
    def num_layers(self) -> int | None:
        """The number of layers that the config declares, or its class's default; None if there is neither."""
        if self.config is not None and self.config.model_type in DRAFTING_HEADS:
            return self.config.integer(DRAFTING_HEADS[self.config.model_type])
        if not self.is_language_model and self.stack is not None and not self.stack.prefix.endswith("encoder.layer"):
            return None  # an image encoder has stages and blocks, and classes differ in which ones their settings count
        if self.is_sequential:
            return None
        declared = self.config.number(*self.depth_names) if self.config is not None else None
        if declared is not None and self._joins_declared_blocks:
            declared //= 2
        if self.stack is not None and not {"encoder", "decoder"} & {*self.stack.prefix.split(".")}:
            halves = (
                {self.config.integer(name) for name in ("encoder_layers", "decoder_layers")} if self.config else set()
            )
            if len(halves - {None}) == 2 and len(self.stack.layers) in halves:
                return len(self.stack.layers)  # one half, unknown which (PP-FormulaNet's text model)
        if declared is not None and declared < 0 and self.config is not None:
            # With a negative number transformers builds no layer. CFG002 reports it for the names that it knows.
            return None if self.config.key_path(*self.depth_names) in self.config.malformed_counts else 0
        return declared if declared is not None and declared <= MOST_LAYERS else None

    @property
    def _joins_declared_blocks(self) -> bool:
        """Whether the config counts attention and MLP as a layer each, and the checkpoint stores both as one.

        transformers does so for Dory: it reads single blocks, joins each pair, and saves the pairs (`LayerPairCollapse`).
        """
        listed = self.config.text.get("layer_types") if self.config is not None else None
        if not isinstance(listed, list) or "mlp" not in listed or self.stack is None:
            return False
        return any(
            {"self_attn", "mlp"} <= {name.partition(".")[0] for name in names} for names in self.stack.layers.values()
        )

    @cached_property
    def mtp_layers(self) -> frozenset[int]:
        """MTP layers that are numbered after the declared layers (DeepSeek-V3's layer 61): recognized by their names, else
        declared and unlike the layers before them.
        """
        if self.stack is None or self.num_layers is None:
            return frozenset()
        beyond = sorted(layer for layer in self.stack.layers if layer >= self.num_layers)
        named = {layer for layer in beyond if any(MTP.search(name) for name in self.stack.layers[layer])}
        declared = self.config.integer(*MTP_LAYERS) or 0 if self.config is not None else 0
        ordinary = {frozenset(names) for layer, names in self.stack.layers.items() if layer < self.num_layers}
        unnamed = [
            layer for layer in beyond if layer not in named and frozenset(self.stack.layers[layer]) not in ordinary
        ]
        return frozenset({*named, *unnamed[: max(declared - len(named), 0)]})

    @cached_property
    def has_mtp(self) -> bool:
        """Whether any tensor belongs to multi-token prediction."""
        return (
            bool(self.mtp_layers)
            or self._holds_mtp_alone
            or any(MTP.search(name) for name in (*self.layout.stacks, *self.layout.outside))
        )

    @property
    def _holds_mtp_alone(self) -> bool:
        """Whether every layer is an MTP layer: a draft model in its own folder, such as DeepSeek-V3's NextN."""
        if self.stack is None or 0 not in self.stack.layers:
            return False
        return all(any(map(MTP.search, names)) for names in self.stack.layers.values())

    @cached_property
    def is_sequential(self) -> bool:
        """Whether the embedding, the norm and the head are numbered among the layers, as in the first releases of Phi-1.5.

        The numbers then say nothing about the depth that the config declares.
        """
        if self.stack is None or len(self.stack.layers) < 3:
            return False
        first, second, *_ = sorted(self.stack.layers)
        names = self.stack.layers[first]
        return any(map(EMBEDDING.search, names)) and names.isdisjoint(self.stack.layers[second])

    @cached_property
    def layers(self) -> dict[int, set[str]]:
        """The layers without MTP layers: number → tensor names relative to the layer."""
        if self.stack is None:
            return {}
        return {number: names for number, names in self.stack.layers.items() if number not in self.mtp_layers}

    @cached_property
    def embedding(self) -> str | None:
        """The name of the token embedding; of several candidates the one that shares the layers' prefix."""
        parent = self.stack.prefix.rpartition(".")[0] if self.stack is not None else ""
        return max(self._embeddings, key=lambda name: (name.startswith(parent + "."), -len(name)), default=None)

    @cached_property
    def lm_head(self) -> str | None:
        """The name of the weight that maps hidden states to the vocabulary; None if it is not stored separately."""
        candidates = [
            name
            for name in self.layout.outside
            if HEAD.search(name)
            and len(self.tensors[name].shape) == 2
            and len(set(self.tensors[name].shape)) == 2  # a square matrix projects, as SigLIP's head does
            and not ASIDE.search(name)
        ]
        return min(candidates, key=len, default=None)

    @cached_property
    def score_head_tensors(self) -> tuple[str, ...]:
        """The names of the tensors of a reward, value or classification head."""
        inside = [f"{prefix}." for prefix in self.layout.stacks if SCORE.search(prefix) and not ASIDE.search(prefix)]
        deep = [name for name in self.tensors if name.startswith(tuple(inside))] if inside else []
        return tuple(
            name
            for name in [*self.layout.outside, *deep]
            if SCORE.search(name) and not ASIDE.search(name) and not self._has_keys_beside(name)
        )

    def _has_keys_beside(self, name: str) -> bool:
        """Whether a `v_proj` belongs to an attention, whose keys lie beside it, and is no value head."""
        return any(
            name.replace(value, keys) in self.tensors
            for value, keys in (("v_proj", "k_proj"), ("value_proj", "key_proj"))
            if value in name
        )

    @cached_property
    def is_draft(self) -> bool:
        """Whether this is a draft model, which takes embedding and head from the model that it drafts for.

        EAGLE and DFlash have a few layers after a matrix that joins several hidden states, or hidden states and embeddings.
        Medusa and MLP speculators consist only of heads.
        """
        if self.config is not None and self.config.model_type in DRAFTING_HEADS:
            return True
        joint = self.tensors.get("fc.weight") or self.tensors.get("model.fc.weight")
        if joint is None or len(joint.shape) != 2:
            return self._holds_mtp_alone
        rows, columns = joint.shape
        return rows > 0 and columns >= 2 * rows and columns % rows == 0

    @cached_property
    def is_tied(self) -> bool | None:
        """Whether the input and the output embedding are one tensor; None if neither config nor architecture decides it.

        Composite configs hold the flag on each level. transformers 5 follows the config of the class that has the head: the upper
        one, as does vLLM since its #33359, except for a few older classes, whose text model has the head.
        """
        if self.config is None:
            return None
        levels = self.config.levels
        if can_tie(self.config.architecture) is False:
            return False
        for part in reversed(levels) if self.config.model_type in HEADS_OF_TEXT_MODELS else levels:
            if isinstance(flag := part.get("tie_word_embeddings"), bool):
                return flag
        return tied_by_default(self.config.architecture)

    @property
    def experts_source(self) -> str:
        """The source of `num_experts`, as the end of a sentence: "the 8 experts that …"."""
        resolved = self.config.resolved if self.config is not None else None
        setting = resolved.find(*EXPERTS) if resolved is not None else None
        by_default = setting is not None and setting.source == "default"
        return "transformers takes by default, for the config has no count" if by_default else "the config declares"

    @cached_property
    def num_experts(self) -> int | list[Any] | None:
        """The declared number of routed experts in a layer; a list if layers differ; None if there is no number.

        If config.json has none, the default of its class counts.
        """
        if self.config is None:
            return None
        layers = self.config.text.get("per_layer_config")
        if isinstance(layers, dict):
            found = [each.get(name) for each in layers.values() if isinstance(each, dict) for name in EXPERTS]
            if own := [each for each in found if type(each) is int]:
                return own
        if self.config.resolved is not None:
            setting = self.config.resolved.find(*EXPERTS)
            return setting.value if setting is not None and type(setting.value) in (int, list) else None
        for name in EXPERTS:
            value = self.config.get(name)
            if type(value) is int or isinstance(value, list):
                return value
        return None


def _depth_names(stack: Stack) -> tuple[str, ...]:
    if "decoder" in stack.prefix.split("."):
        return ("decoder_layers", "num_decoder_layers", *LAYERS)
    names = ("num_layers_per_stack", *LAYERS)
    return tuple(name for name in names if name != "num_decoder_layers" or "encoder" not in stack.prefix.split("."))


def _count_shared(one: list[str], other: list[str]) -> int:
    """Count the leading parts that two names share."""
    return next(
        (at for at, (left, right) in enumerate(zip(one, other, strict=False)) if left != right),
        min(len(one), len(other)),
    )
