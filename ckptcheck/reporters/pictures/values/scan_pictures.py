"""Lists the pictures of a scan."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from ckptcheck.reporters.pictures.values.byte_map import draw_byte_map
from ckptcheck.reporters.pictures.values.magnitudes import draw_magnitudes
from ckptcheck.reporters.pictures.values.norm_curves import draw_norm_curves
from ckptcheck.reporters.pictures.values.quantized_modules import draw_quantized_modules
from ckptcheck.reporters.pictures.values.spreads import draw_spreads, draw_zeros
from ckptcheck.reporters.pictures.values.vocabulary_rows import draw_vocabulary_rows

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.linter.pictures import PictureMaker


def list_scan_pictures(ckpt: Checkpoint) -> Iterable[tuple[str, PictureMaker]]:
    """Return title and maker of each picture. They use what the value pass has read, and its samples."""
    makers = {
        "Values by layer": draw_magnitudes,
        "Norms over the layers": draw_norm_curves,
        "Spread by layer": draw_spreads,
        "Zeros and NaN by layer": draw_zeros,
        "Quantization: stored, and as consumers build it": draw_quantized_modules,
        "Rows of the vocabulary": draw_vocabulary_rows,
        "Bytes of the files": draw_byte_map,
    }
    return [(title, partial(maker, ckpt, title)) for title, maker in makers.items()]
