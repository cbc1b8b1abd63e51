"""Assembles a trial of a LoRA adapter: opens base model and adapter, starts the engine, and cleans up."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.refit.live_trial import PREFIX_CACHE_BLOCK, TrialEngine, clean_up_folder
from ckptcheck.live.refit.lora.trace import LoraTrace
from ckptcheck.live.refit.trial_state import Timeouts
from ckptcheck.text.file_io import read_json_file
from ckptcheck.text.observer import SILENT, Observer

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
SLOTS = 2
"""Adapters that the engine holds at once: few, so that it has to evict."""


@dataclass(frozen=True)
class AdapterShape:
    """What an engine has to know of an adapter before it starts."""

    rank: int
    """Of its largest pair."""
    modules: tuple[str, ...]
    """Last parts of the names of the modules that it changes."""


@contextlib.contextmanager
def run_live_lora_trial(
    source: str,
    adapter: Path,
    engine: TrialEngine,
    *,
    dtype: str,
    update: str,
    timeouts: Timeouts | None = None,
    observer: Observer = SILENT,
) -> Iterator[LoraTrace]:
    """Run a trial of an adapter and yield its trace. Leaving the context ends the processes and removes the files.

    Raises CkptcheckError for a source or an adapter that cannot be opened, and for an engine that is not installed.
    """
    from ckptcheck.checkpoint.files_beside import list_files_beside
    from ckptcheck.live.refit.lora.trial import LoraTrial
    from ckptcheck.live.refit.source import open_source
    from ckptcheck.live.runtime.engines import registry
    from ckptcheck.live.runtime.engines.base import Engine
    from ckptcheck.live.runtime.engines.engine_options import parse_switches
    from ckptcheck.live.runtime.engines.sizing import default_context_len
    from ckptcheck.live.runtime.process.signal_guard import SignalGuard

    shape = read_adapter_shape(adapter)
    switches = parse_switches(list(engine.switches))
    with SignalGuard() as signal_guard, contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="ckptcheck-lora-"))
        stack.callback(clean_up_folder, folder, False, observer)
        ckpt = open_source(source, folder / "source")
        base, embedding = ckpt.source.local, ckpt.components.embedding
        if base is None or embedding is None:
            raise CkptcheckError(f"{source} is no checkpoint on this disk with a token embedding")
        list_files_beside(base)  # the worker copies them for the merged weights
        arguments = registry.CLASSES[engine.name]().lora_arguments(SLOTS, shape.rank, shape.modules)

        def start(checkpoint: Path, serves_adapters: bool, replaces: Engine | None) -> Engine:
            started = registry.start_engine(
                engine.name, checkpoint, dtype=dtype, ranks=engine.tp, mode=engine.mode, switches=switches,
                python=engine.python, gpus=engine.gpus, scratch=(folder,), replaces=replaces,
                extra_arguments=arguments if serves_adapters else {},
            )  # fmt: skip
            return started

        trace = LoraTrace(source, str(adapter), update, SLOTS)
        has_room = default_context_len(base) >= 2 * PREFIX_CACHE_BLOCK + 16
        trial = LoraTrial(
            trace, start, base, adapter, vocabulary=ckpt.tensors[embedding].shape[0],
            block=PREFIX_CACHE_BLOCK if has_room else 0, folder=folder,
            timeouts=timeouts, nbytes=sum(tensor.nbytes for tensor in ckpt.tensors.values()), say=observer.log,
            follow=observer.phase,
        )  # fmt: skip
        trial.run()
        signal_guard.ignore_signals()
        yield trace


def read_adapter_shape(adapter: Path) -> AdapterShape:
    """Read rank and modules from the headers of an adapter. Raises CkptcheckError for what is no adapter of PEFT."""
    from ckptcheck.checkpoint.open import open_checkpoint

    hint = f"a LoRA adapter is a folder with {CONFIG} and {WEIGHTS}; ckptcheck scan looks at one"
    try:
        config = read_json_file(adapter / CONFIG)
        rank = int(config["r"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise CkptcheckError(f"{adapter} has no {CONFIG} that says its rank", hint) from error
    if not (adapter / WEIGHTS).is_file():
        raise CkptcheckError(f"{adapter} has no {WEIGHTS}", hint)
    names = open_checkpoint(str(adapter)).tensors
    pairs = {name: tensor.shape for name, tensor in names.items() if ".lora_A." in name and len(tensor.shape) == 2}
    modules = sorted({name.partition(".lora_A.")[0].rpartition(".")[2] for name in pairs})
    if not modules:
        raise CkptcheckError(f"{adapter} has no matrix lora_A", hint)
    return AdapterShape(max(rank, *(shape[0] for shape in pairs.values())), tuple(modules))
