"""The benchmark: several loaders side by side, with one to many jobs at a time."""

DATA_VARIABLE = "COPREP_BENCH_DATA"
"""Environment variable that tells jobs over a Python dataset the folder of images. Their workers inherit it."""
