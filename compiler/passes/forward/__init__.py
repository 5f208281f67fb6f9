"""Forward mode: from a simplified kernel to one that carries tangents."""
