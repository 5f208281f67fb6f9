"""What users keep of runs and caches: tags and notes, and the removal of what is not wanted any more."""
