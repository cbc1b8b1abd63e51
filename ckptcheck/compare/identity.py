"""One name for a set of weights, the same for every layout in which they are stored.

Each tensor has a digest that shards add up to (`ckptcheck_worker.shard_digest`), under the plain name that Hugging Face gives it:
fused projections are split, Megatron's names are mapped. The identity is the root of a Merkle tree of SHA-256 over name, dtype,
shape and digest, sorted by name. So a Megatron run on any grid, its export and a copy in other shards have one identity.

A manifest reads every stored tensor as a stream of bytes: `plan_stream_identity` maps these to their plain tensors, so that the
identity comes from blocks that are read anyway.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.compare.bridge.families import find_family_table
from ckptcheck.compare.bridge.family_table import find_original, split_tensor
from ckptcheck.compare.bridge.hf_names import normalize_hf_name
from ckptcheck.compare.bridge.tensor_layout import LayoutError, TensorLayout
from ckptcheck.compare.layout_sums import Sums, find_unlike_copies, iterate_sums
from ckptcheck.compare.matching.side import ComparisonSide, build_checkpoint_side
from ckptcheck.compare.matching.tensor_files import UnreadableFile
from ckptcheck.errors import EvidenceError
from ckptcheck.text.formatting import join_truncated, natural_sort_key
from ckptcheck.values.tensor_part import TensorPart

if TYPE_CHECKING:
    from ckptcheck.checkpoint.megatron.megatron import Megatron
    from ckptcheck.compare.bridge.family_table import FamilyTable, TableEntry

SCHEMA = "ckptcheck-identity/1"
LAYER = re.compile(r"^(.*?\blayers\.)([0-9]{1,6})\.(.+)")


class UnfitReference(EvidenceError):
    """The checkpoint that should give a set its names is of another model, or gives none."""


class TensorIdentity(msgspec.Struct, frozen=True):
    """One tensor of a set of weights."""

    dtype: str
    shape: tuple[int, ...]
    # 32 hexadecimal digits.
    digest: str


class Identity(msgspec.Struct, frozen=True):
    """The name of a set of weights, and what it was computed from."""

    target: str
    tensors: Mapping[str, TensorIdentity]
    """Plain name → tensor, sorted by name."""
    left_out: Mapping[str, str] = {}
    """Name → why the tensor is no part of the identity: a tied head, a buffer, the state of the optimizer."""
    names: str = "Hugging Face"
    """Whose names the tensors have. Identities can only be equal under the same names."""

    @property
    def identity(self) -> str:
        """The root of the Merkle tree: 64 hexadecimal digits."""
        return compute_root(self.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        from ckptcheck.values.dtypes import FORMATS

        return sum(
            prod(each.shape) * (FORMATS[each.dtype].bits if each.dtype in FORMATS else 64) // 8
            for each in self.tensors.values()
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "schema": SCHEMA,
            "target": self.target,
            "identity": self.identity,
            "names": self.names,
            "tensors": {name: msgspec.to_builtins(each) for name, each in self.tensors.items()},
            "left_out": dict(self.left_out),
        }


def compute_root(tensors: Mapping[str, TensorIdentity]) -> str:
    """Return the root of the Merkle tree over tensors, in hexadecimal digits.

    The first byte distinguishes leaves from nodes, and a node without a partner moves up, as in RFC 6962.
    """
    level = [
        hashlib.sha256(b"\0" + msgspec.json.encode([name, each.dtype, each.shape, each.digest])).digest()
        for name, each in sorted(tensors.items())
    ]
    if not level:
        return hashlib.sha256(b"").hexdigest()
    while len(level) > 1:
        pairs = [hashlib.sha256(b"\1" + level[at] + level[at + 1]).digest() for at in range(0, len(level) - 1, 2)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0].hex()


class SetDifference(msgspec.Struct, frozen=True):
    """Plain names of the weights in which two sets differ, each list in natural order."""

    changed: list[str]
    # Those with another dtype or shape.
    reformed: list[str]
    missing: list[str]
    new: list[str]

    @property
    def found(self) -> bool:
        """Whether there are any."""
        return bool(self.changed or self.reformed or self.missing or self.new)


def compare_sets(old: Mapping[str, TensorIdentity], new: Mapping[str, TensorIdentity]) -> SetDifference:
    """Compare two sets of weights tensor by tensor."""
    differ = sorted((name for name in old.keys() & new.keys() if old[name] != new[name]), key=natural_sort_key)
    alike = {name for name in differ if (old[name].dtype, old[name].shape) == (new[name].dtype, new[name].shape)}
    return SetDifference(
        changed=[name for name in differ if name in alike],
        reformed=[name for name in differ if name not in alike],
        missing=sorted(old.keys() - new.keys(), key=natural_sort_key),
        new=sorted(new.keys() - old.keys(), key=natural_sort_key),
    )


def describe_absent(ckpt: Checkpoint | Megatron) -> str | None:
    """Describe what a checkpoint lacks, as half a checkpoint has no identity; None if nothing is known to be missing."""
    if not isinstance(ckpt, Checkpoint):
        ranks = {rank.folder for rank in ckpt.ranks}
        absent = [*(folder for folder in ckpt.rank_folders if folder not in ranks), *ckpt.unread]
        uneven = [key for key, cover in ckpt.tiling_gaps.items() if cover.missing or cover.doubled or cover.beyond]
        if not absent and uneven:
            return f"chunks of {join_truncated(uneven)} are missing, overlap or lie beyond its shape"
    else:
        absent = ckpt.list_broken()
    if absent:
        return f"{join_truncated(absent)} cannot be read"
    return None if ckpt.tensors else "it holds no tensor"


def identify_checkpoint(
    ckpt: Checkpoint | Megatron,
    reference: Checkpoint | Megatron | None = None,
    *,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Identity:
    """Return the identity of a checkpoint.

    reference: a Hugging Face checkpoint of the same model; its config determines the Hugging Face names of a Megatron
    run's tensors. Raises EvidenceError, also if the reference has no config of a family whose names are known.
    """
    if absent := describe_absent(ckpt):
        raise EvidenceError(
            f"{ckpt.target} has no identity: {absent}", hint=f"ckptcheck scan {ckpt.target} lists what is wrong"
        )
    if isinstance(ckpt, Checkpoint):
        side = build_checkpoint_side(ckpt)
    else:
        from ckptcheck.compare.matching.megatron_side import build_megatron_side

        side = build_megatron_side(ckpt)
    return compute_identity(plan_identity(side, reference), jobs=jobs or ckpt.jobs, progress=progress)


def compute_identity(plan: IdentityPlan, *, jobs: int, progress: Callable[[int, int], None] | None = None) -> Identity:
    """Read the tensors of a plan, and return the identity of their set. Raises EvidenceError where one cannot be read."""
    try:
        sums, unlike = _sum_tensors(plan, jobs, progress)
    except UnreadableFile as error:
        raise EvidenceError(
            f"{plan.side.target} has no identity: {error.file} cannot be read: {error.reason}"
        ) from error
    for (file, owner), names in unlike.items():
        raise EvidenceError(
            f"{plan.side.target} has no identity: {file} and {owner} hold different copies of {join_truncated(names)}",
            hint="the ranks of a mesh that replicates have to hold the same; ckptcheck series lists all that differ",
        )
    return plan.name_set(sums)


def _sum_tensors(
    plan: IdentityPlan, jobs: int, progress: Callable[[int, int], None] | None
) -> tuple[dict[str, Sums], dict[tuple[str, str], list[str]]]:
    """Return plain name → the two sums of its digest, and the files that hold unlike copies. Raises UnreadableFile."""
    from ckptcheck.values.shard_digest import add_sums

    layouts = {("", name): layout for name, layout in plan.layouts.items()}
    for number, copy in enumerate(plan.copies):
        layouts |= {(str(number), name): layout for name, layout in copy.items()}
    total, done = sum(layout.nbytes_in_files for layout in layouts.values()), 0
    sums: dict[str, Sums] = dict.fromkeys(plan.layouts, (0, 0))
    by_file: dict[str, dict[tuple[str, str], Sums]] = {}
    for key, slab in iterate_sums(plan.side.source, layouts, jobs=jobs):
        if not key[0]:
            sums[key[1]] = add_sums(sums[key[1]], slab.sums)
        if plan.copies:
            held = by_file.setdefault(slab.file, {})
            held[key] = add_sums(held.get(key, (0, 0)), slab.sums)
        done += slab.nbytes
        if progress is not None:
            progress(done, total)
    unlike: dict[tuple[str, str], list[str]] = {}
    for number, copy in enumerate(plan.copies):
        unlike |= find_unlike_copies(plan.layouts, copy, by_file, ("", str(number)))
    return sums, unlike


class IdentityPlan(msgspec.Struct, frozen=True):
    """The tensors of a set under their plain names, and where their elements lie. Planning reads no element."""

    side: ComparisonSide
    table: FamilyTable | None
    layouts: Mapping[str, TensorLayout]
    """Plain name → location of the tensor."""
    copies: tuple[Mapping[str, TensorLayout], ...] = ()
    """The same for the parts that further ranks hold as copies; a copy has to be equal."""

    @property
    def names(self) -> str:
        """Whose names the tensors have."""
        return "Megatron" if self.side.is_megatron and self.table is None else "Hugging Face"

    def name_set(self, sums: Mapping[str, Sums]) -> Identity:
        """Return the identity, for the two sums of the shard digest of every tensor."""
        from ckptcheck.values.shard_digest import format_sums

        tensors = {
            name: TensorIdentity(layout.dtype, layout.shape, format_sums(sums.get(name, (0, 0)), layout.nbytes))
            for name, layout in self.layouts.items()
        }
        side = self.side
        left_out = {
            **side.left_out,
            **leave_out_copies(tensors, self.table, side.head if side.tied else "", side.embedding),
        }
        return Identity(side.target, dict(sorted(tensors.items())), left_out, self.names)


def leave_out_copies(
    tensors: dict[str, TensorIdentity], table: FamilyTable | None, tied: str, embedding: str
) -> dict[str, str]:
    """Remove the tensors of a set that store another tensor again, and return them with the reason.

    tied: the name of a head that is the embedding, "" for none.
    """
    left_out = {}
    for name in list(tensors):
        original = find_original(table.copies, name) if table is not None else None
        if name == tied:
            original = embedding
        if original in tensors and tensors[original] == tensors[name]:
            left_out[name] = f"it is {original}, stored a second time"
            del tensors[name]
    return left_out


def plan_identity(side: ComparisonSide, reference: Checkpoint | Megatron | None = None) -> IdentityPlan:
    """Find the tensors of a set under their plain names.

    reference: see `identify_checkpoint`. Raises EvidenceError if a tensor does not fit its layout; UnfitReference if the
    reference has no config of a family whose names are known, or is of another model.
    """
    table, vocabulary = side.table, None
    if reference is not None:
        config = reference.config if isinstance(reference, Checkpoint) else None
        table = find_family_table(config)
        if config is None or table is None:
            raise UnfitReference(
                f"{reference.target} does not say what Megatron's tensors are called in Hugging Face's form",
                hint="name a Hugging Face checkpoint of the same model, with its config.json",
            )
        vocabulary = config.integer("vocab_size") if side.is_megatron else None
    if side.malformed:
        raise EvidenceError(f"{side.target} has no identity: {join_truncated(list(side.malformed))} cannot be read")
    plain = _split_tensors(side, table)
    for name in {side.embedding, side.head} & plain.keys():
        if vocabulary is not None and plain[name].shape and plain[name].shape[0] > vocabulary:
            plain[name] = plain[name].cut(0, 0, vocabulary)
    if isinstance(reference, Checkpoint) and reference.tensors:
        other = build_checkpoint_side(reference)
        if not (side.quantized_parts or other.quantized_parts) and (
            found := _find_other_model(plain, _split_tensors(other, table))
        ):
            raise UnfitReference(
                f"{reference.target} is of another model than {side.target}: {found}",
                hint="name a checkpoint of the same model with --like",
            )
    return IdentityPlan(side, table, plain)


def _find_other_model(plain: Mapping[str, TensorLayout], reference: Mapping[str, TensorLayout]) -> str:
    """Say in what the layers of two sets are those of different models; "" if they may be of one.

    The reference may have more layers (of multi-token prediction) and parts than the set. Embedding and head are not compared:
    a vocabulary is padded, cut and extended.
    """
    stacks: dict[str, set[str]] = {}
    having: set[str] = set()
    for name, layout in plain.items():
        layer = LAYER.match(name)
        if layer is None:
            continue
        stacks.setdefault(layer[1], set()).add(layer[2])
        having.add(layer[1] + layer[3])
        if name not in reference:
            return f"it has no {name}"
        if tuple(reference[name].shape) != tuple(layout.shape):
            return f"its {name} is {list(reference[name].shape)}, not {list(layout.shape)}"
    for name in reference:
        layer = LAYER.match(name)
        if layer is not None and layer[2] in stacks.get(layer[1], ()) and layer[1] + layer[3] not in having:
            return f"it has {name}, and no layer of the other has {layer[3]}"
    return ""


def _split_tensors(side: ComparisonSide, table: FamilyTable | None) -> dict[str, TensorLayout]:
    """Return the tensors under their plain names; parts of quantized weights keep their stored names."""
    entries: Mapping[str, TableEntry] = {}
    if table is not None:
        entries = table.megatron if side.is_megatron else table.variants
    plain: dict[str, TensorLayout] = {}
    for name, layout in side.stored.items():
        try:
            parts = None if name in side.quantized_parts else split_tensor(entries, name, layout, side.dimensions)
        except LayoutError as error:
            raise EvidenceError(f"{side.target} has no identity: {name} cannot be split: {error}") from error
        for part, tensor in (parts or {normalize_hf_name(name): layout}).items():
            if part in plain:
                raise EvidenceError(f"{side.target} has no identity: two of its tensors map to {part}")
            plain[part] = tensor
    return plain


# --- in the same pass over the bytes as the digests of a manifest ---


class StreamPlan(msgspec.Struct, frozen=True):
    """The plain tensors of a set, and where their elements lie in the streams of its stored tensors."""

    identity: IdentityPlan
    # Stream → the parts of it that belong to plain tensors. The streams have the names of `values.tensor_stream`.
    parts: Mapping[str, list[TensorPart]]


def plan_stream_identity(ckpt: Checkpoint | Megatron, reference: Checkpoint | Megatron | None = None) -> StreamPlan:
    """Map the bytes of each stream to their plain tensor. Raises EvidenceError as `plan_identity` does."""
    if not isinstance(ckpt, Checkpoint):
        from ckptcheck.compare.run_streams import build_stream_side

        side = build_stream_side(ckpt)
    else:
        side = build_checkpoint_side(ckpt)
        whole = {
            name: TensorLayout.contiguous(each.dtype, each.itemsize, each.shape, name, 0)
            for name, each in side.stored.items()
        }
        side = structs.replace(side, stored=whole)
    plan = plan_identity(side, reference)
    parts: dict[str, list[TensorPart]] = {}
    for name, layout in plan.layouts.items():
        for chunk in layout.chunks:
            parts.setdefault(chunk.file, []).append(
                TensorPart(name, layout.shape, layout.itemsize, chunk.origin, chunk.shape, chunk.offset, chunk.strides)
            )
    return StreamPlan(plan, parts)
