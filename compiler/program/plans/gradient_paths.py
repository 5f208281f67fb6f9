"""Whether a gradient can reach each input of a program, over all of its launches, and where the way to it is cut.

A path that is not connected is one that no gradient takes, whatever the values: the gradient is exactly zero. A connected path may still
have a gradient of zero at some values. Arrays are followed as wholes, component by component.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...ir.nodes import Loc, Place
from ...passes.dependence.gradient_flow import RANK, Cut, DependenceSets, Edge, Kind, TaskFlow, bits_of
from ..memory.effects import spot_of
from ..memory.memory_regions import MemoryRegion, may_meet, tensor_regions
from ..rehearsal import Hidden, Rehearsal

if TYPE_CHECKING:
    from ..call import Call
    from ..variant import Variant

Node = Hashable

_WORDS: dict[Kind, tuple[str, str]] = {
    "array": (
        "`{}` has no gradient",
        "make `{}` with needs_grad=True; to stop the gradient there on purpose, write stop_grad({})",
    ),
    "cast": ("cast to {}", "keep the value a real number"),
    "rounding": ("{}() has derivative 0", "leave out {}(), or use a smooth function"),
    "no_grad": ("`{}` is decorated with no_grad", "leave out no_grad, or give `{}` a gradient of its own (grad_replaced)"),
    "python": ("`{}` is read in Python, which carries no gradient", "compute in a kernel, and pass fields on"),
    "overwritten": ("`{}` is overwritten here", "add to it (`+=`), or write the later value to another field"),
    "stop_grad": ("stop_grad()", "leave out stop_grad() where a gradient is wanted"),
    "comparison": ("a comparison, which has derivative 0", "weigh the cases with a smooth function of the difference"),
    "index": ("the index of an array", "interpolate between neighbouring elements"),
    "loop": ("the number of iterations of a loop", "weigh the last iterations by a real number"),
}


@dataclass(frozen=True)
class GradientPath:
    """How values get from one input to the objective, over all launches.

    Attributes:
        source: name of the input.
        objective: name of the objective.
        connected: a gradient can flow. False: it is exactly zero, whatever the values.
        cuts: the statements that cut a path, the likeliest mistakes first. A connected input may have some as well.
        read: some stored value depends on the input.
        written: some kernel writes the objective.
        end: without any path, the last array that depends on the input, and the line that stores it.
        wrote: the line that first writes the objective.
        early: an array that depends on the input, and the line that has read it for the objective before it did.
    """

    source: str
    objective: str
    connected: bool
    cuts: tuple[Cut, ...] = ()
    read: bool = True
    written: bool = True
    end: tuple[str, Loc | None] | None = None
    wrote: Loc | None = None
    early: tuple[str, Loc | None] | None = None

    @property
    def lost(self) -> Cut | None:
        """The first array without a gradient that a part of the gradient is lost in."""
        return next((cut for cut in self.cuts if cut.kind == "array"), None)

    @property
    def mistake(self) -> bool:
        """Whether a gradient is lost that a program asks for: all of it, or a part of it in an array."""
        return not self.connected or self.lost is not None

    @property
    def _goal(self) -> str:
        return self.objective if " " in self.objective else f"`{self.objective}`"

    @property
    def why(self) -> str:
        """What cuts the path and what to do about it, in one line; of a connected path, what cuts a part of it. Empty: nothing does."""
        cut = self.lost if self.connected and self.lost else self.cuts[0] if self.cuts else None
        if not self.written:
            return f"no kernel that is launched writes {self._goal}; do: add to it in a kernel"
        if cut is not None:
            what, do = (text.format(*[cut.name] * text.count("{}")) for text in _WORDS[cut.kind])
            a = "a" if self.connected else "the"
            return f"{a} path from `{self.source}` to {self._goal} is cut{_at(cut.loc)}: {what}; do: {do}"
        if self.connected:
            return ""
        if self.early is not None:
            name, loc = self.early
            wrote = "" if self.end is None or self.end[0] != name else _at(self.end[1])
            said = f"{self._goal} reads `{name}`{_at(loc)} before a kernel writes it{wrote}"
            return f"{said}; do: launch the kernel that writes `{name}` first"
        if not self.read:
            return f"nothing that a kernel stores depends on `{self.source}`; do: use it in a kernel that is launched"
        end = "" if self.end is None else f": it ends in `{self.end[0]}`{_at(self.end[1])}"
        return (
            f"no path leads from `{self.source}` to {self._goal}{end}; do: launch the kernel that computes {self._goal} from it"
        )

    def __str__(self) -> str:
        if not self.mistake:
            return f"the gradient of {self._goal} reaches `{self.source}`"
        how = "incomplete" if self.connected else "always 0"
        return f"the gradient of {self._goal} with respect to `{self.source}` is {how}: {self.why}"


def _at(loc: Loc | None) -> str:
    return "" if loc is None else f" at {Path(loc.file).name}:{loc.line} (`{loc.text.strip()}`)"


@dataclass(frozen=True)
class PathLaunch:
    """A launch as the search for paths sees it: the memory that each task reads and writes. Equal launches share one."""

    kernel: str
    tasks: tuple[tuple[Edge[Node], ...], ...]
    stores: tuple[tuple[tuple[Node, str, Loc | None], ...], ...]
    replaced: tuple[tuple[tuple[Node, str, Loc | None], ...], ...]
    nodes: tuple[Node, ...]


def traced(variant: Variant, call: Call) -> PathLaunch:
    """One launch of a kernel with its arguments."""

    def node(place: Place) -> Node | None:
        if place.buffer.kind in ("tmp", "block", "trial", "ret"):
            return place.buffer.kind, id(variant), id(place.buffer), place.offset
        return spot_of(variant, call, place)

    def named(found: Iterable[tuple[Place, Loc | None]]) -> tuple[tuple[Node, str, Loc | None], ...]:
        return tuple((at, place.name, loc) for place, loc in found if (at := node(place)) is not None)

    def edges(flow: TaskFlow) -> Iterable[Edge[Node]]:
        for edge in flow.edges:
            target, source = node(edge.target), None if edge.source is None else node(edge.source)
            if target is not None and (source is not None or edge.source is None):
                yield Edge(target, source, edge.live, edge.cuts)

    flows = variant.compiled_kernel.gradient_flow
    tasks = tuple(tuple(edges(flow)) for flow in flows)
    stores = tuple(named(flow.stores) for flow in flows)
    replaced = tuple(named(flow.replaced) for flow in flows)
    touched = [node for edges in tasks for edge in edges for node in (edge.target, edge.source) if node is not None]
    touched += [node for task in replaced for node, _, _ in task]
    return PathLaunch(variant.head.name, tasks, stores, replaced, tuple(dict.fromkeys(touched)))


class PathSearch:
    """Follows inputs through launches in their order.

    Args:
        inputs: names, with fields and ndarrays.
        objective: a field or an ndarray.
        name: of the objective.
    """

    def __init__(self, inputs: Sequence[tuple[str, Any]], objective: Any, name: str) -> None:
        self._names, self._name = [name for name, _ in inputs], name
        self._flows = DependenceSets(len(inputs))
        self._state: dict[Node, int] = {}
        self._bases: dict[object, set[MemoryRegion]] = {}
        self._goal = [spot for spot, _ in tensor_regions(objective)]
        self._wrote: list[Loc | None] = []
        self._read = 0
        self._ends: dict[int, tuple[str, Loc | None]] = {}
        self._stored: dict[Node, str] = {}
        self._early: dict[Node, Loc | None] = {}  # read for the objective while no input had reached it
        self._python, self._seen_by_python = 0, dict[Node, str]()
        self._hidden, self._hidden_targets = 0, set[Node]()
        self._weak = False
        self._known: dict[object, tuple[int, ...]] = {}  # what launches have made of the same before
        self._keep: list[PathLaunch] = []  # so that no other gets an id that stands for one of these
        self._begins = {spot: k for k, (_, one) in enumerate(inputs) for spot, _ in tensor_regions(one)}
        for spot, k in self._begins.items():
            self._put(spot, 1 << k)

    # ---- what happens
    def launch(self, launch: PathLaunch, hidden: Hidden = "", by: str = "") -> None:
        """A kernel runs.

        Args:
            launch: see ``traced``.
            hidden: a tape does not see it: "cut", its results count as constants; "own", something else answers for their gradient.
            by: the function that hides it.
        """
        before = self._python, *map(self._at, launch.nodes)
        known = self._known.get((id(launch), hidden, by, self._weak, before))
        if known is not None and not self._seen_by_python:
            self._state |= zip(launch.nodes, known)
            return
        self._keep.append(launch)
        for edges, stores, replaced in zip(launch.tasks, launch.stores, launch.replaced, strict=True):
            self._wrote += [loc for node, _, loc in stores if node in self._goal]
            if hidden == "own":
                self.opaque((e.source for e in edges if e.source is not None), (e.target for e in edges))
            else:
                self._task(launch.kernel, edges, stores, replaced, by if hidden else None)
        if hidden != "own" and not any(_is_view(node) or _returned(node) for node in launch.nodes):
            after = tuple(self._state.get(node, 0) for node in launch.nodes)
            self._known[id(launch), hidden, by, self._weak, before] = after

    def _task(
        self,
        kernel: str,
        edges: tuple[Edge[Node], ...],
        stores: tuple[tuple[Node, str, Loc | None], ...],
        replaced: tuple[tuple[Node, str, Loc | None], ...],
        by: str | None,
    ) -> None:
        self._look()
        names = {node: (name, loc) for node, name, loc in stores}
        self._stored |= {node: name for node, name, _ in stores if name}
        for edge in edges:
            if (
                edge.target in self._goal
                and edge.source is not None
                and edge.source not in self._goal
                and not self._at(edge.source)
            ):
                self._early.setdefault(edge.source, names.get(edge.target, ("", None))[1])
        new: dict[Node, int] = {}
        before = {node: self._state.get(node, 0) for node, _, _ in replaced}
        changed = True
        while changed:
            changed = False
            for edge in edges:
                come = self._python if edge.source is None else self._at(edge.source)
                if not come:
                    continue
                if edge.source in self._begins:
                    self._read |= 1 << self._begins[edge.source]  # type: ignore[index]
                found = come if edge.live else 0
                for cut in edge.cuts:
                    found |= self._flows.cut(come, cut)
                name, loc = names.get(edge.target, ("", None))
                if by is not None:
                    found = self._flows.cut(found, Cut("no_grad", loc, by))
                if found & ~new.get(edge.target, 0):
                    new[edge.target] = new.get(edge.target, 0) | found
                if found & ~self._state.get(edge.target, 0):
                    changed = True
                    self._put(edge.target, found)
                    self._note(edge.target, found, kernel, name, loc)
        if not self._weak:
            for node, name, loc in replaced:
                gone = before[node] & self._flows.live & ~new.get(node, 0)
                self._state[node] = new.get(node, 0) | self._flows.cut(gone, Cut("overwritten", loc, name))

    def _note(self, target: Node, found: int, kernel: str, name: str, loc: Loc | None) -> None:
        """Note how far an input has come, and what a kernel returns to Python."""
        if _returned(target):
            self._python |= self._flows.cut(found, Cut("python", loc, kernel))
        elif name and isinstance(target, MemoryRegion):
            for k in bits_of(found & self._flows.live):
                self._ends[k] = name, loc

    def wrote(self, target: Sequence[Node], source: Sequence[Node] | None, *, whole: bool, hidden: bool) -> None:
        """Python writes to a tensor, or copies another one to it. ``hidden``: in a function with a gradient of its own."""
        self._look()
        if any(node in self._goal for node in target):
            self._wrote.append(None)
        for k, node in enumerate(target):
            come = self._flows.live if hidden else self._python if source is None else self._at(source[min(k, len(source) - 1)])
            gone = self._state.get(node, 0) & self._flows.live & ~come
            if whole and not self._weak and not hidden:
                self._state[node] = 0
                come |= self._flows.cut(gone, Cut("overwritten", None, "it"))
            self._put(node, come)

    def opaque(self, sources: Iterable[Node], targets: Iterable[Node]) -> None:
        """Something whose gradient is not known reads and writes memory: all that it writes depends on all that was read so."""
        for source in sources:
            come = self._at(source)
            self._hidden |= come & self._flows.live
            for k, _ in self._flows.cuts(come):
                self._hidden |= 1 << k
            if source in self._begins:
                self._read |= 1 << self._begins[source]  # type: ignore[index]
        self._hidden_targets.update(targets)
        for target in self._hidden_targets:
            self._put(target, self._hidden)

    def shown(self, nodes: Iterable[Node], name: str) -> None:
        """Python reads a tensor: from now on, what it passes to kernels may depend on it."""
        self._seen_by_python |= dict.fromkeys(nodes, name)

    def repeat(self, once: Callable[[], None]) -> None:
        """Let something happen again and again, until it changes nothing. Nothing counts as overwritten meanwhile."""
        weak, self._weak = self._weak, True
        before: dict[Node, int] = {}
        while before != self._state:
            before = dict(self._state)
            once()
        self._weak = weak

    # ---- what is known
    def result(self) -> tuple[GradientPath, ...]:
        """The path of each input."""
        found = 0
        for node in self._goal:
            found |= self._at(node)
        cuts: dict[int, list[Cut]] = {}
        for k, cut in self._flows.cuts(found):
            cuts.setdefault(k, []).append(cut)
        return tuple(
            GradientPath(
                name,
                self._name,
                bool(found >> k & 1),
                tuple(sorted(cuts.get(k, ()), key=lambda cut: RANK.index(cut.kind))),
                bool(self._read >> k & 1),
                bool(self._wrote),
                self._ends.get(k),
                next((loc for loc in self._wrote if loc is not None), None),
                next(
                    ((self._stored[n], loc) for n, loc in self._early.items() if n in self._stored and self._at(n) >> k & 1),
                    None,
                ),
            )
            for k, name in enumerate(self._names)
        )

    def _look(self) -> None:
        """Python knows what it has looked at."""
        for node, name in self._seen_by_python.items():
            self._python |= self._flows.cut(self._at(node), Cut("python", None, name))

    def _at(self, node: Node) -> int:
        found = self._state.get(node, 0)
        if isinstance(node, MemoryRegion):
            for other in self._bases.get(node.base, ()):
                if other.layout != node.layout and may_meet(other.layout, node.layout):
                    found |= self._state[other]
        return found

    def _put(self, node: Node, flows: int) -> None:
        if node not in self._state and isinstance(node, MemoryRegion):
            self._bases.setdefault(node.base, set()).add(node)
        self._state[node] = self._state.get(node, 0) | flows


def _is_view(node: Node) -> bool:
    """Whether other regions may have the same bytes."""
    return isinstance(node, MemoryRegion) and node.layout != ""


def _returned(node: Node) -> bool:
    """Whether a kernel returns it to Python."""
    return isinstance(node, tuple) and not isinstance(node, MemoryRegion) and node[0] == "ret"


def follow(found: Rehearsal, inputs: Sequence[tuple[str, Any]], objective: Any, name: str) -> tuple[GradientPath, ...]:
    """The path of each input to the objective over launches that were found by a dry run.

    Args:
        found: the launches.
        inputs: names and fields.
        objective: the field of the objective.
        name: of the objective.
    """
    search = PathSearch(inputs, objective, name)
    launches: list[tuple[PathLaunch, Hidden, str]] = [(traced(one.variant, one.call), one.hidden, one.by) for one in found.seen]

    def once() -> None:
        for number in found.order:
            search.launch(*launches[number])

    # a fixed point, which something else differentiates, repeats its launches
    search.repeat(once) if found.repeats or any(one.hidden == "own" for one in found.seen) else once()
    return search.result()
