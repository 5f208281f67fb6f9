"""``qdrun search``: runs that follow one another, each with trials that were chosen from the results of those before."""
