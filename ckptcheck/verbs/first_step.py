"""Plans the rollouts that a trial of `refit` records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ckptcheck.errors import CkptcheckError
from ckptcheck.verbs.options import StrPath
from ckptcheck.verbs.parameter import to_path
from ckptcheck.verbs.record import record_rollouts
from ckptcheck.verbs.verb import find_verb

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.live.experiments.first_step import FirstStepRollouts
    from ckptcheck.live.refit.first_step import PlanFirstStep
    from ckptcheck.live.runtime.engines.engine_options import Switches
    from ckptcheck.text.observer import Observer


def plan_first_step(
    rollouts: StrPath | Mapping[str, Any], source: str, switches: Switches, observer: Observer
) -> PlanFirstStep:
    """Return what plans the rollouts of a trial of `refit`.

    rollouts: the file, or the file as ``output`` with arguments of `record_rollouts`. Raises CkptcheckError for an argument that it
    does not take, and for a file that cannot be written.
    """
    from ckptcheck.live.experiments.first_step import FirstStepRollouts
    from ckptcheck.live.refit.first_step import FIRST_STEP_ARGUMENTS
    from ckptcheck.live.runtime.engines.sampling import Sampling
    from ckptcheck.text.file_io import require_writable

    given = dict(rollouts) if isinstance(rollouts, Mapping) else {"output": rollouts}
    output = to_path(given.pop("output", None))
    unknown = sorted(given.keys() - {*FIRST_STEP_ARGUMENTS})
    if output is None or unknown:
        raise CkptcheckError(
            f"rollouts take no {', '.join(unknown)}" if unknown else "rollouts have no output",
            hint=f"they take output, and of record_rollouts {', '.join(FIRST_STEP_ARGUMENTS)}",
        )
    require_writable(output)
    recorded = find_verb(record_rollouts)
    chosen = {name: recorded.parameters[name].default for name in FIRST_STEP_ARGUMENTS}
    chosen |= {name: recorded.parameters[name].check(value, "rollouts") for name, value in given.items()}
    sampling = Sampling(
        chosen["temperature"], chosen["top_p"], chosen["top_k"], chosen["response"], chosen["seed"], chosen["ignore_eos"],
        chosen["presence_penalty"], chosen["frequency_penalty"], chosen["repetition_penalty"],
    )  # fmt: skip

    def plan(ckpt: Checkpoint) -> FirstStepRollouts | None:
        first_step = FirstStepRollouts(
            ckpt, source, output, sampling, switches, observer, prompts=to_path(chosen["prompts"]),
            number=chosen["number"], length=chosen["length"], batch=chosen["batch"], step=chosen["step"],
        )  # fmt: skip
        if first_step.has_room:
            return first_step
        observer.log(f"no rollouts: the model has no room for {first_step.context_len} tokens")
        return None

    return plan
