"""A watch that names the sets of weights: the identity in its record is that of the checkpoint that the trainer would save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from ckptcheck import CkptcheckError, identity
from ckptcheck.runs.history.history import open_history
from ckptcheck.watch import SyncWarning, Watch, digests, module
from tests.compare.test_identity import join_experts, load_all
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.watch.toy import Engine, Trainer


def save(trainer: Trainer, folder: Path) -> str:
    folder.mkdir()
    save_file(trainer.weights, folder / "model.safetensors")
    return identity(folder).identity


def test_each_sync_has_the_identity_of_what_was_sent(tmp_path: Path) -> None:
    trainer, engine, saved = Trainer(), Engine(), []
    watch = Watch(engine, record=tmp_path / "syncs.jsonl", on="raise", identity=True, every=2)
    for number in range(4):
        with watch(step=number) as sync:
            engine.update(sync.sent(trainer.export()))
        saved.append(save(trainer, tmp_path / str(number)))
        trainer.step()
    syncs = open_history(tmp_path / "syncs.jsonl").syncs
    assert [sync.identity for sync in syncs] == [saved[0], None, saved[2], None]
    assert [sync.held_identity for sync in syncs] == [None] * 4


def test_without_it_nothing_is_summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, engine = Trainer(), Engine()
    watch = Watch(engine, record=tmp_path / "syncs.jsonl", on="raise")
    monkeypatch.setattr("ckptcheck.watch.syncing.SetIdentity.add", lambda *_: pytest.fail("summed"))
    with watch(step=0) as sync:
        engine.update(sync.sent(trainer.export()))
    assert open_history(tmp_path / "syncs.jsonl").syncs[0].identity is None


def test_a_part_of_the_weights_has_no_identity(tmp_path: Path) -> None:
    trainer, engine = Trainer(), Engine()
    watch = Watch(engine, record=tmp_path / "syncs.jsonl", on=lambda _: None, identity=True)
    with watch(step=0) as sync:
        sync.partly("this rank sends its own experts only")
        engine.update(sync.sent(trainer.export()))
    with pytest.warns(SyncWarning, match="it is a digest, or the shard of a rank"), watch(step=1) as sync:
        sync.sent(digests(trainer.export()))
    with watch(step=2) as sync:
        engine.update(sync.sent(trainer.export()))
        with pytest.warns(SyncWarning, match="does not see what is sent"):
            sync.unseen("the rest bypasses it")
    assert [sync.identity for sync in open_history(tmp_path / "syncs.jsonl").syncs] == [None] * 3


def test_an_engine_in_this_process_is_named_too(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    model = torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.Linear(5, 3)).to(torch.bfloat16)
    watch = Watch(module(model), record=tmp_path / "syncs.jsonl", on=lambda _: None, identity=True)
    sent = {name: value.detach() + 1 for name, value in model.named_parameters()}
    for deaf in ((), ("1.bias",)):
        with watch(step=len(deaf)) as sync, torch.no_grad():
            for name, value in sync.sent(sent.items()):
                if name not in deaf:
                    model.get_parameter(name).copy_(value)
        sent = {name: value + 1 for name, value in sent.items()}
    first, second = open_history(tmp_path / "syncs.jsonl").syncs
    assert first.identity == first.held_identity is not None
    assert second.identity is not None
    assert second.held_identity not in (None, first.identity, second.identity)


def test_the_config_of_a_checkpoint_says_how_the_weights_are_called(tmp_path: Path) -> None:
    """A trainer that sends the head beside the embedding that it is tied to; and one that sends experts joined."""
    tied = CHECKPOINTS / "tiny-qwen2-tied"
    tensors = load_all(tied)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]

    def record(like: Path | bool, sent: dict[str, Any]) -> str | None:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        watch = Watch(Engine(), record=path, on=lambda _: None, identity=like)
        with watch(step=0) as sync:
            sync.sent(sent)
        return open_history(path).syncs[0].identity

    assert record(tied, tensors) == identity(tied).identity
    assert record(True, tensors) not in (None, identity(tied).identity)
    experts = CHECKPOINTS / "tiny-qwen3-moe"
    assert record(experts, load_all(experts)) == identity(experts).identity
    assert record(experts, join_experts(load_all(experts))) == identity(experts).identity


@pytest.mark.filterwarnings("ignore:ckptcheck.watch could not:ckptcheck.watch.SyncWarning")
def test_a_checkpoint_that_cannot_be_opened_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tensor asks what it joins; a hub that does not answer would hold up each of them."""
    asked = []

    def fail(name: str) -> None:
        asked.append(name)
        raise CkptcheckError("the hub does not answer")

    monkeypatch.setattr("ckptcheck.checkpoint.open.open_checkpoint", fail)
    trainer, engine = Trainer(), Engine()
    watch = Watch(engine, record=tmp_path / "syncs.jsonl", on=lambda _: None, identity="hf://org/name")
    for number in range(2):
        with watch(step=number) as sync:
            engine.update(sync.sent(trainer.export()))
    assert asked == ["hf://org/name"]
    assert [sync.identity for sync in open_history(tmp_path / "syncs.jsonl").syncs] == [None, None]
