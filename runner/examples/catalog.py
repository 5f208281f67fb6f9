"""The examples: each config that comes with the package, with its job. They are found in ``configs/``; nothing else lists them."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from ... import configs
from ...compiler.errors import QdrunError

SKELETON = "skeleton"
"""The example that ``qdrun new job`` renames."""
SECONDS = re.compile(r"^#\s+qdrun (?:submit|search) .*?(\d+) s on two cores$", re.M)


class ExampleError(QdrunError, ValueError):
    """An example is unknown, or a file that would be written exists."""


@dataclass(frozen=True)
class Example:
    """A config of the package: what it shows, seconds on two cores if they are known, and the module and class of its job."""

    config: Path
    shows: str
    seconds: int | None
    module: str
    job_class: str

    @property
    def job(self) -> str:
        """The name of the job's file without its ending."""
        return self.module.rpartition(".")[2]

    def source(self) -> Path:
        """The file of the job, which is not imported."""
        spec = importlib.util.find_spec(self.module)
        if spec is None or spec.origin is None:
            raise ExampleError(f"{self.config.name}: there is no module {self.module}\n  do: install qdrun again")
        return Path(spec.origin)


def examples() -> list[Example]:
    """All examples, by job and config."""
    found = [_example(path) for path in Path(configs.__file__).parent.glob("*.yaml")]
    return sorted(found, key=lambda one: (one.job, one.config.name))


def _example(path: Path) -> Example:
    """The example of a config whose first line, a comment, says what it shows."""
    text = path.read_text(encoding="utf-8")
    seconds = SECONDS.search(text)
    module, _, name = str(yaml.safe_load(text)["job"]["target"]).rpartition(":")
    return Example(path, text.split("\n", 1)[0].removeprefix("# "), int(seconds[1]) if seconds else None, module, name)


def of_name(name: str) -> list[Example]:
    """The examples of the job with this name, or of the job of the config with this name.

    Raises:
        ExampleError: there is none.
    """
    every = examples()
    jobs = {one.job for one in every if name in (one.job, one.config.stem, one.config.name)}
    if not jobs:
        raise ExampleError(f"there is no example `{name}`\n  do: choose one of {', '.join(sorted({one.job for one in every}))}")
    return [one for one in every if one.job in jobs]
