"""The user's objects: fields, ndarrays, vectors, kernels, the tape. ``compiler/face.py`` collects their names."""
