"""The last save lacks what its trainer needs to resume from it.

## What it checks
- The newest saves have all that the trainer's own loading code asks for: of transformers' Trainer (TRL, ms-swift), accelerate,
  Lightning (keys of its one file), DeepSpeed, Megatron, verl, NeMo-RL and slime. A file counts as missing where the writer never
  leaves it out beside another one that is there, or where another save of the run has it.
- Of any other trainer: the last save has the optimizer's tensors, and every file of the training state (optimizer, scheduler,
  random numbers, scaler), if all saves before it have them. In a run with such files it also has every other file that all saves
  before it have, unless it has others (a warning).
- Saves that are all without a state are exports, and lack nothing.

## Why it matters
- A trainer that resumes from it refuses, or begins with fresh moments, another schedule or other data, mostly without a word.
  Trainers take the folder with the highest step and do not look whether it is whole.

## How to fix
- Resume from the save that the finding names, or wait until the save is written completely.

## When it can be wrong
- The last save was meant for serving alone, not for resuming: `--ignore SER010`.

## Seen in
huggingface/transformers#35782 (a job that was stopped while it saved: the last folder lacks the trainer's state, and no resume
gets past it), vllm-project/speculators#739 (a resume takes any folder with a number). Measured with transformers 5.19.0: without
trainer_state.json it raises FileNotFoundError; without optimizer.pt or scheduler.pt it trains on from a new optimizer at step 1
of the schedule. accelerate 1.15.0 and megatron-core 0.16.1 raise without each file that is an error here, lightning 2.6.6 without
each such key. Held to kills of ckpt-chaos 0.1.8 at each file of a save of the Trainer, accelerate, torch.distributed.checkpoint
and its own loop
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.runs.saves.resume import Lack
from ckptcheck.runs.saves.save_series import SaveSeries
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "SER010",
    "state-left-out",
    severity="error",
    on="saves",
    when=lambda series: any(series.step_folders.values()),
)
def check(series: SaveSeries) -> Iterator[Problem]:
    defective = [save.name for save in series.saves if save.defects]
    for folders in series.step_folders.values():
        whole = [place for place, folder in enumerate(folders) if not series.lacks[folder.name]]
        for folder in folders[whole[-1] + 1 if whole else len(folders) - 1 :]:
            if lacks := series.lacks[folder.name]:
                if any(f"{name}/".startswith(f"{folder.name}/") for name in defective):
                    continue  # SER009 says it
                yield Problem(
                    f"{folder.name} lacks {_describe(lacks)}",
                    file=folder.name,
                    severity="error" if any(lack.severity == "error" for lack in lacks) else "warning",
                    hint=_advise(series, folder.number),
                )
    for strand in series.strands:
        *before, last = strand.saves
        if (
            len(before) > 1
            and last.is_digested
            and not last.defects
            and not last.states
            and all(save.states for save in before)
            and not any(lacks and f"{last.name}/".startswith(f"{name}/") for name, lacks in series.lacks.items())
        ):
            yield Problem(
                f"{last.name} has no tensor of the optimizer; every save before it has some"
                f" ({count(len(before[-1].states), 'tensor')} in {before[-1].name})",
                file=last.name,
                hint=_advise(series, last.number),
                names=tuple(before[-1].states),
            )


def _describe(lacks: Sequence[Lack]) -> str:
    """Name what is missing, and say what its writer does without the gravest of it."""
    grave = min(
        lacks, key=lambda lack: (lack.severity != "error", "refuses" not in (lack.part.without if lack.part else ""))
    )
    others = [lack.name for lack in lacks if lack is not grave]
    if grave.writer is None or grave.part is None:
        return f"{join_truncated([grave.name, *others])}, which every save before it has"
    besides = f"; it lacks {join_truncated(others)} too" if others else ""
    return f"{grave.name}: {grave.writer.title} {grave.part.without}{besides}"


def _advise(series: SaveSeries, step: int) -> str:
    other = series.find_resumable(step)
    if other is not None:
        return f"resume from {other.name}, or wait until the save is written"
    return "wait until the save is written; if its job has ended, begin anew: the run can resume from no save"
