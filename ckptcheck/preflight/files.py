"""Reads a job's files, and those that they name: YAML ``defaults:``, sourced scripts, configurations of a launch line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ckptcheck.errors import CkptcheckError
from ckptcheck.preflight import shell, toml_file, yaml_file
from ckptcheck.preflight.document import Document, Leaf, text_of
from ckptcheck.preflight.shell import Script, Word

YAML, TOML, SHELL = (".yaml", ".yml"), (".toml",), (".sh", ".bash", ".slurm", ".sbatch", ".txt", "")
DEEPEST, MOST = 8, 60
"""Files that include each other, and files in all."""
PINNED = {
    "vllm": re.compile(r"\bvllm==(\d+(?:\.\d+)+)|vllm/vllm-openai:v(\d+(?:\.\d+)+)"),
    "sglang": re.compile(r"\bsglang(?:\[\w+\])?==(\d+(?:\.\d+)+)|lmsysorg/sglang:v(\d+(?:\.\d+)+)"),
    "transformer_engine": re.compile(r"\btransformer[_-]engine(?:\[\w+\])?==(\d+(?:\.\d+)+)"),
}
ENVIRONMENT = re.compile(r"(?:^|\.)(?:system_envs|env_vars)\.(\w+)$")


class Files:
    """The files of one job. folder: of the first one; all are named relative to it."""

    def __init__(self, first: Path) -> None:
        self.folder = first.parent
        self.read: list[str] = []

    def name(self, path: Path) -> str:
        """How the report names a file."""
        try:
            return Path(os.path.relpath(path, self.folder)).as_posix()
        except ValueError:  # another drive
            return path.as_posix()

    def text(self, path: Path, shown: str) -> str:
        """Read a file, and note that it was. Raises CkptcheckError."""
        text = text_of(path, shown)
        if len(self.read) >= MOST:
            raise CkptcheckError(f"the job's files include more than {MOST} others")
        self.read.append(self.name(path))
        return text

    def document(self, path: Path, shown: str) -> Document:
        """Read a YAML or TOML file with all that it builds on."""
        text = self.text(path, shown)
        name = self.name(path)
        toml = path.suffix in TOML
        found = toml_file.read(text, name) if toml else self.with_defaults(yaml_file.read(text, name), path, ())
        found.versions |= pinned(text, name)
        for leaf_path, leaf in list(found.leaves.items()):
            if variable := ENVIRONMENT.search(leaf_path):
                found.environment[variable[1]] = leaf
        return found

    def with_defaults(self, own: Document, path: Path, above: tuple[Path, ...]) -> Document:
        """Lay a file over what its ``defaults:`` name, in Hydra's way and in NeMo-RL's (a path)."""
        listed = own.leaves.pop("defaults", None)
        own.remove("hydra")
        if listed is None:
            return own
        if len(above) >= DEEPEST or path in above:
            raise CkptcheckError(f"{self.name(path)}:{listed.line} defaults include each other")
        whole, laid = Document(), False
        for entry in listed.value if isinstance(listed.value, list) else [listed.value]:
            if entry == "_self_":
                whole.update(own)
                laid = True
                continue
            for file, package in candidates(entry, path.parent):
                included = self.included(file, listed, path, above)
                whole.notes += included.notes
                whole.incomplete |= included.incomplete
                for key, leaf in included.leaves.items():
                    whole.put(f"{package}.{key}" if package else key, leaf)
        if not laid:
            whole.update(own)
        return whole

    def included(self, file: Path, listed: Leaf, path: Path, above: tuple[Path, ...]) -> Document:
        """Read a file that ``defaults:`` names; a note where it is not there."""
        if not file.is_file():
            note = f"{self.name(file)}, on which {listed.file}:{listed.line} builds, is not there to be read"
            return Document(notes=[note], incomplete=True)
        text = self.text(file, self.name(file))
        return self.with_defaults(yaml_file.read(text, self.name(file)), file, (*above, path))

    def script(self, path: Path, shown: str) -> tuple[Script, list[str], dict[str, Leaf]]:
        """Read a shell script and those that it sources. Returns it, notes on what was not there, and pinned versions."""
        notes: list[str] = []
        versions: dict[str, Leaf] = {}

        def one(file: Path, name: str, into: Script, depth: int) -> None:
            text = self.text(file, name)
            versions.update(pinned(text, self.name(file)))

            def follow(word: Word, script: Script) -> None:
                goal = file.parent / word.text
                place = f"which {self.name(file)}:{word.line} sources"
                if word.reason or not word.text:
                    notes.append(f"a file is not read, {place}: {word.reason or 'it has no name'}")
                elif not goal.is_file():
                    notes.append(f"{self.name(goal)}, {place}, is not there to be read")
                elif depth < DEEPEST:
                    one(goal, self.name(goal), script, depth + 1)

            shell.read(text, self.name(file), file.parent.resolve(), follow=follow, into=into)

        script = Script()
        one(path, shown, script, 0)
        return script, notes, versions

    def beside(self, name: str, start: Path) -> Path | None:
        """Find a file that a launch line names, from the script's folder upwards and from the working folder."""
        places: Sequence[Path] = [start, *list(start.resolve().parents)[:4], Path.cwd()]
        for suffix in ("", ".yaml"):
            for folder in places:
                try:
                    if (folder / f"{name}{suffix}").is_file():
                        return folder / f"{name}{suffix}"
                except (OSError, ValueError):
                    return None
        return None


def candidates(entry: object, folder: Path) -> Iterator[tuple[Path, str]]:
    """The files that an entry of ``defaults:`` names, with the section that each goes into."""
    pairs = list(entry.items()) if isinstance(entry, dict) else [(None, entry)]
    for group, choice in pairs:
        for name in choice if isinstance(choice, list) else [choice]:
            if not isinstance(name, str) or name == "_self_" or "${" in name or "\0" in name:
                continue
            where = str(group or "").removeprefix("override ").removeprefix("optional ").strip()
            directory, _, package = where.partition("@")
            file = folder / directory / name
            yield (
                (file if file.suffix in YAML else file.with_name(file.name + ".yaml")),
                (package or directory.strip("/").replace("/", ".")).replace("_global_", ""),
            )


def pinned(text: str, name: str) -> dict[str, Leaf]:
    """Versions that a file pins: ``vllm==0.18.1``, an image's tag."""
    found = {}
    for package, pattern in PINNED.items():
        if match := pattern.search(text):
            version = next(group for group in match.groups() if group)
            found[package] = Leaf(version, package, name, text.count("\n", 0, match.start()) + 1)
    return found
