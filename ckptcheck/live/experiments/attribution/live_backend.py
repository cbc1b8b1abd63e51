"""A backend with a running trainer and engine, which supports every experiment and scores each change only once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.files_beside import copy_files_beside
from ckptcheck.checkpoint.source import Folder
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.attribution.experiment import (
    EngineChange,
    RecordedBackend,
    TrainerChange,
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

CONFIG = "config.json"
SILENT = {
    "_name_or_path", "architectures", "auto_map", "bos_token_id", "dtype", "eos_token_id", "initializer_range", "pad_token_id",
    "torch_dtype", "transformers_version", "use_cache", "output_attentions", "output_hidden_states", "return_dict",
    "attention_dropout", "hidden_dropout", "router_aux_loss_coef", "output_router_logits", "id2label", "label2id",
    "pretraining_tp", "max_position_embeddings", "quantization_config", "chunk_size_feed_forward", "is_encoder_decoder",
}  # fmt: skip
"""Settings that an engine's forward pass does not use; max_position_embeddings matters only with a scaling that names it too."""
TELLING = ("rope", "theta", "eps", "scal", "window", "norm", "heads", "tie", "act")
"""Settings whose names contain one of these come first in the list: they are the most likely causes."""


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
            self._trainer = TrainerSide(rollouts, trainer[0], folder, heat=temperature)
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
            raise Skip("the engine's checkpoint is quantized, so its bytes differ by design")
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


def describe_config_differences(engine: Mapping[str, Any], trainer: Mapping[str, Any]) -> tuple[str, ...]:
    """Describe each difference in a clause, the most likely causes first.

    A setting that only one config names may be the default of the other.

    >>> trainer = {"rope_parameters": {"rope_theta": 100000.0}, "dtype": "bfloat16"}
    >>> describe_config_differences({"rope_theta": 10000, "dtype": "float32"}, trainer)
    ('rope_theta 10000, and 100000 in the trainer',)
    """
    engine_settings, trainer_settings = _flatten_settings(engine), _flatten_settings(trainer)
    names = [
        name
        for name in {**engine_settings, **trainer_settings}
        if engine_settings.get(name) != trainer_settings.get(name)
    ]
    names.sort(
        key=lambda name: (
            not any(part in name for part in TELLING),
            name not in engine_settings or name not in trainer_settings,
        )
    )
    return tuple(
        f"{name} {_format_setting(engine_settings, name)}, and {_format_setting(trainer_settings, name)} in the trainer"
        for name in names
    )


def link_checkpoint(weights: Path, config: Path, folder: Path) -> Path:
    """Create a checkpoint in `folder` from links to one folder's weights and another's config.json, and return `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, file in Folder(weights, str(weights)).files.items():
        if name != CONFIG and file.outside_link is None:
            (folder / name).symlink_to(file.path)
    copy_files_beside(config, folder, lambda name: name == CONFIG)
    return folder


def _flatten_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return setting → value without nesting: transformers 4 and 5 nest the settings of rope differently."""
    settings: dict[str, Any] = {}
    for name, value in config.items():
        if name in SILENT or value is None:
            continue
        if isinstance(value, Mapping):
            settings |= {
                ("rope_type" if key == "type" else key): nested_value
                for key, nested_value in _flatten_settings(value).items()
            }
        else:
            settings[name] = value
    if settings.get("rope_type") == "default":
        del settings["rope_type"]
    return settings


def _format_setting(settings: Mapping[str, Any], name: str) -> str:
    """Return the value of a setting as text, "nothing" where the config does not name it."""
    if name not in settings:
        return "nothing"
    value = settings[name]
    return f"{value:g}" if isinstance(value, float) and value.is_integer() else json.dumps(value)
