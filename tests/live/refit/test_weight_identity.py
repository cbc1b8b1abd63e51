"""A trial names the weights of both sides by their content: as `ckptcheck identity` names the checkpoint that the trainer saves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcheck import identity
from ckptcheck.errors import EvidenceError
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.refit import trial_syncs
from ckptcheck.live.refit.expert_slots import ExpertMove
from ckptcheck.live.refit.recording import append_to_record
from ckptcheck.live.refit.weight_identity import identify_engine, identify_trainer, list_weight_parts
from ckptcheck.live.runtime.engines.base import TensorDigest, WeightPart
from ckptcheck.live.runtime.trainers.base import ShardDigest, Weight
from ckptcheck.runs.history.record import read_record
from ckptcheck.values.shard_digest import sum_shard
from tests.doubles.fake_engine import FakeEngine
from tests.factories.identities import list_differences
from tests.factories.refit_cases import make_trial_state, run_trial_case

OUT = "model.layers.1.self_attn.o_proj.weight"
RULES = [rule for rule in rule_loader.load_rules() if rule.on == "refit"]


@pytest.mark.parametrize("table", [{}, {"ranks": 2}, {"trainer": {"megatron": True}}, {"draft": True}], ids=str)
def test_both_sides_have_the_identity_of_what_the_trainer_saves(table: dict[str, Any], tmp_path: Path) -> None:
    trace = run_trial_case(table, tmp_path / "trial")
    saved = {step: identity(tmp_path / f"trial/step{step}").identity for step in (0, 1)}
    assert trace.trainer_identities == saved
    assert trace.engine_identities == {0: saved[0], 1: saved[0], 2: saved[1], 3: saved[1]}
    report = run_rules(trace, RULES)
    assert report.identities == {"trainer": saved[1], "engine": saved[1]}
    (section,) = (each for each in report.sections if each.title == "identity of the weights")
    assert section.rows == ((1, 0, saved[0], saved[0]), (2, 1, saved[1], saved[1]), (3, 1, saved[1], saved[1]))
    assert section.brief == ("after 3 syncs the engine holds the trainer's set of weights, named by its content",)
    assert json.loads(json.dumps(report.to_dict()))["identity"] == {"trainer": saved[1], "engine": saved[1]}
    append_to_record(trace, tmp_path / "record.jsonl")
    syncs, _ = read_record(tmp_path / "record.jsonl")
    assert [(sync.identity, sync.held_identity) for sync in syncs] == [(saved[step], saved[step]) for step in (0, 1, 1)]


def test_a_tensor_that_the_engine_keeps_makes_another_set(tmp_path: Path) -> None:
    trace = run_trial_case({"faults": [{"kind": "stale", "name": OUT}]}, tmp_path / "trial")
    report = run_rules(trace, RULES)
    assert report.identities["trainer"] != report.identities["engine"]
    (section,) = (each for each in report.sections if each.title == "identity of the weights")
    assert section.brief == ("after sync 2, 3 the engine holds another set of weights than the trainer",)
    # one of two ranks
    trace = run_trial_case({"faults": [{"kind": "rank", "name": OUT}], "ranks": 2}, tmp_path / "rank")
    assert trace.identity_gaps == {"engine": f"its ranks hold different copies of {OUT}"}
    assert "engine" not in trace.identities


def test_an_engine_that_stores_weights_otherwise_has_no_identity(tmp_path: Path) -> None:
    trace = run_trial_case({"empty": [OUT]}, tmp_path / "empty")
    assert trace.identity_gaps == {"engine": f"it does not hold all of {OUT} as plain elements"}
    (section,) = (each for each in trace.sections if each.title == "identity of the weights")
    assert section.brief == (
        f"the engine's weights have no identity to compare: it does not hold all of {OUT} as plain elements",
    )
    assert trace.identities.keys() == {"trainer"}
    trace = run_trial_case({"trainer": {"dtype": "BF16"}}, tmp_path / "dtype")
    assert "engine" not in trace.identities


def test_what_was_sent_has_no_identity_where_the_export_is_not_what_the_ranks_hold(tmp_path: Path) -> None:
    trace = run_trial_case({"trainer": {"exports": "other", "since": 1}}, tmp_path / "trial")
    assert trace.trainer_identities.keys() == {0, 1}
    append_to_record(trace, tmp_path / "record.jsonl")
    syncs, _ = read_record(tmp_path / "record.jsonl")
    assert [sync.identity is None for sync in syncs] == [False, True, True]


SHAPES: dict[str, tuple[int, ...]] = {
    "model.embed_tokens.weight": (30, 8),
    "model.layers.0.self_attn.q_proj.weight": (8, 8),
    "model.layers.0.self_attn.k_proj.weight": (4, 8),
    "model.layers.0.self_attn.v_proj.weight": (4, 8),
    "model.layers.0.self_attn.o_proj.weight": (8, 8),
    "model.layers.0.mlp.experts.0.gate_proj.weight": (12, 8),
    "model.layers.0.mlp.experts.0.up_proj.weight": (12, 8),
    "model.layers.0.mlp.experts.0.down_proj.weight": (8, 12),
    "model.layers.0.mlp.experts.1.gate_proj.weight": (12, 8),
    "model.layers.0.mlp.experts.1.up_proj.weight": (12, 8),
    "model.layers.0.mlp.experts.1.down_proj.weight": (8, 12),
    "model.norm.weight": (8,),
}


def _hold_sharded(tensors: dict[str, np.ndarray], ranks: int) -> dict[tuple[int, str], np.ndarray]:
    """Return (rank, name) → what a tensor-parallel engine holds: fused, experts stacked, the vocabulary padded to 32 rows."""
    at, held = "model.layers.0", {}
    padded = np.zeros((32, 8), np.float32)
    padded[:30] = tensors["model.embed_tokens.weight"]
    for rank in range(ranks):

        def cut(name: str, axis: int, rank: int = rank) -> np.ndarray:
            return np.split(tensors[f"{at}.{name}.weight"], ranks, axis)[rank]

        experts = [f"mlp.experts.{number}" for number in (0, 1)]
        held |= {
            (rank, "model.embed_tokens.weight"): np.split(padded, ranks)[rank],
            (rank, f"{at}.self_attn.qkv_proj.weight"): np.concatenate(
                [cut(f"self_attn.{part}_proj", 0) for part in "qkv"]
            ),
            (rank, f"{at}.self_attn.o_proj.weight"): cut("self_attn.o_proj", 1),
            (rank, f"{at}.mlp.experts.w13_weight"): np.stack(
                [np.concatenate([cut(f"{each}.gate_proj", 0), cut(f"{each}.up_proj", 0)]) for each in experts]
            ),
            (rank, f"{at}.mlp.experts.w2_weight"): np.stack([cut(f"{each}.down_proj", 1) for each in experts]),
            (rank, "model.norm.weight"): tensors["model.norm.weight"],
        }
    return held


def _sum_part(held: dict[tuple[int, str], np.ndarray], part: WeightPart) -> tuple[int, int]:
    flat = held[part.rank, part.name].reshape(-1)
    if part.pitch:
        values = flat[part.begin : part.begin + part.shape[0] * part.pitch].reshape(-1, part.pitch)[:, : part.shape[1]]
    else:
        values = flat[part.begin : part.begin + int(np.prod(part.shape))].reshape(part.shape)
    return sum_shard(values, part.origin, part.whole)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_tensor_parallel_ranks_add_up_to_the_identity(ranks: int) -> None:
    """No rank has a whole projection; the vocabulary is padded, and at four ranks one has padding only in its last rows."""
    draw = np.random.default_rng(0)
    tensors = {name: draw.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    weights = [Weight(name, shape, "F32") for name, shape in SHAPES.items()]
    shards = [ShardDigest(name, 0, 0, len(value), 0, name, "", "", sum_shard(value)) for name, value in tensors.items()]
    whole = identify_trainer("trainer", shards, weights, None)
    held = _hold_sharded(tensors, ranks)
    digests = {
        key: TensorDigest(key[1], key[0], "parameter", "F32", value.shape, value.nbytes, "", "")
        for key, value in held.items()
    }
    parts = list_weight_parts(digests, weights, None, ranks)
    engine = identify_engine("engine", parts, [_sum_part(held, part) for part in parts], weights, None)
    assert list_differences(whole, engine) == []
    for key in held:
        changed = {place: value.copy() for place, value in held.items()}
        changed[key].reshape(-1).view(np.uint32)[0] ^= 1
        sums = [_sum_part(changed, part) for part in parts]
        if ranks > 1 and key[1] == "model.norm.weight":
            with pytest.raises(EvidenceError, match=r"its ranks hold different copies of model\.norm\.weight"):
                identify_engine("engine", parts, sums, weights, None)
        else:
            assert len(list_differences(whole, identify_engine("engine", parts, sums, weights, None))) == 1


def test_shards_that_miss_a_row_are_no_set() -> None:
    weight = Weight("model.norm.weight", (8,), "F32")
    value = np.arange(8, dtype=np.float32)
    shards = [ShardDigest(weight.name, 0, 0, 4, 0, "", "", "", sum_shard(value[:4], (0,), (8,)))]
    with pytest.raises(EvidenceError, match=r"it does not hold all of model\.norm\.weight"):
        identify_trainer("trainer", shards, [weight], None)


def test_an_engine_that_moved_its_experts_is_not_said_to_hold_another_set() -> None:
    engine: Any = FakeEngine({name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()})
    trial = make_trial_state(weights=tuple(Weight(name, each, "F32") for name, each in SHAPES.items()))
    observed = trial.observed
    observed.cold_manifest = engine.digest_tensors()
    trial_syncs.identify_engine(trial, engine, 0)
    trial_syncs.identify_engine(trial, engine, 1)
    assert observed.engine_identities.keys() == {0, 1}
    observed.expert_move = ExpertMove(3, 8, ())
    trial_syncs.identify_engine(trial, engine, 2)
    assert observed.engine_identities.keys() == {0, 1}
    assert "moved its experts" in observed.identity_gaps["engine"]


def test_an_engine_whose_cold_load_is_another_set_is_not_asked_again() -> None:
    """It keeps a norm plus one, in the same shape and dtype: what its parts come to tells nothing of a sync."""
    tensors = {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}
    engine: Any = FakeEngine(tensors | {"model.norm.weight": tensors["model.norm.weight"] + 1})
    weights = tuple(Weight(name, each, "F32") for name, each in SHAPES.items())
    trial = make_trial_state(weights=weights)
    observed = trial.observed
    observed.cold_manifest = engine.digest_tensors()
    trial_syncs.identify_engine(trial, engine, 0)
    shards = [ShardDigest(name, 0, 0, len(each), 0, name, "", "", sum_shard(each)) for name, each in tensors.items()]
    trial_syncs.identify_trainer(trial, shards, 0)
    assert observed.identity_gaps == {"engine": "its cold load stores weights in another form than the trainer exports"}
    trial_syncs.identify_engine(trial, engine, 1)
    assert observed.engine_identities.keys() == {0}
