"""What a run leaves behind: its saves, and the record of its syncs."""
