"""``qdrun explain``: where every byte of a trial goes, which loop of which line owns it, and what each remedy would save."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict
from typing_extensions import TypedDict

from ...jobs.base import Job
from ...jobs.planning.explain import Explanation, smallest_windows
from ...jobs.planning.memory_plan import BESIDE
from ..fields import Data, about
from ..text_grid import amount, grid
from ..user_lines import described
from ..value_columns import Places
from .plan import Prepared, opened, planned_for, shapes
from .trials import Trial, counted

SHOWN_FIELDS = 12


class Explained(BaseModel):
    """Trials of one shape and their common explanation.

    Attributes:
        trials: their ids.
        example: the label of the one that was built.
        explanation: None if the job cannot be planned.
        error: the reason; or why ``memory_budget`` is too small, and then the explanation is of the trial without a budget.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    trials: tuple[str, ...]
    example: str
    explanation: Explanation | None
    error: str = ""


def explain(prepared: Prepared, job: type[Job[Any]], arch: str | None = None) -> list[Explained]:
    """Explain one trial of each shape. A job that cannot be built gives an error; the others are explained as well."""
    return [_explain(prepared, job, group, arch) for group in shapes(prepared, job)]


def _explain(prepared: Prepared, job: type[Job[Any]], group: Places, arch: str | None) -> Explained:
    trials, first = prepared.trials, prepared.trials[group[0]]
    head = {"trials": tuple(trials.ids[place] for place in group), "example": first.label}
    error = ""
    for budget in (prepared.loaded.config.budget_bytes, None):
        try:
            with opened(prepared, job, first, budget, arch) as made:
                found = made.explain(arch=planned_for(prepared, arch))
                own = made.program is not None and found.plan.arch == made.program.arch.value
            if own:
                found = _with_smallest(prepared, job, first, made, found, arch)
            return Explained(**head, explanation=found, error=error)
        except MemoryError as refused:
            error = str(refused)
        except (Exception, SystemExit) as broken:  # a user's code
            error = described(broken)
            break
    return Explained(**head, explanation=None, error=error)


def _with_smallest(
    prepared: Prepared, job: type[Job[Any]], trial: Trial, made: Job[Any], found: Explanation, arch: str | None
) -> Explanation:
    """Adds, for a job in time steps, the smallest budget that works: an open job cannot say, since it decides how long the window is."""
    if not made.wanted or made.time_steps() < 3:
        return found
    try:
        with opened(prepared, job, trial, 1, arch):
            return found
    except MemoryError as error:
        smallest = getattr(error, "smallest", None)
    if smallest is None or smallest >= found.plan.bytes:
        return found
    with opened(prepared, job, trial, smallest, arch) as least:
        remedy = smallest_windows(least, found.plan.bytes, made.steps_plan)
    others = [other for other in found.remedies if other.bytes > smallest]
    return found.model_copy(update={"remedies": (*others, remedy)})


class ExplainDocument(TypedDict):
    """Memory of a trial, to the line of code."""

    name: Annotated[str, about("name of the config")]
    target: Annotated[str, about("the job")]
    memory_budget: Annotated[int | str | None, about("`memory_budget` of the config")]
    memory: Annotated[
        list[Data],
        about("for each shape: trials, example, error, explanation with fields, loops, kernels, remedies, plan, built_again"),
    ]


def data(prepared: Prepared, parts: Sequence[Explained]) -> ExplainDocument:
    """The explanations as plain data."""
    config = prepared.loaded.config
    memory = [part.model_dump(mode="json") for part in parts]
    for part, found in zip(memory, parts):
        if found.explanation is not None:
            part["explanation"]["plan"] |= {"bytes": found.explanation.plan.bytes, "by_kind": found.explanation.plan.by_kind()}
    return {"name": config.name, "target": prepared.target.text, "memory_budget": config.memory_budget, "memory": memory}


def text(prepared: Prepared, parts: Sequence[Explained]) -> str:
    """The explanations for people."""
    lines = [
        f"{prepared.loaded.config.name}: {prepared.target.text}, {counted(prepared.loaded.config.device.threads, 'thread')}"
    ]
    for part in parts:
        lines += ["", f"one trial ({counted(len(part.trials), 'trial')} like {part.example})"]
        lines += [f"  {line}" for line in part.error.splitlines()]
        if part.explanation is not None:
            lines += _sections(part.explanation)
    return "\n".join(lines)


def _sections(found: Explanation) -> list[str]:
    plan = found.plan
    rows = [
        [e.kind, f"{e.bytes:,}", "" if e.kind in BESIDE else _share(e.bytes, plan.bytes), e.source, e.formula]
        for e in plan.entries
    ]
    total = f"on {plan.arch}" + (f", within a budget of {plan.budget:,}" if plan.budget else "")
    rows.append(["total", f"{plan.bytes:,}", "", amount(plan.bytes), total])
    lines = [f"  built again for each run: {found.built_again}"] if found.built_again else []
    lines.append(grid(["kind", "bytes", "share", "from", "how"], rows, indent="  "))
    sections = {
        "fields and arrays": (["name", "kind", "shape", "type", "bytes"], _fields(found)),
        "loops that keep states; kernels share one heap": (
            ["loop", "gradient", "rows", "iterations", "levels", "slots", "bytes a row", "bytes"],
            [_loop(row) for row in found.loops],
        ),
        "kernels": (["kernel", "context", "temporaries", "code"], [_kernel(row) for row in found.kernels]),
        "remedies": (
            ["do", "bytes", "saves", "predicted time", "what it changes"],
            [
                [r.name, f"{r.bytes:,}", f"{r.saves:,}", "-" if r.time is None else f"x {r.time:.2f}", r.how]
                for r in found.remedies
            ],
        ),
    }
    for title, (headers, cells) in sections.items():
        if cells:
            lines += ["", f"  {title}", grid(headers, cells, indent="    ")]
    return lines


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def _fields(found: Explanation) -> list[list[str]]:
    rows = [[row["name"], row["kind"], row["shape"], row["dtype"], f"{row['bytes']:,}"] for row in found.fields]
    rest = sum(row["bytes"] for row in found.fields[SHOWN_FIELDS:])
    more = [[f"{len(rows) - SHOWN_FIELDS} smaller", "", "", "", f"{rest:,}"]] if len(rows) > SHOWN_FIELDS else []
    return rows[:SHOWN_FIELDS] + more


def _loop(row: dict[str, Any]) -> list[str]:
    iterations = "unknown" if row["bound"] is None else f"{row['bound']:,}"
    slots = " + ".join(str(n) for n in row["slots"].values() if n) or "0"
    cells = [row["line"], row["gradient"], f"{row['rows']} ({row['rows_from']})", f"{iterations} ({row['bound_from']})"]
    return [*cells, str(row["levels"]), slots, f"{row['row_bytes']:,}", f"{row['bytes']:,}"]


def _kernel(row: dict[str, Any]) -> list[str]:
    return [row["kernel"], *(f"{row[kind]:,}" for kind in ("context", "temporaries", "code"))]
