"""Writes and reads signatures of a model's files: OpenSSF model signing, through the packages model-signing and sigstore."""
