"""AMD's part of a device function's text."""
