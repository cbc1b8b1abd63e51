"""Fixed sequences that both sides score after a sync: what is recorded, kept and judged, and that a failure ends nothing."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

import ckptcheck
from ckptcheck.errors import CkptcheckError
from ckptcheck.runs.history.history import open_history
from ckptcheck.watch import Probe, SyncWarning, Watch, fixed_sequences, score_with_transformers
from tests.conftest import needs
from tests.watch.toy import Trainer


class Side:
    """Scores every token alike; `off` nats away from the other side."""

    def __init__(self) -> None:
        self.off = 0.0
        self.calls = 0

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        self.calls += 1
        return [[-1.5 + self.off] * (len(tokens) - 1) for tokens in sequences]


def test_sequences_are_the_same_every_time_and_leave_special_tokens_out() -> None:
    sequences = fixed_sequences(50, number=3, length=8, first=10)
    assert sequences == fixed_sequences(50, number=3, length=8, first=10)
    assert {len(tokens) for tokens in sequences} == {8}
    assert min(map(min, sequences)) >= 10
    with pytest.raises(CkptcheckError, match="a vocabulary of 5 has no ids from 5 on"):
        fixed_sequences(5, first=5)


def test_a_gap_is_recorded_kept_and_said(tmp_path: Path) -> None:
    trainer, engine, ours = Trainer(), Side(), Side()
    probe = Probe(fixed_sequences(50), engine.score, ours.score, every=2, keep=tmp_path / "probes")
    watch = Watch(probe=probe, record=tmp_path / "syncs.jsonl")
    for step in range(7):
        engine.off = 0.25 if step == 6 else 1e-7 * step

        def sync(step: int = step) -> None:
            with watch(step=step, version=str(step)) as syncing:
                list(syncing.sent(trainer.export()))
            trainer.step()

        if step == 6:
            with pytest.warns(SyncWarning, match="HIS016 step 6: on 124 fixed tokens the engine is 0.25 nats a token"):
                sync()
        else:
            sync()
    assert engine.calls == ours.calls == 4
    probes = [sync.probe for sync in open_history(tmp_path / "syncs.jsonl").syncs]
    assert [probe is not None for probe in probes] == [True, False, True, False, True, False, True]
    last = probes[-1]
    assert last is not None
    assert (last.mean, last.most, last.tokens) == (pytest.approx(0.25), pytest.approx(0.25), 124)
    report = ckptcheck.judge(Path(last.file))
    # the gap in three metrics, and that a toy scores every token alike; not that random tokens are improbable
    assert {finding.code for finding in report.findings} == {"PAR009", "PAR020"}


def test_logprobs_of_nan_are_a_finding_of_the_job_and_of_its_record(tmp_path: Path) -> None:
    trainer, engine, ours = Trainer(), Side(), Side()
    probe = Probe(fixed_sequences(50), engine.score, ours.score, every=1, keep=tmp_path / "probes")
    watch = Watch(probe=probe, record=tmp_path / "syncs.jsonl")
    list(watch(step=0).sent(trainer.export()))
    engine.off = float("nan")
    with pytest.warns(SyncWarning) as said, watch(step=1, loss=float("nan")) as syncing:
        list(syncing.sent(trainer.export()))
    assert [str(each.message)[:6] for each in said] == ["HIS022", "HIS022"]
    findings = ckptcheck.history(tmp_path / "syncs.jsonl").findings
    assert [(finding.code, finding.message[:7]) for finding in findings] == [("HIS022", "step 1:")] * 2


def test_a_small_gap_is_explained_from_what_the_job_kept(tmp_path: Path) -> None:
    """The floor that is assumed of a model is far above a gap that a job in float32 calls one: its own sound probe is the floor."""
    trainer, engine, ours = Trainer(), Side(), Side()
    probe = Probe(fixed_sequences(50), engine.score, ours.score, every=1, keep=tmp_path / "the probes")
    watch = Watch(probe=probe, record=tmp_path / "syncs.jsonl", on=lambda finding: None)
    for step in range(4):
        engine.off = 2e-4 if step == 3 else 1e-6
        with watch(step=step) as syncing:
            list(syncing.sent(trainer.export()))
        trainer.step()
    (finding,) = ckptcheck.history(tmp_path / "syncs.jsonl").findings
    words = shlex.split(finding.hint or "")
    sound, off = (str(tmp_path / "the probes" / f"probe-step-{step}.safetensors") for step in (2, 3))
    assert words == ["ckptcheck", "parity", "why", off, "SOURCE", "--floor", sound]
    report = ckptcheck.parity_why(off, floor=sound)
    assert [finding.code for finding in report.findings] == ["ATT001"]
    assert not ckptcheck.parity_why(off).findings, "a gap of this size is usual between engines in bfloat16"


@pytest.mark.parametrize("background", [False, True])
def test_a_gap_that_lasts_is_said_once(background: bool, tmp_path: Path) -> None:
    """Also when the watch forgets its first syncs meanwhile."""
    trainer, engine, record, said = Trainer(), Side(), tmp_path / "syncs.jsonl", list[str]()
    watch = Watch(
        probe=Probe(fixed_sequences(50), engine.score, Side().score, every=1),
        record=record,
        on=lambda finding: said.append(f"{finding.code} {finding.message.partition(':')[0]}"),
        background=background,
    )
    for step in range(24):
        engine.off = 0.25 if step in (5, *range(7, 22)) else 1e-7
        with watch(step=step) as syncing:
            list(syncing.sent(trainer.export()))
        trainer.step()
    assert watch.wait(60)
    assert said == ["HIS016 step 5", "HIS016 step 7"]
    findings = [finding.message for finding in ckptcheck.history(record).findings]
    assert len(findings) == 2
    assert findings[1].endswith("it lasts for 15 probes, to step 21, and reaches 0.25")


def test_a_probe_that_fails_is_said_and_the_job_goes_on() -> None:
    def broken(sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        raise RuntimeError("the engine sleeps")

    for engine, said in (
        (broken, "RuntimeError: the engine sleeps"),
        (lambda _: [[0.0]], "the engine did not score every"),
    ):
        watch = Watch(probe=Probe(fixed_sequences(50), engine, Side().score))
        with pytest.warns(SyncWarning, match=f"could not compare the logprobs of both sides: {said}"), watch(step=0):
            pass
        assert watch.last[0].probe is None


def test_a_probe_against_the_floor_of_the_model(tmp_path: Path) -> None:
    floor = tmp_path / "floor.json"
    floor.write_text('{"metrics": {"abs_mean": 0.001}, "format": "ckptcheck-floor/1"}')
    engine = Side()
    engine.off = 0.02
    watch = Watch(probe=Probe(fixed_sequences(50), engine.score, Side().score, floor=floor))
    with pytest.warns(SyncWarning, match=r"HIS016 step 0: .*; the model's floor is 0\.001"), watch(step=0):
        pass


def test_scoring_leaves_a_model_in_training_mode() -> None:
    needs("torch", "transformers")
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        attention_dropout=0.5,
    )
    model = AutoModelForCausalLM.from_config(config).train()
    score = score_with_transformers(model)
    sequences = fixed_sequences(50, number=2, length=5)
    state = torch.get_rng_state()
    assert score(sequences) == score(sequences)
    assert torch.equal(torch.get_rng_state(), state), "the job draws the same numbers as without a probe"
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_first_probes_are_held_against_what_the_dtype_makes() -> None:
    """Else a job that is wrong from the start makes its own measure."""
    engine, ours = Side(), Side()
    engine.off = 0.002
    found: list[str] = []
    probe = Probe(fixed_sequences(50), engine.score, ours.score, every=1, dtype="float32")
    watch = Watch(probe=probe, on=lambda finding: found.append(finding.message))
    for step in range(4):
        with watch(step=step) as sync:
            list(sync.sent(Trainer().export()))
    assert [line.partition(";")[0] for line in found if "fixed tokens" in line] == [
        "step 0: on 124 fixed tokens the engine is 0.002 nats a token from the trainer, at most 0.002"
    ]
    assert [sync.probe.floor for sync in watch.last if sync.probe] == [1e-4, 1e-4, None, None]


def test_what_a_probe_draws_is_a_gap_of_its_own(tmp_path: Path) -> None:
    """The scores agree; the tokens that the engine draws come through a cache of the step before."""
    side, off = Side(), [0.0]
    found: list[str] = []
    probe = Probe(
        fixed_sequences(50), side.score, side.score, every=1, dtype="float32", draw=lambda: ([-1.0 + off[0]], [-1.0])
    )
    watch = Watch(
        probe=probe, record=tmp_path / "syncs.jsonl", on=lambda finding: found.append(finding.message.partition(",")[0])
    )
    for step in range(6):
        off[0] = 0.25 if step >= 4 else 1e-7
        with watch(step=step, loss=float(step)) as sync:
            list(sync.sent(Trainer().export()))
    assert "step 4: ckptcheck/drawn is 0.25" in found
    said = [
        finding.message for finding in ckptcheck.history(tmp_path / "syncs.jsonl").findings if finding.code == "HIS024"
    ]
    assert len(said) == 1
    assert said[0].startswith("step 4: ckptcheck/drawn is 0.25, 2,500,000 times what it was; it shows at 2 steps")


def test_a_probe_leaves_the_random_numbers_of_the_job_alone() -> None:
    torch = pytest.importorskip("torch")

    def draw() -> tuple[list[float], list[float]]:
        return torch.rand(2).tolist(), torch.rand(2).tolist()

    side = Side()
    probe = Probe(fixed_sequences(50), side.score, side.score, draw=draw)
    torch.manual_seed(0)
    expected = torch.rand(3).tolist()
    torch.manual_seed(0)
    probe.measure(0, None)
    assert torch.rand(3).tolist() == expected
