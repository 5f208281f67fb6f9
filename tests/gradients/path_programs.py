"""Random programs of a few kernels in which gradients are cut in every way that a program can cut them."""

from __future__ import annotations

import random

HEAD = """import qdrun as qd

qd.init(default_fp=qd.f64, cpu_max_num_threads=1)
N = 3
inputs = [qd.field(qd.f64, shape=(), needs_grad=True, name=f"x{k}") for k in range(4)]
x0, x1, x2, x3 = inputs
a0, a1, a2 = (qd.field(qd.f64, shape=(N,), needs_grad=True, name=f"a{k}") for k in range(3))
s0, s1, s2 = (qd.field(qd.f64, shape=(), needs_grad=True, name=f"s{k}") for k in range(3))
n0, n1 = (qd.field(qd.f64, shape=(N,), name=f"n{k}") for k in range(2))
i0, i1 = (qd.field(qd.i32, shape=(), name=f"i{k}") for k in range(2))
loss = qd.field(qd.f64, shape=(), needs_grad=True, name="loss")
every = [a0, a1, a2, s0, s1, s2, n0, n1, i0, i1]
"""

SCALARS = ("x0[None]", "x1[None]", "x2[None]", "x3[None]", "s0[None]", "s1[None]", "s2[None]")


class Maker:
    """Writes one program."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.kernels: list[str] = []
        self.calls: list[str] = []
        self.written: set[str] = set()  # fields that a launch has written: each is written once

    def program(self) -> str:
        """The text of a module with a function ``run`` that makes the launches."""
        for number in range(self.rng.randint(2, 5)):
            self._kernel(number)
        self._loss()
        calls = "\n".join(f"    {line}" for line in self.calls)
        return HEAD + "\n".join(self.kernels) + f"\n\ndef run():\n{calls}\n"

    def _readable(self) -> list[str]:
        known = list(SCALARS[:4])
        known += [f"{name}[None]" for name in sorted(self.written) if name[0] == "s"]
        known += [f"{name}[i]" for name in sorted(self.written) if name[0] in "an"]
        return known + [f"i_{name}" for name in sorted(self.written) if name[0] == "i"]

    def value(self, depth: int = 0) -> str:
        """A real value in a loop over ``i``."""
        rng = self.rng
        if depth > 2 or rng.random() < 0.35:
            found = rng.choice(self._readable())
            return f"qd.f64({found[2:]}[None])" if found.startswith("i_") else found
        inner, other = self.value(depth + 1), self.value(depth + 1)
        return rng.choice(
            (
                f"({inner} + {other})",
                f"({inner} * {other})",
                f"({inner} - 0.5 * {other})",
                f"qd.sin({inner})",
                f"qd.floor(3.7 * {inner})",
                f"qd.f64(qd.i32(7.3 * {inner}))",
                f"qd.stop_grad({inner})",
                f"({inner} if {other} > 0.4 else 0.3)",
                f"qd.max({inner}, {other})",
                f"qd.abs({inner})",
                f"qd.round(5.0 * {inner})",
            )
        )

    def _kernel(self, number: int) -> None:
        rng = self.rng
        free = [name for name in ("a0", "a1", "a2", "s0", "s1", "s2", "n0", "n1", "i0", "i1") if name not in self.written]
        target = rng.choice(free)
        name, hidden = f"k{number}", rng.random() < 0.1
        body = self._body(target)
        if rng.random() < 0.15 and target[0] == "s":
            self._through_python(name, target)
            self.written.add(target)
            return
        decorators = "@qd.ad.no_grad\n@qd.kernel" if hidden else "@qd.kernel"
        self.kernels.append(f"\n{decorators}\ndef {name}():\n{body}")
        self.calls.append(f"{name}()")
        self.written.add(target)

    def _through_python(self, name: str, target: str) -> None:
        source = self.rng.choice(
            [f"{f}[None]" for f in ("x0", "x1", "x2", "x3", *sorted(w for w in self.written if w[0] == "s"))]
        )
        self.kernels.append(
            f"\n@qd.kernel\ndef {name}(v: qd.f64):\n    {target}[None] = v * 1.3 + {self.rng.choice(SCALARS[:4])}"
        )
        self.calls.append(f"{name}({source})")

    def _body(self, target: str) -> str:
        rng, value = self.rng, self.value()
        if target[0] in "an":
            guard = f"        if {self.value(2)} > 0.5:\n    " if rng.random() < 0.2 else ""
            return f"    for i in range(N):\n{guard}        {target}[i] = {value}"
        value = value.replace("[i]", f"[{rng.randrange(3)}]")
        if target[0] == "i":
            return f"    {target}[None] = qd.i32(9.0 * {value})"
        if rng.random() < 0.2:
            count = f"qd.i32(4.0 * qd.abs({rng.choice(SCALARS[:4])}))"
            return f"    v = 0.0\n    for j in range({count}):\n        v += 0.1 * {value}\n    {target}[None] = v"
        return f"    {target}[None] = {value}"

    def _loss(self) -> None:
        body = "\n".join(f"        loss[None] += {self.value()}" for _ in range(self.rng.randint(1, 2)))
        self.kernels.append(f"\n@qd.kernel\ndef end():\n    for i in range(N):\n{body}")
        self.calls.append("end()")
        if self.rng.random() < 0.05:
            self.kernels.append("\n@qd.kernel\ndef over():\n    loss[None] = x0[None]")
            self.calls.append("over()")
