"""Adds up, block by block, what the gap is made of. Sums are of float64, in the order of the file, so that they repeat."""

from __future__ import annotations

from math import inf, sqrt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckptcheck.metrics.gap import Gap, Place
    from ckptcheck.rollouts.rollouts import Block, Rollouts

MOST_BINS = 64
LARGEST = 3.4e38
"""What a float32 holds: percentiles are interpolated, which infinity is not."""


class Sums:
    """What has been added up so far. swapped: the tokens were drawn from the trainer."""

    def __init__(self, rollouts: Rollouts, *, swapped: bool) -> None:
        import numpy as np

        self._rollouts, self._swapped = rollouts, swapped
        self.tokens = self._broken = 0
        self._of: dict[str, float] = {}
        self._max = {"abs": 0.0, "prob": 0.0}
        self._kept: list[NDArray[Any]] = []
        number = rollouts.number
        self._counts = np.zeros(number, np.int64)
        self._abs, self._error = np.zeros(number), np.zeros(number)
        self._bins = np.zeros((3, MOST_BINS))
        self._worst: list[Place] = []

    def add(self, block: Block, one: str, other: str) -> None:
        """Add a block."""
        import numpy as np

        at = np.flatnonzero(block.mask)
        q, p = (block.column(name)[at].astype(np.float64) for name in (one, other))
        finite = np.isfinite(q) & np.isfinite(p)
        if not finite.all():
            self._broken += int(len(finite) - finite.sum())
            at, q, p = at[finite], q[finite], p[finite]
        if not len(at):
            return
        with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
            r = p - q
            apart = np.abs(r)
            error = self._add(q, p, r)
            self._by_place(block, at, apart, r, error)
            self._kept.append(np.minimum(apart, LARGEST).astype(np.float32))
        self.tokens += len(at)
        self._max["abs"] = max(self._max["abs"], float(apart.max()))
        self._note_worst(block, at, q, p, apart)

    def _add(self, q: NDArray[Any], p: NDArray[Any], r: NDArray[Any]) -> NDArray[Any]:
        """Add what is summed over tokens; return exp|r|."""
        import numpy as np

        from ckptcheck.metrics.gap import CLIP, ESS_BOUND

        log = -r if self._swapped else r
        rho = np.exp(log)
        error = np.maximum(rho, 1 / rho)
        weight = np.clip(rho, 1 / ESS_BOUND, ESS_BOUND)
        # 1 - e^x instead of e^x: correlation does not change, and near-certain tokens do not cancel each other out
        u, v = 1 - np.exp(q), 1 - np.exp(p)
        distance = np.abs(u - v)
        self._max["prob"] = max(self._max["prob"], float(distance.max()))
        sums = {
            "q": q, "p": p, "log": log, "k3": np.expm1(log) - log, "rho": rho, "weight": weight, "prob": distance, "u": u, "v": v,
        }  # fmt: skip
        products = {
            "square": (log, log), "rho2": (rho, rho), "weight2": (weight, weight), "prob2": (distance, distance),
            "uu": (u, u), "vv": (v, v), "uv": (u, v),
        }  # fmt: skip
        for name, values in sums.items():
            self._of[name] = self._of.get(name, 0.0) + float(values.sum())
        clipped = np.count_nonzero(rho > 1 + CLIP) + np.count_nonzero(rho < 1 - CLIP)
        self._of["clipped"] = self._of.get("clipped", 0.0) + clipped
        for name, (
            one,
            other,
        ) in products.items():  # einsum makes no copy, and unlike dot it does not depend on threads
            self._of[name] = self._of.get(name, 0.0) + float(np.einsum("i,i->", one, other))
        return np.asarray(error)

    def _by_place(
        self, block: Block, at: NDArray[Any], apart: NDArray[Any], r: NDArray[Any], error: NDArray[Any]
    ) -> None:
        """Add per sequence, and per power of two of the place in the response.

        Tokens of one sequence and one power follow each other: such runs are summed first, and runs are few.
        """
        import numpy as np

        owners = block.owners[at]
        place = np.maximum(block.positions[at] - block.rollouts.prompts[owners], 0)
        bins = np.frexp(place)[1]  # 0, 1, 2-3, 4-7, …
        begins = np.flatnonzero(np.concatenate([[True], (owners[1:] != owners[:-1]) | (bins[1:] != bins[:-1])]))
        counts = np.diff(begins, append=len(at))
        summed = [np.add.reduceat(values, begins) for values in (apart, r, error)]
        owners, bins = owners[begins] - block.first, bins[begins]
        number, part = block.last - block.first, slice(block.first, block.last)
        self._counts[part] = np.bincount(owners, counts, number)
        self._abs[part] = np.bincount(owners, summed[0], number)
        self._error[part] = np.bincount(owners, summed[2], number)
        for row, weights in enumerate((counts, summed[0], summed[1])):
            self._bins[row] += np.bincount(bins, weights, MOST_BINS)

    def _note_worst(
        self, block: Block, at: NDArray[Any], q: NDArray[Any], p: NDArray[Any], apart: NDArray[Any]
    ) -> None:
        import numpy as np

        from ckptcheck.metrics.gap import WORST, Place

        if len(self._worst) == WORST and float(apart.max()) <= self._worst[-1].apart:
            return
        # ties at the edge go to the earlier token, as everywhere: a report has to repeat
        edge = np.partition(apart, -WORST)[-WORST] if len(apart) > WORST else 0.0
        for index in np.flatnonzero(apart >= edge)[: 10 * WORST].tolist():
            where = int(at[index])
            token = int(block.column("tokens")[where])
            place = Place(
                int(block.owners[where]), int(block.positions[where]), token, float(q[index]), float(p[index])
            )
            self._worst.append(place)
        self._worst = sorted(self._worst, key=lambda place: -place.apart)[:WORST]

    def gap(self) -> Gap:
        """Make the numbers of the sums. There has to be a token."""
        import numpy as np

        from ckptcheck.metrics.gap import PERCENTILES, Gap

        number = self.tokens
        mean = {name: value / number for name, value in self._of.items()}
        mean |= {"abs": float(self._abs.sum()) / number, "error": float(self._error.sum()) / number}
        apart = np.concatenate(self._kept)
        quantiles = np.percentile(apart, PERCENTILES, overwrite_input=True).tolist()
        with np.errstate(invalid="ignore", divide="ignore"):
            sequence_abs, sequence_error = self._abs / self._counts, self._error / self._counts
        compared = self._counts > 0
        filled = np.flatnonzero(self._bins[0])
        counts, sums, signed = self._bins[:, filled]
        return Gap(
            tokens=number,
            sequences=int(compared.sum()),
            broken=self._broken,
            mult_prob_error=mean["error"],
            k1=-mean["log"],
            k2=mean["square"] / 2,
            k3=mean["k3"],
            ratio=mean["rho"],
            clipped=mean["clipped"],
            chi2=mean["rho2"] - 1,
            ess=mean["weight"] * mean["weight"] / mean["weight2"],
            abs_mean=mean["abs"],
            abs_max=self._max["abs"],
            abs_sequence_mean=float(sequence_abs[compared].mean()),
            percentiles=dict(zip(PERCENTILES, quantiles, strict=True)),
            prob_diff_mean=mean["prob"],
            prob_diff_max=self._max["prob"],
            prob_diff_std=sqrt(max(0.0, mean["prob2"] - mean["prob"] * mean["prob"])) if mean["prob2"] < inf else inf,
            pearson=_pearson(mean),
            engine_mean=mean["q"],
            trainer_mean=mean["p"],
            sampled_by="trainer" if self._swapped else "engine",
            sequence_tokens=self._counts,
            sequence_abs=sequence_abs,
            sequence_error=sequence_error,
            profile=tuple(
                (0 if not bin_ else 1 << (bin_ - 1), int(count), total / count, r / count)
                for bin_, count, total, r in zip(
                    filled.tolist(), counts.tolist(), sums.tolist(), signed.tolist(), strict=True
                )
            ),
            worst=tuple(self._worst),
        )


def _pearson(mean: dict[str, float]) -> float | None:
    # u * u and not u ** 2: a float's power of two too large is an exception, its product is infinite
    first, second = mean["uu"] - mean["u"] * mean["u"], mean["vv"] - mean["v"] * mean["v"]
    if not (1e-18 < first < inf and 1e-18 < second < inf):
        return None
    return max(-1.0, min(1.0, (mean["uv"] - mean["u"] * mean["v"]) / (sqrt(first) * sqrt(second))))
