"""The noise floor: how far the logprobs of each side differ from its own. A smaller difference between the sides says nothing.

Rounding depends on the order of sums, and that order on the kernel and on how many tokens are computed together. So the same
weights give different logprobs, by 1e-6 nats in float32 and by hundredths in bfloat16. The trial measures the noise for each
model instead of assuming it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ckptcheck.live.refit.logprob_diff import LogprobDiff, compare_logprobs
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.engines.capabilities import why_not_forced
from ckptcheck.live.runtime.trainers.base import Trainer

EXACT = LogprobDiff(1e-5, 2e-6)
"""The smallest tolerance (nats): two implementations in float32 need not agree better than this."""
OWN = 16
"""Tokens that an engine decodes freely if it cannot decode given tokens."""
MEAN, MOST = 3, 10
"""Factors on a side's own noise. On average, eager and fused attention of transformers, and Megatron and vLLM, differ by 0.4 to
1.3 times `rounding`, in float32 and bfloat16, for llama, qwen3, qwen3-moe and SmolLM2-135M. The largest difference belongs to one
token, and to another one after a step: it was up to 4 times as large."""


@dataclass(frozen=True)
class SideNoise:
    """How far the logprobs of one side differ from its own, over the same weights and tokens."""

    repeat: LogprobDiff = field(default_factory=LogprobDiff)
    """Between two identical requests."""
    batch: LogprobDiff = field(default_factory=LogprobDiff)
    """Between scoring each sequence alone and all together."""
    decode: LogprobDiff | None = field(default_factory=LogprobDiff)
    """Between decoding and prefill (engines only); None if nothing was decoded."""
    rounding: LogprobDiff | None = None
    """After every weight moved by about one unit in its last place (trainers only); None if the trial ended before."""


@dataclass(frozen=True)
class TrialNoise:
    """The noise of both sides, measured after the cold load."""

    engine: SideNoise = field(default_factory=SideNoise)
    trainer: SideNoise = field(default_factory=SideNoise)

    @property
    def trainer_tolerance(self) -> LogprobDiff:
        """How far the logprobs of trainer and engine may differ over the same weights, by prefill."""
        return EXACT | LogprobDiff(MOST * self._prefill_noise.most, MEAN * self._prefill_noise.mean)

    @property
    def tie_tolerance(self) -> float:
        """Nats by which the trainer may prefer its own greedy token over the engine's (two logprobs, one of them decoded)."""
        decoding = self.engine.decode or LogprobDiff()
        return 2 * max(EXACT.most, MEAN * self._prefill_noise.most, decoding.most)

    @property
    def _prefill_noise(self) -> LogprobDiff:
        """By how much either side differs from itself by prefill."""
        noise = self.trainer.rounding or LogprobDiff()
        for side in (self.engine, self.trainer):
            noise |= side.repeat | side.batch
        return noise

    @property
    def cold_load_tolerance(self) -> float:
        """Nats by which an engine and a cold load of it may differ for the same request."""
        return max(1e-6, MOST * self.engine.repeat.most)


UNITS = {"float32": 2.0**-23, "bfloat16": 2.0**-8, "float16": 2.0**-11}
"""One unit in the last place of a dtype, relative to the number."""


def measure_rounding(trainer: Trainer, dtypes: Sequence[str], sequences: Sequence[Sequence[int]]) -> LogprobDiff:
    """Move every weight by noise of one unit in the last place of the coarsest dtype, and measure how far logprobs move.

    Two implementations round differently after every operation. If each of them always sums in the same order, this is the only
    way to see the effect on this model. It changes the trainer's weights.
    """
    before = trainer.score(sequences)
    trainer.perturb(max(UNITS.get(dtype, 2.0**-8) for dtype in dtypes))
    return compare_logprobs(before, trainer.score(sequences))


def measure_noise_floor(
    engine: Engine, trainer: Trainer, sequences: Sequence[Sequence[int]], decode: int = OWN
) -> TrialNoise:
    """Score the same sequences again, each alone, and by decoding. Every request starts with an empty prefix cache.

    An engine that cannot decode given tokens, for example because it speculates, decodes `decode` tokens of its own, which
    prefill then scores. Where `decode` is 0, nothing is decoded.
    """

    def score_uncached(token_lists: Sequence[Sequence[int]]) -> list[tuple[float, ...]]:
        engine.reset_prefix_cache()
        return [scores.prompt_logprobs for scores in engine.score(token_lists)]

    together, again = score_uncached(sequences), score_uncached(sequences)
    alone = [score_uncached([tokens])[0] for tokens in sequences]
    engine.reset_prefix_cache()
    decoding: LogprobDiff | None
    if not decode:
        decoding = None
    elif why_not_forced(engine.info):
        decoded = engine.score(sequences, decode=decode)
        extended = [(*tokens, *scores.decoded_tokens) for tokens, scores in zip(sequences, decoded, strict=True)]
        prefilled = score_uncached(extended)
        decoding = compare_logprobs(
            [scores.decode_logprobs for scores in decoded],
            [logprobs[-len(scores.decode_logprobs) :] for logprobs, scores in zip(prefilled, decoded, strict=True)],
        )
    else:
        decoding = compare_logprobs(together, engine.score_by_decode(sequences, 1))
    trainer_together, trainer_again = trainer.score(sequences), trainer.score(sequences)
    trainer_alone = [trainer.score([tokens])[0] for tokens in sequences]
    return TrialNoise(
        SideNoise(compare_logprobs(together, again), compare_logprobs(together, alone), decoding),
        SideNoise(compare_logprobs(trainer_together, trainer_again), compare_logprobs(trainer_together, trainer_alone)),
    )
