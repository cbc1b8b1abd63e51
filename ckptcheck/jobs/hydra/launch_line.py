"""Finds the configuration that a launch line of Hydra composes: the one that it names, or the program's own default.

A program of Hydra says its default in a decorator, ``@hydra.main(config_path="config", config_name="ppo_trainer")``. If
the program's source lies beside the launch script or in a folder above it, this module reads the decorator (with ast,
nothing runs) and the configurations beside the program. Their values are marked as defaults.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs import launch
from ckptcheck.jobs.budget import WorkBudget
from ckptcheck.jobs.document import Document, Leaf, is_hidden, read_text_file
from ckptcheck.jobs.files import HIGHEST, JobFiles
from ckptcheck.jobs.hydra.override import Override
from ckptcheck.jobs.python_source.script import parse_python
from ckptcheck.jobs.shell.word import Word
from ckptcheck.text.file_io import expand_home, real_path

CONFIG_NAME = ("--config-name", "--config_name", "-cn")
CONFIG_PATH = ("--config-path", "--config_path", "-cp")
CONFIG_FILE = ("--config", "--config-file")
CONFIG_FOLDER = ("--config-dir", "--config_dir", "-cd")
MULTIRUN = ("--multirun",)
CHOICE = re.compile(r"^\s*-\s+(\w+):\s*\w+\s*$", re.MULTILINE)
"""An entry of a defaults list that chooses for a group at the top of the configuration: ``- model_engine: dp``."""
MOST_LEFT = 0.2
"""Share of the keys below which a choice explains them well enough, so that no other is tried."""
MOST_CHOICES = 8
"""Most choices with which a configuration is composed anew."""


@dataclass(frozen=True)
class PrimaryConfiguration:
    """The configuration file from which Hydra composes, and the folders of further ones."""

    file: Path
    root: Path
    """The folder of configurations in which the file lies, deeper or not."""
    folders: tuple[Path, ...] = ()
    """Further folders of configurations (``--config-dir``)."""
    standard: Path | None = None
    """The program's own folder of configurations, whose values are defaults; None if the program is not at hand."""


def compose_launch(words: Sequence[Word], into: Document, files: JobFiles, script: Path) -> list[Word] | None:
    """Compose the configuration of a launch line, with its overrides, into a document.

    Args:
        words: The command.
        into: Gets the values, and the problems of overrides.
        files: The job's files.
        script: The file that has the command.

    Returns:
        The words that are no overrides; None, with nothing changed, if the configuration is not at hand.

    Raises:
        CkptcheckError: A configuration cannot be read.
    """
    primary = find_primary(words, files, script)
    if primary is None:
        return None
    begin = find_arguments(words)
    overrides, rest = launch.parse_overrides(words[begin:], into, files.name(script))
    document, values = files.compose(
        primary.file, files.name(primary.file), overrides, primary.folders, primary.root, primary.standard
    )
    into.update(document)
    into.is_composed &= not takes_new_keys(words, script)
    into.has_sweeps = any(word.text in MULTIRUN for word in words)
    launch.apply_parsed_overrides(values, into)
    _explain_missing(into, primary, overrides, files)
    return [*words[:begin], *rest]


def _explain_missing(
    into: Document, primary: PrimaryConfiguration, overrides: Sequence[tuple[Override, Leaf]], files: JobFiles
) -> None:
    """Say of refused overrides which choice of a config group, if it alone were made too, gives the configuration their keys."""
    missing = {refusal.missing for refusal in into.refusals if refusal.missing}
    best, left = "", missing
    for group, option in _list_other_choices(primary, overrides) if len(missing) > 1 else ():
        choice = Override("", group, None, option), Leaf(option, group)
        still = missing & _find_missing(primary, [*(pair for pair in overrides if pair[0].key != group), choice], files)
        if len(still) < min(len(left), len(missing) - 1):
            best, left = f"{group}={option}", still
        if len(left) < MOST_LEFT * len(missing):
            break
    into.refusals = [
        replace(refusal, unlocked_by=best)
        if best and refusal.missing and _is_explained(refusal.missing, left, best)
        else refusal
        for refusal in into.refusals
    ]


def _find_missing(
    primary: PrimaryConfiguration, overrides: Sequence[tuple[Override, Leaf]], files: JobFiles
) -> set[str]:
    """Return the keys of overrides that a configuration, composed on trial, does not have; all of them if it cannot be composed."""
    read, choices, budget = list(files.read), list(files.choices), files.budget
    try:
        # A trial may take as much work as the job itself, and leaves the job's own.
        with WorkBudget() as files.budget:
            document, values = files.compose(
                primary.file, primary.file.name, overrides, primary.folders, primary.root, primary.standard
            )
            launch.apply_parsed_overrides(values, document)
    except CkptcheckError:
        return {override.key for override, _ in overrides}
    finally:
        files.read, files.choices, files.budget = read, choices, budget
    if not document.is_composed:
        return {override.key for override, _ in overrides}
    return {refusal.missing for refusal in document.refusals if refusal.missing}


def _is_explained(missing: str, left: Collection[str], choice: str) -> bool:
    """Whether a choice gives the configuration a key, or is what the key was meant to be: ``actor.model_engine``."""
    return missing not in left or missing.rpartition(".")[2] == choice.partition("=")[0]


def _list_other_choices(
    primary: PrimaryConfiguration, overrides: Sequence[tuple[Override, Leaf]]
) -> Sequence[tuple[str, str]]:
    """Return choices of config groups that a launch line does not make, at most MOST_CHOICES: those first that it seems to mean."""
    meant: list[tuple[str, str]] = []
    for override, _ in overrides:
        group = override.key.rpartition(".")[2]
        if group != override.key and isinstance(override.value, str) and _has_option(primary, group, override.value):
            meant.append((group, override.value))
    made = {override.key for override, _ in overrides}
    text = read_text_file(primary.file, primary.file.name)
    others = [
        (group, file.stem)
        for group in dict.fromkeys(CHOICE.findall(text))
        if group not in made
        for folder in (primary.root, *primary.folders)
        for file in sorted((folder / group).glob("*.yaml"))[:MOST_CHOICES]
    ]
    return list(dict.fromkeys([*meant, *others]))[:MOST_CHOICES]


def _has_option(primary: PrimaryConfiguration, group: str, option: str) -> bool:
    """Whether the folders of configurations have an option of a config group."""
    if not option.isidentifier():
        return False
    return any(os.path.isfile(folder / group / f"{option}.yaml") for folder in (primary.root, *primary.folders))


def find_arguments(words: Sequence[Word]) -> int:
    """Return the index of the Python program's first argument; the words before belong to launchers and shells."""
    for index, word in enumerate(words):
        if word.text.endswith(".py") or _is_module(words, index):
            return index + 1
    return 0


def _is_module(words: Sequence[Word], index: int) -> bool:
    """Return whether a word names the module that Python runs: ``python -m a.b``."""
    return index > 1 and words[index - 1].text == "-m" and "python" in words[index - 2].text


def find_primary(words: Sequence[Word], files: JobFiles, script: Path) -> PrimaryConfiguration | None:
    """Return the configuration from which a launch line composes; None if it is not at hand.

    Args:
        words: The command.
        files: The job's files.
        script: The file that has the command.
    """
    options = [launch.option(words, *names) for names in (CONFIG_NAME, CONFIG_PATH, CONFIG_FOLDER, CONFIG_FILE)]
    if any(word is not None and word.reason for word in options):
        return None
    name, path, further, file_name = (word.text if word is not None else "" for word in options)
    if file_name:
        return None
    program = find_program_source(words, script)
    if not name and program is not None and (default := read_default_file(program, files.name(program))) is not None:
        return PrimaryConfiguration(default, default.parent, (), real_path(default.parent))
    own = read_decorator(program, files.name(program)) if program is not None else None
    standard = real_path(program.parent / own[0]) if program is not None and own is not None else None
    folders = tuple(folder for folder in [_find_folder(further, script)] if folder is not None)
    if own is not None and not name:
        name = own[1]
    if not name:
        return None
    roots = [standard] if not path else [_find_folder(path, program) if program else None, _find_folder(path, script)]
    for root in (*roots, *folders):
        file = root / (name if name.endswith((".yaml", ".yml")) else f"{name}.yaml") if root is not None else None
        if root is not None and file is not None and os.path.isfile(file):
            return PrimaryConfiguration(file, root, folders, standard)
    return None


def find_program_source(words: Sequence[Word], script: Path) -> Path | None:
    """Return the Python file that a command runs (``python -m a.b``, ``a/b.py``), beside the script or in a folder above it."""
    for index, word in enumerate(words):
        if word.reason:
            continue
        names = []
        if index and words[index - 1].text == "-m":
            parts = word.text.split(".")
            if all(part.isidentifier() for part in parts):
                names = ["/".join(parts) + ".py", "/".join([*parts, "__main__.py"])]
        elif word.text.endswith(".py"):
            names = [expand_home(word.text)]
        for name in names:
            for folder in _folders_above(script):
                try:
                    if (folder / name).is_file():
                        return folder / name
                except (OSError, ValueError):
                    break
    return None


def read_decorator(file: Path, shown: str) -> tuple[str, str] | None:
    """Return (config_path, config_name) of the decorator ``@hydra.main`` of a program; None without one.

    shown: the file in error messages. A file that cannot be read has none.
    """
    try:
        tree = parse_python(read_text_file(file, shown), shown)
    except CkptcheckError:
        return None
    for node in ast.walk(tree):
        for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "hydra.main":
                written = dict(zip(("config_path", "config_name"), decorator.args, strict=False))
                written |= {keyword.arg: keyword.value for keyword in decorator.keywords if keyword.arg}
                path, name = (
                    value.value if isinstance(value := written.get(key), ast.Constant) else None
                    for key in ("config_path", "config_name")
                )
                if isinstance(path, str):
                    return path, name if isinstance(name, str) else ""
    return None


def read_default_file(file: Path, shown: str) -> Path | None:
    """Return the configuration that a program takes without ``--config``; None if it names none.

    NeMo-RL's programs say it as ``args.config = os.path.join(os.path.dirname(__file__), "configs", "grpo.yaml")``.

    shown: the program in error messages.
    """
    try:
        tree = parse_python(read_text_file(file, shown), shown)
    except CkptcheckError:
        return None
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "args.config"
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.value.func) == "os.path.join"
            and node.value.args
            and ast.unparse(node.value.args[0]) == "os.path.dirname(__file__)"
        ):
            parts = [part.value for part in node.value.args[1:] if isinstance(part, ast.Constant)]
            if all(isinstance(part, str) for part in parts) and len(parts) == len(node.value.args) - 1:
                default = file.parent.joinpath(*map(str, parts))
                return default if os.path.isfile(default) else None
    return None


def takes_new_keys(words: Sequence[Word], script: Path) -> bool:
    """Return whether a program merges its arguments with ``OmegaConf.from_cli``, which refuses no key (NeMo-RL's run_eval.py)."""
    program = find_program_source(words, script)
    if program is None:
        return any(word.text.endswith("run_eval.py") for word in words)
    try:
        return "from_cli(" in read_text_file(program, program.name)
    except CkptcheckError:
        return True


def _find_folder(name: str, beside: Path) -> Path | None:
    """Return a folder by its path from the folder of a file, or from one above it; None without one."""
    name = expand_home(name)
    for folder in _folders_above(beside) if name else ():
        try:
            if (folder / name).is_dir() and not is_hidden(folder / name, beside.parent):
                return folder / name
        except (OSError, ValueError):
            return None
    return None


def _folders_above(file: Path) -> Iterator[Path]:
    """Yield the folder of a file, those above it, and the working folder."""
    yield file.parent
    yield from list(real_path(file.parent).parents)[:HIGHEST]
    yield Path.cwd()
