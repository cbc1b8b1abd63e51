"""Reads every value of a checkpoint once, at the speed of memory. numpy is enough; torch is not needed."""
