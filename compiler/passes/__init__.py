"""IR -> IR: one pass a file, each a function. The exact simplifications, and reverse mode."""
