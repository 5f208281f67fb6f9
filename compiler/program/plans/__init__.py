"""What a launch will need: the heap of a gradient, the memory of a kernel, the time."""
