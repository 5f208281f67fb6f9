"""Parallel loops of which whole cells are left out: which cells a task has, and the loops over them."""
