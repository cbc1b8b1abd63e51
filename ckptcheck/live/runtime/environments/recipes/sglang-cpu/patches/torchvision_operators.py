# Put here by ckptcheck: torchvision's own library is compiled for CUDA and does not load, so its operators are only named.
import torch as _torch

_operators = _torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    if not hasattr(_torch.ops.torchvision, _name):
        _operators.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
