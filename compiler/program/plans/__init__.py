"""Plans of launches: the heap of a gradient, the memory of a kernel, parallel iterations."""
