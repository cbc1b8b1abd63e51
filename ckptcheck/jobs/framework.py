"""The description of a framework that a reader provides, and the functions that turn a document into settings by it."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ckptcheck.jobs.document import Document, Leaf
from ckptcheck.jobs.fields import FIELDS, Kind
from ckptcheck.jobs.interpolation import ResolvedValue, resolve
from ckptcheck.jobs.job import Job, Setting, UnknownKey, shown
from ckptcheck.jobs.python_source.script import PythonScript

Style = Literal["hydra", "flags", "dotted"]
HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmM])")
"""A number with a unit, as vLLM's options take it: 8k, 8K, 1.5M."""
UNITS = {"k": 1000, "K": 1024, "m": 1_000_000, "M": 1024**2}
SWITCHES = {
    "true": True,
    "false": False,
    "yes": True,
    "no": False,
    "on": True,
    "off": False,
    "": True,
    "1": True,
    "0": False,
}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}


@dataclass(frozen=True)
class FieldSource:
    """Where a framework's configuration holds the value of one field of `FIELDS`."""

    paths: tuple[str, ...] = ()
    """Dotted paths; the first one that the document writes counts. A null counts as not written."""
    default: object = None
    """The value where no path is written and the framework has no table of dated defaults; None where it is not known."""
    of: str = ""
    """Whose default it is, for the report."""
    read: Callable[[object], object] | None = None
    """Translates the written value into the field's terms; it returns None for a value that it does not know."""


@dataclass(frozen=True)
class Framework:
    """A reader: how to recognise a framework's configurations, and how to read them."""

    name: str
    """The name for ``--framework``."""
    title: str
    """The name that reports show."""
    style: Style
    """How its command lines set keys: hydra ``a.b=c``, flags ``--a-b c``, dotted ``--a.b c``."""
    sources: Mapping[str, FieldSource]
    """Name in `FIELDS` → where the framework's configuration holds it."""
    signs: tuple[tuple[str, ...], ...] = ()
    """Groups of keys: a document that has all keys of one group belongs to this framework."""
    launches: re.Pattern[str] | None = None
    """Matches a command that starts the framework."""
    program: re.Pattern[str] | None = None
    """Matches the word after which the flags begin, where another program stands before it; None for the first program."""
    standard: re.Pattern[str] | None = None
    """Matches the names of the framework's own configurations, whose values `sources` has as defaults."""
    known_keys: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Section → all key names that it can have, whether the reader uses them or not; any other key is reported."""
    config_options: tuple[str, ...] = ()
    """Flags of the launch line that name a configuration file; other flags replace its values (for the style flags)."""
    engine_launches: re.Pattern[str] | None = None
    """Matches another command of the launch script, which starts the job's engine; its flags go below ``server``."""
    read_python: Callable[[PythonScript], Document | None] | None = None
    """Returns the configuration that a Python script builds; None where it builds none of this framework."""
    package: str = ""
    """The package whose classes a Python script configures: its own source is not followed, as `read_python` knows its names."""
    finish: Callable[[Job, Document], None] = lambda job, document: None
    """Sets the fields that depend on more than one key; called after `sources` are read."""
    is_hydra: bool = False
    """Whether Hydra or its parser of overrides reads the command line, and refuses what it does not take."""
    drops_unknown: bool = False
    """Whether the framework drops keys that it does not have without a word; for those with a table of names."""
    open_sections: tuple[str, ...] = ()
    """Where the framework stops at a key that it does not have: the sections that take any key, each with its dot."""
    fork: Callable[[Document, Path], str] = lambda document, folder: ""
    """Returns the name of the table of a fork that the job starts instead, "" for none. folder: the job's."""

    data: tuple[str, ...] = ()
    """Keys that name files with data."""
    ports: tuple[tuple[str, str], ...] = ()
    """(Key of a port on which the job itself listens, key that has to be on for that; with ! one that is not written)."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Beginning of a file's name → the section that the file fills, where a job is split into several files."""
    resolvers: Mapping[str, Callable[[float, float], float]] = field(default_factory=dict)
    """The resolvers of OmegaConf that the framework registers, as far as they compute with two numbers."""
    is_engine: bool = False
    """Whether this is an inference engine that is started without a trainer; looked for after all trainers."""
    precedence: int = 0
    """Where a command starts two frameworks by their patterns, the one with the lower number counts."""

    def matches(self, document: Document) -> bool:
        """Return whether a document has the keys of this framework."""
        return any(all(document.has(key) for key in keys) for keys in self.signs)


def fill_job(job: Job, document: Document, framework: Framework) -> None:
    """Fill the job's settings and unknown keys from the document."""
    for name, source in framework.sources.items():
        job.settings[name] = read_setting(job, document, name, source)
    for section, known in framework.known_keys.items():
        for rest, leaf in document.iter_section(section) if section else document.leaves.items():
            key = rest.partition(".")[0]
            if key not in known and not leaf.is_default:
                job.unknown_keys.append(UnknownKey(leaf, near=find_closest_name(key, known)))
    framework.finish(job, document)
    if (job.number("trainer.ep") or 1) > 1 and job["trainer.moe"].status == "unknown":
        set_derived(job, "trainer.moe", True, job["trainer.ep"])
    job.settings = {name: setting for name, setting in job.settings.items() if setting.status != "unknown"}


def read_setting(job: Job, document: Document, name: str, source: FieldSource) -> Setting:
    """Return the setting of one field; a value of the wrong kind is added to the job's unknown keys."""
    for path in source.paths:
        resolved = resolve(document, path)
        if resolved is None or (resolved.value is None and not resolved.reason):
            continue
        setting = make_setting(job, resolved, name, source.read)
        if setting is not None:
            return setting
        return Setting()
    if source.paths and job.is_incomplete:
        return Setting(None, "unresolved", f"a file that ckptcheck could not read may set it: {job.notes[0]}")
    if source.paths and document.lost is not None:
        return Setting(
            None, "unresolved", f"the arguments from line {document.lost.begin} on are never passed, see JOB036"
        )
    if job.defaults is not None and (dated := job.defaults.find(name, job.text("trainer.backend") or "")) is not None:
        if dated.reason:
            return Setting(None, "unresolved", dated.reason)
        return Setting(dated.value, "default", f"default of {dated.owner}")
    if source.default is not None:
        return Setting(source.default, "default", f"default of {source.of}")
    return Setting()


def make_setting(
    job: Job, found: ResolvedValue, name: str, read: Callable[[object], object] | None = None
) -> Setting | None:
    """Return the setting for a resolved value, or None (and an unknown key in the job) where the value has the wrong kind.

    Args:
        job: The job, whose unknown keys get the value where it cannot be used.
        found: The value that the document has.
        name: The field in `FIELDS`.
        read: Translates the value before its kind is checked.
    """
    if found.reason:
        return Setting(None, "unresolved", found.reason, found.leaf)
    value = read(found.value) if read is not None else found.value
    kind = FIELDS[name][0]
    value = coerce(value, kind)
    if value is None:
        expected = {"number": "a number", "flag": "true or false", "text": "a name"}[kind]
        why = f"{shown(found.value)} is not {expected} that ckptcheck knows"
        is_wrong = kind == "number" and read is None and found.value != "auto"
        leaf = replace(found.leaf, value=found.value) if is_wrong else found.leaf
        unknown_key = UnknownKey(leaf, why, values=("a number",) if is_wrong else ())
        # Several fields may be read from one key.
        if unknown_key not in job.unknown_keys:
            job.unknown_keys.append(unknown_key)
        return None
    return Setting(value, "default" if found.leaf.is_default else "set", "", found.leaf)


def derive_setting(found: ResolvedValue, value: object) -> Setting:
    """Return the setting of a value that follows from a written one; it stays unresolved where that one is."""
    return Setting(None if found.reason else value, "unresolved" if found.reason else "set", found.reason, found.leaf)


def find_written(document: Document, *paths: str) -> ResolvedValue | None:
    """Return the value of the first path that is written and not null; None if there is none."""
    for path in paths:
        found = resolve(document, path)
        if found is not None and (found.value is not None or found.reason):
            return found
    return None


def is_switched_on(document: Document, *paths: str) -> bool:
    """Return whether a flag is written and true, or not known; a flag without a value is true."""
    found = find_written(document, *paths)
    return found is not None and (bool(found.reason) or coerce(found.value, "flag") is True)


def read_section(document: Document, section: str) -> dict[str, ResolvedValue]:
    """Return the values below a section: path below it → value. The section may be written as one mapping: ``a.b={c: 1}``."""
    values: dict[str, ResolvedValue] = {}
    whole = resolve(document, section)
    if whole is not None and isinstance(whole.value, dict):
        values |= {str(key): ResolvedValue(value, whole.leaf) for key, value in whole.value.items()}
    for rest, _ in document.iter_section(section):
        if (resolved := resolve(document, f"{section}.{rest}")) is not None:
            values[rest] = resolved
    return values


def expand_negations(document: Document, is_key: Callable[[str], bool]) -> None:
    """Make ``--no_x`` of a command line x = false. is_key: whether the framework has a key of a name as it is."""
    for path, leaf in list(document.leaves.items()):
        if path.startswith("no_") and leaf.value is True and not is_key(path):
            document.remove(path)
            document.put(path.removeprefix("no_"), replace(leaf, value=False))


def expand_mapping(document: Document, path: str) -> None:
    """Put the keys of a JSON object below its path: ``--generation_kwargs '{"top_p": 0.9}'``; other values stay as they are."""
    leaf = document.leaves.get(path)
    value = leaf.value if leaf is not None else None
    if isinstance(value, str) and value.startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return
    if leaf is not None and isinstance(value, dict):
        for key, part in value.items():
            document.put(f"{path}.{key}", Leaf(part, f"{leaf.key}.{key}", leaf.file, leaf.line, leaf.reason))


def coerce(value: object, kind: Kind) -> object:
    """Convert a value to a kind; None where that is not possible.

    >>> coerce("8k", "number"), coerce("", "flag"), coerce("hot", "number"), coerce(True, "number")
    (8000, True, None, None)
    """
    if kind == "flag":
        if isinstance(value, bool):
            return value
        return SWITCHES.get(str(value).lower()) if isinstance(value, (str, int)) else None
    if kind == "number":
        if isinstance(value, bool):
            return None
        if isinstance(value, (int, float)):
            # NaN and infinity are not below it either.
            return value if abs(value) < 1e15 else None
        if isinstance(value, str):
            if match := HUMAN.fullmatch(value):
                return int(float(match[1]) * UNITS[match[2]])
            try:
                number = float(value)
            except ValueError:
                return None
            return (
                (int(number) if number.is_integer() and value.lstrip("-+").isdigit() else number)
                if abs(number) < 1e15
                else None
            )
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    return str(value) or None


def is_positive(value: object) -> object:
    """Return whether a number is above 0; None for what is no number."""
    return value > 0 if isinstance(value, (int, float)) else None


def negate(value: object) -> object:
    """Return the opposite of a flag; None for what is none."""
    return not value if isinstance(value, bool) else None


def name_backend(value: object) -> object:
    """Return the name of a training backend: fsdp2 → fsdp, megatron_train → megatron."""
    name = str(value).removesuffix("_train").removesuffix("_infer")
    return "fsdp" if name.startswith("fsdp") else name


def name_router_replay(value: object) -> object:
    """Return whose choice of experts the trainer repeats: R3 → rollout, R2 → recompute."""
    return {"R3": "rollout", "R2": "recompute"}.get(str(value), "none")


def name_loss_weight(value: object) -> object:
    """Return the loss where it takes its ratio as a weight, or else none: cispo → cispo, grpo → none, true → cispo."""
    name = "cispo" if value is True else str(value)
    return name if name in ("cispo", "vespo", "tis") else "none"


def normalize_dtype(value: object) -> object:
    """Return the full name of a dtype: bf16 → bfloat16, torch.half → float16."""
    text = str(value).removeprefix("torch.").lower()
    return DTYPES.get(text, text)


def set_derived(job: Job, name: str, value: object, like: Setting, source: str = "") -> None:
    """Set a field to a value that follows from another setting.

    Args:
        job: The job to change.
        name: The field in `FIELDS`.
        value: The value that follows.
        like: The setting it follows from; the field gets its status and place, and stays unresolved where `like` is.
        source: Replaces the source of `like`.
    """
    if like.status == "unresolved":
        job.settings[name] = like
    else:
        job.settings[name] = Setting(value, like.status, source or like.source, like.leaf)


def set_default(job: Job, name: str, value: object, of: str) -> None:
    """Set a field to a default, unless it already has a value. of: whose default it is, for the report."""
    if job[name].status == "unknown":
        job.settings[name] = Setting(value, "default", f"default of {of}")


Bound = ResolvedValue | float | None
"""A bound of ratios: as it is written, a default, or None for none."""


def set_weights(
    job: Job,
    like: Setting,
    of: str,
    weight: str = "none",
    cut: tuple[Bound, Bound] = (None, None),
    mask: str = "none",
    kept: tuple[Bound, Bound] = (None, None),
) -> None:
    """Set what the importance correction between engine and trainer does to the loss.

    Args:
        job: The job to change.
        like: The setting that turns the correction on.
        of: Whose defaults the bounds are, for the report.
        weight: What one weight of the loss is taken over, as `algorithm.weight` in `FIELDS`.
        cut: The least and the largest weight; others are cut to them.
        mask: What is left out of the loss as a whole, as `algorithm.mask`.
        kept: The least and the largest ratio that is not left out.
    """
    for kind, level, bounds in (("weight", weight, cut), ("mask", mask, kept)):
        set_derived(job, f"algorithm.{kind}", level, like)
        for end, bound in zip(("low", "high"), bounds, strict=True):
            name = f"algorithm.{kind}_{end}"
            if level == "none" or bound is None:
                continue
            if isinstance(bound, ResolvedValue):
                job.settings[name] = make_setting(job, bound, name) or Setting()
            else:
                job.settings[name] = Setting(bound, "default", f"default of {of}")


def split_names(text: str) -> frozenset[str]:
    """Split a text at blanks into a set of names."""
    return frozenset(text.split())


def find_closest_name(name: str, known: frozenset[str], cutoff: float = 0.82) -> str:
    """Return the known name most similar to a name, "" if none is similar.

    cutoff: least similarity by difflib, 0 to 1; the same words in another order are always similar enough.

    >>> find_closest_name("vllm_enable_is_correction", frozenset(("enable_vllm_is_correction", "vllm_is_correction_type")))
    'enable_vllm_is_correction'
    """
    if len(name) >= 80:
        return ""
    words = sorted(name.split("_"))
    same_words = [other for other in sorted(known) if sorted(other.split("_")) == words]
    return next(iter(same_words or difflib.get_close_matches(name, sorted(known), 1, cutoff)), "")


def count_gpus(
    job: Job, document: Document, paths: tuple[str, str], of: str, defaults: tuple[int, int] = (1, 8)
) -> None:
    """Set the number of GPUs that train: the number of nodes times the GPUs of a node.

    paths: where the document holds the two numbers. of: whose defaults these are, for the report.
    """
    resolved_values = [resolve(document, path) for path in paths]
    nodes, gpus_per_node = (
        resolved.value if resolved else default for resolved, default in zip(resolved_values, defaults, strict=True)
    )
    leaf = next((resolved.leaf for resolved in resolved_values if resolved), None)
    if isinstance(nodes, int) and isinstance(gpus_per_node, int):
        job.settings["trainer.world"] = Setting(
            nodes * gpus_per_node, "set" if leaf else "default", f"default of {of}", leaf
        )


UNEVEN_STAGES = (
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "pipeline_model_parallel_layout",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
)
"""Settings of megatron-core 0.16 (`TransformerConfig`) by which a stage has another number of layers than its share."""


def set_uneven_stages(job: Job, document: Document, side: str, section: str) -> None:
    """Set whether a job itself says how Megatron spreads layers over pipeline stages.

    Args:
        job: The job to change.
        document: The configuration.
        side: trainer or critic.
        section: The section that holds the settings of megatron-core's `TransformerConfig`.

    """
    for name in UNEVEN_STAGES:
        written = resolve(document, f"{section}.{name}")
        if written is not None and (written.reason or written.value not in (None, False)):
            job.settings[f"{side}.uneven_stages"] = Setting(True, "set", "", written.leaf)


def remove_unused_critic(job: Job) -> None:
    """Remove the settings of a critic from a job that does not have one, so that no rule judges them."""
    if job.flag("critic.enabled") is False:
        for name in [name for name in job.settings if name.startswith("critic.") or name == "checkpoint.critic"]:
            del job.settings[name]


def leave_out_unresolved(job: Job, *names: str) -> None:
    """Remove fields that are not resolved and need not be: folders named by the time, which only ``--here`` looks at."""
    for name in names:
        if job[name].status == "unresolved":
            del job.settings[name]


def remove_settings(job: Job, *beginnings: str) -> None:
    """Remove the settings of what the job does not start, so that no rule judges them. beginnings: of names in `FIELDS`."""
    for name in [name for name in job.settings if name.startswith(beginnings)]:
        del job.settings[name]


def environment_flag(document: Document, name: str) -> Setting:
    """Read an environment variable that a script exports as a flag: 1, true, yes and on mean on."""
    leaf: Leaf | None = document.environment.get(name)
    if leaf is None:
        return Setting()
    if leaf.reason:
        return Setting(None, "unresolved", leaf.reason, leaf)
    return Setting(str(leaf.value).lower() in ("1", "true", "yes", "on"), "set", "", leaf)
