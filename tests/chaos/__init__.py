"""A campaign of random histories: jobs and faults drawn from a seed, run with real processes, and checked.

``python -m tests.chaos --help``; what it does and how to read it is in ``docs/explanation/chaos.md``.
"""

import os

# Before NumPy is imported: a process of a history computes nothing that needs threads, and it is forked.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
