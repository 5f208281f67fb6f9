"""Device functions of any GPU as restricted LLVM text, and the host code that launches them."""
