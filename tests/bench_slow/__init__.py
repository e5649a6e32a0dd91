"""The benchmark of slow samples: the order of batches, the form of cached samples, what it costs to measure, and the
balance of threads."""
