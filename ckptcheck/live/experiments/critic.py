"""A critic in transformers and in megatron-core: the evidence of its rules, and how it is measured."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.heads import explain_head_shape
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.report import Section
from ckptcheck.live.runtime.trainers.critic_layout import CriticLayout
from ckptcheck.text.file_io import real_path
from ckptcheck.text.formatting import format_shape, join_truncated
from ckptcheck.text.observer import SILENT, Observer

MODULE = "ckptcheck_worker.critic"
RTOL = 1e-5
"""By how much values and losses may differ: ROLL's guide (`torch.allclose(…, rtol=1e-5)`), here of the largest value."""
GRADIENT_RTOL = 1e-3
"""By how much the gradient of a weight may differ, of its largest element: gradients in float32 add up rounding over tokens."""
SEED = 3


@dataclass(frozen=True)
class MegatronRun:
    """What a critic computed in megatron-core in one layout."""

    layout: str
    heads: tuple[tuple[str, ...], ...]
    """The parameters of the value head that each rank holds."""
    shapes: tuple[tuple[int, ...], ...]
    """The shape of every output."""
    values: tuple[float, ...]
    loss: float
    gradients: Mapping[str, tuple[float, float, float]] = field(repr=False)
    """Parameter → how far its gradient is from transformers', the largest element there, the largest here."""


@dataclass(frozen=True)
class CriticComparison(EvidenceDefaults):
    """The evidence of ``ckptcheck critic``."""

    target: str
    model_class: str
    """The class of transformers that loaded it."""
    versions: str
    head: tuple[str, ...]
    """The stored tensors of the head; () where the source is a language model."""
    missing: tuple[str, ...]
    """Tensors that the class needs, and the source lacks."""
    unexpected: tuple[str, ...]
    """Tensors of the source that the class does not load."""
    shapes: tuple[tuple[int, ...], ...]
    """The shape of every output in transformers."""
    batch: tuple[int, int]
    """Sequences of a batch, tokens of a sequence."""
    values: tuple[float, ...]
    """Values [B, S − 1] of transformers, where the mask counts them, one batch after the other."""
    loss: float
    without_gradient: tuple[str, ...]
    """Parameters to which no gradient flows in transformers."""
    runs: tuple[MegatronRun, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Layout → why it was not run."""
    kind: str = "critic"

    @property
    def subject(self) -> str:
        """One line: class, versions, head."""
        head = join_truncated(self.head) if self.head else "no head is stored: both sides get the same random one"
        return f"{self.model_class} · {self.versions} · head: {head}"

    @property
    def missing_outside_head(self) -> tuple[str, ...]:
        """The tensors of the trunk that the class needs and the source lacks."""
        return tuple(name for name in self.missing if not name.startswith("score."))

    @cached_property
    def value_gaps(self) -> dict[str, tuple[float, int]]:
        """Layout → the largest distance of its values from transformers', and how many are beyond RTOL of their own size."""
        gaps = {}
        for run in self.runs:
            pairs = list(zip(run.values, self.values, strict=False))
            beyond = sum(not abs(ours - theirs) <= RTOL * abs(theirs) + 1e-8 for ours, theirs in pairs)
            gaps[run.layout] = (max((_distance(*pair) for pair in pairs), default=float("nan")), beyond)
        return gaps

    @property
    def scale(self) -> float:
        """The largest value of transformers, without sign."""
        return max((abs(value) for value in self.values), default=0.0)

    @property
    def sections(self) -> tuple[Section, ...]:
        """The table of layouts, and what a language model lacks to be this critic."""
        rows: list[tuple[Any, ...]] = [
            ("transformers", format_shape(self.shapes[0]), None, None, self.loss, None),
            *(
                (
                    f"Megatron {run.layout}", format_shape(run.shapes[0]), *self.value_gaps[run.layout], run.loss,
                    max((part[0] / part[1] for part in run.gradients.values() if part[1]), default=None),
                )
                for run in self.runs
            ),
        ]  # fmt: skip
        lines = []
        if not self.head and not self.missing_outside_head:
            lines.append(f"language model → critic: only {join_truncated(self.missing)} are new")
        if left := [name for name in self.unexpected if name not in self.head]:
            lines.append(f"not loaded: {join_truncated(left)}")
        if any(name.endswith(".bias") for name in self.head):
            lines.append("the head has a bias, as in both runs here; the head of ROLL's McaValueModel has none")
        lines += [f"{layout} was not run: {reason}" for layout, reason in self.left_out.items()]
        lines.append(
            f"values [{self.batch[0]}, {self.batch[1] - 1}] are the output without its last token; padding and prompts are masked;"
            " context parallelism is not run, nor TRL's and ROLL's own classes"
        )
        columns = ("framework", "output", "largest distance", f"beyond rtol {RTOL:g}", "loss", "gradient, relative")
        return (Section("One critic, two frameworks", columns, tuple(rows)), Section("Notes", lines=tuple(lines)))

    @property
    def unread(self) -> Mapping[str, str]:
        """Always empty: a framework that fails is an error of the command."""
        return {}

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of values compared."""
        return {"files": 0, "tensors": len(self.values), "bytes": 0}


def _distance(ours: float, theirs: float) -> float:
    distance = abs(ours - theirs)
    return distance if distance == distance else float("inf")


def compare_critic(
    source: Checkpoint,
    layouts: Sequence[CriticLayout] | None,
    *,
    length: int = 16,
    python: Path | None = None,
    timeout: float | None = None,
    observer: Observer = SILENT,
) -> CriticComparison:
    """Load a critic, or a language model as one, in transformers and in megatron-core, and compare what they compute.

    Args:
        source: a Hugging Face checkpoint on this disk.
        layouts: None for those of `DEFAULT_LAYOUTS` that the model can be divided into.
        length: tokens of a sequence.
        python: an interpreter with megatron-core and transformers; None for the environment that ckptcheck built.
        timeout: seconds for any one call.
        observer: receives messages.

    Raises:
        CkptcheckError: the source is no critic that both frameworks can hold, or does not fit a layout that was asked for.
        RemoteError, WorkerDied, WorkerTimeout: a framework fails.

    """
    from ckptcheck.live.runtime.environments.interpreter import find_interpreter
    from ckptcheck.live.runtime.process.client import WorkerClient
    from ckptcheck.live.runtime.process.errors import RemoteError
    from ckptcheck.live.runtime.trainers.critic_layout import DEFAULT_LAYOUTS, critic_settings
    from ckptcheck.live.runtime.trainers.megatron_settings import megatron_table
    from ckptcheck.live.runtime.trainers.spawn import PASSIVE_WAIT, tensor_files

    files = tensor_files(source)
    head = _find_head(source)
    chosen, left_out = [], {}
    bias = "bias" in head or not head
    for layout in DEFAULT_LAYOUTS if layouts is None else layouts:
        try:
            chosen.append((layout, critic_settings(source.config, layout, source.target, bias=bias, length=length)))
        except CkptcheckError as error:
            if layouts is not None or layout == DEFAULT_LAYOUTS[0]:
                raise
            if layout.ep == 1:  # else it has no experts
                left_out[str(layout)] = error.message
    assert source.config is not None
    assert source.source.local is not None
    folder = str(real_path(source.source.local))
    batches = max(2, *(layout.pp for layout, _ in chosen))
    measure = {"batches": batches, "length": length, "seed": SEED}
    interpreter = find_interpreter("megatron", python)
    with (
        observer.stages() as begin,
        tempfile.TemporaryDirectory(prefix="ckptcheck-critic-") as scratch,
        WorkerClient(
            interpreter.python, MODULE, name="critic", env=PASSIVE_WAIT | dict(interpreter.variables),
            scratch=(Path(scratch),),
        ) as worker,
    ):  # fmt: skip
        stored = {part: [str(files[name]), name] for part, name in head.items()}
        begin("transformers computes the critic")
        try:
            reference = worker.call(
                "compute_reference", timeout=timeout, folder=folder, head=stored, output=scratch, **measure
            )
        except RemoteError as error:
            raise CkptcheckError(f"transformers does not load {source.target} as a critic: {error}") from error
        runs = []
        trunk = {name: str(path) for name, path in files.items() if name not in head.values()}
        for layout, settings in chosen:
            begin(f"Megatron {layout} computes the critic")
            found = worker.call(
                "compute_megatron", timeout=timeout, settings=settings, table=megatron_table(source.config),
                files=trunk, output=scratch, **measure,
            )  # fmt: skip
            runs.append(
                MegatronRun(
                    str(layout), tuple(map(tuple, found["heads"])), tuple(map(tuple, found["shapes"])),
                    _flatten(found["values"]), found["loss"],
                    {name: tuple(part) for name, part in found["gradients"].items()},
                )
            )  # fmt: skip
    is_stored = set(head.values())
    return CriticComparison(
        os.fspath(source.target), reference["class"],
        f"transformers {reference['version']} ↔ megatron-core {found['version']}",
        tuple(head.values()),
        tuple(name for name in reference["missing"] if name not in is_stored and not (head and name.startswith("score."))),
        tuple(reference["unexpected"]), tuple(map(tuple, reference["shapes"])), (2, length),
        _flatten(reference["values"]), reference["loss"], tuple(reference["without_gradient"]), tuple(runs), left_out,
    )  # fmt: skip


def _flatten(batches: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(value for batch in batches for value in batch)


def _find_head(source: Checkpoint) -> dict[str, str]:
    """Return "weight" and "bias" → the stored name; {} for a language model. Raises CkptcheckError for a head of another shape."""
    from ckptcheck.checkpoint.heads import is_scorer
    from ckptcheck.compare.bridge.hf_names import normalize_hf_name
    from ckptcheck.compare.bridge.model_dimensions import ModelDimensions

    hidden = ModelDimensions.from_config(source.config).hidden
    head = {}
    for part in ("weight", "bias"):
        names = [name for name in source.tensor_to_file if normalize_hf_name(name) == f"score.{part}"]
        if len(names) > 1:
            raise CkptcheckError(f"{source.target} has several heads: {join_truncated(names)}", "keep the trained one")
        if names:
            head[part] = names[0]
    if not head and is_scorer(source.config):
        raise CkptcheckError(f"{source.target} has no head that ckptcheck knows", "ckptcheck scan says what is missing")
    if "weight" in head and hidden is not None:
        found = source.tensors[head["weight"]].shape
        if found != (1, hidden):
            layout = explain_head_shape(found, (1, hidden))
            raise CkptcheckError(
                f"{head['weight']} of {source.target} has the shape {format_shape(found)}, and a critic's is"
                f" {format_shape((1, hidden))}" + (f"; {layout.text}" if layout else ""),
                layout.hint if layout else "a critic computes one value for a token",
            )
    return head
