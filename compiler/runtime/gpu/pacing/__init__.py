"""How far the host runs ahead of a device: one mark in the stream for so many microseconds of launches."""
