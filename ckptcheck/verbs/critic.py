"""``ckptcheck critic``: loads a critic in transformers and in megatron-core, and compares what both compute."""

import os
from typing import TYPE_CHECKING, Annotated

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import SEQUENCE, Argument, CallTimeout, Option, StrPath, TrainerPython, Words
from ckptcheck.verbs.parameter import several, to_path
from ckptcheck.verbs.verb import verb

if TYPE_CHECKING:
    from ckptcheck.linter.report import Report


@verb()
def critic(
    source: Annotated[
        StrPath,
        Argument("A critic on this disk, or a language model, to which a head is added.", metavar="SOURCE"),
    ],
    *,
    layouts: Annotated[
        Words,
        Option(
            "Megatron's parallel layouts: tp2, tp2sp (sequence parallel), pp2, tp2pp2, pp2vpp2, ep2.",
            metavar="LAYOUT,…",
            shown="tp1, tp2, tp2sp, pp2, pp2vpp2, ep2 where they fit",
            has_commas=True,
        ),
    ] = (),
    length: Annotated[int, Option("Tokens of a sequence.", within=SEQUENCE)] = 16,
    trainer_python: TrainerPython = None,
    timeout: CallTimeout = 900.0,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> "Report":
    """Compare a critic in transformers and in megatron-core: values [B, S, 1], loss and gradients, in parallel layouts.

    Exit codes: 0 equal, 1 different, 2 could not compare.
    """
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.open import open_target
    from ckptcheck.live.experiments.critic import compare_critic
    from ckptcheck.live.runtime.trainers.critic_layout import CriticLayout
    from ckptcheck.verbs.reports import build_report

    chosen = [CriticLayout.parse(text) for text in dict.fromkeys(several(layouts))] or None
    name = os.fspath(source)
    checkpoint = open_target(name)
    if not isinstance(checkpoint, Checkpoint):
        raise CkptcheckError(
            f"{name} is a Megatron run, and both frameworks start from a Hugging Face checkpoint",
            hint="convert it, and compare the two with ckptcheck diff --critic",
        )
    return build_report(
        compare_critic(
            checkpoint, chosen, length=length, python=to_path(trainer_python), timeout=timeout, observer=observer
        ),
        pictures=pictures,
    )
