"""Reads one save: digests each tensor of model and optimizer once, samples the weights on the way, collects counters."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.stubs import load_persistent
from ckptcheck.checkpoint.megatron.tensor import GlobalTensor, itemsize
from ckptcheck.checkpoint.megatron.tensor_reader import locate_chunk
from ckptcheck.checkpoint.megatron.weights import is_weight
from ckptcheck.checkpoint.open import open_target
from ckptcheck.checkpoint.scan_options import ScanOptions
from ckptcheck.checkpoint.source import Folder, Source, read_document
from ckptcheck.checkpoint.torch_archive import UnreadableArchive
from ckptcheck.checkpoint.torch_file import make_stubs
from ckptcheck.checkpoint.unpickle import UnreadablePickle, WalkBudget
from ckptcheck.compare.bridge.tensor_layout import FileChunk, TensorLayout
from ckptcheck.compare.identity import IdentityPlan, UnfitReference, describe_absent, plan_identity
from ckptcheck.compare.layout_sums import Sums, find_unlike_copies, iterate_sums
from ckptcheck.compare.matching.megatron_side import build_megatron_side
from ckptcheck.compare.matching.side import build_checkpoint_side
from ckptcheck.compare.matching.tensor_files import UnreadableFile
from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.runs.saves.find_saves import ONE_FILE, PICKLES, FoundSave, open_tree
from ckptcheck.runs.saves.rank_shards import OF_RANKS, FoundTensor, join_ranks, plan_joined_weights, plan_with_copies
from ckptcheck.runs.saves.save import NO_WEIGHTS, FileRecord, Save, TensorRecord, UnlikeCopy
from ckptcheck.runs.saves.state_files import (
    JSON_FILES,
    MOST_JSON,
    MOST_SCALARS,
    explain_torn,
    merge_numbers,
    note_number,
    read_json_numbers,
    read_state_file,
    share_name,
    walk,
)
from ckptcheck.runs.saves.update_sizes import Sample
from ckptcheck.runs.saves.zero_ranges import BrokenRanges, has_zero_ranges, join_zero_ranges
from ckptcheck.text.file_io import expand_home
from ckptcheck.text.formatting import count, join_truncated
from ckptcheck.values.tensor_part import packed_strides

if TYPE_CHECKING:
    from numpy.typing import NDArray

FLOATS = frozenset(("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"))
OPTIMIZER = ("optim", "exp_avg", "momentum", "zero_pp_rank", "fp32_param", "opt_")
"""What stands in the path of an optimizer's tensor, or in the name of its file."""
NO_WEIGHT = ("rng", "random", "scheduler", "scaler", "sampler", "training_args", "dataloader")
"""What stands in the path of a tensor that belongs to neither."""
NO_STATE = ("rng", "random_states", "training_args", "scaler")
"""Beginnings of the names of files that hold no counter of the run."""
LEGACY = "model_optim_rng.pt"
"""Megatron's file of a rank, which holds the model and the optimizer."""
STATE_KEY = ("step", "iteration", "sched", "train_state", "param_groups", "progress", "trainer")
"""Words in the keys of serialized objects that may hold a counter."""
MOST_OBJECT = 1 << 20
"""Largest serialized object to search for a counter, in bytes: schedulers and trainer states take a few kilobytes."""
VOLATILE = re.compile(
    r"transformers_version|_.*|use_cache|architectures|auto_map|(torch_)?dtype|(pad|bos|eos|unk|sep)_token_id|.*dropout|"
    r"initializer_range|output_.*|return_dict.*|id2label|label2id|problem_type|.*attn_implementation.*|gradient_checkpointing"
)
"""Settings of config.json that do not change the weights, or that the tensors show by themselves."""
MODEL_ARGUMENTS = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels", "num_experts",
    "moe_router_topk", "rotary_base", "rotary_percent", "normalization", "norm_epsilon", "padded_vocab_size",
    "untie_embeddings_and_output_weights", "swiglu", "position_embedding_type",
)  # fmt: skip
"""Arguments of Megatron that decide what the weights compute."""


@dataclass
class SaveContents:
    """What a save has, before its tensors are read."""

    source: Source
    form: str
    plan: IdentityPlan | None = None
    weights: Mapping[str, TensorLayout] = field(default_factory=dict)
    states: dict[str, TensorLayout] = field(default_factory=dict)
    beside: dict[str, TensorLayout] = field(default_factory=dict)
    """Tensors that are neither: the save only records in which files they lie."""
    weight_copies: Sequence[Mapping[str, TensorLayout]] = ()
    """The weights as further ranks have them, for each copy of the model."""
    state_copies: list[dict[str, TensorLayout]] = field(default_factory=list)


def read_save(
    found: FoundSave,
    reference: Checkpoint | Megatron | None = None,
    *,
    jobs: int | None = None,
    follow_links: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Save:
    """Read a save completely. `Save.defects` lists what is wrong with it.

    reference: a Hugging Face checkpoint that says what Megatron's tensors are called there. progress: called with the bytes
    digested so far and the bytes in all. Raises CkptcheckError where its folder cannot be listed.
    """
    save = Save(address=found.address, name=found.name, strand=found.strand, number=found.number, word=found.word)
    try:
        evidence = open_target(found.address, jobs=jobs, options=ScanOptions(follow_links=follow_links))
    except CkptcheckError as error:
        source = _open_save(found.address, follow_links=follow_links)
        contents = SaveContents(source, "torch.save files")
        if not any(name.endswith((*PICKLES, ONE_FILE)) for name in source.files):
            save.defects.append(error.message.removeprefix(f"{found.address} "))
    else:
        contents = _describe_evidence(evidence, reference, save)
    save.form = contents.form
    _note_files(contents.source, save)
    _read_state_files(contents, save)
    try:
        _digest(contents, save, jobs, progress)
    except UnreadableFile as error:
        save.weights, save.states, save.parts, save.identity = {}, {}, {}, ""
        save.defects.append(f"{error.file} cannot be read: {error.reason}")
    save.defects += _list_missing_ranks(save)
    if not save.weights and not save.defects:
        save.defects.append(NO_WEIGHTS)
    return save


def _open_save(address: str, *, follow_links: bool) -> Source:
    """Return the files of a save: those of its folder, or the one that it is. Raises CkptcheckError."""
    if _is_one_file(address):
        path = Path(expand_home(address))
        return Folder(path.parent, address, frozenset({path.name}), follow_links=follow_links)
    return open_tree(address, follow_links=follow_links).open_folders([""])


def _is_one_file(address: str) -> bool:
    return address.endswith(ONE_FILE) and Path(expand_home(address)).is_file()


def _list_missing_ranks(save: Save) -> list[str]:
    """Return what is missing among files that say how many ranks wrote them."""
    ranks: dict[tuple[str, int], set[int]] = {}
    for name in save.files:
        if match := OF_RANKS.fullmatch(name):
            ranks.setdefault((match["before"], int(match["ranks"])), set()).add(int(match["rank"]))
    return [
        f"{before}world_size_{number} lacks the file of {count(number - len(there), 'rank')}"
        for (before, number), there in ranks.items()
        if len(there) < number
    ]


def list_versions(found: FoundSave) -> dict[str, str]:
    """Return file → what changes when it is replaced, for all files of a save; nothing of them is read. Raises CkptcheckError."""
    from ckptcheck.checkpoint.megatron.folders import list_rank_folders
    from ckptcheck.checkpoint.source import describe_version

    if _is_one_file(found.address):
        source = _open_save(found.address, follow_links=False)
    else:
        tree = open_tree(found.address)
        source = tree.open_folders(["", *list_rank_folders(tree, "")])
    return {name: describe_version(source, name) for name in source.files}


def _describe_evidence(
    evidence: Checkpoint | Megatron, reference: Checkpoint | Megatron | None, save: Save
) -> SaveContents:
    if isinstance(evidence, Megatron):
        contents = SaveContents(evidence.source, "torch_dist" if evidence.form == "torch_dist" else "Megatron legacy")
        save.config = {
            key: json.dumps(evidence.args[key], default=str) for key in MODEL_ARGUMENTS if key in evidence.args
        }
        _read_run_numbers(evidence, save)
    else:
        contents = SaveContents(evidence.source, "PEFT adapter" if evidence.is_adapter else "Hugging Face")
        if evidence.config is not None:
            save.config = {
                key: json.dumps(value, sort_keys=True, default=str)
                for key, value in evidence.config.value.items()
                if not VOLATILE.fullmatch(key)
            }
            if not evidence.config.readable:
                save.defects.append(f"config.json cannot be read: {evidence.config.defects[0].text}")
    if absent := describe_absent(evidence):
        save.defects.append(absent)
        return contents
    if isinstance(evidence, Megatron) and not any(map(is_weight, evidence.tensors)):
        return contents  # an optimizer in a folder of its own, as FSDP's
    try:
        side = build_megatron_side(evidence) if isinstance(evidence, Megatron) else build_checkpoint_side(evidence)
        contents.plan = plan_identity(side, reference if side.is_megatron else None)
        contents.weights = contents.plan.layouts
        save.naming = contents.plan.names
    except UnfitReference:
        raise
    except CkptcheckError as error:
        save.defects.append(error.message.removeprefix(f"{evidence.target} has no identity: "))
        return contents
    if isinstance(evidence, Megatron) and evidence.form == "torch_dist":
        for key, tensor in evidence.tensors.items():
            if not is_weight(key) and tensor.dtype in FLOATS and prod(tensor.shape) > 1:
                try:
                    contents.states[key] = _locate(evidence, tensor)
                except (UnreadableArchive, OSError) as error:
                    save.defects.append(f"{key} cannot be read: {error}")
    return contents


def _locate(run: Megatron, tensor: GlobalTensor) -> TensorLayout:
    """Return where a stored tensor of the optimizer lies. Raises UnreadableArchive, OSError."""
    each, chunks = itemsize(tensor.dtype), []
    for chunk in tensor.chunks:
        archive = run.archive(chunk.item) if chunk.item is not None else None
        place = locate_chunk(run.source, chunk, tensor.dtype, run.item_folder, archive)
        if not place.contiguous and place.shape != chunk.sizes:
            raise UnreadableArchive("it is stored with gaps between its elements")
        strides = packed_strides(chunk.sizes, each) if chunk.sizes else ()
        if not place.contiguous:
            strides = tuple(step * each for step in place.stride)
        chunks.append(FileChunk(chunk.offsets, chunk.sizes, place.name, place.begin, strides))
    return TensorLayout(tensor.dtype, each, tensor.shape, tuple(chunks))


def _read_run_numbers(run: Megatron, save: Save) -> None:
    """Read the counters among the tensors and the serialized objects of a torch.distributed.checkpoint."""
    from ckptcheck.values.dtypes import decode

    counters: dict[str, float] = {}
    rates: dict[str, float] = {}
    for key, item in (run.contents.objects if run.contents is not None else {}).items():
        if (
            item is None
            or item.transformed
            or item.length > MOST_OBJECT
            or not any(word in key.lower() for word in STATE_KEY)
        ):
            continue
        try:
            archive = run.archive(item)
            value, _ = archive.describe(make_stubs(len(archive.pickle)), load_persistent)
            for path, number in walk(value, WalkBudget(len(archive.pickle))):
                note_number(f"{key}.{path}" if path else key, number, counters, rates)
        except (UnreadableArchive, UnreadablePickle, OSError):
            continue  # a scan says it
    steps = [
        tensor for key, tensor in run.tensors.items() if key.rpartition(".")[2] == "step" and prod(tensor.shape) == 1
    ]
    for tensor in steps[:: max(1, len(steps) // MOST_SCALARS)][:MOST_SCALARS]:
        try:
            number = float(decode(tensor.dtype, run.read(tensor).reshape(-1))[0])
        except (EvidenceError, KeyError, ValueError):
            continue
        key = tensor.key if len(steps) == 1 else "optimizer step"
        counters[key] = max(number, counters.get(key, number))
    merge_numbers(".metadata", counters, save.counters)
    merge_numbers(".metadata", rates, save.rates)


def _note_files(source: Source, save: Save) -> None:
    save.files = {name: file.size for name, file in source.files.items() if file.outside_link is None}
    save.defects += [
        f"{name} is a link to {file.outside_link}, and was not followed"
        for name, file in source.files.items()
        if file.outside_link is not None and (name == "config.json" or _holds_state(name.rpartition("/")[2]))
    ]


def _read_state_files(contents: SaveContents, save: Save) -> None:
    """Read the counters in all files beside the weights, and find the tensors of torch.save files."""
    source = contents.source
    takes_weights = contents.form == "torch.save files"
    weights: list[FoundTensor] = []
    states: dict[str, list[FoundTensor]] = {}
    for name in list(save.files):
        base = name.rpartition("/")[2]
        if not _holds_state(base):
            if base.startswith(NO_STATE) and (reason := explain_torn(source, name)):
                save.defects.append(f"{name} cannot be read: {reason}")
            continue
        if base in JSON_FILES and save.files[name] > MOST_JSON:
            save.defects.append(f"{name} cannot be read: it has more than {MOST_JSON:,} bytes")
            continue
        if base in JSON_FILES:
            try:
                counters, rates, logged = read_json_numbers(read_document(source, name, MOST_JSON))
            except (OSError, EvidenceError) as error:
                save.defects.append(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}")
                continue
            merge_numbers(name, counters, save.counters)
            merge_numbers(name, rates, save.rates)
            save.logged_rates |= logged
        if not base.endswith((*PICKLES, ONE_FILE)):
            continue
        try:
            content = read_state_file(source, name)
        except (UnreadableArchive, OSError) as error:
            save.defects.append(f"{name} cannot be read: {error}")
            continue
        merge_numbers(name, content.counters, save.counters)
        merge_numbers(name, content.rates, save.rates)
        if base.endswith(ONE_FILE):  # what other trainers keep in files, Lightning keeps under keys
            save.files |= dict.fromkeys(content.keys, 0)
        for path, layout in content.tensors.items():
            called = (path if base == LEGACY else f"{base}:{path}").lower()
            if layout.dtype not in FLOATS or any(word in called for word in NO_WEIGHT):
                continue
            tensor = FoundTensor(name, path, layout, content.shards.get(path))
            if any(word in called for word in OPTIMIZER):
                states.setdefault(share_name(name), []).append(tensor)
            elif takes_weights:
                weights.append(tensor)
    for found in states.values():
        joined = join_ranks(found)
        kind = OF_RANKS.fullmatch(found[0].file)
        before = kind["before"] if kind else ""
        contents.states |= joined.apart | {f"{before}{path}": whole for path, whole in joined.whole.items()}
        for number, copy in enumerate(joined.copies):
            if number == len(contents.state_copies):
                contents.state_copies.append({})
            contents.state_copies[number] |= {f"{before}{path}": layout for path, layout in copy.items()}
    if takes_weights:
        _take_weights(weights, contents, save)
    if save.is_one_file:  # the file's name has the step
        contents.weights = {key.rpartition(f"{ONE_FILE}:")[2]: layout for key, layout in contents.weights.items()}
        contents.states = {key.rpartition(f"{ONE_FILE}:")[2]: layout for key, layout in contents.states.items()}


def _holds_state(base: str) -> bool:
    """Whether counters or tensors are looked for in a file of this name."""
    return base in JSON_FILES or (base.endswith((*PICKLES, ONE_FILE)) and not base.startswith(NO_STATE))


def _take_weights(found: list[FoundTensor], contents: SaveContents, save: Save) -> None:
    """Take the weights of torch.save files, under plain names where the ranks' parts can be joined to all of them."""
    if has_zero_ranges(contents.source.files) and _take_zero_ranges(found, contents, save):
        return
    joined = join_ranks(found)
    if joined.torn and not _list_missing_ranks(save):
        save.defects.append(f"the parts in the files of all ranks do not make up a whole {join_truncated(joined.torn)}")
    contents.weights, save.naming = {**joined.whole, **joined.apart}, "the files'"
    contents.weight_copies = joined.copies
    contents.plan = plan_with_copies(save.address, contents.source, joined)
    if contents.plan is not None:
        contents.weights, save.naming = contents.plan.layouts, contents.plan.names
        contents.weight_copies = contents.plan.copies


def _take_zero_ranges(found: list[FoundTensor], contents: SaveContents, save: Save) -> bool:
    """Join the flat ranges of fp32 weights that DeepSpeed's ranks have; return whether they make the whole model."""
    try:
        held = join_zero_ranges(contents.source)
    except BrokenRanges as error:
        save.defects.append(str(error))
        return False
    contents.plan = plan_joined_weights(save.address, contents.source, held.weights, held.left_out)
    if contents.plan is None:
        return False
    contents.weights, save.naming = contents.plan.layouts, contents.plan.names
    # the model's file has the same weights in 16 bits
    contents.beside |= {each.name: each.layout for each in found}
    return True


def _digest(contents: SaveContents, save: Save, jobs: int | None, progress: Callable[[int, int], None] | None) -> None:
    """Read every tensor once. Raises UnreadableFile."""
    import os

    from ckptcheck.values.shard_digest import add_sums, format_sums

    layouts = {("", name): layout for name, layout in contents.weights.items()}
    layouts |= {("s", name): layout for name, layout in contents.states.items()}
    layouts |= {("beside", name): layout for name, layout in contents.beside.items()}
    copies = {f"{number}": copy for number, copy in enumerate(contents.weight_copies)}
    copies |= {f"s{number}": copy for number, copy in enumerate(contents.state_copies)}
    layouts |= {(kind, name): layout for kind, copy in copies.items() for name, layout in copy.items()}
    sums: dict[tuple[str, str], Sums] = dict.fromkeys(layouts, (0, 0))
    by_file: dict[str, dict[tuple[str, str], Sums]] = {}
    samples = {key: Sample(layout) for key, layout in layouts.items() if not key[0] and layout.dtype in FLOATS}
    total, done = sum(layout.nbytes_in_files for layout in layouts.values()), 0

    def take_sample(key: tuple[str, str], values: NDArray[Any], origin: tuple[int, ...]) -> None:
        if key in samples:
            samples[key].take(values, origin)

    for key, slab in iterate_sums(contents.source, layouts, jobs=jobs or os.cpu_count() or 1, look_at=take_sample):
        sums[key] = add_sums(sums[key], slab.sums)
        held = by_file.setdefault(slab.file, {})
        held[key] = add_sums(held.get(key, (0, 0)), slab.sums)
        done += slab.nbytes
        if progress is not None:
            progress(done, total)
    records: dict[str, dict[str, TensorRecord]] = {"": {}, "s": {}}
    for (kind, name), layout in layouts.items():
        if kind not in records:  # it is looked at as a part of its file
            continue
        records[kind][name] = TensorRecord(
            layout.dtype,
            layout.shape,
            format_sums(sums[kind, name], layout.nbytes),
            layout.chunks[0].file if layout.chunks else "",
            samples[kind, name].encode() if (kind, name) in samples else b"",
            sums[kind, name] == (0, 0),
        )
    save.weights, save.states, save.nbytes = records[""], records["s"], total
    save.parts = {file: _digest_parts(held) for file, held in by_file.items()}
    for kind, copy in copies.items():
        whole, of = (contents.states, "s") if kind.startswith("s") else (contents.weights, "")
        for (file, owner), names in find_unlike_copies(whole, copy, by_file, (of, kind)).items():
            save.unlike_copies.append(UnlikeCopy(file, owner, tuple(names)))
    if contents.plan is not None:
        save.identity = contents.plan.name_set({name: part for (kind, name), part in sums.items() if not kind}).identity


def _digest_parts(held: Mapping[tuple[str, str], Sums]) -> FileRecord:
    """Return the digest of what one file holds of all tensors."""
    state = hashlib.blake2b(digest_size=16)
    for (kind, name), part in sorted(held.items()):
        state.update(json.dumps([kind.rstrip("0123456789"), name, *part]).encode())
    return FileRecord(state.hexdigest(), len(held))
