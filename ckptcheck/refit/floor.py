"""How far each side is from itself: what differs by less says nothing.

Rounding depends on the order of sums, and that on how many tokens are computed together and by which kernel. So the same
weights give logprobs that differ, by 1e-6 nats in float32 and by hundredths in bfloat16; how much is measured for each model, not
assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ckptcheck.engines.base import Engine, EngineInfo
from ckptcheck.refit.apart import Gap, apart
from ckptcheck.trainers.base import Trainer

EXACT = Gap(1e-5, 2e-6)
"""Nats within which two implementations in float32 need never be nearer to each other."""
OWN = 16
"""Tokens that an engine decodes by itself where it cannot follow others."""
MEAN, MOST = 3, 10
"""Times a side's own noise. On average, eager and fused attention of transformers, and Megatron and vLLM, were 0.4 to 1.3 times as
far apart as `rounding`, in float32 and bfloat16, for llama, qwen3, qwen3-moe and SmolLM2-135M. The largest difference is one
token's, and another one's after a step: it was up to 4 times as large."""


@dataclass(frozen=True)
class Noise:
    """How far the logprobs of one side are from its own, over the same weights and tokens.

    repeat: asked again. batch: every sequence alone, and all together. decode: by decoding, and by prefill (an engine).
    rounding: with every weight moved by about one unit in its last place (a trainer), None where the trial did not come so far.
    """

    repeat: Gap = field(default_factory=Gap)
    batch: Gap = field(default_factory=Gap)
    decode: Gap = field(default_factory=Gap)
    rounding: Gap | None = None


@dataclass(frozen=True)
class Floor:
    """The noise of both sides, measured after the cold load."""

    engine: Noise = field(default_factory=Noise)
    trainer: Noise = field(default_factory=Noise)

    @property
    def sides(self) -> Gap:
        """How far trainer and engine may be apart over the same weights, by prefill."""
        return EXACT | Gap(MOST * self._own.most, MEAN * self._own.mean)

    @property
    def tie(self) -> float:
        """Nats by which the trainer may prefer its own greedy token over the engine's: two logprobs, one of them decoded."""
        return 2 * max(EXACT.most, MEAN * self._own.most, self.engine.decode.most)

    @property
    def _own(self) -> Gap:
        """By how much either side differs from itself by prefill."""
        found = self.trainer.rounding or Gap()
        for side in (self.engine, self.trainer):
            found |= side.repeat | side.batch
        return found

    @property
    def loads(self) -> float:
        """Nats by which an engine and the same engine started anew may be apart, asked the same in the same way."""
        return max(1e-6, MOST * self.engine.repeat.most)


UNITS = {"float32": 2.0**-23, "bfloat16": 2.0**-8, "float16": 2.0**-11}
"""The last place of a dtype, relative to the number."""


def rounded(trainer: Trainer, dtypes: Sequence[str], sequences: Sequence[Sequence[int]]) -> Gap:
    """Move every weight by noise of one unit in the last place of the coarsest dtype, and see how far logprobs move.

    Two implementations round differently after every operation, and where one of them always sums alike this is the only way to
    see what that comes to for this model. The trainer's weights are others afterwards.
    """
    before = trainer.score(sequences)
    trainer.perturb(max(UNITS.get(dtype, 2.0**-8) for dtype in dtypes))
    return apart(before, trainer.score(sequences))


def unforced(info: EngineInfo) -> str:
    """Say why an engine cannot be made to decode given tokens, "" where it can."""
    return (
        f"{info.name} cannot be made to follow them while it speculates" if info.facts.get("follows") == "False" else ""
    )


def measured(engine: Engine, trainer: Trainer, sequences: Sequence[Sequence[int]], decode: int = OWN) -> Floor:
    """Score the same sequences again, alone, and by decoding. The engine's prefix cache is reset before each.

    An engine that cannot be made to follow tokens, as one that speculates, decodes `decode` of its own; these are then scored.
    """

    def fresh(some: Sequence[Sequence[int]]) -> list[tuple[float, ...]]:
        engine.reset_prefix_cache()
        return [each.prompt for each in engine.score(some)]

    together, again = fresh(sequences), fresh(sequences)
    alone = [fresh([tokens])[0] for tokens in sequences]
    engine.reset_prefix_cache()
    if unforced(engine.info):
        said = engine.score(sequences, decode=decode)
        longer = fresh([(*tokens, *one.decoded) for tokens, one in zip(sequences, said, strict=True)])
        decoding = apart(
            [one.decode for one in said], [all_of[-len(one.decode) :] for all_of, one in zip(longer, said, strict=True)]
        )
    else:
        decoding = apart(together, engine.follow(sequences, 1))
    own, repeated = trainer.score(sequences), trainer.score(sequences)
    single = [trainer.score([tokens])[0] for tokens in sequences]
    return Floor(
        Noise(apart(together, again), apart(together, alone), decoding),
        Noise(apart(own, repeated), apart(own, single)),
    )
