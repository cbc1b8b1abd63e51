"""``ckptcheck parity matrix``: measures NeMo-RL's table on engines and trainers."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import (
    FROM_ONE,
    CallTimeout,
    ComputeDtype,
    EngineMode,
    EnginePython,
    Floor,
    FloorLimit,
    HeadFp32,
    Markdown,
    MeanRatioLimit,
    Option,
    Seed,
    Setting,
    Source,
    Switches,
    Temperature,
    TopK,
    TopP,
    TrainerPython,
    Words,
)
from ckptcheck.verbs.parameter import Given, choose_subset, several, to_path
from ckptcheck.verbs.verb import verb

if TYPE_CHECKING:
    from ckptcheck.linter.report import Report

AXES = "The axes of the table"


def reject_unused(given: Given) -> None:
    """Reject options of sides that no pair has, and options of sampling if nothing is sampled."""
    sides = {side for pair in several(given["pairs"]) for side in pair.split(":")}
    if sides <= {"transformers", "megatron"}:
        given.reject(
            ["engine_mode", "engine_python", "switch"], "without a pair that has an engine: two trainers are run"
        )
    if set(several(given["decoding"])) == {"greedy"}:
        given.reject(["temperature", "top_p", "top_k"], "with --decoding greedy")


@verb(reject_unused)
def parity_matrix(
    source: Source,
    *,
    pairs: Annotated[Words, Option("trainer:engine, …; or two trainers, transformers:megatron.", has_commas=True)] = (
        "transformers:vllm",
    ),
    dtype: ComputeDtype = "float32",
    calibrate: Annotated[bool, Option("Measure the noise floor first, and give gaps as multiples of it.")] = False,
    lengths: Annotated[
        int | Sequence[int] | None,
        Option(
            "Tokens of prompt and response.",
            shown="100,1000,10000, where the model has the room",
            within=FROM_ONE,
            panel=AXES,
            has_commas=True,
        ),
    ] = None,
    data: Annotated[
        Words, Option("real: text in the chat template; synthetic: made-up ids.", panel=AXES, has_commas=True)
    ] = ("real", "synthetic"),
    decoding: Annotated[Words, Option("greedy, sampling.", panel=AXES, has_commas=True)] = ("greedy", "sampling"),
    batch: Annotated[int | Sequence[int], Option("Requests at once.", within=FROM_ONE, panel=AXES, has_commas=True)] = (
        1,
        8,
    ),
    layouts: Annotated[
        Words,
        Option(
            "Parallel layouts, tp1,tp2,tp2pp2: Megatron takes the whole layout, an engine its TP.",
            shown="tp1",
            panel=AXES,
            has_commas=True,
        ),
    ] = (),
    repeats: Annotated[int, Option("Runs of every cell.", within=FROM_ONE, panel=AXES)] = 2,
    directions: Annotated[
        Words, Option("Which side samples the tokens: engine, trainer.", panel=AXES, has_commas=True)
    ] = (
        "engine",
        "trainer",
    ),
    response: Annotated[int, Option("Tokens of each response.", within=FROM_ONE, panel=AXES)] = 16,
    sequences: Annotated[int, Setting("Sequences of each cell, at least.", within=FROM_ONE)] = 4,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    seed: Seed = 0,
    head_fp32: HeadFp32 = False,
    trainer_python: TrainerPython = None,
    switch: Switches = (),
    engine_mode: EngineMode = "plain",
    engine_python: EnginePython = None,
    timeout: CallTimeout = 900.0,
    floor: Floor = None,
    max_mult_prob_error: MeanRatioLimit = 1.05,
    max_floor_multiple: FloorLimit = 5.0,
    markdown: Markdown = None,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> "Report":
    """Measure the gap between trainers and engines over lengths, data, decoding and batches, with the variance over runs.

    Exit codes: 0 all cells are within the limits, 1 findings, 2 could not check.
    """
    from ckptcheck.live.experiments.matrix import trace as cells

    length_list = cells.LENGTHS if lengths is None else several(lengths)
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.live.experiments.live_session import open_live_session
    from ckptcheck.live.experiments.matrix.live_matrix import MatrixSides, measure_matrix
    from ckptcheck.live.runtime.engines.engine_options import parse_switches
    from ckptcheck.live.runtime.engines.registry import ENGINES
    from ckptcheck.rollouts.metrics.noise_floor import read_noise_floor
    from ckptcheck.rollouts.prompts import Data
    from ckptcheck.rollouts.thresholds import Thresholds
    from ckptcheck.text.file_io import replace_file, require_output_apart, require_writable
    from ckptcheck.verbs.reports import build_report

    if calibrate and floor is not None:
        raise CkptcheckError("--calibrate measures the floor and --floor reads it: give one of the two")
    require_output_apart(to_path(markdown), to_path(floor), Path(source))
    require_writable(to_path(markdown))
    if parse_switches(list(several(switch))).logprobs == "processed":
        raise CkptcheckError(
            "the matrix compares the models' own logprobs, not processed ones",
            hint="ckptcheck parity probe --only semantics",
        )
    floor_error = read_noise_floor(Path(floor)).metrics.get("mult_prob_error") if floor is not None else None
    plan = cells.Plan(
        lengths=tuple(sorted({*length_list})),
        data=cast(tuple[Data, ...], choose_subset(several(data), cells.DATA, "--data")),
        decoding=cast(tuple[cells.Decoding, ...], choose_subset(several(decoding), cells.DECODING, "--decoding")),
        batches=tuple(sorted({*several(batch)})),
        pairs=cells.parse_pairs(list(several(pairs)), list(ENGINES)),
        directions=cast(tuple[cells.Direction, ...], choose_subset(several(directions), ("engine", "trainer"), "--directions")),
        repeats=repeats, response=response, sequences=sequences, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed,
        layouts=cells.parse_layouts(list(several(layouts))),
    )  # fmt: skip
    if plan.temperature == 0 and "sampling" in plan.decoding:
        raise CkptcheckError("--temperature 0 is greedy decoding, and no sampling", hint="--decoding greedy")
    loaded = load_rules()
    sides = MatrixSides(dtype, head_fp32, several(switch), engine_mode)
    with open_live_session(
        os.fspath(source), timeout=timeout, engine_python=to_path(engine_python), trainer_python=to_path(trainer_python),
        observer=observer,
    ) as live:  # fmt: skip
        trace = measure_matrix(live, plan, sides, calibrate=calibrate, default_lengths=lengths is None)
    trace = replace(trace, thresholds=Thresholds(mult_prob_error=max_mult_prob_error, floor=max_floor_multiple))
    if floor_error is not None:
        trace = replace(trace, floor=dict.fromkeys(trace.pairs, floor_error))
    report = build_report(trace, loaded, pictures=pictures)
    if markdown is not None:
        replace_file(Path(markdown), trace.markdown().encode())
    return report
