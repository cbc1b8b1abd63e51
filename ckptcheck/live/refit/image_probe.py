"""An image that an engine scored before and after a sync: what it keeps of images is computed with the weights of before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint


class SeeingEngine(Protocol):
    """An engine that takes images."""

    def score_image(self, tokens: Sequence[int]) -> tuple[float, ...]:
        """Return the logprobs of the tokens after the first one, which stands for an image: always the same image."""
        ...

    def reset_encoder_cache(self) -> None:
        """Drop what the engine keeps of images."""
        ...


@dataclass(frozen=True)
class ImageProbe:
    """Logprobs of the same text after the same image, over the weights that a sync brought."""

    after_sync: int
    kept: tuple[float, ...]
    """With what the engine keeps of images, as the sync left it."""
    after_reset: tuple[float, ...]
    """After it was made to drop that; () where it fails then too."""
    cold: tuple[float, ...]
    """By the same engine, started cold from the same weights."""
    failure: str = ""
    """How it failed on the image before that, "" where it did not; `kept` is () then."""


def find_image_token(ckpt: Checkpoint) -> int | None:
    """Return the token that stands for an image, None for a model that takes none."""
    config = ckpt.config
    if config is None or not isinstance(config.get("vision_config"), dict):
        return None
    return config.integer("image_token_id", "image_token_index")
