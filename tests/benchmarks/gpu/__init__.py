"""The benchmark of batches on the GPU: training jobs that share one GPU, and the parts of a batch's way to it."""
