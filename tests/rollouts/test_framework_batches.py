"""Batches that the frameworks' own code wrote (fixtures/framework_batches.py, slime_train_dump.py), and their odd forms."""

from __future__ import annotations

import json
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcheck.checkpoint.torch_file import read_torch_file
from ckptcheck.cli.app import build_app
from ckptcheck.errors import CkptcheckError
from ckptcheck.rollouts import Rollouts
from ckptcheck.rollouts.convert import convert
from ckptcheck.rollouts.metrics import compute_metrics
from tests.paths import DATA as TESTS_DATA

DATA = TESTS_DATA / "rollouts"
SKYRL = DATA / "skyrl-0.3.0_global_step_8_training_input.pkl"
SLIME = DATA / "slime-train-624b824.pt"
LENGTHS = [16, 11, 8, 10]


def mean_gap(rollouts: Rollouts) -> float:
    metrics = compute_metrics(rollouts)
    assert metrics is not None
    assert not metrics.broken
    return metrics.abs_mean


@pytest.mark.parametrize(("name", "kind"), [(SKYRL.name, "skyrl"), ("openrlhf-0.11.2.pt", "openrlhf")])
def test_the_same_sequences_in_every_layout(name: str, kind: str) -> None:
    found, detected = convert([DATA / name])
    assert detected == kind
    assert np.diff(found.starts).tolist() == LENGTHS
    assert found.prompt_lengths.tolist() == [6, 4, 5, 2]
    assert found.metadata.left_out == []
    assert found.metadata.unscored == {}
    mask = found.columns["response_mask"]
    for sequence, (prompt, length) in enumerate(zip([6, 4, 5, 2], LENGTHS, strict=True)):
        inside = mask[found.sequence(sequence)].tolist()
        # the second token of each response is not trained
        assert inside == [place >= prompt and place != prompt + 1 for place in range(length)]
    verl, _ = convert([DATA / "verl-0.9.1.pkl"])
    assert verl.prompt_lengths.tolist() == found.prompt_lengths.tolist()
    trainer = found.columns["trainer_logprobs"]
    assert (trainer[mask] < 0).all()
    assert 0.002 < mean_gap(found) < 0.02


def test_skyrl_and_openrlhf_hold_the_same_numbers() -> None:
    one, other = convert([SKYRL])[0], convert([DATA / "openrlhf-0.11.2.pt"])[0]
    assert one.tokens.tolist() == other.tokens.tolist()
    mask = one.columns["response_mask"]
    assert one.columns["engine_logprobs"][mask].tolist() == other.columns["engine_logprobs"][mask].tolist()
    # SkyRL's are stored in bfloat16 here
    assert one.columns["trainer_logprobs"][mask] == pytest.approx(other.columns["trainer_logprobs"][mask], rel=2**-8)
    assert one.columns["rewards"].tolist() == [1.0] * 4  # the row that fills up the batch is none of them
    assert other.columns["rewards"].tolist() == [1.0, 0.0, 0.5, 0.25]
    assert one.metadata.step == 7  # global_step_8: SkyRL counts from 1


def tensor(values: Any, dtype: str) -> dict[str, Any]:
    array = np.asarray(values, dtype)
    return {"format": "numpy", "data": array.tobytes(), "shape": array.shape, "dtype": str(array.dtype)}


class TrainingInputBatch(dict[str, Any]):
    """Pickles as SkyRL's does since c7348d0."""

    def __init__(self, tensors: dict[str, Any], **metadata: Any) -> None:
        super().__init__()
        self.state = {"batch_dict": tensors, "batch_size": 2, "device": None, "metadata": metadata}

    def __reduce__(self) -> Any:
        return _rebuild_tensor_batch, (TrainingInputBatch, self.state)


def _rebuild_tensor_batch(cls: Any, state: Any) -> Any:
    raise AssertionError("a reader runs nothing")


TrainingInputBatch.__module__ = _rebuild_tensor_batch.__module__ = "skyrl.backends.skyrl_train.training_batch"


class OldBatch(dict[str, Any]):
    """Pickles as SkyRL's did before c7348d0: the tensors once as items, and once in the state."""

    state: dict[str, Any]

    def __getstate__(self) -> dict[str, Any]:
        return self.state


OldBatch.__module__, OldBatch.__qualname__ = TrainingInputBatch.__module__, "TrainingInputBatch"


def write_skyrl(path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], **metadata: Any) -> Path:
    """Write a batch of two sequences: tokens 1 2 | 7 8 9 and 3 | 5 6, all padding on the left."""
    module: Any = types.ModuleType("skyrl.backends.skyrl_train.training_batch")
    module._rebuild_tensor_batch, module.TrainingInputBatch = _rebuild_tensor_batch, TrainingInputBatch
    for name in ("skyrl", "skyrl.backends", "skyrl.backends.skyrl_train", module.__name__):
        monkeypatch.setitem(sys.modules, name, module)
    tensors = {
        "sequences": tensor([[1, 2, 7, 8, 9], [0, 0, 3, 5, 6]], "int64"),
        "attention_mask": tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]], "int64"),
        "response_mask": tensor([[1, 1, 1], [0, 1, 1]], "int64"),
        "loss_mask": tensor([[1, 0, 1], [0, 1, 1]], "float32"),
        "rollout_logprobs": tensor([[-1, -2, -3], [0, -4, -5]], "float32"),
        "action_log_probs": tensor([[-1.5, -2, -3], [-9, -4, -5]], "float32"),
    } | changes
    path.write_bytes(pickle.dumps(TrainingInputBatch(tensors, **metadata)))
    return path


def test_skyrl_aligns_every_column_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, kind = convert([write_skyrl(tmp_path / "a.pkl", monkeypatch, {})])
    assert kind == "skyrl"
    assert found.tokens.tolist() == [1, 2, 7, 8, 9, 3, 5, 6]
    assert found.prompt_lengths.tolist() == [2, 1]
    assert found.columns["engine_logprobs"].tolist() == [0, 0, -1, -2, -3, 0, -4, -5]
    assert found.columns["trainer_logprobs"].tolist() == [0, 0, -1.5, -2, -3, -9, -4, -5]
    assert found.columns["response_mask"].tolist() == [False, False, True, False, True, False, True, True]
    assert mean_gap(found) == pytest.approx(0.5 / 4)
    assert found.metadata.step is None


def test_skyrl_of_responses_that_are_padded_on_the_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before b059319 prompts were padded on the left, and responses on the right."""
    changes = {
        "sequences": tensor([[1, 2, 7, 8, 9], [0, 3, 5, 6, 0]], "int64"),
        "attention_mask": tensor([[1, 1, 1, 1, 1], [0, 1, 1, 1, 0]], "int64"),
        "response_mask": tensor([[1, 1, 1], [1, 1, 0]], "int64"),
        "loss_mask": tensor([[1, 0, 1], [1, 1, 0]], "int64"),
        "rollout_logprobs": tensor([[-1, -2, -3], [-4, -5, 0]], "float32"),
        "action_log_probs": tensor([[-1.5, -2, -3], [-4, -5, -9]], "float32"),
    }
    found, _ = convert([write_skyrl(tmp_path / "a.pkl", monkeypatch, changes)])
    assert found.tokens.tolist() == [1, 2, 7, 8, 9, 3, 5, 6]
    assert found.columns["engine_logprobs"].tolist() == [0, 0, -1, -2, -3, 0, -4, -5]
    assert mean_gap(found) == pytest.approx(0.5 / 4)


def test_skyrl_of_a_pickle_that_holds_the_tensors_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    new, _ = convert([write_skyrl(tmp_path / "new.pkl", monkeypatch, {})])
    monkeypatch.setattr(sys.modules[TrainingInputBatch.__module__], "TrainingInputBatch", OldBatch)
    state = read_torch_file(tmp_path / "new.pkl").arguments[1]
    batch = OldBatch(sequences=torch.zeros(2, 5, dtype=torch.long), loss_mask=torch.zeros(2, 3))
    batch.state = state
    (tmp_path / "old.pkl").write_bytes(pickle.dumps(batch))
    old, kind = convert([tmp_path / "old.pkl"])
    assert kind == "skyrl"
    assert old.tokens.tolist() == new.tokens.tolist()
    assert old.columns["engine_logprobs"].tolist() == new.columns["engine_logprobs"].tolist()


def test_skyrl_without_a_forward_pass_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = convert([write_skyrl(tmp_path / "a.pkl", monkeypatch, {"action_log_probs": None}, pad_size=1)])
    assert found.sequence_count == 1
    assert "trainer_logprobs" not in found
    assert found.metadata.unscored["trainer"].startswith("action_log_probs are None")


def test_skyrl_routes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experts = tensor(np.arange(2 * 5 * 3 * 2).reshape(2, 5, 3, 2) % 7, "uint8")
    found, _ = convert([write_skyrl(tmp_path / "a.pkl", monkeypatch, {"rollout_expert_indices": experts})])
    assert found.columns["engine_routing"].shape == (8, 3, 2)
    assert (found.columns["engine_routing"][[4, 7]] == -1).all()  # the last token of a sequence is never fed back
    assert (found.columns["engine_routing"][[0, 3, 6]] >= 0).all()
    captured = tensor([[0, 0, 0, 1, 1], [1, 1, 0, 0, 1]], "bool")
    changes = {"rollout_expert_indices": experts, "router_padding_mask": captured}
    found, _ = convert([write_skyrl(tmp_path / "b.pkl", monkeypatch, changes)])
    assert (found.columns["engine_routing"] == -1).all((1, 2)).tolist() == [0, 0, 0, 1, 1, 0, 0, 1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"rollout_logprobs": tensor([[-1.0, -2.0]] * 2, "float32")},
            r"rollout_logprobs is \[2, 2\], and \[2, 3\] is expected",
        ),
        ({"attention_mask": tensor([[1, 1, 1]] * 2, "int64")}, r"attention_mask is \[2, 3\], and \[2, 5\] is expected"),
        ({"response_mask": tensor([[1] * 9] * 2, "int64")}, r"response_mask is \[2, 9\], and sequences are \[2, 5\]"),
        ({"sequences": None}, "sequences is no table of whole numbers"),
        ({"sequences": {"data": b"12", "dtype": "int64", "shape": (7,)}}, "another layout than skyrl writes"),
    ],
)
def test_a_broken_batch_of_skyrl_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(CkptcheckError, match=said):
        convert([write_skyrl(tmp_path / "a.pkl", monkeypatch, changes)])


def test_slimes_second_format_of_train_data(tmp_path: Path) -> None:
    found, kind = convert([SLIME])
    assert (kind, found.metadata.step) == ("slime-train", 3)
    assert np.diff(found.starts).tolist() == [12, 8, 8, 9, 8]
    assert found.prompt_lengths.tolist() == [4, 3, 6, 2, 5]  # in the order of the rollouts, from two ranks
    assert found.columns["rewards"].tolist() == [0, 1, 0, 1, 0]  # raw ones, and not the normalised
    assert found.columns["finish"].tolist() == [-1, -1, -1, 0, -1]
    assert found.metadata.finish_reasons == ["truncated"]
    assert found.columns["response_mask"][found.sequence(2)].sum() == 0
    assert 0.003 < mean_gap(found) < 0.02
    metrics = compute_metrics(found)
    assert metrics is not None
    assert metrics.tokens == 7 + 4 + 6 + 2


def test_slimes_train_data_of_another_version(tmp_path: Path) -> None:
    sample = {"tokens": [1, 2, 3], "response_lengths": 2, "rollout_log_probs": [-1.0, -2.0], "log_probs": [-1.0, -2.5]}
    content = {"format_version": 2, "rollout_id": 0, "rank": 0, "samples": [sample, 3, sample], "dp_shards": []}
    path = tmp_path / "0.pt"
    path.write_bytes(pickle.dumps(content))
    found, kind = convert([path])
    assert (kind, found.sequence_count) == ("slime-train", 2)
    assert [left.reason for left in found.metadata.left_out] == ["it is no sample: it has no fields"]
    path.write_bytes(pickle.dumps(content | {"format_version": 3}))
    with pytest.raises(CkptcheckError, match="its format version is 3, and 2 is the newest that is known"):
        convert([path])
    columns = {"tokens": [[1, 2, 3]] * 2, "response_lengths": [2] * 2, "log_probs": [[-1.0, -2.0]]}
    path.write_bytes(pickle.dumps({"rollout_id": 0, "rollout_data": columns}))
    with pytest.raises(CkptcheckError, match="it has 1 log_probs for 2 sequences"):
        convert([path])


def test_completions_that_trl_logged_hold_texts(tmp_path: Path) -> None:
    with pytest.raises(CkptcheckError) as refused:
        convert([DATA / "trl-1.16.0_completions_00010.parquet"])
    assert "frameworks log texts: there are no token ids and no logprobs in it" in str(refused.value)
    line = {"step": 1, "prompt": "a", "completion": "b", "accuracy": 1.0, "advantage": 0.5}
    (tmp_path / "x.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(CkptcheckError, match="is a dump of TRL's that holds texts"):
        convert([tmp_path / "x.jsonl"])


@pytest.mark.parametrize(
    "lines",
    [
        [
            {
                "step": ["3", "3"],
                "prompt": ["p", "p"],
                "completion": ["a", "b"],
                "Reward": [1.0, 0.0],
                "advantages": [0.5, -0.5],
            }
        ],
        [
            {"gen_step": 0, "prompt": "p", "completion": "a", "reward": 1.0},
            {"gen_step": 0, "prompt": "p", "completion": "b"},
        ],
    ],
)
def test_completions_that_ms_swift_logged_hold_texts(lines: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "completions.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(CkptcheckError, match="is a dump of ms-swift's that holds texts") as error:
        convert([path])
    assert "GRPOTrainer._prepare_inputs" in str(error.value.hint)


def write_trl(path: Path, **changes: Any) -> Path:
    batch = {
        "prompt_ids": np.array([[1, 2], [0, 3]]),
        "prompt_mask": np.array([[1, 1], [0, 1]]),
        "completion_ids": np.array([[7, 8, 9], [5, 6, 0]]),
        "completion_mask": np.array([[1, 1, 1], [1, 1, 0]]),
        "sampling_per_token_logps": np.array([[-1, -2, -3], [-4, -5, 0]], np.float32),
        "old_per_token_logps": np.array([[-1.5, -2, -3], [-4, -5, -9]], np.float32),
        "advantages": np.array([0.5, -0.5], np.float32),
        "num_items_in_batch": np.array(5),
    } | changes
    path.write_bytes(pickle.dumps(batch))
    return path


def test_batches_of_trl(tmp_path: Path) -> None:
    found, kind = convert([write_trl(tmp_path / "a.pkl")])
    assert (kind, found.metadata.logprobs) == ("trl", "processed")
    assert found.tokens.tolist() == [1, 2, 7, 8, 9, 3, 5, 6]
    assert found.prompt_lengths.tolist() == [2, 1]
    assert found.columns["trainer_logprobs"].tolist() == [0, 0, -1.5, -2, -3, 0, -4, -5]
    assert mean_gap(found) == pytest.approx(0.5 / 5)
    assert found.columns["advantages"].tolist() == [0, 0, 0.5, 0.5, 0.5, 0, -0.5, -0.5]
    tools, _ = convert([write_trl(tmp_path / "a.pkl", tool_mask=np.array([[0, 1, 1], [1, 1, 1]]))])
    assert mean_gap(tools) == 0
    # mask_truncated_completions takes a completion out of the sequence
    truncated, _ = convert([write_trl(tmp_path / "a.pkl", completion_mask=np.array([[0, 0, 0], [1, 1, 0]]))])
    assert np.diff(truncated.starts).tolist() == [2, 3]
    with pytest.raises(CkptcheckError, match="there are 2 prompts and 1 completions"):
        convert([write_trl(tmp_path / "a.pkl", completion_ids=np.array([[7, 8, 9]]))])


def write_areal(path: Path, **changes: Any) -> Path:
    entry = {
        "input_ids": np.array([[1, 2, 7, 8, 9], [3, 5, 6, 0, 0]], np.int32),
        "attention_mask": np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool),
        "loss_mask": np.array([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]], np.int32),
        "logprobs": np.array([[0, 0, -1, -2, -3], [0, -4, -5, 0, 0]], np.float32),
        "versions": np.array([[-1, -1, 4, 4, 5], [-1, 5, 5, 0, 0]], np.int32),
        "prox_logp": np.array([[-9, -1.5, -2, -3, -9], [-4, -5, -9, -9, -9]], np.float32),
        "rewards": np.array([1.0, 0.5], np.float32),
    } | changes
    path.write_bytes(pickle.dumps([entry, entry]))
    return path


def test_trajectories_of_areal(tmp_path: Path) -> None:
    found, kind = convert([write_areal(tmp_path / "a.pkl")])
    assert (kind, found.sequence_count) == ("areal", 4)
    assert found.tokens[:8].tolist() == [1, 2, 7, 8, 9, 3, 5, 6]
    assert found.columns["trainer_logprobs"][:8].tolist() == [0, -9, -1.5, -2, -3, 0, -4, -5]
    assert mean_gap(found) == pytest.approx(0.5 / 5)
    assert found.metadata.versions == ["4", "5"]
    assert found.columns["version_spans"][:3].tolist() == [[2, 4, 0], [4, 5, 1], [6, 8, 1]]
    assert found.columns["rewards"].tolist() == [1.0, 0.5, 1.0, 0.5]
    # compute_advantages moves the engine's logprobs and the mask to the place of the token before
    moved = {
        "loss_mask": np.array([[0, 1, 1, 1, 0], [1, 1, 0, 0, 0]], np.float32),
        "logprobs": np.array([[0, -1, -2, -3, 0], [-4, -5, 0, 0, 0]], np.float32),
        "advantages": np.zeros((2, 5), np.float32),
    }
    later, _ = convert([write_areal(tmp_path / "a.pkl", **moved)])
    assert later.columns["engine_logprobs"].tolist() == found.columns["engine_logprobs"].tolist()
    assert later.columns["response_mask"].tolist() == found.columns["response_mask"].tolist()
    line = {"task_id": 1, "head_version": 0, "tail_version": 1, "prompt": "a", "completion": "b", "reward": 1.0}
    (tmp_path / "1.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(CkptcheckError, match="is a dump of AReaL's that holds texts"):
        convert([tmp_path / "1.jsonl"])


def test_zeros_of_nemo_rl_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = {
        "token_ids": [[1, 7, 8]], "token_loss_mask": [[0, 1, 1]], "generation_logprobs": [[0, -0.5, -0.25]],
        "prev_logprobs": [[0.0, 0.0, 0.0]], "input_lengths": [3], "sample_loss_mask": [1.0],
    }  # fmt: skip
    path = tmp_path / "train_data_step1.jsonl"
    path.write_text(json.dumps(line) + "\n")
    build_app()(["parity", "convert", str(path), "-o", str(tmp_path / "out.safetensors")], standalone_mode=False)
    build_app()(["parity", "judge", str(tmp_path / "out.safetensors")], standalone_mode=False)
    said = capsys.readouterr().out
    assert "PAR006 nothing-compared" in said
    assert "prev_logprobs are all 0, as NeMo-RL writes them with force_on_policy_ratio" in said
    assert "there are no logprobs of the trainer, so nothing was compared" in said


@pytest.mark.parametrize("path", [SKYRL, SLIME, DATA / "openrlhf-0.11.2.pt"])
@pytest.mark.slow
def test_changed_bytes_are_a_sentence(tmp_path: Path, path: Path) -> None:
    raw = path.read_bytes()
    draw = np.random.default_rng(0)
    for _ in range(150):
        broken = bytearray(raw)
        for at in draw.integers(0, len(raw), 3):
            broken[at] = int(draw.integers(0, 256))
        (tmp_path / "x.pt").write_bytes(broken)
        try:
            convert([tmp_path / "x.pt"])
        except CkptcheckError:
            continue
