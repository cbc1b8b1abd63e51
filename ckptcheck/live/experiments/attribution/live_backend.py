"""A backend with a running trainer and engine, which supports every experiment and scores each change only once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.attribution.config_diff import describe_config_differences, link_checkpoint
from ckptcheck.live.experiments.attribution.experiment import (
    EngineChange,
    RecordedBackend,
    TrainerChange,
    initial_state,
)
from ckptcheck.live.experiments.attribution.sides import EngineSide, StartEngine, StartTrainer, TrainerSide
from ckptcheck.live.refit.observations import Key
from ckptcheck.live.refit.weight_names import join_names, trainer_weights
from ckptcheck.live.runtime.engines.base import TensorDigests
from ckptcheck.live.runtime.process.deadlines import time_budget
from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied
from ckptcheck.live.runtime.trainers.base import Weight
from ckptcheck.rollouts.rollouts import Rollouts

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class CheckpointRef:
    """A checkpoint that a side loads: its folder and the content of its config.json."""

    folder: Path
    config: Mapping[str, Any]


class LiveBackend:
    """Rollouts, and those sides that ckptcheck can start; use it as a context manager.

    Args:
        folder: for temporary files.
        engine: the function that starts the engine, and the checkpoint that it loads; None: no engine is available.
        trainer: the same for the trainer.
        timeout: seconds for any one change, including the start that it needs.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        folder: Path,
        *,
        engine: tuple[StartEngine, CheckpointRef] | None = None,
        trainer: tuple[StartTrainer, CheckpointRef] | None = None,
        timeout: float | None = None,
    ) -> None:
        self.rollouts = rollouts
        self._recorded = RecordedBackend(rollouts)
        self._folder, self._timeout = folder, timeout
        self._engine_held = engine[1] if engine is not None else None
        self._trainer_held = trainer[1] if trainer is not None else None
        self._saved = False
        self._found: dict[TrainerChange, NDArray[Any]] = {}
        self._engine: EngineSide | None = None
        self._trainer: TrainerSide | None = None
        if engine is not None:
            self._engine = EngineSide(rollouts, engine[0], self._checkpoint, folder)
        if trainer is not None:
            trainer_info = rollouts.metadata.trainer
            temperature = trainer_info.temperature if trainer_info is not None and trainer_info.temperature else 1.0
            self._trainer = TrainerSide(rollouts, initial_state(rollouts).mask, trainer[0], folder, heat=temperature)
        bos_id = self._trainer_held.config.get("bos_token_id") if self._trainer_held is not None else None
        self.bos: int | None = bos_id if type(bos_id) is int else None

    def __enter__(self) -> LiveBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def trainer(self, change: TrainerChange) -> NDArray[Any]:
        """Return the trainer's logprobs; without a trainer, compute them from the recorded distributions."""
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
        """Compare the engine's tensors with those of an engine that starts from the trainer's weights."""
        side = self._demand_engine()
        if self._trainer is None:
            raise Skip("no trainer is given")
        if self._engine_held is not None and "quantization_config" in self._engine_held.config:
            raise Skip("the engine's checkpoint is quantized, so its bytes are others by design")
        with self._told("engine", side):
            own_digests = side.manifest(cold=False)
            cold_digests = side.manifest(cold=True)
            weights = {weight.name: weight for weight in self._trainer.weights()}
        readable = [key for key, entry in own_digests.items() if entry.kind == "parameter" and not entry.opaque]
        if not readable:
            raise Skip("the engine's weights cannot be read")
        differing_tensors = name_differing_weights(own_digests, cold_digests, weights)
        if not differing_tensors and not any(entry.opaque for entry in own_digests.values()):
            side.assume_equal_weights()
        return differing_tensors

    def config(self) -> tuple[str, ...]:
        """Compare the two config.json."""
        if self._engine_held is None or self._trainer_held is None:
            raise Skip(f"no {'engine' if self._engine_held is None else 'trainer'} is given")
        return describe_config_differences(self._engine_held.config, self._trainer_held.config)

    def close(self) -> None:
        """End both sides."""
        for side in (self._engine, self._trainer):
            if side is not None:
                side.close()

    def _demand_engine(self) -> EngineSide:
        """Return the engine's side. Raises Skip without an engine."""
        if self._engine is None:
            raise Skip("no engine is given")
        return self._engine

    def _checkpoint(self, cold: bool, config: bool) -> Path:
        """Return a checkpoint of the engine's weights, or the trainer's, with the engine's config, or the trainer's."""
        if self._engine_held is None or self._trainer_held is None or self._trainer is None:
            raise Skip("no trainer is given")
        saved = self._folder / "trainer"
        if cold and not self._saved:
            self._trainer.save(saved)
            self._saved = True
        name = f"{'trainer' if cold else 'engine'}-with-{'trainer' if config else 'engine'}-config"
        return link_checkpoint(
            saved if cold else self._engine_held.folder,
            (self._trainer_held if config else self._engine_held).folder,
            self._folder / name,
        )

    @contextmanager
    def _told(self, name: str, side: EngineSide | TrainerSide) -> Iterator[None]:
        """Turn failures of a process into Skip; a process that died starts again at the next request."""
        try:
            with time_budget(self._timeout):
                yield
        except WorkerDied as error:
            side.close()
            raise Skip(f"the {name} failed: {error.message}") from error
        except RemoteError as error:
            raise Skip(f"the {name} failed: {error.message}") from error
        except CkptcheckError as error:
            # a side that never started is not installed, or the like: the user has to know
            if not side.has_started:
                raise
            raise Skip(error.message) from error


def name_differing_weights(own: TensorDigests, cold: TensorDigests, weights: Mapping[str, Weight]) -> tuple[str, ...]:
    """Name the engine tensors that differ, each with the checkpoint tensors that it is built from.

    own: digests of the job's engine. cold: of an engine that started from the trainer's weights. weights: name → weight of
    the trainer.
    """

    def is_same(key: Key) -> bool:
        one, other = own.get(key), cold.get(key)
        if (one or other or cold[key]).kind != "parameter" or any(entry and entry.opaque for entry in (one, other)):
            return True
        return bool(one and other and (one.digest, one.shape) == (other.digest, other.shape))

    names = dict.fromkeys(key[1] for key in {**own, **cold} if not is_same(key))
    descriptions = []
    for name in names:
        sources = [weight.name for weight in trainer_weights(name, weights)]
        descriptions.append(name if sources in ([], [name]) else f"{name} ({join_names(sources)})")
    return tuple(descriptions)
