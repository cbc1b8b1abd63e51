"""Builds the rollouts of a case: what an engine drew and a trainer scored, and what the case does to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import tokenizers

from ckptcheck.rollouts import Metadata, Rollout, Rollouts, build_rollouts
from ckptcheck.rollouts.job_settings import complete_from_job
from ckptcheck.rollouts.labelled_weights import list_labelled_weights
from ckptcheck.rollouts.metrics.noise_floor import NoiseFloor
from ckptcheck.rollouts.prompts import PromptTokenizer
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.run_comparison import RunComparison
from ckptcheck.rollouts.sampling_checkpoint import ExpertLayout, SamplingCheckpoint
from ckptcheck.rollouts.series import RolloutSeries
from ckptcheck.rollouts.series_member import SeriesMember
from ckptcheck.rollouts.thresholds import Thresholds
from ckptcheck.rollouts.validation import find_defects
from ckptcheck.runs.history.record import SCHEMA, SyncRecord
from tests.factories.case_table import CaseTable, StrictTable
from tests.factories.job_cases import read_job


class ColumnChange(StrictTable, kw_only=True):
    """What is done to a column, or to a part of it.

    One of drop, rows, shift, repeat, roll_layers, reverse, ramp, value, or times and add.
    """

    column: str
    drop: bool = False
    """The column is removed."""
    rows: list[Any] | Literal["ones", "zeros", "response", "prompt", "early", ""] = ""
    """The numbers in its place; or for a mask: ones, zeros, the response, the prompt, or the response a token earlier."""
    dtype: str = ""
    """The dtype of `rows`, as numpy calls it."""
    shift: int = 0
    """By how many tokens the values are moved."""
    repeat: int = 0
    """Each value becomes that of so many tokens earlier."""
    roll_layers: int = 0
    """By how many layers the rows are moved."""
    reverse: bool = False
    """The choices of each row stand in the opposite order."""
    ramp: float = 0.0
    """What is taken away grows by so much with each token of the response."""
    value: float | str | None = None
    """The value of every token; ``nan`` and ``inf`` as text."""
    times: float = 1
    add: float = 0
    sequence: int | None = None
    """The sequence that alone is changed."""
    at: int = 0
    """The first token in that sequence."""
    number: int | None = None
    """How many tokens from there on; all without it."""
    place: int | None = None
    """The token of each response that alone is changed; -1: its last."""
    every: int = 0
    """Tokens whose position this divides are changed, and no others."""
    of_token: int | None = None
    """The id of the tokens that alone are changed."""
    layers: list[int] = []
    """The layers that alone are changed."""
    choice: int | None = None
    """The choice of a token that alone is changed."""


class RolloutCase(CaseTable, kw_only=True):
    """A case of a rule on rollouts."""

    rollouts: dict[str, Any] = {}
    """Arguments of `draw_rollouts`."""
    changes: list[ColumnChange] = []
    gates: dict[str, Any] = {}
    """Limits, see parity/thresholds.py."""
    floor: dict[str, float] | None = None
    """The noise floor that was measured: metric → value."""
    floor_of: dict[str, Any] = {}
    """What it was measured with, see `NoiseFloor`."""
    chat: dict[str, Any] | None = None
    """`texts`, each a sequence that `chat_template` of a checkpoint (`template`, if any) may have written; in place of `rollouts`.

    Where a text has "~", which is no part of it, the tokens before and behind it are apart.
    """
    syncs: list[dict[str, Any]] = []
    """The job's record of syncs, see `SyncRecord`."""
    experts: dict[str, Any] | None = None
    """What the checkpoint says of its experts, see `ExpertLayout`."""
    job: str = ""
    """The text of the job's job.yaml."""
    told: dict[str, str] = {}
    """What the user says of the job's versions, see `JobCase`."""
    replay: bool = False
    """Whether the trainer repeats the engine's choice of experts."""


class RolloutSeriesCase(CaseTable, kw_only=True):
    """A case of a rule on a series of files with rollouts."""

    files: list[dict[str, Any]]
    """The arguments of `draw_rollouts` for each file."""
    gates: dict[str, Any] = {}
    """Limits, see parity/thresholds.py."""


class RunComparisonCase(CaseTable, kw_only=True):
    """A case of a rule on two runs. Step n of either has the seed n, or n + 1000."""

    steps: int = 8
    """Steps of either run."""
    first: int = 0
    """The first step of the run; the reference begins at 0."""
    part: int = 0
    """The step from which on `changed` holds."""
    changed: dict[str, Any] = {}
    """Arguments of `draw_rollouts` for the run from the step `part` on."""
    back: int = 1000
    """The step from which on it no longer holds."""
    run: dict[str, Any] = {}
    """Arguments of `draw_rollouts` for every step of the run."""
    reference: dict[str, Any] = {}
    """The same of the reference."""
    broken: bool = False
    """The last file of the reference is malformed."""


class FakeCheckpoint(SamplingCheckpoint):
    """A checkpoint of which only the experts are known, or only the tokenizer."""

    def __init__(self, layout: ExpertLayout | None, reader: PromptTokenizer | None = None) -> None:
        self.__dict__.update(expert_layout=layout, reader=reader, stop_tokens=frozenset())


def build_tokenizer() -> tokenizers.Tokenizer:
    """Return a tokenizer of bytes that joins t, h and e, and knows two control tokens."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate([*letters, "th", "the"])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [("t", "h"), ("th", "e")]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return made


def _tokenize_texts(texts: Sequence[str]) -> Rollouts:
    """Return rollouts of texts."""
    tokenizer = build_tokenizer()
    made = []
    for text in texts:
        ids = [token for part in text.split("~") for token in tokenizer.encode(part, add_special_tokens=False).ids]
        made.append(Rollout(ids, 0, [-0.5] * len(ids)))
    return build_rollouts(made)


def draw_rollouts(
    sequences: int = 4,
    prompt: int = 4,
    response: int = 32,
    noise: float | Sequence[float] = 0.001,
    seed: int = 0,
    mean: float = 0.3,
    versions: str | Sequence[str] = "",
    layers: int = 0,
    top: int = 0,
    top_of_drawn: bool = False,
    full: int = 0,
    reference: bool = False,
    drift: float = 0.0,
    trainer: bool = True,
    bias: float = 0.0,
    reward: float | None = None,
    rewards: Sequence[float] = (),
    advantages: Sequence[float | str] = (),
    groups: int = 0,
    alternate: int = 0,
    finish: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
) -> Rollouts:
    """Draw rollouts.

    noise: of the trainer, in nats; several: of equally long parts of each response. bias: of the trainer, in nats. drift: of
    the trainer from the reference. mean: of minus the logprobs. top, full: how many ids are recorded. top_of_drawn: whether
    the drawn token is among them. reward: the mean of the rewards, which are drawn around it. rewards, advantages: of the
    sequences, from the beginning again where they are fewer. groups: how many sequences that follow each other have one
    prompt. alternate: how many prompts follow each other again and again.
    """
    draw = np.random.default_rng(seed)
    made = []
    noises = [noise] if isinstance(noise, (int, float)) else list(noise)
    scale = np.array([noises[place * len(noises) // response] for place in range(response)])
    for _ in range(sequences):
        engine = -draw.exponential(mean, response)
        scored = np.minimum(engine + bias + scale * draw.standard_normal(response), 0.0)
        # the order of random numbers: each expert at most once
        routing = draw.random((prompt + response, layers, 8)).argsort(-1)[..., :2] if layers else None
        rows = np.sort(-draw.exponential(3, (response, max(top, 2))), 1)[:, ::-1] if top else None
        ids = np.tile(np.arange(max(top, 2)), (response, 1))
        each = Rollout(draw.integers(0, 100, prompt + response), prompt, engine)  # type: ignore[arg-type]
        each.trainer = scored if trainer else None  # type: ignore[assignment]
        moved = scored if not drift else np.minimum(scored - drift * np.abs(draw.standard_normal(response)), 0.0)
        each.reference = moved if reference else None  # type: ignore[assignment]
        words = [versions] if isinstance(versions, str) and versions else list(versions)
        each.versions = [words[place * len(words) // response] for place in range(response)] if words else ()
        each.engine_routing = each.trainer_routing = routing
        each.engine_top = each.trainer_top = None if rows is None else (ids, rows)
        if top_of_drawn and rows is not None:
            # the drawn token comes first, with its own logprob
            first = np.array(each.tokens[prompt:])[:, None]
            rest = np.full((response, ids.shape[1] - 1), -30.0)
            drawn_ids = np.concatenate([first, np.full(rest.shape, 200)], 1)
            each.engine_top, each.trainer_top = (
                (drawn_ids, np.concatenate([np.asarray(values)[:, None], rest], 1)) for values in (engine, scored)
            )
        made.append(each)
    for each, word in zip(made, finish, strict=False):
        each.finish = word
    if reward is not None:
        for each in made:
            each.reward = reward + 0.1 * draw.standard_normal()
    for number, each in enumerate(made):
        if rewards:
            each.reward = rewards[number % len(rewards)]
        if advantages:
            each.advantages = float(advantages[number % len(advantages)])
        if groups:
            each.tokens[:prompt] = made[number - number % groups].tokens[:prompt]  # type: ignore[index]
        if alternate:
            each.tokens[:prompt] = made[number % alternate].tokens[:prompt]  # type: ignore[index]
    found = build_rollouts(made, msgspec.convert(dict(metadata or {}), Metadata))
    if full:
        logits = draw.standard_normal((3, full))
        rows = (logits - np.log(np.exp(logits).sum(1, keepdims=True))).astype(np.float32)
        places = np.array([prompt, prompt + 1, prompt + 2])
        found = found.with_columns(full_positions=places, engine_full_logprobs=rows, trainer_full_logprobs=rows)
    return found


def change_column(rollouts: Rollouts, change: Mapping[str, Any]) -> Rollouts:
    """Do one thing to a column, as `ColumnChange` says."""
    name = change["column"]
    if change.get("drop"):
        return Rollouts(rollouts.metadata, {key: value for key, value in rollouts.columns.items() if key != name})
    if "rows" in change:
        rows = change["rows"]
        if isinstance(rows, str):
            (block,) = rollouts.blocks()
            early = block.positions >= rollouts.prompt_lengths[block.owners] - 1
            rows = {"ones": np.ones, "zeros": np.zeros}[rows](len(early)) if rows in ("ones", "zeros") else early
            rows = {"response": block.after_prompt, "prompt": ~block.after_prompt}.get(change["rows"], rows)
        return rollouts.with_columns(**{name: np.array(rows, change["dtype"])})
    values = np.array(rollouts.columns[name])
    where: Any = slice(None)
    if "place" in change:
        first = rollouts.starts[:-1] + rollouts.prompt_lengths
        where = first + change["place"] if change["place"] >= 0 else rollouts.starts[1:] + change["place"]
    elif "every" in change or "of_token" in change:
        (block,) = rollouts.blocks()
        chosen = block.positions % change["every"] == 0 if "every" in change else rollouts.tokens == change["of_token"]
        where = np.flatnonzero(chosen & block.after_prompt)
    elif "sequence" in change:
        inside = rollouts.sequence(change["sequence"])
        begin = inside.start + change.get("at", 0)
        where = slice(begin, min(inside.stop, begin + change.get("number", inside.stop)))
    selected = (where, *_select_experts(change))
    part = values[selected]
    if "repeat" in change:
        # one after the other, so that a distance of 1 gives all of them the same
        for place in range(*where.indices(len(values))):
            values[(place, *selected[1:])] = values[(place - change["repeat"], *selected[1:])]
        return rollouts.with_columns(**{name: values})
    if "roll_layers" in change:
        part = np.roll(part, change["roll_layers"], 1)
    elif "reverse" in change:
        part = part[..., ::-1]
    elif "shift" in change:
        part = np.roll(part, change["shift"], 0)
    elif "ramp" in change:
        (block,) = rollouts.blocks()
        part = part - change["ramp"] * np.maximum(block.positions - rollouts.prompt_lengths[block.owners], 0)
    elif "value" in change:
        part = np.full_like(part, float(change["value"]))
    else:
        part = part * change.get("times", 1) + change.get("add", 0)
    values[selected] = part
    return rollouts.with_columns(**{name: values})


def _select_experts(change: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the index of the layers and the choices that are changed; () for all."""
    if "layers" not in change and "choice" not in change:
        return ()
    layers = change.get("layers", slice(None))
    return (layers, change["choice"]) if "choice" in change else (layers,)


def build_rollout_evidence(table: Mapping[str, Any], folder: Path | None = None) -> RolloutEvidence:
    """Make the evidence of a case: draw the rollouts and change them. folder: where its job is written."""
    case = msgspec.convert(table, RolloutCase)
    found = draw_rollouts(**case.rollouts) if case.chat is None else _tokenize_texts(case.chat["texts"])
    for change in table.get("changes", []):
        found = change_column(found, change)
    wrong = tuple(find_defects(found.columns, found.metadata))
    found = Rollouts(found.metadata, found.columns, wrong, "rollouts.safetensors")
    job = read_job({"job": case.job, "told": case.told}, folder) if case.job and folder is not None else None
    found = complete_from_job(found, job)
    floor = None if case.floor is None else NoiseFloor(case.floor, **case.floor_of)
    drawn_by, decode_text = None, None
    if case.chat is not None:
        decode_text = build_tokenizer().decode
    if case.chat is not None and "template" in case.chat:
        drawn_by = FakeCheckpoint(None, PromptTokenizer(build_tokenizer(), case.chat["template"], {}))
    if case.experts is not None:
        drawn_by = FakeCheckpoint(msgspec.convert(case.experts, ExpertLayout))
    return RolloutEvidence(
        "rollouts.safetensors",
        found,
        Thresholds(**case.gates),
        floor,
        decode_text=decode_text,
        drawn_by=drawn_by,
        job=job,
        is_replay=case.replay,
        weights=list_labelled_weights([msgspec.convert({"schema": SCHEMA, **sync}, SyncRecord) for sync in case.syncs]),
    )


def build_rollout_series(table: Mapping[str, Any]) -> RolloutSeries:
    """Make the series of files of a case."""
    case = msgspec.convert(table, RolloutSeriesCase)
    members = []
    for number, arguments in enumerate(case.files):
        each = build_rollout_evidence({"rollouts": arguments})
        members.append(SeriesMember.of(RolloutEvidence(f"step{number}.safetensors", each.rollouts)))
    return RolloutSeries.of(members, Thresholds(**case.gates))


def build_run_comparison(table: Mapping[str, Any]) -> RunComparison:
    """Make the two runs of a case."""
    case = msgspec.convert(table, RunComparisonCase)
    runs: list[RolloutSeries] = []
    for seed, first, arguments in ((0, case.first, case.run), (1000, 0, case.reference)):
        members = []
        for step in range(first, first + case.steps):
            is_changed = not runs and case.part <= step < case.back
            every = {"sequences": 16, "reward": 0.5} | arguments | (case.changed if is_changed else {})
            metadata = {"step": step} | every.pop("metadata", {})
            versions = {"versions": str(step)}
            if (lag := every.pop("lag", None)) is not None:
                metadata["trainer"] = metadata.get("trainer", {}) | {"weight_version": str(step + lag)}
            drawn = draw_rollouts(**versions | every, seed=step + seed, metadata=metadata)
            if runs and case.broken and step == case.steps - 1:
                drawn = change_column(drawn, {"column": "engine_logprobs", "rows": [0.0], "dtype": "float32"})
            wrong = tuple(find_defects(drawn.columns, drawn.metadata))
            drawn = Rollouts(drawn.metadata, drawn.columns, wrong)
            members.append(SeriesMember.of(RolloutEvidence(f"step{step}.safetensors", drawn)))
        runs.append(RolloutSeries.of(members, Thresholds()))
    return RunComparison(runs[0], runs[1])
