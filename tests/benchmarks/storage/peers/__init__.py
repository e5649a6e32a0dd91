"""The part `peers` of the benchmark of remote storage: other loaders of object stores, on the same server."""

BATCH_SIZE = 64
EPOCHS = 2
"""Epochs that are timed. The first one begins without anything on this machine."""
