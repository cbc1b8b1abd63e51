"""The evidence of a scan: a Hugging Face checkpoint."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from ckptcheck.checkpoint.components import Components
from ckptcheck.checkpoint.config import Config, read_config
from ckptcheck.checkpoint.defects import is_watched, iter_problems
from ckptcheck.checkpoint.document import Defect, detect_foreign_format
from ckptcheck.checkpoint.file_reader import FileReader
from ckptcheck.checkpoint.files_of_tensors import FilesOfTensors
from ckptcheck.checkpoint.header import FIRST_READ, Shard, UnfitTensor, expect_headers, read_shard
from ckptcheck.checkpoint.index import Index, find_index_file, read_index
from ckptcheck.checkpoint.layout import Layout, parse_layout
from ckptcheck.checkpoint.quantization.declarations import SIDE_FILES
from ckptcheck.checkpoint.scan_options import DEFAULT_OPTIONS, ScanOptions
from ckptcheck.checkpoint.shard_set import ShardSet, find_shard_sets, select_files_without_index, select_globbed_files
from ckptcheck.checkpoint.source import File, Source
from ckptcheck.checkpoint.tensor import Tensor
from ckptcheck.checkpoint.value_reader import UnreadValues, ValueReader
from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.rule import Problem, Skip, SkipForDamage
from ckptcheck.text.formatting import count, format_bytes, join_truncated

if TYPE_CHECKING:
    from ckptcheck.checkpoint.deltas.chain import DeltaChain
    from ckptcheck.checkpoint.deltas.patched_source import PatchedSource
    from ckptcheck.checkpoint.quantization.quantization import Quantization
    from ckptcheck.checkpoint.tokenizer import Tokenizer
    from ckptcheck.checkpoint.torch_bin import TorchBin
    from ckptcheck.linter.report import Section
    from ckptcheck.values.stats import ValueStats


FORM = attrgetter("dtype", "shape")
PARTS = ("index", "config", "tokenizer", "quantization")
"""Parts that a checkpoint may lack, by the kinds of rules that look at them."""


class Checkpoint(EvidenceDefaults):
    """A Hugging Face checkpoint (or a single shard, or an adapter). Each part is read on first use.

    A missing part is None; a malformed part has defects; a part that exists but cannot be read is in `unread`, and then
    no rule passes.
    """

    kind = "checkpoint"
    tensor_suffixes: tuple[str, ...] = (".safetensors",)
    """Suffixes of the files that hold tensors."""

    def __init__(
        self,
        source: Source,
        *,
        options: ScanOptions = DEFAULT_OPTIONS,
        value_reader: ValueReader | None = None,
        index_file: str | None = None,
        single: bool = False,
        jobs: int | None = None,
    ) -> None:
        """Describe a checkpoint; nothing is read yet.

        Args:
            source: the source of its bytes.
            options: the user's options for rules.
            value_reader: reads the values of the tensors; None to read none.
            index_file: the index to use in place of the one that loaders choose.
            single: the target is one shard by itself, so the rules say nothing about the files beside it.
            jobs: number of files read at a time; None for the number of cores.

        """
        self.source: Final = source
        self.options: Final = options
        self.value_reader: Final[ValueReader] = value_reader or UnreadValues()
        self.is_single_shard: Final = single
        self.jobs: Final = jobs or os.cpu_count() or 1
        self.memory: Final[dict[Hashable, Any]] = {}
        """Answers that several rules need, see `linter.evidence.remembered`."""
        self._index_file = index_file
        self._parts = FileReader(source)
        self._shards: dict[str, Shard] | None = None
        self._values: ValueStats | None = None

    @classmethod
    def patched(cls, base: Checkpoint, source: PatchedSource, value_reader: ValueReader | None = None) -> Checkpoint:
        """Describe the result of a chain of deltas on a base: other values under the same headers, which are not read again."""
        ckpt = cls(
            source,
            options=base.options,
            value_reader=value_reader,
            index_file=base._index_file,
            single=base.is_single_shard,
            jobs=base.jobs,
        )
        ckpt._shards = base.shards
        ckpt._parts.unread |= base._parts.unread
        return ckpt

    @property
    def deltas(self) -> tuple[DeltaChain, ...]:
        """The chain of deltas that leads to this checkpoint; () for files without deltas."""
        chain = getattr(self.source, "chain", None)
        return () if chain is None else (chain,)

    @property
    def sections(self) -> tuple[Section, ...]:
        """What each delta changed, if this is the result of a chain and its values are read."""
        if not self.deltas or self.value_reader.unavailable_reason(self.source) is not None:
            return ()
        from ckptcheck.checkpoint.deltas.chain import tabulate_chain

        return tuple(tabulate_chain(chain) for chain in self.deltas)

    @property
    def padding(self) -> int:
        """Rows at the end of the vocabulary that the format itself pads: none here."""
        return 0

    @property
    def target(self) -> str:
        """What the user named."""
        return self.source.target

    @cached_property
    def can_sample(self) -> bool:
        """Whether rules may read pieces of tensors again: on disk, and in an object store if the values are read too."""
        is_read = self.source.local is not None or self.value_reader.unavailable_reason(self.source) is None
        return self.source.allows_sampling and is_read

    @property
    def files(self) -> Mapping[str, File]:
        """The files of the folder, by name."""
        return self.source.files

    @property
    def shards(self) -> dict[str, Shard]:
        """Every safetensors file of the folder with its header; files that cannot be read are in `unread`."""
        if self._shards is None:
            self._shards = self._read_shards()
        return self._shards

    def read_headers(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Read all headers now, not on first use.

        progress: called with the number of files read and the number of all files.
        """
        if self._shards is None:
            self._shards = self._read_shards(progress)

    def _read_shards(self, progress: Callable[[int, int], None] | None = None) -> dict[str, Shard]:
        names = [name for name in self.files if name.endswith(".safetensors")]
        # Over a network each read is a request, so the index, which is read anyway, says how long the headers are.
        index = self.index if self.source.local is None else None
        expected = expect_headers(index.weight_map, self.files) if index is not None else {}
        shards = self._parts.read_all(
            names,
            lambda source, name: read_shard(source, name, expected.get(name, FIRST_READ)),
            jobs=self.jobs,
            progress=progress,
        )
        return {shard.name: shard for shard in shards}

    @cached_property
    def index(self) -> Index | None:
        """The index: the standard one, or the only one there is."""
        file = self._index_file or find_index_file(self.files)
        return self._parts.read(file, read_index) if file is not None and file in self.files else None

    @cached_property
    def config(self) -> Config | None:
        """config.json."""
        return self._parts.read("config.json", read_config) if "config.json" in self.files else None

    @cached_property
    def generation_config(self) -> Config | None:
        """generation_config.json, which a checkpoint may have without a tokenizer."""
        file = "generation_config.json"
        return self._parts.read(file, read_config) if file in self.files else None

    @cached_property
    def processor_configs(self) -> tuple[Config, ...]:
        """preprocessor_config.json and processor_config.json, which describe how images and sounds become inputs, if present."""
        files = [file for file in ("preprocessor_config.json", "processor_config.json") if file in self.files]
        return tuple(config for file in files if (config := self._parts.read(file, read_config)) is not None)

    @cached_property
    def adapter(self) -> Config | None:
        """adapter_config.json of a PEFT adapter."""
        return self._parts.read("adapter_config.json", read_config) if "adapter_config.json" in self.files else None

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer beside the weights; None without tokenizer.json, tokenizer_config.json and token files."""
        from ckptcheck.checkpoint.sentencepiece_file import has_token_file

        if not {"tokenizer.json", "tokenizer_config.json"} & self.files.keys() and not has_token_file(self.files):
            return None
        from ckptcheck.checkpoint.tokenizer import Tokenizer

        return Tokenizer(self.source, self.config, self.generation_config)

    @cached_property
    def torch_bins(self) -> dict[str, TorchBin]:
        """Every file of pickles with what it holds; none on the Hub. Files that cannot be read are in `unread`."""
        if not self.source.allows_sampling:
            return {}
        from ckptcheck.checkpoint.torch_bin import SUFFIXES, read_torch_bin

        bins = {}
        for name in self.files:
            if name.endswith(SUFFIXES) and self.files[name].outside_link is None:
                bins[name] = self._parts.read(name, read_torch_bin)
        return {name: content for name, content in bins.items() if content is not None}

    @cached_property
    def quantization_files(self) -> dict[str, Config]:
        """The configs that the tools of some quantization methods write beside config.json, by name."""
        configs = {name: self._parts.read(name, read_config) for name in SIDE_FILES if name in self.files}
        return {name: config for name, config in configs.items() if config is not None}

    @cached_property
    def quantization(self) -> Quantization | None:
        """How the model is quantized; None if neither a config nor a tensor shows a quantization."""
        from ckptcheck.checkpoint.quantization.quantization import read_quantization
        from ckptcheck.checkpoint.quantization.storage import TensorKind

        names, forms = self.layout.names_by_template, self.forms_by_template
        kinds = {template: TensorKind(names[template], forms[template]) for template in names}
        return read_quantization(self.config, self.quantization_files, self.tensors, kinds)

    @property
    def is_mlx(self) -> bool:
        """Whether the weights are packed or named for MLX: such a checkpoint is sound, and no other loader reads it."""
        if self.quantization is not None and self.quantization.method == "mlx":
            return True
        from_mlx = any((shard.metadata or {}).get("format") == "mlx" for shard in self.shards.values())
        return from_mlx and any(".switch_mlp." in name for name in self.tensors)

    @cached_property
    def is_adapter(self) -> bool:
        """Whether the folder holds an adapter and no whole model."""
        weights = [name for name in self.files if name.endswith((".safetensors", ".bin"))]
        return any(name.startswith("adapter_model.") for name in weights) and all(
            name.startswith(("adapter_", "training_args", "optimizer", "scheduler")) for name in weights
        )

    @cached_property
    def model_files(self) -> tuple[str, ...]:
        """The files that make up the model, as loaders choose them; some may be missing.

        The index decides if it fits the folder at all; else model.safetensors, else the numbered shards, else all files.
        """
        if self.index is not None and self.index_decides:
            return self.index.shards
        return select_files_without_index(self.files, is_adapter=self.is_adapter)

    @cached_property
    def shard_sets(self) -> tuple[ShardSet, ...]:
        """The sets of numbered shards in the folder."""
        return find_shard_sets(self.files)

    @cached_property
    def globbed_files(self) -> tuple[str, ...]:
        """The readable files whose every tensor vLLM and SGLang load."""
        return select_globbed_files(
            self.model_files if self.index_decides else self.shards, self.shards, self.model_files
        )

    @cached_property
    def tensor_to_file(self) -> FilesOfTensors:
        """Tensor → the loaded file that holds it (the last one, if several do), in no particular order."""
        return FilesOfTensors({name: self.shards[name].tensors for name in self.model_files if name in self.shards})

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the readable loaded files, by name."""
        tensors: dict[str, Tensor] = {}
        for name in self.model_files:
            if name in self.shards:
                tensors.update(self.shards[name].tensors)
        return tensors

    @cached_property
    def forms_by_template(self) -> dict[str, set[tuple[str, tuple[int, ...]]]]:
        """Name with {} for each number → the dtypes and shapes of its tensors, nearly always just one."""
        return self.layout.group_by_template(self.tensors.values(), FORM)

    @cached_property
    def layout(self) -> Layout:
        """The structure that the names of the loaded tensors show."""
        _ = self.index_agrees  # frees the names that an index holds, before others are made
        return parse_layout(self.tensors)

    @cached_property
    def components(self) -> Components:
        """The components of the model among the loaded tensors."""
        return Components(self.config, self.layout, self.tensors)

    @cached_property
    def vocabulary_tensors(self) -> dict[str, tuple[str, ...]]:
        """Embedding and separate head → the tensors that hold their rows, in order: here each is one tensor."""
        names = (self.components.embedding, self.components.lm_head)
        return {name: (name,) for name in names if name is not None and self.tensors[name].is_plain}

    @property
    def weight_parts(self) -> Mapping[str, tuple[str, ...]]:
        """Weight → the tensors that hold its parts, for weights in several tensors: none here."""
        return {}

    @property
    def args(self) -> Mapping[str, Any]:
        """The arguments of the training script, which this format does not keep."""
        return {}

    @property
    def values(self) -> ValueStats:
        """The statistics of every tensor's values, read on first use; skips the rule, with the reason, if they are not read."""
        if self._values is None:
            self.require_value_reader()
            self._values = self.value_reader.read(self)
            self._parts.unread |= self._values.unread
        return self._values

    @property
    def values_read(self) -> ValueStats | None:
        """The statistics if a rule has needed them, else None: a description of the scan must not cause a read."""
        return self._values

    def require_value_reader(self) -> None:
        """Skip a rule that needs values, before it does other work, if they are not read. Raises Skip with the reason."""
        if (reason := self.value_reader.unavailable_reason(self.source)) is not None:
            raise Skip(reason)

    def require(self, kind: str) -> None:
        """Raise Skip with the reason for rules about values, if those are not read."""
        if kind == "values":
            self.require_value_reader()

    def view_for(self, kind: str) -> Checkpoint | tuple[DeltaChain, ...] | None:
        """Return this checkpoint for its own rules, for rules about values, and for rules about a part that it has.

        `checkpoint.views` describes the parts: ``index``, ``config``, ``tokenizer``, ``quantization``, ``layers``.
        """
        if kind == "deltas":
            return self.deltas or None
        if kind == "layers":
            return self if self.components.layers else None
        is_there = kind in ("checkpoint", "values") or (kind in PARTS and getattr(self, kind) is not None)
        return self if is_there else None

    @property
    def arguments(self) -> Mapping[str, Any] | None:
        """The trainer's arguments, if the checkpoint is a trainer's; None for a model that is ready to serve."""
        return None

    @property
    def is_partial(self) -> bool:
        """Whether the target is not a whole model by design: one shard, or an adapter."""
        return self.is_single_shard or self.is_adapter

    def file_of(self, prefix: str) -> str | None:
        """Return the file that holds (most of) the tensors below a name."""
        files = Counter(self.tensor_to_file[name] for name in self.tensors if name.startswith(prefix + "."))
        return files.most_common(1)[0][0] if files else None

    @property
    def has_index(self) -> bool:
        """Whether there is an index that can be read."""
        return self.index is not None and self.index.readable

    @cached_property
    def index_agrees(self) -> bool:
        """Whether the index agrees exactly with the shards' headers."""
        if self.index is None or len(self.index.weight_map) != len(self.tensors):
            return False
        places, loaded = self.index.weight_map, [self.shards[name] for name in self.model_files if name in self.shards]
        agrees = len(places) == sum(len(shard.tensors) for shard in loaded) and all(
            list(map(places.get, shard.tensors)) == [shard.name] * len(shard.tensors) for shard in loaded
        )
        if agrees:
            self.index.use_headers(self.tensor_to_file)
        return agrees

    @property
    def index_is_stale(self) -> bool:
        """Whether the index can be read, none of its shards exists, and other shards do."""
        return self.has_index and bool(self.shards) and not any(name in self.files for name in self.index.shards)  # type: ignore[union-attr]

    @property
    def index_decides(self) -> bool:
        """Whether the index chooses the files that make up the model."""
        return self.has_index and not self.index_is_stale

    @cached_property
    def has_shards(self) -> bool:
        """Whether there is any safetensors file."""
        return any(name.endswith(".safetensors") for name in self.files)

    def require_headers(self) -> None:
        """Skip a rule, after it has checked the readable headers, if some are unreadable; other rules report those."""
        absent = [name for name, shard in self.shards.items() if not shard.readable]
        if absent:
            raise SkipForDamage(f"could not look into {join_truncated(absent)}, whose header cannot be read")

    def require_values(self) -> None:
        """Skip a rule, after it has checked the readable values, if some files are unreadable."""
        absent = [name for name in self.model_files if name in self.files and name not in self.values.complete_shards]
        unfit = {name: why for file in absent if file in self.shards for name, why in self.shards[file].unfit.items()}
        if unfit:
            raise UnfitTensor(f"could not look at the values of {join_truncated(unfit)}: {next(iter(unfit.values()))}")
        if absent:
            raise SkipForDamage(f"could not look at the values in {join_truncated(absent)}")

    def list_broken(self, files: Iterable[str] | None = None) -> list[str]:
        """Return the files that are missing, unreadable, or hold a tensor that does not fit its header.

        files: the ones that are asked about; None for `model_files`.
        """
        names = self.model_files if files is None else files
        return [
            name
            for name in names
            if name not in self.shards or not self.shards[name].readable or self.shards[name].unfit
        ]

    def require_whole(self) -> None:
        """Skip a rule on missing tensors if a shard is missing or unreadable; other rules report the shard."""
        absent = [name for name in self.model_files if name not in self.shards or not self.shards[name].readable]
        if not self.has_index and not self.is_single_shard:  # without an index the numbers of the others tell
            absent += [family.name(number) for family in self.shard_sets for number in family.missing]
        if absent:
            raise SkipForDamage(f"needs every tensor, but {join_truncated(absent)} could not be read")

    def defects(self, *kinds: str, files: Container[str] | None = None) -> Iterator[Problem]:
        """Yield one problem for each file (of `files`) with defects of these kinds: the first in full, the others counted."""
        return iter_problems(self._defects, kinds, files)

    @cached_property
    def _defects(self) -> dict[str, tuple[Defect, ...]]:
        """All defects of form, by file."""
        parts = [self.index, self.config, self.adapter, self.generation_config]
        parts += [*self.processor_configs, *self.quantization_files.values()]
        defects = {name: shard.defects for name, shard in self.shards.items()}
        defects |= {part.file: part.defects for part in parts if part is not None}
        for name, file in self.files.items():
            if file.outside_link is not None:
                defects.pop(name, None)  # ST022 reports a link out of the target, which is never read
            elif name not in defects and is_watched(file, remote=self.source.local is None):
                defect = self._parts.read(name, lambda source, name: detect_foreign_format(source.read(name, 0, 64)))
                defects[name] = (defect,) if defect else ()
        return defects

    @property
    def unread(self) -> Mapping[str, str]:
        """File → why it could not be read. Reads everything first, so that the answer is final."""
        _ = self.shards, self._defects
        return self._parts.unread

    @cached_property
    def counts(self) -> dict[str, int]:
        """Safetensors files, tensors and bytes of tensor data in them."""
        shards = self.shards.values()
        return {
            "files": len(self.shards),
            "tensors": sum(len(shard.tensors) for shard in shards),
            "bytes": sum(shard.size - shard.data_start for shard in shards if shard.readable),
        }

    @property
    def subject(self) -> str:
        """One line for the head of a report: architecture, files, tensors, bytes, and the commit of a repository on the Hub."""
        counts = self.counts
        parts = [count(counts["files"], "file"), count(counts["tensors"], "tensor"), format_bytes(counts["bytes"])]
        if self.config is not None and self.config.architecture:
            parts.insert(0, self.config.architecture)
        elif self.is_adapter:
            parts.insert(0, "PEFT adapter")
        if commit := getattr(self.source, "commit", None):
            # Name the commit, because a branch may move.
            parts.append(f"at {commit[:12]}")
        return " · ".join(parts)
