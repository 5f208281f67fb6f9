"""What a user touches: fields, ndarrays, vectors, kernels, the tape. Their names are collected in ``compiler/face.py``."""
