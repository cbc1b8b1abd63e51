"""An engine that runs, and how it can be asked again: by another path, with empty caches, one by one, set up otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.attribution.change import EngineChange
from ckptcheck.attribution.retelling import Retelling
from ckptcheck.attribution.world import Unable
from ckptcheck.engines.base import Engine, Manifest
from ckptcheck.errors import CkptcheckError
from ckptcheck.rollouts.rollouts import Rollouts

if TYPE_CHECKING:
    from numpy.typing import NDArray

Start = Callable[[Path | None, str | None, bool, Engine | None], Engine]
"""Starts an engine: checkpoint (None: its own), dtype (None: the job's), float32 head, and one that is given up for it."""
BATCH = 8
"""Sequences that are scored at once."""
ONLY_NOW = (EngineChange(), EngineChange(alone=True), EngineChange(path="prefill"), EngineChange(fresh=True))
"""What only an engine can tell that was running before: in this order, for the last one empties what the first ones read."""


@dataclass(frozen=True)
class Setup:
    """What takes a start. cold, config: as in `EngineChange`."""

    dtype: str | None = None
    head_fp32: bool = False
    cold: bool = False
    config: bool = False


class EngineSide:
    """Starts when it is first asked. folders: (cold, config) → the checkpoint to start from.

    running: the very engine that drew the tokens, where it still runs: its caches and weights are those of the job. It is
    asked for all that only it can tell before it is given up, and cannot be had back.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        start: Start,
        folders: Callable[[bool, bool], Path | None],
        folder: Path,
        *,
        running: Engine | None = None,
    ) -> None:
        self._rollouts, self._start, self._folders, self._folder = rollouts, start, folders, folder
        self._job = self._running = running
        self._setup = Setup()
        self._dtype = running.info.dtype if running is not None else None
        self._found: dict[EngineChange, NDArray[Any]] = {}
        self._manifests: dict[bool, Manifest] = {}
        self._refused: dict[Setup, str] = {}
        self._processed: bool | None = None
        self._same_weights = False

    def scores(self, change: EngineChange) -> NDArray[Any]:
        """Score. Raises Unable, and what a Host raises."""
        if change not in self._found:
            engine = self._ready(Setup(change.dtype, change.head_fp32, change.cold, change.config))
            self._found[change] = self._scored(engine, change)
        return self._found[change]

    def manifest(self, *, cold: bool) -> Manifest:
        """Digest what the job's engine holds, or what it holds when it is started from the trainer's weights."""
        if cold not in self._manifests:
            self._manifests[cold] = self._ready(Setup(cold=cold)).manifest()
        return self._manifests[cold]

    def equal(self) -> None:
        """Take note that a start from the trainer's weights is a start from its own."""
        if self._job is None:
            self._same_weights, self._setup = True, replace(self._setup, cold=False)

    @property
    def ran(self) -> bool:
        """Whether it has ever started as the job has it."""
        return self._dtype is not None

    def lost(self) -> None:
        """Forget an engine that died."""
        engine, self._running = self._running, None
        if engine is not None:
            engine.close()

    def close(self) -> None:
        """End it."""
        self.lost()

    def _ready(self, setup: Setup) -> Engine:
        setup = self._plain(setup)
        if refused := self._refused.get(Setup(), self._refused.get(setup)):
            raise Unable(refused)
        if self._running is not None and setup == self._setup:
            return self._running
        if self._job is not None and setup == Setup():
            raise Unable("the engine that drew the tokens was given up for another experiment")
        if self._running is not None and self._running is self._job:
            self._ask_for_the_last_time(self._running)
        before, self._running = self._running, None
        folder = self._folders(setup.cold, setup.config) if setup.cold or setup.config else None
        try:
            self._running = self._start(folder, setup.dtype, setup.head_fp32, before)
        except BaseException as error:
            if before is not None:
                before.close()
            if isinstance(error, CkptcheckError):
                self._refused[setup] = error.message
            raise
        self._setup = setup
        if setup == Setup():
            self._dtype = self._running.info.dtype
        if setup.head_fp32 and "head_fp32" in self._running.ignored:
            self._refused[setup] = self._running.ignored["head_fp32"]
            raise Unable(self._refused[setup])
        return self._running

    def _plain(self, setup: Setup) -> Setup:
        """Leave out what makes no difference, so that nothing is started for it."""
        dtype = None if setup.dtype == self._dtype else setup.dtype
        head = setup.head_fp32 and (dtype or self._dtype) != "float32"  # float32 has a float32 head
        return replace(setup, dtype=dtype, head_fp32=head, cold=setup.cold and not self._same_weights)

    def _ask_for_the_last_time(self, engine: Engine) -> None:
        if False not in self._manifests:
            self._manifests[False] = engine.manifest()
        for change in ONLY_NOW:
            if change not in self._found:
                self._found[change] = self._scored(engine, change)

    def _scored(self, engine: Engine, change: EngineChange) -> NDArray[Any]:
        if not self._drawn_from(engine):
            return self._raw(engine, change)
        if change.path != "prefill":
            raise Unable("the recorded logprobs are processed, and by decoding it tells raw ones only")
        return self._cut(engine, change.fresh)

    def _raw(self, engine: Engine, change: EngineChange) -> NDArray[Any]:
        telling = Retelling(self._rollouts)
        made = telling.blank()
        size = 1 if change.alone else BATCH
        for numbers in self._batches(size):
            given = [telling.told(number) for number in numbers]
            if change.fresh:
                engine.reset_prefix_cache()
            if change.path == "prefill":
                for number, said in zip(numbers, engine.score(given), strict=True):
                    telling.place(made, number, said.prompt)
                continue
            first = max(1, int(self._rollouts.prompts[numbers[0]]))  # longer prompts are forced from there on, too
            for number, values in zip(numbers, engine.follow(given, first), strict=True):
                begin = self._rollouts.sequence(number).start + first
                made[begin : begin + len(values)] = values
        return made

    def _batches(self, size: int) -> Iterator[list[int]]:
        """Give sequences that have a response, those with prompts of like length together, the shortest first."""
        import numpy as np

        prompts = np.maximum(self._rollouts.prompts, 1)
        order = np.argsort(prompts, kind="stable")
        usable = order[(np.diff(self._rollouts.starts) > prompts)[order]].tolist()
        for begin in range(0, len(usable), size):
            yield usable[begin : begin + size]

    def _cut(self, engine: Engine, fresh: bool) -> NDArray[Any]:
        drawn = self._rollouts.metadata.sampling
        if fresh:
            engine.reset_prefix_cache()
        return Retelling(self._rollouts).cut(
            engine, self._folder, drawn.temperature or 1.0, drawn.top_p or 1.0, max(0, drawn.top_k or 0)
        )

    def _drawn_from(self, engine: Engine) -> bool:
        """Whether the recorded logprobs are of what was sampled from; where nobody says, the nearer ones decide."""
        import numpy as np

        about = self._rollouts.metadata
        drawn = about.sampling
        if self._processed is None:
            plain = (drawn.temperature or 1.0) == 1.0 and (drawn.top_p or 1.0) >= 1 and (drawn.top_k or 0) <= 0
            self._processed = about.logprobs == "processed" and not plain
            if about.logprobs == "unknown" and not plain:
                told = np.asarray(self._rollouts.columns["engine_logprobs"], np.float64)
                raw, cut = self._raw(engine, EngineChange(path="prefill")), self._cut(engine, False)
                both = np.isfinite(raw) & np.isfinite(cut) & (told != 0)
                raw_apart, cut_apart = (np.abs(values - told)[both].sum() for values in (raw, cut))
                self._processed = bool(cut_apart < raw_apart)
        return self._processed
