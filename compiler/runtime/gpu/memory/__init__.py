"""Memory of a device: the driver's pool, chunks of our own, pinned buffers, what the programs of a process share."""
