"""The benchmark of slow samples: the order of batches, the form of cached samples, and what it costs to measure."""
