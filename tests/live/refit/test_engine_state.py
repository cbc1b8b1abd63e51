"""Memory that an engine computes in is told from weights by what a forward pass changes, not by its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args

from ckptcheck.live.refit.observations import Observations
from ckptcheck.live.refit.trial_state import TrialState
from ckptcheck.live.runtime.engines.base import Engine, Kind, TensorDigest
from tests.factories.refit_cases import make_trial_state

TENSORS: Mapping[str, Kind] = {
    # names that vLLM and SGLang have, and one that sounds like scratch memory and holds weights
    "topk_indices_buffer": "derived",
    "attn._multi_ctas_kv_counter_buffer": "derived",
    "attn._k_scale_cache": "derived",
    "mlp._workspace_buffer": "derived",
    "attn.w_kc": "derived",
    "attn.rotary.cos_sin_cache": "buffer",
    "norm.weight": "parameter",
}


class ComputingEngine:
    """An engine some of whose tensors and numbers are other after each forward pass."""

    def __init__(self, *moving: str) -> None:
        self.moving, self.passes = moving, 0
        self.lengths: list[int] = []

    def score(self, sequences: Sequence[Sequence[int]], decode: int = 0) -> None:
        self.passes += 1
        self.lengths.append(len(sequences[0]))

    def digest_tensors(self) -> dict[tuple[int, str], TensorDigest]:
        return {
            (0, name): TensorDigest(
                name, 0, kind, "F32", (4,), 16, f"{self.passes if name in self.moving else 0:032x}", ""
            )
            for name, kind in TENSORS.items()
        }

    def read_scalars(self) -> dict[tuple[int, str], float]:
        return {(0, "attn._k_scale_float"): 0.5, (0, "attn.max_seq_len"): float(sum(self.lengths[-1:]))}


def find_scratch(*moving: str) -> tuple[TrialState, Observations, Engine]:
    engine = cast(Engine, ComputingEngine(*moving))
    trial = make_trial_state()
    trial.observed.cold_manifest = trial.digest_tensors(engine)
    assert {name for _, name in trial.observed.cold_manifest} == set(TENSORS)
    trial.find_scratch(engine)
    return trial, trial.observed, engine


def names(digests: Mapping[tuple[int, str], Any]) -> set[str]:
    return {name for _, name in digests}


def test_what_moves_with_a_forward_pass_is_no_weight() -> None:
    scratch = {"topk_indices_buffer", "attn._multi_ctas_kv_counter_buffer", "attn._k_scale_cache"}
    state, observations, engine = find_scratch(*scratch)
    assert names(observations.cold_manifest) == names(state.digest_tensors(engine)) == set(TENSORS) - scratch


def test_what_stands_still_is_compared_whatever_its_name() -> None:
    state, observations, engine = find_scratch()
    assert names(observations.cold_manifest) == names(state.digest_tensors(engine)) == set(TENSORS)


def test_a_parameter_or_a_buffer_that_moves_is_a_fault_and_stays() -> None:
    assert set(TENSORS.values()) == set(get_args(Kind))
    state, observations, engine = find_scratch(*TENSORS)
    left = {name for name, kind in TENSORS.items() if kind != "derived"}
    assert names(observations.cold_manifest) == names(state.digest_tensors(engine)) == left


def test_a_number_of_the_last_request_is_left_out_and_a_scale_is_not() -> None:
    state, observations, engine = find_scratch()
    assert observations.cold_scalars == state.read_scalars(engine) == {(0, "attn._k_scale_float"): 0.5}
