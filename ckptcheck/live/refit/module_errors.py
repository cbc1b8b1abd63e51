"""Finds the first module whose output is wrong: it differs from the engine's cold load, or is too far from float32.

Trainer and engine over the same weights differ by rounding, and a fault can hide below that. A third forward pass of the same
weights in float32, by transformers, measures the error of every module on each side: two sound sides have about the same error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, prod
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.live.runtime.engines.activations import ActivationSource
from ckptcheck.live.runtime.engines.capabilities import find_able

if TYPE_CHECKING:
    from ckptcheck.live.runtime.engines.activations import Activations
    from ckptcheck.live.runtime.engines.base import Engine
    from ckptcheck.live.runtime.trainers.base import Weight

TOLERANCE = 1e-5
"""Difference, relative to the largest number of a module's output, that another run of the same kernels may show."""
TOKENS = 32
"""Tokens of the prompt: enough for rotary embeddings to show, few enough for the outputs of all modules of a large model."""
ROOM = 1.5
"""Memory that has to be free for the float32 pass, in sizes of its weights."""
HEAD, NORM, LAST_NORM = "lm_head", "model.norm", "model.norm of the last token"
RATIO = 3.0
"""Ratio of the two sides' errors beyond which a module does more than round: two sound sides have about the same error."""


StartOracle = Callable[[Path], ActivationSource]
"""Starts transformers in float32 with a checkpoint: a forward pass over the same weights."""


@dataclass(frozen=True)
class ModuleDifference:
    """The first module whose output differs; `module` is "" if all outputs are equal."""

    module: str
    """Its name in the Hugging Face model, ``model.layers.3.self_attn.q_proj``."""
    most: float = 0.0
    """The largest difference of its output."""
    compared: int = 0
    """Modules that both captured."""
    relation: str = ""
    """How its output is related to what it should be, "" where no simple relation holds."""


def find_first_difference(
    engine: Engine, start_cold: Callable[[], Engine], tokens: Sequence[int], folder: Path
) -> ModuleDifference | None:
    """Send one prompt through both, and compare what their modules put out; None if the cold one cannot capture.

    start_cold: starts the engine once more from the weights that it should hold. Raises what the engines raise.
    """
    engine.reset_prefix_cache()
    found = engine.capture_activations(tokens, folder)
    cold = start_cold()
    try:
        able = find_able(cold, "activations")
        return None if able is None else compare_activations(found, able.capture_activations(tokens, folder))
    finally:
        cold.close()


def compare_activations(found: Activations, expected: Activations) -> ModuleDifference:
    """Return the first module, in the order of execution, whose output differs beyond the noise of a repeated run."""
    import numpy as np

    from ckptcheck.compare.activations.relation import describe_relation

    shared = [point for point in expected if point in found and found[point].shape == expected[point].shape]
    for point in shared:
        difference = np.abs(found[point] - expected[point])
        most = float(difference.max(initial=0.0))
        scale = float(np.abs(expected[point]).max(initial=0.0))
        if not most <= TOLERANCE * max(scale, 1e-6):  # NaN too
            return ModuleDifference(point, most, len(shared), describe_relation(point, expected, found) or "")
    return ModuleDifference("", 0.0, len(shared))


@dataclass(frozen=True)
class ModuleErrors:
    """How far the modules of trainer and engine are from the same modules in float32, in the order of execution."""

    step: int
    """The step whose weights both computed with."""
    engine: Mapping[str, float] = field(default_factory=dict)
    """Point → norm of the difference from float32, divided by the norm in float32: of the median token."""
    trainer: Mapping[str, float] = field(default_factory=dict)
    module: str = ""
    """The first point where one side is off, "" where neither is."""
    party: str = ""
    """The side that is off there: "engine" or "trainer"."""
    relation: str = ""
    """How its output is related to what it should be, "" where no simple relation holds."""


def measure_module_errors(
    step: int, engine: Activations, trainer: Activations, oracle: Activations, dtypes: tuple[str, str]
) -> ModuleErrors:
    """Compare both sides with float32. dtypes: what the engine and the trainer compute in."""
    from ckptcheck.compare.activations.points import EPSILON, execution_order, rounding_limit
    from ckptcheck.compare.activations.relation import describe_relation

    sides = {"engine": engine, "trainer": trainer}
    errors = {side: _measure_side(found, oracle) for side, found in sides.items()}
    last_norms = {side: found.pop(LAST_NORM, 0.0) for side, found in errors.items()}
    # two dtypes round differently: then only an error beyond the limit of the wider rounding counts
    share = 16 if dtypes[0] == dtypes[1] else 1
    known = [dtype if dtype in EPSILON else "bfloat16" for dtype in dtypes]
    limits = {side: rounding_limit(dtype) / share for side, dtype in zip(sides, known, strict=True)}
    for name in sorted(errors["engine"].keys() & errors["trainer"].keys(), key=execution_order):
        for side, other in (("engine", "trainer"), ("trainer", "engine")):
            own, others = errors[side][name], errors[other][name]
            # a head of one token inherits the error of that token, which may have gone to other experts
            inherited = last_norms[side] if name == HEAD else 0.0
            is_worse = not own <= RATIO * max(limits[side], inherited, others if isfinite(others) else 0.0)
            if is_worse and (isfinite(others) or isfinite(own)):
                relation = describe_relation(name, oracle, sides[side]) or ""
                return ModuleErrors(step, errors["engine"], errors["trainer"], name, side, relation)
    return ModuleErrors(step, errors["engine"], errors["trainer"])


def _measure_side(found: Activations, oracle: Activations) -> dict[str, float]:
    """Return, for each point, the relative error of the median token: tokens that go to other experts do not count.

    LAST_NORM is the error of the last token before the head.
    """
    import numpy as np

    errors = {}
    for name in (name for name in oracle if name in found and found[name].shape == oracle[name].shape):
        exact = oracle[name].astype(np.float64)
        norms = np.maximum(np.linalg.norm(exact, axis=1), 1e-30)
        by_token = np.linalg.norm(found[name].astype(np.float64) - exact, axis=1) / norms
        errors[name] = float(np.median(by_token)) if np.isfinite(by_token).all() else float("inf")
        if name == NORM:
            errors[LAST_NORM] = float(by_token[-1])
    return errors


def describe_module(errors: ModuleErrors, names: Mapping[str, str]) -> str:
    """Say where one side is off, and by how much. names: of the programs behind "engine" and "trainer"."""
    sides = {"engine": errors.engine, "trainer": errors.trainer}
    other = "trainer" if errors.party == "engine" else "engine"
    own, others = (sides[side][errors.module] for side in (errors.party, other))
    subject = f"the {errors.party} ({names[errors.party]})"
    if not isfinite(own):
        return f"{subject} computes {errors.module} to numbers that are not finite, and the {other} ({names[other]}) does not"
    relation = f": its output is {errors.relation}" if errors.relation else ""
    return (
        f"{subject} computes {errors.module} with a relative error of {own:.2g} against float32, and the {other}"
        f" ({names[other]}) with one of {others:.2g}{relation}"
    )


def has_room_for_oracle(weights: Sequence[Weight]) -> bool:
    """Whether this machine has memory for the same weights once more in float32; True where it does not say."""
    need = sum(4 * prod(weight.shape) for weight in weights)
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return True
    return available > ROOM * need


def capture_three_sides(
    step: int,
    engine: ActivationSource,
    trainer: ActivationSource,
    start_oracle: Callable[[], ActivationSource],
    tokens: Sequence[int],
    folder: Path,
    dtypes: tuple[str, str],
) -> ModuleErrors:
    """Send one prompt through both sides and through float32, and compare. Raises what the sides raise.

    start_oracle: starts transformers in float32 with the weights that both hold. dtypes: of the engine and the trainer.
    """
    prompt = list(tokens)[:TOKENS]
    if hasattr(engine, "reset_prefix_cache"):
        engine.reset_prefix_cache()
    of_engine, of_trainer = (side.capture_activations(prompt, folder) for side in (engine, trainer))
    oracle = start_oracle()
    try:
        exact = oracle.capture_activations(prompt, folder)
    finally:
        oracle.close()
    return measure_module_errors(step, of_engine, of_trainer, exact, dtypes)
