"""``ckptcheck diff``: compares two checkpoints and says why they differ."""

import os
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ckptcheck.errors import CkptcheckError, UsageError
from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import (
    FROM_ZERO,
    LIMITS,
    READING,
    TARGET_FORMS,
    Argument,
    FollowLinks,
    Jobs,
    Option,
    StrPath,
)
from ckptcheck.verbs.parameter import Given
from ckptcheck.verbs.verb import verb

if TYPE_CHECKING:
    from ckptcheck.compare.matching.comparison import Comparison
    from ckptcheck.linter.report import Report
    from ckptcheck.runners.runner import Runner

LAYOUTS = "Megatron and adapters"


def reject_unused(given: Given) -> None:
    """Reject options about values if a side is a file of digests."""
    from ckptcheck.compare.known_weights import is_known_weights

    if not any(is_known_weights(os.fspath(given[name])) for name in ("first", "second")):
        return
    if given["runner"] is not None:
        switch = "--part" if given["runner"].__class__.__name__ == "PartWriter" else "--on"
        raise UsageError(
            f"{switch} has no effect with a manifest or an identity file", "leave it out: nothing long is read"
        )
    useless = [
        "rtol",
        "atol",
        "previous",
        "base",
        "critic",
        "bridge",
        *(["cast"] if given["cast"] not in ("auto", "none") else []),
    ]
    given.reject(
        useless,
        "with a manifest or an identity file",
        "it has digests, which are equal or not; name both checkpoints to compare values",
    )


@verb(reject_unused)
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
    bridge: Annotated[
        Literal["builtin", "mbridge", "both"],
        Option("Map Megatron's tensors by the built-in tables, by mbridge, or compare both mappings.", panel=READING),
    ] = "builtin",
    follow_links: FollowLinks = False,
    jobs: Jobs = None,
    runner: "Runner | None" = None,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> "Report":
    """Compare two checkpoints tensor by tensor: bit for bit, across layouts, and say why they differ.

    Exit codes: 0 equal, 1 different, 2 could not compare.
    """
    from ckptcheck.compare.known_weights import (
        compare_known_weights,
        is_known_weights,
        read_known_weights,
        take_identity,
    )
    from ckptcheck.runners.parts import PartWriter
    from ckptcheck.verbs.identity import identity
    from ckptcheck.verbs.reports import add_notes, build_report, check_runner

    names = [os.fspath(first), os.fspath(second)]
    if any(map(is_known_weights, names)):
        sides = [
            read_known_weights(name)
            if is_known_weights(name)
            else take_identity(identity(name, follow_links=follow_links, jobs=jobs, observer=observer))
            for name in names
        ]
        return build_report(compare_known_weights(*sides), pictures=pictures)
    with observer.progress(" ↔ ".join(names)) as progress:
        comparison = _open_comparison(
            names, previous, base, cast, critic=critic, tolerances=(rtol, atol), bridge=bridge, follow_links=follow_links,
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
        raise CkptcheckError("--base and --previous both name what came before", "give the one that is meant")
    bridge, progress = reading.pop("bridge"), reading.pop("progress")
    follow_links, runner, jobs = reading["follow_links"], reading["runner"], reading["jobs"]
    adapter, reference = None, names[0]
    if base is not None and is_adapter(names[0], follow_links=follow_links):
        reference = os.fspath(base)
    elif base is not None:
        previous = base
    sides = open_side(reference, **reading), open_side(names[1], **reading)
    if reference != names[0]:
        adapter = open_adapter(names[0], sides[0], follow_links=follow_links)
    if bridge != "builtin" and sides[0].is_megatron == sides[1].is_megatron:
        raise CkptcheckError(
            f"--bridge {bridge} has no effect between two checkpoints of one form",
            "a bridge maps between Megatron's tensors and Hugging Face's",
        )
    before = open_side(os.fspath(previous), **reading) if previous is not None else None
    comparison = Comparison(
        *sides, Tolerance(dtype, *tolerances), critic, bridge,
        previous=before, adapter=adapter, jobs=jobs, runner=runner, progress=progress,
    )  # fmt: skip
    # raises CkptcheckError where mbridge is asked for and fails
    _ = comparison.mbridge_mapping
    return comparison
