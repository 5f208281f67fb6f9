"""From the text of ``job.target`` to the job's class, here and on a worker."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import linecache
import os
import sys
import tempfile
import threading
from io import StringIO
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.errors import PydanticSchemaGenerationError

from ...compiler.errors import QdrunError
from ...compiler.runtime.registry import keep_namespaces
from ...jobs.base import Job
from ..user_lines import described, where

_loading = threading.RLock()
"""Serialises imports: several lanes of a worker may import the same job, and none must see a half-imported module."""
_here = threading.local()
"""``loading``: this thread imports the file of a job."""


ARRAYS = "declare it as list[float] (`self.input` gives a field of its shape), or as a Path to a file that `self.data` reads"
"""What to write in place of a parameter that is a numpy array."""


class TargetError(QdrunError):
    """A job target names nothing that can be run. ``allowed`` holds the jobs that its module has."""

    def __init__(self, message: str, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.allowed = allowed


class Target(BaseModel):
    """A resolved job target: a module, or a file with its content, so that a worker without the file can still run it."""

    name: str
    module: str | None = None
    file: str | None = None
    source: str | None = None
    import_root: str = ""

    @property
    def text(self) -> str:
        """The target as a user would write it."""
        return f"{self.file or self.module}:{self.name}"


def resolve(text: str, folder: Path, root: str = "") -> Target:
    """Resolve ``package.module:Name`` or ``file.py:Name`` (relative to ``folder``, the config's).

    ``root``: the folder in which imports begin; empty: the working directory, or that of the file.

    Raises:
        TargetError: the file cannot be read, or the target is in the script that runs, which workers cannot import by that name.
    """
    where, _, name = text.rpartition(":")
    if where == "__main__":
        raise TargetError(
            f"`__main__` is another module in every process; name the file of {name}: path/to/file.py:{name}, relative to the config"
        )
    if not where.endswith(".py"):
        return Target(name=name, module=where, import_root=root or os.getcwd())
    path = (folder / where).resolve()
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TargetError(f"cannot read the job's file {path}: {error}; the path is relative to the config") from error
    return Target(name=name, file=str(path), source=source, import_root=root or str(path.parent))


def importable(text: str) -> str:
    """A target that workers can import, for one in the script that runs now: ``__main__:Name`` becomes the file or module of the script.

    Raises:
        TargetError: ``__main__`` is an interactive session, which has neither.
    """
    where, _, name = text.rpartition(":")
    if where != "__main__":
        return text
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None and spec.name != "__main__":  # python -m package.module
        return f"{spec.name}:{name}"
    if file is None or not file.endswith(".py"):
        raise TargetError(
            f"{name} is defined in an interactive session, which workers cannot import\n"
            f"  do: in a notebook give the class, submit({name}, ..); else write it into a file: job.target=path/to/file.py:{name}"
        )
    return f"{os.path.abspath(file)}:{name}"


def refuse_while_loading() -> None:
    """Refuse to submit a run from inside of a job's file that is being imported for a run.

    Raises:
        TargetError: this thread is importing one: the script would submit itself again and again.
    """
    if getattr(_here, "loading", False):
        raise TargetError(
            "the job's file submits a run while it is imported\n"
            '  do: put `submit(..)` below `if __name__ == "__main__":`, as each worker imports the file'
        )


def load(target: Target) -> type[Job[Any]]:
    """Import the job's class.

    Raises:
        TargetError: the module cannot be imported, has no such name, or the name is not a job with parameters.
    """
    try:
        with _loading:
            root = os.path.abspath(target.import_root)  # of what was shipped to a cluster it is relative
            if target.import_root and root not in sys.path:
                keep_namespaces()
                sys.path.append(root)  # last: an installed package is never shadowed
            before, _here.loading = getattr(_here, "loading", False), True
            try:
                module = _load_file(target) if target.file is not None else importlib.import_module(target.module or "")
            finally:
                _here.loading = before
    except PydanticSchemaGenerationError as error:  # while a class of parameters is made
        what = str(error).partition(". ")[0]
        hint = f"\n  do: {ARRAYS}" if "ndarray" in what else "\n  do: give each parameter a type of plain data"
        raise TargetError(f"importing {target.file or target.module} failed: {what}{where(error)}{hint}") from error
    except (Exception, SystemExit) as error:
        raise TargetError(f"importing {target.file or target.module} failed: {described(error)}") from error
    jobs = tuple(name for name, value in vars(module).items() if _is_job(value) and value.__module__ == module.__name__)
    found = getattr(module, target.name, None)
    if found is None:
        raise TargetError(f"{target.file or target.module} has no `{target.name}`", jobs)
    if not _is_job(found):
        raise TargetError(f"{target.text} is not a job: a class derived from qdrun.jobs.base.Job[Params]", jobs)
    return found


def _is_job(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Job) and value is not Job and hasattr(value, "Params")


def _load_file(target: Target) -> Any:
    assert target.file is not None and target.source is not None
    digest = hashlib.sha256(f"{target.file}\n{target.source}".encode()).hexdigest()[:16]
    name = f"qdrun_job_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    path = Path(target.file)
    if not path.is_file() or path.read_text(encoding="utf-8") != target.source:
        path = _shipped(digest, target.source)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # Kernels are read from these lines, in each trial: the file may be edited from now on. Without a time, they are not compared with it.
    linecache.cache[str(path)] = len(target.source), None, StringIO(target.source).readlines(), str(path)
    try:
        exec(compile(target.source, path, "exec", dont_inherit=True), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _shipped(digest: str, source: str) -> Path:
    """Write the shipped source to a private folder of this process, so that kernels can read their own lines."""
    folder = Path(tempfile.mkdtemp(prefix=f"qdrun-job-{digest}-"))
    path = folder / "job.py"
    path.write_text(source, encoding="utf-8")
    return path
