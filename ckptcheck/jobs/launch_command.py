"""Reads the settings of one launch command: its flags or overrides, the configuration files that it names, Ray's environment."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from math import prod
from pathlib import Path

import msgspec

from ckptcheck.checkpoint.document import clip
from ckptcheck.jobs import launch, yaml_file
from ckptcheck.jobs.document import Document, Leaf
from ckptcheck.jobs.engine_flags import SHORT
from ckptcheck.jobs.files import YAML, JobFiles
from ckptcheck.jobs.framework import Framework
from ckptcheck.jobs.hydra.launch_line import compose_launch, find_arguments, takes_new_keys
from ckptcheck.jobs.shell.word import MARK, Command, Word

CONFIG_FILE = ("--config", "--config-file")
CONFIG_NAME = ("--config-name", "--config_name", "-cn")
CONFIG_PATH = ("--config-path", "--config_path", "-cp", "--config-dir")
PROGRAM = re.compile(r"((?<!\S)\S*\.py|(?<!\S)\S*launch_server|(?<!\S)\S*api_server|serve|(^|(?<!\S)\S*/)rl)$")


def read_launch_command(
    words: Sequence[Word], framework: Framework, files: JobFiles, path: Path, given: Sequence[Path] = ()
) -> Document:
    """Read the settings of a launch command, and the configuration files that it names.

    Args:
        words: The command.
        framework: What it starts.
        files: The job's files.
        path: The script that has the command.
        given: The files that the user names; one of them stands for a configuration of the same name.
    """
    document = Document()
    script_name = files.name(path)
    kept = _take_unknown_lists(words, document, has_flags=framework.style != "hydra")
    document.environment |= _read_runtime_environment(kept, document, files, path)
    if framework.style == "flags":
        start = find_program(kept, framework.program) + 1
        short = SHORT if framework.name == "vllm" else None
        if framework.config_options:
            before_flags = itertools.takewhile(lambda word: not word.text.startswith("-"), kept[start:])
            named = next((word for word in before_flags if word.text.endswith(YAML)), None)
            named = launch.option(kept[start:], *framework.config_options) or named
            _read_named_config(named, None, document, files, path, given)
        _read_launcher(kept[: start - 1], document, files, path)
        positional = launch.flags(kept[start:], document, script_name, short=short)
        if positional and framework.name == "vllm":
            model = positional[0]
            document.put("model_tag", Leaf(model.text, "MODEL", script_name, model.line, model.reason))
        document.script = " ".join(word.text for word in kept[:start])
        return document
    if framework.style == "dotted":
        _read_prime_rl_command(kept, document, files, path)
        return document
    if (others := compose_launch(kept, document, files, path)) is not None:
        document.script = " ".join(word.text for word in others)
        return document
    config_name = launch.option(kept, *CONFIG_NAME)
    _read_named_config(
        launch.option(kept, *CONFIG_FILE) or config_name, launch.option(kept, *CONFIG_PATH) if config_name else None,
        document, files, path, given, standard=framework.standard,
    )  # fmt: skip
    document.is_composed &= not takes_new_keys(kept, path)
    begin = find_arguments(kept)
    rest = [*kept[:begin], *launch.apply_overrides(kept[begin:], document, script_name)]
    document.script = " ".join(word.text for word in rest)
    return document


def read_engine_command(
    commands: Sequence[Sequence[Word]], framework: Framework, document: Document, script_name: str
) -> None:
    """Put the flags of the last command that starts the job's engine into the document, below ``server``."""
    for words in reversed(commands) if framework.engine_launches else ():
        text = " ".join(word.text for word in words)
        if framework.engine_launches is not None and framework.engine_launches.search(text):
            start = next((index for index, word in enumerate(words) if word.text.startswith("-")), len(words))
            document.engine_script = " ".join(word.text for word in words[:start])
            launch.flags(words[start:], document, script_name, prefix="server.")
            return


SERVERS = re.compile(
    r"(?:nohup |exec )?(?:\S*/)?(?:vllm serve|trl vllm-serve|python3? -m vllm\.entrypoints\.openai\.api_server)\b"
)
TRAINERS = re.compile(r"(?:nohup |exec )?(?:\S*/)?(?:accelerate|torchrun|deepspeed|python3?|trl)\b")
"""Starts of commands that run here: one behind ``ssh``, ``srun`` or ``docker`` may be for another machine."""
ENDS = ("kill", "pkill", "killall", "wait", "exit")
"""Commands after which a server that was started before may be gone."""
DEFAULT_SHARE = 0.9
"""gpu_memory_utilization of vLLM before 0.21; later releases take a little more (vllm/config/cache.py)."""
SIZES = {"tensor-parallel-size": "-tp", "pipeline-parallel-size": "-pp", "data-parallel-size": "-dp"}
WITHOUT_SHARE = ("--enable-sleep-mode", "--kv-cache-memory-bytes", "--kv-cache-memory")
MOST_GPUS = 64
"""GPUs of a machine that are counted."""


def find_crowded_gpus(commands: Sequence[Command], trainer: Command, script_name: str) -> dict[str, Leaf]:
    """Return what the commands of a script put on one GPU together, as settings of `FIELDS`.

    The sum of the shares of its memory that vLLM's servers take, where it is above 1, and whether the first GPU of the trainer is
    one of a server. Servers count that run at the same time for certain, and whose shares, sizes and GPUs are known.
    """
    running: dict[str, list[float]] = {}
    found: dict[str, Leaf] = {}
    for words in commands:
        if words[0].text in ENDS:
            running.clear()
        begin = " ".join(word.text for word in words[:4])
        place = words[0].file or script_name
        if not words.runs or words.gpus is None:
            continue
        if words is trainer and TRAINERS.match(begin) and not SERVERS.match(begin):
            first = (words.gpus or "0").partition(",")[0].strip()
            if first in running:
                found["gpu.of_both"] = Leaf(first, "GPU of both", place, words[0].line)
        if not SERVERS.match(begin) or any(word.reason for word in words):
            continue
        try:
            share = _read_number(words, DEFAULT_SHARE, "gpu-memory-utilization")
            ranks = int(prod(_read_number(words, 1, name, short) for name, short in SIZES.items()))
        except ValueError:
            continue
        if any(word.text.partition("=")[0].replace("_", "-") in WITHOUT_SHARE for word in words):
            share = 0
        # Without CUDA_VISIBLE_DEVICES the first GPUs of the machine are taken.
        gpus = (words.gpus or ",".join(map(str, range(min(ranks, MOST_GPUS))))).split(",")[:ranks]
        for gpu in map(str.strip, gpus):
            shares = [*running.get(gpu, ()), share]
            if round(sum(shares), 6) > 1 and all(shares) and len(shares) > 1:
                total = round(sum(shares), 6)
                found.setdefault("gpu.shares", Leaf(total, "--gpu-memory-utilization", place, words[0].line))
            if words.in_background:
                running[gpu] = shares
    return found


def _read_number(words: Sequence[Word], default: float, name: str, short: str = "") -> float:
    """Return the number that an option gives, written with dashes or underscores. Raises ValueError for what is none."""
    found = launch.option(words, f"--{name}", f"--{name.replace('-', '_')}", *([short] if short else []))
    return default if found is None else float(found.text)


def find_program(words: Sequence[Word], own: re.Pattern[str] | None = None) -> int:
    """Return the position of the program that a command runs: a script, a module after ``-m``, or the first word.

    own: what the framework's program looks like, where others may stand before it.
    """
    if own is not None:
        return next((index for index, word in enumerate(words) if own.match(word.text)), 0)
    for index, word in enumerate(words):
        if PROGRAM.search(word.text) or (index and words[index - 1].text == "-m"):
            return index
    return 0


def _take_unknown_lists(words: Sequence[Word], document: Document, *, has_flags: bool) -> list[Word]:
    """Drop the words whose value is unknown and may be any list of settings, and note them as gaps of the document.

    has_flags: whether a word after a flag is its value.
    """
    kept: list[Word] = []
    for index, word in enumerate(words):
        follows_flag = has_flags and index > 0 and words[index - 1].text.startswith("-") and not word.is_list
        if not word.reason or word.text or follows_flag or index == 0 or words[index - 1].text in NAMING_OPTIONS:
            kept.append(word)
        else:
            document.gaps[f"the arguments at {word.place}"] = explain_gap(word)
    return kept


PROCESSES = (
    (("--num_processes",), ()),
    (("--nproc_per_node", "--nproc-per-node"), ("--nnodes",)),
    (("--num_gpus",), ("--num_nodes",)),
)
"""Options of accelerate, torchrun and deepspeed for the number of processes, of a node or of all, and of nodes."""


def _read_launcher(words: Sequence[Word], document: Document, files: JobFiles, path: Path) -> None:
    """Put the number of processes that accelerate, torchrun or deepspeed starts into the document, as num_processes.

    words: those before the program. path: the script's.
    """
    named = launch.option(words, "--config_file")
    if named is not None and (file := files.beside(named.text, path.parent)) is not None and file.suffix in YAML:
        written = yaml_file.read(files.text(file, files.name(file)), files.name(file)).leaves.get("num_processes")
        if written is not None:
            document.put("num_processes", written)
    for options, factors in PROCESSES:
        found = [word for names in (options, factors) if (word := launch.option(words, *names)) is not None]
        if launch.option(words, *options) is None or not all(word.text.isdigit() or word.reason for word in found):
            continue
        product, reason = 1, next((word.reason for word in found if word.reason), "")
        for word in found:
            product *= int(word.text) if word.text.isdigit() and len(word.text) < LONGEST_NUMBER else 1
        first = found[0]
        place = first.file or files.name(path)
        document.put("num_processes", Leaf(product, options[0], place, first.line or None, reason))


LONGEST_NUMBER = 10
"""Digits of a number of processes."""
NAMING_OPTIONS = (
    *CONFIG_FILE,
    *CONFIG_NAME,
    *CONFIG_PATH,
    "--runtime-env",
    "--runtime-env-json",
    "--working-dir",
    "--address",
)
"""Options of launchers and Hydra whose value follows."""


def explain_gap(word: Word) -> str:
    """Write why a word is not known, and what to give."""
    if word.variable:
        return f"{word.reason}; give its value with --env {word.variable}=…"
    return word.reason


def _read_named_config(
    name: Word | None, folder: Word | None, document: Document, files: JobFiles, path: Path, given: Sequence[Path],
    standard: re.Pattern[str] | None = None,
) -> None:  # fmt: skip
    """Read the configuration file that a launch line names, if it does, into the document; a gap where it is not there.

    Args:
        name: The value of the option that names it.
        folder: The value of the option that names its folder.
        document: The document to read it into.
        files: The job's files.
        path: The script.
        given: The files that the user names.
        standard: Matches names whose values are the framework's defaults.
    """
    if name is None:
        return
    written = f"{folder.text}/{name.text}" if folder is not None and folder.text else name.text
    unknown = next((word for word in (name, folder) if word is not None and word.reason), None)
    # What follows an unknown folder is looked up beside the script.
    is_rooted = (
        unknown is not None and unknown.with_marks.startswith(f"{MARK}/") and unknown.with_marks.count(MARK) == 1
    )
    if unknown is None or (is_rooted and unknown is (folder or name)):
        file = files.beside(written.lstrip("/") if is_rooted else written, path.parent)
        if file is not None:
            document.update(files.document(file, files.name(file)))
            return
        if standard is not None and standard.fullmatch(written):
            return
    if any(file.stem == Path(written).name.removesuffix(file.suffix) for file in given) and written:
        return
    place = name.place or files.name(path)
    if unknown is not None:
        document.gaps[f"the configuration that {place} names"] = explain_gap(unknown)
    else:
        document.gaps[f"{clip(written)}, the configuration that {place} names"] = (
            "it does not exist here; name its path before the script"
        )
    document.notes.append(
        f"the configuration that {place} names is not known: {unknown.reason}"
        if unknown is not None
        else f"{clip(written)}, the configuration that {place} names, does not exist"
    )
    document.is_incomplete = True


def _read_prime_rl_command(words: Sequence[Word], document: Document, files: JobFiles, path: Path) -> None:
    """Read a command of prime-rl: ``rl @ rl.toml --trainer @ trainer.toml --trainer.model.cp 2``."""
    rest: list[Word] = []
    section = ""
    for index, word in enumerate(words):
        previous = words[index - 1].text if index else ""
        if previous == "@":
            part = Document()
            _read_named_config(word, None, part, files, path, ())
            document.update(part, section)
        elif word.text == "@":
            section = previous.removeprefix("--") if previous.startswith("--") else ""
            if section and rest:
                rest.pop()
        else:
            rest.append(word)
    start = next((index for index, word in enumerate(rest) if word.text.startswith("--")), len(rest))
    launch.flags(rest[start:], document, files.name(path))


def _read_runtime_environment(
    words: Sequence[Word], document: Document, files: JobFiles, path: Path
) -> dict[str, Leaf]:
    """Return the variables that ``ray job submit`` gives to a job: ``--runtime-env-json JSON``, ``--runtime-env FILE``.

    A file or text that is not understood is a note of the document. path: the script's.
    """
    if (file := launch.option(words, "--runtime-env")) is not None:
        found = None if file.reason else files.beside(file.text, path.parent)
        if found is not None:
            return files.document(found, files.name(found)).environment
        document.notes.append(f"{clip(file.text) or 'the file'} of --runtime-env ({file.place}) is not read")
        return {}
    if (text := launch.option(words, "--runtime-env-json")) is None:
        return {}
    if text.with_marks.strip(MARK) == "":
        document.notes.append(f"--runtime-env-json ({text.place}) is not known: {text.reason}")
        return {}
    try:
        whole = msgspec.json.decode(text.with_marks)
        variables = whole.get("env_vars", {})
        items = [(str(name), value) for name, value in variables.items()]
    except (msgspec.DecodeError, TypeError, AttributeError):
        document.notes.append(f"--runtime-env-json ({text.place}) is no JSON object that ckptcheck can read")
        return {}
    leaves = {}
    for name, value in items:
        is_known = MARK not in str(value)
        leaves[name] = Leaf(
            value if is_known else str(value).replace(MARK, ""), name, text.file or files.name(path), text.line or None,
            "" if is_known else text.reason,
        )  # fmt: skip
    return leaves
