"""The Vulkan backend: devices, memory by address, recorded launches. It is imported without the package ``vulkan`` and without a loader."""
