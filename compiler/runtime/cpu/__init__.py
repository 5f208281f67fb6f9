"""The CPU backend: numpy memory, machine code of LLVM, a thread pool."""
