"""Writes loops over neighbours: offsets, periodic and clamped indices, guards, coefficients; as a gather, or as a scatter by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .draw import Array

if TYPE_CHECKING:
    from .smooth import SmoothWriter

TERMS = ("{w} * {x}", "{w} * {x} * {y}", "{w} * qd.max({x}, {y})", "{w} * {x} ** 2", "{w} * {x} / ({y} ** 2 + 1.0)", "s * {x}",
         "{w} * qd.sin({x})", "({x} if {y} > 0.1 else {w})")  # fmt: skip
MARGIN = 3
"""Elements around the loop, so that an offset stays inside of the array."""


def write_stencil(writer: SmoothWriter) -> None:
    """A kernel that computes an array from the neighbours of each element of another one, and adds it to an output."""
    _Stencil(writer).write()


class _Stencil:
    def __init__(self, writer: SmoothWriter) -> None:
        self.w, c = writer, writer.c
        self.sizes = [c.number(1, 9) for _ in range(c.pick((1, 1, 2, 2, 3)))]
        self.sizes = [min(n, 4) if len(self.sizes) == 3 else n for n in self.sizes]
        shape = tuple(n + 2 * MARGIN for n in self.sizes)
        self.x, self.z = (writer.real_array(c.fresh(name), shape, (), "field") for name in ("x", "z"))
        writer.inputs.append(self.x)
        writer.between.append(self.z)
        writer.fill.append(
            f"{self.x.name}.from_numpy(np.random.default_rng({c.number(0, 999)}).uniform(-1, 1, {shape}).astype('{writer.t.numpy.name}'))"
        )
        self.names = [c.fresh("i") for _ in shape]

    def write(self) -> None:
        """The loop over neighbours, then the sum."""
        w, c = self.w, self.w.c
        w.begin_kernel()
        begins = [c.pick((0, 0, 1, min(2, n))) for n in self.sizes]
        ends = ", ".join(f"({low}, {n})" for low, n in zip(begins, self.sizes))
        w.put(1, f"for {', '.join(self.names)} in qd.ndrange({ends}):")
        depth = 2
        if c.chance(0.4):
            w.put(2, f"if {self.guard()}:")
            depth = 3
        by_hand = c.chance(0.3)
        for _ in range(c.number(1, 4)):
            value = " + ".join(self.term() for _ in range(c.number(1, 2 if by_hand else 4)))
            if by_hand:
                w.put(depth, f"{self.element(self.z)} += {value}")
            else:
                w.put(depth, f"v = {value}")
                w.put(depth, f"{self.own(self.z)} = {value if c.chance(0.5) else 'v * v'}")
                break
        if depth == 3 and c.chance(0.4):
            w.put(2, "else:")
            w.put(3, f"{self.own(self.z)} {'+=' if by_hand else '='} {self.term()}")
        w.put(1, f"for {', '.join(self.names)} in {self.z.name}:")
        y = w.outputs[0]
        w.put(2, f"{y.name}[{', '.join('0' for _ in y.shape) or 'None'}] += 0.1 * {self.z.name}[{', '.join(self.names)}] ** 2")

    def own(self, a: Array) -> str:
        return f"{a.name}[{', '.join(f'{i} + {MARGIN}' for i in self.names)}]"

    def term(self) -> str:
        c = self.w.c
        return c.pick(TERMS).format(x=self.element(self.x), y=self.element(self.x), w=f"{c.rng.uniform(-1, 1):.3f}")

    def guard(self) -> str:
        c = self.w.c
        k = c.number(0, len(self.names) - 1)
        i, n = self.names[k], self.sizes[k]
        forms = (
            f"0 < {i} < {n - 1}",
            f"{i} > 0",
            f"{i} < {n} - 1",
            f"{i} != 0",
            f"{i} == {n - 1}",
            f"{i} >= m",
            f"{self.own(self.x)} > 0.0",
        )
        return f"{c.pick(forms)} {c.pick(('and', 'or'))} {c.pick(forms)}" if c.chance(0.3) else c.pick(forms)

    def element(self, a: Array) -> str:
        return f"{a.name}[{', '.join(f'{self.position(k)} + {MARGIN}' for k in range(len(self.names)))}]"

    def position(self, k: int) -> str:
        """An index along one axis, from ``-MARGIN`` to the length of the loop with the margin."""
        c, i, n, o = self.w.c, self.names[k], self.sizes[k], self.w.c.number(0, MARGIN)
        moved = f"({i} {c.pick('+-')} {o})"
        return c.pick((i, i, moved, moved, f"({moved} % {n})", f"(({i} + {n} - 1) % {n})", f"qd.min({moved}, {n - 1})",
                       f"qd.max(qd.min({moved}, {n - 1}), 0)", f"({i} + 1 if {i} < {n - 1} else 0)"))  # fmt: skip
