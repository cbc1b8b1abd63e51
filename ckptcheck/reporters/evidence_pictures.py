"""Draws the pictures of evidence: a table says which functions draw which kind, and imports none before its kind is drawn.

Evidence knows nothing of pictures. A function of the table takes the evidence and the title, and returns a picture,
several, or None if there is nothing to draw. It may raise Skip or EvidenceError with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, get_args

from ckptcheck.errors import EvidenceError
from ckptcheck.linter.late_import import load_function
from ckptcheck.linter.pictures import NoPicture, Picture
from ckptcheck.linter.rule import Skip

if TYPE_CHECKING:
    from ckptcheck.linter.evidence import Evidence

_SCAN = {
    "Values by layer": "ckptcheck.reporters.pictures.magnitudes:draw_magnitudes",
    "Norms over the layers": "ckptcheck.reporters.pictures.norm_curves:draw_norm_curves",
    "Quantization: stored, and as consumers build it": "ckptcheck.reporters.pictures.quantized_modules:draw_quantized_modules",
}
PICTURES: Mapping[str, Mapping[str, str]] = {
    "checkpoint": _SCAN,
    "values": _SCAN,
    "comparison": {"Tensors by layer": "ckptcheck.reporters.pictures.comparison:draw_comparison"},
    "manifest": {"Tensors by layer": "ckptcheck.reporters.pictures.verification:draw_verification"},
    "saves": {
        "What moved from save to save": "ckptcheck.reporters.pictures.saves:draw_weight_rasters",
        "What moved in the optimizer": "ckptcheck.reporters.pictures.saves:draw_state_rasters",
        "How far the weights moved": "ckptcheck.reporters.pictures.saves:draw_all_updates",
        "What the counters say": "ckptcheck.reporters.pictures.saves:draw_all_counters",
    },
    "job": {
        "Both sides, side by side": "ckptcheck.reporters.pictures.job_settings:draw_sides",
        "What belongs to the job as a whole": "ckptcheck.reporters.pictures.job_settings:draw_rest",
    },
    "rollouts": {
        "How often which difference occurs": "ckptcheck.reporters.pictures.token_gaps:draw_differences",
        "Trainer against engine": "ckptcheck.reporters.pictures.token_gaps:draw_density",
        "KL by position in the response": "ckptcheck.reporters.pictures.token_gaps:draw_kl_by_position",
        "The worst tokens in their text": "ckptcheck.reporters.pictures.worst_tokens:draw_worst_tokens",
    },
    "rollout-series": {"Metrics over the steps": "ckptcheck.reporters.pictures.run_curves:draw_series"},
    "rollout-runs": {"The run and its reference": "ckptcheck.reporters.pictures.run_curves:draw_comparison"},
    "matrix": {"The matrix": "ckptcheck.live.pictures:draw_matrix"},
    "localization": {
        "Modules by layer": "ckptcheck.live.pictures:draw_modules",
        "Along the forward pass": "ckptcheck.live.pictures:draw_course",
    },
    "refit": {
        "Tensors of the engine": "ckptcheck.live.pictures:draw_tensor_states",
        "Logprobs: how far the engine is from the trainer": "ckptcheck.live.pictures:draw_gap_to_trainer",
        "Logprobs before and after, token by token": "ckptcheck.live.pictures:draw_token_gaps",
    },
    "history": {
        "What the trainer sent": "ckptcheck.reporters.pictures.history_raster:draw_sent",
        "What the engine held": "ckptcheck.reporters.pictures.history_raster:draw_held",
        "Parity after each sync": "ckptcheck.reporters.pictures.history_raster:draw_probes",
        "What the job printed": "ckptcheck.reporters.pictures.run_curves:draw_log",
    },
}
"""Kind of evidence → title → 'module:function', in the order of the page. Each picture of several has a title of its own."""


def draw_pictures(evidence: Evidence) -> tuple[Picture, ...]:
    """Return the pictures of evidence. The reason replaces one that cannot be drawn, under the title of the table."""
    pictures: list[Picture] = []
    for title, path in PICTURES.get(evidence.kind, {}).items():
        try:
            drawn = load_function(path)(evidence, title)
            pictures += [drawn] if isinstance(drawn, get_args(Picture)) else filter(None, drawn or ())
        except (Skip, EvidenceError, OSError) as error:
            pictures.append(NoPicture(title, str(error)))
        except Exception as error:
            # the report comes first: odd evidence may cost a picture, not the report
            pictures.append(NoPicture(title, f"it could not be drawn: {type(error).__name__}: {error}"))
    return tuple(pictures)
