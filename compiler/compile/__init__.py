"""From a kernel's source or IR to code that a device can load, and the caches of it."""
