"""Skips inactive blocks in parallel loops over sparse fields: which blocks a task has, and the loops over them."""
