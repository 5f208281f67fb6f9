"""The memory of a program: locations of arrays, version counters of their writes, and accounts of bytes."""
