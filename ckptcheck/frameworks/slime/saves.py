"""What slime needs of its saves to resume, beside Megatron's."""

from __future__ import annotations

from ckptcheck.runs.saves.save_writers import ResumePart, SaveWriter

WRITER = SaveWriter(
    title="slime",
    source="slime 624b824a8, slime/rollout/data_source.py: RolloutDataSource.load",
    signs=r"rollout/global_dataset_state_dict_\*\.pt",
    parts=(
        ResumePart(r"rollout/global_dataset_state_dict_\*\.pt", "resumes with the data from its beginning", "warning"),
    ),
    outside=r"rollout/global_dataset_state_dict_(?P<step>\d+)\.pt",
)
