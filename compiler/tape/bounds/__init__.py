"""Loop bounds and row predicates as expressions, and their values before a launch."""
