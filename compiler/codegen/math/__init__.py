"""Our mathematical functions as LLVM text, so that one value and many give the same bits, on every machine."""
