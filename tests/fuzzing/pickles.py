"""Makes up pickles, archives of torch.save and tables of contents that would do harm, and reads each in a child with limits.

Run ``python -m tests.fuzz --door pickle --seed 1 --count 10000`` (or ``make fuzz DOOR=pickle``). Random bytes only bounce off, so
these pickles follow the grammar: every opcode, values shared through the memo, absurd lengths and numbers.
"""

from __future__ import annotations

import random
import struct
import zipfile
from contextlib import suppress
from io import BytesIO
from pathlib import Path

from ckptcheck.checkpoint.megatron.dcp import read_contents
from ckptcheck.checkpoint.megatron.legacy import describe_rank, join_ranks
from ckptcheck.checkpoint.megatron.stubs import load_persistent, stub_for
from ckptcheck.checkpoint.megatron.tiling import find_tiling_gap
from ckptcheck.checkpoint.megatron.weights import unstack_weights
from ckptcheck.checkpoint.torch_archive import UnreadableArchive, open_archive
from ckptcheck.checkpoint.torch_bin import describe_pickles
from ckptcheck.checkpoint.torch_file import read_torch_file_bytes
from ckptcheck.checkpoint.unpickle import UnreadablePickle
from ckptcheck.errors import CkptcheckError
from tests.factories.dcp import METADATA, write_opcodes
from tests.factories.torch_archives import open_bytes

GLOBALS = [
    b"cargparse\nNamespace\n", b"ccollections\nOrderedDict\n", b"ctorch\nSize\n", b"ctorch\nFloatStorage\n",
    b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch._utils\n_rebuild_parameter\n", b"c_codecs\nencode\n",
    b"ctorch.storage\n_load_from_bytes\n", b"cnumpy.core.multiarray\n_reconstruct\n", b"cnumpy\ndtype\n", b"cos\nsystem\n",
    b"cbuiltins\nset\n", b"ctorch\nfloat32\n", b"ctorch._tensor\n_rebuild_from_type_v2\n",
    *(f"c{METADATA}\n{name}\n".encode() for name in (
        "Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "MetadataIndex")),
    b"ctorch.distributed.checkpoint.filesystem\n_StorageInfo\n",
]  # fmt: skip
NUMBERS = [0, 1, -1, -2, 255, 1 << 31, 1 << 61, (1 << 61) - 1, 1 << 62, 1 << 63, 1 << 64, 1 << 2000, -(1 << 62)]
TEXTS = [
    "",
    "a",
    "model",
    "args",
    "state_dict",
    "state_dict_metadata",
    "storage_data",
    "fqn",
    "offset",
    "size",
    "chunks",
    "x" * 999,
]
ODD = [b"0", b"1", b"2", b"I1\n", b"L" + b"9" * 4000 + b"L\n", b"S'a'\n", b"V\\u1234\n", b"p1\n", b"g1\n", b"ios\nsystem\n", b"o",
       b"\x82\x01", b"\x97", b"\x98", b"\x96" + b"\xff" * 8, b"\x95" + b"\xff" * 8, b"\x8e" + b"\xff" * 8, b"\x8b\xff\xff\xff\x7f",
       b"r\xff\xff\xff\x7f", b"j\xff\xff\xff\xff", b"\x80\xff", b".", b"Q", b"B\xff\xff\xff\xff"]  # fmt: skip


MANY = 500
"""After so many containers a pickle gets no deeper: those that grew without end took the writer longer than the reader."""


def random_value(dice: random.Random, memo: list[int], depth: int = 0) -> bytes:
    """Write one value, memoized; `memo` holds how many values there are."""
    kind = dice.randrange(12 if depth < 7 and memo[0] < MANY else 4)
    parts = lambda: [random_value(dice, memo, depth + 1) for _ in range(dice.choice([0, 1, 2, 2, 3, 5]))]  # noqa: E731
    if kind == 0 and memo[0]:
        return b"j" + struct.pack("<I", dice.randrange(memo[0]))
    if kind < 2:
        return write_opcodes(dice.choice([None, True, *NUMBERS[:11], *TEXTS, *TEXTS]))
    if kind == 2:
        code = dice.choice(GLOBALS)
    elif kind == 3 and dice.random() < 0.005:
        return dice.choice(ODD)
    elif kind < 6:
        code = b"(" + b"".join(parts()) + b"t"
    elif kind == 6:
        code = b"](" + b"".join(parts()) + b"e"
    elif kind == 7:
        code = b"}(" + random_value(dice, memo, depth + 1) + b"Nu"
    elif kind == 8:
        pairs = [write_opcodes(dice.choice(TEXTS)) + random_value(dice, memo, depth + 1) for _ in range(3)]
        code = b"}(" + b"".join(pairs) + b"u"
    elif kind == 9:
        code = dice.choice(GLOBALS) + b"(" + b"".join(parts()) + b"t" + dice.choice([b"R", b"\x81"])
    elif kind == 10:
        code = dice.choice(GLOBALS) + b")\x81" + random_value(dice, memo, depth + 1) + b"b"
    else:
        code = b"(" + b"".join(parts()) + dice.choice([b"\x91", b"t", b"tQ"])
    memo[0] += 1
    return code + b"\x94"


def random_pickle(dice: random.Random) -> bytes:
    """Write a pickle, at times one in which a piece stands again and again."""
    memo = [0]
    parts = []
    if (
        dice.random() < 0.5
    ):  # each value holds the one before several times; the last one is a key, an argument or a state
        form = dice.choice([(b"(", b"t"), (b"](", b"e"), (b"(", b"\x91"), (b"ctorch\nSize\n((", b"t\x85R")])
        parts.append(b"(" + write_opcodes(dice.choice(NUMBERS)) * dice.choice([1, 30, 3000]) + b"t\x94")
        parts += [
            form[0] + (b"j" + struct.pack("<I", level)) * dice.choice([1, 2, 3, 10]) + form[1] + b"\x94"
            for level in range(dice.choice([1, 10, 30, 60]))
        ]
        memo[0] = len(parts)
        last = b"j" + struct.pack("<I", dice.randrange(memo[0]))
        call = dice.choice(GLOBALS)
        uses = [b"}" + last + b"Ns", b"\x8f(" + last + b"\x90", call + last + b"R", call + b")\x81" + last + b"b"]
        parts.append(dice.choice(uses) * dice.choice([1] * 40 + [1000, 1000, 10_000]))
    parts += [random_value(dice, memo) for _ in range(dice.choice([1, 2, 5, 20]))]
    if dice.random() < 0.03:
        piece = dice.choice([*parts, *ODD, b"}", b"\x8f", b")\x85", b"\x85", b"("])
        parts.append(piece * min(dice.choice([100, 100, 10_000, 10_000, 10_000, 900_000]), 900_000 // len(piece)))
    raw = b"\x80\x04](" + b"".join(parts) + b"e."
    if dice.random() < 0.2:
        raw = raw[: dice.randrange(len(raw))] + dice.choice([b"", b"\xff", *ODD]) + raw[dice.randrange(len(raw)) :]
    return raw


def random_archive(dice: random.Random) -> bytes:
    """Write a zip with a pickle in it: sound, compressed, doubled, with a shifted or damaged directory."""
    out = BytesIO()
    method = dice.choice([zipfile.ZIP_STORED] * 4 + [zipfile.ZIP_DEFLATED])
    with zipfile.ZipFile(out, "w", method) as written, suppress(UserWarning):
        for name in dice.choice([["data.pkl", "data/0"], ["data.pkl"], ["data.pkl", "b/data.pkl"], ["data/0"]]):
            content = random_pickle(dice) if name.endswith("pkl") else bytes(dice.choice([0, 8, 4000]))
            if method and dice.random() < 0.3:
                content = bytes(1 << 22)
            written.writestr(f"archive/{name}", content)
    raw = bytearray(out.getvalue())
    directory = raw.rfind(b"PK\x01\x02")
    for _ in range(dice.choice([0, 0, 1, 2, 4])):
        place = (
            dice.randrange(directory, len(raw)) if directory >= 0 and dice.random() < 0.8 else dice.randrange(len(raw))
        )
        some = dice.choice([b"\xff\xff\xff\xff", bytes(4), b"\xff\xff\xff\x7f", dice.randbytes(1)])
        raw[place : place + len(some)] = some
    return dice.choice([b"", b"", b"", b"PK\x03\x04" + bytes(60)]) + bytes(raw) + dice.choice([b"", b"", b"PK\x05\x06"])


def read_everywhere(seed: int, _folder: Path) -> None:
    """Read what a seed makes up through every door. Raises what a door should not raise."""
    dice = random.Random(seed)
    if dice.random() < 0.6:
        raw = random_pickle(dice)
        contents = read_contents(raw)
        for tensor in contents.tensors.values():
            find_tiling_gap(tensor)
        unstack_weights(contents.tensors)
    else:
        raw = random_archive(dice)
        with suppress(UnreadableArchive, UnreadablePickle):
            value, foreign = open_archive(*open_bytes(raw)).describe(stub_for, load_persistent)
            join_ranks([describe_rank("mp_rank_00", "f", len(raw), value, foreign)], {})
        with suppress(CkptcheckError):
            read_torch_file_bytes(raw)
    describe_pickles(*open_bytes(raw))
