"""Reads a job's files and the files that they name: YAML ``defaults:``, sourced scripts, a launch line's configurations."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ckptcheck.checkpoint.document import clip
from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs import toml_file, yaml_file
from ckptcheck.jobs.budget import CHARACTERS, WorkBudget
from ckptcheck.jobs.document import Document, Leaf, is_hidden, read_text_file
from ckptcheck.jobs.framework_version import PROJECT_FILES, leave_out_comments
from ckptcheck.jobs.hydra.defaults_entry import read_package_header
from ckptcheck.jobs.hydra.defaults_list import Composer, Config, ConfigFolders
from ckptcheck.jobs.hydra.override import Override
from ckptcheck.jobs.model_arguments import print_model_arguments
from ckptcheck.jobs.shell import script as shell_script
from ckptcheck.jobs.shell.script import Script, Word
from ckptcheck.text.file_io import expand_home, real_path

YAML, TOML, SHELL = (".yaml", ".yml"), (".toml",), (".sh", ".bash", ".slurm", ".sbatch", ".txt", "")
DEEPEST, MOST = 8, 100
"""Largest depth of scripts that source each other, and largest number of files."""
FILE_STEPS, LOOK_STEPS = 100, 15
"""Steps that reading a file takes, and looking for one in the folders above."""
HIGHEST = 6
"""How many folders above a file are searched for those that it names."""
PINNED = {
    "vllm": re.compile(r"\bvllm==(\d+(?:\.\d+)+)|vllm/vllm-openai:v(\d+(?:\.\d+)+)"),
    "sglang": re.compile(r"\bsglang(?:\[\w+\])?==(\d+(?:\.\d+)+)|lmsysorg/sglang:v(\d+(?:\.\d+)+)"),
    "transformer_engine": re.compile(r"\btransformer[_-]engine(?:\[\w+\])?==(\d+(?:\.\d+)+)"),
}
ENVIRONMENT = re.compile(r"(?:^|\.)(?:system_envs|env_vars)\.(\w+)$")


def find_environment(document: Document) -> dict[str, Leaf]:
    """Return the environment variables that keys of a configuration set, as Ray's runtime environment does."""
    return {match[1]: leaf for path, leaf in document.leaves.items() if (match := ENVIRONMENT.search(path))}


class JobFiles:
    """Reads the files of one job. The report names every file relative to the folder of the first one."""

    def __init__(self, first: Path, given: Mapping[str, str] | None = None) -> None:
        self.folder = first.parent
        # The values that the user gives for variables of the environment: no other value of one is read.
        self.given = given or {}
        # Those among them that no file has named so far.
        self.unnamed = set(self.given)
        # The names of the files that were read.
        self.read: list[str] = []
        # The overrides that the user gives beside the files, each with its place: some may choose configurations.
        self.overrides: list[tuple[Override, Leaf]] = []
        # Those among them that chose one.
        self.choices: list[Override] = []
        # The work that all files of the job may still cause.
        self.budget = WorkBudget()

    @property
    def environment(self) -> dict[str, Leaf]:
        """The variables that the user gives, as a document has them."""
        return {variable: Leaf(value, variable) for variable, value in self.given.items()}

    def name(self, path: Path) -> str:
        """Return the name of a file in the report: its path from the job's folder, or ``~/…`` where it alone lies at home."""
        home = expand_home("~")
        if path.is_relative_to(home) and not self.folder.absolute().is_relative_to(home):
            return f"~/{path.relative_to(home).as_posix()}"
        try:
            relative = Path(os.path.relpath(path, self.folder)).as_posix()
        except ValueError:
            # The file is on another drive.
            return path.as_posix()
        whole = Path(os.path.abspath(path)).as_posix()
        return whole if relative.startswith("../") and len(whole) < len(relative) else relative

    def text(self, path: Path, shown: str) -> str:
        """Read a file and add it to `read`. shown: its name in error messages. Raises CkptcheckError."""
        text = read_text_file(path, shown)
        self.budget.spend(FILE_STEPS + len(text) // CHARACTERS, shown)
        # A script may pass all its arguments on, without their numbers.
        marks = {name: (f"${name}", f"${{{name}", "$@", "$*") if name.isdigit() else (name,) for name in self.unnamed}
        self.unnamed = {name for name in self.unnamed if not any(mark in text for mark in marks[name])}
        if len(self.read) >= MOST:
            raise CkptcheckError(f"the job's files include more than {MOST} others")
        if self.name(path) not in self.read:
            self.read.append(self.name(path))
        return text

    def document(self, path: Path, shown: str) -> Document:
        """Read a YAML or TOML file with the files that its ``defaults:`` name. shown: its name in error messages."""
        if path.suffix not in TOML:
            return self.compose(path, shown)[0]
        text = self.text(path, shown)
        name = self.name(path)
        document = toml_file.read(text, name)
        document.versions |= find_pinned_versions(text, name)
        document.environment |= find_environment(document)
        return document

    def compose(
        self,
        path: Path,
        shown: str,
        overrides: Sequence[tuple[Override, Leaf]] = (),
        folders: Sequence[Path] = (),
        root: Path | None = None,
        standard: Path | None = None,
    ) -> tuple[Document, list[tuple[Override, Leaf]]]:
        """Read a YAML file with the configurations that its ``defaults:`` name.

        Args:
            path: The file.
            shown: Its name in error messages.
            overrides: The command line's overrides; some may choose configurations.
            folders: Further folders of configurations.
            root: The folder of configurations in which the file lies, deeper or not; None for its own folder.
            standard: The folder of the program's own configurations: their values are defaults, and no files of the job.

        Returns the document and the overrides that set values; those have to be applied still.
        """
        root = root or path.parent
        standards: tuple[Path, ...] = () if standard is None else (standard,)
        primary = self.config(path, shown, standards)
        listed = primary.document.leaves.get("hydra.searchpath")
        searched = [folder for entry in _as_list(listed) if (folder := self.search_folder(entry, path.parent))]
        if standard is not None and standard in real_path(path).parents:
            # What a program's own configuration searches is the program's too.
            standards = (standard, *(real_path(folder) for folder in searched))
        known = {path: primary}
        groups = ConfigFolders(
            [root, *folders, *searched],
            lambda file: known[file] if file in known else self.config(file, self.name(file), standards),
            is_whole=len(searched) == len(_as_list(listed))
            and not any("searchpath" in override.key for override, _ in overrides),
        )
        chosen = [
            (override, leaf)
            for override, leaf in self.overrides
            if isinstance(override.value, str) and groups.find(f"{override.key}/{override.value}") is not None
        ]
        self.choices += [override for override, _ in chosen]
        composer = Composer(groups, [*overrides, *chosen], self.budget, self.environment)
        document = composer.compose(path.relative_to(root).as_posix())
        document.environment |= find_environment(document)
        return document, composer.values

    def config(self, path: Path, shown: str, standards: Sequence[Path] = ()) -> Config:
        """Read the own content of one YAML file. Raises CkptcheckError.

        Args:
            path: The file.
            shown: Its name in error messages.
            standards: The folders of the program's own configurations; the values of their files are defaults.
        """
        is_standard = not set(standards).isdisjoint(real_path(path).parents)
        text = read_text_file(path, shown) if is_standard else self.text(path, shown)
        name = self.name(path)
        is_empty = all(line.strip() in ("", "---") or line.lstrip().startswith("#") for line in text.splitlines())
        values = (
            Document(budget=self.budget)
            if is_empty and self.read[:1] != [name]
            else yaml_file.read(text, name, self.budget)
        )
        defaults = values.leaves.get("defaults")
        if defaults is None and values.has("defaults"):
            defaults = Leaf({}, "defaults", name, next(values.iter_section("defaults"))[1].line)
        values.remove("defaults")
        if is_standard:
            values.leaves = {key: replace(leaf, is_default=True) for key, leaf in values.leaves.items()}
        else:
            values.versions |= find_pinned_versions(text, name)
        return Config(values, defaults, read_package_header(text))

    def search_folder(self, entry: object, start: Path) -> Path | None:
        """Find a folder of ``hydra.searchpath``: ``file://a/b`` or ``pkg://a.b``, from a folder above the file or the working one.

        start: the folder of the file.
        """
        scheme, _, name = str(entry).rpartition("://")
        name = name.replace(".", "/") if scheme == "pkg" else expand_home(name)
        for folder in (start, *list(real_path(start).parents)[:HIGHEST], Path.cwd()):
            try:
                if name and (folder / name).is_dir() and not is_hidden(folder / name, self.folder):
                    return folder / name
            except (OSError, ValueError):
                return None
        return None

    def script(
        self, path: Path, shown: str, *, decide: bool = True, caller: Script | None = None
    ) -> tuple[Script, list[str], dict[str, Leaf]]:
        """Read a shell script and the scripts that it sources.

        decide: whether conditions on the script's own variables are decided.
        caller: The arguments and exported variables with which another script runs it; None where the user does.

        Returns the script, a note for each sourced file that could not be read, and the versions that the files pin.
        """
        notes: list[str] = []
        versions: dict[str, Leaf] = {}

        def read_script(file: Path, name: str, into: Script, depth: int) -> None:
            text = self.text(file, name)
            versions.update(find_pinned_versions(text, self.name(file)))

            def follow(word: Word, script: Script) -> bool:
                sourced = self.beside_script(word.text, file.parent, script.folder)
                place = f"which {self.name(file)}:{word.line} sources"
                if word.reason or not word.text:
                    notes.append(f"a file is not read, {place}: {clip(word.reason, 200) or 'it has no name'}")
                    script.missing.append(notes[-1])
                elif is_hidden(sourced, self.folder):
                    if sourced.name != "activate":  # that of a virtual environment sets nothing that a job uses
                        script.missing.append(f"{clip(word.text)}, {place}, may hold secrets and is not read")
                elif not os.path.isfile(sourced):
                    is_relative = not (script.folder or os.path.isabs(expand_home(word.text)))
                    looked = "is not in the script's folder, those above it or the working folder"
                    name = word.text if is_relative else self.name(sourced)
                    notes.append(f"{clip(name)}, {place}, {looked if is_relative else 'does not exist'}")
                    script.missing.append(notes[-1])
                    # A folder that is not here either is one of another machine, unless the script's own leads to it.
                    leads = str(sourced).startswith((script.folder or "\0", str(real_path(file.parent))))
                    return script.folder is None or not (is_relative or leads or sourced.parent.is_dir())
                elif depth < DEEPEST:
                    read_script(sourced, self.name(sourced), script, depth + 1)
                return True

            shell_script.read(
                text,
                self.name(file),
                real_path(file.parent),
                follow=follow,
                run=self.output_of,
                into=into,
                decide=decide,
                is_whole=depth == 0,
            )

        script = Script(given=self.given, program=str(real_path(path)))
        if caller is not None:
            script.arguments, script.exports = list(caller.arguments), dict(caller.exports)
            script.variables = {name: [word] for name, word in caller.exports.items()}
        read_script(path, shown, script, 0)
        return script, notes, versions

    def output_of(self, words: Sequence[Word]) -> str | None:
        """Return what a command in ``$(…)`` prints: a Python script that prints a model's flags, as miles has them."""
        return print_model_arguments(words, self)

    def beside_script(self, name: str, start: Path, changed: str | None = "") -> Path:
        """Return the file that a script sources: relative to its folder, or to one of those above it.

        changed: the folder to which the script changed before, and the only one then; "" or None for none that is known.
        """
        name = expand_home(name)
        if changed:
            return Path(changed) / name
        return next(
            (found for found in (start / name, self.beside(name, start)) if found and os.path.isfile(found)),
            start / name,
        )

    def beside(self, name: str, start: Path) -> Path | None:
        """Find a file that a launch line names: in a folder, in the four above it up to the project's top, or in the working one.

        Tries the name itself, then the name with ``.yaml``. start: the folder of the script.
        """
        self.budget.spend(LOOK_STEPS, clip(name, 60))
        name = expand_home(name)
        above = [start, *list(real_path(start).parents)[:4]]
        tops = [at for at, folder in enumerate(above) if any(os.path.exists(folder / file) for file in PROJECT_FILES)]
        # A project may hold others, but what lies beside the outermost one is none of its files.
        folders: Sequence[Path] = [*(above[: tops[-1] + 1] if tops else above), Path.cwd()]
        for suffix in ("", ".yaml"):
            for folder in folders:
                try:
                    file = folder / f"{name}{suffix}"
                    if file.is_file() and not is_hidden(file, self.folder):
                        return file
                except (OSError, ValueError):
                    return None
        return None


def _as_list(leaf: Leaf | None) -> list[object]:
    """Return the value of a leaf as a list; an empty one where there is no leaf."""
    return [] if leaf is None else leaf.value if isinstance(leaf.value, list) else [leaf.value]


def find_pinned_versions(text: str, name: str) -> dict[str, Leaf]:
    """Find the package versions that a text pins (``vllm==0.18.1``, the tag of an image): package → leaf.

    name: the file as the report names it.
    """
    versions = {}
    text = leave_out_comments(text)
    for package, pattern in PINNED.items():
        if match := pattern.search(text):
            version = next(group for group in match.groups() if group)
            versions[package] = Leaf(version, package, name, text.count("\n", 0, match.start()) + 1)
    return versions
