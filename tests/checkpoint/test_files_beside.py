"""What lies beside weights is copied for a trial as a scan reads it: no link leads out of the folder, and no pipe is waited for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from safetensors.numpy import save_file

from ckptcheck.checkpoint.files_beside import copy_files_beside
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.conformance.weights import write_checkpoint
from ckptcheck.live.experiments.attribution.live_backend import link_checkpoint
from ckptcheck.live.refit.draft import DraftWeights
from ckptcheck.live.refit.source import open_source
from ckptcheck.live.runtime.trainers.remote import RemoteTrainer
from tests.factories.checkpoint_cases import MEGATRON


def save_of_trainer(source: Path, made: Path) -> None:
    host = cast(Any, SimpleNamespace(call=lambda *_, **__: []))
    info = cast(Any, SimpleNamespace(dtype="float32"))
    RemoteTrainer(host, info, (), exchange=cast(Any, None), source=source, config={}).save(made)


def save_of_draft(source: Path, made: Path) -> None:
    made.mkdir()
    exchange = made / "exchange"
    exchange.mkdir()
    draft = DraftWeights(open_checkpoint(str(source)), is_own_model=True, exchange=exchange)
    draft.hold(())
    draft.save(made)


COPIES: dict[str, Callable[[Path, Path], object]] = {
    "a trainer's save": save_of_trainer,
    "a draft's save": save_of_draft,
    "conformance": lambda source, made: write_checkpoint({}, source, made),
    "a run's config": lambda source, made: open_source(str(MEGATRON / "dense"), made, source),
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    found = open_source(str(MEGATRON / "dense"), tmp_path / "usual")
    (folder / "config.json").write_bytes(found.source.read("config.json", 0, 1 << 20))
    save_file({"a.weight": np.ones(4, np.float32)}, folder / "model.safetensors")
    (tmp_path / "secret.json").write_text('"secret"')
    return folder


def find_copies(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.suffix in (".json", ".txt", ".jinja")}


@pytest.mark.parametrize("name", COPIES)
def test_no_link_out_of_the_folder_is_copied(tmp_path: Path, source: Path, name: str) -> None:
    (source / "tokenizer.json").symlink_to("../secret.json")
    with pytest.raises(CkptcheckError, match=r"tokenizer.json is a link to ../secret.json, and was not followed"):
        COPIES[name](source, tmp_path / "made")
    assert not any(path.read_text() == '"secret"' for path in (tmp_path / "made").rglob("*.json"))


@pytest.mark.parametrize("name", COPIES)
def test_a_pipe_is_not_waited_for(tmp_path: Path, source: Path, name: str) -> None:
    os.mkfifo(source / "vocab.json")
    (source / "merges.txt").symlink_to("vocab.json")
    (source / "tokenizer.json").write_text("{}")
    COPIES[name](source, tmp_path / "made")
    assert {"tokenizer.json"} <= find_copies(tmp_path / "made")
    assert not {"vocab.json", "merges.txt"} & find_copies(tmp_path / "made")


@pytest.mark.parametrize("name", COPIES)
def test_a_file_of_a_gigabyte_of_nothing_is_refused(tmp_path: Path, source: Path, name: str) -> None:
    with (source / "tokenizer.json").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(CkptcheckError, match="which no file beside weights has"):
        COPIES[name](source, tmp_path / "made")


def test_links_of_a_snapshot_lead_to_its_blobs(tmp_path: Path) -> None:
    snapshot, blobs, made = tmp_path / "models--a/snapshots/1", tmp_path / "models--a/blobs", tmp_path / "made"
    for folder in (snapshot, blobs, made):
        folder.mkdir(parents=True)
    (blobs / "0a").write_text("{}")
    (snapshot / "tokenizer.json").symlink_to("../../blobs/0a")
    copy_files_beside(snapshot, made, lambda _: True)
    assert (made / "tokenizer.json").read_text() == "{}"
    assert not (made / "tokenizer.json").is_symlink()


def test_a_checkpoint_of_links_has_none_that_leads_out(tmp_path: Path, source: Path) -> None:
    (source / "tokenizer.json").symlink_to("../secret.json")
    made = link_checkpoint(source, source, tmp_path / "made")
    assert sorted(os.listdir(made)) == ["config.json", "model.safetensors"]
