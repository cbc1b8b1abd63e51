"""How a verb declares its options: help, range, names and what they exclude, typed once beside the parameter.

The command line, the help, the page of the API and the check of arguments are made from these declarations::

    def diff(first: Target, second: Target, *, atol: Annotated[float, Option("Absolute tolerance.", within=FROM_ZERO)] = 0.0): ...

A parameter that has no declaration is Python's alone: an observer, a runner.
"""

import os
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

StrPath = str | os.PathLike[str]
Paths = StrPath | Sequence[StrPath]
Words = str | Sequence[str]
TextOrJson = Literal["text", "json"]


class Range(msgspec.Struct, frozen=True):
    """The numbers that an option takes, with both ends; None: any."""

    least: float | None = None
    most: float | None = None


ANY = Range()
FROM_ZERO = Range(0)
FROM_ONE = Range(1)
SHARE = Range(0, 1)
PENALTY = Range(-2, 2)
"""What engines take: vLLM and SGLang refuse others."""
SEQUENCE = Range(4)
"""Tokens of a sequence: with fewer there is nothing to compare."""


class Option(msgspec.Struct, frozen=True):
    """What is known of one option beside its type and its default, which the signature has."""

    help: str
    names: str = ""
    """Its spelling on the command line, if not the parameter's name: ``--from``, ``-o --output``, ``--scan/--no-scan``."""
    metavar: str = ""
    shown: str = ""
    """The default in the help, if the value itself says nothing: ``cores`` for None."""
    within: Range = ANY
    """The numbers that it takes."""
    panel: str = ""
    """Heading of the help below which it stands; "" for the few that most users want."""
    without: tuple[str, ...] = ()
    """Parameters that have no effect beside this one."""
    because: str = ""
    """Why they have none."""
    needs: tuple[str, ...] = ()
    """Parameters: without any of them, this one has no effect."""
    hint: str = ""
    """What to do if it has no effect."""
    has_commas: bool = False
    """Whether the command line takes several values with commas between them."""
    is_required: bool = False
    """Whether the command line requires it although Python has a default."""
    is_output: bool = False
    """Whether it names a file that the verb writes."""
    listed: str = ""
    """``module:function`` that lists its values for the help; "" if the type names them all."""
    normalize: str = ""
    """``module:function`` that returns a value in its one form, and raises CkptcheckError for a malformed one."""
    is_repeated: bool = False
    """Whether the command line takes several, and runs the verb for each."""


class Argument(Option, frozen=True):
    """What the command line takes without a name."""


class Setting(Option, frozen=True):
    """What is set for a project: an argument in Python, and a key below ``[verbs.NAME]`` in ckptcheck.toml, but no option."""


# What several verbs take. The headings of the help, in its order:
RULES = "Which rules run"
READING = "How bytes are read"
ENGINE = "The engine"
TRAINER = "The trainer"
SAMPLING = "Prompts and sampling"
JOB = "The job"
LIMITS = "Limits"
TRIAL = "The trial"
TRUST = "Whom to trust"
KEPT = "What is kept"

TARGET_FORMS = (
    "A folder (Hugging Face or Megatron), a .safetensors file, an index, hf://org/name@revision or its https:// address, "
    "s3://bucket/folder (gs://, az://), or BASE+DELTA+DELTA."
)
Target = Annotated[StrPath, Argument(TARGET_FORMS, metavar="TARGET")]
Source = Annotated[StrPath, Argument("A Hugging Face checkpoint or a Megatron run on this disk.", metavar="SOURCE")]

# Which rules run.
Select = Annotated[
    Words,
    Option(
        "Run only these rules: codes or prefixes of codes, IDX,CFG003.", metavar="RULE,…", panel=RULES, has_commas=True
    ),
]
Ignore = Annotated[
    Words,
    Option("Leave these rules out; the report lists them as skipped.", metavar="RULE,…", panel=RULES, has_commas=True),
]
RuleFolders = Annotated[
    Paths, Option("Load further rules from this folder. Their code runs.", "--rules", metavar="DIR", panel=RULES)
]

# How bytes are read.
FollowLinks = Annotated[bool, Option("Follow links out of a checkpoint, to regular files.", panel=READING)]
Jobs = Annotated[
    int | None,
    Option("Files, tensors or pieces of them read at a time.", within=FROM_ONE, shown="cores", panel=READING),
]
Like = Annotated[
    StrPath | None,
    Option(
        "A Hugging Face checkpoint of the same model: its config says what Megatron's tensors are called there.",
        metavar="CHECKPOINT",
    ),
]

# The engine.
GPUS = "ckptcheck.live.runtime.process.gpus:normalize_gpus"
Dtype = Literal["float32", "bfloat16"]
EngineName = Annotated[str, Option("The inference engine: vllm or sglang.")]
EngineTp = Annotated[int, Option("Tensor parallelism of the engine.", within=FROM_ONE, panel=ENGINE)]
EngineMode = Annotated[
    Literal["plain", "stock"],
    Setting(
        "plain keeps weights readable on a CPU; stock leaves the engine as it is.",
    ),
]
EngineSource = Annotated[
    StrPath | None,
    Option(
        "The checkpoint that the engine loads, where it is another one than SOURCE.", metavar="CHECKPOINT", panel=ENGINE
    ),
]
EnginePython = Annotated[
    StrPath | None,
    Setting("A Python of yours that has the engine.", metavar="PATH", shown="the one installed by ckptcheck"),
]
EngineGpus = Annotated[
    str | None,
    Setting(
        "GPUs that the engine may use.",
        metavar="N,…",
        shown="all",
        normalize=GPUS,
    ),
]
Switches = Annotated[
    Words,
    Option(
        "A setting of the engine, repeatable: prefix_cache=off, logprobs=processed, compilation=graphs, …",
        metavar="NAME=VALUE",
        panel=ENGINE,
    ),
]
HfConfig = Annotated[
    StrPath | None,
    Setting("Folder with the config.json of a Megatron run's model, and its tokenizer if you like.", metavar="DIR"),
]
DespiteErrors = Annotated[bool, Setting("Go on where the scan of SOURCE finds errors; the report names them.")]
AllowRemote = Annotated[bool, Option("Accept servers on other machines.")]

# The trainer.
TrainerName = Literal["megatron", "transformers"]
Trainer = Annotated[TrainerName, Option("The trainer, which holds the weights and scores tokens.")]
TrainerTp = Annotated[int, Option("Tensor parallelism of the trainer.", within=FROM_ONE)]
TrainerPp = Annotated[int, Option("Pipeline parallelism of the trainer.", within=FROM_ONE, panel=TRAINER)]
TrainerEp = Annotated[int, Option("Expert parallelism of the trainer.", within=FROM_ONE, panel=TRAINER)]
TrainerPython = Annotated[
    StrPath | None,
    Setting("A Python of yours that has the trainer.", metavar="PATH", shown="the one installed by ckptcheck"),
]
TrainerDevice = Annotated[
    Literal["auto", "cpu", "cuda"],
    Setting(
        "Where the trainer computes; auto: on GPUs where there are any, one for each rank.",
    ),
]
TrainerGpus = Annotated[
    str | None,
    Setting(
        "GPUs that the trainer may use.",
        metavar="N,…",
        shown="all",
        normalize=GPUS,
    ),
]
TrainerDtype = Annotated[Dtype | None, Setting("The dtype that the trainer computes in.", shown="as --dtype")]
HeadFp32 = Annotated[
    bool, Option("The trainer's output head computes in float32.", "--trainer-head-fp32", panel=TRAINER)
]
CheckWeights = Annotated[
    bool,
    Option(
        "Compare every tensor with a cold load.",
        "--check-weight-update-equal/--no-check-weight-update-equal",
        panel=TRIAL,
    ),
]
CheckLogprobs = Annotated[
    bool, Option("Compare logprobs on both sides.", "--check-logprobs/--no-check-logprobs", panel=TRIAL)
]

# Both.
ComputeDtype = Annotated[Dtype, Option("The dtype that engine and trainer compute in.")]
CallTimeout = Annotated[float, Setting("Seconds for any one call.", within=FROM_ONE)]
PhaseTimeouts = Annotated[
    str | float | Sequence[str | float],
    Setting(
        "Seconds for each phase, or for those of one kind: start=900, score=600, step=600, sync=300.",
        shown="these, and what reading the weights takes",
    ),
]
KeepCheckpoints = Annotated[
    bool,
    Setting(
        "Keep the checkpoints that the trial writes.",
    ),
]

# Prompts and sampling.
Prompts = Annotated[
    StrPath | None,
    Option(
        "File of prompts: JSON lines (tokens, messages or text), or plain lines.",
        metavar="FILE",
        panel=SAMPLING,
        without=("length",),
        because="a file's prompts are taken whole",
    ),
]
PromptCount = Annotated[int, Option("Prompts to answer.", within=FROM_ONE, panel=SAMPLING)]
PromptLength = Annotated[int, Option("Tokens of a built-in prompt, at most.", within=SEQUENCE, panel=SAMPLING)]
ResponseLength = Annotated[int, Option("Tokens of a response, at most.", within=FROM_ONE, panel=SAMPLING)]
Temperature = Annotated[float, Option("Sampling temperature; 0: greedy.", within=FROM_ZERO, panel=SAMPLING)]
TopP = Annotated[float, Setting("Nucleus sampling; 1: off.", within=SHARE)]
TopK = Annotated[int, Setting("Sampling from the k most likely tokens; 0: off.", within=FROM_ZERO)]
PresencePenalty = Annotated[float, Setting("Taken from the logits of tokens in the response; 0: off.", within=PENALTY)]
FrequencyPenalty = Annotated[float, Setting("Taken as often as a token is in the response; 0: off.", within=PENALTY)]
RepetitionPenalty = Annotated[
    float, Setting("Divides positive logits of tokens that are there already; 1: off.", within=Range(0.01))
]
Seed = Annotated[int, Setting("Seed of the first prompt; every further prompt adds 1.")]

# Limits.
Floor = Annotated[
    StrPath | None,
    Option(
        "The noise floor of this model: a file of calibrate, or rollouts with equal weights.",
        metavar="FILE",
        panel=LIMITS,
    ),
]
FloorLimit = Annotated[
    float,
    Setting("A gap above this multiple of the noise floor is an error.", within=FROM_ONE, needs=("floor", "calibrate")),
]
MeanRatioLimit = Annotated[float, Setting("Limit of mean exp|Δ|.", within=FROM_ONE)]
ClipLow = Annotated[
    float | None,
    Setting("The objective clips the ratio below 1 - N.", within=FROM_ZERO, shown="as the file says, else 0.2"),
]
ClipHigh = Annotated[
    float | None,
    Setting("The objective clips the ratio above 1 + N.", within=FROM_ZERO, shown="as the file says, else 0.2"),
]
Step = Annotated[int | None, Option("The step of the training run, from 0, kept with the rollouts.", within=FROM_ZERO)]
TrainerVersion = Annotated[
    int | None,
    Option(
        "Version of the trainer's weights, as the engine counts: the lag of a token is counted from it.",
        within=FROM_ZERO,
    ),
]
Markdown = Annotated[
    StrPath | None, Option("Also write the table in Markdown.", metavar="FILE", panel=KEPT, is_output=True)
]

# What is written, where it is no report.
RolloutOutput = Annotated[
    StrPath | None,
    Option("The file to write.", "-o --output", metavar="FILE", is_required=True, is_output=True),
]
StoredOutput = Annotated[
    StrPath | None,
    Option(
        "The file to write, or its s3:// address (gs://, az://).", "-o --output", metavar="FILE", is_required=True,
        is_output=True,
    ),
]  # fmt: skip

FrameworkName = Annotated[
    str | None,
    Option(
        "The framework of the job",
        metavar="NAME",
        shown="detected by the keys",
        listed="ckptcheck.jobs.open_job:list_frameworks",
        needs=("job",),
    ),
]
FrameworkVersion = Annotated[
    str,
    Option(
        "Release of the framework, or the date of its commit, where no file pins it.",
        metavar="VERSION",
        panel=JOB,
        needs=("job",),
    ),
]

# Whom to trust.
TrustConfig = Annotated[
    StrPath | None,
    Option("The trust of a Sigstore instance of your own, for keyless signatures.", metavar="FILE", panel=TRUST),
]
CertificateChain = Annotated[
    Paths,
    Option(
        "A certificate between the signer's and its root, or one that its chain has to lead to (PEM); repeatable.",
        metavar="FILE",
        panel=TRUST,
    ),
]
