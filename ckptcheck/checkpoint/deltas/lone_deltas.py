"""The evidence of deltas that are scanned without their base: their form can be checked, and nothing can be applied."""

from __future__ import annotations

from collections.abc import Mapping

from ckptcheck.checkpoint.deltas.chain import DeltaChain
from ckptcheck.checkpoint.deltas.summary import tabulate_chain
from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.report import Section
from ckptcheck.text.formatting import count, format_bytes


class LoneDeltas(EvidenceDefaults):
    """One delta or several, without the base that they are for."""

    kind = "deltas"

    def __init__(self, chain: DeltaChain) -> None:
        self._chain = chain

    def view_for(self, kind: str) -> tuple[DeltaChain, ...] | None:
        """Return the chain for the rules on deltas."""
        return (self._chain,) if kind == self.kind else None

    @property
    def target(self) -> str:
        """What the user named."""
        return self._chain.target

    @property
    def unread(self) -> Mapping[str, str]:
        """File → why it could not be read: the rules say it."""
        return {}

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of files, tensors and bytes."""
        deltas = self._chain.deltas
        files = [name for delta in deltas for name in delta.source.files if name.endswith(".safetensors")]
        tensors = sum(len(delta.changes) for delta in deltas)
        return {"files": len(files), "tensors": tensors, "bytes": sum(delta.nbytes for delta in deltas)}

    @property
    def subject(self) -> str:
        """How many deltas there are, and of what size."""
        counts = self.counts
        deltas = count(len(self._chain.deltas), "delta")
        return f"{deltas} without a base · {count(counts['tensors'], 'tensor')} · {format_bytes(counts['bytes'])}"

    @property
    def sections(self) -> tuple[Section, ...]:
        """What the deltas say of themselves, and how to have them applied."""
        table = tabulate_chain(self._chain)
        hint = f"nothing was applied: ckptcheck scan BASE+{self.target}, or ckptcheck diff BASE+{self.target} FULL, does it"
        return (Section(table.title, table.columns, table.rows, (hint,)),)
