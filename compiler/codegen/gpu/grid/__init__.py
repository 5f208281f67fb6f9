"""Kernels as device functions: every thread takes some iterations of a task, and the host launches a function for each task."""
