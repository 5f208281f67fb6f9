"""Our mathematical functions as LLVM text: for several iterations side by side, and for targets without a C library."""
