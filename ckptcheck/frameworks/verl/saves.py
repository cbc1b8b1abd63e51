"""What verl needs of its saves to resume."""

from __future__ import annotations

from ckptcheck.runs.saves.save_writers import ResumePart, SaveWriter

WRITER = SaveWriter(
    title="verl",
    source="verl 1dda039b9, trainer/ppo/ray_trainer.py: _load_checkpoint; fsdp_checkpoint_manager.py: load_checkpoint",
    signs=r"\w*world_size_\d+_rank_\d+\.pt|dist_ckpt/.+",
    parts=(
        ResumePart(r"optim_world_size_\d+_rank_\d+\.pt", "refuses to load it, unless checkpoint.load_contents leaves it out"),
        ResumePart(
            r"extra_state_world_size_\d+_rank_\d+\.pt", "refuses to load it, unless checkpoint.load_contents leaves it out"
        ),
        ResumePart(r"data\.pt", "resumes with the data from its beginning", "warning"),
    ),
)  # fmt: skip
