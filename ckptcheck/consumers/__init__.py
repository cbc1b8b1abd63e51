"""How each consumer (vLLM, SGLang, transformers, …) reads a checkpoint's quantization config.

The same ignore or target list means different things to each of them.
"""

from ckptcheck.consumers.base import Decision, Module
from ckptcheck.consumers.evaluation import Evaluation, evaluate_consumer
from ckptcheck.consumers.registry import CONSUMERS

__all__ = ["CONSUMERS", "Decision", "Evaluation", "Module", "evaluate_consumer"]
