"""How launches are put together: graph kernels, streams and events, the choice among several kernels."""
