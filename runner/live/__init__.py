"""Live values: the numbers that jobs log while they run, from a worker's lanes to files of the run and to those who look."""
