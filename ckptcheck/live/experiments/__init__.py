"""Scores again with one thing changed: how far an engine and a trainer are apart, and what of it each change explains."""
