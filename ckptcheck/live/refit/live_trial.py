"""Assembles a trial: opens the source, starts trainer and engine in their own Pythons, and cleans up after them."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.observer import SILENT, Observer

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.live.refit.trace import RefitTrace
    from ckptcheck.live.refit.trial_state import TrialSettings
    from ckptcheck.live.runtime.engines.base import Engine
    from ckptcheck.live.runtime.trainers.base import Trainer
    from ckptcheck.live.runtime.trainers.remote import RemoteTrainer

PREFIX_CACHE_BLOCK = 128
"""Tokens that an engine's prefix cache keeps together, at most."""


@dataclass(frozen=True)
class TrialEngine:
    """The engine of a trial."""

    name: str = "vllm"
    tp: int = 1
    mode: str = "plain"
    """How it stores weights on a CPU: plain or stock."""
    switches: Sequence[str] = ()
    """Settings, as ``NAME=VALUE``."""
    gpus: str | None = None
    """GPUs that it may see, comma-separated; None: all."""
    python: Path | None = None
    ep: int = 1
    """Ranks of expert parallelism, among those of `tp`."""
    dtype: str | None = None
    """What it computes in; None: what the trainer does."""


@dataclass(frozen=True)
class TrialTrainer:
    """The trainer of a trial, or of the logprobs that servers are compared with."""

    name: str = "megatron"
    tp: int = 1
    pp: int = 1
    ep: int = 1
    device: str = "auto"
    """auto, cpu or cuda."""
    gpus: str | None = None
    """GPUs that it may see, comma-separated; None: all."""
    python: Path | None = None


@dataclass(frozen=True)
class TrialQuantization:
    """How weights are quantized on their way to the engine."""

    scheme: str
    """w4a16, w8a8 or fp8."""
    ignore: Sequence[str] | None = None
    """Entries of the ignore list; None: the head and the routers."""
    quantizer: str = "compressed-tensors"
    """Whose reading of the ignore list decides: compressed-tensors or slime."""


@dataclass(frozen=True)
class TrialSource:
    """The checkpoint of a trial."""

    target: str
    hf_config: Path | None = None
    """Folder with the config.json of a Megatron run's model."""
    despite_errors: bool = False
    """Continue although a scan of the source finds errors."""
    keep: bool = False
    """Keep the checkpoints that are written on the way."""
    errors: list[str] = field(default_factory=list)
    """Filled with the errors of the source that the trial ignores."""


@contextlib.contextmanager
def run_live_trial(
    source: TrialSource,
    settings: TrialSettings,
    engine: TrialEngine,
    trainer: TrialTrainer,
    *,
    dtype: str = "float32",
    quantization: TrialQuantization | None = None,
    observer: Observer = SILENT,
) -> Iterator[RefitTrace]:
    """Run a trial and yield its trace. Leaving the context ends the processes and removes the files of the trial.

    dtype: what both sides compute in, unless the engine has its own. Once the trial is over, the process ignores signals until the
    clean-up is done. Raises CkptcheckError for a source that cannot be opened, and for an engine or a trainer that cannot be
    started.
    """
    from ckptcheck.checkpoint.open import open_checkpoint
    from ckptcheck.live.refit import feasibility
    from ckptcheck.live.refit.draft import DraftWeights, find_draft_folder
    from ckptcheck.live.refit.scoring_inputs import TrialTokenizer
    from ckptcheck.live.refit.source import open_source
    from ckptcheck.live.refit.trial import RefitTrial
    from ckptcheck.live.runtime.engines import registry
    from ckptcheck.live.runtime.engines.engine_options import parse_switches
    from ckptcheck.live.runtime.engines.sizing import DEFAULT_CONTEXT_LEN, default_context_len
    from ckptcheck.live.runtime.engines.transports import find_transport
    from ckptcheck.live.runtime.environments.interpreter import find_interpreter
    from ckptcheck.live.runtime.process.exchange import TensorExchange
    from ckptcheck.live.runtime.process.signal_guard import SignalGuard
    from ckptcheck.live.runtime.trainers import registry as trainers
    from ckptcheck.live.runtime.trainers.layout import ParallelLayout
    from ckptcheck.live.runtime.trainers.spawn import TrainerProcess
    from ckptcheck.live.runtime.trainers.transformers import start_transformers

    switches = parse_switches(list(engine.switches))
    layout = ParallelLayout(tp=trainer.tp, pp=trainer.pp, ep=trainer.ep)
    trainers.check_trainer(trainer.name, layout)
    with SignalGuard() as signal_guard, contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="ckptcheck-refit-"))
        stack.callback(clean_up_folder, folder, source.keep, observer)
        tolerated = source.errors if source.despite_errors else None
        ckpt = open_source(source.target, folder / "source", source.hf_config, tolerated=tolerated)
        # before anything loads: what no trainer holds, and an engine that is missing or cannot do what is asked
        feasibility.require_plain_source(ckpt)
        registry.check_build(engine.name, settings.transport, engine.python)
        interpreter = find_interpreter(engine.name, engine.python)
        feasibility.require_experts(ckpt, engine.ep)
        feasibility.require_dtype(ckpt, engine.name, engine.dtype or dtype, is_cpu_build=interpreter.is_cpu_build)
        if quantization is not None:
            feasibility.require_second_load(
                ckpt, engine.name, interpreter.version, quantization.scheme, quantization.ignore,
                is_cpu_build=interpreter.is_cpu_build,
            )  # fmt: skip
        row = find_transport(engine.name, settings.transport)
        if settings.send_draft:
            feasibility.require_draft_update(engine.name, row, switches.draft)
        embedding = ckpt.components.embedding
        if embedding is None:
            raise CkptcheckError(f"{source.target} has no token embedding that could be found")
        nbytes = sum(tensor.nbytes for tensor in ckpt.tensors.values()) * (2 if dtype == "float32" else 1)
        local = ckpt.source.local
        context_len = DEFAULT_CONTEXT_LEN if local is None else default_context_len(local)
        exchange = stack.enter_context(TensorExchange(need=nbytes))
        scratch = (exchange.folder, *(() if source.keep else (folder,)))
        draft = None
        if switches.draft == "mtp" or (switches.draft is not None and settings.send_draft):
            is_own_model = switches.draft != "mtp"
            draft = DraftWeights(
                open_checkpoint(switches.draft) if is_own_model else ckpt, is_own_model=is_own_model, dtype=dtype,
                exchange=exchange.folder if settings.send_draft else None,
            )  # fmt: skip

        def start_trainer() -> Trainer:
            """Start the trainer; the stack ends it."""
            plain_trainer = trainers.start_trainer(
                trainer.name, ckpt, exchange, layout, dtype, device=trainer.device, gpus=trainer.gpus,
                python=trainer.python, scratch=scratch,
            )  # fmt: skip
            stack.callback(plain_trainer.close)
            stack.callback(signal_guard.ignore_signals)
            if quantization is None:
                return plain_trainer
            quantized = trainers.quantize_trainer(
                plain_trainer, quantization.scheme, engine.name, exchange, folder, ignore=quantization.ignore,
                quantizer=quantization.quantizer, python=engine.python,
            )  # fmt: skip
            stack.callback(quantized.close)
            return quantized

        # the engine is imported while the trainer loads, and starts once more for the reference of each step
        prepared = registry.prepare_workers(
            engine.name, 1 + settings.steps, ranks=engine.tp, python=engine.python, gpus=engine.gpus, scratch=scratch
        )
        stack.callback(prepared.close)

        def start_engine(checkpoint: Path) -> Engine:
            """Start the engine in a process of its own."""
            own_draft = find_draft_folder(checkpoint)
            return registry.start_engine(
                engine.name, checkpoint, dtype=engine.dtype or dtype, ranks=engine.tp, expert_ranks=engine.ep, mode=engine.mode,
                python=engine.python, gpus=engine.gpus, transport=settings.transport,
                switches=switches if own_draft is None else replace(switches, draft=own_draft),
                sleep_level=settings.sleep_level, scratch=scratch, prepared=prepared, context_len=context_len,
            )  # fmt: skip

        def start_oracle(checkpoint: Path) -> RemoteTrainer:
            """Start transformers in float32; it computes on the CPU, beside whatever holds the GPUs."""
            process = TrainerProcess("cpu", python=trainer.python, scratch=scratch)
            return start_transformers(open_checkpoint(str(checkpoint)), exchange, process=process)

        trial = RefitTrial(
            source.target, start_trainer, start_engine, settings, vocabulary=ckpt.tensors[embedding].shape[0],
            block=PREFIX_CACHE_BLOCK, length=context_len, nbytes=nbytes, text=TrialTokenizer(ckpt.source), folder=folder,
            source=ckpt if quantization is None else None, draft=draft,
            start_oracle=start_oracle if quantization is None else None, image_token=find_image_token(ckpt),
            say=observer.log, follow=observer.phase,
        )  # fmt: skip
        trace = trial.run()
        signal_guard.ignore_signals()
        yield trace


def find_image_token(ckpt: Checkpoint) -> int | None:
    """Return the token that stands for an image, None for a model that takes none."""
    config = ckpt.config
    if config is None or not isinstance(config.get("vision_config"), dict):
        return None
    return config.integer("image_token_id", "image_token_index")


def clean_up_folder(folder: Path, keep: bool, observer: Observer) -> None:
    """Remove the folder of a trial's checkpoints and its content, or say where it is kept."""
    if keep and any(folder.iterdir()):
        observer.log(f"kept {folder}")
        return
    if keep:
        observer.log("nothing was written that could be kept")
    shutil.rmtree(folder, ignore_errors=True)
