"""Reductions and atomics of parallel loops."""
