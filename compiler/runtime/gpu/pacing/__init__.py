"""How far the host runs ahead of a device, and when code is loaded: loading waits for all that was put into any stream."""
