"""Which instructions have been executed: their names, and all that the emulator knows."""

from __future__ import annotations

COVERAGE: set[str] = set()
"""The instructions of this process, without the names of their encodings."""
