"""The files of FSDP's ranks: joined, they are the weights that Hugging Face's files hold, on any number of ranks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import ckptcheck
from ckptcheck.errors import EvidenceError
from ckptcheck.runs.saves.find_saves import FoundSave, open_tree
from ckptcheck.runs.saves.rank_shards import plan_joined_weights
from ckptcheck.runs.saves.read_save import read_save
from ckptcheck.runs.saves.save import Save
from ckptcheck.runs.saves.state_files import read_state_file
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.factories.saved_runs import write_rank_files
from tests.paths import ROOT

FSDP = ROOT / "fixtures/fsdp"


def read(folder: Path) -> Save:
    return read_save(FoundSave(str(folder), folder.name, "*", 10, "step"))


@pytest.fixture
def three(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FSDP / "three", tmp_path / "actor"))


@pytest.mark.parametrize("grid", ["three", "two-by-two"])
def test_joined_ranks_hold_the_weights_of_the_export(grid: str) -> None:
    whole, save = ckptcheck.identity(CHECKPOINTS / "tiny-llama"), read(FSDP / grid)
    assert (save.identity, save.naming, save.defects) == (whole.identity, "Hugging Face", [])
    assert {name: each.content for name, each in save.weights.items()} == {
        name: (each.dtype, each.shape, each.digest) for name, each in whole.tensors.items()
    }
    # each file counts, also those that hold what another one holds
    assert {*save.parts} == {path.name for path in (FSDP / grid).glob("[mo]*_world_size_*")}


def test_the_files_of_ranks_have_an_identity(three: Path) -> None:
    assert ckptcheck.identity(three).identity == ckptcheck.identity(CHECKPOINTS / "tiny-llama").identity
    (three / "model_world_size_3_rank_2.pt").write_bytes(b"")
    with pytest.raises(EvidenceError, match=r"has no identity: model_world_size_3_rank_2\.pt cannot be read"):
        ckptcheck.identity(three)
    (three / "model_world_size_3_rank_2.pt").unlink()
    with pytest.raises(EvidenceError, match="has no identity: the files of ranks 2 are missing"):
        ckptcheck.identity(three)


def test_files_that_do_not_say_what_they_share_have_none(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="its files do not say how the ranks share lm_head"):
        ckptcheck.identity(write_rank_files(tmp_path, 10))


def test_moments_are_joined_as_well() -> None:
    states = read(FSDP / "three").states
    weights = ckptcheck.identity(CHECKPOINTS / "tiny-llama").tensors
    assert {name: each.shape for name, each in states.items()} == {
        f"optim_state.{name}.exp_avg": each.shape for name, each in weights.items()
    }


def test_what_is_loaded_on_another_grid_is_what_was_saved(tmp_path: Path) -> None:
    for grid, run in (("three", "run"), ("two-by-two", "resumed")):
        shutil.copytree(FSDP / grid, tmp_path / run / "global_step_10/actor")
    report = ckptcheck.series(tmp_path / "run", resumed=tmp_path / "resumed")
    assert (report.findings, "SER014" in report.passed) == ((), True)


def test_the_name_of_a_file_does_not_decide_which_part_it_is(three: Path) -> None:
    paths = [three / f"model_world_size_3_rank_{rank}.pt" for rank in (0, 1)]
    raw = [path.read_bytes() for path in paths]
    for path, other in zip(paths, reversed(raw), strict=True):
        path.write_bytes(other)
    assert read(three).identity == read(FSDP / "three").identity


def test_a_rank_that_wrote_the_part_of_another_is_a_defect(three: Path) -> None:
    shutil.copy(three / "model_world_size_3_rank_0.pt", three / "model_world_size_3_rank_1.pt")
    save = read(three)
    assert save.identity == ""
    (defect,) = save.defects
    assert defect.startswith("the parts in the files of all ranks do not make up a whole ")


def test_a_rank_that_wrote_nothing_leaves_the_others_apart(three: Path) -> None:
    (three / "model_world_size_3_rank_1.pt").unlink()
    save = read(three)
    assert save.defects == ["model_world_size_3 lacks the file of 1 rank"]
    assert (save.identity, save.naming) == ("", "the files'")
    assert save.weights


def test_the_config_lies_in_a_folder_of_its_own(three: Path) -> None:
    """There verl keeps what says that the head is the embedding."""
    (three / "huggingface").mkdir()
    config = json.loads((CHECKPOINTS / "tiny-llama/config.json").read_text(encoding="utf-8"))
    (three / "huggingface/config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}), encoding="utf-8")
    plan = plan_joined_weights(str(three), open_tree(str(three)).open_folders([""]), {})
    assert plan is not None
    assert plan.side.tied is True


def test_copies_that_differ_are_named(tmp_path: Path) -> None:
    """Two copies of the model, each on two ranks: those that come second are compared with those that come first."""
    run = tmp_path / "run/global_step_10/actor"
    shutil.copytree(FSDP / "two-by-two", run)
    sound = read(run)
    assert sound.unlike_copies == []
    path, other = (run / f"model_world_size_4_rank_{rank}.pt" for rank in (3, 2))
    layout = read_state_file(open_tree(str(run)).open_folders([""]), path.name).tensors["model.norm.weight"]
    raw = bytearray(path.read_bytes())
    raw[layout.chunks[0].offset] ^= 1
    path.write_bytes(raw)
    changed = read(run)
    assert [(each.file, each.of, each.tensors) for each in changed.unlike_copies] == [
        (path.name, "model_world_size_4_rank_1.pt", ("model.norm.weight",))
    ]
    # the first copy is what loaders on another grid take
    assert (changed.identity, changed.defects) == (sound.identity, [])
    report = ckptcheck.series(run.parent.parent)
    assert [each.code for each in report.findings if each.severity == "error"] == ["SER017"]
    with pytest.raises(
        EvidenceError,
        match=r"has no identity: model_world_size_4_rank_3\.pt and model_world_size_4_rank_1\.pt hold different copies of"
        r" model\.norm\.weight",
    ):
        ckptcheck.identity(run)
    # a rank that wrote the part of its neighbour does not make the parts once
    shutil.copy(other, path)
    (defect,) = read(run).defects
    assert defect.startswith("the parts in the files of all ranks do not make up a whole ")
    assert ckptcheck.identity(FSDP / "two-by-two").identity == sound.identity
