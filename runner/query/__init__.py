"""Questions to the table of a run: conditions on its columns."""
