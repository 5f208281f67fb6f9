"""Device text as data: what a printer of another language reads (see docs/device-text.md)."""
