"""A GPU driver on the processor, for tests without a GPU."""
