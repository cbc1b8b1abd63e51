"""Has the engine of a trial score an image before and after each sync, and once it dropped what it keeps of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ckptcheck.live.refit.image_probe import ImageProbe, SeeingEngine
from ckptcheck.live.refit.observations import TrialObservations
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.process.errors import RemoteError

TEXT_TOKENS = 12
"""Tokens of text that follow the image and are scored."""


class ImageProbes:
    """The images of one trial. token: stands for an image; None for a model that takes none."""

    def __init__(self, token: int | None, sequence: Sequence[int], observations: TrialObservations) -> None:
        self._observations = observations
        self._tokens = () if token is None else (token, *sequence[:TEXT_TOKENS])

    def score(self, engine: Engine) -> tuple[float, ...]:
        """Have the engine score the image, which it then keeps; () where it does not take it, and the trace says why."""
        if not self._tokens or self._observations.images_skipped:
            return ()
        if engine.info.facts.get("images") != "True":
            self._observations.images_skipped = (
                engine.info.facts.get("images") or f"{engine.info.name} gets no images here"
            )
            return ()
        try:
            engine.reset_prefix_cache()
            return cast(SeeingEngine, engine).score_image(self._tokens)
        except RemoteError as error:
            self._observations.images_skipped = f"{engine.info.name} does not take the image: {error.message}"
            return ()

    def compare(self, engine: Engine, after_sync: int, cold: tuple[float, ...]) -> None:
        """Note what the engine makes of the image after a sync. cold: what a cold load of the same weights makes of it."""
        if not cold:
            return
        seeing, failure = cast(SeeingEngine, engine), ""
        kept: tuple[float, ...] = ()
        engine.reset_prefix_cache()
        try:
            kept = seeing.score_image(self._tokens)
        except RemoteError as error:
            failure = error.message
        seeing.reset_encoder_cache()
        after_reset = self.score(engine)
        if failure or after_reset:
            self._observations.image_probes.append(ImageProbe(after_sync, kept, after_reset, cold, failure))
