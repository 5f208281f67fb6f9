"""Executes the instructions of AMD GPUs with NumPy, for tests without one."""
