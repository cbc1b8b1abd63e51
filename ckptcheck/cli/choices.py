"""What the verbs that run engines and trainers let a user choose from."""

from __future__ import annotations

import enum


class TrainerName(enum.StrEnum):
    """What holds the weights."""

    megatron = "megatron"
    transformers = "transformers"


class Scheme(enum.StrEnum):
    """What weights are packed into on their way."""

    w4a16 = "w4a16"
    w8a8 = "w8a8"
    fp8 = "fp8"


class Quantizer(enum.StrEnum):
    """Whose reading of the ignore list decides what is packed."""

    compressed_tensors = "compressed-tensors"
    slime = "slime"


class Mode(enum.StrEnum):
    """How the engine holds its weights on a CPU."""

    plain = "plain"
    stock = "stock"


class Dtype(enum.StrEnum):
    """In which both sides compute."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class Device(enum.StrEnum):
    """Where the trainer computes."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
