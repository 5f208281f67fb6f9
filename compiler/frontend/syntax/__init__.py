"""One file for each part of Python's syntax: from syntax tree to IR."""
