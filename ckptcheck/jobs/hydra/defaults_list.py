"""Composes a configuration from its ``defaults:`` list, as Hydra's compose does, and keeps the line of every value.

The order in which configurations are entered and merged is that of hydra-core 1.3 (``_internal/defaults_list.py``). Structured
configurations, which a program registers, are unknown here: a name without a file is a note, and the result is incomplete.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ckptcheck.checkpoint.document import clip
from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.budget import VALUE_STEPS, WorkBudget
from ckptcheck.jobs.document import Document, Leaf, Refusal, is_hidden
from ckptcheck.jobs.hydra.defaults_entry import SELF, DefaultsError, Entry, parse_entries
from ckptcheck.jobs.hydra.override import Override
from ckptcheck.jobs.interpolation import find_reference, resolve

ENTRY_STEPS = 50
"""Steps of the budget that one entry of a defaults list costs."""
DEEPEST = 20
"""Largest depth of configurations that include each other."""


@dataclass
class Config:
    """The own content of a configuration file."""

    document: Document
    """Its values, without its ``defaults:``."""
    defaults: Leaf | None = None
    """Its ``defaults:``."""
    header: str | None = None
    """The package that its header sets."""


@dataclass
class Node:
    """A configuration in the tree of those that include each other; a node without children is merged as it is."""

    entry: Entry
    children: list[Node] = field(default_factory=list)


class ConfigFolders:
    """The folders in which Hydra looks for configurations, the first one first."""

    def __init__(self, folders: Sequence[Path], load: Callable[[Path], Config], *, is_whole: bool = True) -> None:
        self.folders = list(folders)
        self.load_file = load
        # Whether Hydra looks in no other folder.
        self.is_whole = is_whole
        self._loaded: dict[str, Config | None] = {}

    def find(self, path: str) -> Path | None:
        """Return the file of a configuration; None without one. path: from a folder, with or without suffix."""
        for folder in self.folders:
            file = folder / (path if path.endswith((".yaml", ".yml")) else f"{path}.yaml")
            try:
                if file.is_file() and not is_hidden(file, self.folders[0]):
                    return file
            except (OSError, ValueError):
                return None
        return None

    def has_group(self, group: str) -> bool:
        """Return whether a folder has a config group."""
        try:
            return bool(group) and any((folder / group).is_dir() for folder in self.folders)
        except (OSError, ValueError):
            return False

    def load(self, path: str) -> Config | None:
        """Return a configuration; None if it does not exist. Every file is read once."""
        if path not in self._loaded:
            file = self.find(path)
            self._loaded[path] = self.load_file(file) if file is not None else None
        return self._loaded[path]


class Composer:
    """Composes one primary configuration with the choices of a command line."""

    def __init__(
        self,
        folders: ConfigFolders,
        overrides: Sequence[tuple[Override, Leaf]],
        budget: WorkBudget,
        environment: Mapping[str, Leaf],
    ) -> None:
        """Sort the overrides.

        overrides: with the place of each; `values` keeps the ones that choose no group.
        environment: the variables that the user gives.
        """
        self.folders = folders
        self.budget = budget
        self.document = Document(environment=dict(environment), budget=budget)
        self.choices: dict[str, tuple[str | list[str] | None, Leaf | None]] = {}
        self.used: set[str] = set()
        self.removed: set[str] = set()
        self.merged: set[str] = set()
        self.known: dict[str, str | None] = {}
        self.appended: list[Entry] = []
        self.deleted: dict[str, tuple[object, Leaf]] = {}
        self.values: list[tuple[Override, Leaf]] = []
        """The overrides that set values."""
        self.places = [leaf for _, leaf in overrides]
        for override, leaf in overrides:
            self._sort_override(override, leaf)

    def _sort_override(self, override: Override, leaf: Leaf) -> None:
        """Enter an override as a choice of a group if there is such a group, else among the values."""
        value = override.value
        if not self.folders.has_group(override.key) or isinstance(value, dict) or override.reason or override.is_sweep:
            self.values.append((override, leaf))
        elif override.kind == "~":
            self.deleted[override.group_key] = (value, leaf)
        elif override.kind == "++":
            self.refuse(leaf, f"++ cannot add a choice of the config group {override.key}: write +{override.key}=…")
        elif not (isinstance(value, str) or (isinstance(value, list) and all(isinstance(name, str) for name in value))):
            self.refuse(leaf, f"the config group {override.key} takes a name or a list of names")
        elif override.kind == "+":
            self.appended.append(Entry(override.key, value, override.package, leaf=leaf))
        else:
            self.choices[override.group_key] = (value, leaf)

    def refuse(self, leaf: Leaf | None, why: str, note: str = "") -> None:
        """Record that Hydra refuses the text of a leaf. note: the one of the document that says the same."""
        is_override = any(leaf is place for place in self.places)
        self.document.refusals.append(Refusal(leaf or Leaf(None, ""), why, is_override, note=note))

    def compose(self, name: str) -> Document:
        """Return the composed values. name: the primary configuration, which exists."""
        primary = Entry(None, name)
        root = Node(primary)
        self._enter(root, [], is_interpolated=False)
        for key, (_, leaf) in self.choices.items():
            if key not in self.used and not key.startswith("hydra/"):
                self.refuse(leaf, f"no defaults list has {clip(key)}, so its choice cannot be changed")
        for key, (_, leaf) in self.deleted.items():
            if key not in self.removed:
                self.refuse(leaf, f"no defaults list has {clip(key)}, so it cannot be removed")
        self._merge(root)
        self.document.remove("hydra")
        self.document.is_composed = not self.document.is_incomplete
        return self.document

    def _leave_out(self, entry: Entry, before: str, after: str) -> None:
        """Leave an entry out whose values are not known. before, after: the sentence around the place of the entry."""
        where = f"{entry.leaf.file}:{entry.leaf.line}" if entry.leaf and entry.leaf.file else "the command line"
        self.document.notes.append(f"{before}{where}{after}")
        self.document.is_incomplete = True
        entry.value = None

    def _enter(self, node: Node, above: list[str], *, is_interpolated: bool) -> None:
        """Find the configurations that a configuration includes, and enter them in turn. above: its including ones."""
        entry = node.entry
        self.budget.spend(ENTRY_STEPS, "the defaults list")
        is_of_hydra = entry.group_path.startswith("hydra/") or entry.group_path == "hydra"
        if is_of_hydra or (entry.group is not None and self._is_deleted(entry)):
            entry.value = None
            return
        if entry.group is not None:
            self._remember_choice(entry)
        if entry.name is None:
            return
        if entry.name == "???":
            self._leave_out(entry, "", f" requires a choice of {clip(entry.key)} (???), and none is given")
            return
        path = entry.config_path
        if path in above or len(above) > DEEPEST:
            place = f"{entry.leaf.file}:{entry.leaf.line}" if entry.leaf else path
            raise CkptcheckError(f"{place} defaults include each other")
        config = self.folders.load(path)
        if config is None:
            if not entry.is_optional:
                file = entry.config_path if entry.is_file else f"{entry.config_path}.yaml"
                self._leave_out(entry, f"{clip(file)}, on which ", " builds, does not exist")
                is_beside = entry.is_file or entry.group is None or self.folders.has_group(entry.group_path)
                if self.folders.is_whole and is_beside and not str(entry.value).startswith("/"):
                    self.refuse(entry.leaf, f"{clip(file)} does not exist", self.document.notes[-1])
            entry.value = None
            return
        entry.header = config.header
        self._enter_children(node, config, [*above, path], is_interpolated=is_interpolated)

    def _is_deleted(self, entry: Entry) -> bool:
        """Return whether ``~group`` of the command line removes an entry."""
        name, _ = self.deleted.get(entry.key, (False, None))
        if name is False or (name is not None and name != entry.name):
            return False
        self.removed.add(entry.key)
        return True

    def _remember_choice(self, entry: Entry) -> None:
        """Remember the choice of a group, to which interpolations of defaults refer; Hydra takes only one."""
        if self.known.setdefault(entry.key, entry.name) != entry.name:
            self.refuse(
                entry.leaf, f"the defaults list chooses {clip(entry.key)} twice: {self.known[entry.key]}, {entry.name}"
            )

    def _enter_children(self, node: Node, config: Config, above: list[str], *, is_interpolated: bool) -> None:
        """Enter the entries of a configuration's defaults list, the last one first, as Hydra does."""
        entries = self._list_entries(config)
        if len(above) == 1:
            if self.appended and not any(entry.is_self for entry in entries):
                entries.append(Entry(None, SELF))
            entries += self.appended
        group, package = node.entry.group_path, node.entry.final_package()
        for entry in entries:
            entry.base, entry.parent_package = group, package
        self._enter_overrides(entries, is_interpolated=is_interpolated)
        children: list[Node] = []
        waiting: list[Node] = []
        for entry in reversed(entries):
            if entry.is_override:
                continue
            if entry.is_self:
                children.append(Node(entry))
                continue
            if entry.group is not None and entry.key in self.choices:
                self.used.add(entry.key)
                entry.value, place = self.choices[entry.key]
                entry.leaf = place or entry.leaf
            if isinstance(entry.value, list):
                for name in reversed(entry.value):
                    option = Entry(None, f"{entry.group}/{name}", entry.package, entry.is_optional, leaf=entry.leaf)
                    option.base, option.parent_package = group, package
                    children.append(Node(option))
                    self._enter(children[-1], above, is_interpolated=is_interpolated)
                continue
            children.append(Node(entry))
            if isinstance(entry.value, str) and "${" in entry.value:
                waiting.append(children[-1])
            else:
                self._enter(children[-1], above, is_interpolated=is_interpolated)
        for child in waiting:
            if self._resolve_name(child.entry):
                self._enter(child, above, is_interpolated=True)
        node.children = children[::-1]

    def _list_entries(self, config: Config) -> list[Entry]:
        """Return the entries of a configuration's defaults list, with ``_self_`` last if the list does not name it."""
        if config.defaults is None:
            return []
        try:
            entries = [copy.copy(entry) for entry in parse_entries(config.defaults)]
        except DefaultsError as error:
            self.refuse(config.defaults, f"the defaults list {error}")
            return []
        if sum(entry.is_self for entry in entries) > 1:
            self.refuse(config.defaults, "the defaults list has _self_ twice")
        is_written = any(entry.is_self for entry in entries)
        if not is_written and (not entries or not all(entry.is_override for entry in entries)):
            entries.append(Entry(None, SELF))
        return entries

    def _enter_overrides(self, entries: list[Entry], *, is_interpolated: bool) -> None:
        """Enter the entries with the word override; the first one that is entered counts, and the command line before all."""
        for number, entry in enumerate(entries):
            if not entry.is_override:
                continue
            if is_interpolated:
                self.refuse(entry.leaf, "a configuration whose choice is an interpolation cannot override others")
            if any(
                not later.is_override and not later.is_self and later not in self.appended for later in entries[number:]
            ):
                self.refuse(
                    entry.leaf,
                    "an override stands before other entries of the defaults list; Hydra takes it only at the end",
                )
            self.choices.setdefault(entry.key, (entry.value, entry.leaf))

    def _resolve_name(self, entry: Entry) -> bool:
        """Resolve the interpolation in the name of a configuration by the choices known so far. Returns whether it could."""
        known = Document(environment=self.document.environment, defaulted=self.document.defaulted, budget=self.budget)
        for key, choice in self.known.items():
            known.put(key, Leaf(choice, key))
        known.put("_name_", Leaf(entry.value, "_name_"))
        found = resolve(known, "_name_")
        if found is not None and isinstance(found.value, str) and not found.reason:
            entry.value = found.value
            return True
        reason = found.reason if found else "it is no name"
        self._leave_out(entry, f"{clip(str(entry.value))}, on which ", f" builds, is not resolved: {reason}")
        return False

    def _merge(self, node: Node, parent: Node | None = None) -> None:
        """Merge a configuration, and the ones that it includes, in their order."""
        if node.entry.is_self and parent is not None:
            self._merge_own(parent.entry)
        elif node.children:
            for child in node.children:
                self._merge(child, node)
        elif node.entry.name is not None:
            if node.entry.group is not None:
                if node.entry.key in self.merged:
                    self.refuse(node.entry.leaf, f"the defaults list comes to {clip(node.entry.key)} twice")
                self.merged.add(node.entry.key)
            self._merge_own(node.entry)

    def _merge_own(self, entry: Entry) -> None:
        """Merge the own values of a configuration into its package."""
        config = self.folders.load(entry.config_path)
        if config is None:
            return
        package = entry.final_package()
        merge_values(self.document, config.document, package)


def merge_values(into: Document, values: Document, package: str = "") -> None:
    """Merge values into a section of a document as OmegaConf does. package: the section, "" for the root.

    A section whose value refers to another (``a: ${b}``) becomes a copy of that one before keys of it are set. NeMo-RL's marker
    ``_override_: true`` in a section removes what the section had.
    """
    for path, leaf in values.leaves.items():
        section, _, name = path.rpartition(".")
        if name == "_override_" and leaf.value is True and "." not in section:
            into.remove(section)
    for path, leaf in values.leaves.items():
        if path.endswith("._override_") and path.count(".") == 1:
            continue
        full_path = f"{package}.{path}" if package else path
        into.budget.spend(VALUE_STEPS, leaf.file or full_path)
        into.require_room(full_path, leaf)
        copy_referred_section(into, full_path)
        if what := find_list_conflict(into, full_path, leaf.value):
            into.refusals.append(Refusal(leaf, f"{clip(full_path)} cannot be merged: {what}", is_override=False))
        into.put(full_path, replace(leaf, key=full_path) if leaf.is_default else leaf)
    into.environment |= values.environment
    into.versions |= values.versions
    into.ambiguous += values.ambiguous


def find_list_conflict(document: Document, path: str, value: object) -> str:
    """Return why OmegaConf refuses to merge a value: a list meets a section. "" if it does not refuse."""
    old = document.leaves.get(path)
    if isinstance(value, list) and document.has_section(path):
        return "one file has a section there, another a list"
    if isinstance(value, dict) and old is not None and isinstance(old.value, list):
        return "one file has a list there, another a section"
    section = path.rpartition(".")[0]
    while section:
        above = document.leaves.get(section)
        if above is not None and isinstance(above.value, list):
            return f"{clip(section)} is a list in one file, and a section in another"
        section = section.rpartition(".")[0]
    return ""


def copy_referred_section(document: Document, path: str) -> None:
    """If a section above a key is a reference to another section, replace it by a copy of that section."""
    parts = path.split(".")
    for length in range(1, len(parts)):
        section = ".".join(parts[:length])
        leaf = document.leaves.get(section)
        target = find_reference(leaf.value, section) if leaf else None
        if target and not f"{target}.".startswith(f"{section}."):
            for rest, copied in list(document.iter_section(target)):
                document.budget.spend(VALUE_STEPS, section)
                document.put(f"{section}.{rest}", copied)
