"""Has the engine of a trial score an image: what it keeps of images is computed with the weights from before a sync."""

from __future__ import annotations

from collections.abc import Sequence

from ckptcheck.live.refit.observations import ImageProbe
from ckptcheck.live.refit.trial_state import TrialState
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.engines.capabilities import find_able, why_unable
from ckptcheck.live.runtime.process.errors import RemoteError

TEXT_TOKENS = 12
"""Tokens of text that follow the image and are scored."""


def build_image_prompt(image_token: int | None, sequence: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens of an image and of the text after it; () for a model that takes no image."""
    return () if image_token is None else (image_token, *sequence[:TEXT_TOKENS])


def score_image(trial: TrialState, engine: Engine) -> tuple[float, ...]:
    """Have the engine score the image, which it then keeps; () where it does not take it, and the trace says why."""
    observed = trial.observed
    if not trial.image or observed.images_skipped:
        return ()
    able = find_able(engine, "images")
    if able is None:
        observed.images_skipped = why_unable(engine, "images")
        return ()
    try:
        able.reset_prefix_cache()
        return able.score_image(trial.image)
    except RemoteError as error:
        observed.images_skipped = f"{engine.info.name} does not take the image: {error.message}"
        return ()


def compare_image(trial: TrialState, engine: Engine, after_sync: int, cold: tuple[float, ...]) -> None:
    """Note what the engine makes of the image after a sync, and once more after it dropped what it keeps of images.

    cold: what a cold load of the same weights makes of it; () where it does not take it.
    """
    able, failure = find_able(engine, "images"), ""
    if not cold or able is None:
        return
    kept: tuple[float, ...] = ()
    able.reset_prefix_cache()
    try:
        kept = able.score_image(trial.image)
    except RemoteError as error:
        failure = error.message
    able.reset_encoder_cache()
    after_reset = score_image(trial, engine)
    if failure or after_reset:
        trial.observed.image_probes.append(ImageProbe(after_sync, kept, after_reset, cold, failure))
