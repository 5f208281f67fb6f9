"""IR -> LLVM text: the emitter shared by all targets that LLVM serves, one scalar version or several iterations side by side."""
