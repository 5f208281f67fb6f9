"""Jobs of the gallery beside the same simulation in other frameworks."""
