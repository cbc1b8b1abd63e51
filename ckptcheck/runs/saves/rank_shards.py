"""Joins the parts of tensors that the ranks of FSDP write into files of their own, and gives the whole its plain name.

verl writes ``model_world_size_8_rank_3.pt`` and ``optim_world_size_8_rank_3.pt``: dictionaries of DTensors, each of which says
where its part lies in the whole. Joined, a save has the same tensors on any number of ranks, and an identity.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from math import prod
from typing import NamedTuple

from msgspec import structs

from ckptcheck.checkpoint.components import Components
from ckptcheck.checkpoint.config import Config, read_config
from ckptcheck.checkpoint.distributed_tensor import RankShard
from ckptcheck.checkpoint.layout import parse_layout
from ckptcheck.checkpoint.objects.address import is_object_address
from ckptcheck.checkpoint.source import Source
from ckptcheck.checkpoint.tensor import Tensor
from ckptcheck.checkpoint.torch_archive import UnreadableArchive
from ckptcheck.compare.bridge.families import find_family_table
from ckptcheck.compare.bridge.model_dimensions import ModelDimensions
from ckptcheck.compare.bridge.tensor_layout import FileChunk, TensorLayout
from ckptcheck.compare.identity import IdentityPlan, plan_identity
from ckptcheck.compare.matching.side import BUFFER, ComparisonSide
from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.runs.saves.find_saves import open_tree
from ckptcheck.runs.saves.state_files import read_state_file
from ckptcheck.runs.saves.zero_ranges import BrokenRanges, has_zero_ranges, join_zero_ranges
from ckptcheck.text.file_io import expand_home
from ckptcheck.text.formatting import join_truncated

OF_RANKS = re.compile(r"(?P<before>.*)world_size_(?P<ranks>\d{1,6})_rank_(?P<rank>\d{1,6})\.pt")
"""Files that FSDP workers of verl write."""
CONFIG_FOLDER = "huggingface"
"""Where verl puts the config of the model, below the files of the ranks."""


class FoundTensor(NamedTuple):
    """A tensor in a torch.save file."""

    file: str
    path: str
    """Where it stands in the file."""
    layout: TensorLayout
    shard: RankShard | None
    """Which part of a tensor it is; None where it is a whole one, or its file does not say."""

    @property
    def name(self) -> str:
        """What no other tensor is called."""
        return f"{self.file}:{self.path}"


class JoinedTensors(NamedTuple):
    """What became of the tensors of all files."""

    whole: dict[str, TensorLayout]
    """Path → tensor that was joined from the parts of all ranks."""
    apart: dict[str, TensorLayout]
    """Name → tensor of one file."""
    copies: list[dict[str, TensorLayout]]
    """Path → the same tensor of the parts that further ranks have as well, once for each copy of the model."""
    torn: list[str]
    """Paths of tensors which the parts of all ranks do not give once, or not once in each copy of the model."""


def join_ranks(found: Iterable[FoundTensor]) -> JoinedTensors:
    """Join the parts of tensors where all are there. Parts of a tensor that is not whole stay apart."""
    joined = JoinedTensors({}, {}, [], [])
    groups: dict[str, list[FoundTensor]] = {}
    for each in found:
        name = OF_RANKS.fullmatch(each.file)
        # A mesh of fewer ranks than there are files shares a part of the model, such as the experts of some ranks.
        if name and each.shard is not None and each.shard.ranks == int(name["ranks"]):
            groups.setdefault(each.path, []).append(each)
        else:
            joined.apart[each.name] = each.layout
    for path, parts in groups.items():
        whole = _join_parts(parts)
        if whole is None:
            joined.apart.update((part.name, part.layout) for part in parts)
            joined.torn.append(path)
            continue
        joined.whole[path] = whole
        for number, copy in enumerate(_join_copies(parts, whole)):
            if copy.nbytes_in_files < whole.nbytes and path not in joined.torn:
                joined.torn.append(path)
            if number == len(joined.copies):
                joined.copies.append({})
            joined.copies[number][path] = copy
    return joined


def _join_copies(parts: list[FoundTensor], whole: TensorLayout) -> list[TensorLayout]:
    """Return, for each further copy of the model, the rectangles of a tensor that its ranks have."""
    copies: list[list[FileChunk]] = []
    taken = dict.fromkeys((chunk.origin for chunk in whole.chunks), 0)
    for part in parts:
        if part.shard is None or not part.shard.is_copy or part.shard.origin not in taken:
            continue
        if not prod(part.layout.shape):
            continue
        number = taken[part.shard.origin]
        taken[part.shard.origin] += 1
        if number == len(copies):
            copies.append([])
        (chunk,) = part.layout.chunks
        copies[number].append(FileChunk(part.shard.origin, chunk.shape, chunk.file, chunk.offset, chunk.strides))
    return [structs.replace(whole, chunks=tuple(chunks)) for chunks in copies]


def _join_parts(parts: list[FoundTensor]) -> TensorLayout | None:
    """Return a tensor as the rectangles that its ranks have; None where they do not cover it once."""
    first = parts[0]
    if first.shard is None:
        return None
    shape, origins = first.shard.shape, set()
    chunks: list[FileChunk] = []
    for part in parts:
        if part.shard is None or part.shard.shape != shape or part.layout.dtype != first.layout.dtype:
            return None
        if part.shard.is_copy or not prod(part.layout.shape):
            continue
        (chunk,) = part.layout.chunks
        origins.add(part.shard.origin)
        chunks.append(FileChunk(part.shard.origin, chunk.shape, chunk.file, chunk.offset, chunk.strides))
    if len(origins) < len(chunks) or sum(prod(chunk.shape) for chunk in chunks) != prod(shape):
        return None
    return TensorLayout(first.layout.dtype, first.layout.itemsize, shape, tuple(chunks))


def plan_rank_files(address: str, *, follow_links: bool = False) -> IdentityPlan | None:
    """Say where the weights lie that the ranks of FSDP or of DeepSpeed saved in a folder; None where it has no files of theirs.

    Raises EvidenceError where a rank's file is missing or cannot be read, or where the parts are not the whole of each tensor.
    """
    try:
        source = open_tree(address, follow_links=follow_links).open_folders([""])
    except CkptcheckError:
        return None
    failed = f"{address} has no identity:"
    if has_zero_ranges(source.files):
        try:
            held = join_zero_ranges(source)
        except BrokenRanges as error:
            raise EvidenceError(f"{failed} {error}") from error
        if (plan := plan_joined_weights(address, source, held.weights, held.left_out)) is None:
            raise EvidenceError(f"{failed} its tensors do not fit the config.json beside it")
        return plan
    ranks = {
        name: match for name in source.files if (match := OF_RANKS.fullmatch(name)) and match["before"] == "model_"
    }
    if not ranks:
        return None
    if absent := {str(rank) for match in ranks.values() for rank in range(int(match["ranks"]))} - {
        str(int(match["rank"])) for match in ranks.values()
    }:
        raise EvidenceError(f"{failed} the files of ranks {join_truncated(sorted(absent, key=int))} are missing")
    found: list[FoundTensor] = []
    for name in ranks:
        try:
            content = read_state_file(source, name)
        except (UnreadableArchive, OSError) as error:
            raise EvidenceError(f"{failed} {name} cannot be read: {error}") from error
        found += [FoundTensor(name, path, layout, content.shards.get(path)) for path, layout in content.tensors.items()]
    joined = join_ranks(found)
    plan = plan_with_copies(address, source, joined)
    if plan is None:
        apart = sorted({each.path for each in found if each.name in joined.apart})
        raise EvidenceError(
            f"{failed} its files do not say how the ranks share {join_truncated(apart) or 'the weights'}"
        )
    return plan


def plan_with_copies(address: str, source: Source, joined: JoinedTensors) -> IdentityPlan | None:
    """Say which plain tensors the joined weights are, copies included; None where not all are joined, or they do not fit."""
    plan = plan_joined_weights(address, source, joined.whole) if joined.whole and not joined.apart else None
    if plan is None:
        return None
    copies = [plan_joined_weights(address, source, copy) for copy in joined.copies]
    return structs.replace(plan, copies=tuple(copy.layouts for copy in copies if copy is not None))


def plan_joined_weights(
    address: str, source: Source, weights: Mapping[str, TensorLayout], left_out: Mapping[str, str] | None = None
) -> IdentityPlan | None:
    """Say which plain tensors the joined weights of a model are; None where they do not fit their config.

    left_out: name → why a tensor that was saved is none of its own.
    """
    config = _find_config(address, source)
    stored = {name: layout for name, layout in weights.items() if not BUFFER.search(name)}
    tensors = {name: Tensor(layout.dtype, layout.shape, (0, layout.nbytes)) for name, layout in stored.items()}
    components = Components(config, parse_layout(tensors), tensors)
    side = ComparisonSide(
        target=address,
        source=source,
        stored=stored,
        dimensions=ModelDimensions.from_config(config),
        config=config,
        table=find_family_table(config),
        tied=components.is_tied,
        embedding=components.embedding or "model.embed_tokens.weight",
        head=components.lm_head or "lm_head.weight",
        left_out=left_out or {},
    )
    try:
        return plan_identity(side)
    except CkptcheckError:
        return None


def _find_config(address: str, source: Source) -> Config | None:
    try:
        if "config.json" in source.files:
            return read_config(source, "config.json")
        if has_zero_ranges(source.files) and not is_object_address(address):
            # transformers' Trainer has DeepSpeed save into a folder within its own save
            above = open_tree(os.path.dirname(os.path.abspath(expand_home(address)))).open_folders([""])
            return read_config(above, "config.json") if "config.json" in above.files else None
        tree = open_tree(address)
        if CONFIG_FOLDER in tree.list_subfolders("") and tree.has_file(f"{CONFIG_FOLDER}/config.json"):
            return read_config(tree.open_folders([CONFIG_FOLDER]), f"{CONFIG_FOLDER}/config.json")
    except (CkptcheckError, OSError):
        pass
    return None
