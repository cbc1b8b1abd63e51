"""``ckptcheck parity localize``: name the first module at which trainer and engine part."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptcheck.cli.choices import Dtype, Mode, TrainerName
from ckptcheck.cli.idle import Given
from ckptcheck.cli.numbers import finite
from ckptcheck.cli.scan import FailOn, Format
from ckptcheck.errors import CkptcheckError

if TYPE_CHECKING:
    from ckptcheck.localize.localization import Localization


OF_SIDES = (
    "engine", "engine_source", "trainer", "tp", "pp", "ep", "engine_tp", "engine_mode", "tokens", "engine_python",
    "trainer_python", "timeout",
)  # fmt: skip
"""They say how the two sides are run."""


def localize(
    ctx: typer.Context,
    source: Annotated[
        Path | None, typer.Argument(metavar="SOURCE", help="A Hugging Face checkpoint on this disk.")
    ] = None,
    dumps: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="A B", help="Compare dumps made elsewhere (msProbe's, SGLang's) instead of running anything."
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="The inference engine.")] = "vllm",
    engine_source: Annotated[
        Path | None, typer.Option(metavar="DIR", help="What the engine loads, where it is another checkpoint.")
    ] = None,
    trainer: Annotated[TrainerName, typer.Option(help="The reference.")] = TrainerName.transformers,
    tp: Annotated[int, typer.Option(min=1, help="Tensor parallelism of the trainer.")] = 1,
    pp: Annotated[int, typer.Option(min=1, help="Pipeline parallelism of the trainer.")] = 1,
    ep: Annotated[int, typer.Option(min=1, help="Expert parallelism of the trainer.")] = 1,
    engine_tp: Annotated[int, typer.Option(min=1, help="Tensor parallelism of the engine.")] = 1,
    engine_mode: Annotated[
        Mode, typer.Option(help="plain keeps weights readable on a CPU; stock leaves the engine as it is.")
    ] = Mode.plain,
    dtype: Annotated[Dtype, typer.Option(help="In which both sides compute.")] = Dtype.float32,
    tokens: Annotated[
        str | None,
        typer.Option(metavar="IDS", help="The prompt as ids, 1,2,3.", show_default="48 made-up ones, always the same"),
    ] = None,
    limit: Annotated[
        float | None,
        typer.Option(
            min=0,
            callback=finite,
            help="Relative difference that is still equal.",
            show_default="by the dtype's rounding",
        ),
    ] = None,
    plots: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also draw the difference by layer (needs matplotlib).")
    ] = None,
    engine_python: Annotated[Path | None, typer.Option(help="A Python of yours that has the engine.")] = None,
    trainer_python: Annotated[Path | None, typer.Option(help="A Python of yours that has the trainer.")] = None,
    timeout: Annotated[float, typer.Option(min=1, callback=finite, help="Seconds for each side.")] = 900.0,
    format: Annotated[Format, typer.Option(help="Form of the report.")] = Format.text,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the report to a file.")
    ] = None,
    fail_on: Annotated[FailOn, typer.Option(help="Exit 1 for findings of this severity or graver.")] = FailOn.error,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Also list the rules that passed.")] = False,
) -> None:
    """Send one prompt through trainer and engine and name the first module whose output differs, and how.

    Exit codes: 0 they agree up to rounding, 1 they part, 2 could not check.
    """
    from ckptcheck import pack
    from ckptcheck.cli import output as out
    from ckptcheck.run import run
    from ckptcheck.writing import writable

    if dumps is not None:
        Given(ctx).refuse(OF_SIDES, "with --dumps: nothing is run")
    writable(output)
    if source is None and dumps is None:
        raise CkptcheckError("there is nothing to compare", hint="name a checkpoint, or two dumps with --dumps A B")
    if dumps is not None:
        from ckptcheck.localize.dumps import dumped

        seen = dumped(dumps[0], dumps[1], source, dtype.value, limit)
    else:
        assert source is not None
        seen = _live(
            source, engine_source or source, engine, trainer, (tp, pp, ep), engine_tp, engine_mode.value, dtype.value,
            tokens, limit, engine_python, trainer_python, timeout,
        )  # fmt: skip
    rules = pack.load()
    report = run(seen, rules)
    if plots is not None:
        from ckptcheck.localize.plot import draw

        out.talk(f"drew {draw(seen, plots)}")
    out.conclude(report, rules, format.value, output, fail_on.value, verbose=verbose)


def _live(
    source: Path,
    engine_source: Path,
    engine: str,
    trainer: TrainerName,
    layout: tuple[int, int, int],
    ranks: int,
    mode: str,
    dtype: str,
    tokens: str | None,
    limit: float | None,
    engine_python: Path | None,
    trainer_python: Path | None,
    timeout: float,
) -> Localization:
    from ckptcheck.checkpoint.open import open_checkpoint
    from ckptcheck.cli import output as out
    from ckptcheck.engines import registry
    from ckptcheck.host.exchange import Exchange
    from ckptcheck.localize.live import Side, localize
    from ckptcheck.refit.sequences import sequences
    from ckptcheck.trainers import choosing
    from ckptcheck.trainers.layout import Layout

    ckpt = open_checkpoint(str(source))
    embedding = ckpt.anatomy.embedding
    if embedding is None:
        raise CkptcheckError(f"{source} has no token embedding that could be found")
    prompt = (
        _ids(tokens, ckpt.tensors[embedding].shape[0]) if tokens else sequences(ckpt.tensors[embedding].shape[0])[0]
    )
    chosen = (ckpt.config.integer("num_experts_per_tok") if ckpt.config else None) or 0
    size = sum(tensor.nbytes for tensor in ckpt.tensors.values()) * (2 if dtype == "float32" else 1)
    with Exchange(need=size) as exchange, tempfile.TemporaryDirectory(prefix="ckptcheck-localize-") as place:
        folder = Path(place)

        def reference() -> tuple[str, Side]:
            out.talk(f"starting {trainer.value}")
            held = choosing.trainer(
                trainer.value,
                ckpt,
                exchange,
                Layout(*layout),
                dtype,
                python=trainer_python,
                scratch=(exchange.folder, folder),
            )
            name = f"{held.info.name} {held.info.layout}".strip()
            assert isinstance(held, Side)
            return name, held

        def other() -> tuple[str, Side]:
            out.talk(f"starting {engine}")
            started = registry.start(
                engine, engine_source, dtype=dtype, ranks=ranks, mode=mode, length=max(512, len(prompt) + 1),
                python=engine_python, scratch=(folder,),
            )  # fmt: skip
            if not isinstance(started, Side):
                started.close()
                raise CkptcheckError(f"{engine} does not tell what its modules give out")
            return started.info.name, started

        return localize(
            str(source), reference, other, prompt, folder,
            dtype=dtype, chosen=chosen, limit=limit, timeout=timeout, say=out.talk,
        )  # fmt: skip


def _ids(text: str, rows: int) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise CkptcheckError(f"--tokens {text} are no ids", hint="as in --tokens 1,2,3") from None
    if wrong := [number for number in found if not 0 <= number < rows]:
        raise CkptcheckError(f"there is no token {wrong[0]}: the embedding has {rows} rows")
    return found
