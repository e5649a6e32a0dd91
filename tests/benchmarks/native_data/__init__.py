"""Tokens, arrays, audio and parquet files: native pipelines beside PyTorch's DataLoader over the usual datasets."""
