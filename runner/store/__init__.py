"""The run folder: the truth about a run, on any fsspec URI. Never imports ray, never pickles."""
