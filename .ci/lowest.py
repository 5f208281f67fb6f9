"""Prints the lowest version of each dependency that ``pyproject.toml`` declares, one requirement a line, for ``pip install -r``.

python .ci/lowest.py [extra ..]
"""

import re
import sys
import tomllib
from pathlib import Path

_DECLARED = re.compile(r"([\w.-]+(?:\[[\w,-]+\])?)>=([\w.]+)(?:,[^;]*)?(;.*)?")


def lowest(declared: list[str]) -> list[str]:
    """The requirements, each at its lowest version; one that is pinned already stays."""
    out = []
    for one in declared:
        found = _DECLARED.fullmatch(one)
        if found is None and "==" not in one:
            raise SystemExit(f"pyproject.toml: `{one}` names no lowest version\n  do: write `name>=version`")
        out.append(one if found is None else f"{found[1]}=={found[2]}{found[3] or ''}")
    return out


if __name__ == "__main__":
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    print("\n".join(lowest(project["dependencies"] + [d for extra in sys.argv[1:] for d in extras[extra]])))
