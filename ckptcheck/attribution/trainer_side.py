"""A trainer that runs, and what it can be asked: other temperatures, other tokens, another dtype."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.attribution.change import TrainerChange
from ckptcheck.attribution.retelling import Retelling
from ckptcheck.attribution.world import Unable
from ckptcheck.errors import CkptcheckError
from ckptcheck.parity.scoring import TOKENS, batches
from ckptcheck.rollouts.rollouts import Rollouts
from ckptcheck.trainers.base import Trainer, Weight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Start = Callable[[str | None, bool, Trainer | None], Trainer]
"""Starts a trainer: dtype (None: the job's), float32 head, and one that is given up for it and whose process may be used."""
WINDOWS = 256
"""Tokens that are computed again from a short context, at most."""
WINDOW_TOKENS = 1 << 14
"""Tokens that this may cost in all, for each length of context."""


class TrainerSide:
    """Starts when it is first asked. heat: by which the recorded logprobs' logits were divided.

    mask: bool [T], tokens that are compared. tokens: of a batch, padding included.
    """

    def __init__(
        self, rollouts: Rollouts, mask: NDArray[Any], start: Start, folder: Path, *, heat: float, tokens: int = TOKENS
    ) -> None:
        self._rollouts, self._mask, self._start, self._folder = rollouts, mask, start, folder
        self._heat, self._tokens = heat, tokens
        self._held: Trainer | None = None
        self._setup: tuple[str | None, bool] = (None, False)
        self._refused: dict[tuple[str | None, bool], str] = {}
        self._dtype: str | None = None

    def scores(self, change: TrainerChange) -> NDArray[Any]:
        """Score. Raises Unable, and what a Host raises."""
        held = self._ready(change.dtype, change.head_fp32)
        telling = Retelling(self._rollouts, change.drop, change.prepend)
        heat = change.temperature or self._heat
        if change.top_p < 1 or change.top_k > 0:
            if change.context is not None:
                raise Unable("top-p and top-k are not tried together with a context")
            return telling.cut(held, self._folder, heat, change.top_p, change.top_k)
        whole = self._whole(held, telling, heat)
        return whole if change.context is None else self._windows(held, telling, heat, change.context, whole)

    def save(self, folder: Path) -> None:
        """Write the weights of the job's set-up as a Hugging Face checkpoint."""
        self._ready(None, False).save(folder)

    def weights(self) -> Sequence[Weight]:
        """Return what it exports."""
        return self._ready(None, False).weights()

    def lost(self) -> None:
        """Forget a trainer that died."""
        held, self._held = self._held, None
        if held is not None:
            held.close()

    def close(self) -> None:
        """End it."""
        self.lost()

    @property
    def ran(self) -> bool:
        """Whether it has ever started as the job has it."""
        return self._dtype is not None

    def _ready(self, dtype: str | None, head_fp32: bool) -> Trainer:
        dtype = None if dtype == self._dtype else dtype
        setup = dtype, head_fp32 and (dtype or self._dtype) != "float32"  # float32 has a float32 head
        if self._held is None or self._setup != setup:
            if refused := self._refused.get((None, False), self._refused.get(setup)):
                raise Unable(refused)
            before, self._held = self._held, None
            try:
                self._held = self._start(*setup, before)
            except BaseException as error:
                if before is not None:
                    before.close()
                if isinstance(error, CkptcheckError):
                    self._refused[setup] = error.message
                raise
            self._setup = setup
            if setup == (None, False):
                self._dtype = self._held.info.dtype
        return self._held

    def _whole(self, held: Trainer, telling: Retelling, heat: float) -> NDArray[Any]:
        made = telling.blank()
        for batch in batches(self._rollouts, self._tokens):
            numbers = [number for number in batch if len(telling.told(number)) > 1]
            if not numbers:
                continue
            given = [telling.told(number) for number in numbers]
            for number, values in zip(numbers, held.score(given, temperature=heat), strict=True):
                telling.place(made, number, values)
        return made

    def _windows(
        self, held: Trainer, telling: Retelling, heat: float, context: int, whole: NDArray[Any]
    ) -> NDArray[Any]:
        """Compute tokens from the `context` tokens before them. Evenly chosen ones: a window is a forward of its own."""
        import numpy as np

        compared = np.flatnonzero(self._mask & np.isfinite(whole))
        most = max(16, min(WINDOWS, WINDOW_TOKENS // context))
        chosen = compared[np.unique(np.linspace(0, len(compared) - 1, min(most, len(compared))).astype(int))]
        made = telling.blank()
        windows, far = [], []
        owners = np.searchsorted(self._rollouts.starts, chosen, "right") - 1
        for place, number in zip(chosen.tolist(), owners.tolist(), strict=True):
            here = place - int(self._rollouts.starts[number]) - telling.drop + len(telling.prepend)
            if here <= context:
                made[place] = whole[place]
                continue
            windows.append(telling.told(number)[here - context : here + 1])
            far.append(place)
        step = max(1, self._tokens // (context + 1))
        for begin in range(0, len(windows), step):
            scored = held.score(windows[begin : begin + step], temperature=heat)
            made[far[begin : begin + step]] = [values[-1] for values in scored]
        return made
