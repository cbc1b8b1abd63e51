"""A world in which both sides run: every experiment of the ladder can be made, and each is made once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.attribution.change import EngineChange, TrainerChange
from ckptcheck.attribution.configs import combined, differing
from ckptcheck.attribution.engine_side import EngineSide
from ckptcheck.attribution.engine_side import Start as StartEngine
from ckptcheck.attribution.recorded import Recorded
from ckptcheck.attribution.state import start as state_of
from ckptcheck.attribution.trainer_side import Start as StartTrainer
from ckptcheck.attribution.trainer_side import TrainerSide
from ckptcheck.attribution.world import Unable
from ckptcheck.engines.base import Engine, Manifest
from ckptcheck.errors import CkptcheckError
from ckptcheck.host.patience import within
from ckptcheck.host.trouble import HostDied, VerbError
from ckptcheck.refit.names import braced, sources
from ckptcheck.rollouts.rollouts import Rollouts
from ckptcheck.trainers.base import Weight

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Held:
    """A checkpoint that a side holds: its folder, and what its config.json says."""

    folder: Path
    config: Mapping[str, Any]


class Live:
    """Rollouts, and the sides as far as they can be started; use as a context manager.

    engine: starts it, with the checkpoint that it holds; None where there is none. trainer: likewise. folder: for what is
    written on the way. timeout: seconds for any one experiment, with the start that it takes. running: see `EngineSide`.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        folder: Path,
        *,
        engine: tuple[StartEngine, Held] | None = None,
        trainer: tuple[StartTrainer, Held] | None = None,
        running: Engine | None = None,
        timeout: float | None = None,
    ) -> None:
        self.rollouts = rollouts
        self._recorded = Recorded(rollouts)
        self._folder, self._timeout = folder, timeout
        self._engine_held = engine[1] if engine is not None else None
        self._trainer_held = trainer[1] if trainer is not None else None
        self._saved = False
        self._found: dict[TrainerChange, NDArray[Any]] = {}
        self._engine: EngineSide | None = None
        self._trainer: TrainerSide | None = None
        if engine is not None:
            self._engine = EngineSide(rollouts, engine[0], self._checkpoint, folder, running=running)
        if trainer is not None:
            about = rollouts.metadata.trainer
            heat = about.temperature if about is not None and about.temperature else 1.0
            self._trainer = TrainerSide(rollouts, state_of(rollouts).mask, trainer[0], folder, heat=heat)
        begin = self._trainer_held.config.get("bos_token_id") if self._trainer_held is not None else None
        self.bos: int | None = begin if type(begin) is int else None

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def trainer(self, change: TrainerChange) -> NDArray[Any]:
        """Return the trainer's logprobs; without one, what is recorded allows."""
        if self._trainer is None:
            return self._recorded.trainer(change)
        if change not in self._found:
            with self._told("trainer", self._trainer):
                self._found[change] = self._trainer.scores(change)
        return self._found[change]

    def engine(self, change: EngineChange) -> NDArray[Any]:
        """Return the engine's logprobs."""
        side = self._demand_engine()
        with self._told("engine", side):
            return side.scores(change)

    def weights(self) -> tuple[str, ...]:
        """Compare what the engine holds with what it holds when it is started from the trainer's weights."""
        side = self._demand_engine()
        if self._trainer is None:
            raise Unable("no trainer is given")
        if self._engine_held is not None and "quantization_config" in self._engine_held.config:
            raise Unable("the engine's checkpoint is quantized, so its bytes are others by design")
        with self._told("engine", side):
            own = side.manifest(cold=False)
            cold = side.manifest(cold=True)
            weights = {each.name: each for each in self._trainer.weights()}
        readable = [key for key, entry in own.items() if entry.kind == "parameter" and not entry.opaque]
        if not readable:
            raise Unable("the engine's weights cannot be read")
        found = unlike(own, cold, weights)
        if not found and not any(entry.opaque for entry in own.values()):
            side.equal()
        return found

    def config(self) -> tuple[str, ...]:
        """Compare the two config.json."""
        if self._engine_held is None or self._trainer_held is None:
            raise Unable(f"no {'engine' if self._engine_held is None else 'trainer'} is given")
        return differing(self._engine_held.config, self._trainer_held.config)

    def close(self) -> None:
        """End both sides."""
        for side in (self._engine, self._trainer):
            if side is not None:
                side.close()

    def _demand_engine(self) -> EngineSide:
        if self._engine is None:
            raise Unable("no engine is given")
        return self._engine

    def _checkpoint(self, cold: bool, config: bool) -> Path:
        """Return a checkpoint of the engine's weights, or the trainer's, with the engine's config, or the trainer's."""
        if self._engine_held is None or self._trainer_held is None or self._trainer is None:
            raise Unable("no trainer is given")
        saved = self._folder / "trainer"
        if cold and not self._saved:
            self._trainer.save(saved)
            self._saved = True
        name = f"{'trainer' if cold else 'engine'}-with-{'trainer' if config else 'engine'}-config"
        return combined(
            saved if cold else self._engine_held.folder,
            (self._trainer_held if config else self._engine_held).folder,
            self._folder / name,
        )

    @contextmanager
    def _told(self, name: str, side: EngineSide | TrainerSide) -> Iterator[None]:
        """Turn trouble of a process into an experiment that could not be made; one that died is started anew when asked again."""
        try:
            with within(self._timeout):
                yield
        except HostDied as error:
            side.lost()
            raise Unable(f"the {name} failed: {error.message}") from error
        except VerbError as error:
            raise Unable(f"the {name} failed: {error.message}") from error
        except CkptcheckError as error:
            if not side.ran:  # it is not installed, or the like: whoever asked for it has to know
                raise
            raise Unable(error.message) from error


def unlike(own: Manifest, cold: Manifest, weights: Mapping[str, Weight]) -> tuple[str, ...]:
    """Name the tensors that differ, and the weights that each is made of."""
    names: dict[str, None] = {}
    for key in {**own, **cold}:
        here, there = own.get(key), cold.get(key)
        kind = here or there
        if kind is None or kind.kind != "parameter" or (here and here.opaque) or (there and there.opaque):
            continue
        if here is None or there is None or (here.digest, here.shape) != (there.digest, there.shape):
            names.setdefault(key[1])
    found = []
    for name in names:
        made = [each.name for each in sources(name, weights)]
        found.append(name if made in ([], [name]) else f"{name} ({braced(made)})")
    return tuple(found)
