"""The benchmark of slow samples: the order of batches, the form of cached samples, the cost of measuring them, and the
balance of threads."""
