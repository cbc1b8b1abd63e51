"""YAML, with the line of every value, and never more than a config may cost.

PyYAML composes the nodes and nothing is constructed from them but plain scalars, so that no tag can make an object.
Aliases are expanded here and counted (a "billion laughs" file is refused). huggingface-hub needs PyYAML anyhow.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from ckptcheck.checkpoint.document import clipped
from ckptcheck.errors import CkptcheckError
from ckptcheck.preflight.document import Document, Leaf

MOST = 50_000
"""Values of a file, aliases expanded; the largest reference configuration known has 700."""
DEEPEST = 60
PLAIN = "tag:yaml.org,2002:"
MERGE = f"{PLAIN}merge"
SCALARS = {f"{PLAIN}{kind}" for kind in ("null", "bool", "int", "float", "str", "timestamp")}
FLOAT = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+")
"""What OmegaConf and Hydra read as a number and YAML 1.1 as text: 1e-6."""


def read(text: str, name: str) -> Document:
    """Parse one YAML document whose root is a mapping. name: the file as the report names it.

    Raises CkptcheckError, with the line, for what is no YAML, two documents, tags other than plain ones, a key that
    stands twice (OmegaConf refuses it), and for what is nested or expanded too far.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}" if mark else name
        raise CkptcheckError(f"{place} is not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise CkptcheckError(f"{name} is not YAML: {clipped(' '.join(str(error).split()))}") from error
    except RecursionError as error:
        raise CkptcheckError(f"{name} is nested too deeply to be a configuration") from error
    if not isinstance(root, yaml.MappingNode):
        raise CkptcheckError(f"{name} holds no mapping of keys to values, so it is no job's configuration")
    return _Walk(name).document(root)


def scalar(text: str) -> object:
    """Read a value of a command line as Hydra would: a number, true, null, [a, b], or text.

    >>> scalar("1e-6"), scalar("true"), scalar("[1, two]"), scalar("flash"), scalar("${a.b}")
    (1e-06, True, [1, 'two'], 'flash', '${a.b}')
    """
    if len(text) > 1000 or "${" in text or "&" in text or "*" in text or "!" in text:
        return text
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        return _Walk("").plain(node, 0) if node is not None else text
    except (yaml.YAMLError, RecursionError, CkptcheckError):
        return text


class _Walk:
    """Flattens nodes. left: values that it may still look at."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.left = MOST
        self.reader = yaml.constructor.SafeConstructor()

    def document(self, root: yaml.MappingNode) -> Document:
        found = Document()
        self.section(root, "", found, 0)
        return found

    def section(self, node: yaml.MappingNode, path: str, into: Document, depth: int) -> None:
        for key, value in self.pairs(node, depth):
            whole = f"{path}.{key}" if path else key
            if isinstance(value, yaml.MappingNode) and value.value:
                self.section(value, whole, into, depth + 1)
            else:
                into.put(whole, Leaf(self.plain(value, depth + 1), whole, self.name, value.start_mark.line + 1))

    def pairs(self, node: yaml.MappingNode, depth: int) -> list[tuple[str, yaml.Node]]:
        """Keys and values, those merged in (``<<``) first, so that a key of its own wins."""
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
                raise self.refusal(key, f"says {clipped(name)} a second time, which OmegaConf refuses")
            own[name] = value
        return list((merged | own).items())

    def plain(self, node: yaml.Node, depth: int) -> Any:
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
        except (yaml.YAMLError, ValueError) as error:  # ValueError: an int of more than 4,300 digits, 0b2
            raise self.refusal(node, f"holds {clipped(str(node.value), 30)!r}, which is no value") from error

    def spend(self, node: yaml.Node, depth: int) -> None:
        self.left -= 1
        if depth > DEEPEST:
            raise self.refusal(node, "is nested too deeply to be a configuration")
        if self.left < 0:
            raise CkptcheckError(f"{self.name} holds more than {MOST:,} values when its aliases are expanded")
        kinds = SCALARS if isinstance(node, yaml.ScalarNode) else {f"{PLAIN}map", f"{PLAIN}seq"}
        if node.tag not in kinds:
            raise self.refusal(node, f"has the tag {clipped(node.tag.replace(PLAIN, '!!'))}, and tags are not obeyed")

    def refusal(self, node: yaml.Node, what: str) -> CkptcheckError:
        return CkptcheckError(f"{self.name}:{node.start_mark.line + 1} {what}")
