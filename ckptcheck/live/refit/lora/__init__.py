"""Loads a LoRA adapter into a live engine, replaces it under its name, and checks what requests with it compute."""
