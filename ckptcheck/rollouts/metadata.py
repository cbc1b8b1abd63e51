"""The metadata of rollouts: which engine sampled, which models scored, and how."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

FORMAT = "ckptcheck-rollouts/1"
Logprobs = Literal["raw", "processed", "unknown"]
"""Which distribution the engine's logprobs come from.

raw: the model's own; processed: the one that it samples from, after temperature, top-p and top-k.
"""


Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A whole number of 64 bits."""


class ScorerInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An engine, a trainer or a reference model, and how it computed logprobs."""

    name: str = ""
    version: str = ""
    dtype: str = ""
    layout: str = ""
    """The parallel layout, such as ``TP2``."""
    weight_version: str | None = None
    """Version of the weights that a trainer scored with."""
    temperature: float | None = None
    """The divisor of the logits in log_softmax(logits / temperature); None: unknown."""
    facts: dict[str, str] = {}
    """What distinguishes this set-up from another, in the scorer's own terms: kernels, flags, the dtype of the head."""

    @property
    def label(self) -> str:
        """Name, version and dtype, as far as they are known."""
        return " ".join(filter(None, (self.name, self.version, self.dtype)))


class SamplingInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """How tokens were sampled; None: unknown. temperature 0: greedy. top_p 1 and top_k 0: off (top_k -1 is read as off)."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: Whole | None = None
    max_tokens: Whole | None = None
    seed: Whole | None = None
    ignore_eos: bool | None = None
    """Whether the engine went on past end tokens."""
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    """Penalties of tokens that the response has already; 0, 0 and 1: off."""


class OmittedSequence(msgspec.Struct, frozen=True):
    """A sequence of the source that the conversion left out."""

    number: Whole
    """Its place in the source, from 0."""
    reason: str
    """Why it could not be converted."""


class Metadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """All data of rollouts that is not a column. Every field may be missing."""

    model: str = ""
    """Name of the model."""
    step: Whole | None = None
    """Step of the training run, from 0; at step 0 nothing was trained yet."""
    engine: ScorerInfo | None = None
    trainer: ScorerInfo | None = None
    reference: ScorerInfo | None = None
    sampling: SamplingInfo = SamplingInfo()
    sampled_by: Literal["engine", "trainer"] = "engine"
    """The side from whose distribution the tokens were drawn."""
    logprobs: Logprobs = "unknown"
    """The distribution of the engine's logprobs."""
    clip_low: Annotated[float, msgspec.Meta(ge=0)] | None = None
    """The objective keeps the policy ratio at or above 1 - clip_low; None: unknown."""
    clip_high: Annotated[float, msgspec.Meta(ge=0)] | None = None
    """The objective keeps the policy ratio at or below 1 + clip_high; None: unknown."""
    vocabulary: Whole | None = None
    """Number of embedding rows."""
    experts: Whole | None = None
    """Number of routed experts of a layer; None: unknown."""
    max_model_len: Whole | None = None
    """Longest sequence that the engine accepts, in tokens."""
    stop_tokens: list[Whole] = []
    """Ids at which the engine was to end a response; []: unknown."""
    versions: list[str] = []
    """Weight versions; the column `version_spans` refers to them by index."""
    finish_reasons: list[str] = []
    """Finish reasons; the column `finish` refers to them by index."""
    source: str = ""
    """What the file was converted from."""
    unscored: dict[str, str] = {}
    """`engine`, `trainer` or `reference` → why the source has no logprobs of that side, where its framework leaves them out."""
    left_out: list[OmittedSequence] = []
    """Sequences of the source that the conversion left out."""
    tool: str = ""
    """The tool that wrote the file, and its version."""
    format: str = ""
    """The format of the file, see FORMAT."""

    @property
    def with_format_and_tool(self) -> Metadata:
        """The same metadata with the current format and tool."""
        from ckptcheck import __version__

        return msgspec.structs.replace(self, format=FORMAT, tool=f"ckptcheck {__version__}")
