"""Reads a job's files and the files that they name: YAML ``defaults:``, sourced scripts, a launch line's configurations."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ckptcheck.errors import CkptcheckError
from ckptcheck.preflight import shell_script, toml_file, yaml_file
from ckptcheck.preflight.budget import VALUE_STEPS, WorkBudget
from ckptcheck.preflight.document import Document, Leaf, read_text_file
from ckptcheck.preflight.shell_script import Script, Word

YAML, TOML, SHELL = (".yaml", ".yml"), (".toml",), (".sh", ".bash", ".slurm", ".sbatch", ".txt", "")
DEEPEST, MOST = 8, 60
"""Largest depth of files that include each other, and largest number of files."""
PINNED = {
    "vllm": re.compile(r"\bvllm==(\d+(?:\.\d+)+)|vllm/vllm-openai:v(\d+(?:\.\d+)+)"),
    "sglang": re.compile(r"\bsglang(?:\[\w+\])?==(\d+(?:\.\d+)+)|lmsysorg/sglang:v(\d+(?:\.\d+)+)"),
    "trl": re.compile(r"\btrl(?:\[[\w,\- ]+\])?==(\d+(?:\.\d+)+)"),
    "transformer_engine": re.compile(r"\btransformer[_-]engine(?:\[\w+\])?==(\d+(?:\.\d+)+)"),
}
ENVIRONMENT = re.compile(r"(?:^|\.)(?:system_envs|env_vars)\.(\w+)$")


def find_environment(document: Document) -> dict[str, Leaf]:
    """Return the environment variables that keys of a configuration set, as Ray's runtime environment does."""
    return {match[1]: leaf for path, leaf in document.leaves.items() if (match := ENVIRONMENT.search(path))}


class JobFiles:
    """Reads the files of one job. The report names every file relative to the folder of the first one."""

    def __init__(self, first: Path) -> None:
        self.folder = first.parent
        # The names of the files that were read.
        self.read: list[str] = []
        # The work that all files of the job may still cause.
        self.budget = WorkBudget()

    def name(self, path: Path) -> str:
        """Return the name of a file in the report: its path relative to the job's folder."""
        try:
            return Path(os.path.relpath(path, self.folder)).as_posix()
        except ValueError:
            # The file is on another drive.
            return path.as_posix()

    def text(self, path: Path, shown: str) -> str:
        """Read a file and add it to `read`. shown: its name in error messages. Raises CkptcheckError."""
        text = read_text_file(path, shown)
        if len(self.read) >= MOST:
            raise CkptcheckError(f"the job's files include more than {MOST} others")
        self.read.append(self.name(path))
        return text

    def document(self, path: Path, shown: str) -> Document:
        """Read a YAML or TOML file with the files that its ``defaults:`` name. shown: its name in error messages."""
        text = self.text(path, shown)
        name = self.name(path)
        is_toml = path.suffix in TOML
        document = (
            toml_file.read(text, name)
            if is_toml
            else self.with_defaults(yaml_file.read(text, name, self.budget), path, ())
        )
        document.versions |= find_pinned_versions(text, name)
        document.environment |= find_environment(document)
        return document

    def with_defaults(self, own: Document, path: Path, above: tuple[Path, ...]) -> Document:
        """Merge a file over the files that its ``defaults:`` name: by group as in Hydra, or by path as in NeMo-RL.

        Args:
            own: The file's own values.
            path: The file.
            above: The files that include this one, outermost first.
        """
        defaults = own.leaves.get("defaults")
        own.remove("defaults")
        own.remove("hydra")
        if defaults is None:
            return own
        if len(above) >= DEEPEST or path in above:
            raise CkptcheckError(f"{self.name(path)}:{defaults.line} defaults include each other")
        whole, is_own_merged = Document(), False
        for entry in defaults.value if isinstance(defaults.value, list) else [defaults.value]:
            if entry == "_self_":
                whole.update(own)
                is_own_merged = True
                continue
            for file, package in list_included_files(entry, path.parent):
                included = self.included(file, defaults, path, above)
                whole.notes += included.notes
                whole.is_incomplete |= included.is_incomplete
                for key, leaf in included.leaves.items():
                    self.budget.spend(VALUE_STEPS, self.name(path))
                    whole.put(f"{package}.{key}" if package else key, leaf)
        if not is_own_merged:
            whole.update(own)
        return whole

    def included(self, file: Path, listed: Leaf, path: Path, above: tuple[Path, ...]) -> Document:
        """Read a file that ``defaults:`` names; where it does not exist, return an incomplete document with a note.

        listed: the leaf ``defaults``. path, above: the file that has it, and the files that include that one.
        """
        if not file.is_file():
            note = f"{self.name(file)}, on which {listed.file}:{listed.line} builds, does not exist"
            return Document(notes=[note], is_incomplete=True)
        text = self.text(file, self.name(file))
        return self.with_defaults(yaml_file.read(text, self.name(file), self.budget), file, (*above, path))

    def script(self, path: Path, shown: str) -> tuple[Script, list[str], dict[str, Leaf]]:
        """Read a shell script and the scripts that it sources.

        Returns the script, a note for each sourced file that could not be read, and the versions that the files pin.
        """
        notes: list[str] = []
        versions: dict[str, Leaf] = {}

        def read_script(file: Path, name: str, into: Script, depth: int) -> None:
            text = self.text(file, name)
            versions.update(find_pinned_versions(text, self.name(file)))

            def follow(word: Word, script: Script) -> None:
                sourced = file.parent / word.text
                place = f"which {self.name(file)}:{word.line} sources"
                if word.reason or not word.text:
                    notes.append(f"a file is not read, {place}: {word.reason or 'it has no name'}")
                elif not sourced.is_file():
                    notes.append(f"{self.name(sourced)}, {place}, does not exist")
                elif depth < DEEPEST:
                    read_script(sourced, self.name(sourced), script, depth + 1)

            shell_script.read(text, self.name(file), file.parent.resolve(), follow=follow, into=into)

        script = Script()
        read_script(path, shown, script, 0)
        return script, notes, versions

    def beside(self, name: str, start: Path) -> Path | None:
        """Find a file that a launch line names: in a folder, in the four above it, or in the working folder.

        Tries the name itself, then the name with ``.yaml``. start: the folder of the script.
        """
        folders: Sequence[Path] = [start, *list(start.resolve().parents)[:4], Path.cwd()]
        for suffix in ("", ".yaml"):
            for folder in folders:
                try:
                    if (folder / f"{name}{suffix}").is_file():
                        return folder / f"{name}{suffix}"
                except (OSError, ValueError):
                    return None
        return None


def list_included_files(entry: object, folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield (file, section that its values go into) for each file that one entry of ``defaults:`` names.

    entry: ``name``, ``{group: name}`` or ``{group@section: [names]}``. folder: of the file that has the entry.
    """
    pairs = list(entry.items()) if isinstance(entry, dict) else [(None, entry)]
    for group, choice in pairs:
        for name in choice if isinstance(choice, list) else [choice]:
            if not isinstance(name, str) or name in ("", "_self_") or "${" in name or "\0" in name:
                continue
            group_path = str(group or "").removeprefix("override ").removeprefix("optional ").strip()
            directory, _, package = group_path.partition("@")
            file = folder / directory / name
            yield (
                (file if file.suffix in YAML else file.with_name(file.name + ".yaml")),
                (package or directory.strip("/").replace("/", ".")).replace("_global_", ""),
            )


def find_pinned_versions(text: str, name: str) -> dict[str, Leaf]:
    """Find the package versions that a text pins (``vllm==0.18.1``, the tag of an image): package → leaf.

    name: the file as the report names it.
    """
    versions = {}
    for package, pattern in PINNED.items():
        if match := pattern.search(text):
            version = next(group for group in match.groups() if group)
            versions[package] = Leaf(version, package, name, text.count("\n", 0, match.start()) + 1)
    return versions
