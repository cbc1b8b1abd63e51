"""Files of frameworks: verl's, ROLL's and PipelineRL's are real, slime's are written by torch as slime does, the others are JSON as
its writers spell it.
"""

from __future__ import annotations

import enum
import json
import os
import pickle
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcheck.checkpoint.torch_file import read_torch_file, read_torch_file_bytes
from ckptcheck.cli.app import build_app
from ckptcheck.errors import CkptcheckError
from ckptcheck.rollouts import Rollouts, ScorerInfo, read_rollouts
from ckptcheck.rollouts.convert import convert
from ckptcheck.rollouts.metrics import compute_metrics
from tests.paths import DATA as TESTS_DATA

DATA = TESTS_DATA / "rollouts"


def column(rollouts: Rollouts, name: str, sequence: int) -> list[float]:
    return [round(value, 4) for value in rollouts.columns[name][rollouts.sequence(sequence)].tolist()]


@pytest.mark.parametrize("name", ["verl-0.9.1.pkl", "verl-0.9.1-numpy.pkl", "verl-0.9.1.pt", "tensordict-0.15.3.pt"])
def test_every_form_of_a_verl_batch(name: str) -> None:
    found, kind = convert([DATA / name])
    assert kind == "verl"
    assert found.sequence_count == 4
    assert np.diff(found.starts).tolist() == [16, 11, 8, 10]
    assert found.prompt_lengths.tolist() == [6, 4, 5, 2]
    assert found.columns["response_mask"].sum() == 28
    for side in ("engine", "trainer", "reference"):
        values = found.columns[f"{side}_logprobs"]
        assert (values[found.columns["response_mask"]] < 0).all()
    assert np.array_equal(found.columns["trainer_logprobs"], found.columns["reference_logprobs"])
    assert np.abs(found.columns["trainer_logprobs"] - found.columns["engine_logprobs"]).max() < 0.05
    if name.startswith("verl"):
        assert found.metadata.step == 6  # global_steps is 7, and verl's first step is 1
        assert found.metadata.trainer is not None
        assert found.metadata.trainer.temperature == 1.0


def test_a_dump_of_texts_says_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "7.jsonl").write_text(json.dumps({"input": "a", "output": "b", "gts": "", "score": 1.0, "step": 7}))
    with pytest.raises(CkptcheckError, match="no token ids and no logprobs in it"):
        convert([tmp_path / "7.jsonl"])


def sample(**more: Any) -> dict[str, Any]:
    """What Sample.to_dict of slime gives."""
    base = {
        "group_index": 0, "index": 3, "prompt": "p", "tokens": [1, 2, 3, 4, 5], "response": "r", "response_length": 3,
        "label": None, "reward": 1.0, "loss_mask": None, "weight_versions": ["7"], "rollout_log_probs": [-0.1, -0.2, -0.3],
        "rollout_routed_experts": None, "remove_sample": False, "status": "completed", "metadata": {"nested": [{"a": 1}]},
        "spec_info": {"spec_accept_token_num": 0},
    }  # fmt: skip
    return {**base, **more}


def test_slime_rollouts(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    routing = np.arange(24, dtype=np.int32).reshape(4, 3, 2)
    samples = [
        sample(rollout_routed_experts=routing),
        sample(loss_mask=[1, 0, 1], weight_versions=["7", "8"], reward={"score": 1.0}, rollout_routed_experts=routing),
        sample(remove_sample=True, reward=np.float64(0.5), rollout_routed_experts=routing),
        sample(rollout_log_probs=[-0.1] * 7, rollout_routed_experts=routing),
        sample(rollout_log_probs=None, rollout_routed_experts=routing),
    ]
    torch.save({"rollout_id": 4, "samples": samples}, tmp_path / "4.pt")
    found, kind = convert([tmp_path / "4.pt"])
    assert (kind, found.sequence_count, found.metadata.step) == ("slime", 3, 4)
    assert column(found, "engine_logprobs", 0) == [0, 0, -0.1, -0.2, -0.3]
    assert column(found, "response_mask", 1) == [0, 0, 1, 0, 1]
    assert column(found, "response_mask", 2) == [0, 0, 0, 0, 0]
    assert found.metadata.versions == ["7"]
    assert found.columns["version_spans"].tolist() == [
        [2, 5, 0],
        [12, 15, 0],
    ]  # of two calls it is not known which is where
    assert found.columns["rewards"].tolist()[::2] == [1.0, 0.5]
    assert found.columns["engine_routing"][:4].tolist() == routing.tolist()
    assert found.columns["engine_routing"][4].tolist() == [[-1, -1]] * 3
    assert [each.number for each in found.metadata.left_out] == [3, 4]


def test_replay_columns(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    rows = np.zeros((2, 3, 2), np.int32)
    torch.save({"rollout_id": 4, "samples": [sample(rollout_routed_experts=rows)]}, tmp_path / "5.pt")
    said = "it has 2 rows of expert ids for 5 tokens, and all tokens but the last have one"
    with pytest.raises(CkptcheckError, match=said):
        convert([tmp_path / "5.pt"])
    # two tokens of padding on the left, one on the right, whose rows are zeros, as is that of the last token
    routed = torch.zeros(1, 7, 2, 2, dtype=torch.int16)
    routed[0, 2:5] = torch.arange(12, dtype=torch.int16).reshape(3, 2, 2)
    batch = {
        "prompts": torch.tensor([[0, 0, 5, 6]]), "responses": torch.tensor([[7, 8, 0]]),
        "attention_mask": torch.tensor([[0, 0, 1, 1, 1, 1, 0]]), "rollout_log_probs": torch.tensor([[-0.5, -0.25, 0.0]]),
        "routed_experts": routed,
    }  # fmt: skip
    torch.save(batch, tmp_path / "verl.pt")
    verl, kind = convert([tmp_path / "verl.pt"])
    assert kind == "verl"
    assert verl.columns["engine_routing"].reshape(4, 4).tolist() == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [-1] * 4,
    ]  # fmt: skip


def test_slime_train_data(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    data = {
        "tokens": [torch.tensor([1, 2, 3, 4]), torch.tensor([5, 6, 7])],
        "response_lengths": [2, 1],
        "loss_masks": [torch.tensor([1.0, 0.0]), torch.tensor([1.0])],
        "rollout_log_probs": [torch.tensor([-0.5, -0.25]), torch.tensor([-1.0])],
        "log_probs": [torch.tensor([-0.5, -0.5]), torch.tensor([-2.0], dtype=torch.bfloat16)],
        "ref_log_probs": [torch.tensor([-0.5, -0.5]), torch.tensor([-2.0])],
    }
    torch.save({"rollout_id": 0, "rank": 0, "rollout_data": data}, tmp_path / "0_0.pt")
    found, kind = convert([tmp_path / "0_0.pt", tmp_path / "0_0.pt"])
    assert (kind, found.sequence_count, found.metadata.step) == ("slime-train", 4, 0)
    assert column(found, "trainer_logprobs", 1) == [0, 0, -2.0]
    assert column(found, "response_mask", 0) == [0, 0, 1, 0]


def test_prime_rl_exports(tmp_path: Path) -> None:
    line = {
        "schema_version": 1, "step": 9, "export_step": 8, "rank": 0, "token_ids": [5, 6, 7, 8],
        "loss_mask": [False, False, True, True], "rewards": [None, None, 0.5, 0.5],
        "inference_logprobs": [0.0, 0.0, -0.5, -0.25], "trainer_logprobs": [0.0, -3.0, -0.5, None],
    }  # fmt: skip
    folder = tmp_path / "step_8"
    folder.mkdir()
    for rank in range(2):
        (folder / f"rank_{rank}.jsonl").write_text(json.dumps(line) + "\n" + json.dumps(line) + "\n")
    found, kind = convert([folder])
    assert (kind, found.sequence_count, found.metadata.step) == ("prime-rl", 4, 8)
    assert found.prompt_lengths.tolist() == [2] * 4
    assert column(found, "engine_logprobs", 3) == [0, 0, -0.5, -0.25]
    assert np.isnan(found.columns["trainer_logprobs"][3])  # null stands for what was not finite


@pytest.mark.parametrize(("changed", "said"), [
    ({"schema_version": 2}, "it holds lines of schema 1 and 2"), ({"export_step": 9}, "it holds lines of step 8 and 9"),
])  # fmt: skip
def test_prime_rl_exports_of_two_schemas_or_steps_are_not_one(
    tmp_path: Path, changed: dict[str, int], said: str
) -> None:
    line = {
        "schema_version": 1, "step": 9, "export_step": 8, "token_ids": [5, 6], "loss_mask": [False, True],
        "inference_logprobs": [0.0, -0.5],
    }  # fmt: skip
    path = lines(tmp_path / "rank_0.jsonl", line, line | changed)
    with pytest.raises(CkptcheckError, match=said):
        convert([path])
    lines(path, line, line)
    assert convert([path])[0].sequence_count == 2
    lines(path, line | {"schema_version": 3})
    with pytest.raises(CkptcheckError, match="it is of schema 3, and 1 is the one that is known"):
        convert([path])


def lines(path: Path, *answers: Any) -> Path:
    path.write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    return path


def test_answers_of_vllm(tmp_path: Path) -> None:
    asked = {"model": "org/m", "prompt": "a b", "max_tokens": 2, "temperature": 0.7, "top_p": 1, "logprobs": 0, "n": 2}

    def choice(index: int) -> dict[str, Any]:
        logprobs = {
            "token_logprobs": [-0.5, -0.25 * index],
            "tokens": ["c", "d"],
            "top_logprobs": [{"c": -0.5}, {"d": 0}],
        }
        return {
            "index": index, "text": "cd", "logprobs": logprobs, "finish_reason": "length", "token_ids": [7, 8 + index],
            "prompt_token_ids": [5, 6],
        }  # fmt: skip

    answer = {"object": "text_completion", "model": "org/m", "choices": [choice(0), choice(1)]}
    found, kind = convert([lines(tmp_path / "a.jsonl", {"request": asked, "response": answer}, answer)])
    assert (kind, found.sequence_count, found.metadata.model) == ("vllm", 4, "org/m")
    assert found.tokens[:8].tolist() == [5, 6, 7, 8, 5, 6, 7, 9]
    assert column(found, "engine_logprobs", 1) == [0, 0, -0.5, -0.25]
    assert found.metadata.finish_reasons == ["length"]
    assert found.metadata.sampling.temperature is None  # of one request it is not known
    alone, _ = convert([lines(tmp_path / "b.jsonl", {"request": asked, "response": answer})])
    assert (alone.metadata.sampling.temperature, alone.metadata.sampling.max_tokens) == (0.7, 2)


def test_answers_of_a_chat(tmp_path: Path) -> None:
    content = [{"token": "x", "logprob": -1.5, "bytes": None, "top_logprobs": []}]
    choice = {"message": {"content": "x"}, "logprobs": {"content": content}, "finish_reason": "stop", "token_ids": [9]}
    answer = {"object": "chat.completion", "choices": [choice], "prompt_token_ids": [1, 2, 3]}
    found, kind = convert([lines(tmp_path / "a.json", answer)])
    assert kind == "vllm"
    assert found.tokens.tolist() == [1, 2, 3, 9]
    assert column(found, "engine_logprobs", 0) == [0, 0, 0, -1.5]


def test_ids_spelled_as_tokens(tmp_path: Path) -> None:
    logprobs = {"token_logprobs": [-0.5], "tokens": ["token_id:77"]}
    answer = {"choices": [{"logprobs": logprobs}]}
    found, _ = convert([lines(tmp_path / "a.json", {"request": {"prompt": [4, 5]}, "response": answer})])
    assert found.tokens.tolist() == [4, 5, 77]


def test_answers_of_sglang(tmp_path: Path) -> None:
    told = {
        "prompt_tokens": 2, "weight_version": "12", "finish_reason": {"type": "stop", "matched": 2},
        "input_token_logprobs": [[None, 5, None], [-3.0, 6, None]],
        "output_token_logprobs": [[-0.5, 7, None], [-0.25, 2, None]],
    }  # fmt: skip
    asked = {"input_ids": [5], "sampling_params": {"temperature": 1.0, "max_new_tokens": 3}}
    short = {**told, "input_token_logprobs": [], "prompt_tokens": 1, "finish_reason": {"type": "length", "length": 3}}
    batch = [{"text": "", "output_ids": [7, 2], "meta_info": told}]
    path = lines(
        tmp_path / "a.jsonl",
        {"request": asked, "response": batch},
        {"request": asked, "response": {"meta_info": short}},
    )
    found, kind = convert([path])
    assert (kind, found.sequence_count) == ("sglang", 2)
    assert found.tokens.tolist() == [5, 6, 7, 2, 5, 7, 2]
    assert column(found, "engine_logprobs", 1) == [0, -0.5, -0.25]
    assert found.metadata.versions == ["12"]
    assert found.columns["version_spans"].tolist() == [[2, 4, 0], [5, 7, 0]]
    assert found.metadata.finish_reasons == ["length", "stop"]
    assert (found.metadata.sampling.temperature, found.metadata.sampling.max_tokens) == (1.0, 3)


def test_answers_without_ids_say_what_to_ask_for(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"choices": [{"logprobs": {"token_logprobs": [-1.0], "tokens": ["a"]}}]}))
    with pytest.raises(CkptcheckError, match="the token ids of a prompt are missing: ask for them"):
        convert([path])


class Status(enum.Enum):
    """An enum of a trainer's own."""

    DONE = "done"


class Evil:
    """Runs a command when it is unpickled by others."""

    def __reduce__(self) -> Any:
        return os.system, ("echo executed > executed",)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "file holds nothing"),
        (b"[1, 2", "neither a torch.save file nor JSON"),
        (b"[]", "file holds nothing"),
        (b'{"a": 1, "b": 2}', "no rollout file that ckptcheck knows; it holds a, b"),
        (b'[{"token_ids": [1], "loss_mask": [], "inference_logprobs": []}]', "it has 0 response mask for 1 token"),
        (b'{"meta_info": {}, "output_ids": [1]}', "token ids of a prompt are missing"),
        (b'{"choices": [3]}', r"could be converted: choices\[0\] is a whole number, and an object is expected"),
        (b'{"choices": null}', "could be converted: it has no choices"),
        (b'{"error": {"message": "too long"}}', "could be converted: the server answered with an error: too long"),
        (b"[" * 100_000, "neither a torch.save file nor JSON: it is nested too deeply"),
        (b"[" + b"1" * 5000 + b"]", "nor JSON: a number in it has thousands of digits"),
        (b'{"a": "\xff"}', "nor JSON: it is not UTF-8"),
        (pickle.dumps({"samples": [{"tokens": [3]}], "rollout_id": 1}), "could be converted: it has no response_length"),
        (pickle.dumps({"samples": [{"tokens": 3}], "rollout_id": 1}), "could be converted: its tokens are no list of ids"),
        (pickle.dumps({"samples": [3], "rollout_id": 1}), "could be converted: it is no sample: it has no fields"),
        (pickle.dumps({"rollout_data": {"tokens": [[1]]}}), "another layout than slime-train writes: it has no response_lengths"),
        (pickle.dumps({"samples": [], "rollout_id": 1}), "could be converted: there is none"),
        (pickle.dumps({"responses": 1, "prompts": 2}), "another layout than verl writes: responses is no table of whole numbers"),
        (pickle.dumps({"samples": [Evil()], "rollout_id": 1}), "it names posix.system, which plain data does not need"),
        (pickle.dumps([1])[:-3], "cannot be read"),
        (b"PK\x03\x04rest", "cannot be read"),
    ],
)  # fmt: skip
def test_trouble_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_bytes(content)
    with pytest.raises(CkptcheckError, match=text):
        convert([Path("file")])
    assert not Path("executed").exists()


@pytest.mark.slow
def test_a_broken_batch_is_a_sentence(tmp_path: Path) -> None:
    """Whatever bytes are changed: a sentence or rollouts, never another exception."""
    raw = (DATA / "verl-0.9.1.pkl").read_bytes()
    draw = np.random.default_rng(0)
    path = tmp_path / "x.pkl"
    for _ in range(300):
        broken = bytearray(raw)
        for at in draw.integers(0, len(raw), 3):
            broken[at] = int(draw.integers(0, 256))
        path.write_bytes(broken)
        try:
            convert([path])
        except CkptcheckError:
            continue


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out.safetensors"
    build_app()(["parity", "convert", str(DATA / "verl-0.9.1.pkl"), "-o", str(target), "--step", "3", "--model", "org/m",
         "--logprobs", "processed", "--set", "trainer-temperature=0.7"], standalone_mode=False)  # fmt: skip
    assert capsys.readouterr().err == f"4 sequences of verl, 45 tokens, written to {target}\n"
    found = read_rollouts(target)
    assert (found.metadata.step, found.metadata.model, found.metadata.logprobs) == (3, "org/m", "processed")
    assert found.metadata.trainer is not None
    assert found.metadata.trainer.temperature == 0.7
    build_app()(["parity", "convert", str(target), "-o", str(tmp_path / "out.jsonl")], standalone_mode=False)
    again = read_rollouts(tmp_path / "out.jsonl")
    assert all(np.array_equal(again.columns[name], values) for name, values in found.columns.items())
    back = tmp_path / "back.safetensors"
    build_app()(["parity", "convert", str(tmp_path / "out.jsonl"), "-o", str(back)], standalone_mode=False)
    assert all(np.array_equal(read_rollouts(back).columns[name], values) for name, values in found.columns.items())
    assert read_rollouts(back).metadata == again.metadata
    with pytest.raises(CkptcheckError, match="is a pickle, and vllm writes JSON"):
        build_app()(
            ["parity", "convert", str(DATA / "verl-0.9.1.pkl"), "-o", str(target), "--from", "vllm"],
            standalone_mode=False,
        )


SAID = {"token_logprobs": [-0.5], "tokens": ["c"]}
DONE: dict[str, Any] = {
    "id": "cmpl-1", "object": "text_completion", "model": "org/m", "prompt_token_ids": [5, 6],
    "choices": [{"index": 0, "finish_reason": "stop", "token_ids": [7], "logprobs": SAID}],
}  # fmt: skip


def reasons(rollouts: Rollouts) -> list[tuple[int, str]]:
    return [(each.number, each.reason) for each in rollouts.metadata.left_out]


def test_a_request_that_failed_does_not_cost_the_others(tmp_path: Path) -> None:
    wrong = {**DONE, "prompt_token_ids": [5, "6"]}
    path = lines(tmp_path / "a.jsonl", {"error": {"message": "out\nof memory", "code": 500}}, DONE, {"choices": None},
                 {"request": {"prompt": [1]}, "response": None}, {"object": "error", "message": "no"}, wrong, 3)  # fmt: skip
    path.write_text(path.read_text() + json.dumps({**DONE, "id": "cmpl-2"}) + "\n" + json.dumps(DONE)[:40])
    found, kind = convert([path])
    assert (kind, found.tokens.tolist()) == ("vllm", [5, 6, 7] * 2)
    assert [(number, reason.partition(" Unterminated")[0]) for number, reason in reasons(found)] == [
        (0, "the server answered with an error: out of memory"),
        (2, "it has no choices"),
        (3, "it is no JSON object"),
        (4, "the server answered with an error: no"),
        (5, "prompt_token_ids[1] is text, and a whole number is expected"),
        (6, "it is no JSON object"),
        (8, "it is no JSON:"),
    ]


def test_one_broken_line_or_sample_is_left_out(tmp_path: Path) -> None:
    line = {"token_ids": [5, 6], "loss_mask": [False, True], "inference_logprobs": [0.0, -0.5]}
    path = lines(tmp_path / "a.jsonl", line, {**line, "loss_mask": 3}, {**line, "token_ids": [5, 6.5]}, line)
    found, _ = convert([path])
    assert (found.sequence_count, reasons(found)) == (2, [
        (1, "loss_mask is a whole number, and a list is expected"), (2, "token_ids[1] is a number, and a whole number is expected"),
    ])  # fmt: skip
    samples = [
        sample(),
        sample(tokens="abc"),
        sample(response_length="3"),
        sample(tokens=[[1, 2, 3, 4, 5]]),
        sample(rollout_log_probs=[[-1.0]] * 3),
    ]
    (tmp_path / "4.pt").write_bytes(pickle.dumps({"rollout_id": 4, "samples": samples}))
    found, _ = convert([tmp_path / "4.pt"])
    assert (found.sequence_count, reasons(found)) == (1, [
        (1, "its tokens are no list of ids"), (2, "its response length is no whole number"),
        (3, "its prompt has -2 of its 1 token"), (4, "its engine logprobs are not a number of each token"),
    ])  # fmt: skip


def test_an_empty_response_is_one(tmp_path: Path) -> None:
    choice = {"finish_reason": "stop", "token_ids": [], "logprobs": None}
    found, _ = convert([lines(tmp_path / "a.jsonl", DONE, {**DONE, "choices": [choice]})])
    assert (found.sequence_count, found.metadata.left_out, found.tokens.tolist()) == (2, [], [5, 6, 7, 5, 6])
    assert column(found, "engine_logprobs", 1) == [0, 0]
    none = {"meta_info": {"prompt_tokens": 1, "output_token_logprobs": [], "finish_reason": {"type": "abort"}},
            "prompt_token_ids": [5], "output_ids": []}  # fmt: skip
    assert convert([lines(tmp_path / "b.jsonl", none)])[0].tokens.tolist() == [5]


def test_files_of_two_kinds_or_two_steps_are_refused(tmp_path: Path) -> None:
    lines(tmp_path / "vllm.json", DONE)
    lines(
        tmp_path / "sglang.json", {"meta_info": {"output_token_logprobs": [[-1.0, 7, None]]}, "prompt_token_ids": [5]}
    )
    with pytest.raises(
        CkptcheckError, match=r"sglang.json is of sglang and .*vllm.json is of vllm: they are not rollouts"
    ):
        convert([tmp_path / "vllm.json", tmp_path / "sglang.json"])
    for step in range(2):
        (tmp_path / f"{step}.pt").write_bytes(pickle.dumps({"rollout_id": step, "samples": [sample()]}))
    with pytest.raises(
        CkptcheckError, match=r"0.pt is of step 0 and .*1.pt is of step 1: they are not rollouts of one step"
    ):
        convert([tmp_path / "0.pt", tmp_path / "1.pt"])


def test_what_files_disagree_about_is_not_kept(tmp_path: Path) -> None:
    paths = [
        lines(tmp_path / name, {"request": {"temperature": at, "top_p": 0.5}, "response": {**DONE, "model": model}})
        for name, at, model in (("a.json", 0.7, "org/m"), ("b.json", 1.0, "org/n"))
    ]
    about = convert(paths)[0].metadata
    assert (about.model, about.sampling.temperature, about.sampling.top_p) == ("", None, 0.5)
    assert about.engine is not None
    assert about.engine.name == "vllm"
    assert convert([paths[0], paths[0]])[0].metadata.sampling.temperature == 0.7


def test_a_command_does_not_write_over_what_it_reads(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.json", DONE)
    (tmp_path / "link.json").symlink_to(path)
    (tmp_path / "folder").mkdir()
    inner = lines(tmp_path / "folder" / "b.jsonl", DONE)
    before = path.read_bytes()
    for source, target in ((path, path), (path, tmp_path / "link.json"), (tmp_path / "folder", inner)):
        with pytest.raises(CkptcheckError, match="is what the command reads, and would be overwritten"):
            build_app()(["parity", "convert", str(source), "-o", str(target)], standalone_mode=False)
    for verb in ("record", "score"):
        rest = ["--prompts", str(path)] if verb == "record" else [str(tmp_path)]
        with pytest.raises(CkptcheckError, match="is what the command reads, and would be overwritten"):
            build_app()(
                ["parity", verb, str(tmp_path if verb == "record" else path), *rest, "-o", str(path)],
                standalone_mode=False,
            )
    with pytest.raises(CkptcheckError, match="would be overwritten"):
        build_app()(["parity", "judge", str(path), "-o", str(path)], standalone_mode=False)
    assert path.read_bytes() == inner.read_bytes() == before


def test_no_logprobs_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    choice = {**DONE["choices"][0], "logprobs": None}
    path = lines(tmp_path / "a.json", {**DONE, "choices": [choice]})
    build_app()(["parity", "convert", str(path), "-o", str(tmp_path / "out.jsonl")], standalone_mode=False)
    assert capsys.readouterr().err.endswith("out.jsonl; there are no logprobs in it\n")


def test_roll_batches(tmp_path: Path) -> None:
    found, kind = convert([DATA / "roll-8eb27cc.pkl"])
    assert kind == "roll"
    assert found.metadata.step == 7
    assert found.metadata.trainer == ScorerInfo("roll")
    assert found.starts.tolist() == [0, 12, 20, 28]
    assert found.prompt_lengths.tolist() == [4, 3, 6]
    assert found.columns["rewards"].tolist() == [1.0, 0.0, 0.5]
    metrics = compute_metrics(found)
    assert metrics is not None
    assert metrics.tokens == 15
    assert 0 < metrics.abs_max < 0.04
    assert not metrics.broken
    # a dictionary of the tensors alone, without a recomputation of the trainer's logprobs
    state = read_torch_file(DATA / "roll-8eb27cc.pkl").state
    tensors = read_torch_file_bytes(state[0].state[0]) | {"old_log_probs": np.zeros((3, 11), np.float32)}
    (tmp_path / "tensors.pkl").write_bytes(pickle.dumps(tensors))
    other, kind = convert([tmp_path / "tensors.pkl"])
    assert kind == "roll"
    assert "trainer_logprobs" not in other
    assert other.metadata.trainer is None
    assert other.columns["engine_logprobs"].tolist() == found.columns["engine_logprobs"].tolist()
    (tmp_path / "short.pkl").write_bytes(pickle.dumps(tensors | {"infer_logprobs": np.zeros((3, 12), np.float32)}))
    with pytest.raises(
        CkptcheckError, match=r"infer_logprobs is \[3, 12\], and a logprob of every token but the first is expected"
    ):
        convert([tmp_path / "short.pkl"])
    (tmp_path / "rollout_dump_data.step_7.jsonl").write_text(
        '{"responses": ["a"], "scores": [1.0], "global_step": [7]}\n'
    )
    with pytest.raises(CkptcheckError, match="a dump of ROLL's that holds texts") as refused:
        convert([tmp_path / "rollout_dump_data.step_7.jsonl"])
    assert refused.value.hint == "save the batch: torch.save(dict(batch.batch.items()), PATH)"


def write_nemo_step(path: Path, **changes: Any) -> Path:
    """Write a training step as NeMo-RL's logger does: each line is a batch of one, and so has lists of one."""
    batch: dict[str, list[Any]] = {
        "content": ["a", "b"],
        "rewards": [1.0, 0.0],
        "input_lengths": [5, 4],
        "token_ids": [[1, 2, 7, 8, 9], [1, 7, 8, 9, 0]],
        "token_loss_mask": [[0, 0, 1, 1, 1], [0, 1, 1, 1, 0]],
        "sample_loss_mask": [1.0, 1.0],
        "generation_logprobs": [[0, 0, -0.5, -0.25, -0.75], [0, -0.1, -0.2, -0.3, 0]],
        "prev_logprobs": [[0, -3.0, -0.5, -0.5, -0.75], [0, -0.1, -0.2, -0.4, -9.0]],
    } | changes
    lines = [{name: values[row : row + 1] for name, values in batch.items()} | {"idx": row} for row in range(2)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_nemo_rl_steps(tmp_path: Path) -> None:
    found, kind = convert([write_nemo_step(tmp_path / "train_data_step12.jsonl")])
    assert kind == "nemo-rl"
    assert found.metadata.step == 11
    assert found.tokens.tolist() == [1, 2, 7, 8, 9, 1, 7, 8, 9]
    assert found.prompt_lengths.tolist() == [2, 1]
    assert found.columns["rewards"].tolist() == [1.0, 0.0]
    metrics = compute_metrics(found)
    assert metrics is not None
    # nemo_rl/algorithms/loss/loss_functions.py: masked_mean(exp(|generation - prev| * mask), mask)
    assert metrics.mult_prob_error == pytest.approx((4 + exp(0.25) + exp(0.1)) / 6)
    masked, _ = convert([write_nemo_step(tmp_path / "train_data_step1.jsonl", sample_loss_mask=[0.0, 1.0])])
    assert masked.metadata.step == 0
    assert masked.columns["response_mask"].tolist() == [False] * 6 + [True] * 3
    # with dynamic sampling, `rewards` are of the batch before it was filtered
    filtered, _ = convert([write_nemo_step(tmp_path / "filtered.jsonl", filtered_rewards=[0.25, 0.75])])
    assert filtered.columns["rewards"].tolist() == [0.25, 0.75]
    zeros = [[0.0] * 5] * 2
    on_policy, _ = convert([write_nemo_step(tmp_path / "other.jsonl", prev_logprobs=zeros)])
    assert on_policy.metadata.step is None
    assert "trainer_logprobs" not in on_policy
    broken, _ = convert([write_nemo_step(tmp_path / "broken.jsonl", input_lengths=[5, 9])])
    assert [left.reason for left in broken.metadata.left_out] == ["its length is 9, and it has 5 tokens"]


def test_pipelinerl_streams(tmp_path: Path) -> None:
    found, kind = convert([DATA / "pipelinerl-58d3934.jsonl"])
    assert kind == "pipelinerl"
    assert found.starts.tolist() == [0, 6, 11, 17]
    assert found.prompt_lengths.tolist() == [3, 3, 2]
    assert found.columns["engine_logprobs"].tolist()[3:6] == pytest.approx([-0.1, -0.2, -0.3])
    assert found.columns["rewards"].tolist() == [1.0, 0.0, 0.5]
    assert found.metadata.versions == ["64", "128"]
    assert found.columns["version_spans"].tolist()[-1] == [13, 17, 1]
    # one line alone is a group too, and tokens of a tool between two turns have no label
    turns = {"input_ids": [1, 5, 6, 9, 9, 7, 2], "labels": [-100, 5, 6, -100, -100, 7, 2], "logprobs": [-1, -2, -3, -4]}
    (tmp_path / "0.jsonl").write_text(json.dumps([turns, turns | {"logprobs": [-1]}]))
    other, kind = convert([tmp_path / "0.jsonl"])
    assert kind == "pipelinerl"
    assert other.columns["engine_logprobs"].tolist() == [0, -1, -2, 0, 0, -3, -4]
    assert other.columns["response_mask"].tolist() == [False, True, True, False, False, True, True]
    assert [left.reason for left in other.metadata.left_out] == ["it has 1 logprobs for 4 labels"]
