"""Inference servers that somebody else started, asked over HTTP."""
