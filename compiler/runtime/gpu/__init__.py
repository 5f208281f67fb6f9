"""What any stream-ordered GPU needs: memory, streams, code loading, graphs, failures."""
