"""Reads what an engine holds, without the memory and the numbers that a forward pass changes."""

from __future__ import annotations

from collections.abc import Sequence

from ckptcheck.live.refit.host_scalars import ScalarReader
from ckptcheck.live.refit.observations import TrialObservations
from ckptcheck.live.refit.trace import Key
from ckptcheck.live.runtime.engines.base import Engine, HostScalars, TensorDigests


class EngineState:
    """The tensors and the numbers of the engines of one trial, as far as they are to be compared."""

    def __init__(self) -> None:
        self._scratch: frozenset[Key] = frozenset()
        self._scalars = ScalarReader()

    def digest_tensors(self, engine: Engine) -> TensorDigests:
        """Digest the tensors of an engine; scratch memory is left out as soon as it is known."""
        return {key: entry for key, entry in engine.digest_tensors().items() if key not in self._scratch}

    def read_scalars(self, engine: Engine) -> HostScalars:
        """Read the numbers that an engine keeps on the host, without those that a forward pass changes."""
        return self._scalars.read(engine)

    def find_scratch(self, engine: Engine, sequence: Sequence[int], observations: TrialObservations) -> None:
        """Find the tensors and numbers that a forward pass changes: those are no weights, and nothing is to be compared of them.

        Only derived tensors can be scratch: a parameter or a buffer that a forward pass changes is a fault. sequence: tokens that
        the engine scores. observations: they lose what is scratch, and get the numbers of the cold load.
        """
        engine.score([sequence], decode=1)
        manifest, scalars = engine.digest_tensors(), self._scalars.read(engine)
        # of another length, so that a number that belongs to a request moves too
        engine.score([sequence[: len(sequence) // 2 + 1]], decode=1)
        self._scalars.leave_out_moving(scalars, engine.read_scalars())
        observations.cold_scalars = self._scalars.read(engine)
        cold = observations.cold_manifest
        self._scratch = frozenset(
            key
            for key, entry in manifest.items()
            if entry.kind == "derived" and key in cold and cold[key].digest != entry.digest
        )
        observations.cold_manifest = {key: entry for key, entry in cold.items() if key not in self._scratch}
