"""What NeMo-RL needs of its saves to resume. It renames ``tmp_step_N`` to ``step_N`` when all is written."""

from __future__ import annotations

from ckptcheck.runs.saves.save_writers import ResumePart, SaveWriter

WRITER = SaveWriter(
    title="NeMo-RL",
    source="NeMo-RL 7ea279abf, utils/checkpoint.py: load_training_info, get_resume_paths; data/utils.py: load_dataloader_state",
    signs=r"training_info\.json|train_dataloader\w*\.pt",
    parts=(
        ResumePart(
            r"training_info\.json", "refuses to resume from it", name="training_info.json", beside=r"train_dataloader\w*\.pt"
        ),
        ResumePart(r"train_dataloader\w*\.pt", "refuses to resume from it"),
        ResumePart(r"optimizer/.+", "resumes with a fresh optimizer", name="optimizer"),
    ),
)  # fmt: skip
