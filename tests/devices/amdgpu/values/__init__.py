"""What instructions compute, of arrays of all lanes."""
