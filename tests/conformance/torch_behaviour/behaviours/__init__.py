"""The behaviour of ``torch.utils.data.DataLoader`` with map-style datasets, one check per behaviour, a module per
section.

A check takes a loader class and asserts. Where coprep differs on purpose, the behaviour has a second check
(``instead``) and a reason. Datasets are small, and at module level unless a check needs a local one, so that workers
can import them.
"""

from importlib import import_module

from .table import BEHAVIOURS, Behaviour, Loader

__all__ = ["BEHAVIOURS", "SECTIONS", "Behaviour", "Loader"]

SECTIONS = (
    "order_and_batching",
    "shuffling_and_seeds",
    "without_batching",
    "collation",
    "samplers",
    "arguments",
    "workers",
    "exceptions",
    "several_iterators_and_loaders",
    "datasets",
    "memory_and_programs",
)
"""Modules with checks, in the order of the table."""

for section in SECTIONS:
    import_module(f".{section}", __name__)
