"""Device text as SPIR-V for Vulkan, written without LLVM and without other tools."""
