"""The evidence of a Megatron checkpoint: a run, one of its iterations, or a plain torch.distributed.checkpoint folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from ckptcheck.checkpoint.document import Defect, parse_object
from ckptcheck.checkpoint.layout import Layout, parse_layout
from ckptcheck.checkpoint.megatron.dcp import Contents, read_contents
from ckptcheck.checkpoint.megatron.files import MegatronFiles
from ckptcheck.checkpoint.megatron.folders import ITERATION, Tree
from ckptcheck.checkpoint.megatron.legacy import FILES, LegacyRank, describe_rank, join_ranks, list_missing_ranks
from ckptcheck.checkpoint.megatron.structure import Structure, structure_of
from ckptcheck.checkpoint.megatron.stubs import plain_arguments
from ckptcheck.checkpoint.megatron.tensor import Chunk, GlobalTensor, Item
from ckptcheck.checkpoint.megatron.tensor_reader import ItemArchives, read_tensor
from ckptcheck.checkpoint.megatron.tiling import EXACT, TilingGap, find_tiling_gap
from ckptcheck.checkpoint.megatron.weights import unstack_weights
from ckptcheck.checkpoint.scan_options import DEFAULT_OPTIONS, ScanOptions
from ckptcheck.checkpoint.torch_archive import Archive
from ckptcheck.checkpoint.unpickle import UnreadablePickle
from ckptcheck.checkpoint.value_reader import UnreadValues, ValueReader
from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.rule import Skip
from ckptcheck.text.formatting import count, format_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.megatron.inspection import ArchiveRecordInfo, Inspection, MegatronWeights, RecordResult


class Megatron(MegatronFiles, EvidenceDefaults):
    """A Megatron checkpoint. Each part is read on first use; nothing of it is executed.

    A missing part is None; a malformed part has defects; an unreadable part is in `unread`.
    """

    kind = "megatron"

    def __init__(
        self,
        tree: Tree,
        *,
        options: ScanOptions = DEFAULT_OPTIONS,
        value_reader: ValueReader | None = None,
        jobs: int | None = None,
    ) -> None:
        """List the files of a checkpoint; nothing is read yet.

        Args:
            tree: the folders of a run, an iteration, or a save of torch.distributed.checkpoint.
            options: the user's options for rules.
            value_reader: reads the values of the weights; None to read none.
            jobs: number of files read at a time; None for the number of cores.

        Raises CkptcheckError if a folder cannot be listed.
        """
        super().__init__(tree, jobs=jobs)
        self.options: Final = options
        self.value_reader: Final[ValueReader] = value_reader or UnreadValues()
        self.archives: Final = ItemArchives(self.source, self.item_folder)
        self._values_view: MegatronWeights | None = None

    @cached_property
    def unreadable_files(self) -> dict[str, Defect]:
        """torch.save files that could not be read, and why."""
        _ = self.common_state, self.ranks
        return self._damaged

    @cached_property
    def contents(self) -> Contents | None:
        """The table of contents, `.metadata`."""
        return self._read(self.file(".metadata"), lambda raw: read_contents(raw))

    @cached_property
    def description(self) -> dict[str, Any] | None:
        """metadata.json: which backend wrote the checkpoint; empty if it is no JSON object."""
        return self._read(self.file("metadata.json"), lambda raw: parse_object(raw)[0] or {}, is_text=True)

    @cached_property
    def common_state(self) -> dict[str, Any] | None:
        """The state that all ranks share: common.pt's top level, with stubs as values. Empty if it is unreadable."""
        content = self._torch_file(self.file("common.pt"))
        return None if content is None else content[0] if isinstance(content[0], dict) else {}

    @cached_property
    def _common_foreign(self) -> tuple[str, ...]:
        content = self._torch_file(self.file("common.pt"))
        return content[1] if content else ()

    @cached_property
    def args(self) -> dict[str, Any]:
        """The arguments of the training script, plain values only; empty if the checkpoint has none."""
        if self.form == "legacy":
            return dict(next((rank.arguments for rank in self.ranks if rank.arguments), {}))
        return plain_arguments((self.common_state or {}).get("args"))

    @property
    def missing_ranks(self) -> tuple[tuple[int, int, int], list[str]]:
        """The grid of a legacy checkpoint by its arguments (tensor, pipeline, expert), and the ranks of it without a folder."""
        sizes, missing = list_missing_ranks(self.ranks, self.args)
        return sizes, [name for name in missing if self.file(name) not in self.rank_folders]

    @cached_property
    def ranks(self) -> list[LegacyRank]:
        """The ranks of a legacy checkpoint with a readable file."""
        ranks = []
        for folder in self.rank_folders:
            name = next((f"{folder}/{file}" for file in FILES if f"{folder}/{file}" in self.files), None)
            if name is not None and (content := self._torch_file(name)) is not None:
                try:
                    ranks.append(describe_rank(folder, name, self.files[name].size, *content))
                except UnreadablePickle as error:
                    self._damaged[name] = Defect("unreadable", f"this is not a readable checkpoint: {error}")
        return ranks

    @cached_property
    def tensors(self) -> dict[str, GlobalTensor]:
        """Every tensor of the whole model and its optimizer, by its stored key, stacked as it is stored."""
        if self.form == "legacy":
            return self._joined[0]
        return self.contents.tensors if self.contents is not None else {}

    @cached_property
    def _joined(self) -> tuple[dict[str, GlobalTensor], dict[str, list[Chunk]]]:
        return join_ranks(self.ranks, self.args)

    @property
    def copies(self) -> dict[str, list[Chunk]]:
        """Weight → each rank's copy of it in a legacy checkpoint, for weights that several ranks hold whole."""
        return self._joined[1] if self.form == "legacy" else {}

    @cached_property
    def keys_of_records(self) -> dict[tuple[str, str], str]:
        """File and record within it → the weight that it holds, in a legacy checkpoint."""
        return {
            (chunk.item.file, chunk.record): key
            for key, tensor in self.tensors.items()
            for chunk in tensor.chunks
            if chunk.record and chunk.item is not None
        }

    @cached_property
    def structure(self) -> Structure:
        """The layers and experts that the weights' names show."""
        return structure_of(self.weights)

    @cached_property
    def tiling_gaps(self) -> dict[str, TilingGap]:
        """Tensor of a torch_dist checkpoint → how its chunks fail to cover it exactly once, if they do."""
        gaps = {}
        if self.form == "torch_dist":
            for key, tensor in self.tensors.items():
                gap = find_tiling_gap(tensor)
                if gap is not EXACT and gap != EXACT:
                    gaps[key] = gap
        return gaps

    @cached_property
    def layout(self) -> Layout:
        """The structure of the weights' names."""
        return parse_layout(self.weights)

    @cached_property
    def weights(self) -> dict[str, GlobalTensor]:
        """The model's weights by layer and expert (``decoder.layers.3.mlp.experts.local_experts.5.linear_fc1.weight``)."""
        return unstack_weights(self.tensors)

    def read(self, tensor: str | GlobalTensor, slices: Sequence[slice] | None = None) -> NDArray[Any]:
        """Read a weight, a stored tensor or a box of one into a numpy array; BF16 and 8-bit floats as unsigned patterns.

        slices: one for each leading axis, of step 1. Memory: the result and a block of 16 MB. Elements that no chunk holds
        are zero (MEG007 reports them). Raises KeyError for an unknown name, EvidenceError if a chunk cannot be read.
        """
        if isinstance(tensor, str):
            tensor = self.weights[tensor] if tensor in self.weights else self.tensors[tensor]
        return read_tensor(self.archives, tensor, slices)

    @property
    def item_folder(self) -> str:
        """The path in front of an item's file; empty for a legacy item, which names its whole path."""
        return "" if self.form == "legacy" else self.iteration

    def path_of(self, item: Item) -> str:
        """Return the path below the target of the file that holds an item."""
        return f"{self.item_folder}/{item.file}" if self.item_folder else item.file

    def is_beyond(self, item: Item) -> bool:
        """Whether an item's file does not exist, or ends before the item does."""
        file = self.files.get(self.path_of(item))
        return file is None or file.outside_link is not None or item.begin + item.length > file.size

    def all_items(self) -> Iterator[tuple[str, Item]]:
        """Yield the key and the place of every chunk and of every serialized object of a torch_dist checkpoint."""
        if self.contents is not None:
            for key, tensor in self.contents.tensors.items():
                for chunk in tensor.chunks:
                    if chunk.item is not None:
                        yield key, chunk.item
            for key, item in self.contents.objects.items():
                if item is not None:
                    yield key, item

    @staticmethod
    def escapes(name: str) -> bool:
        """Whether a file's name leads out of its folder."""
        return name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/") or name[1:2] == ":"

    @property
    def tracker_is_sound(self) -> bool:
        """Whether the tracker holds a value that Megatron accepts: a number, or ``release``."""
        return self.tracker == "release" or (
            bool(ITERATION.fullmatch(self.tracker or "")) and self._tracker_text.isdigit()
        )

    @cached_property
    def inspection(self) -> Inspection:
        """The result of opening every archive. Raises Skip if the values are not read."""
        self.require_value_reader()
        from ckptcheck.checkpoint.megatron.inspection import inspect

        return inspect(self)

    @cached_property
    def record_stats(self) -> list[tuple[ArchiveRecordInfo, RecordResult]]:
        """The result of reading every record once. Raises Skip if the values are not read."""
        from ckptcheck.checkpoint.megatron.inspection import read_record_stats

        return read_record_stats(self, self.inspection.records)

    @property
    def values_view(self) -> MegatronWeights:
        """The weights as the rules about values see them."""
        if self._values_view is None:
            from ckptcheck.checkpoint.megatron.inspection import MegatronWeights

            self._values_view = MegatronWeights(self)
        return self._values_view

    def require_value_reader(self) -> None:
        """Skip a rule that needs values, before it does other work, if they are not read. Raises Skip with the reason."""
        if (reason := self.value_reader.unavailable_reason(self.source)) is not None:
            raise Skip(reason)

    def view_for(self, kind: str) -> Megatron | MegatronWeights | None:
        """Return this checkpoint for its own rules and rules on its table of contents, its weights for rules about values."""
        match kind:
            case "megatron":
                return self
            case "dcp":
                return self if self.form == "torch_dist" and self.contents is not None else None
            case "values":
                return self.values_view if self.weights else None
            case _:
                return None

    def archive(self, item: Item) -> Archive:
        """Open the archive at an item. Raises UnreadableArchive, OSError."""
        return self.archives.open(item)

    @cached_property
    def unexpected_globals(self) -> dict[str, tuple[str, ...]]:
        """File → the globals its pickle names beyond what a checkpoint needs."""
        _ = self.common_state
        names_by_file = {rank.file: rank.foreign for rank in self.ranks if rank.foreign}
        if self.contents is not None and self.contents.foreign:
            names_by_file[self.file(".metadata")] = self.contents.foreign
        if self._common_foreign:
            names_by_file[self.file("common.pt")] = self._common_foreign
        return names_by_file

    @property
    def unread(self) -> Mapping[str, str]:
        """File → why it could not be read. Reads everything first, so that the answer is final."""
        _ = self.contents, self.common_state, self.ranks, self.description
        if self._values_view is not None:
            return self._parts.unread | dict(self._values_view.unread)
        return self._parts.unread

    @cached_property
    def counts(self) -> dict[str, int]:
        """Files that hold tensors, tensors, bytes of tensor data."""
        files = {chunk.item.file for tensor in self.tensors.values() for chunk in tensor.chunks if chunk.item}
        return {
            "files": len(files),
            "tensors": len(self.tensors),
            "bytes": sum(tensor.nbytes for tensor in self.tensors.values()),
        }

    @property
    def subject(self) -> str:
        """One line that describes the checkpoint."""
        what = {
            "torch_dist": "Megatron torch_dist" if self.common_state is not None else "torch.distributed.checkpoint"
        }
        parts = [what.get(self.form, "Megatron legacy" if self.form == "legacy" else "Megatron, no checkpoint in it")]
        if self.iteration:
            parts.append(self.iteration)
        cut = [
            f"{name}{self.args[key]}"
            for name, key in (
                ("TP", "tensor_model_parallel_size"),
                ("PP", "pipeline_model_parallel_size"),
                ("EP", "expert_model_parallel_size"),
            )
            if type(self.args.get(key)) is int
        ]
        parts += [" ".join(cut)] if cut else []
        numbers = self.counts
        parts += [count(numbers["files"], "file"), count(numbers["tensors"], "tensor"), format_bytes(numbers["bytes"])]
        return " · ".join(parts)


class DcpCheckpoint(Megatron):
    """A torch_dist checkpoint with a table of contents (`.metadata`): ``on="dcp"``. A view for rules, as in `checkpoint.views`."""

    if TYPE_CHECKING:
        contents: Contents
