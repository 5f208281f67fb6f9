"""``python -m qdrun.compat program.py ..``: run a program of Quadrants or Taichi; its imports of these give qdrun."""

from qdrun.compiler.lang.compat.command import main

if __name__ == "__main__":
    main()
