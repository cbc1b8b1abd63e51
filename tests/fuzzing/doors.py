"""The doors of ckptcheck: whatever it reads that somebody else wrote → what makes up such input from a seed and reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.fuzzing.batches import Check
from tests.fuzzing.deltas import check_deltas
from tests.fuzzing.documents import DOORS as DOCUMENTS
from tests.fuzzing.documents import check_config, check_tokenizer
from tests.fuzzing.headers import check_safetensors, check_weight_map
from tests.fuzzing.kept_files import PREPARATIONS as KEPT
from tests.fuzzing.kept_files import (
    check_kept_saves,
    check_parts,
    check_rank_files,
    check_saves,
    check_signature,
)
from tests.fuzzing.megatron import check_legacy, check_table
from tests.fuzzing.pages import check_page
from tests.fuzzing.pickles import read_everywhere
from tests.fuzzing.places import check_places
from tests.fuzzing.rollout_files import check_batch
from tests.fuzzing.servers import check_engine_server, check_hub
from tests.fuzzing.surroundings import check_folder, check_limits
from tests.fuzzing.tensor_bytes import build_models, check_tensor_bytes
from tests.fuzzing.token_files import check_token_files

DOORS: dict[str, Check] = {
    "safetensors": check_safetensors,
    "tensor-bytes": check_tensor_bytes,
    "index": check_weight_map,
    "config": check_config,
    "tokenizer": check_tokenizer,
    "token-files": check_token_files,
    "pickle": read_everywhere,
    "dcp": check_table,
    "legacy": check_legacy,
    "batch": check_batch,
    "deltas": check_deltas,
    "hub": check_hub,
    "server": check_engine_server,
    "signature": check_signature,
    "parts": check_parts,
    "saves": check_saves,
    "rank-files": check_rank_files,
    "kept-saves": check_kept_saves,
    "page": check_page,
    "places": check_places,
    "limits": check_limits,
    "folder": check_folder,
    **{name: door.check for name, door in DOCUMENTS.items()},
}
PREPARATIONS: dict[str, Callable[[Path], object]] = {**KEPT, "tensor-bytes": build_models}
"""What the inputs of a door are made from, which takes longer than an input: it is done once for all children."""
