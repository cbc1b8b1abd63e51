"""``ckptcheck diff``: compares two checkpoints and says why they differ."""

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import (
    FROM_ZERO,
    LIMITS,
    TARGET_FORMS,
    Argument,
    FollowLinks,
    Jobs,
    Option,
    StrPath,
)
from ckptcheck.verbs.verb import verb

if TYPE_CHECKING:
    from ckptcheck.compare.matching.comparison import Comparison
    from ckptcheck.linter.report import Report
    from ckptcheck.runners.runner import Runner


@verb()
def diff(
    first: Annotated[StrPath, Argument(f"The reference. {TARGET_FORMS}", metavar="A")],
    second: Annotated[StrPath, Argument("The checkpoint to compare with it.", metavar="B")],
    *,
    previous: Annotated[
        StrPath | None,
        Option(
            "The version before A, where B should have been updated to A: tensors that B still has of C are stale.",
            metavar="C",
        ),
    ] = None,
    base: Annotated[
        StrPath | None,
        Option(
            "A is a LoRA adapter: compare B with BASE after A is merged into it. A is a whole model: like --previous.",
            metavar="BASE",
        ),
    ] = None,
    cast: Annotated[
        str,
        Option("Compare in this dtype (bf16, fp16, fp32); auto: the one that B's config declares, else none; none."),
    ] = "auto",
    critic: Annotated[bool, Option("One side is a critic: only the heads may be missing or extra.")] = False,
    rtol: Annotated[float, Option("Relative tolerance, of A's numbers.", within=FROM_ZERO, panel=LIMITS)] = 0.0,
    atol: Annotated[float, Option("Absolute tolerance.", within=FROM_ZERO, panel=LIMITS)] = 0.0,
    follow_links: FollowLinks = False,
    jobs: Jobs = None,
    runner: "Runner | None" = None,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> "Report":
    """Compare two checkpoints tensor by tensor: bit for bit, across layouts, and say why they differ.

    Exit codes: 0 equal, 1 different, 2 could not compare.
    """
    from ckptcheck.runners.parts import PartWriter
    from ckptcheck.verbs.reports import add_notes, build_report, check_runner

    names = [os.fspath(first), os.fspath(second)]
    with observer.progress(" ↔ ".join(names)) as progress:
        comparison = _open_comparison(
            names, previous, base, cast, critic=critic, tolerances=(rtol, atol), follow_links=follow_links,
            jobs=jobs, runner=check_runner(runner), progress=progress,
        )  # fmt: skip
        if isinstance(runner, PartWriter):
            _ = comparison.value_differences
        return add_notes(build_report(comparison, pictures=pictures), runner)


def _open_comparison(
    names: list[str],
    previous: StrPath | None,
    base: StrPath | None,
    cast: str,
    *,
    critic: bool,
    tolerances: tuple[float, float],
    **reading: Any,
) -> "Comparison":
    """Open both sides. reading: how they are read."""
    from ckptcheck.compare.matching.cast import parse_dtype
    from ckptcheck.compare.matching.comparison import Comparison
    from ckptcheck.compare.matching.equality import Tolerance
    from ckptcheck.compare.matching.merged_adapter import is_adapter, open_adapter
    from ckptcheck.compare.matching.open_side import open_side

    dtype = cast if cast in ("auto", "none") else parse_dtype(cast)
    if dtype is None:
        raise CkptcheckError(f"{cast!r} is no dtype to compare in", hint="choose auto, none, bf16, fp16, fp32 or fp64")
    if base is not None and previous is not None:
        raise CkptcheckError("--base and --previous both name what came before", "give one of the two")
    progress = reading.pop("progress")
    follow_links, runner, jobs = reading["follow_links"], reading["runner"], reading["jobs"]
    adapter, reference = None, names[0]
    if base is not None and is_adapter(names[0], follow_links=follow_links):
        reference = os.fspath(base)
    elif base is not None:
        previous = base
    sides = open_side(reference, **reading), open_side(names[1], **reading)
    if reference != names[0]:
        adapter = open_adapter(names[0], sides[0], follow_links=follow_links)
    before = open_side(os.fspath(previous), **reading) if previous is not None else None
    comparison = Comparison(
        *sides, Tolerance(dtype, *tolerances), critic,
        previous=before, adapter=adapter, jobs=jobs, runner=runner, progress=progress,
    )  # fmt: skip
    if before is not None and not replace(comparison, second=before, previous=None).comparable_pairs:
        raise CkptcheckError(f"{previous} has no tensor in common with {names[0]}, so it is no version before it")
    return comparison
