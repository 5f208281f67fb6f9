"""The CUDA backend: driver, memory, code, launches. Nothing here needs a GPU, or cuda-python, to be imported."""
