"""The evidence of `diff`: two checkpoints, which tensors belong together, and how they differ."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import msgspec

from ckptcheck.compare.bridge.model_dimensions import ModelDimensions
from ckptcheck.compare.bridge.tensor_layout import TensorLayout
from ckptcheck.compare.matching.cast import can_cast, is_lossless_cast
from ckptcheck.compare.matching.equality import CompareResult, CompareSpec, Tolerance
from ckptcheck.compare.matching.pairing import MEGATRON_HEAD, MatchResult, TensorPair, is_value_head, match_tensors
from ckptcheck.compare.matching.quantized.weight import QuantizedWeight
from ckptcheck.compare.matching.side import ComparisonSide
from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.runners.runner import Local, Runner
from ckptcheck.text.formatting import count, join_truncated, natural_sort_key

if TYPE_CHECKING:
    from ckptcheck.checkpoint.deltas.chain import DeltaChain
    from ckptcheck.compare.matching.merged_adapter import Adapter, ModuleMerge
    from ckptcheck.compare.matching.quantized.distance import QuantizedDistance
    from ckptcheck.compare.matching.rotation import Rotation
    from ckptcheck.compare.matching.smoothing import Smoothing, UndividedNorm
    from ckptcheck.compare.matching.tensor_files import TensorFiles
    from ckptcheck.linter.report import Section

ALWAYS_WIDE = ("e_score_correction_bias", "expert_bias")
"""Parameters that every consumer keeps in F32 whatever the config says: rounding them routes tokens to other experts."""


class UndeclaredCast(msgspec.Struct, frozen=True):
    """A tensor whose dtypes differ although no config declares the cast."""

    name: str
    # dtypes of the two sides.
    first: str
    second: str
    # Whether its numbers can be compared after a cast.
    comparable: bool


class ValueDifferences(msgspec.Struct):
    """The findings of reading both sides."""

    # Pairs that differ, how they were compared, and how they differ.
    different: list[tuple[TensorPair, CompareSpec, CompareResult]] = msgspec.field(default_factory=list)
    # Quantized pairs, their distance, and whether the quantized side is the first.
    quantized: list[tuple[TensorPair, QuantizedDistance, bool]] = msgspec.field(default_factory=list)
    # Tensor or file → why it could not be read or compared.
    unread: dict[str, str] = msgspec.field(default_factory=dict)
    # Norm whose weight was scaled → the readers whose columns were not, though those of others were.
    half_smoothed: dict[str, list[str]] = msgspec.field(default_factory=dict)
    # Norms whose weight was scaled, and whose readers all undo it.
    smoothed: list[str] = msgspec.field(default_factory=list)
    # Norm that was not scaled → the readers whose columns all were.
    undivided: dict[str, UndividedNorm] = msgspec.field(default_factory=dict)
    # Matrices whose rows were scaled, which the columns of the matrix that reads their outputs undo.
    scaled_outputs: list[str] = msgspec.field(default_factory=list)
    # Where the residual stream is rotated: the matrices that follow, and those that do not → why.
    rotated: list[str] = msgspec.field(default_factory=list)
    unrotated: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def read_undivided(self) -> frozenset[str]:
        """The matrices that read a norm which smoothing left as it was."""
        return frozenset(name for norm in self.undivided.values() for name in norm.readers)

    def describe_unrotated(self) -> list[tuple[str, list[str]]]:
        """Return why matrices do not follow the rotation of the others, and which."""
        reasons: dict[str, list[str]] = {}
        for name, reason in self.unrotated.items():
            reasons.setdefault(reason, []).append(name)
        follow = count(len(self.rotated), "matrix follows", "matrices follow")
        return [
            (f"{follow} a rotation of the embedding, and {count(len(found), 'matrix', 'matrices')} {reason}", found)
            for reason, found in reasons.items()
        ]


class _ClassifiedPairs(msgspec.Struct):
    """Matched pairs by how they can be compared."""

    # Pairs that are compared number by number, and how.
    plain: list[tuple[TensorPair, CompareSpec]] = msgspec.field(default_factory=list)
    undeclared: list[UndeclaredCast] = msgspec.field(default_factory=list)
    # The weights that the adapter changes.
    adapted: list[TensorPair] = msgspec.field(default_factory=list)
    # A quantized weight and a dense one.
    quantized: list[TensorPair] = msgspec.field(default_factory=list)
    # Name → why the pair cannot be compared.
    incomparable: dict[str, str] = msgspec.field(default_factory=dict)


@dataclass(frozen=True)
class Comparison(EvidenceDefaults):
    """The evidence of `diff`. The values are read when a rule first asks for them."""

    # The reference.
    first: ComparisonSide
    # The side that is compared with it.
    second: ComparisonSide
    tolerance: Tolerance = field(default_factory=Tolerance)
    # One side is a critic, so LM heads and value heads may be on one side only.
    critic: bool = False
    # The version before the first side's: a tensor of the second side that equals it was never updated.
    previous: ComparisonSide | None = None
    # The adapter that was merged into the first side to make the second.
    adapter: Adapter | None = None
    # Number of threads; None for one per core.
    jobs: int | None = None
    # The runner that compares; None: threads of this process.
    runner: Runner | None = field(default=None, repr=False)
    progress: Callable[[int, int], None] | None = field(default=None, repr=False)
    kind: str = "comparison"
    # Values that rules and pictures derive from it, see `linter.evidence.remembered`.
    memory: dict[Hashable, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    @property
    def target(self) -> str:
        """What the user named."""
        return f"{self.first.target} ↔ {self.second.target}"

    @property
    def deltas(self) -> tuple[DeltaChain, ...]:
        """The chains of deltas that lead to the two sides; () if both sides are stored in full."""
        chains = [getattr(side.source, "chain", None) for side in (self.first, self.second)]
        return tuple(chain for chain in chains if chain is not None)

    def view_for(self, kind: str) -> object | None:
        """Return this comparison for its own rules, the chains of deltas for theirs."""
        return self.deltas or None if kind == "deltas" else super().view_for(kind)

    @property
    def sections(self) -> tuple[Section, ...]:
        """The changes of each delta of a chain."""
        from ckptcheck.checkpoint.deltas.chain import tabulate_chain

        return tuple(tabulate_chain(chain) for chain in self.deltas)

    def is_head(self, name: str) -> bool:
        """Whether a plain name belongs to an LM head or value head, which critics and language models do not share."""
        return name in (self.first.head, self.second.head, MEGATRON_HEAD) or is_value_head(name)

    @cached_property
    def match_result(self) -> MatchResult:
        """The pairs of tensors, and the tensors without a counterpart."""
        table = self.first.table or self.second.table
        return match_tensors(self.first, self.second, table, critic=self.critic)

    @cached_property
    def _classified(self) -> _ClassifiedPairs:
        """The matched pairs by how they can be compared."""
        pairs = _ClassifiedPairs()
        for pair in sorted(self.match_result.pairs, key=lambda pair: natural_sort_key(pair.name)):
            sides = (pair.first, pair.second)
            if self.adapter is not None and self.adapter.changes(pair.names[0]):
                pairs.adapted.append(pair)
                continue
            if packed := [side for side in sides if isinstance(side, QuantizedWeight)]:
                dense = [side for side in sides if isinstance(side, TensorLayout)]
                reason = next((side.unsupported_reason for side in packed if side.unsupported_reason), None)
                if not dense:
                    reason = "quantized on both sides, in different ways"
                elif reason is None and not can_cast(dense[0].dtype, "F32"):
                    reason = "quantized on one side, and not a plain float dtype on the other"
                if reason is None:
                    pairs.quantized.append(pair)
                else:
                    pairs.incomparable[pair.name] = reason
                continue
            assert isinstance(pair.first, TensorLayout)
            assert isinstance(pair.second, TensorLayout)
            how, is_declared = self._choose_spec(pair)
            if how is None:
                pairs.undeclared.append(
                    UndeclaredCast(pair.name, pair.first.dtype, pair.second.dtype, comparable=False)
                )
                continue
            if not is_declared:
                pairs.undeclared.append(UndeclaredCast(pair.name, how.first, how.second, comparable=True))
            pairs.plain.append((pair, how))
        return pairs

    def _choose_spec(self, pair: TensorPair) -> tuple[CompareSpec | None, bool]:
        """Return how to compare a pair (None if impossible), and whether the cast is declared or lossless."""
        assert isinstance(pair.first, TensorLayout)
        assert isinstance(pair.second, TensorLayout)
        ours, theirs = pair.first.dtype, pair.second.dtype
        tolerance = (
            (self.tolerance.rtol, self.tolerance.atol)
            if can_cast(ours, "F64") and can_cast(theirs, "F64")
            else (0.0, 0.0)
        )
        cast = self.tolerance.cast
        if cast not in ("auto", "none") and can_cast(ours, cast) and can_cast(theirs, cast):
            return CompareSpec(ours, theirs, cast, *tolerance), True
        if ours == theirs:
            return CompareSpec(ours, theirs, ours, *tolerance), True
        if not can_cast(ours, theirs):
            return None, False
        is_allowed = is_lossless_cast(ours, theirs) or (
            theirs == self.second.declared and not pair.name.endswith(ALWAYS_WIDE)
        )
        return CompareSpec(ours, theirs, theirs, *tolerance), is_allowed and cast == "auto"

    @property
    def comparable_pairs(self) -> list[tuple[TensorPair, CompareSpec]]:
        """Pairs that are compared number by number, and how."""
        return self._classified.plain

    @property
    def dimensions(self) -> ModelDimensions:
        """The dimensions of the model, from the side that declares its heads."""
        return self.first.dimensions if self.first.dimensions.heads else self.second.dimensions

    @property
    def undeclared_casts(self) -> list[UndeclaredCast]:
        """Tensors of unequal dtype whose cast no config declares."""
        return self._classified.undeclared

    @cached_property
    def value_differences(self) -> ValueDifferences:
        """The differences between the two sides. Reads both."""
        from ckptcheck.compare.matching.compare_pass import compare_pairs
        from ckptcheck.compare.matching.quantized.distance import QuantizedComparison
        from ckptcheck.compare.matching.tensor_files import TensorFiles, UnreadableFile

        plain, packed = self._classified.plain, self._classified.quantized
        differences = ValueDifferences()
        # The files are closed at the end: no thread may still read from them.
        runner = self.runner or Local(self.jobs, waits=True)
        total = sum(pair.first.nbytes for pair, _ in plain) + sum(pair.first.nbytes for pair in packed)

        def advance(done: int, _: int) -> None:
            if self.progress is not None:
                self.progress(done, total)

        with TensorFiles(self.first.source) as ours, TensorFiles(self.second.source) as theirs:
            layouts = [(pair.first, pair.second, how) for pair, how in plain]
            outcome = compare_pairs(layouts, (ours, theirs), runner=runner, progress=advance)  # type: ignore[arg-type]
            for number, ((pair, how), result) in enumerate(zip(plain, outcome.results, strict=True)):
                elements = prod(pair.first.shape)
                if number in outcome.unread:
                    file, reason = outcome.unread[number]
                    differences.unread[f"{file} ({pair.name})"] = reason
                    continue
                if result.elements != elements:
                    differences.unread[pair.name] = f"the files hold {result.elements:,} of its {elements:,} elements"
                if result.different:
                    differences.different.append((pair, how, result))
            done = sum(pair.first.nbytes for pair, _ in plain)
            if (rotation := self._find_rotation((ours, theirs), differences)) is not None:
                differences.rotated, differences.unrotated = rotation.consistent, rotation.broken
                judged = rotation.explained | rotation.broken.keys()
                differences.different = [one for one in differences.different if one[0].name not in judged]
                packed = [pair for pair in packed if pair.name not in judged]
            smoothing = self._find_smoothing((ours, theirs), differences)
            scalings = smoothing.list_scalings()
            own = {number: scalings[pair.name] for number, pair in enumerate(packed) if pair.name in scalings}
            work = QuantizedComparison(packed, (ours, theirs), own)
            for number, measured in runner.run(work, range(len(packed))):
                pair = packed[number]
                if measured.distance is None:
                    differences.unread[pair.name] = measured.reason
                else:
                    differences.quantized.append((pair, measured.distance, isinstance(pair.first, QuantizedWeight)))
                done += pair.first.nbytes
                advance(done, total)
            try:
                smoothing.judge(differences.quantized, {pair.name: pair for pair, _ in plain}, (ours, theirs))
            except UnreadableFile as error:
                differences.unread[error.file] = error.reason
            differences.smoothed, differences.half_smoothed = smoothing.consistent, smoothing.broken
            differences.scaled_outputs = smoothing.scaled_outputs
            differences.undivided = self._find_undivided((ours, theirs), differences, smoothing)
            differences.different = [one for one in differences.different if one[0].name not in smoothing.explained]
            for file in (*ours.list_changed(), *theirs.list_changed()):
                differences.unread[file] = "it was written to while ckptcheck read it"
        return differences

    def _find_smoothing(self, files: tuple[TensorFiles, TensorFiles], differences: ValueDifferences) -> Smoothing:
        """Return what smoothing may have scaled; notes a file that cannot be read."""
        from ckptcheck.compare.bridge.tensor_layout import LayoutError
        from ckptcheck.compare.matching.smoothing import Smoothing, find_row_scales, find_smoothed_norms
        from ckptcheck.compare.matching.tensor_files import UnreadableFile
        from ckptcheck.values.detectors.norm_convention import is_zero_centred

        smoothing, packed = Smoothing(), self._classified.quantized
        if differences.rotated:
            return smoothing
        config = self.first.config or self.second.config
        if (differences.different or packed) and not (self.tolerance.rtol or self.tolerance.atol):
            try:
                smoothing.norms = find_smoothed_norms(
                    [pair for pair, _ in self._classified.plain] + packed,
                    files,
                    head=self.first.head,
                    is_tied=self.first.tied is not False,
                    is_centred=config is not None and is_zero_centred(config.value),
                )
            except UnreadableFile as error:
                differences.unread[error.file] = error.reason
        # The comparison itself reports what cannot be read.
        with suppress(UnreadableFile, IndexError, ValueError, LayoutError):
            pairs = [pair for pair, _, _ in differences.different] + packed
            smoothing.rows = find_row_scales(
                pairs, smoothing.columns, files, config.integer("num_key_value_heads") if config is not None else None
            )
        return smoothing

    def _find_undivided(
        self, files: tuple[TensorFiles, TensorFiles], differences: ValueDifferences, smoothing: Smoothing
    ) -> dict[str, UndividedNorm]:
        """Return the norms that smoothing left as they were. The comparison itself reports what cannot be read."""
        from ckptcheck.compare.bridge.tensor_layout import LayoutError
        from ckptcheck.compare.matching.smoothing import find_undivided_norms, iter_norm_readers
        from ckptcheck.compare.matching.tensor_files import UnreadableFile

        far = {
            pair.name: distance.beyond
            for pair, distance, came_first in differences.quantized
            if distance.beyond and not came_first and not distance.is_smoothed and not distance.not_finite
        }
        changed = {norm.pair.name for norm in smoothing.norms}
        pairs = [pair for pair, _ in self._classified.plain] + self._classified.quantized
        with suppress(UnreadableFile, IndexError, ValueError, LayoutError):
            norms = iter_norm_readers(pairs, head=self.first.head, is_tied=self.first.tied is not False) if far else ()
            return find_undivided_norms((norm for norm in norms if norm[0].name not in changed), far, files)
        return {}

    def _find_rotation(self, files: tuple[TensorFiles, TensorFiles], differences: ValueDifferences) -> Rotation | None:
        """Return what follows a rotation of the embedding; None if that does not differ, or not by a rotation."""
        from ckptcheck.compare.bridge.tensor_layout import LayoutError
        from ckptcheck.compare.matching.rotation import find_rotation
        from ckptcheck.compare.matching.tensor_files import UnreadableFile
        from ckptcheck.values.detectors.norm_convention import is_zero_centred

        config = self.first.config or self.second.config
        if self.first.embedding not in [pair.name for pair, _, _ in differences.different]:
            return None
        declared = [side.config.get("quantization_config") for side in (self.first, self.second) if side.config]
        # The comparison itself reports what cannot be read.
        with suppress(UnreadableFile, IndexError, ValueError, LayoutError):
            return find_rotation(
                [pair for pair, _ in self._classified.plain] + self._classified.quantized,
                files,
                embedding=self.first.embedding,
                head=self.first.head,
                is_centred=config is not None and is_zero_centred(config.value),
                heads=self.dimensions.heads,
                is_declared=any(isinstance(each, dict) and each.get("transform_config") for each in declared),
            )
        return None

    @cached_property
    def merges(self) -> dict[str, ModuleMerge | str]:
        """Weight that the adapter changes → the fate of its update, or why it is unknown. Raises EvidenceError."""
        from ckptcheck.compare.matching.merged_adapter import measure_merges

        return measure_merges(self.adapter, self._classified.adapted, (self.first, self.second)) if self.adapter else {}

    @cached_property
    def unread(self) -> Mapping[str, str]:
        """Tensor or file → why it could not be read or compared. Reads everything first, so the answer is final."""
        unread = {**self.first.unread, **self.second.unread, **self.first.malformed, **self.second.malformed}
        reasons: dict[str, list[str]] = {}
        for name, reason in self._classified.incomparable.items():
            reasons.setdefault(reason, []).append(name)
        unread |= {join_truncated(names): reason for reason, names in reasons.items()}
        if self.adapter is not None:
            unread |= {**self.adapter.side.unread, **self.adapter.unsupported}
            unread |= {name: merge for name, merge in self.merges.items() if isinstance(merge, str)}
        return unread | self.value_differences.unread

    @property
    def counts(self) -> Mapping[str, int]:
        """Files and tensors of both sides, and their bytes."""
        return {key: self.first.counts[key] + self.second.counts[key] for key in ("files", "tensors", "bytes")}

    @property
    def subject(self) -> str:
        """One line that counts the tensors by outcome."""
        return " · ".join(self._describe_accounts())

    @property
    def headline(self) -> str:
        """How many tensors are equal, and in which sense; "" if one differs, even if no rule that ran reports it."""
        differences = self.value_differences
        if (
            differences.different
            or differences.unrotated
            or any(distance.is_mismatch(came_first=first) for _, distance, first in differences.quantized)
        ):
            return ""
        plain, quantized = self._classified.plain, self._classified.quantized
        if differences.rotated:
            return "all matrices follow a rotation of the residual stream, and the rest is equal or rounded to the grid"
        if differences.smoothed or differences.scaled_outputs:
            return "what smoothing scaled is undone by the matrices that follow, and the rest is equal or rounded to the grid"
        parts = []
        if plain:
            is_cast = any(not how.first == how.second == how.target for _, how in plain)
            sense = "within the tolerance" if self.tolerance.rtol or self.tolerance.atol else "bit for bit"
            parts.append(
                f"{count(len(plain), 'tensor is', 'tensors are')} equal {sense}{' after casts' if is_cast else ''}"
            )
        if quantized:
            parts.append(
                f"{count(len(quantized), 'quantized weight is', 'quantized weights are')} as near as rounding allows"
            )
        return ", and ".join(parts)

    def _describe_accounts(self) -> list[str]:
        result = self.match_result
        matched = sum(pair.name not in result.aliased for pair in result.pairs)
        lines = [
            f"{matched:,} matched" + (f" ({result.bridged_count:,} by the bridge)" if result.bridged_count else "")
        ]
        lines += [
            f"{len(names):,} {word}"
            for word, names in (("missing", result.missing), ("extra", result.extra), ("aliased", result.aliased))
        ]
        if result.shape_mismatches:
            lines.append(f"{len(result.shape_mismatches):,} of other shapes")
        if result.heads:
            lines.append(f"heads of their own: {join_truncated(tuple(result.heads.values()))}")
        if self.critic and (start := self._describe_critic_start()):
            lines.append(start)
        if result.padding_rows:
            lines.append(f"{count(max(result.padding_rows.values()), 'row')} of padding left out")
        if left_out := {**self.first.left_out, **self.second.left_out}:
            lines.append(f"{len(left_out):,} that are no weights")
        if self.adapter is not None:
            lines.append(f"{len(self._classified.adapted):,} that {self.adapter.target} changes")
        if self._classified.quantized:
            lines.append(f"{len(self._classified.quantized):,} quantized, held to half a step")
        specs = [how for _, how in self._classified.plain]
        casts = sorted({f"{how.first} → {how.target}" for how in specs if how.first != how.target})
        casts += sorted({f"second side {how.second} → {how.target}" for how in specs if how.second != how.target})
        if casts:
            lines.append("cast " + ", ".join(casts))
        if "value_differences" in self.__dict__ and (norms := len(self.value_differences.smoothed)):
            total = norms + len(self.value_differences.half_smoothed)
            lines.append(f"smoothed, consistent in {norms:,} of {count(total, 'norm')}")
        if "value_differences" in self.__dict__ and (turned := len(self.value_differences.rotated)):
            total = turned + len(self.value_differences.unrotated)
            lines.append(f"rotated, consistent in {turned:,} of {count(total, 'matrix', 'matrices')}")
        if "value_differences" in self.__dict__ and (outputs := len(self.value_differences.scaled_outputs)):
            lines.append(f"outputs of {count(outputs, 'matrix', 'matrices')} scaled, and undone")
        return [*lines, self.tolerance.text]

    def _describe_critic_start(self) -> str:
        """Return "only the head is new" with the heads' stored names if the critic otherwise equals the language model; "" if not.

        Reads both sides, unless they were read before.
        """
        from ckptcheck.compare.matching.value_heads import list_value_heads

        result = self.match_result
        heads = list_value_heads(self.first, self.second)
        if len({id(side) for side, _ in heads}) != 1 or not result.pairs:
            return ""
        if result.missing or result.extra or result.shape_mismatches or self.undeclared_casts or self.unread:
            return ""
        differences = self.value_differences
        if differences.different or differences.quantized:
            return ""
        names = [name for _, name in heads]
        of = {stored for name, stored in result.heads.items() if name.rpartition(".")[0] == "score"}
        names += sorted(of - set(names))
        only = "only the head is" if len(names) == 1 else "only the head's tensors are"
        return f"{only} new in the critic: {join_truncated(names)}"
