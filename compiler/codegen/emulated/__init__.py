"""The emulated device's part of a device function's text."""
