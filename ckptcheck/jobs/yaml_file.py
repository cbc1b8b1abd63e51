"""Reads YAML with the line of every value, and bounds the work that a hostile file can cause.

PyYAML composes the nodes; this module constructs only plain scalars from them, so that no tag can create an object. It
expands aliases and merges itself and takes every value from the job's budget, and so refuses a "billion laughs" file. PyYAML
is no additional dependency: huggingface-hub needs it too. Its parser in C is ten times as fast, which is milliseconds of a job, and
takes files that the frameworks' refuse, as with a tab behind a colon.

OmegaConf would read the same values (tests/jobs/test_against_hydra.py compares them) and forget the lines, on which the
findings stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from ckptcheck.checkpoint.document import clip
from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.budget import VALUE_STEPS, WorkBudget, current_budget
from ckptcheck.jobs.document import AmbiguousMerge, Document, Leaf

DEEPEST = 60
"""Largest nesting depth."""
LONGEST_NUMBER = 1000
"""Most characters of a number: one of 4,000 hexadecimal digits has more decimal digits than Python writes."""
PLAIN = "tag:yaml.org,2002:"
MERGE = f"{PLAIN}merge"
SCALARS = {f"{PLAIN}{kind}" for kind in ("null", "bool", "int", "float", "str", "timestamp")}
FLOAT = re.compile(r"[-+]?\d+(_\d+)*[eE][-+]?\d+|[-+]?\d+(_\d+)*\.[\d_]*[eE]\d+")
"""Numbers such as 1e-6 and 1.5e6, which OmegaConf reads as numbers and YAML 1.1 reads as text."""


def read(text: str, name: str, budget: WorkBudget | None = None) -> Document:
    """Parse one YAML document whose root is a mapping.

    Raises CkptcheckError, with the line, for text that is not YAML, two documents, tags other than plain ones, a repeated
    key (OmegaConf refuses it too), values that are nested too deeply, and more work than the budget has.

    Args:
        text: The file's text.
        name: The file as the report names it.
        budget: The work that the job may still cause; None for that of the job that is being read.
    """
    budget = budget or current_budget()
    budget.spend(len(text), name)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}" if mark else name
        raise CkptcheckError(f"{place} is not YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # "\\U00110000", a %YAML of 5,000 digits
        raise CkptcheckError(f"{name} is not YAML: {clip(' '.join(str(error).split()))}") from error
    except RecursionError as error:
        raise CkptcheckError(f"{name} is nested too deeply to be a configuration") from error
    if not isinstance(root, yaml.MappingNode):
        raise CkptcheckError(f"{name} holds no mapping of keys to values, so it is no job's configuration")
    document = Document(budget=budget)
    _NodeFlattener(name, budget).section(root, "", document, 0)
    return document


def parse_scalar(text: str) -> object:
    """Read a value of a command line as Hydra would: a number, true, null, [a, b], or text.

    >>> parse_scalar("1e-6"), parse_scalar("true"), parse_scalar("[1, two]"), parse_scalar("flash"), parse_scalar("${a.b}")
    (1e-06, True, [1, 'two'], 'flash', '${a.b}')
    """
    if len(text) > 1000 or "${" in text or "&" in text or "*" in text or "!" in text:
        return text
    budget = current_budget()
    budget.spend(len(text), "the text of its values")
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        return _NodeFlattener("", budget).plain(node, 0) if node is not None else text
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError, CkptcheckError):
        return text


class _NodeFlattener:
    """Turns YAML nodes into the leaves of a document."""

    def __init__(self, name: str, budget: WorkBudget) -> None:
        self.name = name
        self.budget = budget
        self.reader = yaml.constructor.SafeConstructor()

    def section(self, node: yaml.MappingNode, path: str, into: Document, depth: int) -> None:
        """Put the values of a mapping and its submappings into a document as leaves."""
        pairs = self.pairs(node, depth)
        into.ambiguous += self.find_ambiguous(node, dict(pairs), path, depth)
        if not pairs and path:
            into.put(path, Leaf({}, path, self.name, node.start_mark.line + 1))
        for key, value in pairs:
            full_path = f"{path}.{key}" if path else key
            self.budget.spend(len(full_path), self.name)
            if isinstance(value, yaml.MappingNode):
                self.section(value, full_path, into, depth + 1)
            else:
                line = value.start_mark.line + 1
                into.put(full_path, Leaf(self.plain(value, depth + 1), full_path, self.name, line))

    def pairs(self, node: yaml.MappingNode, depth: int) -> list[tuple[str, yaml.Node]]:
        """Return the keys and values of a mapping. Its own keys replace those that it merges in with ``<<``."""
        self.spend(node, depth)
        own: dict[str, yaml.Node] = {}
        merged: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if key.tag == MERGE:
                merged |= self.merged(value, depth)
                continue
            name = self.key(key)
            if name in own and key.tag == f"{PLAIN}str":
                raise self.refusal(key, f"says {clip(name)} a second time, which OmegaConf refuses")
            own[name] = value
        return list((merged | own).items()) if merged else list(own.items())

    def merged(self, node: yaml.Node, depth: int) -> dict[str, yaml.Node]:
        """Return the pairs that ``<<: *a`` or ``<<: [*a, *b]`` merges in; of mappings in a list the first one counts."""
        pairs: dict[str, yaml.Node] = {}
        for source in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if not isinstance(source, yaml.MappingNode):
                raise self.refusal(node, "merges (<<) something that is no mapping")
            for name, value in self.pairs(source, depth + 1):
                self.budget.spend(VALUE_STEPS, self.name)
                pairs.setdefault(name, value)
        return pairs

    def find_ambiguous(
        self, node: yaml.MappingNode, pairs: dict[str, yaml.Node], path: str, depth: int
    ) -> Iterator[AmbiguousMerge]:
        """Yield the keys of a mapping to which PyYAML 6.0.4 gives another value. pairs: what `pairs` returns for it."""
        if all(key.tag != MERGE for key, _ in node.value):
            return
        later = {str(key.value): value for key, value in self.pairs_in_later_order(node, depth)}
        for name, value in pairs.items():
            if later[name] is value:
                continue
            ours, theirs = self.plain(value, depth + 1), self.plain(later[name], depth + 1)
            if ours != theirs:
                key = f"{path}.{name}" if path else name
                yield AmbiguousMerge(Leaf(ours, key, self.name, value.start_mark.line + 1), theirs)

    def pairs_in_later_order(self, node: yaml.MappingNode, depth: int) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
        """Return the pairs of a mapping in the order of PyYAML 6.0.4: of those with one key the last counts.

        It leaves out a pair whose key it has, by the identity of the key's text (yaml/constructor.py, `flatten_mapping`). That
        finds what two aliases share, and every key of one letter, because Python shares such texts.
        """
        self.spend(node, depth)
        merged: dict[object, tuple[yaml.ScalarNode, yaml.Node]] = {}
        own = []
        for key, value in node.value:
            if key.tag != MERGE:
                own.append((key, value))
                continue
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                for pair in self.pairs_in_later_order(source, depth + 1):
                    self.budget.spend(VALUE_STEPS, self.name)
                    merged.setdefault(pair[0].value if len(pair[0].value) == 1 else id(pair[0]), pair)
        return [*merged.values(), *own]

    def key(self, node: yaml.Node) -> str:
        """Return the name of a key; refuses one that is no plain text."""
        name = str(node.value) if isinstance(node, yaml.ScalarNode) else ""
        if not name or name.count(".") > DEEPEST:
            raise self.refusal(node, "has a key that is no plain text")
        return name

    def plain(self, node: yaml.Node, depth: int) -> Any:
        """Return the value of a node: a scalar, a list or a dict."""
        self.spend(node, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(item, depth + 1) for item in node.value]
        if isinstance(node, yaml.MappingNode):
            return {key: self.plain(value, depth + 1) for key, value in self.pairs(node, depth)}
        if node.tag == f"{PLAIN}str" and node.style is None and FLOAT.fullmatch(node.value):
            return float(node.value.replace("_", ""))
        if node.tag == f"{PLAIN}timestamp":
            return str(node.value)
        try:
            if node.tag != f"{PLAIN}str" and len(node.value) > LONGEST_NUMBER:
                raise ValueError
            return self.reader.construct_object(node)
        except (yaml.YAMLError, ValueError, LookupError, OverflowError) as error:
            # 0b2, !!bool maybe, !!int "", !!float with hundreds of colons
            raise self.refusal(node, f"holds {clip(str(node.value), 30)!r}, which is no value") from error

    def spend(self, node: yaml.Node, depth: int) -> None:
        """Take a node from the budget, and refuse it where it is too deep or has a tag that is not plain."""
        self.budget.spend(VALUE_STEPS, self.name)
        if depth > DEEPEST:
            raise self.refusal(node, "is nested too deeply to be a configuration")
        own = SCALARS if isinstance(node, yaml.ScalarNode) else {f"{PLAIN}{'map' if node.id == 'mapping' else 'seq'}"}
        if node.tag not in own:
            raise self.refusal(node, f"has the tag {clip(node.tag.replace(PLAIN, '!!'))}, and tags are not obeyed")

    def refusal(self, node: yaml.Node, what: str) -> CkptcheckError:
        """Make the error for a node. what: a predicate whose subject is the place in the file."""
        return CkptcheckError(f"{self.name}:{node.start_mark.line + 1} {what}")
