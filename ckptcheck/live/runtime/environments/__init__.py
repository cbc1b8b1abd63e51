"""Isolated Pythons: each engine and trainer runs in an environment of its own, built from a recipe that is data.

vLLM, SGLang and Megatron pin different versions of the same packages, so no one environment can hold two of them.
"""
