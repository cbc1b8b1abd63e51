"""Holds an engine's logprobs against a trainer's."""
