"""Compares two checkpoints: pairs their tensors, finds which differ, and explains why. Bytes are streamed; numpy suffices."""
