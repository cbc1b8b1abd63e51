"""Reads YAML with the line of every value, and bounds the work that a hostile file can cause.

PyYAML composes the nodes; this module constructs only plain scalars from them, so that no tag can create an object. It
expands aliases itself and counts the values, and so refuses a "billion laughs" file. PyYAML is no additional dependency:
huggingface-hub needs it too.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from ckptcheck.checkpoint.document import clip
from ckptcheck.errors import CkptcheckError
from ckptcheck.preflight.document import Document, Leaf

MOST = 50_000
"""Largest number of values in a file, with aliases expanded. The largest known reference configuration has 700."""
DEEPEST = 60
"""Largest nesting depth."""
PLAIN = "tag:yaml.org,2002:"
MERGE = f"{PLAIN}merge"
SCALARS = {f"{PLAIN}{kind}" for kind in ("null", "bool", "int", "float", "str", "timestamp")}
FLOAT = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+")
"""Numbers such as 1e-6, which OmegaConf and Hydra read as numbers and YAML 1.1 reads as text."""


def read(text: str, name: str) -> Document:
    """Parse one YAML document whose root is a mapping. name: the file as the report names it.

    Raises CkptcheckError, with the line, for text that is not YAML, two documents, tags other than plain ones, a repeated
    key (OmegaConf refuses it too), and for values that are nested too deeply or too many.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}" if mark else name
        raise CkptcheckError(f"{place} is not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise CkptcheckError(f"{name} is not YAML: {clip(' '.join(str(error).split()))}") from error
    except RecursionError as error:
        raise CkptcheckError(f"{name} is nested too deeply to be a configuration") from error
    if not isinstance(root, yaml.MappingNode):
        raise CkptcheckError(f"{name} holds no mapping of keys to values, so it is no job's configuration")
    return _NodeFlattener(name).document(root)


def parse_scalar(text: str) -> object:
    """Read a value of a command line as Hydra would: a number, true, null, [a, b], or text.

    >>> parse_scalar("1e-6"), parse_scalar("true"), parse_scalar("[1, two]"), parse_scalar("flash"), parse_scalar("${a.b}")
    (1e-06, True, [1, 'two'], 'flash', '${a.b}')
    """
    if len(text) > 1000 or "${" in text or "&" in text or "*" in text or "!" in text:
        return text
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        return _NodeFlattener("").plain(node, 0) if node is not None else text
    except (yaml.YAMLError, RecursionError, CkptcheckError):
        return text


class _NodeFlattener:
    """Turns YAML nodes into the leaves of a document."""

    def __init__(self, name: str) -> None:
        self.name = name
        # The number of values that may still be read.
        self.left = MOST
        self.reader = yaml.constructor.SafeConstructor()

    def document(self, root: yaml.MappingNode) -> Document:
        """Return the document of a file whose root is a mapping."""
        document = Document()
        self.section(root, "", document, 0)
        return document

    def section(self, node: yaml.MappingNode, path: str, into: Document, depth: int) -> None:
        """Put the values of a mapping and its submappings into a document as leaves."""
        for key, value in self.pairs(node, depth):
            full_path = f"{path}.{key}" if path else key
            if isinstance(value, yaml.MappingNode) and value.value:
                self.section(value, full_path, into, depth + 1)
            else:
                line = value.start_mark.line + 1
                into.put(full_path, Leaf(self.plain(value, depth + 1), full_path, self.name, line))

    def pairs(self, node: yaml.MappingNode, depth: int) -> list[tuple[str, yaml.Node]]:
        """Return the keys and values of a mapping. Its own keys replace those that it merges in with ``<<``."""
        self.spend(node, depth)
        merged: dict[str, yaml.Node] = {}
        own: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if key.tag == MERGE:
                for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if not isinstance(source, yaml.MappingNode):
                        raise self.refusal(value, "merges (<<) something that is no mapping")
                    merged = {**dict(self.pairs(source, depth + 1)), **merged}
                continue
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
            if not name:
                raise self.refusal(key, "has a key that is no plain text")
            if name in own:
                raise self.refusal(key, f"says {clip(name)} a second time, which OmegaConf refuses")
            own[name] = value
        return list((merged | own).items())

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
            return self.reader.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            # ValueError: an int of more than 4,300 digits, or 0b2.
            raise self.refusal(node, f"holds {clip(str(node.value), 30)!r}, which is no value") from error

    def spend(self, node: yaml.Node, depth: int) -> None:
        """Count a node, and refuse it where it is too deep, one too many, or has a tag that is not plain."""
        self.left -= 1
        if depth > DEEPEST:
            raise self.refusal(node, "is nested too deeply to be a configuration")
        if self.left < 0:
            raise CkptcheckError(f"{self.name} holds more than {MOST:,} values when its aliases are expanded")
        kinds = SCALARS if isinstance(node, yaml.ScalarNode) else {f"{PLAIN}map", f"{PLAIN}seq"}
        if node.tag not in kinds:
            raise self.refusal(node, f"has the tag {clip(node.tag.replace(PLAIN, '!!'))}, and tags are not obeyed")

    def refusal(self, node: yaml.Node, what: str) -> CkptcheckError:
        """Make the error for a node. what: a predicate whose subject is the place in the file."""
        return CkptcheckError(f"{self.name}:{node.start_mark.line + 1} {what}")
