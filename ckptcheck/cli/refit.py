"""``ckptcheck refit``: sync a trainer's weights into a running engine, and prove that it computes with them."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptcheck.cli.choices import Device, Dtype, Mode, Quantizer, Scheme, TrainerName
from ckptcheck.cli.numbers import finite, gpus
from ckptcheck.cli.scan import FailOn, Format
from ckptcheck.errors import CkptcheckError

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.host.exchange import Exchange
    from ckptcheck.trainers.base import Trainer


def refit(
    ctx: typer.Context,
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[SOURCE]", help="A Hugging Face checkpoint or a Megatron run on this disk.", show_default=False
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="The inference engine: vllm or sglang.")] = "vllm",
    attach: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="A running SGLang or vLLM that should serve SOURCE; repeated: that should serve the same.",
        ),
    ] = None,
    allow_write: Annotated[
        bool, typer.Option("--allow-write", help="Overwrite the servers' weights and have them load SOURCE.")
    ] = False,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Also attach to servers on other machines.")
    ] = False,
    trainer: Annotated[
        TrainerName | None,
        typer.Option(help="What holds the weights.", show_default="megatron; with --attach transformers"),
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="Tensor parallelism of the trainer.")] = 1,
    pp: Annotated[int, typer.Option(min=1, help="Pipeline parallelism of the trainer.")] = 1,
    ep: Annotated[int, typer.Option(min=1, help="Expert parallelism of the trainer.")] = 1,
    engine_tp: Annotated[int, typer.Option(min=1, help="Tensor parallelism of the engine.")] = 1,
    engine_mode: Annotated[
        Mode, typer.Option(help="plain keeps weights readable on a CPU; stock leaves the engine as it is.")
    ] = Mode.plain,
    transport: Annotated[
        str | None,
        typer.Option(
            help="How weights reach the engine: reload, gloo, nccl, ipc or load_weights (vllm); tensor, flattened_bucket, gloo,"
            " nccl or disk (sglang). nccl and ipc need GPUs.",
            show_default="the first",
        ),
    ] = None,
    quantize: Annotated[
        Scheme | None,
        typer.Option(
            help="Pack the weights on their way; not by nccl and ipc, which carry them as the trainer holds them."
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENTRY",
            help="An entry of the list of modules that are not packed; repeatable.",
            show_default="head and routers",
        ),
    ] = None,
    trainer_quantizer: Annotated[
        Quantizer,
        typer.Option(help="Who packs: compressed-tensors as the engine reads the list, or slime by its own reading."),
    ] = Quantizer.compressed_tensors,
    dtype: Annotated[Dtype, typer.Option(help="In which both sides compute.")] = Dtype.float32,
    device: Annotated[
        Device, typer.Option(help="Where the trainer computes; auto: on GPUs where there are any, one for each rank.")
    ] = Device.auto,
    trainer_gpus: Annotated[
        str | None,
        typer.Option(metavar="N,…", callback=gpus, help="GPUs that the trainer may see.", show_default="all"),
    ] = None,
    engine_gpus: Annotated[
        str | None,
        typer.Option(metavar="N,…", callback=gpus, help="GPUs that the engine may see.", show_default="all"),
    ] = None,
    switch: Annotated[
        list[str] | None,
        typer.Option(
            "--switch", metavar="NAME=VALUE", help="How the engine is set up: compilation=graphs, prefix_cache=off, …"
        ),
    ] = None,
    bucket_mb: Annotated[
        float, typer.Option(min=0.001, callback=finite, help="MB of a bucket of the first sync.")
    ] = 64.0,
    pause: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="Sync while a request runs: keep, wait or abort (vllm); in_place, retract, abort or wait (sglang).",
            show_default="none runs",
        ),
    ] = None,
    sleep_level: Annotated[
        int, typer.Option(min=1, max=2, help="Weights while the engine sleeps: 1 kept on the host, 2 dropped.")
    ] = 1,
    steps: Annotated[int, typer.Option(min=0, help="Optimizer steps, each followed by two syncs.")] = 1,
    perturb: Annotated[
        float | None,
        typer.Option(min=0, callback=finite, help="Move every weight by noise of this scale in place of a step."),
    ] = None,
    check_weights: Annotated[
        bool,
        typer.Option(
            "--check-weight-update-equal/--no-check-weight-update-equal", help="Compare every tensor with a cold load."
        ),
    ] = True,
    check_logprobs: Annotated[
        bool, typer.Option("--check-logprobs/--no-check-logprobs", help="Compare logprobs on both sides.")
    ] = True,
    hf_config: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Has the config.json of a Megatron run's model, and its tokenizer if you like."
        ),
    ] = None,
    engine_python: Annotated[
        Path | None,
        typer.Option(help="A Python of yours that has the engine.", show_default="the one installed by ckptcheck"),
    ] = None,
    trainer_python: Annotated[Path | None, typer.Option(help="A Python of yours that has the trainer.")] = None,
    timeout: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[PHASE=]SECONDS",
            help="Seconds for each phase, or for those of one kind: start, score, step, sync; repeatable.",
            show_default="900, 600, 600, 300, and what reading the weights takes",
        ),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append the syncs to a record, see refit history.")
    ] = None,
    despite_errors: Annotated[
        bool,
        typer.Option("--despite-errors", help="Go on where the scan of SOURCE finds errors; the report names them."),
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the checkpoints that are written on the way.")] = False,
    format: Annotated[Format, typer.Option(help="Form of the report.")] = Format.text,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the report to a file.")
    ] = None,
    fail_on: Annotated[FailOn, typer.Option(help="Exit 1 for findings of this severity or graver.")] = FailOn.error,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Also list the rules that passed.")] = False,
) -> None:
    """Sync a trainer's weights into a live engine, at step 0 and after steps, and compare with a cold load of the same weights.

    Exit codes: 0 the engine computes with the trainer's weights, 1 findings, 2 could not check.
    """
    from ckptcheck import pack
    from ckptcheck.cli import attach as attaching
    from ckptcheck.cli import output as out
    from ckptcheck.cli.idle import Given
    from ckptcheck.cli.interruption import Interruption
    from ckptcheck.cli.kept import put_away
    from ckptcheck.cli.refit_options import refuse_idle, refuse_packed
    from ckptcheck.engines import registry
    from ckptcheck.engines.base import Engine
    from ckptcheck.engines.context import USUAL, usual
    from ckptcheck.engines.switches import parsed
    from ckptcheck.environments.interpreter import interpreter
    from ckptcheck.history.record import Record
    from ckptcheck.host.exchange import Exchange
    from ckptcheck.refit import timeouts
    from ckptcheck.refit.recorded import append
    from ckptcheck.refit.settings import Settings
    from ckptcheck.refit.source import opened, told
    from ckptcheck.refit.text import Text
    from ckptcheck.refit.trial import Trial
    from ckptcheck.run import run
    from ckptcheck.trainers import choosing
    from ckptcheck.trainers.layout import Layout
    from ckptcheck.writing import keep_apart, writable

    refuse_idle(
        Given(ctx), attached=bool(attach), source=source is not None, weights=check_weights, logprobs=check_logprobs,
        device=device.value, quantize=quantize is not None, steps=steps, timeouts=timeout or (),
    )  # fmt: skip
    if source is None and not attach:
        raise CkptcheckError("there is nothing to sync", hint="name a checkpoint, or running servers with --attach")
    route = registry.route(engine, transport)
    if quantize is None and (ignore or trainer_quantizer is not Quantizer.compressed_tensors):
        raise CkptcheckError("--ignore and --trainer-quantizer say what is packed: give --quantize too")
    if quantize is not None:
        refuse_packed(quantize.value, engine, route, dtype.value)
    writable(output)
    keep_apart(output, record, Path(source) if source is not None else None)
    if record is not None:
        Record(record).check()
    switches = parsed(switch or [])
    rules = pack.load()
    settings = Settings(
        steps=steps,
        bucket_bytes=round(bucket_mb * 1e6),
        other_bytes=max(1, round(bucket_mb * 1e6 / 9)),
        transport=route,
        perturb=perturb,
        weights=check_weights,
        logprobs=check_logprobs,
        timeouts=timeouts.read(timeout or ()),
        pause=registry.pause(engine, pause, route, sleep_level),
        sleep_level=sleep_level,
    )
    with Interruption() as interruption, contextlib.ExitStack() as left:
        folder = Path(tempfile.mkdtemp(prefix="ckptcheck-refit-"))
        left.callback(put_away, folder, keep)
        spared: list[str] | None = [] if despite_errors else None
        ckpt = opened(source, folder / "source", hf_config, spared=spared) if source is not None else None
        layout = Layout(tp=tp, pp=pp, ep=ep)
        if attach:
            chosen = trainer or TrainerName.transformers

            def scoring(checkpoint: Checkpoint, exchange: Exchange, computed: str) -> Trainer:
                """Start the trainer that gives the logprobs."""
                return choosing.trainer(
                    chosen.value, checkpoint, exchange, layout, computed, device=device.value, gpus=trainer_gpus,
                    python=trainer_python, scratch=(exchange.folder,),
                )  # fmt: skip

            wanted = attaching.Wanted(
                attach, scoring, settings.timeouts, write=allow_write, remote=allow_remote, weights=check_weights,
                logprobs=check_logprobs, python=engine_python,
            )  # fmt: skip
            report = run(attaching.attach(ckpt, wanted, out.talk), rules)
            interruption.overhear()
            left.close()
            out.conclude(told(report, spared), rules, format.value, output, fail_on.value, verbose=verbose)
        assert ckpt is not None
        assert source is not None
        interpreter(engine, engine_python)  # else a missing engine is noticed once the trainer has loaded
        held_by = trainer or TrainerName.megatron
        embedding = ckpt.anatomy.embedding
        if embedding is None:
            raise CkptcheckError(f"{source} has no token embedding that could be found")
        size = sum(tensor.nbytes for tensor in ckpt.tensors.values()) * (2 if dtype is Dtype.float32 else 1)
        exchange = left.enter_context(Exchange(need=size))
        scratch = (exchange.folder, *(() if keep else (folder,)))

        def start_trainer() -> Trainer:
            """Start the trainer, and end it when all is over."""
            held = choosing.trainer(
                held_by.value, ckpt, exchange, layout, dtype.value, device=device.value, gpus=trainer_gpus,
                python=trainer_python, scratch=scratch,
            )  # fmt: skip
            left.callback(held.close)
            left.callback(interruption.overhear)
            if quantize is None:
                return held
            packing = choosing.packed(
                held, quantize.value, engine, exchange, folder, ignore=ignore, quantizer=trainer_quantizer.value,
                python=engine_python,
            )  # fmt: skip
            left.callback(packing.close)
            return packing

        def start(checkpoint: Path) -> Engine:
            """Start the engine in a process of its own."""
            return registry.start(
                engine, checkpoint, dtype=dtype.value, ranks=engine_tp, mode=engine_mode.value, python=engine_python,
                gpus=engine_gpus, switches=switches, transport=route, sleep_level=sleep_level, scratch=scratch,
            )  # fmt: skip

        room = usual(ckpt.source.local) if ckpt.source.local is not None else USUAL
        trial = Trial(
            source, start_trainer, start, settings, vocabulary=ckpt.tensors[embedding].shape[0], block=128,
            length=room, nbytes=size, text=Text(ckpt.source), folder=folder, say=out.talk,
        )  # fmt: skip
        trace = trial.run()
        interruption.overhear()
        report = run(trace, rules)
        unrecorded = None
        try:
            if record is not None:
                append(trace, record)
        except CkptcheckError as error:  # the trial is over, and what it found is worth more than the record
            unrecorded = error
    out.conclude(
        told(report, spared), rules, format.value, output, fail_on.value, verbose=verbose, unwritten=unrecorded
    )
