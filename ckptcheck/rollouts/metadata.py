"""What is known about rollouts as a whole: who sampled, who scored, and how."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

FORMAT = "ckptcheck-rollouts/1"
Logprobs = Literal["raw", "processed", "unknown"]
"""Of which distribution an engine reports logprobs: the model's own, or the one it sampled from (temperature, top-p, top-k)."""


Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""What a file can hold."""


class Side(msgspec.Struct, frozen=True, omit_defaults=True):
    """An engine, a trainer or a reference model. weight_version: of the weights that a trainer scored with.

    temperature: by which the logits were divided before the logprobs were taken, where that is known.
    facts: what tells one set-up from another, in its own words: kernels, flags, the dtype of the head.
    """

    name: str = ""
    version: str = ""
    dtype: str = ""
    layout: str = ""
    weight_version: str | None = None
    temperature: float | None = None
    facts: dict[str, str] = {}

    @property
    def spoken(self) -> str:
        """Name, version and dtype, as far as they are known."""
        return " ".join(filter(None, (self.name, self.version, self.dtype)))


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How tokens were drawn; None: not known. temperature 0: greedy. top_p 1 and top_k 0: off (top_k -1 is read as off)."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: Whole | None = None
    max_tokens: Whole | None = None
    seed: Whole | None = None


class LeftOut(msgspec.Struct, frozen=True):
    """A sequence of the source that could not be taken over. number: its place there, from 0."""

    number: Whole
    reason: str


class Metadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that is not a column. Every field may be missing.

    step: of the training run, from 0; at step 0 nothing was trained yet. sampled_by: whose distribution the tokens were
    drawn from. logprobs: what the engine's are of. vocabulary: rows of the embedding. versions, finish_reasons: the words
    that columns refer to by number. source: what the file was converted from. left_out: sequences that were not.
    """

    model: str = ""
    step: Whole | None = None
    engine: Side | None = None
    trainer: Side | None = None
    reference: Side | None = None
    sampling: Sampling = Sampling()
    sampled_by: Literal["engine", "trainer"] = "engine"
    logprobs: Logprobs = "unknown"
    vocabulary: Whole | None = None
    max_model_len: Whole | None = None
    versions: list[str] = []
    finish_reasons: list[str] = []
    source: str = ""
    left_out: list[LeftOut] = []
    tool: str = ""
    format: str = ""

    @property
    def stamped(self) -> Metadata:
        """The same, with the format and the tool that writes it."""
        from ckptcheck import __version__

        return msgspec.structs.replace(self, format=FORMAT, tool=f"ckptcheck {__version__}")
