"""Back-pressure: limits how far the host runs ahead of a device, by a mark in the stream for so many microseconds of launches."""
