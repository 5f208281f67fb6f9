"""What the pages of Ray show of a run: its job, its workers and their batches, its metrics."""
