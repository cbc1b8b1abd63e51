"""Reads checkpoints in object stores: S3, Google Cloud Storage, Azure, and what multi-storage-client names."""
