"""verl's own functions compute the same numbers.

The newest wheel of verl is unpacked and not installed, and only the two modules that compute metrics are loaded from it; what they
import and these functions do not call is a stand-in.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcheck.frameworks.verl import rollouts as reader
from ckptcheck.rollouts import Metadata, Rollout, build_rollouts
from ckptcheck.rollouts.metrics import compute_metrics
from ckptcheck.rollouts.metrics.framework_metrics import VERL
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.rollouts import Rollouts
from tests.factories.wheels import download_wheel

pytestmark = pytest.mark.slow
STAND_INS: dict[str, tuple[str, ...]] = {
    "verl": (),
    "verl.protocol": ("DataProto",),
    "verl.trainer": (),
    "verl.trainer.config": (),
    "verl.trainer.config.algorithm": ("RolloutCorrectionConfig",),
    "verl.trainer.ppo": (),
    "verl.utils": (),
    "verl.utils.debug": (),
    "verl.utils.device": ("get_device_name", "get_torch_device"),
    "verl.workers": (),
    "verl.workers.config": (),
    "verl.workers.config.actor": ("PolicyLossConfig",),
    "tensordict": ("TensorDict",),
    "transformers": ("PreTrainedTokenizer",),
}
LENGTHS = (30, 1, 17, 0, 8, 25)
"""Response tokens of the drawn sequences; one has none."""


def load(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load one module of an installed package."""
    spec = importlib.util.spec_from_file_location(name, folder.joinpath(*name.split(".")[1:]).with_suffix(".py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the newest verl, which is not installed: its wheel would bring a package called ``tests``."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("wheel")
    with download_wheel("verl", folder) as wheel:
        wheel.extractall(folder)
    return folder / "verl"


@pytest.fixture
def verl(package: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the two modules: rollout correction, and debug."""
    for name, members in STAND_INS.items():
        module: Any = types.ModuleType(name)
        module.__path__ = []
        for member in members:
            setattr(module, member, type(member, (), {}))
        monkeypatch.setitem(sys.modules, name, module)
    functional = load(package, "verl.utils.torch_functional", monkeypatch)
    sys.modules["verl.utils"].torch_functional = functional  # type: ignore[attr-defined]
    return types.SimpleNamespace(
        correction=load(package, "verl.trainer.ppo.rollout_corr_helper", monkeypatch),
        debug=load(package, "verl.utils.debug.metrics", monkeypatch),
    )


def draw_batch(seed: int, noise: float) -> dict[str, Any]:
    """Draw a batch as verl lays it out: ragged, with tokens of tools, and noise where nothing is trained."""
    import torch

    draw = np.random.default_rng(seed)
    width, longest = 5, max(LENGTHS)
    number = len(LENGTHS)
    attention = np.zeros((number, width + longest), np.int64)
    mask = np.zeros((number, longest), np.int64)
    for row, length in enumerate(LENGTHS):
        attention[row, row % width : width + length] = 1
        mask[row, :length] = draw.random(length) > 0.2
    mask[0, :2], mask[1, 0] = 1, 1
    engine = -draw.exponential(1, mask.shape)
    trainer = engine + noise * draw.standard_normal(mask.shape)
    tables = {
        "prompts": draw.integers(5, 90, (number, width)),
        "responses": draw.integers(5, 90, (number, longest)),
        "attention_mask": attention,
        "response_mask": mask,
        "rollout_log_probs": engine,
        "old_log_probs": trainer,
    }
    return {name: torch.from_numpy(table) for name, table in tables.items()}


def to_rollouts(batch: dict[str, Any]) -> Rollouts:
    sequences, metadata = reader.batch({name: table.numpy() for name, table in batch.items()})
    return build_rollouts(sequences, metadata, double=True)


@pytest.mark.parametrize("noise", [0.002, 0.1, 1.0, 6.0])
@pytest.mark.parametrize("seed", range(3))
def test_every_number_is_verls(verl: Any, seed: int, noise: float) -> None:
    batch = draw_batch(seed, noise)
    theirs = verl.debug.calculate_debug_metrics(types.SimpleNamespace(batch=batch))
    old, rollout, mask = batch["old_log_probs"], batch["rollout_log_probs"], batch["response_mask"]
    _, correction = verl.correction.compute_rollout_correction_weights(old - rollout, mask, "token", 2.0)
    off_policy = verl.correction.compute_offpolicy_metrics(old, rollout, mask)
    theirs |= {f"rollout_corr/{name}": value for name, value in (correction | off_policy).items()}
    found = compute_metrics(to_rollouts(batch))
    assert found is not None
    assert found.tokens == int(mask.sum())
    ours = VERL.numbers(found)
    assert ours.keys() <= theirs.keys()
    for name, value in ours.items():
        assert value == pytest.approx(theirs[name], rel=1e-6, abs=1e-9), (version("verl"), name)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_one_token_has_no_deviation_and_no_correlation(verl: Any) -> None:
    import torch

    batch = draw_batch(0, 0.1)
    batch["response_mask"] = torch.zeros_like(batch["response_mask"])
    batch["response_mask"][1, 0] = 1
    theirs = verl.debug.calculate_debug_metrics(types.SimpleNamespace(batch=batch))
    found = compute_metrics(to_rollouts(batch))
    assert found is not None
    for name in ("training/rollout_probs_diff_std", "training/rollout_actor_probs_pearson_corr"):
        assert np.isnan(theirs[name])
        assert VERL.numbers(found)[name] is None


def test_the_names_are_shown_with_their_version() -> None:
    sequence = Rollout([1, 2, 3], 1, [-1.0, -2.0], [-1.1, -2.0])
    rollouts = build_rollouts([sequence], Metadata(source="verl DataProto"))
    (section,) = (each for each in RolloutEvidence("r", rollouts).sections if each.title == "as verl logs it")
    assert dict(section.rows)["rollout_corr/kl"] == pytest.approx(0.05)
    assert section.lines[0].startswith("as of 0.8.0 to 0.9.1")
    unknown = build_rollouts([sequence])
    assert not [each for each in RolloutEvidence("r", unknown).sections if each.title.startswith("as ")]
