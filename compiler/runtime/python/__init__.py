"""The Python backend: the reference interpreter as a device, for debugging."""
