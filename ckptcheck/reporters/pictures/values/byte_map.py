"""Draws each file as a strip of bytes: header, tensors, zeroed runs, holes, and what was not read."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.linter.pictures import ByteMap, Segment, State
from ckptcheck.text.formatting import count

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.header import Shard

STATES = (
    State("tensor", "good"),
    State("header", "quiet"),
    State("zeroed run", "notice", "1,024 zero bytes or more"),
    State("hole", "warn", "bytes that belong to no tensor"),
    State("not read", "gone", "its values could not be read"),
    State("beyond the end", "bad", "the header promises more bytes than the file has"),
)
MOST_TENSORS = 5000
"""From more tensors on, neighbouring experts of a layer are one segment."""
MOST_FILES, MOST_RUNS = 300, 2000
"""Strips and zeroed runs that are drawn: the first files, and the longest runs."""


def draw_byte_map(ckpt: Checkpoint, title: str) -> ByteMap | None:
    """Return the map of all safetensors files; None where there are none."""
    shards = dict(list(ckpt.shards.items())[:MOST_FILES])
    if not shards:
        return None
    is_read = "values" in vars(ckpt)
    values = ckpt.values if is_read else None
    joins = sum(len(shard.tensors) for shard in shards.values()) > MOST_TENSORS
    runs = values.zero_runs if values is not None else {}
    longest = sorted((end - begin for pieces in runs.values() for begin, end in pieces), reverse=True)
    least = longest[MOST_RUNS] if len(longest) > MOST_RUNS else 0
    files = {}
    for name, shard in shards.items():
        is_unread = values is not None and name not in values.complete_shards
        segments = _list_segments(shard, "not read" if is_unread else "tensor", joins)
        segments += [
            Segment(shard.data_start + begin, shard.data_start + end, "zeroed run")
            for begin, end in runs.get(name, [])
            if end - begin > least
        ]
        files[name] = (shard.size, tuple(segments))
    caption = "Each strip is a file, from its first byte to its last. A bold line below marks a tensor with findings."
    if not is_read:
        caption += " Values were not read, so zeroed runs are not known."
    if len(ckpt.shards) > MOST_FILES:
        caption += f" {count(len(ckpt.shards) - MOST_FILES, 'further file')} are not drawn."
    return ByteMap(title, caption, files, STATES)


def _list_segments(shard: Shard, state: str, joins: bool) -> list[Segment]:
    """Return header, tensors and holes of one file. joins: make one segment of neighbouring experts."""
    segments = [Segment(0, min(shard.data_start, shard.size), "header")] if shard.data_start else []
    if not shard.tensors:
        return segments or [Segment(0, shard.size, "not read")]
    position = shard.data_start
    tensors = sorted(shard.tensors.items(), key=lambda item: item[1].data_offsets)
    for key, group in groupby(tensors, key=lambda item: _name_group(item[0]) if joins else item[0]):
        entries = list(group)
        begin = shard.data_start + entries[0][1].data_offsets[0]
        end = shard.data_start + max(tensor.data_offsets[1] for _, tensor in entries)
        if begin > position:
            segments.append(Segment(position, min(begin, shard.size), "hole"))
        if begin < shard.size:
            note = f"{key}: {count(len(entries), 'tensor')}" if len(entries) > 1 else ""
            segments.append(
                Segment(begin, min(end, shard.size), state, entries[0][0] if len(entries) == 1 else "", note)
            )
        if end > shard.size:
            cut = f"{end - shard.size:,} bytes are missing"
            segments.append(Segment(max(shard.size - 1, 0), shard.size, "beyond the end", entries[-1][0], cut))
        position = max(position, end)
    if position < shard.size:
        segments.append(Segment(position, shard.size, "hole", note="bytes behind the last tensor"))
    return segments


def _name_group(name: str) -> str:
    """Return what neighbouring experts have in common: the name up to the number of the expert; else the whole name."""
    parts = INDEX.split(name, 2)
    return "".join(parts[:3]) + "*" if len(parts) == 5 else name
