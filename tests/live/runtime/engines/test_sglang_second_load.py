"""Why SGLang dies at a second load of packed weights on a GPU, on its own classes: a trial refuses it (feasibility.py)."""

from __future__ import annotations

import pytest

from tests.conftest import needs_engine
from tests.live.runtime.engines.sglang_scripts import run_in_sglang

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("sglang-cpu")]
SCRIPT = """
import torch
from compressed_tensors.quantization import QuantizationArgs
from ckptcheck_worker import sglang_cpu_kernels
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsLinearMethod
from sglang.srt.layers.quantization.compressed_tensors.schemes.compressed_tensors_w8a8_fp8 import CompressedTensorsW8A8Fp8
from sglang.srt.layers.quantization.compressed_tensors.schemes.compressed_tensors_w8a8_int8 import CompressedTensorsW8A8Int8
from sglang.srt.model_loader.loader import DefaultModelLoader

def write(param, loaded):
    assert param.shape == loaded.shape, f"{tuple(param.shape)} is not {tuple(loaded.shape)}"
    param.data.copy_(loaded)

def load(layer, weight):
    # as load_weights of llama.py and qwen3.py: whatever is fused, which q, k, v, gate and up are
    param = dict(layer.named_parameters())["weight"]
    param.weight_loader(param, weight)

def try_twice(scheme, dtype):
    layer = torch.nn.Module()
    layer.scheme, layer.quant_method = scheme, CompressedTensorsLinearMethod(None)
    scheme.create_weights(layer=layer, input_size_per_partition=16, output_partition_sizes=[8, 4], input_size=16,
                          output_size=12, params_dtype=torch.float32, weight_loader=write)
    model = torch.nn.Module()
    model.layer = layer
    said = []
    for value in (1, 2):
        try:
            DefaultModelLoader.restore_weights_before_loading(model, torch.device("cpu"))
            load(layer, torch.full((12, 16), value).to(dtype))
            layer.quant_method.process_weights_after_loading(layer)
            said.append(f"{tuple(layer.weight.shape)} of {float(layer.weight.flatten()[0].float()):g}")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said

def args(kind):
    return QuantizationArgs(num_bits=8, type=kind, strategy="channel", symmetric=True, dynamic=False)

def try_both():
    return [try_twice(CompressedTensorsW8A8Fp8(args("float"), False), torch.float8_e4m3fn),
            try_twice(CompressedTensorsW8A8Int8("channel", False, True), torch.int8)]

stock = try_both()
sglang_cpu_kernels.register_eight_bits()
answer({"stock": stock, "ours": try_both()})
"""


def test_packed_weights_are_transposed_and_lose_their_loader_and_only_our_plugin_keeps_them() -> None:
    needs_engine("sglang")
    found = run_in_sglang(SCRIPT)
    lost = "AttributeError: 'Parameter' object has no attribute 'weight_loader'"
    assert found["stock"] == [["(16, 12) of 1", lost]] * 2
    assert found["ours"] == [["(12, 16) of 1", "(12, 16) of 2"]] * 2
