"""The runtime of any GPU with streams: memory, streams, code loading, graphs, failures."""
