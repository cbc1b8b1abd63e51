"""The cases of rules about deltas: a base, the deltas of some steps, and what is done to their files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors.numpy

from ckptcheck.checkpoint.deltas.open import open_lone_deltas
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter.evidence import Evidence
from ckptcheck.values.value_pass import ValuePass
from tests.factories.case_table import CaseTable, StrictTable
from tests.factories.comparison_cases import write_bytes
from tests.factories.deltas import INDEX, Weights, take_step, write_disk_delta, write_flush

TENSORS = {"a.weight": [64, 32], "b.weight": [128], "c.weight": [32, 16]}
WIDTH = {"BF16": 2, "F32": 4, "U8": 1}


class Places(StrictTable, kw_only=True):
    """A change that is written as it is said here, and not as it should be."""

    positions: list[int] = []
    values: list[int] = []
    count: int | None = None
    """The number of positions that is announced; None: how many there are."""
    plain: list[int] | None = None
    """Bytes that are compressed in place of a change."""
    stored: list[int] | None = None
    """Bytes that are stored without being compressed."""


class LinkCase(StrictTable, kw_only=True):
    """One delta, from a step of training on the weights before it."""

    form: str = "disk"
    """``disk``: slime's; ``flush``: verl's."""
    encoding: str = ""
    """"" for xor, or indices."""
    checksum: str = "xxh3-128"
    share: float = 0.1
    """How many of the elements change."""
    steps: int = 1
    """Steps that the delta spans."""
    names: list[str] | None = None
    """The tensors that change; None: all."""
    metadata: dict[str, Any] = {}
    """Put over the metadata of the index, or over the spec of a flush."""
    places: dict[str, Places] = {}
    """Tensor → its change."""
    without_checksum: list[str] = []
    renamed: dict[str, str] = {}
    """Tensor → the name under which its change is stored."""
    unlisted: list[str] = []
    """Tensors that the index does not list."""
    removed: list[str] = []
    """Files that are not there."""
    cut: dict[str, int] = {}
    """File → how many bytes of its end are gone."""
    copied: dict[str, str] = {}
    """File → its copy."""
    nan: list[str] = []
    """Tensors whose first element becomes NaN."""
    params: list[dict[str, Any]] = []
    """Put over the params of a flush, one after the other."""
    verify: bool = False


class DeltaCase(CaseTable, kw_only=True):
    """A case of a rule on deltas: the chain that it names."""

    tensors: dict[str, list[int]] = {}
    """Tensor → shape, of the base; {}: TENSORS."""
    dtype: str = "BF16"
    base_metadata: dict[str, Any] = {}
    """Of the index of the base; {}: it has none."""
    links: list[LinkCase] = []
    order: list[int] | None = None
    """The numbers of the deltas in the chain, from 1; None: all."""
    from_step: int = 0
    """The step whose weights the base has."""
    alone: bool = False
    """The deltas are named without their base."""


def build_delta_case(table: Mapping[str, Any], folder: Path) -> Evidence:
    """Write the base and the deltas of a case, and open the chain."""
    case = msgspec.convert(table, DeltaCase)
    rng, width = np.random.default_rng(7), WIDTH[case.dtype]
    shapes = {name: tuple(shape) for name, shape in (case.tensors or TENSORS).items()}
    weights: Weights = {
        name: rng.integers(1, 60, width * int(np.prod(shape)), np.uint8) for name, shape in shapes.items()
    }
    series = [weights]
    for link in case.links:
        before = after = series[-1]
        for _ in range(link.steps):
            after = take_step(after, len(series), link.share, width)
        after = {name: after[name] if link.names is None or name in link.names else before[name] for name in after}
        for name in link.nan:
            after[name].view(f"<u{width}")[0] = {2: 0x7FC0, 4: 0x7FC00000}[width]
        series.append(after)
    folder.mkdir(parents=True, exist_ok=True)
    base = folder / "base"
    base.mkdir()
    stored = {name: (case.dtype, data.tobytes()) for name, data in series[case.from_step].items()}
    write_bytes(base / "model.safetensors", stored, shapes)
    if case.base_metadata:
        index = {"metadata": case.base_metadata, "weight_map": dict.fromkeys(shapes, "model.safetensors")}
        (base / INDEX).write_text(json.dumps(index))
    names = []
    for number, link in enumerate(case.links, 1):
        target = folder / "deltas" / f"weight_v{number:06d}"
        if link.form == "flush":
            _write_flush(target / "flush.safetensors", link, series[number - 1], series[number], shapes, case.dtype)
        else:
            _write_disk(target, link, number, series[number - 1], series[number], width)
        names.append(str(target))
    if case.alone:
        deltas = open_lone_deltas(names[0] if len(names) == 1 else str(folder / "deltas"))
        assert deltas is not None
        return deltas
    chosen = [names[number - 1] for number in case.order or range(1, len(names) + 1)]
    return open_checkpoint("+".join([str(base), *chosen]), value_reader=ValuePass())


def _write_disk(folder: Path, link: LinkCase, number: int, before: Weights, after: Weights, width: int) -> None:
    encoding = link.encoding or "xor"
    raw = {name: _encode(places) for name, places in link.places.items() if places.stored is None}
    write_disk_delta(
        folder, before, after, version=f"{number:06d}", base=f"{number - 1:06d}", encoding=encoding, checksum=link.checksum,
        metadata=link.metadata, raw=raw,
    )  # fmt: skip
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        sums = {name: sum for name, sum in header["__metadata__"].items() if name not in link.without_checksum}
        tensors = safetensors.numpy.load(data)
        for name, places in link.places.items():
            if places.stored is not None:
                tensors[name] = np.array(places.stored, np.uint8)
        for name, other in link.renamed.items():
            tensors[other], sums[other] = tensors.pop(name), sums.pop(name)
        path.write_bytes(safetensors.numpy.save(tensors, metadata=sums))
    document = json.loads((folder / INDEX).read_text())
    document["metadata"] = {key: value for key, value in document["metadata"].items() if value != "absent"}
    places = document["weight_map"]
    for name, other in link.renamed.items():
        places[other] = places.pop(name)
    for name in link.unlisted:
        places.pop(name)
    (folder / INDEX).write_text(json.dumps(document))
    _damage(folder, link)


def _encode(places: Places) -> bytes:
    if places.plain is not None:
        return bytes(places.plain)
    count = len(places.positions) if places.count is None else places.count
    return (
        np.uint32(count).tobytes()
        + np.array(places.positions, "<u4").tobytes()
        + np.array(places.values, np.uint8).tobytes()
    )


def _write_flush(
    path: Path, link: LinkCase, before: Weights, after: Weights, shapes: Mapping[str, tuple[int, ...]], dtype: str
) -> None:
    encoding = link.encoding or "indices"
    places = {name: (places.positions, places.values) for name, places in link.places.items()}
    write_flush(
        path, before, after, shapes, dtype=dtype, encoding=encoding, changes=link.metadata, verify=link.verify, places=places,
        params=link.params,
    )  # fmt: skip
    _damage(path.parent, link)


def _damage(folder: Path, link: LinkCase) -> None:
    for name, copy in link.copied.items():
        (folder / copy).write_bytes((folder / name).read_bytes())
    for name, length in link.cut.items():
        (folder / name).write_bytes((folder / name).read_bytes()[:-length])
    for name in link.removed:
        (folder / name).unlink()
