"""The evidence that every rule of a scan looks at."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.anatomy import Anatomy
from ckptcheck.checkpoint.config import Config, read_config
from ckptcheck.checkpoint.defects import is_watched, problems
from ckptcheck.checkpoint.document import Defect, impostor
from ckptcheck.checkpoint.header import Shard, read_shard
from ckptcheck.checkpoint.index import Index, index_among, read_index
from ckptcheck.checkpoint.layout import Layout, layout_of
from ckptcheck.checkpoint.options import Options
from ckptcheck.checkpoint.parts import Parts
from ckptcheck.checkpoint.quantization.declared import SIDE_FILES
from ckptcheck.checkpoint.shard_set import Family, chosen_without_index, families_of, globbed_among
from ckptcheck.checkpoint.source import File, Source
from ckptcheck.checkpoint.subject import subject_of
from ckptcheck.checkpoint.tensor import Tensor
from ckptcheck.phrase import few
from ckptcheck.rule import Problem, Skip

if TYPE_CHECKING:
    from ckptcheck.checkpoint.quantization.quantization import Quantization
    from ckptcheck.checkpoint.tokenizer import Tokenizer
    from ckptcheck.values.stats import Values


class Checkpoint:
    """A Hugging Face checkpoint (or a single shard, or an adapter), each part read when it is first asked for.

    A part that does not exist is None; one that is malformed has defects; one that exists but cannot be read is in
    `unread`, and then no rule passes.
    """

    kind = "checkpoint"
    endings: tuple[str, ...] = (".safetensors",)
    """How the names of files end that hold tensors."""

    def __init__(
        self, source: Source, *, index_file: str | None = None, single: bool = False, jobs: int | None = None
    ) -> None:
        """`single`: the target is one shard by itself, so nothing is said about what is beside it.

        padding: how many rows at the end of the vocabulary may be padding for all that the checkpoint's form tells.
        """
        self.source = source
        self.single = single
        self._index_file = index_file
        self.jobs = jobs or os.cpu_count() or 1
        self._parts = Parts(source)
        self.progress: Callable[[int, int], None] | None = None
        self.release: Callable[[], None] = lambda: None
        self.value_reader: Callable[[], Values] | None = None
        self.options = Options()
        self.no_values = "the values were not read"
        self.padding = 0

    @property
    def target(self) -> str:
        """What the user named."""
        return self.source.target

    @property
    def files(self) -> Mapping[str, File]:
        """The files of the folder, by name."""
        return self.source.files

    @cached_property
    def shards(self) -> dict[str, Shard]:
        """Every safetensors file of the folder, its header read; those that could not be read are in `unread`."""
        names = [name for name in self.files if name.endswith(".safetensors")]
        read = self._parts.read_all(names, read_shard, jobs=self.jobs, progress=self.progress)
        return {shard.name: shard for shard in read}

    @cached_property
    def index(self) -> Index | None:
        """The index: the standard one, or the only one there is."""
        file = self._index_file or index_among(self.files)
        return self._parts.read(file, read_index) if file is not None and file in self.files else None

    @cached_property
    def config(self) -> Config | None:
        """config.json."""
        return self._parts.read("config.json", read_config) if "config.json" in self.files else None

    @cached_property
    def adapter(self) -> Config | None:
        """adapter_config.json of a PEFT adapter."""
        return self._parts.read("adapter_config.json", read_config) if "adapter_config.json" in self.files else None

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer beside the weights, None where neither tokenizer.json nor tokenizer_config.json is there."""
        if not {"tokenizer.json", "tokenizer_config.json"} & self.files.keys():
            return None
        from ckptcheck.checkpoint.tokenizer import Tokenizer

        return Tokenizer.read(self)

    @cached_property
    def quantization_files(self) -> dict[str, Config]:
        """The configs that the tools of some quantization methods write beside config.json, by name."""
        read = {name: self._parts.read(name, read_config) for name in SIDE_FILES if name in self.files}
        return {name: config for name, config in read.items() if config is not None}

    @cached_property
    def quantization(self) -> Quantization | None:
        """How the model is quantized, None where neither a config nor a tensor says that it is."""
        from ckptcheck.checkpoint.quantization.quantization import quantization_of

        return quantization_of(self.config, self.quantization_files, self.tensors)

    @property
    def is_adapter(self) -> bool:
        """Whether the folder holds an adapter and no whole model."""
        weights = [name for name in self.files if name.endswith((".safetensors", ".bin"))]
        return any(name.startswith("adapter_model.") for name in weights) and all(
            name.startswith(("adapter_", "training_args", "optimizer", "scheduler")) for name in weights
        )

    @cached_property
    def loaded(self) -> tuple[str, ...]:
        """The files that make up the model, as loaders choose them; some may be missing.

        The index decides where it fits the folder at all; then model.safetensors, the numbered shards, whatever is there.
        """
        if self.index is not None and self.index_decides:
            return self.index.shards
        return chosen_without_index(self.files, is_adapter=self.is_adapter)

    @cached_property
    def families(self) -> tuple[Family, ...]:
        """The sets of numbered shards in the folder."""
        return families_of(self.files)

    @cached_property
    def globbed(self) -> tuple[str, ...]:
        """The readable files whose every tensor vLLM and SGLang load."""
        return globbed_among(self.loaded if self.index_decides else self.shards, self.shards, self.loaded)

    @cached_property
    def holders(self) -> dict[str, str]:
        """Tensor → the loaded file that holds it (the last one, where there are several)."""
        found: dict[str, str] = {}
        for name in self.loaded:
            if name in self.shards:
                found.update(dict.fromkeys(self.shards[name].tensors, name))
        return found

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the loaded files, by name, as far as they could be read."""
        found: dict[str, Tensor] = {}
        for name in self.loaded:
            if name in self.shards:
                found.update(self.shards[name].tensors)
        return found

    @cached_property
    def layout(self) -> Layout:
        """What the names of the loaded tensors say about the model."""
        return layout_of(self.tensors)

    @cached_property
    def anatomy(self) -> Anatomy:
        """Which of the loaded tensors play which part."""
        return Anatomy(self.config, self.layout, self.tensors)

    @cached_property
    def vocabularies(self) -> dict[str, tuple[str, ...]]:
        """Embedding and head of its own → the tensors that hold their rows, in order: here each is one tensor."""
        names = (self.anatomy.embedding, self.anatomy.head)
        return {name: (name,) for name in names if name is not None and self.tensors[name].is_plain}

    @property
    def split(self) -> Mapping[str, tuple[str, ...]]:
        """Weight → the tensors that hold its parts, where it is held in several: here none is."""
        return {}

    @property
    def args(self) -> Mapping[str, Any]:
        """The arguments of the training script, where the format keeps them: here it does not."""
        return {}

    @cached_property
    def values(self) -> Values:
        """What every tensor's values showed, read when first asked for; skips the rule, with the reason, if they are not."""
        if self.value_reader is None:
            raise Skip(self.no_values)
        values = self.value_reader()
        self._parts.unread |= values.unread
        return values

    def aspect(self, kind: str) -> Checkpoint | None:
        """Return this checkpoint for the rules about values, which look at other formats as well; None for other kinds."""
        return self if kind == "values" else None

    @property
    def arguments(self) -> Mapping[str, Any] | None:
        """What the trainer was started with, where the checkpoint is a trainer's; None for a model as it is served."""
        return None

    @property
    def is_partial(self) -> bool:
        """Whether the target is not a whole model by design: one shard, or an adapter."""
        return self.single or self.is_adapter

    def holder(self, prefix: str) -> str | None:
        """Return the file that holds (most of) the tensors below a name."""
        files = Counter(file for name, file in self.holders.items() if name.startswith(prefix + "."))
        return files.most_common(1)[0][0] if files else None

    @property
    def has_index(self) -> bool:
        """Whether there is an index that can be read."""
        return self.index is not None and self.index.readable

    @cached_property
    def index_agrees(self) -> bool:
        """Whether the index says of every tensor exactly what the shards' headers say."""
        return self.index is not None and self.index.weight_map == self.holders

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
        """Skip a rule that has looked at all headers there are while some could not be read: what is wrong there is said."""
        absent = [name for name, shard in self.shards.items() if not shard.readable]
        if absent:
            raise Skip(f"could not look into {few(absent)}, whose header cannot be read")

    def require_values(self) -> None:
        """Skip a rule that has looked at all values there are while some files could not be looked into."""
        absent = [name for name in self.loaded if name in self.files and name not in self.values.looked_at]
        if absent:
            raise Skip(f"could not look at the values in {few(absent)}")

    def require_whole(self) -> None:
        """Skip a rule that would take a tensor for missing whose shard is missing or unreadable: that is said elsewhere."""
        absent = [name for name in self.loaded if name not in self.shards or not self.shards[name].readable]
        if absent:
            raise Skip(f"needs every tensor, but {few(absent)} could not be read")

    def defects(self, *kinds: str, files: Container[str] | None = None) -> Iterator[Problem]:
        """Yield one problem for each file (of `files`) with defects of these kinds: the first one whole, the others counted."""
        return problems(self._defects, kinds, files)

    @cached_property
    def _defects(self) -> dict[str, tuple[Defect, ...]]:
        """All defects of form, by file."""
        parts = [self.index, self.config, self.adapter, *self.quantization_files.values()]
        found = {name: shard.defects for name, shard in self.shards.items()}
        found |= {part.file: part.defects for part in parts if part is not None}
        for name, file in self.files.items():
            if file.leaves is not None:
                found.pop(name, None)  # a link out of the target is ST022's, and nothing of it was read
            elif name not in found and is_watched(file, remote=self.source.local is None):
                defect = self._parts.read(name, lambda source, name: impostor(source.read(name, 0, 64)))
                found[name] = (defect,) if defect else ()
        return found

    @property
    def unread(self) -> Mapping[str, str]:
        """File → why it could not be read. Everything is read first, so that the answer is final."""
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
        """One line that says what the checkpoint is."""
        return subject_of(self)
