"""IR -> machine code."""
