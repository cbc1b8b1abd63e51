"""``ckptcheck parity convert``: takes over the rollouts of a framework, or the answers of an engine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import (
    FROM_ZERO,
    Argument,
    ClipHigh,
    ClipLow,
    Option,
    Paths,
    RolloutOutput,
    Setting,
    Step,
    TrainerVersion,
)
from ckptcheck.verbs.parameter import several, to_path
from ckptcheck.verbs.verb import verb

if TYPE_CHECKING:
    from ckptcheck.rollouts import Rollouts


@verb()
def convert_rollouts(
    sources: Annotated[Paths, Argument("Files of one framework, or a folder of .jsonl files.", metavar="IN...")],
    output: RolloutOutput = None,
    *,
    source: Annotated[
        str | None,
        Option(
            "The framework or engine that wrote them",
            "--from",
            metavar="NAME",
            shown="detected by their content",
            listed="ckptcheck.verbs.rollout_files:list_sources",
        ),
    ] = None,
    model: Annotated[str | None, Option("The model's name, kept with the rollouts.")] = None,
    step: Step = None,
    logprobs: Annotated[
        Literal["raw", "processed", "unknown"] | None, Option("The distribution of the engine's logprobs.")
    ] = None,
    temperature: Annotated[float | None, Option("The engine's sampling temperature.", within=FROM_ZERO)] = None,
    trainer_temperature: Annotated[
        float | None, Setting("What the trainer divided logits by.", within=FROM_ZERO)
    ] = None,
    trainer_version: TrainerVersion = None,
    clip_low: ClipLow = None,
    clip_high: ClipHigh = None,
    sampled_by: Annotated[
        Literal["engine", "trainer"] | None,
        Setting("Who sampled the tokens.", shown="what the file says, else engine"),
    ] = None,
    observer: Observer = SILENT,
) -> "Rollouts":
    """Convert the rollouts that an RL framework saved, or the answers of an engine.

    No pickle is run, no torch is needed, but for an output that ends with .pt, which slime's --load-debug-rollout-data reads; one
    that ends with .jsonl has JSON lines.

    Exit codes: 0 written (a message says what was left out, and the file keeps it for judge), 2 nothing could be converted.
    """
    import msgspec

    from ckptcheck.frameworks.slime.rollout_file import write_slime_file
    from ckptcheck.rollouts import ScorerInfo, write_rollouts
    from ckptcheck.rollouts.columns import SIDES
    from ckptcheck.rollouts.convert import files
    from ckptcheck.text.file_io import require_output_apart
    from ckptcheck.text.formatting import count
    from ckptcheck.verbs.rollout_files import read_rollout_files

    paths = [Path(path) for path in several(sources)]
    if not paths:
        raise CkptcheckError("there is nothing to convert", hint="name a file of rollouts")
    require_output_apart(to_path(output), *files(paths))
    rollouts, kind = read_rollout_files(paths, source)
    metadata = rollouts.metadata
    changes: dict[str, object] = {
        "model": model, "step": step, "logprobs": logprobs, "sampled_by": sampled_by, "clip_low": clip_low,
        "clip_high": clip_high,
    }  # fmt: skip
    if temperature is not None:
        changes["sampling"] = msgspec.structs.replace(metadata.sampling, temperature=temperature)
    version = None if trainer_version is None else str(trainer_version)
    of_trainer = {"temperature": trainer_temperature, "weight_version": version}
    if of_trainer := {name: value for name, value in of_trainer.items() if value is not None}:
        changes["trainer"] = msgspec.structs.replace(metadata.trainer or ScorerInfo(), **of_trainer)
    metadata = msgspec.structs.replace(
        metadata, **{name: value for name, value in changes.items() if value is not None}
    )
    rollouts = rollouts.with_columns(metadata)
    if output is not None:
        if Path(output).suffix == ".pt":
            write_slime_file(rollouts, Path(output))
        else:
            write_rollouts(rollouts, Path(output))
        notes = f", {len(metadata.left_out):,} left out ({metadata.left_out[0].reason})" if metadata.left_out else ""
        sides = [side for side in SIDES if f"{side}_logprobs" in rollouts]
        if "engine" not in sides:
            notes += "; there are no logprobs of the engine in it" if sides else "; there are no logprobs in it"
        numbers = f"{count(rollouts.sequence_count, 'sequence')} of {kind}, {count(len(rollouts.tokens), 'token')}"
        observer.log(f"{numbers}, written to {output}{notes}")
    return rollouts
