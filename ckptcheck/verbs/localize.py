"""``ckptcheck parity localize``: names the first module whose output differs between trainer and engine."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import (
    FROM_ZERO,
    Argument,
    CallTimeout,
    ComputeDtype,
    EngineMode,
    EnginePython,
    EngineSource,
    EngineTp,
    Option,
    StrPath,
    Trainer,
    TrainerEp,
    TrainerPp,
    TrainerPython,
    TrainerTp,
)
from ckptcheck.verbs.parameter import Given, several, to_path
from ckptcheck.verbs.verb import verb

if TYPE_CHECKING:
    from ckptcheck.linter.report import Report


def reject_unused(given: Given) -> None:
    """Reject options of an engine if two trainers run."""
    if given["engine"] in ("transformers", "megatron"):
        where = f"with --engine {given['engine']}: two trainers are run"
        given.reject(["engine_tp", "engine_mode", "engine_python"], where)


@verb(reject_unused)
def localize(
    source: Annotated[StrPath | None, Argument("A Hugging Face checkpoint on this disk.", metavar="[SOURCE]")] = None,
    *,
    dumps: Annotated[
        tuple[StrPath, StrPath] | None,
        Option(
            "Compare dumps made elsewhere (msProbe's, SGLang's) instead of running anything.",
            metavar="A B",
            without=(
                "engine",
                "engine_source",
                "trainer",
                "tp",
                "pp",
                "ep",
                "engine_tp",
                "engine_mode",
                "tokens",
                "engine_python",
                "trainer_python",
                "timeout",
            ),
            because="nothing is run",
        ),
    ] = None,
    engine: Annotated[str, Option("The inference engine: vllm or sglang; or the other trainer.")] = "vllm",
    trainer: Trainer = "transformers",
    dtype: ComputeDtype = "float32",
    tokens: Annotated[
        int | Sequence[int] | None,
        Option(
            "The prompt as ids, 1,2,3.",
            metavar="IDS",
            shown="48 made-up ones, always the same",
            panel="The comparison",
            has_commas=True,
        ),
    ] = None,
    limit: Annotated[
        float | None,
        Option(
            "Relative difference that is still equal.",
            within=FROM_ZERO,
            shown="by the dtype's rounding",
            panel="The comparison",
        ),
    ] = None,
    tp: TrainerTp = 1,
    pp: TrainerPp = 1,
    ep: TrainerEp = 1,
    trainer_python: TrainerPython = None,
    engine_source: EngineSource = None,
    engine_tp: EngineTp = 1,
    engine_mode: EngineMode = "plain",
    engine_python: EnginePython = None,
    timeout: CallTimeout = 900.0,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> "Report":
    """Send one prompt through trainer and engine and name the first module whose output differs, and how.

    Exit codes: 0 they agree up to rounding, 1 they differ, 2 could not check.
    """
    if source is None and dumps is None:
        raise CkptcheckError("there is nothing to compare", hint="name a checkpoint, or two dumps with --dumps A B")
    if dumps is not None:
        from ckptcheck.live.localize.dumps import compare_dumps

        localization = compare_dumps(Path(dumps[0]), Path(dumps[1]), to_path(source), dtype, limit)
    else:
        from ckptcheck.live.localize.live_checkpoint import LocalizeSides, localize_checkpoint

        assert source is not None
        sides = LocalizeSides(
            engine, to_path(engine_source), trainer, tp, pp, ep, engine_tp, engine_mode, dtype, to_path(engine_python),
            to_path(trainer_python), timeout,
        )  # fmt: skip
        localization = localize_checkpoint(
            Path(source), sides, tokens=None if tokens is None else several(tokens), limit=limit, observer=observer
        )
    from ckptcheck.verbs.reports import build_report

    return build_report(localization, pictures=pictures)
