"""Kernels of a batched program for a GPU: a thread, or a few threads of one block, run all of a trial."""
