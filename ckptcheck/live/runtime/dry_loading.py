"""Asks transformers, vLLM and SGLang to load a checkpoint without its values, each in a process of its own Python.

The process gets a folder with the configs, the index and the headers of the checkpoint; behind the headers its files are empty
(they take no disk). So no value is read, a model of any size takes seconds, and nothing else of the checkpoint reaches the loader.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.dry_load import DryLoad
from ckptcheck.checkpoint.header import FIRST_READ
from ckptcheck.checkpoint.index import find_index_file
from ckptcheck.checkpoint.source import read_document
from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.linter.rule import Skip
from ckptcheck.live.runtime.engines.prepared_worker import PreparedWorkers
from ckptcheck.live.runtime.environments.interpreter import find_interpreter
from ckptcheck.live.runtime.environments.probe import probe_python
from ckptcheck.live.runtime.process.client import WorkerClient
from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied, WorkerTimeout
from ckptcheck.text.file_io import expand_home
from ckptcheck.text.formatting import format_bytes

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

NAMES: Mapping[str, str] = {"transformers": "transformers", "vllm": "vLLM", "sglang": "SGLang"}
"""Consumers that can be asked → their names in messages."""
PATIENCE, PATIENCE_PER_TENSOR = 60.0, 0.02
"""Seconds that one load may take, plus seconds for each stored tensor: 60 layers of 256 experts, 92,000 tensors, take
half a minute."""
OLDEST_TRANSFORMERS = 5
"""Its first version whose loader reports every tensor."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""One thread: nothing is computed, and only a process without a pool of threads can be copied."""
MOST_JSON = 16 << 20
"""Bytes of a config that is copied. A larger file is a tokenizer, and no loader of weights asks for one."""
LONGEST_COPIED_INDEX = 1 << 28
MOST_COPIED = 1 << 29
"""Bytes of all configs, indexes and headers that are copied: in a sparse file huge headers cost nothing."""


class WorkerDryLoader:
    """Asks one consumer, each time in a new process: a load changes its library. Use it as a context manager."""

    def __init__(self, name: str, python: Path | None = None, loads: int = 1) -> None:
        """Find the Python that has the consumer. Raises CkptcheckError if none has it.

        Args:
            name: one of `NAMES`.
            python: the user's own Python; None for this one (transformers), or an environment that ckptcheck built.
            loads: how many checkpoints it will be asked about.
        """
        self.name, self._loads = name, loads
        self._python, self._variables = _find_python(name, python)
        self._workers: PreparedWorkers | None = None

    def __enter__(self) -> WorkerDryLoader:
        """Begin to import the library, while the headers are read."""
        variables: dict[str, str | None] = {**ONE_THREAD, **self._variables, "HF_HUB_OFFLINE": "1"}
        module, name = f"ckptcheck_worker.dry_load_{self.name}", f"dry load by {NAMES[self.name]}"
        start = partial(WorkerClient, self._python, module, name=name, env=variables)
        self._workers = PreparedWorkers(start, self._loads, copies=self._loads > 1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._workers is not None:
            self._workers.close()

    def load(self, ckpt: Checkpoint) -> DryLoad:
        """Return the consumer's answer about a checkpoint.

        Raises EvidenceError if the process cannot be started, or the headers not copied; Skip for a checkpoint without
        anything to load.
        """
        with tempfile.TemporaryDirectory(prefix="ckptcheck-dry-load-") as folder:
            try:
                copy_without_values(ckpt, Path(folder))
            except (OSError, ValueError) as error:  # A name on the Hub may be no valid name of a file.
                raise EvidenceError(
                    f"the headers could not be copied for a dry load: {getattr(error, 'strerror', None) or error}"
                ) from error
            patience = PATIENCE + PATIENCE_PER_TENSOR * len(ckpt.tensors)
            with self._take_worker() as worker:
                consumer = f"{NAMES[self.name]} {worker.call('version')}"
                try:
                    answer = worker.call("dry_load", folder=folder, timeout=patience)
                except WorkerTimeout:
                    return DryLoad(consumer, unasked=f"it did not finish within {patience:.0f} seconds", broke_off=True)
                except RemoteError as error:  # the loader answers; this is from its caller
                    reason = f"{error.exception_type}: {clip(error.remote_message, 400)}"
                    return DryLoad(consumer, unasked=reason, broke_off=True)
                except WorkerDied as death:
                    # Too little memory may have killed it: a loader that refuses a checkpoint says so.
                    reason = "; ".join(filter(None, (death.message, death.hint)))
                    return DryLoad(consumer, unasked=reason, broke_off=True)
        texts = {
            name: str(answer[name]).replace(folder, ckpt.target) for name in ("refused", "unasked") if name in answer
        }
        if not answer.get("model") and ckpt.config is not None and ckpt.config.value.get("auto_map"):
            own_code = "the checkpoint brings its own code, which is not run"
            if "refused" in texts:
                texts = {"unasked": f"{own_code}: {texts['refused']}", "refused": ""}
            elif "custom code" in texts.get("unasked", ""):
                texts["unasked"] = own_code
        return msgspec.convert({"consumer": consumer, **answer, **texts}, DryLoad)

    def _take_worker(self) -> WorkerClient:
        """Return a process that has imported the library: if that is safe, a copy of one that did nothing else."""
        assert self._workers is not None, "it is a context manager"
        try:
            return self._workers.take()
        except CkptcheckError as error:
            raise EvidenceError(f"{NAMES[self.name]} could not be asked: {error.message}", error.hint) from error


def create_dry_loaders(
    wanted: Sequence[str], stack: contextlib.ExitStack, loads: int = 1
) -> tuple[WorkerDryLoader, ...]:
    """Return the loaders that ``--dry-load`` names; `stack` closes them.

    wanted: ``NAME`` or ``NAME=PYTHON``. loads: how many checkpoints each will be asked about.
    Raises CkptcheckError for an unknown name, for a name that occurs twice, and if no Python has the consumer.
    """
    pythons: dict[str, Path | None] = {}
    for each in wanted:
        name, given, python = each.partition("=")
        if name not in NAMES:
            raise CkptcheckError(f"{name!r} cannot be asked for a dry load", f"choose one of {', '.join(NAMES)}")
        if given and not python:
            raise CkptcheckError(f"{each!r} names no Python", f"write {name}=/path/to/python, or {name}")
        if name in pythons:
            raise CkptcheckError(f"--dry-load names {name} twice, and it is asked once", "name it with one Python")
        pythons[name] = Path(expand_home(python)) if python else None
    return tuple(stack.enter_context(WorkerDryLoader(name, python, loads)) for name, python in pythons.items())


def copy_without_values(ckpt: Checkpoint, folder: Path) -> None:
    """Write the configs, the index and the headers of a checkpoint to a folder; the data of its files are holes.

    Raises Skip without a config.json or a safetensors file, EvidenceError or OSError if one cannot be read.
    """
    if ckpt.config is None:
        raise Skip("there is no config.json, so no loader knows what to build")
    if not ckpt.shards:
        raise Skip("there is no safetensors file")
    index = find_index_file(ckpt.files)
    left = MOST_COPIED
    for name, file in ckpt.files.items():
        if "/" in name or file.outside_link is not None:
            continue
        if name.endswith(".safetensors"):
            shard = ckpt.shards.get(name)
            # Of a file without a valid header the loader sees the beginning, and reports the same fault.
            due = shard.data_start if shard is not None and shard.data_start else FIRST_READ
            raw = ckpt.source.read(name, 0, min(due, file.size))
            with (folder / name).open("wb") as copy:
                copy.write(raw)
                copy.truncate(max(file.size, len(raw)))
        elif name.endswith(".json") and file.size <= (LONGEST_COPIED_INDEX if name == index else MOST_JSON):
            raw = read_document(ckpt.source, name, file.size)
            (folder / name).write_bytes(raw)
        else:
            continue
        if (left := left - len(raw)) < 0:
            raise Skip(f"its configs and headers have more than {format_bytes(MOST_COPIED)}, which no loader needs")


def _find_python(name: str, python: Path | None) -> tuple[Path, Mapping[str, str]]:
    """Return the Python that has a consumer, and the environment variables that it needs. Raises CkptcheckError."""
    if name != "transformers":
        interpreter = find_interpreter(name, python, f"--dry-load {name}=PYTHON")
        return interpreter.python, interpreter.variables
    own = python or Path(sys.executable)
    versions = probe_python(own, ("torch", "transformers")).versions
    if len(versions) == 2 and int(versions["transformers"].partition(".")[0]) >= OLDEST_TRANSFORMERS:
        return own, {}
    if python is None:
        with contextlib.suppress(CkptcheckError):
            interpreter = find_interpreter("megatron")
            return interpreter.python, interpreter.variables
    has = ", ".join(f"{package} {version}" for package, version in versions.items()) or "neither"
    has += " alone" if len(versions) == 1 else ""
    raise CkptcheckError(
        f"a dry load needs torch and transformers {OLDEST_TRANSFORMERS}, and {own} has {has}",
        "install both there, or name a Python that has them: --dry-load transformers=PYTHON",
    )
