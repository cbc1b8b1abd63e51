"""Tabulates what each delta of a chain changed."""

from __future__ import annotations

from ckptcheck.checkpoint.deltas.chain import DeltaChain
from ckptcheck.linter.report import Section


def tabulate_chain(chain: DeltaChain) -> Section:
    """Return a table with a row for each delta. Applies the chain where it can be applied."""
    rows = []
    for at, delta in enumerate(chain.deltas):
        effects = [outcome.effect for outcome in chain.list_outcomes(at).values() if outcome.effect is not None]
        changed = sum(effect.elements for effect in effects) if effects else None
        rows.append(
            (delta.name, delta.writer, delta.base_version, delta.version, len(delta.changes), changed, delta.nbytes)
        )
    columns = ("delta", "format of", "from", "to", "tensors", "changed elements", "bytes")
    return Section(f"Deltas on {chain.base_target or 'no base'}", columns, tuple(rows), chain.notes)
