"""Released models of all families: a scan of their headers finds no error, and sees what is taken from them or changed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import ckptcheck
from ckptcheck.linter.report import Report
from tests.factories.released_structures import Entry, list_structures, load_structure, write_checkpoint

FALSE_ERRORS: dict[str, set[str]] = {}
"""Structure → codes of errors that are known to be false, until the rule is mended."""

MOST_TENSORS, MANY_TENSORS = 60_000, 8_000
"""Of a model that is changed, and of one that is changed in one way of the four: more experts of the same kind take most of
the time."""

Mutation = Callable[[dict[str, Entry], Random], None]
LAYER = re.compile(r"(?:[^.]+\.)*?(?:layers|h|blocks|block|layer|resblocks)\.\d+\.")


def scan(folder: Path) -> Report:
    return ckptcheck.scan(folder, headers_only=True)


def errors(report: Report) -> list[str]:
    return [f"{finding.code} {finding.message}" for finding in report.findings if finding.severity == "error"]


@pytest.mark.parametrize("name", list_structures())
def test_a_released_model_has_no_error(name: str, tmp_path: Path) -> None:
    report = scan(write_checkpoint(load_structure(name), tmp_path))
    assert not report.crashed
    assert len(report.passed) >= 15
    assert {text.split()[0] for text in errors(report)} == FALSE_ERRORS.get(name, set()), errors(report)


def test_there_are_many_families() -> None:
    names = list_structures()
    assert len(names) >= 100
    assert len({load_structure(name).config["model_type"] for name in names}) >= 70


def drop_tensor(entries: dict[str, Entry], random: Random) -> None:
    del entries[random.choice(sorted(entries))]


def rename_tensor(entries: dict[str, Entry], random: Random) -> None:
    """Give a tensor's module another name, as a conversion does that misses one."""
    name = random.choice([name for name in sorted(entries) if "." in name])
    parts = name.split(".")
    place = max((place for place, part in enumerate(parts[:-1]) if not part.isdigit()), default=0)
    parts[place] += "_renamed"
    entries[".".join(parts)] = entries.pop(name)


def change_shape(entries: dict[str, Entry], random: Random) -> None:
    """Halve one dimension, as one rank of two has it."""
    name = random.choice([name for name in sorted(entries) if entries[name][1]])
    dtype, shape = entries[name]
    place = random.randrange(len(shape))
    size = shape[place] // 2 if shape[place] > 1 else 2
    entries[name] = dtype, (*shape[:place], size, *shape[place + 1 :])


def drop_layer(entries: dict[str, Entry], random: Random) -> None:
    layers = sorted({found.group() for name in entries if (found := LAYER.match(name))})
    if layers:
        prefix = random.choice(layers)
        for name in [name for name in entries if name.startswith(prefix)]:
            del entries[name]


MUTATIONS: tuple[Mutation, ...] = (drop_tensor, rename_tensor, change_shape, drop_layer)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutate", "least"),
    list(zip(MUTATIONS, (0.90, 0.91, 0.92, 0.95), strict=True)),
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_changed_model_is_not_clean(mutate: Mutation, least: float, tmp_path: Path) -> None:
    """One change a structure: an error, or a warning that the sound one does not have."""
    seen, missed = 0, []
    for number, name in enumerate(list_structures()):
        structure = load_structure(name)
        if len(structure.entries) > MOST_TENSORS:
            continue
        if len(structure.entries) > MANY_TENSORS and MUTATIONS[number % len(MUTATIONS)] is not mutate:
            continue
        entries = dict(structure.entries)
        mutate(entries, Random(name))
        if entries == structure.entries:
            continue
        found = scan(write_checkpoint(structure, tmp_path / name, entries)).findings
        told = {finding.message for finding in found if finding.severity in ("error", "warning")}
        if all(finding.severity != "error" for finding in found) and told:
            told -= {
                finding.message for finding in scan(write_checkpoint(structure, tmp_path / f"{name}-sound")).findings
            }
        if told:
            seen += 1
        else:
            missed.append(name)
    assert seen / (seen + len(missed)) >= least, missed
