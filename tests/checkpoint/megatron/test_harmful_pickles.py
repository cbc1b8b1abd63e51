"""Reads pickles and archives that were made to do harm: nothing of them is executed or takes memory or time without bound."""

from __future__ import annotations

import contextlib
import pickle
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptcheck.checkpoint import unpickle as unpickling
from ckptcheck.checkpoint.megatron.dcp import _known as dcp_known
from ckptcheck.checkpoint.megatron.dcp import read_contents
from ckptcheck.checkpoint.megatron.stubs import load_persistent, stub_for
from ckptcheck.checkpoint.megatron.tensor import Item
from ckptcheck.checkpoint.megatron.tiling import find_tiling_gap
from ckptcheck.checkpoint.open import open_target
from ckptcheck.checkpoint.torch_archive import UnreadableArchive, open_archive
from ckptcheck.checkpoint.unpickle import UnreadablePickle, unpickle
from ckptcheck.linter.runner import run_rules
from tests.checkpoint.megatron.test_megatron import IT, findings
from tests.factories import dcp
from tests.factories.checkpoint_cases import MEGATRON
from tests.factories.dcp import Call, Global, Instance, Raw, write_pickle
from tests.factories.torch_archives import open_bytes, write_archive, write_tensor_pickle
from tests.test_rules import RULES, open_with_values

CANARY = "ckptcheck_canary"
SYSTEM = Global("os", "system")
COMMAND = f"touch {CANARY}"
EVIL = {
    "reduce": Call(SYSTEM, (COMMAND,)),
    "reduce of a builtin": Call(Global("builtins", "eval"), (f"open({CANARY!r}, 'w')",)),
    "a getter of attributes": Call(
        Call(Global("builtins", "getattr"), (Global("os", "system"), "__call__")), (COMMAND,)
    ),
    "new object": Instance(SYSTEM, None, (COMMAND,)),
    "state of an object": Instance(
        Global("torch.distributed.checkpoint.metadata", "Metadata"), Call(SYSTEM, (COMMAND,))
    ),
    "a dotted name": Call(Global("torch", "serialization.os.system"), (COMMAND,)),
    "through numpy": Call(Global("numpy.testing._private.utils", "runstring"), (f"open({CANARY!r}, 'w')", {})),
    "through torch": Call(Global("torch.hub", "load"), (".", "x")),
    "a partial": Call(Call(Global("functools", "partial"), (SYSTEM, COMMAND))),
    "nested in what is known": Call(Global("collections", "OrderedDict"), (Call(SYSTEM, (COMMAND,)),)),
    "new object with keywords": Raw(
        dcp.write_opcodes(SYSTEM) + dcp.write_opcodes((COMMAND,)) + dcp.write_opcodes({}) + b"\x92"
    ),
    "state on what a command made": Raw(
        dcp.write_opcodes(Call(SYSTEM, (COMMAND,))) + dcp.write_opcodes({"__class__": SYSTEM}) + b"b"
    ),
    "a line's global": Raw(b"cos\nsystem\n" + dcp.write_opcodes((COMMAND,)) + b"R"),
}


@pytest.mark.parametrize("name", EVIL)
def test_a_pickle_that_would_run_a_command_runs_nothing(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path(shutil.copytree(MEGATRON / "dense", tmp_path / "dense"))
    for target in (folder / IT / ".metadata", folder / IT / "common.pt"):
        raw = target.read_bytes()
        evil = write_pickle({"args": EVIL[name]})
        if target.name == ".metadata":
            evil = write_pickle(dcp.table_value(dcp.read_table(target), extra=EVIL[name]))
        target.write_bytes(
            evil if target.name == ".metadata" else write_archive({"data.pkl": evil, "byteorder": b"little"})
        )
        report = run_rules(open_with_values(folder), RULES)
        assert not report.crashed
        assert report.verdict == "findings"
        assert {finding.code for finding in report.findings} & {"MEG027", "MEG003"}
        assert not Path(CANARY).exists()
        assert not (Path(__file__).parent / CANARY).exists()
        target.write_bytes(raw)


@pytest.mark.parametrize("length", [0, 1, 9, 10, 127, 128, 255])
def test_texts_and_integers_of_any_length_are_walked_over(length: int) -> None:
    """Short ones are skipped by a regular expression, others one by one; what follows must be read either way."""
    text, number = "R" * length, int.from_bytes(b"\x81" * length, "little", signed=True)
    raw = b"\x80\x04\x8c" + bytes([length]) + text.encode() + b"\x8a" + bytes([length]) + b"\x81" * length + b"\x86."
    assert unpickle(raw, stub_for).value == (text, number)
    with pytest.raises(UnreadablePickle, match="it has the opcode b'i'"):
        unpickle(raw[:-2] + b"ios\nsystem\n.", stub_for)


def test_a_foreign_global_is_named(copied: Any) -> None:
    folder = copied("dense")
    value = dcp.table_value(dcp.read_table(folder / IT / ".metadata"), extra=EVIL["reduce"])
    (folder / IT / ".metadata").write_bytes(write_pickle(value))
    assert findings(folder) == [
        f"MEG027 {IT}/.metadata: its pickle names os.system, which no checkpoint needs: "
        "loading it would import and may run that"
    ]


def long_put(index: int) -> bytes:
    return b"N" + b"r" + struct.pack("<I", index)


def nested(depth: int) -> bytes:
    return b"\x80\x04}" + b")" + b"\x85" * depth + b"Ns."


def get(index: int) -> bytes:
    return b"j" + struct.pack("<I", index)


def doubled(levels: int) -> bytes:
    """Tuples in a list, each of which holds the one before twice."""
    return b"]()\x94" + b"".join(get(level) * 2 + b"\x86\x94" for level in range(levels)) + b"e" + get(levels)


def signs(number: int) -> bytes:
    """A tuple of -1 and -2, which have one hash."""
    return b"(" + b"".join(struct.pack("<bi", 0x4A, -1 - (number >> bit & 1)) for bit in range(16)) + b"t"


NAMESPACE, TABLE = b"cargparse\nNamespace\n", f"c{dcp.METADATA}\nMetadata\n".encode()
TEXTS = b"".join(dcp.write_opcodes(f"m{number}") + b"\x94" for number in range(40))
HARMFUL = {
    "a key of a trillion steps": b"\x80\x04" + doubled(40) + b"}" + get(40) + b"Ns\x86.",
    "a member of a trillion steps": b"\x80\x04" + doubled(40) + b"\x8f(" + get(40) + b"\x90\x86.",
    "a frozen set of a trillion steps": b"\x80\x04" + doubled(40) + b"(" + get(40) + b"\x91\x86.",
    "the size of a trillion steps": b"\x80\x04" + doubled(40) + b"}ctorch\nSize\n" + get(40) + b"\x85RNs\x86.",
    "integers of one hash": b"\x80\x04}("
    + b"".join(dcp.write_opcodes(number * ((1 << 61) - 1)) + b"N" for number in range(1000, 11_000))
    + b"u.",
    "tuples of one hash": b"\x80\x04}(" + b"".join(signs(number) + b"N" for number in range(10_000)) + b"u.",
    "tuples nested without end": b"\x80\x04})" + b"\x85" * 10_000 + b"Ns.",
    "arguments copied again and again": b"\x80\x04("
    + b"N" * 1000
    + b"t\x94"
    + (NAMESPACE + get(0) + b"R") * 3
    + b"\x87.",
    "a state copied again and again": b"\x80\x04}("
    + b"".join(dcp.write_opcodes(str(number)) + b"N" for number in range(1000))
    + b"u\x94"
    + (TABLE + b")\x81" + get(0) + b"b") * 3
    + b"\x87.",
    "names put together without end": b"\x80\x04]("
    + TEXTS
    + b"".join(get(module) + get(name) + b"\x93" for module in range(40) for name in range(40))
    + b"e.",
    "a name without end": b"\x80\x04" + dcp.write_opcodes(Global("m" * 2000, "x")) + b".",
    "INST": b"\x80\x02(S'touch x'\nios\nsystem\n.",
    "OBJ": b"\x80\x02(cos\nsystem\nX\x01\x00\x00\x00xo.",
    "extension registry": b"\x80\x02\x82\x01.",
    "extension registry, wide": b"\x80\x02\x84\x01\x00\x00\x00.",
    "text integers": b"\x80\x00I" + b"9" * 100_000 + b"\n.",
    "a huge memo": b"\x80\x02" + long_put(0xFFFFFFFF) + b".",
    "a memo beyond the file": b"\x80\x02" + long_put(1 << 20) + b".",
    "a text memo": b"\x80\x02Np999999999999\n.",
    "a memo of millions": b"\x80\x04}X"
    + struct.pack("<I", 1 << 25)
    + bytes(1 << 25)
    + b"r"
    + struct.pack("<I", 1 << 25)
    + b"Ns.",
    "a memo without end": b"\x80\x04}" + b"\x94" * ((1 << 24) + 1) + b".",
    "a call of a text": b"\x80\x04\x8c\x01x)R.",
    "an object of a text": b"\x80\x04\x8c\x01x)\x81.",
    "state on a text": b"\x80\x04\x8c\x01x}b.",
    "an extension beyond all": b"\x80\x02\x83\xff\xff.",
    "a text cut off": b"\x80\x04\x8c\x7fabc",
    "an integer cut off": b"\x80\x04\x8a\x08abc.",
    "an absurd integer": b"\x80\x02\x8b" + struct.pack("<I", 1 << 20) + b"\x01" * (1 << 20) + b".",
    "a negative length": b"\x80\x02\x8b\xff\xff\xff\xff.",
    "an absurd length": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"x.",
    "a string without end": b"\x80\x04X\xff\xff\xff\x7fabc.",
    "containers without end": b"\x80\x02" + b"}" * ((1 << 24) + 1) + b".",
    "nothing": b"",
    "only its head": b"\x80\x04",
    "no end": b"\x80\x04}",
    "an empty stack": b"\x80\x04R.",
    "an unknown memo": b"\x80\x04h\x05.",
    "a protocol that is none": b"\x80\xff}.",
    "duplicates": b"\x80\x02}" + b"2" * 1000 + b".",
    "buffers": b"\x80\x05\x97.",
    "a persistent object": b"\x80\x04X\x01\x00\x00\x00xQ.",
    "state on a class": b"\x80\x04"
    + dcp.write_opcodes(Global("argparse", "Namespace"))
    + dcp.write_opcodes((None, {"x": 1}))
    + b"b.",
    "state on a function": b"\x80\x04"
    + dcp.write_opcodes(Global("torch", "Size"))
    + dcp.write_opcodes({"x": 1})
    + b"b.",
    "state on a class of the table of contents": b"\x80\x04"
    + dcp.write_opcodes(Global(dcp.METADATA, "Metadata"))
    + dcp.write_opcodes({"__new__": 1})
    + b"b.",
    "attributes on a class of the table of contents": b"\x80\x04"
    + dcp.write_opcodes(Global(dcp.METADATA, "Metadata"))
    + dcp.write_opcodes((None, {"__setstate__": 1}))
    + b"b.",
    "state on a dtype": b"\x80\x04"
    + dcp.write_opcodes(Global("torch", "float32"))
    + dcp.write_opcodes({"x": 1})
    + b"b.",
    "a list that is unhashable": b"\x80\x04}]Ns.",
    "half a frame": b"\x80\x04\x95\xff\xff",
    "bytes after the end": write_pickle({}) + b"cos\nsystem\n",
}


@pytest.mark.parametrize("name", HARMFUL)
def test_a_harmful_pickle_is_refused(name: str) -> None:
    with pytest.raises(UnreadablePickle):
        unpickle(HARMFUL[name], lambda module, name: stub_for(module, name) or dcp_known(module, name))
    found = read_contents(HARMFUL[name])
    assert not found.readable
    assert [defect.kind for defect in found.defects] == ["unreadable-metadata"]


@pytest.mark.parametrize(("depth", "answer"), [(10, b"read"), (5_000, b"refused"), (200_000, b"refused")])
def test_tuples_nested_beyond_any_stack_do_not_bring_the_process_down(depth: int, answer: bytes) -> None:
    """CPython hashes a tuple by recursion, and does not look at how much of the stack is left."""
    script = (
        "import sys; from ckptcheck.checkpoint.unpickle import UnreadablePickle, unpickle\n"
        "try:\n    unpickle(sys.stdin.buffer.read(), lambda module, name: None); print('read')\n"
        "except UnreadablePickle:\n    print('refused')"
    )
    done = subprocess.run([sys.executable, "-c", script], input=nested(depth), capture_output=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, answer), done.stderr


def test_tuples_as_keys_are_read() -> None:
    """What is refused is too many of them, and those that unfold; not that there are some."""
    value = {("a", (number, (1, 2))): [number] for number in range(2000)} | {
        frozenset({(1, 2)}): None,
        2**80: [2**64 + n for n in range(20_000)],
    }
    for protocol in (2, 4):
        assert unpickle(pickle.dumps(value, protocol), lambda module, name: None).value.keys() >= {("a", (7, (1, 2)))}


def test_billion_laughs_are_shared_not_copied() -> None:
    """Each list holds the one before it ten times: read, it takes a few kilobytes; written out, more than there is."""
    raw = b"\x80\x04]\x94"
    for level in range(40):
        raw += b"](" + b"h" + bytes([level]) + (b"h" + bytes([level])) * 9 + b"e\x94"
    found = unpickle(raw + b".", lambda module, name: None)
    assert len(found.value) == 10
    assert not read_contents(raw + b".").readable


@pytest.mark.parametrize("what", [Global("torch", "Size"), Global("collections", "OrderedDict")])
def test_a_long_list_cannot_be_copied_again_and_again(what: Global) -> None:
    copies = b"".join(dcp.write_opcodes(what) + b"h\x00\x85R0" for _ in range(3)).replace(b"0", b"")
    raw = b"\x80\x04](" + b"N" * 100_000 + b"e\x94" + copies + b"."
    with pytest.raises(UnreadablePickle, match=r"it holds a size|it copies one mapping"):
        unpickle(raw, stub_for)


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
@pytest.mark.slow
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    for text in (raw, b"\x80\x04" + raw + b"."):
        with contextlib.suppress(UnreadablePickle):
            unpickle(text, stub_for, load_persistent)
    read_contents(raw)


@given(st.data())
@settings(max_examples=150, deadline=None)
@pytest.mark.slow
def test_a_real_table_of_contents_with_bytes_changed_is_read_or_refused(data: st.DataObject) -> None:
    raw = bytearray((MEGATRON / "dense" / IT / ".metadata").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    found = read_contents(bytes(raw))
    for tensor in found.tensors.values():
        find_tiling_gap(tensor)


def test_the_stand_ins_keep_no_trace_of_a_pickle() -> None:
    """What one pickle sets on a stand-in must not be there for the next."""
    before = {name: dict(vars(found)) for name, found in vars(unpickling).items() if isinstance(found, type)}
    for raw in HARMFUL.values():
        with pytest.raises(UnreadablePickle):
            unpickle(raw, lambda module, name: stub_for(module, name) or dcp_known(module, name))
    after = {name: dict(vars(found)) for name, found in vars(unpickling).items() if isinstance(found, type)}
    assert before == after


# Archives that would do harm.


BOMB = write_archive({"data.pkl": bytes(1 << 24)}, method=zipfile.ZIP_DEFLATED)
TWO = write_archive({"data.pkl": write_pickle(None), "sub/data.pkl": write_pickle(None)})
ARCHIVES = {
    "a zip bomb": (BOMB, "its records are compressed, which torch.save never does"),
    "no data.pkl": (write_archive({"data/0": b"x"}), "it holds no data.pkl"),
    "two data.pkl": (TWO, "it holds several data.pkl"),
    "half": (BOMB[: len(BOMB) // 2], "it is not a readable zip archive"),
    "text": (b"hello", "it does not begin as an archive of torch.save does"),
    "nothing": (b"", "it does not begin as an archive of torch.save does"),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_harmful_archive_is_refused(name: str) -> None:
    raw, reason = ARCHIVES[name]
    with pytest.raises(UnreadableArchive, match=reason):
        open_archive(*open_bytes(raw))


def test_a_record_that_reaches_beyond_the_archive() -> None:
    raw = bytearray(write_archive({"data.pkl": write_pickle(None), "data/0": b"12345678"}))
    at = raw.rindex(b"PK\x01\x02")
    raw[at + 20 : at + 28] = struct.pack("<II", 1 << 30, 1 << 30)
    with pytest.raises(UnreadableArchive, match="a record reaches beyond its end"):
        open_archive(*open_bytes(bytes(raw)))


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_real_archive_with_bytes_changed_is_read_or_refused(data: st.DataObject) -> None:
    raw = bytearray((MEGATRON / "dense" / IT / "common.pt").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(UnreadableArchive):
        open_archive(*open_bytes(bytes(raw))).describe(stub_for, load_persistent)


@pytest.mark.parametrize("change", ["shape", "dtype", "storage", "big"])
def test_an_item_that_holds_something_else(change: str, copied: Any) -> None:
    folder = copied("plain-dcp")
    shape = (60, 16) if change != "shape" else (60, 8)
    described = write_tensor_pickle("HalfStorage" if change == "dtype" else "FloatStorage", shape, (shape[1], 1))
    data = bytes(60 * 16 * 4) if change != "storage" else bytes(8)
    raw = write_archive({"data.pkl": described, "data/0": data, "byteorder": b"big" if change == "big" else b"little"})
    path = folder / IT / "__0_0.distcp"
    item = Item("__0_0.distcp", path.stat().st_size, len(raw))
    path.write_bytes(path.read_bytes() + raw)
    table = dcp.read_table(folder / IT / ".metadata")
    table.chunks["model.lm_head.weight"] = [((0, 0), (60, 16), item)]
    dcp.write_metadata(folder / IT / ".metadata", table)
    reasons = {
        "shape": "it holds 480 elements, and the table of contents says 960",
        "dtype": "it holds F16, and the table of contents says F32",
        "storage": "its storage is shorter than the tensor",
        "big": "it was written on a big-endian machine",
    }
    assert findings(folder, "MEG014") == [
        f"MEG014 {IT}/__0_0.distcp model.lm_head.weight: its item cannot be read: {reasons[change]}"
    ]


def test_dictionaries_of_a_rank_that_share_each_other_come_to_an_end(tmp_path: Path) -> None:
    state: dict[str, object] = {"weight": None}
    for _ in range(12):
        state = dict.fromkeys(map(str, range(40)), state)  # type: ignore[arg-type]
    raw = pickle.dumps({"model": state, "iteration": 1, "checkpoint_version": 3.0})
    folder = tmp_path / "iter_0000001/mp_rank_00"
    folder.mkdir(parents=True)
    (folder / "model_optim_rng.pt").write_bytes(write_archive({"data.pkl": raw, "version": b"3\n"}))
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("1")
    found = [finding.message for finding in run_rules(open_target(str(tmp_path)), RULES).findings]
    assert any("this is not a readable checkpoint: it repeats its containers without end" in text for text in found), (
        found
    )


@pytest.mark.parametrize("text", [b"\n", b"\n\n", b"\nc"])
def test_a_global_that_is_cut_off_behind_a_line_end(text: bytes) -> None:
    """The end of its lines was looked for from the beginning again: ten bytes were walked over without end."""
    raw = b"\x80\x04X" + len(text).to_bytes(4, "little") + text + b"c"
    for rest in (b"", b"torch", b"torch\nSize"):
        with pytest.raises(UnreadablePickle):
            unpickle(raw + rest, lambda module, name: None)
