"""Code on a Vulkan device: SPIR-V from device text, modules, and a pipeline for each size of a launch."""
