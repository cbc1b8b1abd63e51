"""Reads the deltas that slime, miles and ModelExpress publish as folders; Stitch hands the same folders on.

A folder looks like a Hugging Face checkpoint. Its index has, beside the `weight_map`, a `metadata` of five strings: version,
base_version, delta_encoding (xor or overwrite), compression_format (zstd) and checksum_format (xxh3-128, blake3 or adler32).
Each tensor of its files is one zstd frame, as U8; the `__metadata__` of a file maps each of its tensors to the checksum of its
bytes after the delta. Sources: THUDM/slime slime/backends/megatron_utils/update_weight/update_weight_from_disk_delta.py and
docker/patch/latest/sglang-pull_weights.patch (624b824a); radixark/miles .../update_weight_from_distributed/delta.py (31f1ca96);
ai-dynamo/modelexpress modelexpress_rl/train/methods/canonical_delta.py (008f0da0), whose versions are any strings;
modal-projects/stitch src/stitch/types.py (a250dc3).
"""

from __future__ import annotations

from typing import Any

from ckptcheck.checkpoint.deltas.delta import (
    BITWISE,
    CHECKSUMS,
    MALFORMED,
    UNKNOWN,
    Change,
    Delta,
    Span,
    adopt_defects,
    normalize_version,
)
from ckptcheck.checkpoint.document import Defect, clip
from ckptcheck.checkpoint.file_reader import FileReader
from ckptcheck.checkpoint.header import Shard, read_shard
from ckptcheck.checkpoint.index import MODEL_INDEX, Index, read_index
from ckptcheck.checkpoint.source import Source


def read_disk_delta(source: Source, name: str) -> Delta:
    """Read the index and the headers of a delta. Note what is wrong with them as defects; raise nothing."""
    files = FileReader(source)
    index = files.read(MODEL_INDEX, read_index) or Index(MODEL_INDEX)
    defects = [Defect(MALFORMED, f"{MODEL_INDEX}: {defect.text}", defect.key) for defect in index.defects]
    # a step that changed nothing has an empty weight_map
    defects = [defect for defect in defects if not defect.text.endswith("its weight_map is empty")]
    metadata = index.metadata
    encoding = _read_word(metadata, "delta_encoding", sorted(BITWISE), defects)
    _read_word(metadata, "compression_format", ["zstd"], defects)
    checksum_format = _read_word(metadata, "checksum_format", list(CHECKSUMS), defects)
    versions = {key: normalize_version(metadata.get(key)) for key in ("version", "base_version")}
    defects += [
        Defect(MALFORMED, f"{MODEL_INDEX} names no {key}", f"metadata.{key}")
        for key, value in versions.items()
        if value is None
    ]
    changes: dict[str, tuple[Change, ...]] = {}
    checksums: dict[str, str] = {}
    unfit: set[str] = set()
    for file in sorted(name for name in source.files if name.endswith(".safetensors")):
        if (shard := files.read(file, read_shard)) is not None:
            _collect_changes(shard, index, encoding or "", changes, checksums, unfit, defects)
    for file, reason in files.unread.items():
        defects.append(Defect(MALFORMED, f"{clip(file)} cannot be read: {reason}"))
    for file, listed in source.files.items():
        if listed.outside_link is not None:
            defects.append(Defect(MALFORMED, f"{clip(file)} is a link out of the folder, and was not followed"))
    absent = [name for name in index.weight_map if name not in changes and name not in unfit]
    defects += [
        Defect(MALFORMED, f"{clip(index.weight_map[name])} does not hold it, though the index says so", name)
        for name in absent
    ]
    return Delta(
        name=name,
        source=source,
        writer="slime, miles or ModelExpress",
        version=versions["version"],
        base_version=versions["base_version"],
        checksum_format=checksum_format,
        changes=changes,
        checksums=checksums,
        defects=tuple(defects),
    )


def _read_word(metadata: dict[str, Any], key: str, known: list[str], defects: list[Defect]) -> str | None:
    """Return the index's value of a key if it is a known one; else note the defect."""
    value = metadata.get(key)
    if isinstance(value, str) and value in known:
        return value
    if value is None:
        defects.append(Defect(UNKNOWN, f"{MODEL_INDEX} names no {key}", f"metadata.{key}"))
    else:
        text = f"its {key} is {clip(repr(value))}, not {' or '.join(known)}"
        defects.append(Defect(UNKNOWN, text, f"metadata.{key}"))
    return None


def _collect_changes(
    shard: Shard,
    index: Index,
    encoding: str,
    changes: dict[str, tuple[Change, ...]],
    checksums: dict[str, str],
    unfit: set[str],
    defects: list[Defect],
) -> None:
    defects += adopt_defects(shard)
    unfit |= shard.unfit.keys()  # a defect of the header says so
    for name, tensor in shard.fitting.items():
        if tensor.dtype not in ("U8", "I8"):
            text = f"it is {clip(tensor.dtype)}, and a compressed change is U8"
            defects.append(Defect(MALFORMED, text, name))
            continue
        if index.readable and index.weight_map.get(name) != shard.name:
            place = index.weight_map.get(name)
            text = f"{clip(shard.name)} holds it, and the index " + (
                f"says that {clip(place)} does" if place is not None else "does not list it"
            )
            defects.append(Defect(MALFORMED, text, name))
        change = Change(encoding, Span(shard.name, shard.locate(name), tensor.nbytes))
        if name in changes:
            text = "two files hold it: engines apply both, and a change of xor that is applied twice undoes itself"
            defects.append(Defect(MALFORMED, text, name))
        changes[name] = (*changes.get(name, ()), change)
        if (checksum := (shard.metadata or {}).get(name)) is not None:
            checksums[name] = checksum
