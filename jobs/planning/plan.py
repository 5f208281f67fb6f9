"""The memory plan of a job: every byte that one trial will hold, by kind, with what asks for it and how it is counted.

``docs/memory.md`` describes the kinds. All of this works on an open job, before it runs; ``used`` is what the plan is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .memory_plan import CODE, Launches, MemoryPlan, PlanEntry, PlannedJob

KINDS = {"fields": "state", "ndarrays": "state"}
"""The names of the program's categories in a plan; other categories keep their names."""


def used(program: Any) -> dict[str, int]:
    """The most bytes that a program held of each kind: what the plan is compared with."""
    return _renamed(program.peaks())


def _renamed(categories: dict[str, int]) -> dict[str, int]:
    out: dict[str, int] = {}
    for name, amount in categories.items():
        out[KINDS.get(name, name)] = out.get(KINDS.get(name, name), 0) + int(amount)
    return out


def make_plan(job: PlannedJob, arch: str | None = None) -> MemoryPlan:
    """The plan of an open job. Runs nothing, and compiles its kernels only where ``job.machine_code`` says so: without, the plan is the
    same but for ``code`` and, on a GPU, ``frames``.

    Args:
        job: with the fields and kernels of ``build``.
        arch: plan for this backend, which need not be there; None: for the program's own.

    Raises:
        OutOfMemory: nothing fits ``memory_budget``; names the smallest that would work.
        TypeError: ``launches`` gives something else than kernels with their arguments.
    """
    program, launches = job.program, launches_of(job)
    later = _kernels(job, launches)
    own = list(job.allocates())
    held = {k: n for k, n in _renamed(program.usage()).items() if n and k not in ("adstack", "staging")}
    for kind in ("context", "temporaries"):
        if more := sum(getattr(kernel, kind) for kernel in later):
            held[kind] = held.get(kind, 0) + more
    entries = [PlanEntry(kind=k, bytes=n, source=_source(k), formula=_how(job, k, later)) for k, n in held.items()]
    entries += own
    budget = program.options.memory_budget or None
    if backwards := differentiated(job, launches):
        room = heap_room(program, own, sum(kernel.bytes for kernel in later))
        try:
            heaps = [gradient_plan(kernel, args, arch, room) for kernel, args in backwards]
        except MemoryError as error:
            raise _refusal(job, entries, _smallest_heap(backwards, arch), str(error)) from None
        entries += adstack_entries(heaps, room)
        if job.machine_code and arch in (None, program.arch.value):
            for kernel, args in reversed(backwards):  # in the order in which they run; the code of the last plan stays
                kernel.grad.load(*args, budget=room)
    total = sum(entry.bytes for entry in entries)
    if budget and total > budget:
        raise _refusal(job, entries, 0)
    code = sum(kernel.code for kernel in program.kernels())
    if arch in (None, program.arch.value) and code:
        entries.append(
            PlanEntry(kind=CODE, bytes=used(program)[CODE], source="launches()", formula=_by_kernel(program.kernels(), "code"))
        )
    entries += [
        PlanEntry(kind=b.kind, bytes=b.bytes, source=b.source, formula=b.formula)
        for b in program.beside(arch or program.arch.value, total - held.get("context", 0))
    ]
    where = arch or program.arch.value
    notes = tuple(dict.fromkeys(filter(None, (program.launch_note(*launch, where) for launch in launches))))
    return MemoryPlan(entries=tuple(entries), arch=where, budget=budget, whole=bool(launches), notes=notes)


def launches_of(job: PlannedJob) -> Launches:
    """The launches that the job declares.

    Raises:
        TypeError: one of them is no kernel with its arguments.
    """
    found = list(job.launches())
    for one in found:
        pair = one if isinstance(one, tuple) and len(one) == 2 and isinstance(one[1], tuple) else (None, ())
        if not hasattr(pair[0], "grad"):
            kernel = getattr(pair[0], "kernel", None)  # a gradient knows its kernel
            what = f"the gradient of `{kernel.source.name}`" if kernel is not None else f"{one!r:.200}"
            raise TypeError(
                f"{type(job).__name__}.launches() gives {what}, not a kernel with a tuple of its arguments\n"
                "  do: write `(self.step, (0,))` for `self.step(0)`; the gradient of a kernel is planned with it"
            )
    return found


def runs_backwards(job: PlannedJob, kernel: Any, args: tuple[Any, ...]) -> bool:
    """Whether a launch is differentiated, too: gradients are wanted, and the kernel touches something that has one."""
    return bool(job.wanted) and kernel.grad.exists(*args)


def differentiated(job: PlannedJob, launches: Launches) -> Launches:
    """The launches that also run backwards."""
    return [(kernel, args) for kernel, args in launches if runs_backwards(job, kernel, args)]


def _kernels(job: PlannedJob, launches: Launches) -> list[Any]:
    """Compile the kernels of a job, or give the ``KernelPlan`` of each that is not compiled."""
    later: dict[object, Any] = {}
    own = [(kernel.grad if runs_backwards(job, kernel, args) else kernel, args) for kernel, args in launches]
    for made, args in [*own, *(() if job.optimizer is None else job.optimizer.launches())]:
        if job.machine_code:
            made.prepare(*args)
        else:
            later |= made.uncompiled(*args)
    return list(later.values())


def _smallest_heap(launches: Launches, arch: str | None) -> int:
    """Bytes of the smallest heap under which all of these gradients can run; under a budget planes shrink from one to the next."""
    other = {} if arch is None else {"arch": arch}
    return max(kernel.grad.remedies(*args, **other)["the smallest budget"].bytes for kernel, args in launches)


def _refusal(job: PlannedJob, entries: list[PlanEntry], heap: int, why: str = "") -> Exception:
    """The error for a budget that nothing fits: what needs how much, and the smallest budget that would work."""
    import qdrun as qd

    budget, step = job.program.options.memory_budget, job.repeated_kernel()
    other = "smaller fields"
    if step:
        other = f"declare time steps: state(), time_steps() and time_loop(), as `{step}` is launched again and again"
    needs = [f"{entry.kind} {entry.bytes:,}" for entry in entries] + ([f"gradient heap at least {heap:,}"] if heap else [])
    smallest = sum(entry.bytes for entry in entries) + heap
    return qd.OutOfMemory(
        f"memory_budget of {budget:,} bytes is too small for one trial: {', '.join(needs)}\n"
        + (f"  {why.splitlines()[0]}\n" if why else "")
        + f"  do: memory_budget: {smallest} or more, or {other}",
        smallest,
    )


def heap_room(program: Any, own: Iterable[PlanEntry] = (), later: int = 0) -> int | None:
    """Bytes that ``memory_budget`` leaves for the gradient heap beside what the program holds, what ``run`` will allocate, and what kernels
    will keep that are not compiled (``later``).

    None without a budget.
    """
    budget = program.options.memory_budget
    if not budget:
        return None
    held = program.device.used_bytes - program.usage().get("adstack", 0) + sum(entry.bytes for entry in own)
    return max(0, budget - held - later)


def gradient_plan(kernel: Any, args: tuple[Any, ...], arch: str | None, room: int | None) -> Any:
    """The ``HeapPlan`` of one launch, with at most ``room`` bytes when that is given."""
    options = {"arch": arch, "budget": room}
    return kernel.grad.plan(*args, **{name: value for name, value in options.items() if value is not None})


def heap_planes(heaps: Sequence[Any], room: int | None = None) -> dict[str, int]:
    """The planes of the one heap that serves all of these plans: each as large as the plan that needs most of it.

    Where a memory budget leaves no ``room`` for that, planes shrink between launches: then those of the largest moment, the gradients
    running in the reverse order of ``heaps``.
    """
    held: dict[str, int] = {}
    most: dict[str, int] = {}
    for heap in (*reversed(heaps), *reversed(heaps)):
        grown = {plane: max(held.get(plane, 0), amount) for plane, amount in heap.planes.items()}
        held = grown if room is None or sum(grown.values()) <= room else dict(heap.planes)
        most = max(most, held, key=lambda planes: sum(planes.values()))
    return most


def adstack_entries(heaps: Sequence[Any], room: int | None = None) -> list[PlanEntry]:
    """An entry for each plane of the heap that all reverse kernels share; a single entry of 0 bytes if none needs it."""
    entries = []
    for plane, amount in heap_planes(heaps, room).items():
        if amount:
            heap = next(heap for heap in heaps if heap.planes[plane] == amount)
            facts = next(entry for entry in heap.to_json()["planes"] if entry["plane"] == plane)
            source = f"gradient of {heap.kernel.removesuffix('_grad')}"
            how = {"formula": facts["formula"], "plane": plane, "where": facts["where"]}
            entries.append(PlanEntry(kind="adstack", bytes=amount, source=source, **how))
    return entries or [PlanEntry(kind="adstack", bytes=0, source="no reverse kernel needs one")]


_SOURCES = {"context": "launches()", "temporaries": "launches()", "parts": "launches()"}


def _source(kind: str) -> str:
    return _SOURCES.get(kind, "build()")


def _how(job: PlannedJob, kind: str, later: Sequence[Any]) -> str:
    if kind in ("context", "temporaries"):
        return _by_kernel([*job.program.kernels(), *later], kind)
    if kind == "parts":
        return "temporaries of kernels that a tape launches in parts, with adjoints and tangents, in words of 8 bytes"
    texts = [f"{row['name']} {row['shape']} {row['dtype']} = {row['bytes']}" for row in field_rows(job) if row["kind"] == kind]
    return _first(texts)


def _first(texts: list[str], most: int = 3) -> str:
    return ", ".join(texts[:most]) + (f", {len(texts) - most} smaller" if len(texts) > most else "")


def _by_kernel(kernels: Sequence[Any], kind: str) -> str:
    """Bytes of each kernel, largest first."""
    amount: Callable[[Any], int] = lambda kernel: getattr(kernel, kind)  # noqa: E731
    kernels = sorted((k for k in kernels if amount(k)), key=lambda k: -amount(k))
    return _first([f"{k.kernel} = {amount(k)}" for k in kernels])


def field_rows(job: PlannedJob) -> list[dict[str, Any]]:
    """Every field and gradient of an open job, largest first: name (that of the job's attribute), kind, shape, dtype, bytes."""
    names = {id(value): name for name, value in reversed(vars(job).items())}  # the first of several names
    rows = []

    def add(owner: Any, kind: str, one: Any, element: tuple[int, ...], nbytes: int) -> None:
        row = {"name": names.get(id(owner), getattr(owner, "name", "an ndarray")), "kind": kind}
        row |= {"shape": "x".join(map(str, one.shape)) or "1", "dtype": f"{one.dtype}{list(element) if element else ''}"}
        rows.append(row | {"bytes": int(nbytes)})

    for one in job.program.root.fields():
        if one.placed:
            owner = one.primal if one.role else one
            add(owner, "gradients" if one.role else "state", one, one.element, one._form.nbytes)  # ``view`` would hand it out
    for array in job.program.arrays.alive:
        if (owner := next((x for x in job.program.arrays.alive if array in (x.grad, x.dual)), None)) is None:
            add(array, "state", array, array.element_shape, array._form.nbytes)
        else:
            add(owner, "gradients", array, array.element_shape, array._form.nbytes)
    return sorted(rows, key=lambda row: (-row["bytes"], row["name"], row["kind"]))
