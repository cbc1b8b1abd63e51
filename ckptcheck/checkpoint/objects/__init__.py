"""Reads checkpoints in object stores: S3, Google Cloud Storage, Azure, and the storage profiles of multi-storage-client."""
