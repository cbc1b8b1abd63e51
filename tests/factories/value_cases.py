"""Scans of values: checkpoints whose values are changed, and what the value rules report about them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Report
from ckptcheck.linter.rule import Finding
from ckptcheck.linter.runner import run_rules
from ckptcheck.values.stats import ValueStats
from ckptcheck.values.value_pass import ValuePass

ALL_RULES = rule_loader.load_rules()
"""All built-in rules."""
EMBEDDING_RULES = [rule for rule in ALL_RULES if rule.code.startswith("EMB")]
VALUE_RULES = [
    rule_loader.load_rule_file(path) for path in sorted((rule_loader.builtin_rule_folder() / "values").glob("*.py"))
]


def run_value_rules(folder: Path) -> list[Finding]:
    """Return the findings of the rules on values; no rule may crash."""
    report = run_rules(open_checkpoint(str(folder), value_reader=ValuePass()), VALUE_RULES)
    assert not report.crashed
    return list(report.findings)


def copy_with_values(
    source: Path, target: Path, values: dict[str, bytes], relabel: tuple[str, str] | None = None
) -> Path:
    """Copy a model and replace the bytes of tensors.

    values: tensor → its new bytes, as many as before.
    relabel: (old, new) dtype label that is replaced in every header; the header keeps its length.
    """
    import damage

    damage.linked_copy(source, target)
    ckpt = open_checkpoint(str(source))
    for name, shard in ckpt.shards.items():
        raw = bytearray((source / name).read_bytes())
        for tensor, entry in shard.tensors.items():
            if tensor in values:
                assert len(values[tensor]) == entry.nbytes
                begin = shard.data_start + entry.data_offsets[0]
                raw[begin : begin + entry.nbytes] = values[tensor]
        if relabel is not None:
            header = bytes(raw[8 : shard.data_start])
            old, new = (f'"dtype":"{label}"'.encode() for label in relabel)
            changed = header.replace(old, new).rstrip(b" ").ljust(len(header))
            assert header != changed
            assert len(header) == len(changed)
            raw[8 : shard.data_start] = changed
        if bytes(raw) != (source / name).read_bytes():
            damage.replace(target / name, bytes(raw))
    return target


def read_raw_values(ckpt: Checkpoint, name: str) -> bytes:
    """Return the bytes of a tensor."""
    shard, entry = ckpt.shards[ckpt.tensor_to_file[name]], ckpt.tensors[name]
    return ckpt.source.read(shard.name, shard.data_start + entry.data_offsets[0], entry.nbytes)


def run_all_rules(folder: Path, **options: Any) -> Report:
    """Scan a folder with all rules. options: those of `ValuePass`."""
    return run_rules(open_checkpoint(str(folder), value_reader=ValuePass(**options)), ALL_RULES)


def read_values(folder: Path, **options: Any) -> ValueStats:
    """Return the statistics of a folder's values. options: those of `ValuePass`."""
    return open_checkpoint(str(folder), value_reader=ValuePass(**options)).values


def start_value_pass(folder: Path) -> tuple[ValuePass, Checkpoint]:
    """Open a folder and start two worker processes on its values. The caller closes the pass."""
    reader = ValuePass(jobs=2)
    ckpt = open_checkpoint(str(folder), value_reader=reader)
    reader.start(ckpt)
    return reader, ckpt


def find_keys(folder: Path) -> list[tuple[str, str | None]]:
    """Return code and key of the findings of the rules on values."""
    return [(finding.code, finding.key) for finding in run_value_rules(folder)]


def find_messages(folder: Path, code: str) -> list[str]:
    return [finding.message for finding in run_value_rules(folder) if finding.code == code]


def write_embedding(folder: Path, weight: NDArray[np.float32]) -> Path:

    save_file({"model.embed_tokens.weight": weight}, folder / "model.safetensors")
    return folder / "model.safetensors"


def copy_with_embedding(folder: Path, source: Path, change: Callable[[NDArray[np.uint16]], None]) -> Path:
    """Copy a checkpoint and let `change` edit its embedding, as BF16 patterns, in place."""
    import damage

    damage.linked_copy(source, folder)
    ckpt = open_checkpoint(str(folder))
    name = ckpt.components.embedding
    assert name is not None
    shard, tensor = ckpt.shards[ckpt.tensor_to_file[name]], ckpt.tensors[name]
    raw = bytearray((folder / shard.name).read_bytes())
    rows = np.frombuffer(raw, "<u2", tensor.nbytes // 2, shard.data_start + tensor.data_offsets[0])
    change(rows.reshape(tensor.shape))
    damage.replace(folder / shard.name, bytes(raw))
    return folder


def find_embedding_codes(folder: Path) -> list[str]:
    report = run_rules(open_checkpoint(str(folder), value_reader=ValuePass()), EMBEDDING_RULES)
    assert not report.crashed
    assert not report.skipped
    return [finding.code for finding in report.findings]
