"""From the text of ``job.target`` to the job's class, and to the files that it reads, here and on a worker."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.errors import PydanticSchemaGenerationError

from ...compiler.errors import QdrunError
from ...compiler.runtime.cache import cache_dir
from ...compiler.runtime.registry import keep_namespaces
from ...jobs.base import Job
from ...jobs.core.inputs import InputFiles
from ..jobcode import store
from ..jobcode.closure import TooMuchCode, gather, read_again
from ..jobcode.imports import OtherModule, exclusive, load_from
from ..jobcode.modules import ENTRY, ImportKind, JobCode
from ..jobcode.places import root_of
from ..store.files import open_files
from ..user_lines import described, where

_here = threading.local()
"""``loading``: this thread imports the file of a job."""
_codes: dict[str, _Known] = {}
"""The codes of jobs that this process knows, by their digests."""


ARRAYS = "declare it as list[float] (`self.input` gives a field of its shape), or as a Path to a file that `self.data` reads"
"""What to write in place of a parameter that is a numpy array."""


DATA = "data"
"""Below the user's cache: the files that URIs name."""


class TargetError(QdrunError):
    """A job target names nothing that can be run. ``allowed`` holds the jobs that its module has."""

    def __init__(self, message: str, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.allowed = allowed


class Target(BaseModel):
    """A resolved job target: a module, or a file with its content, so that a worker without the file can still run it.

    Attributes:
        name: of the class.
        module: that has it; None: it is in a file.
        file, source: its path, as the user knows it, and its text.
        import_root: the folder in which imports begin.
        code: the digest of the job's modules, see ``jobcode``; empty: not looked up yet.
        home: a folder that is laid out like ``import_root``, with the files beside the modules; ``kept``: that of the kept copy;
            empty: ``import_root`` itself.
        label: what rows say of the code; empty but for code that was taken after the run had begun.
    """

    name: str
    module: str | None = None
    file: str | None = None
    source: str | None = None
    import_root: str = ""
    code: str = ""
    home: str = ""
    label: str = ""

    @property
    def text(self) -> str:
        """The target as a user would write it."""
        return f"{self.file or self.module}:{self.name}"


def resolve(text: str, folder: Path, root: str = "") -> Target:
    """Resolve ``package.module:Name`` or ``file.py:Name`` (relative to ``folder``, the config's).

    ``root``: the folder in which imports begin; empty: the working directory, or that of the file.

    The files of the job are read now; nothing is imported. What ``load`` imports, what a run keeps, and what its workers import are the
    bytes that were read here.

    Raises:
        TargetError: the file cannot be read, or the target is in the script that runs, which workers cannot import by that name.
    """
    where, _, name = text.rpartition(":")
    if where == "__main__":
        raise TargetError(
            f"`__main__` is another module in every process; name the file of {name}: path/to/file.py:{name}, relative to the config"
        )
    if not where.endswith(".py"):
        return _with_code(Target(name=name, module=where, import_root=root or os.getcwd()))
    path = (folder / where).resolve()
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TargetError(f"cannot read the job's file {path}: {error}; the path is relative to the config") from error
    return _with_code(Target(name=name, file=str(path), source=source, import_root=root or str(path.parent)))


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


@dataclass
class _Known:
    """The code of a job: whether it is that of a run's folder, and so cannot grow, and where it is laid out on this machine."""

    code: JobCode
    kept: bool = False
    place: Path | None = None


def _with_code(target: Target) -> Target:
    """A target with the code that it has on disk now."""
    keep_namespaces()
    root = os.path.abspath(target.import_root)
    if target.module is not None:
        root = root_of(target.module, root)
    try:
        code = gather(root, target.file, target.source, target.module, _entry_of(target))
    except TooMuchCode as error:
        raise TargetError(str(error)) from error
    known = _codes.get(code.digest)
    if known is None or known.kept or not _still(known.code):
        _codes[code.digest] = _Known(code)
    return target.model_copy(update={"code": code.digest, "import_root": root})


def _still(code: JobCode) -> bool:
    """Whether the modules that were imported while a job was planned are as they were: its digest does not tell."""
    return all(read_again(one) == one.data for one in list(code.modules.values()) if one.found is ImportKind.imported)


def kept_target(text: str, code: JobCode, *, home: str = "", label: str = "") -> Target:
    """The target of a run whose folder keeps ``code``.

    Args:
        text: as ``Target.text``.
        code: see ``jobcode.store.read``.
        home: see ``Target``.
        label: see ``Target``.

    Raises:
        TargetError: the code has no such file.
    """
    where, _, name = text.rpartition(":")
    _codes[code.digest] = _Known(code, kept=True)
    more = {"import_root": code.root, "code": code.digest, "home": home, "label": label}
    if not where.endswith(".py"):
        return Target(name=name, module=where, **more)
    entry = next((one for one in code.modules.values() if one.name.startswith(ENTRY)), None)
    if entry is None:
        raise TargetError(f"the run keeps no copy of the job's file {where}\n  do: submit the file again")
    return Target(name=name, file=entry.origin, source=entry.data.decode(), **more)


def code_of(target: Target, run: str = "") -> JobCode:
    """The code of a job.

    Args:
        target: of the job.
        run: the folder or URI of its run, which keeps the code where this process does not know it.

    Raises:
        NotKept: the folder of the run does not have it.
    """
    return _known(target, run).code


def _known(target: Target, run: str) -> _Known:
    if target.code not in _codes:
        _codes[target.code] = _Known(store.read(open_files(run), target.code), kept=True)
    return _codes[target.code]


def laid_out(target: Target) -> tuple[str, Path]:
    """The name of a target's module, and a folder with its code, from which ``store.imported`` imports it in another process."""
    return _entry_of(target) or target.module or "", store.lay_out(_known(target, "").code)


def notes_of(target: Target) -> tuple[str, ...]:
    """What a user should know of the code of a job."""
    return _codes[target.code].code.notes if target.code in _codes else ()


def load(target: Target, run: str = "") -> type[Job[Any]]:
    """Import the job's class, from the code of its target. ``run``: see ``code_of``.

    Raises:
        TargetError: the module cannot be imported, has no such name, or the name is not a job with parameters.
        NotKept: see ``code_of``.
    """
    with exclusive():
        target = target if target.code else _with_code(target)
        known = _known(target, run)
        before, _here.loading = getattr(_here, "loading", False), True
        try:
            name = _entry_of(target) if target.file is not None else target.module or ""
            module = _imported(known, name, target)
        except PydanticSchemaGenerationError as error:  # while a class of parameters is made
            what = str(error).partition(". ")[0]
            hint = f"\n  do: {ARRAYS}" if "ndarray" in what else "\n  do: give each parameter a type of plain data"
            raise TargetError(f"importing {target.file or target.module} failed: {what}{where(error)}{hint}") from error
        except (Exception, SystemExit) as error:
            said = str(error) if isinstance(error, OtherModule) else described(error)
            raise TargetError(f"importing {target.file or target.module} failed: {said}") from error
        finally:
            _here.loading = before
    jobs = tuple(name for name, value in vars(module).items() if _is_job(value) and value.__module__ == module.__name__)
    found = getattr(module, target.name, None)
    if found is None:
        raise TargetError(f"{target.file or target.module} has no `{target.name}`", jobs)
    if not _is_job(found):
        raise TargetError(f"{target.text} is not a job: a class derived from qdrun.jobs.base.Job[Params]", jobs)
    return found


def _imported(known: _Known, name: str, target: Target) -> Any:
    """A module of a job. Kept code is laid out on this machine, for what Python loads from files alone."""
    if known.kept and known.place is None:
        known.place = store.lay_out(known.code, target.home)
    home = "" if known.place is None else store.home_of(target.home, known.place)
    place = "" if known.place is None else str(known.place)
    return load_from(known.code, name, frozen=known.kept, home=home, place=place)


def input_files(spec: Mapping[str, Any]) -> InputFiles:
    """The files that a trial reads, as this process finds them. ``spec``: of the trial."""
    return InputFiles.of(spec, str(cache_dir() / DATA))


def _is_job(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Job) and value is not Job and hasattr(value, "Params")


def _entry_of(target: Target) -> str:
    """The name of the module that a job's file becomes."""
    if target.file is None:
        return ""
    return ENTRY + hashlib.sha256(f"{target.file}\n{target.source}".encode()).hexdigest()[:16]
