"""The type of each command's JSON document. The first field of a document, ``schema``, names it: ``qdrun.<command>/<version>``.

The version is raised when a field is removed or changes its meaning; fields may be added at any time. The types are next to the code
that makes them, and loaded when a document is printed.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from ..fields import Data
from ..store.encoding import plain

VERSION = 1
TYPES = {
    "submit": "observe.ended:RunEnd",
    "search": "rounds.driver:SearchResult",
    "resume": "observe.ended:ResumePlan",
    "plan": "observe.planned:PlanDocument",
    "explain": "study.explain:ExplainDocument",
    "check": "study.check:Checked",
    "status": "observe.show:StatusDocument",
    "watch": "observe.view:RunView",
    "ls": "observe.show:RunList",
    "results": "cli.runs.results:ResultsDocument",
    "report": "cli.watching:ReportDocument",
    "logs": "observe.listing:LogDocument",
    "cancel": "cli.running:CancelRequest",
    "up": "cli.machine:KeptRay",
    "down": "cli.machine:EndedRay",
    "devices": "observe.show:DeviceList",
    "dashboard": "remote.dashboard:DashboardAddress",
    "rerun": "compare.rerun:RerunDocument",
    "compare": "compare.runs:RunPair",
    "sensitivity": "sensitivity.study:SensitivityStudy",
    "export": "cli.runs.exporting:ExportDocument",
    "tag": "upkeep.labels:RunLabels",
    "note": "upkeep.labels:RunLabels",
    "rm": "upkeep.removal:RemovedDocument",
    "gc": "upkeep.removal:RemovedDocument",
    "new": "cli.config_commands:WrittenFiles",
    "examples": "cli.config_commands:ExampleList",
    "error": "cli.output:ErrorDocument",
}


@cache
def adapter(command: str) -> TypeAdapter[Any]:
    """The validator and serialiser of a command's document."""
    module, _, name = TYPES[command].partition(":")
    return TypeAdapter(getattr(import_module(f"...{module}", __name__), name))


def document(command: str, data: Any) -> Data:
    """Build the document of a command from an instance of its type, or from plain data, and validate it.

    Raises:
        pydantic.ValidationError, pydantic.PydanticSerializationError: ``data`` does not fit the type: an internal error.
    """
    made = adapter(command)
    said = made.dump_python(made.validate_python(data, extra="forbid"), warnings="error")
    return {"schema": f"qdrun.{command}/{VERSION}"} | plain(to_jsonable_python(said, inf_nan_mode="constants"))
