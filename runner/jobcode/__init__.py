"""The code of a job: which files it consists of, the copy that a run keeps of them, and their import from that copy alone."""
