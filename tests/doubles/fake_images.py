"""The fake engine, with eyes: it keeps what it made of an image, and drops that with an update, unless it has the fault of that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ckptcheck.live.runtime.engines.base import Bucket, UpdateResult
from ckptcheck.live.runtime.process.errors import RemoteError
from tests.doubles import fake_model as model
from tests.doubles.fake_engine import FakeEngine


class SeeingFakeEngine(FakeEngine):
    """A fake engine that takes an image, whose encoding is made of its embeddings."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._encoding: float | None = None
        self._is_missing = False
        self.info.facts["images"] = "True"  # type: ignore[index]

    def score_image(self, tokens: Sequence[int]) -> tuple[float, ...]:
        """Score the tokens after the image."""
        if self._is_missing:
            raise RemoteError("fake", "score image", "RuntimeError", "Encoder cache miss", "")
        if self._encoding is None:
            self._encoding = float(abs(self._ranks[0][model.EMBED]).mean())
        return tuple(value * self._encoding for value in self.score([tokens])[0].prompt_logprobs)

    def reset_encoder_cache(self) -> None:
        """Forget the image."""
        self._encoding, self._is_missing = None, False

    def update_weights(
        self, parcels: Sequence[Bucket], transport: str, *, timeout: float | None = None
    ) -> UpdateResult:
        """Take the parcels, and forget the image."""
        is_kept = self._encoding is not None
        if not any(self._has("encoder")):
            self.reset_encoder_cache()
        self._is_missing = is_kept and any(fault.name == "missing" for fault in self._has("encoder"))
        return super().update_weights(parcels, transport, timeout=timeout)
