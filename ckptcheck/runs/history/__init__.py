"""The record of the last weight syncs, and what it tells."""
