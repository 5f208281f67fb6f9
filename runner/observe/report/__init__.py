"""The report of a run: one file of HTML with its data and its charts, made from the run's folder alone at any time."""
