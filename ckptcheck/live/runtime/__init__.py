"""Processes that hold models: engines, trainers, running servers, and the environments that they run in."""
