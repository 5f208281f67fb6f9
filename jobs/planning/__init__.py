"""The memory of a job before it runs: plans of trials and batches, windows of time steps, groups of trials that may share a batch."""
