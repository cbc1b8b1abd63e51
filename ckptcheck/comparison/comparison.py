"""The evidence of `diff`: two checkpoints, which tensors belong together, and how they differ."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from ckptcheck.bridge.area import Area
from ckptcheck.bridge.geometry import Geometry
from ckptcheck.comparison.cast import can_cast, keeps_all
from ckptcheck.comparison.equality import How, Seen
from ckptcheck.comparison.matching import OUTPUT, Accounts, Pair, is_score, match
from ckptcheck.comparison.packed import Packed
from ckptcheck.comparison.side import Side
from ckptcheck.comparison.terms import Terms
from ckptcheck.errors import CkptcheckError
from ckptcheck.phrase import count, few, natural
from ckptcheck.rule import Skip

if TYPE_CHECKING:
    from ckptcheck.bridge.second_opinion import Opinion
    from ckptcheck.comparison.nearness import Nearness
    from ckptcheck.diagnosis import Verdict

ALWAYS_WIDE = ("e_score_correction_bias", "expert_bias")
"""Parameters that consumers keep in F32 whatever the config says: rounding them sends tokens to other experts."""


@dataclass(frozen=True)
class Undeclared:
    """A tensor whose dtype changed without a word. comparable: whether its numbers can be compared after a cast."""

    name: str
    first: str
    second: str
    comparable: bool


@dataclass
class Findings:
    """What reading both sides showed. different: pair → what was seen. near: quantized pair → how near it is."""

    different: list[tuple[Pair, How, Seen]] = field(default_factory=list)
    near: list[tuple[Pair, Nearness, bool]] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """Two sides. The values are read when first asked for.

    bridge: whose mapping brings Megatron's tensors and Hugging Face's together: builtin, mbridge, or both, which maps with the
    built-in tables and holds the other mapping against them. python: an interpreter with mbridge, default the one that is found.
    previous: the version before the first side's, where it is known: what equals it was never updated.
    """

    first: Side
    second: Side
    terms: Terms = field(default_factory=Terms)
    critic: bool = False
    bridge: str = "builtin"
    python: str | None = None
    previous: Side | None = None
    jobs: int | None = None
    progress: Callable[[int, int], None] | None = field(default=None, repr=False)
    kind: str = "comparison"

    @property
    def target(self) -> str:
        """What the user named."""
        return f"{self.first.target} ↔ {self.second.target}"

    def is_head(self, name: str) -> bool:
        """Whether a plain name is that of a head, LM or value, which critics and language models do not share."""
        return name in (self.first.head, self.second.head, OUTPUT) or is_score(name)

    @cached_property
    def accounts(self) -> Accounts:
        """Which tensors belong together."""
        table = self.first.table or self.second.table
        if self.bridge == "mbridge" and self.opinion is not None:
            from ckptcheck.bridge.second_opinion import table_from

            copies = table.copies if table is not None else {}
            table = replace(table_from(self.opinion), copies=copies)
        return match(self.first, self.second, table, critic=self.critic)

    @cached_property
    def opinion(self) -> Opinion | None:
        """What mbridge says; None where it is not asked, or there is nothing to map. Raises CkptcheckError."""
        sides = sorted((self.first, self.second), key=lambda side: side.is_megatron)
        if self.bridge == "builtin" or not sides[1].is_megatron or sides[0].is_megatron:
            return None
        from ckptcheck.bridge.second_opinion import ask, interpreter

        python, folder = self.python or interpreter(), sides[0].source.local
        if python is None:
            raise CkptcheckError(
                "mbridge is installed neither beside ckptcheck nor in the megatron environment",
                hint="ckptcheck engine install megatron, or leave --bridge out",
            )
        if folder is None or sides[0].config is None:
            raise CkptcheckError("mbridge maps by a config.json on disk", hint="download the checkpoint first")
        return ask(python, folder, sides[1].stored, self.geometry.layers or sides[0].geometry.layers)

    @property
    def disagreements(self) -> tuple[dict[str, str], list[str]]:
        """Name → how mbridge and the built-in table disagree; names that mbridge does not know. Skips without an opinion."""
        from ckptcheck.bridge.second_opinion import disagreements

        table = self.first.table or self.second.table
        if self.opinion is None:
            raise Skip("nothing is mapped: the two checkpoints have one form")
        if table is None:
            raise Skip("there is no built-in table for this family")
        stored = self.first.stored if self.first.is_megatron else self.second.stored
        return disagreements(self.opinion, table, stored, self.geometry)

    @cached_property
    def _sorted(self) -> tuple[list[tuple[Pair, How]], list[Undeclared], list[Pair], dict[str, str]]:
        """Pairs to compare, those whose cast nobody declared, quantized ones, and those that cannot be compared."""
        plain: list[tuple[Pair, How]] = []
        undeclared: list[Undeclared] = []
        packed: list[Pair] = []
        unknown: dict[str, str] = {}
        for pair in sorted(self.accounts.pairs, key=lambda pair: natural(pair.name)):
            sides = (pair.first, pair.second)
            if any(isinstance(side, Packed) for side in sides):
                reason = next((side.unknown for side in sides if isinstance(side, Packed) and side.unknown), None)
                if all(isinstance(side, Packed) for side in sides):
                    reason = "quantized on both sides, and not alike"
                elif not all(isinstance(side, Packed) or can_cast(side.dtype, "F32") for side in sides):
                    reason = reason or "quantized on one side, and of no plain dtype on the other"
                if reason is None:
                    packed.append(pair)
                else:
                    unknown[pair.name] = reason
                continue
            assert isinstance(pair.first, Area)
            assert isinstance(pair.second, Area)
            how, declared = self._how(pair)
            if how is None:
                undeclared.append(Undeclared(pair.name, pair.first.dtype, pair.second.dtype, comparable=False))
                continue
            if not declared:
                undeclared.append(Undeclared(pair.name, how.first, how.second, comparable=True))
            plain.append((pair, how))
        return plain, undeclared, packed, unknown

    def _how(self, pair: Pair) -> tuple[How | None, bool]:
        """Return how a pair is compared, and whether that cast is declared or loses nothing."""
        assert isinstance(pair.first, Area)
        assert isinstance(pair.second, Area)
        ours, theirs = pair.first.dtype, pair.second.dtype
        tolerance = (
            (self.terms.rtol, self.terms.atol) if can_cast(ours, "F64") and can_cast(theirs, "F64") else (0.0, 0.0)
        )
        wanted = self.terms.cast
        if wanted not in ("auto", "none") and can_cast(ours, wanted) and can_cast(theirs, wanted):
            return How(ours, theirs, wanted, *tolerance), True
        if ours == theirs:
            return How(ours, theirs, ours, *tolerance), True
        if not can_cast(ours, theirs):
            return None, False
        fits = keeps_all(ours, theirs) or (theirs == self.second.declared and not pair.name.endswith(ALWAYS_WIDE))
        return How(ours, theirs, theirs, *tolerance), fits and wanted == "auto"

    @property
    def plain(self) -> list[tuple[Pair, How]]:
        """Pairs whose numbers are compared one with another, and how."""
        return self._sorted[0]

    @property
    def geometry(self) -> Geometry:
        """Heads and groups, from the side that says them."""
        return self.first.geometry if self.first.geometry.heads else self.second.geometry

    @cached_property
    def reasons(self) -> list[Verdict]:
        """Why tensors differ; none for quantized ones, and none where all are equal."""
        from ckptcheck.comparison.reasons import reasons

        return reasons(self)

    @cached_property
    def reshaped(self) -> dict[str, str]:
        """Tensor of another shape than its counterpart → how the two are related, where that is known."""
        from ckptcheck.comparison.reasons import reshaped

        return reshaped(self)

    @cached_property
    def stand_ins(self) -> dict[str, str]:
        """Quantized weight → the other tensor for which it stands, of those that do not stand for their own."""
        from ckptcheck.comparison.stand_ins import stand_ins

        return stand_ins(self)

    @property
    def undeclared(self) -> list[Undeclared]:
        """Tensors of unequal dtype whose cast no config declares."""
        return self._sorted[1]

    @cached_property
    def findings(self) -> Findings:
        """Read both sides, and return what differs."""
        from ckptcheck.comparison.nearness import of_pair
        from ckptcheck.comparison.reading import Files
        from ckptcheck.comparison.walk import walk

        plain, _, packed, _ = self._sorted
        found = Findings()
        total = sum(pair.first.nbytes for pair, _ in plain) + sum(pair.first.nbytes for pair in packed)

        def advance(done: int, _: int) -> None:
            if self.progress is not None:
                self.progress(done, total)

        with Files(self.first.source) as ours, Files(self.second.source) as theirs:
            areas = [(pair.first, pair.second, how) for pair, how in plain]
            outcome = walk(areas, (ours, theirs), jobs=self.jobs or os.cpu_count() or 1, progress=advance)  # type: ignore[arg-type]
            found.different = [
                (pair, how, seen)
                for number, ((pair, how), seen) in enumerate(zip(plain, outcome.seen, strict=True))
                if seen.different and number not in outcome.unread
            ]
            found.unread = {f"{file} ({plain[number][0].name})": why for number, (file, why) in outcome.unread.items()}
            for number, ((pair, _), seen) in enumerate(zip(plain, outcome.seen, strict=True)):
                elements = prod(pair.first.shape)
                if seen.elements != elements and number not in outcome.unread:
                    found.unread[pair.name] = f"the files hold {seen.elements:,} of its {elements:,} elements"
            done = sum(pair.first.nbytes for pair, _ in plain)
            with ThreadPoolExecutor(self.jobs or os.cpu_count() or 1) as pool:
                for pair, near in zip(packed, pool.map(lambda pair: of_pair(pair, ours, theirs), packed), strict=True):
                    if isinstance(near, str):
                        found.unread[pair.name] = near
                    else:
                        found.near.append((pair, near, isinstance(pair.first, Packed)))
                    done += pair.first.nbytes
                    advance(done, total)
            for file in (*ours.changed(), *theirs.changed()):
                found.unread[file] = "it was written to while it was being read"
        return found

    @cached_property
    def unread(self) -> Mapping[str, str]:
        """What could not be read or compared; everything is read first, so that the answer is final."""
        found = {**self.first.unread, **self.second.unread, **self.first.strange, **self.second.strange}
        reasons: dict[str, list[str]] = {}
        for name, reason in self._sorted[3].items():
            reasons.setdefault(reason, []).append(name)
        found |= {few(names): reason for reason, names in reasons.items()}
        return found | self.findings.unread

    @property
    def counts(self) -> Mapping[str, int]:
        """Files and tensors of both sides, and their bytes."""
        return {key: self.first.counts[key] + self.second.counts[key] for key in ("files", "tensors", "bytes")}

    @property
    def subject(self) -> str:
        """One line with every account."""
        return " · ".join(self._accounts())

    def _accounts(self) -> list[str]:
        accounts = self.accounts
        matched = sum(pair.name not in accounts.aliased for pair in accounts.pairs)
        lines = [f"{matched:,} matched" + (f" ({accounts.bridged:,} by the bridge)" if accounts.bridged else "")]
        lines += [
            f"{len(found):,} {word}"
            for word, found in (("missing", accounts.missing), ("extra", accounts.extra), ("aliased", accounts.aliased))
        ]
        if accounts.shapes:
            lines.append(f"{len(accounts.shapes):,} of other shapes")
        if accounts.heads:
            lines.append(f"heads of their own: {few(accounts.heads)}")
        if accounts.padding:
            lines.append(f"{count(max(accounts.padding.values()), 'row')} of padding left out")
        if left := {**self.first.left_out, **self.second.left_out}:
            lines.append(f"{len(left):,} that are no weights")
        if self._sorted[2]:
            lines.append(f"{len(self._sorted[2]):,} quantized, held to half a step")
        casts = sorted({f"{how.first} → {how.target}" for _, how in self._sorted[0] if how.first != how.target})
        casts += sorted(
            {f"second side {how.second} → {how.target}" for _, how in self._sorted[0] if how.second != how.target}
        )
        if casts:
            lines.append("cast " + ", ".join(casts))
        return [*lines, self.terms.sentence]
