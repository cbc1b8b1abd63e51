"""Damages headers, indexes and configs at random and holds against each file what must be true of any.

Run ``python tests/fuzz.py --seed 1 --count 20000`` (or ``make fuzz``). A failure prints the seed that shows it again::

    python tests/fuzz.py --seed 4711 --count 1

What must be true is said in `check_header`, `check_index`, `check_scan` and `check_verdict`; tests/checkpoint/test_fuzz.py has
hypothesis look for counterexamples.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, deserialize, safe_open

from ckptcheck.checkpoint import header, index
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.checkpoint.tensor import BITS
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules
from ckptcheck.reporters import FORMATS, render, text
from tests.jobs.job_fuzz import check_one
from tests.paths import ROOT

CHECKPOINTS = ROOT / "fixtures" / "checkpoints"
RULES = rule_loader.load_rules()
SLOWEST = 5.0  # seconds of computing that one small file may take; they take some hundredths

ODD = [
    "null", "true", "false", "0", "-0", "-0.0", "-1", "1.0", "2e0", "1e400", "-1e400", "NaN", "Infinity", "-Infinity",
    "01", "18446744073709551615", "18446744073709551616", "9223372036854775808", "9" * 308, "9" * 309, "9" * 310,
    "9" * 400, "9" * 5000, '""', '"x"', r'"\ud800"', r'"\ud83d\ude00"', r'"\u0000"', r'"\u12"', '"a\nb"', '"\x7f"',
    '"é"', '"/"', '".."', '"F32"', '"BF16"', '"F4"', '"I4"', '"f32"', '{"U8":null}', '["F32",[1],[0,4]]', '{"a":{}}',
    "[0]", "[0,0]", "[1,1]", "[4294967296,4294967297]", "[0,4294967296,4294967297]", "[]", "{}", "[[]]", "[1,2", "{",
    "[" * 124 + "]" * 124, "[" * 125 + "]" * 125, "[" * 126 + "]" * 126, "[" * 3000 + "]" * 3000,
    '{"a":' * 1500 + "1" + "}" * 1500, "",
]  # fmt: skip
"""JSON, and what is almost JSON, to put in the place of a value."""
KEYS = [
    "__metadata__",
    "dtype",
    "shape",
    "data_offsets",
    "a",
    "",
    "format",
    "weight_map",
    "metadata",
    "é",
    r"\u0061",
    r"\ud800",
]
BYTES = [
    b"\x00",
    b"\xff",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b",",
    b":",
    b" ",
    b"\xef\xbb\xbf",
    b"\n",
    b"-",
    b"1",
    b"\xc3\xa9",
]


SIGNS = re.compile(rb'[{}\[\],:"]')


class Object(list[tuple[str, Any]]):
    """A JSON object as it is written: the same key may stand twice, values may be no JSON at all."""


class Array(list[Any]):
    """A JSON list as it is written."""


def draft(value: Any) -> Any:
    """Take a JSON value apart; what is neither list nor object becomes the text it is written as."""
    if isinstance(value, dict):
        return Object([(encode_basestring_ascii(key)[1:-1], draft(item)) for key, item in value.items()])
    if isinstance(value, list):
        return Array([draft(item) for item in value])
    return encode_basestring_ascii(value) if type(value) is str else json.dumps(value)


def written(node: Any, comma: str = ",", colon: str = ":") -> str:
    """Write a draft."""
    if type(node) is str:
        return node
    if isinstance(node, Object):
        return "{" + comma.join([f'"{key}"{colon}{written(item, comma, colon)}' for key, item in node]) + "}"
    return "[" + comma.join([written(item, comma, colon) for item in node]) + "]"


def containers(node: Any) -> list[Any]:
    """Every list and object of a draft."""
    found, waiting = [], [node] if isinstance(node, list) else []
    while waiting:
        part = waiting.pop()
        found.append(part)
        items = [item for _, item in part] if isinstance(part, Object) else part
        waiting += [item for item in items if isinstance(item, list)]
    return found


def random_header(dice: random.Random) -> tuple[Any, int]:
    """Make up a sound header and the length of its data."""
    entries: dict[str, Any] = {}
    if dice.random() < 0.6:
        entries["__metadata__"] = dice.choice(
            [{"format": "pt"}, {}, None, {"a": "}", "b": '"'}, {"format": "pt", "x": "é"}]
        )
    end = 0
    for number in range(dice.choice([0, 1, 1, 2, 3, 5])):
        dtype = dice.choice([*BITS, "F32", "BF16"])
        shape = [dice.choice([0, 1, 2, 3, 4, 8]) for _ in range(dice.choice([0, 1, 1, 2, 3]))]
        if math.prod(shape) * BITS[dtype] % 8:
            shape.append(8)
        begin, end = end, end + math.prod(shape) * BITS[dtype] // 8
        name = dice.choice(
            [f"model.layers.{number}.w", f"a-{number}", f"é{number}", f"\u0001{number}", f"/{number} -1"]
        )
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    return draft(entries), end


def mutate(node: Any, dice: random.Random) -> None:
    """Change one thing in a draft."""
    parts = containers(node)
    numbers = [part for part in parts if isinstance(part, Array) and any(map(str.isdecimal, map(str, part)))]
    if numbers and dice.random() < 0.4:  # a shape or offsets: what remains is JSON, and often a layout that is wrong
        part = dice.choice(numbers)
        place = dice.randrange(len(part))
        old = int(part[place]) if str(part[place]).isdecimal() and len(part[place]) < 20 else 0
        part[place] = str(max(dice.choice([old - 8, old - 1, old + 1, old + 2, old + 8, old * 2, 0, 2**63, 2**64]), 0))
        return
    part = dice.choice(parts or [Array()])
    if not part:
        part.append(("a", dice.choice(ODD)) if isinstance(part, Object) else dice.choice(ODD))
        return
    place = dice.randrange(len(part))
    key, value = part[place] if isinstance(part, Object) else ("", part[place])
    match dice.randrange(8):
        case 6 if isinstance(part, Object):
            part.insert(place, (dice.choice(KEYS), dice.choice(ODD)))
            return
        case 0 | 1:
            value = dice.choice(ODD)
        case 2:
            part.insert(dice.randrange(len(part) + 1), part[place])
            return
        case 3:
            del part[place]
            return
        case 4:
            key = dice.choice(
                [*KEYS, "".join(f"\\u{ord(sign):04x}" for sign in key[:3] if ord(sign) < 65536) + key[3:]]
            )
        case 5:
            dice.shuffle(part)
            return
        case _:
            other = dice.choice(parts)
            extra = dice.choice(other) if other else dice.choice(ODD)
            extra = written(extra[1] if isinstance(other, Object) and other else extra)
            part.insert(place, (dice.choice(KEYS), extra) if isinstance(part, Object) else extra)
            return
    part[place] = (key, value) if isinstance(part, Object) else value


def damaged(raw: bytes, dice: random.Random) -> bytes:
    """Change some bytes."""
    if SIGNS.search(raw, 0, 20_000) and dice.random() < 0.5:
        place = dice.choice([found.start() for found in SIGNS.finditer(raw, 0, 20_000)])
    else:
        place = dice.randrange(len(raw) + 1)
    some = dice.choice([1, 1, 2, 8, 100])
    match dice.randrange(8):
        case 0:
            return raw[:place]
        case 1:
            return raw[:place] + dice.choice(BYTES) + raw[place:]
        case 2:
            return raw[:place] + raw[place + some :]
        case 3 if raw:
            place = min(place, len(raw) - 1)
            return raw[:place] + bytes([raw[place] ^ 1 << dice.randrange(8)]) + raw[place + 1 :]
        case 4:
            return raw[:place] + bytes(len(raw[place : place + some])) + raw[place + some :]
        case 5:
            return raw[:place] + raw[place : place + some] * 2 + raw[place + some :]
        case 6:
            return raw + dice.choice([b"\x00", b" ", b"\n", b"{}", b"\x00" * 8])
        case _:
            return dice.choice(BYTES) + raw


def read_text_file(node: Any, dice: random.Random) -> bytes:
    """Write a draft with one kind of white space or another."""
    comma, colon = dice.choice([(",", ":")] * 4 + [(", ", ": "), (",\n\t", " :\r\n"), (" ,", ":")])
    before, after = dice.choice(
        [("", "")] * 40 + [(" ", ""), ("\ufeff", ""), ("", "\n"), ("", " \t "), ("", "\x00"), ("", "\f")]
    )
    return (before + written(node, comma, colon) + after).encode("utf-8", "surrogatepass")


def random_file(dice: random.Random) -> bytes:
    """Make up a safetensors file, sound or damaged in its structure, its bytes, its length or all of them."""
    node, length = random_header(dice)
    for _ in range(dice.choice([0, 1, 1, 1, 2, 3, 6])):
        mutate(node, dice)
    body = read_text_file(node, dice)
    if dice.random() < 0.5:
        body += b" " * (-len(body) % 8)
    if dice.random() < 0.1:
        body = damaged(body, dice)
    claimed = (
        len(body)
        if dice.random() < 0.95
        else dice.choice([0, 1, len(body) + dice.choice([-8, -1, 1, 8]), 10**8, 2**63])
    )
    data = dice.randbytes(max(length + (dice.choice([-1, 1, 8, -8]) if dice.random() < 0.05 else 0), 0))
    raw = (claimed % 2**64).to_bytes(8, "little") + body + data
    return damaged(raw, dice) if dice.random() < 0.15 else raw


def random_text(value: Any, dice: random.Random) -> bytes:
    """Damage a JSON document."""
    node = draft(value)
    for _ in range(dice.choice([0, 1, 2, 4, 8])):
        mutate(node, dice)
    raw = read_text_file(node, dice)
    return damaged(raw, dice) if dice.random() < 0.2 else raw


def check_header(raw: bytes) -> None:
    """The two ways of reading a header agree where the first one answers, and what they find is what safetensors finds.

    What it refuses may be read or not: `check_verdict` is about that.
    """
    shard = header.parse_header("model.safetensors", len(raw), raw)
    body = raw[8 : 8 + int.from_bytes(raw[:8], "little")]
    if shard.data_start and (fast := header._fast(body)) is not None:
        slow = header._slow(body)
        assert fast == slow, f"the fast way reads {fast}, the slow one {slow}"
    if is_read_alike(raw):
        found = dict(deserialize(raw))
        ours = {name: (tensor.dtype, list(tensor.shape)) for name, tensor in shard.tensors.items()}
        theirs = {name: (tensor["dtype"], tensor["shape"]) for name, tensor in found.items()}
        assert ours == theirs, f"safetensors reads {theirs}, ckptcheck {ours}"


def check_metadata(path: Path) -> None:
    """What stands in `__metadata__` is what safetensors reads there; null and {} say the same."""
    shard = open_checkpoint(str(path)).shards[path.name]
    with safe_open(path, "numpy") as file:
        assert (shard.metadata or {}) == (file.metadata() or {})


def check_index(raw: bytes) -> None:
    """The two ways of reading an index agree."""
    fast, slow = index.parse_index("i", raw), index._slow("i", raw)
    assert fast == slow, f"the fast way reads {fast}, the slow one {slow}"


def check_scan(target: Path) -> Report | None:
    """A scan with every rule ends in time, no rule fails, and every reporter can write what they found."""
    begun = time.process_time()
    try:
        ckpt = open_checkpoint(str(target), jobs=1)
        report = run_rules(ckpt, RULES)
    except CkptcheckError:
        return None
    assert not report.crashed, report.crashed
    for form in FORMATS:
        if form == "text":
            text.write([report], RULES, stream := io.StringIO(), verbose=True)
            content = stream.getvalue()
        else:
            content = render(form, [report], RULES)
        content.encode()
    taken = time.process_time() - begun
    assert taken < SLOWEST, f"it took {taken:.1f} s"
    return report


def check_verdict(report: Report, raw: bytes) -> None:
    """What safetensors refuses has an error; what it takes has no defect that is one, but for `stricter`."""
    if (refusal := refused(raw)) is not None:
        errors = [
            finding for finding in report.findings if finding.severity == "error" and finding.code.startswith("ST")
        ]
        assert errors, f"safetensors refuses it ({refusal}), ckptcheck has no error"
    else:
        kinds = find_defect_kinds(raw)
        assert kinds <= {"no-tensors", "misaligned-data"} | stricter(raw), (
            f"safetensors takes it, ckptcheck says {kinds}"
        )


def find_defect_kinds(raw: bytes) -> set[str]:
    """Return the kinds of defects that ckptcheck finds in a safetensors file."""
    return {defect.kind for defect in header.parse_header("model.safetensors", len(raw), raw).defects}


def is_read_alike(raw: bytes) -> bool:
    """Whether safetensors takes the file, and ckptcheck can read every entry too."""
    return refused(raw) is None and not find_defect_kinds(raw) & {"header-not-json", "malformed-entry"}


def refused(raw: bytes) -> str | None:
    """Why safetensors refuses a file, None where it takes it."""
    try:
        deserialize(raw)
    except SafetensorError as error:
        return str(error)
    return None


def stricter(raw: bytes) -> set[str]:
    """The defects that are errors although safetensors takes the file; the page of ST001 or ST013 justifies each."""
    body = raw[8 : 8 + int.from_bytes(raw[:8], "little")]
    allowed = set()
    twice = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice.append(len(dict(pairs)) < len(pairs))
        return dict(pairs)

    entries = json.loads(body, object_pairs_hook=collect)
    if any(twice):
        allowed.add("duplicate-key")  # the format forbids it, and readers differ
    if not body.startswith(b"{"):
        allowed.add("header-not-json")  # the format wants the brace first
    for name, entry in entries.items():
        if name != "__metadata__" and not (isinstance(entry, dict) and isinstance(entry["dtype"], str)):
            allowed.add("malformed-entry")  # forms that only serde takes for an entry
    return allowed


@contextmanager
def little_memory(more: int = 3 << 30) -> Iterator[None]:
    """Let this process have so many more bytes and no others, so that a trap is a MemoryError and not the end of all."""
    try:
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):  # not Linux: without a limit then
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(
        resource.RLIMIT_AS, (used + more if hard == resource.RLIM_INFINITY else min(used + more, hard), hard)
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def one(seed: int, folder: Path) -> None:
    """Make up one checkpoint from a seed, and check it. Raises AssertionError."""
    dice = random.Random(seed)
    shutil.rmtree(folder, ignore_errors=True)
    kind = dice.choice(["header", "header", "header", "index", "config", "whole"])
    if kind == "header":
        folder.mkdir()
        raw = random_file(dice)
        (folder / "model.safetensors").write_bytes(raw)
        check_header(raw)
        report = check_scan(dice.choice([folder, folder / "model.safetensors"]))
        assert report is not None
        check_verdict(report, raw)
        if is_read_alike(raw):
            check_metadata(folder / "model.safetensors")
        return
    base = CHECKPOINTS / (
        "tiny-llama-sharded" if kind == "index" else dice.choice(sorted(path.name for path in CHECKPOINTS.iterdir()))
    )
    shutil.copytree(base, folder)
    endings = {"index": ".index.json", "config": ".json", "whole": ""}
    targets = sorted(path.name for path in folder.iterdir() if path.name.endswith(endings[kind]))
    for name in targets:
        if kind != "index" and dice.random() < 0.5:
            continue
        raw = (folder / name).read_bytes()
        if name.endswith(".safetensors"):
            length = int.from_bytes(raw[:8], "little")
            body = random_text(json.loads(raw[8 : 8 + length]), dice)
            raw = len(body).to_bytes(8, "little") + body + raw[8 + length :]
            check_header(raw)
        elif name.endswith(".json"):
            raw = random_text(json.loads(raw), dice)
            if name.endswith(".index.json"):
                check_index(raw)
        else:
            raw = damaged(raw, dice)
        (folder / name).write_bytes(raw)
    check_scan(folder / dice.choice(targets) if dice.random() < 0.2 else folder)


def main() -> int:
    """Run the loop; return how many seeds failed, at most 100."""
    parser = argparse.ArgumentParser(description="Damage checkpoints at random and check that ckptcheck copes.")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=5000, help="how many seeds")
    from tests.fuzzing.batches import run_seeds
    from tests.fuzzing.doors import DOORS, PREPARATIONS

    choices = ("checkpoint", "job", *DOORS)
    parser.add_argument("--door", choices=choices, default="checkpoint", help="what is made up and read")
    options = parser.parse_args()
    if options.door in DOORS:
        return run_seeds(DOORS[options.door], options.seed, options.count, PREPARATIONS.get(options.door))
    failed = 0
    check = one if options.door == "checkpoint" else check_one
    with tempfile.TemporaryDirectory() as temporary, little_memory():
        for seed in range(options.seed, options.seed + options.count):
            try:
                check(seed, Path(temporary) / "ckpt")
            except Exception as error:  # any exception at all is what is looked for
                failed += 1
                sys.stderr.write(f"seed {seed}: {type(error).__name__}: {str(error)[:1500]}\n")
                if failed == 100:
                    break
    sys.stdout.write(f"{options.count} seeds from {options.seed}: {failed} failed\n")
    return failed


if __name__ == "__main__":
    sys.exit(min(main(), 100))
