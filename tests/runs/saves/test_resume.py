"""What a trainer needs to resume: by the files of its saves, and against transformers' own Trainer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from jobs import launch

import ckptcheck
from ckptcheck.runs.saves.resume import list_lacks, list_step_folders
from ckptcheck.runs.saves.save import Save
from tests.conftest import needs, needs_engine
from tests.factories.saved_runs import (
    draw_moments,
    draw_weights,
    write_rank_files,
    write_torch_file,
    write_trainer_save,
)

TRAINER = [
    "model.safetensors",
    "training_args.bin",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "trainer_state.json",
]
LEFT = ["trainer_state.json", "optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"]
FSDP = [
    "pytorch_model_fsdp_0/.metadata",
    "optimizer_0/.metadata",
    "scheduler.pt",
    "rng_state_0.pth",
    "trainer_state.json",
]
ACCELERATE = ["model.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl"]
OWN = ["model.pt", "optim.pt", "rank_0.pt", "state.json"]
"""A loop of one's own, as the peer `ckpt-chaos` has one."""
DEEPSPEED = ["mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"]
ZERO_3 = ["zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"]
MEGATRON = [".metadata", "common.pt", "metadata.json", "__0_0.distcp"]
VERL = ["actor/model_world_size_1_rank_0.pt", "actor/optim_world_size_1_rank_0.pt", "data.pt"]
NEMO = ["policy/weights/model.safetensors", "policy/optimizer/.metadata", "training_info.json", "train_dataloader.pt"]


def lacks_of(runs: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return save → what it lacks. runs: folder of a step → the files below it."""
    saves = [
        Save(address=name, name=name, strand="*", number=0, files=dict.fromkeys(files, 1))
        for name, files in runs.items()
    ]
    folders = list_step_folders(saves, {}, {})
    return {
        name: [lack.name for lack in lacks]
        for each in folders.values()
        for name, lacks in list_lacks(each).items()
        if lacks
    }


@pytest.mark.parametrize(
    ("folder", "whole", "last", "lacks"),
    [
        ("checkpoint-{}", TRAINER, TRAINER[:5], ["trainer_state.json"]),
        ("checkpoint-{}", TRAINER, TRAINER[:1], LEFT),
        ("checkpoint-{}", TRAINER[:2], TRAINER[:5], ["trainer_state.json"]),
        ("step_{}", ACCELERATE, ACCELERATE[:2], ["scheduler.bin", "random_states_0.pkl"]),
        ("global_step{}", DEEPSPEED, DEEPSPEED[:1], DEEPSPEED[1:]),
        ("global_step{}", ZERO_3, ZERO_3, []),
        ("global_step{}", ZERO_3, ZERO_3[1:], ["mp_rank_00_model_states.pt"]),
        ("iter_{:07}", MEGATRON, [".metadata", "common.pt"], ["metadata.json"]),
        ("iter_{:07}", MEGATRON[1:2], [".metadata", "common.pt"], ["metadata.json"]),
        ("step_{}", MEGATRON[3:], MEGATRON[3:], [".metadata"]),
        ("step_{}", ["model.safetensors", "metadata.json"], ["model.safetensors"], []),
        ("global_step_{}", VERL, VERL[:2], ["data.pt"]),
        ("global_step_{}", VERL, [VERL[0], VERL[2]], [VERL[1]]),
        ("step_{}", NEMO, [NEMO[0], *NEMO[2:]], ["policy/optimizer"]),
        ("checkpoint-{}", [*TRAINER, "global_step10/x_optim_states.pt"], [*TRAINER, "global_step20/x_optim_states.pt"], []),
        ("checkpoint-{}", OWN, OWN[:2], OWN[2:]),
        ("checkpoint-{}", OWN, [OWN[0], "other.json"], []),
        ("checkpoint-{}", OWN, OWN, []),
        ("checkpoint-{}", TRAINER, TRAINER, []),
        ("checkpoint-{}", FSDP, FSDP, []),
        ("checkpoint-{}", TRAINER[:1], TRAINER[:1], []),
        ("checkpoint-{}", ["model.safetensors", "trainer_state.json"], ["model.safetensors", "trainer_state.json"], []),
        ("global_step_{}", VERL, ["actor/model_world_size_2_rank_1.pt", "actor/optim_world_size_2_rank_1.pt", "data.pt"], []),
        ("checkpoint-{}", [*TRAINER, "rng_state_0.pth", "rng_state_1.pth"], [*TRAINER, "rng_state_0.pth"], []),
    ],
)  # fmt: skip
def test_what_the_last_save_lacks(folder: str, whole: list[str], last: list[str], lacks: list[str]) -> None:
    runs = {folder.format(10): whole, folder.format(20): last}
    found = lacks_of(runs).get(folder.format(20), [])
    assert found == lacks


def test_what_the_only_save_of_a_run_lacks() -> None:
    assert lacks_of({"checkpoint-10": TRAINER[:5]}) == {"checkpoint-10": ["trainer_state.json"]}
    assert lacks_of({"checkpoint-10": TRAINER}) == {}
    assert lacks_of({"checkpoint-10": TRAINER[:2]}) == {}, "an export"


def test_files_of_a_step_beside_its_folder_belong_to_it(tmp_path: Path) -> None:
    """verl's data.pt lies above the files of the ranks, slime's state of the data in a folder of its own."""
    for step in (10, 20, 30):
        write_rank_files(tmp_path / "verl", step)
        write_torch_file(tmp_path / f"verl/global_step_{step}/data.pt", {"epoch": 1})
    assert ckptcheck.series(tmp_path / "verl").verdict == "clean"
    (tmp_path / "verl/global_step_30/data.pt").unlink()
    (found,) = ckptcheck.series(tmp_path / "verl").findings
    assert (found.code, found.severity, found.message, found.hint) == (
        "SER010", "warning", "global_step_30 lacks data.pt: verl resumes with the data from its beginning",
        "resume from global_step_20, or wait until the save is written",
    )  # fmt: skip
    for step in (10, 20):
        write_trainer_save(tmp_path / "slime", step).rename(tmp_path / f"slime/iter_{step:07}")
        write_torch_file(tmp_path / f"slime/rollout/global_dataset_state_dict_{step}.pt", {"epoch_id": 0})
    assert ckptcheck.series(tmp_path / "slime").verdict == "clean"
    (tmp_path / "slime/rollout/global_dataset_state_dict_20.pt").unlink()
    assert [finding.message for finding in ckptcheck.series(tmp_path / "slime").findings] == [
        "iter_0000020 lacks rollout/global_dataset_state_dict_*.pt: slime resumes with the data from its beginning"
    ]


def test_folders_within_saves_that_are_named_one_by_one_are_theirs(tmp_path: Path) -> None:
    """FSDP's optimizer is a folder of the save."""
    for step in (10, 20):
        save = write_trainer_save(tmp_path, step)
        (save / "optimizer.pt").unlink()
        (save / "optimizer_0").mkdir()
        (save / "optimizer_0/part").write_bytes(b"1")
    saves = [tmp_path / f"checkpoint-{step}" for step in (10, 20)]
    assert [ckptcheck.series(each).verdict for each in (tmp_path, saves)] == ["clean", "clean"]
    shutil.rmtree(saves[1] / "optimizer_0")
    for each in (tmp_path, saves):
        (found,) = ckptcheck.series(each).findings
        assert found.message.startswith("checkpoint-20 lacks optimizer.pt: transformers' Trainer resumes with a fresh")


def test_a_part_without_weights_is_whole_beside_one_that_has_them(tmp_path: Path) -> None:
    """As transformers' Trainer saves with FSDP: the weights, and the optimizer, in folders of the save."""
    for step in (10, 20, 30):
        save = write_trainer_save(tmp_path, step)
        (save / "optimizer.pt").rename(save / "optimizer.bin")
        (save / "pytorch_model_fsdp_0").mkdir()
        (save / "model.safetensors").rename(save / "pytorch_model_fsdp_0/model.safetensors")
    assert ckptcheck.series(tmp_path).verdict == "clean"
    shutil.rmtree(tmp_path / "checkpoint-30/pytorch_model_fsdp_0")
    (found,) = ckptcheck.series(tmp_path).findings
    assert (found.code, found.file, found.hint) == (
        "SER009", "checkpoint-30", "resume from checkpoint-20 instead, or wait until the save is written"
    )  # fmt: skip


def test_megatrons_saves_within_those_of_nemo_rl_have_its_steps(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        weights = tmp_path / f"run/step_{step}/policy/weights/iter_0000000"
        weights.parent.mkdir(parents=True)
        write_trainer_save(tmp_path, step).rename(weights)
        for name in ("trainer_state.json", "optimizer.pt", "scheduler.pt"):
            (weights / name).unlink()
        write_torch_file(tmp_path / f"run/step_{step}/train_dataloader.pt", {"epoch": 1})
        (tmp_path / f"run/step_{step}/training_info.json").write_text("{}", encoding="utf-8")
    report = ckptcheck.series(tmp_path / "run")
    assert (report.verdict, report.subject) == ("clean", "3 saves · step 10–30 · step_*/policy/weights/iter_*")
    (tmp_path / "run/step_30/train_dataloader.pt").unlink()
    assert [finding.message for finding in ckptcheck.series(tmp_path / "run").findings] == [
        "step_30 lacks train_dataloader.pt: NeMo-RL refuses to resume from it"
    ]


def write_lightning_save(run: Path, step: int, *left_out: str) -> Path:
    """Write the one file of a save as lightning 2.6 does: what other trainers keep in files, it keeps under keys."""
    state = {
        number: {"step": np.array(float(step), "<f4"), "exp_avg": value, "exp_avg_sq": value * value}
        for number, value in enumerate(draw_moments(step).values())
    }
    content = {
        "epoch": 0,
        "global_step": step,
        "pytorch-lightning_version": "2.6.6",
        "state_dict": draw_weights(step),
        "loops": {"fit_loop": {"epoch_progress": {"current": {"completed": 0}}}},
        "callbacks": {},
        "optimizer_states": [{"state": state, "param_groups": [{"lr": 1e-4}]}],
        "lr_schedulers": [{"last_epoch": step}],
    }
    path = run / f"epoch=0-step={step}.ckpt"
    write_torch_file(path, {key: value for key, value in content.items() if key not in left_out})
    return path


def test_each_file_of_lightning_is_a_save(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        path = write_lightning_save(tmp_path, step)
    assert ckptcheck.series(tmp_path).subject == "3 saves · step 10–30 · epoch=*-step=*.ckpt"
    assert ckptcheck.series(tmp_path).verdict == "clean"
    for left_out in ("state_dict", "optimizer_states", "lr_schedulers"):  # without each of them 2.6.6 raises a KeyError
        write_lightning_save(tmp_path, 30, left_out)
        (found,) = ckptcheck.series(tmp_path).findings
        assert left_out in found.message or left_out == "state_dict"
        assert (found.severity, "resume from epoch=0-step=20.ckpt" in (found.hint or "")) == ("error", True)
    path.write_bytes(path.read_bytes()[:500])
    (found,) = ckptcheck.series(tmp_path).findings
    assert (found.code, found.message.partition(": it ")[0]) == (
        "SER009", "epoch=0-step=30.ckpt is not whole: epoch=0-step=30.ckpt cannot be read"
    )  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_own_loop_that_was_killed_at_any_file(ranks: int, tmp_path: Path) -> None:
    """It resumes from a step only where it can read every file: model, optimizer, counters of each rank, and its state."""
    names = ["model.pt", "optim.pt", *(f"rank_{rank}.pt" for rank in range(ranks)), "state.json"]
    for step in (10, 20, 30):
        folder = tmp_path / "run" / f"step_{step}"
        write_torch_file(folder / "model.pt", draw_weights(step))
        write_torch_file(folder / "optim.pt", {"exp_avg": draw_moments(step)})
        for rank in range(ranks):
            write_torch_file(
                folder / f"rank_{rank}.pt", {"rng": np.arange(4, dtype="<f4"), "samples": step * ranks + rank}
            )
        (folder / "state.json").write_text(json.dumps({"global_step": step}), encoding="utf-8")
    assert ckptcheck.series(tmp_path / "run").verdict == "clean"
    last = tmp_path / "run" / "step_30"
    for place, name in enumerate(names):
        later = {each: (last / each).read_bytes() for each in names[place:]}
        for gone, torn in ((names[place:], ""), (names[place + 1 :], name), ([name], ""), ([], name)):
            for each in gone:
                (last / each).unlink()
            if torn:
                (last / torn).write_bytes(later[torn][: len(later[torn]) // 2])
            # a job that goes on with fewer ranks leaves out the last one's file alone, too
            if any(last.iterdir()) and gone != [f"rank_{ranks - 1}.pt"] * (ranks > 1):
                found = ckptcheck.series(tmp_path / "run").findings
                assert len(found) == 1, (gone, torn, found)
                assert found[0].severity in ("error", "warning"), found
                assert "resume from step_20" in (found[0].hint or ""), found
            for each, content in later.items():
                (last / each).write_bytes(content)


@pytest.mark.filterwarnings("ignore")
def test_a_save_of_the_real_lightning_that_was_interrupted(tmp_path: Path) -> None:
    """Held to what Lightning's Trainer then does (`make test-all` installs it)."""
    needs("lightning")
    from tests.runs.saves import lightning_run

    lightning_run.make(tmp_path / "run")
    last = tmp_path / "run/epoch=0-step=12.ckpt"
    assert ckptcheck.series(tmp_path / "run").verdict == "clean"
    whole = last.read_bytes()
    for cut in lightning_run.list_cuts(last):
        last.write_bytes(cut)
        goes_on = lightning_run.resumes(last)
        findings = ckptcheck.series(tmp_path / "run").findings
        assert goes_on == ("error" not in {found.severity for found in findings}), findings
    last.write_bytes(whole)
    assert lightning_run.resumes(last)


@pytest.mark.engine
@pytest.mark.xdist_group("engine")
def test_a_save_of_the_real_trainer_that_was_interrupted_at_any_file(tmp_path: Path) -> None:
    """Each state that a kill leaves behind, and each single file that is missing or torn: held to what the Trainer then does."""
    needs_engine(launch.RECIPES["trainer_saves"])
    assert launch.run("trainer_saves", "make", str(tmp_path / "run"), capture_output=True).returncode == 0
    files = sorted((tmp_path / "run/checkpoint-8").iterdir(), key=lambda file: file.stat().st_mtime_ns)
    assert {file.name for file in files} >= set(TRAINER)
    cut: dict[str, tuple[list[str], str]] = {"whole": ([], "")}
    for place, file in enumerate(files):
        later = [each.name for each in files[place + 1 :]]
        cut |= {
            f"before-{file.name}": ([file.name, *later], ""), f"in-{file.name}": (later, file.name),
            f"without-{file.name}": ([file.name], ""), f"torn-{file.name}": ([], file.name),
        }  # fmt: skip
    for name, (gone, torn) in cut.items():
        shutil.copytree(tmp_path / "run", tmp_path / name)
        last = tmp_path / name / "checkpoint-8"
        for each in gone:
            (last / each).unlink()
        if torn:
            (last / torn).write_bytes((last / torn).read_bytes()[: (last / torn).stat().st_size // 2])
    done = launch.run("trainer_saves", "resume", *(str(tmp_path / name) for name in cut), capture_output=True)
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes = {Path(name).name: each for name, each in json.loads((tmp_path / "outcomes.json").read_text()).items()}
    for name, outcome in outcomes.items():
        findings = ckptcheck.series(tmp_path / name).findings
        said = {finding.severity for finding in findings}
        assert (outcome != "goes on") == ("error" in said), (name, outcome, findings)
        assert len(findings) <= 1, (name, findings)
        assert all("resume from checkpoint-4" in (finding.hint or "") for finding in findings), (name, findings)
    quiet = {
        name
        for name, outcome in outcomes.items()
        if outcome == "goes on" and not ckptcheck.series(tmp_path / name).findings
    }
    needless = {"config.json", "generation_config.json"}
    assert quiet == {"whole", *(f"without-{each}" for each in needless), "torn-generation_config.json"}


@pytest.mark.engine
@pytest.mark.xdist_group("engine")
def test_saves_of_the_real_trainer_without_a_state_are_exports(tmp_path: Path) -> None:
    needs_engine(launch.RECIPES["trainer_saves"])
    done = launch.run("trainer_saves", "make", str(tmp_path / "run"), "model-only", capture_output=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert ckptcheck.series(tmp_path / "run").verdict == "clean"
