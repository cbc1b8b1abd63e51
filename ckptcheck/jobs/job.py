"""The evidence of preflight rules: the settings of one RL job, where each is written, and which are not known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from ckptcheck.checkpoint.document import clip
from ckptcheck.jobs.dated_defaults import describe_version
from ckptcheck.jobs.document import AmbiguousMerge, Leaf, LostArguments, Refusal
from ckptcheck.jobs.fields import FIELDS, Kind
from ckptcheck.jobs.machine import Machine
from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.report import Reading, Section
from ckptcheck.linter.rule import Problem, Severity, Skip

if TYPE_CHECKING:
    from ckptcheck.checkpoint.vocabulary import Vocabulary
    from ckptcheck.compare.bridge.model_dimensions import ModelDimensions
    from ckptcheck.jobs.dated_defaults import DatedDefaults
    from ckptcheck.jobs.interpolation import ResolvedValue
    from ckptcheck.jobs.issue import MetIssue
    from ckptcheck.linter.rule import Finding

Status = Literal["set", "default", "unresolved", "unknown"]
APART = (
    "dp_size", "data_parallel_size", "enable_dp_attention", "pp_size", "pipeline_parallel_size", "moe_dp_size", "attn_cp_size",
)  # fmt: skip
"""Arguments of SGLang that leave fewer ranks than GPUs to share the heads."""


@dataclass(frozen=True)
class Setting:
    """The value of one setting of a job, and where the value comes from."""

    value: object = None
    """The value; None where the status is unresolved or unknown."""
    status: Status = "unknown"
    """set: a file or the command line writes the value; default: a framework or engine sets it, which `source` names;
    unresolved: it is written, but its value is known only when the job runs (`source` says why); unknown: it is not
    written, and no default is known."""
    source: str = ""
    """Whose default the value is, or why the value cannot be resolved."""
    leaf: Leaf | None = None
    """Where the value is written; None for a default."""

    @property
    def is_known(self) -> bool:
        """Whether the job or a default determines the value."""
        return self.status in ("set", "default")

    @property
    def place(self) -> str:
        """The place of the value as messages write it: ``job.yaml:12``, ``default of vLLM 0.32.0``, ``command line``."""
        if self.leaf is None:
            return self.source
        if self.leaf.file is None:
            return "command line"
        return f"{self.leaf.file}:{self.leaf.line}" if self.leaf.line else self.leaf.file


@dataclass(frozen=True)
class UnknownKey:
    """A key that the framework or the engine does not have, or whose value has the wrong kind."""

    leaf: Leaf
    """The key and its place."""
    why: str = ""
    """What is wrong with the value; "" where the key itself is unknown."""
    near: str = ""
    """A known key with a similar name; "" where there is none."""
    dropped_by: str = ""
    """The program that silently drops the key; "" if none does, or if that is not known."""
    refused_by: str = ""
    """The program that stops at the key or its value; "" if none does, or if that is not known."""
    values: tuple[str, ...] = ()
    """The values that the key takes, where it has another; () where the key itself is unknown."""


@dataclass(frozen=True)
class UnreadKey:
    """A key that the framework's configuration takes and its code reads nowhere."""

    leaf: Leaf
    """The key and its place."""
    owner: str
    """The framework, and since when it is so: ``verl since 0.8.0``."""
    in_examples: bool
    """Whether the framework's own examples set the key."""


@dataclass(frozen=True)
class NamedCheckpoint:
    """A checkpoint that the job names, and the result of its scan.

    The fields from `experts` on come from the checkpoint's config.json; they are None where the checkpoint is not scanned or that
    file does not say.
    """

    named: str
    """The name of the checkpoint as the job writes it."""
    path: str = ""
    """The path of the checkpoint on this machine, or its address in an object store."""
    reason: str = ""
    """Why the checkpoint is not scanned; "" where it is."""
    errors: tuple[Finding, ...] = ()
    """The findings of severity error."""
    untracked_steps: tuple[str, ...] = ()
    """The steps that Megatron saved in the folder, where its file that names the newest is not there."""
    consumers: tuple[str, ...] = ()
    """The consumers whose reading of the checkpoint's ignore list the scan compares."""
    experts: bool | None = None
    """Whether the model has experts."""
    context: int | None = None
    """max_position_embeddings, in tokens; None too where the config scales positions."""
    dtype: str | None = None
    """The dtype in which the checkpoint is stored."""
    quantized: str | None = None
    """The quantization method, or "none"."""
    weight_bytes: int | None = None
    """The bytes of its tensors."""
    cache_scales: bool = False
    """Whether it has scales of an fp8 key-value cache."""
    dimensions: ModelDimensions | None = None
    """The dimensions of the model."""
    intermediate: int | None = None
    """The width of the feed-forward layers; None too for a model with experts."""
    vocab_size: int | None = None
    """The rows of the embedding that its config declares."""
    vocabulary: Vocabulary | None = None
    """The tokens of its tokenizer; None where they are not known."""
    end_token: str | None = None
    """The EOS of its tokenizer."""
    turn_ends: tuple[str, ...] | None = None
    """The tokens that end a turn in its chat template and at which its generation_config.json stops; None where not known."""
    sampling: Mapping[str, float] | None = None
    """The sampling parameters of its generation_config.json."""

    def name_decider(self, file: str) -> str:
        """Return why a rule is skipped that needs a file of this checkpoint, which is not read."""
        return f"{file} of {self.named} decides it: {self.reason}"


@dataclass
class Job(EvidenceDefaults):
    """The evidence of rules on jobs: the settings of one RL job in the terms of `FIELDS`."""

    target: str
    """The first file, as the user names it."""
    framework: str
    """The framework's name for display."""
    reader: str = ""
    """The framework's name for ``--framework``."""
    launch: tuple[str, ...] = ()
    """The words of the command that starts it, without their unknown parts; () where no script does."""
    sender: str = ""
    """The program by which a script starts it in another shell: bash, ssh, docker, ray; "" where it starts it itself."""
    is_in_code: bool = False
    """Whether a Python script makes its configuration, and reads no command line for it."""
    settings: dict[str, Setting] = field(default_factory=dict)
    """Name in `FIELDS` → setting."""
    unknown_keys: list[UnknownKey] = field(default_factory=list)
    """Keys that the reader does not know, in the sections whose keys it lists in full; and values of the wrong kind."""
    unread_keys: Sequence[UnreadKey] = ()
    """Keys that the framework's code reads nowhere, as far as the job sets them."""
    keys_left: str = ""
    """What is not known of keys that the reader does not list in full; "" where every key is checked."""
    notes: list[str] = field(default_factory=list)
    """One sentence for each file that the job names and ckptcheck cannot read."""
    engine_version: str = ""
    """The engine's version, from the user or from a file that pins it; "" if neither names it."""
    engine_arguments: Mapping[str, ResolvedValue] = field(default_factory=dict)
    """The arguments that the job gives its engine, as written: name with underscores, dotted for a key of a JSON object → value."""
    issues: Sequence[MetIssue] = ()
    """The known issues of its framework and engine whose settings the job has."""
    te_version: str = ""
    """The version of Transformer Engine, from the user or from a file that pins it."""
    defaults: DatedDefaults | None = None
    """The framework's defaults in the version that the job runs with; None where ckptcheck has no table of it."""
    lists_settings: bool = False
    """Whether the report lists every setting, and so what the job leaves to its engine."""
    unnamed: tuple[str, ...] = ()
    """The variables that the user gives and no file of the job names."""
    takes_flags: str = ""
    """The Python script that takes settings from a command line which is not here; "" where there is none."""
    defaulted: tuple[str, ...] = ()
    """Variables of the environment that have the defaults which the job gives them."""
    files: tuple[str, ...] = ()
    """The files that were read."""
    is_incomplete: bool = False
    """Whether a configuration could not be read. It may set anything, so that a framework's default does not hold."""
    refusals: list[Refusal] = field(default_factory=list)
    """The overrides and parts of the configuration that Hydra refuses."""
    absent: Sequence[Refusal] = ()
    """The files that a script sources and at which it stops, as they are not there."""
    gaps: Mapping[str, str] = field(default_factory=dict)
    """Part of the configuration that ckptcheck could not read → why, and what to give."""
    lost: LostArguments | None = None
    """The arguments after the end of a launch line that ends too early."""
    ambiguous: list[AmbiguousMerge] = field(default_factory=list)
    """Values that depend on the version of PyYAML, as far as nothing else sets them."""
    replaced: Mapping[str, Leaf] = field(default_factory=dict)
    """Key, as written, whose value replaced that of another file → the replaced value."""
    checkpoints: Mapping[str, NamedCheckpoint] = field(default_factory=dict)
    """Name in `FIELDS` → the checkpoint it names; `scan_named_checkpoints` fills it."""
    model_of_flags: NamedCheckpoint | None = None
    """The trained model, where flags of the job describe it to Megatron; None where none do."""
    tokenizers: Mapping[str, NamedCheckpoint] = field(default_factory=dict)
    """Name in `FIELDS` → the tokenizer that it names, as far as its vocabulary is here; `scan_named_checkpoints` fills it."""
    machine: Machine | None = None
    """The job's paths, ports and disks on this machine; None without ``--here``."""
    sections: tuple[Section, ...] = ()
    """What the report shows beside the findings: the commands that check the rest and, on request, the settings."""
    kind: str = "job"
    """The kind of evidence, to which rules refer by ``on``."""
    asked_unresolved: list[str] = field(default_factory=list, repr=False, compare=False)
    """The unresolved settings that this view's rule has read."""

    def __getitem__(self, name: str) -> Setting:
        assert name in FIELDS, name
        setting = self.settings.get(name, Setting())
        if setting.status == "unresolved":
            self.asked_unresolved.append(name)
        return setting

    def view_for(self, kind: str) -> Job | None:
        """Return the job as one rule sees it: the view records the unresolved settings that the rule reads."""
        return replace(self, asked_unresolved=[]) if kind == self.kind else None

    def explain_unread(self, view: object) -> str:
        """Return why a rule without findings has not passed: it read a setting that is not resolved."""
        if not isinstance(view, Job) or not view.asked_unresolved:
            return ""
        return self._why_unresolved(view.asked_unresolved[0])

    def _why_unresolved(self, name: str) -> str:
        setting = self.settings[name]
        if self.lost is not None and setting.leaf is None:
            return setting.source
        return f"{setting.leaf.key if setting.leaf else name} is not resolved: {setting.source}"

    def text(self, name: str) -> str | None:
        """Return the value of a text setting, or None where it is not known."""
        value = self._of(name, "text")
        return None if value is None else str(value)

    def number(self, name: str) -> float | None:
        """Return the value of a number setting, or None where it is not known."""
        value = self._of(name, "number")
        return value if isinstance(value, (int, float)) else None

    def flag(self, name: str) -> bool | None:
        """Return the value of a flag setting, or None where it is not known."""
        value = self._of(name, "flag")
        return value if isinstance(value, bool) else None

    def _of(self, name: str, kind: Kind) -> object:
        assert FIELDS[name][0] == kind, name
        setting = self[name]
        return setting.value if setting.is_known else None

    def require_resolved(self, *names: str) -> None:
        """Raise Skip where one of these settings is written and cannot be resolved. The rule itself handles unknown ones."""
        for name in names:
            if self[name].status == "unresolved":
                raise Skip(self._why_unresolved(name))

    def require_read(self, name: str, file: str) -> None:
        """Raise Skip where the checkpoint that a setting names is not here: what its file would decide is not known.

        name: in `FIELDS`; file: of the checkpoint.
        """
        checkpoint = self.checkpoints.get(name)
        is_here = file == "config.json" and checkpoint is not None and checkpoint.quantized is not None
        if checkpoint is not None and checkpoint.reason and not is_here:
            raise Skip(checkpoint.name_decider(file))

    def describe(self, name: str) -> str:
        """Write a value with its place: ``0.7 (job.yaml:12)``."""
        setting = self[name]
        return f"{shown(setting.value)} ({setting.place})" if setting.place else shown(setting.value)

    def problem(self, message: str, at: str, hint: str | None = None, severity: Severity | None = None) -> Problem:
        """Make a problem at the place of a setting. at: the setting's name in `FIELDS`; severity: None for the rule's."""
        return self.problem_at(self[at].leaf, message, hint, severity)

    def problem_at(
        self,
        leaf: Leaf | None,
        message: str,
        hint: str | None = None,
        severity: Severity | None = None,
        follows: tuple[str, ...] = (),
    ) -> Problem:
        """Make a problem at the place of a leaf. severity: None for the rule's; follows: as of `Problem`."""
        file, line = (leaf.file, leaf.line) if leaf is not None and leaf.file is not None else (None, None)
        key = leaf.key if leaf is not None else None
        return Problem(message, file=file, key=key, hint=hint, line=line, severity=severity, follows=follows)

    @property
    def engine_shares_heads(self) -> bool:
        """Whether all ranks of the engine's TP share the attention heads."""
        is_apart = self.engine == "sglang" and any(name in self.engine_arguments for name in APART)
        return self.engine in ("vllm", "sglang") and (self.number("engine.tp") or 1) > 1 and not is_apart

    @property
    def undivided_heads(self) -> int | None:
        """The number of attention heads that the engine's TP does not divide; None where it does, or where it is not known."""
        checkpoint = self.checkpoints.get("checkpoint.model")
        heads = checkpoint.dimensions.heads if checkpoint is not None and checkpoint.dimensions else None
        return heads if heads and self.engine_shares_heads and heads % (self.number("engine.tp") or 1) else None

    def is_of_heads(self, met: MetIssue) -> bool:
        """Return whether an issue is of an engine's TP that has to change anyhow, as it does not divide the heads."""
        leaf = self["engine.tp"].leaf
        own = {"engine.tp", *((leaf.key.lstrip("-").replace("-", "_"),) if leaf is not None else ())}
        return (
            not met.unsure
            and len(met.issue.part) == 1
            and own >= met.issue.part.keys()
            and self.undivided_heads is not None
        )

    @property
    def penalties(self) -> list[str]:
        """The names of the penalties, and min_p, with which rollouts are sampled, as in `FIELDS`."""
        neutral = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
        if self.number("rollout.temperature") != 0:
            neutral["min_p"] = 0
        return [f"rollout.{name}" for name, off in neutral.items() if self.number(f"rollout.{name}") not in (None, off)]

    @property
    def engine(self) -> str:
        """The inference engine: vllm, sglang, another, or "" where it is not known."""
        return self.text("engine.name") or ""

    @property
    def updates_weights(self) -> bool:
        """Whether a trainer updates the engine's weights: a job that starts an engine alone has none."""
        return self.framework not in ("vLLM", "SGLang")

    @cached_property
    def moe(self) -> bool | None:
        """Whether the model has experts, from the job's settings or else its checkpoints; None where neither says."""
        has_experts = self.flag("trainer.moe")
        if has_experts is not None:
            return has_experts
        answers = [checkpoint.experts for checkpoint in self.checkpoints.values() if checkpoint.experts is not None]
        return any(answers) if answers else None

    @property
    def subject(self) -> str:
        """The job in one line: ``verl · megatron TP2 → vllm 0.18.1 TP4``."""
        programs = []
        if backend := self.text("trainer.backend"):
            programs.append(" ".join([backend, *self._parallel("trainer", ("tp", "pp", "ep", "cp"))]))
        if self.engine:
            version = f" {self.engine_version}" if self.engine_version else ""
            programs.append(" ".join([f"{self.engine}{version}", *self._parallel("engine", ("tp",))]))
        critic = ""
        if self.flag("critic.enabled") and (backend := self.text("critic.backend")):
            critic = " ".join(["critic", backend, *self._parallel("critic", ("tp", "pp", "ep", "cp"))])
        return " · ".join(part for part in (self.framework, " → ".join(programs), critic) if part)

    def _parallel(self, side: str, names: tuple[str, ...]) -> list[str]:
        """Write the parallel sizes above 1 of the trainer or the engine: ``["TP2", "PP4"]``."""
        sizes = [(name, self.number(f"{side}.{name}")) for name in names]
        return [f"{name.upper()}{size:g}" for name, size in sizes if size and size > 1]

    @property
    def unread(self) -> Mapping[str, str]:
        """Part of the configuration that ckptcheck could not read → why. No rule passes while there is one."""
        return self.gaps

    @property
    def reading(self) -> Reading:
        """What was read: framework, engine, files, and how many settings."""
        known = [setting for setting in self.settings.values() if setting.is_known]
        written = sum(setting.status == "set" for setting in known)
        unresolved = [
            f"{setting.leaf.key} ({setting.place})" if setting.leaf else name
            for name, setting in self.settings.items()
            if setting.status == "unresolved" and (setting.leaf or self.lost is None)
        ]
        reading: dict[str, str | int | list[str]] = {
            "framework": describe_version(self.defaults) if self.defaults is not None else self.framework,
            "engine": f"{self.engine} {self.engine_version or '(no file names its version)'}"
            if self.engine
            else "none: it trains on recorded rollouts"
            if self.flag("debug.train_only") or self.text("debug.load_rollouts") is not None
            else "not known",
            "files": list(self.files),
            "settings": f"{written} of the job, {len(known) - written} defaults",
        }
        if self.keys_left:
            reading["keys"] = self.keys_left
        if self.takes_flags:
            reading["arguments"] = (
                f"none: {self.takes_flags} takes more from its command line; give them after the file, as key=value"
            )
        if self.defaulted and self.lists_settings:
            names = ", ".join(f"${name}" for name in self.defaulted)
            reading["environment"] = f"{names} with the default in the job; --env NAME=VALUE gives another value"
        if self.unnamed:
            reading["given"] = (
                f"{', '.join(self.unnamed)}: no file of the job names it; only a program that it starts can read it"
            )
        if unresolved:
            reading["not resolved"] = list(dict.fromkeys(unresolved))
        return reading

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of files read; a configuration has no tensors."""
        return {"files": len(self.files), "tensors": 0, "bytes": 0}


def build_settings_section(job: Job) -> Section:
    """Build the table of all known settings: name, value, place."""
    rows = []
    for name in FIELDS:
        setting = job[name]
        if setting.status == "unresolved":
            rows.append(
                (name, "not resolved", f"{setting.place}: {setting.source}" if setting.leaf else setting.source)
            )
        elif setting.is_known:
            rows.append((name, shown(setting.value), setting.place))
    return Section("What the job says", ("setting", "value", "from"), tuple(rows))


def shown(value: object) -> str:
    """Write a value as messages show it.

    >>> shown(True), shown(0.7), shown(8192.0), shown("flash"), shown(None)
    ('on', '0.7', '8192', 'flash', 'none')
    """
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}" if abs(value) < 1e6 else f"{value:.0f}"
    return "none" if value is None else clip(str(value), 60)
