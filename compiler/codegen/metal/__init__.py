"""Metal Shading Language for Apple's GPUs, translated from the device text."""
