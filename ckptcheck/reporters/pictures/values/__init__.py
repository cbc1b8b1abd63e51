"""Pictures of what a pass over the values saw."""
