"""``python -m qdrun.compat program.py ..``: run a program of Quadrants or Taichi; its imports of these give qdrun."""

import runpy
import sys
from pathlib import Path

from qdrun.compiler.lang.compat.imports import install


def main() -> None:
    """Run the program that the command line names, with the rest of the command line."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m qdrun.compat program.py [arguments]")
    install()
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
