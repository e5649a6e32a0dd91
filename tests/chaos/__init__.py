"""A campaign of random histories: jobs and faults drawn from a seed, run with real processes, and checked.

``python -m tests.chaos --help`` lists the options. ``docs/explanation/chaos.md`` explains the campaign and its output.
"""

import os

# NumPy reads these when it is imported, so they are set first. The processes of a history compute nothing that needs
# threads, and they are forked.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
