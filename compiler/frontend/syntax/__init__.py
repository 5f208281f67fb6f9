"""Lowers the syntax tree to IR, with a file for each part of Python's syntax."""
