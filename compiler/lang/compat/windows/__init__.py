"""Windows without a screen: draw calls are recorded, frames are counted and saved. The files here need NumPy alone."""
