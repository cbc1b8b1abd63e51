"""A run of Lightning's own Trainer: makes saves, cuts the last one, and resumes from it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def _build(folder: Path | None, steps: int) -> tuple[Any, Any, Any]:
    import lightning
    import torch
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.layer(batch).pow(2).mean()

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2)}

    callbacks = [ModelCheckpoint(dirpath=folder, every_n_train_steps=4, save_top_k=-1)] if folder else []
    trainer = lightning.Trainer(
        max_steps=steps, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=callbacks, enable_checkpointing=bool(callbacks),
    )  # fmt: skip
    torch.manual_seed(0)
    return trainer, Model(), torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=4)


def make(folder: Path) -> None:
    """Train 12 steps and save each fourth."""
    trainer, model, data = _build(folder, 12)
    trainer.fit(model, data)


def list_cuts(save: Path) -> Iterator[bytes]:
    """Yield the save without each of its keys, and its first half."""
    import torch

    whole = save.read_bytes()
    content = torch.load(io.BytesIO(whole), weights_only=False)
    # its version is told by no rule: no save of it lacks that alone
    for left_out in content.keys() - {"pytorch-lightning_version"}:
        torch.save({key: value for key, value in content.items() if key != left_out}, file := io.BytesIO())
        yield file.getvalue()
    yield whole[: len(whole) // 2]


def resumes(save: Path) -> bool:
    """Whether Lightning resumes from a save."""
    trainer, model, data = _build(None, 16)
    try:
        trainer.fit(model, data, ckpt_path=str(save))
    except Exception:
        return False
    return bool(trainer.global_step == 16)
