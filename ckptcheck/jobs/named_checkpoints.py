"""Scans the checkpoints that a job names, headers only, where they are on this machine or in an object store.

The scan compares their ignore lists with how the job's engine and trainer read them. The sampling parameters that requests leave
out come from the model's generation_config.json, as in vLLM's server (``ModelConfig.get_diff_sampling_param``;
``--generation-config auto`` is the default since 0.8.0, vllm-project/vllm#12622).
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.objects.address import is_object_address
from ckptcheck.checkpoint.open import REPOSITORY
from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.document import Leaf
from ckptcheck.jobs.job import Job, NamedCheckpoint, Setting
from ckptcheck.linter.rule import Skip
from ckptcheck.text.file_io import expand_home

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.config import Config
    from ckptcheck.checkpoint.tokenizer import Tokenizer
    from ckptcheck.checkpoint.vocabulary import Vocabulary


TRACKER, STEP = "latest_checkpointed_iteration.txt", re.compile(r"iter_\d{7}")
"""Megatron's file with the number of the newest step, and the folder of a step."""
NAMES = ("checkpoint.model", "checkpoint.trainer", "checkpoint.critic")
"""The fields that name checkpoints."""
TOKENIZERS = ("checkpoint.model", "trainer.tokenizer", "engine.tokenizer")
"""The fields that name where a tokenizer comes from."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Keys of config.json that hold the number of experts."""

CACHE_SCALES = (".k_scale", ".v_scale", ".kv_scale")
"""Ends of the names of an fp8 cache's scales."""


def scan_named_checkpoints(job: Job, folder: Path, model: str | None = None) -> None:
    """Scan the checkpoints that the job names, and set `job.checkpoints`.

    folder: the folder of the job's first file; a relative path is looked up there first, then in the working folder. model: a copy
    of the model that the job names, from the working folder, in place of it; None: where the job says.
    """
    checkpoints: dict[str, NamedCheckpoint] = {}
    for name in NAMES:
        setting = job[name]
        if setting.is_known and setting.value not in (None, "none", ""):
            same = next((known for known in checkpoints.values() if known.named == str(setting.value)), None)
            if model is not None and same is None and name == "checkpoint.model":
                checkpoints[name] = replace(_find_and_scan(job, model, Path()), named=str(setting.value))
                continue
            checkpoints[name] = same or _find_and_scan(job, str(setting.value), folder)
    job.checkpoints = checkpoints
    named = {
        name: str(job[name].value)
        for name in TOKENIZERS
        if job[name].is_known and job[name].value not in (None, "none", "")
    }
    if len(set(named.values())) > 1:
        job.tokenizers = {
            name: NamedCheckpoint(value, vocabulary=_read_vocabulary(value, folder)) for name, value in named.items()
        }


def _read_vocabulary(name: str, folder: Path) -> Vocabulary | None:
    """Return the tokens of a tokenizer that is on this machine, None where it is not or cannot be read."""
    try:
        path = next((path for path in _list_candidate_paths(name, folder) if path.is_dir()), None)
        tokenizer = _open_configs(path, name).tokenizer if path is not None else None
        vocabulary = tokenizer.vocabulary if tokenizer is not None else None
    except (CkptcheckError, OSError, ValueError, RuntimeError):
        return None
    return vocabulary if vocabulary is not None and vocabulary.readable else None


def _find_and_scan(job: Job, name: str, folder: Path) -> NamedCheckpoint:
    """Scan one checkpoint, or state why it is not scanned. name: the checkpoint as the job writes it."""
    if is_object_address(name):
        try:
            return _scan(job, name, name)
        except CkptcheckError as error:
            return NamedCheckpoint(name, name, error.message + (f" ({error.hint})" if error.hint else ""))
    try:
        path = next((path for path in _list_candidate_paths(name, folder) if path.exists()), None)
    except (OSError, ValueError, RuntimeError):
        # The name is too long, contains a NUL, or starts with the ~ of a user without a home.
        return NamedCheckpoint(name, reason=f"{clip(repr(name))} is no name of a file")
    if path is None:
        if REPOSITORY.fullmatch(name):
            return NamedCheckpoint(
                name, reason=f"{name} is on the Hub, and not read: ckptcheck scan hf://{name} reads it"
            )
        return NamedCheckpoint(name, reason=f"{clip(name)} is not on this machine")
    untracked = _list_untracked_steps(path)
    try:
        return replace(_scan(job, name, str(path)), untracked_steps=untracked)
    except CkptcheckError as error:
        found = NamedCheckpoint(name, str(path), error.message, untracked_steps=untracked)
    return _describe(found, _open_configs(path, name))


def _open_configs(path: Path, name: str) -> Checkpoint:
    """Return a folder as a checkpoint without weights: its config.json may be here without them."""
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.source import Folder

    return Checkpoint(Folder(path, name))


def _list_untracked_steps(path: Path) -> tuple[str, ...]:
    """Return the steps that Megatron saved in a folder, if the file that names the newest of them is not there."""
    try:
        if not path.is_dir() or (path / TRACKER).exists():
            return ()
        return tuple(sorted(step.name for step in path.iterdir() if STEP.fullmatch(step.name)))
    except OSError:
        return ()


def _list_candidate_paths(name: str, folder: Path) -> list[Path]:
    """Return the paths where a checkpoint may be, in the order in which to try them."""
    path = Path(expand_home(name))
    return [path] if path.is_absolute() else [folder / path, path]


def _read_sampling(config: Config | None) -> dict[str, float]:
    """Return the numbers of generation_config.json."""
    values = {} if config is None else {name: config.get(name) for name in NEUTRAL}
    return {name: float(value) for name, value in values.items() if type(value) in (int, float) and abs(value) < 1e9}


def _read_turn_ends(tokenizer: Tokenizer | None) -> tuple[str | None, tuple[str, ...] | None]:
    """Return (the tokenizer's EOS, the tokens that end a turn and at which generation stops); None where it is not known."""
    if tokenizer is None:
        return None, None
    try:
        stops = {tokenizer.token_for(number) for number in tokenizer.eos_ids(tokenizer.generation_file)}
        role = tokenizer.eos_role
        return role.token if role else None, tuple(token for token in tokenizer.turn_end_tokens if token in stops)
    except (Skip, CkptcheckError):
        return None, None


def _scan(job: Job, name: str, path: str) -> NamedCheckpoint:
    """Run the rules on one checkpoint, and read from its config what preflight rules need."""
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.open import open_target
    from ckptcheck.checkpoint.scan_options import ScanOptions
    from ckptcheck.checkpoint.value_reader import UnreadValues
    from ckptcheck.consumers.registry import CONSUMERS
    from ckptcheck.linter import rule_loader
    from ckptcheck.linter.runner import run_rules

    consumers = tuple(
        consumer for consumer in dict.fromkeys((job.engine, job.framework.lower())) if consumer in CONSUMERS
    )
    options = ScanOptions(consumers=consumers)
    ckpt = open_target(path, options=options, value_reader=UnreadValues("headers only"))
    report = run_rules(ckpt, rule_loader.load_rules())
    errors = tuple(finding for finding in report.findings if finding.severity == "error")
    scanned = NamedCheckpoint(name, path, "", errors, consumers)
    if not isinstance(ckpt, Checkpoint):
        return scanned
    return replace(
        _describe(scanned, ckpt),
        weight_bytes=sum(tensor.nbytes for tensor in ckpt.tensors.values()),
        cache_scales=any(name.endswith(CACHE_SCALES) for name in ckpt.tensors),
    )


def _describe(found: NamedCheckpoint, ckpt: Checkpoint) -> NamedCheckpoint:
    """Return a checkpoint of the job with what its config files say; as it is, where it has no config.json that can be read."""
    from ckptcheck.checkpoint.config import INTERMEDIATE
    from ckptcheck.compare.bridge.model_dimensions import ModelDimensions

    try:
        config = ckpt.config
    except CkptcheckError:
        config = None
    if config is None:
        return found
    positions, parameters = config.get("max_position_embeddings"), config.get("rope_parameters")
    scaling = config.get("rope_scaling") or (isinstance(parameters, dict) and parameters.get("factor"))
    quantization = config.get("quantization_config")
    vocabulary = ckpt.tokenizer.vocabulary if ckpt.tokenizer else None
    end_token, turn_ends = _read_turn_ends(ckpt.tokenizer)
    return replace(
        found,
        experts=(config.integer(*EXPERTS) or 0) > 1,
        context=positions if type(positions) is int and not scaling else None,
        dtype=next((value for key in ("dtype", "torch_dtype") if isinstance(value := config.get(key), str)), None),
        dimensions=ModelDimensions.from_config(config),
        intermediate=None if config.integer(*EXPERTS) else config.integer(*INTERMEDIATE),
        vocab_size=config.integer("vocab_size"),
        vocabulary=vocabulary if vocabulary is not None and vocabulary.readable else None,
        end_token=end_token,
        turn_ends=turn_ends,
        sampling=_read_sampling(ckpt.generation_config),
        quantized=str(quantization.get("quant_method")) if isinstance(quantization, dict) else "none",
    )


NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0.0, "min_p": 0.0, "repetition_penalty": 1.0}
"""The parameters that vLLM takes from generation_config.json → the value at which each changes nothing."""
FILE = "generation_config.json"


def apply_model_defaults(job: Job) -> None:
    """Set the sampling parameters that the job's requests leave out to those of its model, where vLLM takes them from it."""
    if not takes_model_defaults(job):
        return
    checkpoint = job.checkpoints.get("checkpoint.model")
    if checkpoint is None or checkpoint.sampling is None:
        return
    for name, neutral in NEUTRAL.items():
        value = checkpoint.sampling.get(name)
        if value is None or job[f"rollout.{name}"].status in ("set", "unresolved"):
            continue
        is_neutral = value == neutral or (name == "top_k" and value <= 0)
        if not is_neutral:
            leaf = Leaf(value, name, f"{checkpoint.named}/{FILE}")
            job.settings[f"rollout.{name}"] = Setting(value, "set", "", leaf)


def takes_model_defaults(job: Job) -> bool:
    """Return whether the engine fills what the job's requests leave out from the model's generation_config.json."""
    return (
        job.engine == "vllm"
        and job.flag("rollout.from_engine") is True
        and job.text("engine.generation_config") == "auto"
    )
