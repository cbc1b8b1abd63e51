"""Each vector function of MKL is called with a single number, before two threads can call it together."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from ckptcheck.live.runtime.worker.ckptcheck_worker import vector_math  # noqa: E402


class CallRecorder(TorchDispatchMode):  # type: ignore[misc]
    """Records the name of each function that is called on a tensor, and the tensor's dtype and number of elements."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: set[tuple[str, object, int]] = set()

    def __torch_dispatch__(self, function: Any, _: Any, arguments: Any = (), keywords: Any = None) -> Any:
        first = arguments[0] if arguments else None
        if isinstance(first, torch.Tensor):
            self.calls.add((function.overloadpacket.__name__, first.dtype, first.numel()))
        return function(*arguments, **(keywords or {}))


def test_each_function_is_called_with_one_number_of_each_dtype() -> None:
    with CallRecorder() as recorder:
        vector_math.choose_kernels()
    assert recorder.calls == {
        (name, dtype, 1) for name in vector_math.NAMES for dtype in (torch.float32, torch.float64)
    }
