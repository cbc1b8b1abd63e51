"""Properties that hold for any file, looked for with hypothesis; tests/fuzz.py is the long run of the same."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import (
    CHECKPOINTS,
    check_header,
    check_index,
    check_metadata,
    check_scan,
    check_verdict,
    draft,
    is_read_alike,
    little_memory,
    mutate,
    one,
    random_file,
    random_text,
    written,
)

pytestmark = pytest.mark.slow

if tuple(map(int, safetensors.__version__.split(".")[:2])) < (0, 8):
    pytest.skip("what is compared here is what safetensors 0.8 takes and refuses", allow_module_level=True)

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]


def examples(number: int) -> settings:
    """Look at so many examples: the same ones each time in CI, new ones each time elsewhere."""
    return settings(max_examples=number, deadline=None, derandomize="CI" in os.environ, suppress_health_check=SLOW)


@pytest.fixture(scope="module", autouse=True)
def _little_memory() -> Iterator[None]:
    with little_memory():
        yield


def file_of(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def scan_file(raw: bytes, folder: Path) -> None:
    """Hold everything against one file."""
    check_header(raw)
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(raw)
    report = check_scan(folder)
    assert report is not None
    check_verdict(report, raw)
    if is_read_alike(raw):
        check_metadata(folder / "model.safetensors")


ENTRY = '{"dtype":"U8","shape":[2],"data_offsets":[0,2]}'
HEADERS = r"""
{}
[]
null
{"a"
{} {}
{"a":1}
{"a":null}
{"a":{}}
{"a":ENTRY}
{"a":ENTRY,}
 {"a":ENTRY}
{"":ENTRY}
{"__metadata__":{}}
{"__metadata__":{},}
{"__metadata__":{}"a":ENTRY}
{"__metadata__":{},,"a":ENTRY}
{"__metadata__":{}:"a":ENTRY}
{"__metadata__":{} , "a":ENTRY}
{ "__metadata__" : {"format" : "pt"} , "a" : ENTRY }
{"__metadata__":{"a":"}"},"a":ENTRY}
{"__metadata__":{"a":"\"}"},"a":ENTRY}
{"__metadata__":{"a":"x","a":"y"},"a":ENTRY}
{"__metadata__":{"a" :"x","a":"y"},"a":ENTRY}
{"__metadata__":{"a":"x", "\u0061":"y"},"a":ENTRY}
{"__metadata__":null,"a":ENTRY}
{"__metadata__":[],"a":ENTRY}
{"__metadata__":{"a":1},"a":ENTRY}
{"__metadata__":{"a":null},"a":ENTRY}
{"__metadata__":ENTRY}
{"__metadata__":{},"__metadata__":{},"a":ENTRY}
{"__metadata__":{},"a":ENTRY,"__metadata__":null}
{"a":ENTRY,"__metadata__":{"format":"pt"}}
{"\u005f_metadata__":{"format":"pt"},"a":ENTRY}
{"\u005f_metadata__":ENTRY}
{"a":ENTRY,"a":ENTRY}
{"a":ENTRY,"\u0061":ENTRY}
{"a":{"dtype":"U8","shape":[1,2],"data_offsets":[0,2]},"a":ENTRY}
{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":ENTRY}
{"a":ENTRY,"b":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}}
{"a":ENTRY,"b":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}}
{"a":ENTRY,"b":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}
{"a":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}}
{"a":{"d\u0074ype":"U8","shape":[2],"data_offsets":[0,2]}}
{"a":{"x":1,"dtype":"U8","shape":[2],"data_offsets":[0,2]}}
{"a":{"x":1,"x":2,"dtype":"U8","shape":[2],"data_offsets":[0,2]}}
{"a":["U8",[2],[0,2]]}
{"a\/b":ENTRY}
{"a\"b":ENTRY}
{"a\x":ENTRY}
{"\u0000":ENTRY}
{"\ud800":ENTRY}
{"\ud83d\ude00":ENTRY}
{"a -1":ENTRY}
""".strip("\n").split("\n")
HEADERS += [
    "",
    *['{"a":ENTRY}' + end for end in (" \t\r\n", "\0", "\f", "\u00a0")],
    '\ufeff{"a":ENTRY}',
    '{"a\x01":ENTRY}',
    '{"a\x7f":ENTRY}',
]
VALUES = {
    '{"a":{"dtype":"U8","shape":[@],"data_offsets":[0,2]}}': """2.0 2e0 -2 02 2,1 1,-2 -0 2,-0 2,~-0 0 null "2" true 2,true
        18446744073709551616,0 0,18446744073709551616 18446744073709551615,3,0""",
    '{"a":{"dtype":"U8","shape":[0@],"data_offsets":[0,0]}}': """~ ,18446744073709551615,3 ,18446744073709551616 ,-1 ,-0 ,1e0
        ,9223372036854775808""",
    '{"a":{"dtype":"@],"data_offsets":[0,2]}}': """u8","shape":[2 F4","shape":[4 F4","shape":[3 F4","shape":[5 F6_E2M3","shape":[2
        F6_E3M2","shape":[4 BF16","shape":[1 F64","shape":[2305843009213693952 I4","shape":[4""",
    '{"a":{"dtype":@,"shape":[2],"data_offsets":[0,2]}}': """null 1 {"U8":null} {"U8":1} ["U8"]""",
    '{"a":{"dtype":"U8","shape":[2],"data_offsets":@}}': """[-0,2] [0,-0] [2,0] [0] [0,2,2] [0,2.0] [1,3] [0,1] [0,3] null {}
        [0,18446744073709551617] [18446744073709551614,18446744073709551616]""",
    '{"a":{"x":@,"dtype":"U8","shape":[2],"data_offsets":[0,2]}}': r"""NaN Infinity 1e999 -1e999 1e-999 "\ud800" ["\ud800\u0041"]
        [1,] tru - +1 .5 1. """ + " ".join(["9" * number for number in (308, 309, 310, 5000)])
        + " ".join(["", *["[" * levels + "]" * levels for levels in (125, 126, 9999)], '{"b":' * 125 + "1" + "}" * 125]),
}  # fmt: skip
TRICKY = HEADERS + [
    form.replace("@", value.replace("~", " ")) for form, values in VALUES.items() for value in values.split()
]
"""Headers at the borders of what is allowed; ENTRY describes 2 bytes."""


@pytest.mark.parametrize("number", range(len(TRICKY)))
@pytest.mark.parametrize("data", [b"", b"ab", b"abc"], ids=len)
def test_headers_at_the_borders(number: int, data: bytes, tmp_path: Path) -> None:
    raw = file_of(TRICKY[number].replace("ENTRY", ENTRY).encode("utf-8", "surrogatepass"), data)
    scan_file(raw, tmp_path / "ckpt")


@examples(1000)
@given(st.randoms(use_true_random=False))
def test_damaged_headers_are_read_as_safetensors_reads_them(dice: random.Random) -> None:
    check_header(random_file(dice))


@examples(150)
@given(st.randoms(use_true_random=False))
def test_damaged_files_are_judged_as_safetensors_judges_them(tmp_path: Path, dice: random.Random) -> None:
    scan_file(random_file(dice), tmp_path / "ckpt")


@examples(200)
@given(st.binary(max_size=200))
def test_any_bytes_for_a_file(tmp_path: Path, raw: bytes) -> None:
    scan_file(raw, tmp_path / "ckpt")


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
NUMBERS = st.integers(0, 20) | st.integers(0, 2**65) | st.just(-1)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["U8", "F32", "BF16", "F4", "F6_E2M3", "I4"]),
        "shape": st.lists(NUMBERS, max_size=3),
        "data_offsets": st.lists(NUMBERS, min_size=2, max_size=2),
    },
    optional={"x": JSON},
)


@examples(200)
@given(
    st.dictionaries(st.text(max_size=5) | st.just("__metadata__"), ENTRIES | JSON, max_size=4), st.binary(max_size=20)
)
def test_any_json_for_a_header(tmp_path: Path, value: dict[str, Any], data: bytes) -> None:
    scan_file(file_of(json.dumps(value).encode(), data), tmp_path / "ckpt")


INDEX = json.loads((CHECKPOINTS / "tiny-llama-sharded" / "model.safetensors.index.json").read_bytes())


@examples(500)
@given(st.randoms(use_true_random=False))
def test_damaged_indexes_are_read_the_same_both_ways(dice: random.Random) -> None:
    check_index(random_text(INDEX, dice))


@examples(200)
@given(
    st.fixed_dictionaries(
        {}, optional={"weight_map": st.dictionaries(st.text(), st.text() | JSON), "metadata": JSON, "x": JSON}
    )
)
def test_any_json_for_an_index(value: dict[str, Any]) -> None:
    check_index(json.dumps(value).encode())
    check_index(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


@examples(60)
@given(st.randoms(use_true_random=False))
def test_damaged_indexes_do_not_stop_a_scan(tmp_path: Path, dice: random.Random) -> None:
    folder = tmp_path / "ckpt"
    shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", folder, dirs_exist_ok=True)
    (folder / "model.safetensors.index.json").write_bytes(random_text(INDEX, dice))
    check_scan(folder)


@examples(100)
@given(st.sampled_from(sorted(path.name for path in CHECKPOINTS.iterdir())), st.randoms(use_true_random=False))
def test_a_damaged_json_file_does_not_stop_a_scan(tmp_path: Path, base: str, dice: random.Random) -> None:
    folder = tmp_path / base
    shutil.copytree(CHECKPOINTS / base, folder, dirs_exist_ok=True)
    path = dice.choice(sorted(folder.glob("*.json")))
    path.write_bytes(random_text(json.loads((CHECKPOINTS / base / path.name).read_bytes()), dice))
    check_scan(folder)
    shutil.copy(CHECKPOINTS / base / path.name, path)


@examples(100)
@given(JSON, st.data())
def test_any_value_in_a_config_does_not_stop_a_scan(tmp_path: Path, value: Any, data: st.DataObject) -> None:
    base = data.draw(
        st.sampled_from(["tiny-qwen3-moe", "tiny-deepseek", "tiny-llava", "tiny-reward", "tiny-qwen2-tied"])
    )
    folder = tmp_path / base
    shutil.copytree(CHECKPOINTS / base, folder, dirs_exist_ok=True)
    config = json.loads((CHECKPOINTS / base / "config.json").read_bytes())
    config[data.draw(st.sampled_from(sorted(config)))] = value
    (folder / "config.json").write_text(json.dumps(config))
    check_scan(folder)


EXTREME = [True, -1, 2**31, 10**30, float("nan"), "8", [], ["x"], {}]


@pytest.mark.parametrize("base", ["tiny-llama", "tiny-qwen3-moe", "tiny-deepseek", "tiny-llava", "tiny-lora"])
def test_no_value_of_a_setting_stops_a_scan(base: str, tmp_path: Path) -> None:
    """Also one that a rule would count up to."""
    shutil.copytree(CHECKPOINTS / base, tmp_path / base)
    path = tmp_path / base / ("adapter_config.json" if base == "tiny-lora" else "config.json")
    config = json.loads(path.read_bytes())
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]
    for part in parts:
        for key, value in part.items():
            for extreme in EXTREME:
                part[key] = extreme
                path.write_text(json.dumps(config))
                check_scan(tmp_path / base)
            part[key] = value


@pytest.mark.parametrize("seed", range(100))
def test_the_loop(seed: int, tmp_path: Path) -> None:
    one(seed, tmp_path / "ckpt")


def test_a_draft_is_written_as_it_was() -> None:
    """The fuzzer itself: what it does not change stays, and what it changes is changed."""
    assert json.loads(written(draft(INDEX))) == INDEX
    node = draft(INDEX)
    for seed in range(20):
        mutate(node, random.Random(seed))
    assert written(node) != written(draft(INDEX))
