"""What a trainer needs of its own save to resume from it, as its loading code says, and what it does without.

The RL frameworks say it in their folders (``ckptcheck/frameworks/<name>/saves.py``), the libraries that they save with here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Literal

import msgspec

from ckptcheck.framework_folders import list_frameworks_with, load_framework_file


class ResumePart(msgspec.Struct, frozen=True):
    """A file of a save, or a group of which any will do."""

    pattern: str
    """Regular expression of its paths below the folder of the step, from the folder in which the writer saves. Folders of further
    steps have ``*`` in place of the number."""
    without: str
    """What the writer does where it is missing: the end of a sentence."""
    severity: Literal["error", "warning"] = "error"
    name: str = ""
    """What a message calls it; "": by its path in another save."""
    beside: str = ""
    """Regular expression of paths that the writer never leaves without it, in the same folder; "": other saves have to show it."""


class SaveWriter(msgspec.Struct, frozen=True):
    """A trainer, or the library that writes its saves."""

    title: str
    source: str
    """Where its loading code was read."""
    signs: str
    """Regular expression of paths that only this writer's saves have."""
    parts: Sequence[ResumePart]
    outside: str = ""
    """Regular expression, with a group ``step``, of files that lie outside of the steps' folders and belong to one of them."""


FRESH = "resumes with a fresh optimizer and a schedule from its beginning"
RANDOM = "resumes with other random numbers"
TRAINER_STATE = r"(optimizer|scheduler)\.pt|rng_state(_\d+)?\.pth"
LIBRARIES = (
    SaveWriter(
        title="transformers' Trainer",
        source="transformers 5.19.0, trainer.py: train, _load_optimizer_and_scheduler, _load_rng_state",
        signs=r"trainer_state\.json|training_args\.bin",
        parts=(
            ResumePart(
                r"trainer_state\.json", "refuses to resume from it", name="trainer_state.json", beside=TRAINER_STATE
            ),
            ResumePart(
                r"optimizer\.(pt|bin)|optimizer_\d+/.+|global_step\*/.+|rank\d+-of-\d+-optimizer\.pt",
                FRESH,
                name="optimizer.pt",
                beside=r"scheduler\.pt",
            ),
            # DeepSpeed keeps its own scheduler in its own files
            ResumePart(r"scheduler\.pt", FRESH, name="scheduler.pt", beside=r"optimizer\.pt"),
            ResumePart(r"scaler\.pt", "resumes with the first scale of its gradients", "warning"),
            ResumePart(r"rng_state(_\d+)?\.pth", RANDOM, "warning", name="rng_state.pth"),
            ResumePart(r"training_args\.bin", "resumes without it, but never leaves it out itself", "warning"),
        ),
    ),
    SaveWriter(
        title="accelerate",
        source="accelerate 1.15.0, checkpointing.py: load_accelerator_state",
        signs=r"random_states_\d+\.pkl|scheduler(_\d+)?\.bin",
        parts=(
            ResumePart(
                r"optimizer(_\d+)?\.bin|optimizer_\d+/.+|pytorch_model(_[\d*]+)?/.+",
                "refuses to load it",
                name="optimizer.bin",
                beside=r"scheduler\.bin|random_states_\d+\.pkl",
            ),
            ResumePart(r"scheduler(_\d+)?\.bin|scaler\.pt|sampler(_\d+)?\.bin", "refuses to load it"),
            ResumePart(r"custom_checkpoint_\d+\.pkl", "refuses to load it"),
            ResumePart(r"random_states_\d+\.pkl", RANDOM, "warning", name="random_states_0.pkl"),
        ),
    ),
    SaveWriter(
        title="DeepSpeed",
        source="DeepSpeed, runtime/engine.py: load_checkpoint, _load_zero_checkpoint",
        signs=r"\w*mp_rank_\d+_model_states\.pt",
        parts=(
            # ZeRO 3 has one for each rank: zero_pp_rank_0_mp_rank_00_model_states.pt
            ResumePart(
                r"\w*mp_rank_\d+_model_states\.pt",
                "refuses to load it",
                name="mp_rank_00_model_states.pt",
                beside=r"\w*zero_pp_rank\w+optim_states\.pt",
            ),
            ResumePart(r"\w*zero_pp_rank\w+optim_states\.pt", "refuses to load it"),
        ),
    ),
    SaveWriter(
        title="Megatron-LM",
        source="megatron-core 0.16.1, dist_checkpointing: metadata.json is written last, and load asks for it first (measured)",
        signs=r"common\.pt|__\d+_\d+\.distcp",
        parts=(
            ResumePart(r"metadata\.json", "refuses to load it", name="metadata.json", beside=r"common\.pt"),
            ResumePart(r"common\.pt", "refuses to load it"),
            ResumePart(r"mp_rank\w+/distrib_optim\.pt", "refuses to load it, unless with --no-load-optim"),
        ),
    ),
    SaveWriter(
        title="Lightning",
        source="lightning 2.6.6, pytorch/trainer/connectors/checkpoint_connector.py: it resumed from a save without each key",
        signs=r"pytorch-lightning_version",
        parts=(
            ResumePart(r"state_dict", "refuses to resume from it"),
            ResumePart(r"optimizer_states", "refuses to resume from it"),
            ResumePart(r"lr_schedulers", "refuses to resume from it"),
            ResumePart(r"callbacks", "resumes with callbacks at their beginning", "warning"),
            ResumePart(r"loops", "resumes with its loops at their beginning", "warning"),
        ),
    ),
    SaveWriter(
        title="torch.distributed.checkpoint",
        source="torch 2.13, distributed/checkpoint/filesystem.py: read_metadata",
        signs=r"__\d+_\d+\.distcp",
        parts=(ResumePart(r"\.metadata", "refuses to load it", name=".metadata", beside=r"__\d+_\d+\.distcp"),),
    ),
)  # fmt: skip


@cache
def list_save_writers() -> tuple[SaveWriter, ...]:
    """Return all writers, the frameworks first: they save with the libraries."""
    frameworks = (load_framework_file(name, "saves").WRITER for name in list_frameworks_with("saves"))
    return (*frameworks, *LIBRARIES)


@lru_cache(maxsize=1 << 18)
def match_from_folder(pattern: str, path: str) -> str | None:
    r"""Return the folder, with its slash, from which the rest of a path matches a pattern; None where it does not.

    >>> match_from_folder(r"optim\.pt", "actor/optim.pt"), match_from_folder(r"optim\.pt", "actor/old_optim.pt")
    ('actor/', None)
    """
    match = re.fullmatch(rf"(?P<folder>(?:[^/]+/)*?)(?:{pattern})", path)
    return match["folder"] if match is not None else None
