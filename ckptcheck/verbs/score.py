"""``ckptcheck parity score``: has a trainer score rollouts."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import (
    FROM_ONE,
    Argument,
    CallTimeout,
    ComputeDtype,
    HeadFp32,
    Option,
    Range,
    RolloutOutput,
    StrPath,
    Trainer,
    TrainerEp,
    TrainerPp,
    TrainerPython,
    TrainerTp,
    TrainerVersion,
)
from ckptcheck.verbs.parameter import to_path
from ckptcheck.verbs.verb import verb

if TYPE_CHECKING:
    from ckptcheck.rollouts import Rollouts


@verb()
def score_rollouts(
    file: Annotated[StrPath, Argument("Rollouts, as record or convert wrote them.", metavar="FILE")],
    source: Annotated[StrPath, Argument("The checkpoint that scores them.", metavar="SOURCE")],
    output: RolloutOutput = None,
    *,
    trainer: Trainer = "transformers",
    temperature: Annotated[
        float | None, Option("What logits are divided by.", within=Range(1e-6), shown="that of the engine's logprobs")
    ] = None,
    trainer_version: TrainerVersion = None,
    dtype: ComputeDtype = "float32",
    tp: TrainerTp = 1,
    pp: TrainerPp = 1,
    ep: TrainerEp = 1,
    head_fp32: HeadFp32 = False,
    tokens: Annotated[
        int, Option("Tokens that the trainer is handed at once, padding included.", within=FROM_ONE)
    ] = 8192,
    trainer_python: TrainerPython = None,
    timeout: CallTimeout = 900.0,
    observer: Observer = SILENT,
) -> "Rollouts":
    """Have a trainer score rollouts, and write them with its logprobs. No engine is loaded."""
    from ckptcheck.live.experiments.live_session import open_live_session
    from ckptcheck.live.experiments.scoring import score_rollouts as score
    from ckptcheck.live.runtime.trainers.layout import ParallelLayout
    from ckptcheck.rollouts import read_rollouts, write_rollouts
    from ckptcheck.text.file_io import require_output_apart, require_writable

    require_output_apart(to_path(output), Path(file), Path(source))
    require_writable(to_path(output))
    rollouts = read_rollouts(Path(file))
    if rollouts.defects:
        raise CkptcheckError(
            f"{file} cannot be scored: {rollouts.defects[0].text}", hint=f"ckptcheck parity judge {file}"
        )
    with open_live_session(
        os.fspath(source), timeout=timeout, trainer_python=to_path(trainer_python), observer=observer
    ) as live:
        layout = ParallelLayout(tp=tp, pp=pp, ep=ep)
        with observer.phase(f"starting {trainer}"):
            scorer = live.start_trainer(trainer, dtype=dtype, head_fp32=head_fp32, layout=layout)
        try:
            with observer.progress("scoring", bytewise=False) as advance:
                scored = score(
                    rollouts, scorer, temperature=temperature, version=trainer_version, tokens=tokens,
                    folder=live.folder, advance=advance,
                )  # fmt: skip
        finally:
            scorer.close()
    if output is not None:
        write_rollouts(scored, Path(output))
        observer.log(f"{scored.sequence_count} sequences scored: {output}")
    return scored
