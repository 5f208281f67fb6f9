"""Threads about data: fields and locals, vectors, branches, overwritten values, broken paths, NaN, several launches."""

from __future__ import annotations

from scene import Case

STEPS = tuple(("step", (t,)) for t in range(3))
DATA = {
    "accumulation through a field": Case("taichi#8356", """
    for j in range(n):
        y[i] += qd.sin(x[i] * (j + 1.0)) * w[j % N]"""),
    "accumulation through a local": Case("taichi#8356", """
    t = 0.0
    for j in range(n):
        t += qd.sin(x[i] * (j + 1.0)) * w[j % N]
    y[i] += t"""),
    "a field without a gradient on the way": Case("taichi#1966", """
@qd.kernel
def k(n: qd.i32):
    for i in x:
        plain[i] = x[i] * x[i]
    for i in x:
        y[i] = plain[i] * w[i]
""", refused="plain"),
    "a rotation in place by a constant angle": Case("taichi#550", """
    a = x[i]
    b = w[i]
    x[i] = qd.cos(0.3) * a - qd.sin(0.3) * b
    w[i] = qd.sin(0.3) * a + qd.cos(0.3) * b
    y[i] = 2.0 * x[i] + w[i]"""),
    "a rotation in place by a learned angle": Case("taichi#2505", """
    x[i] = qd.cos(s[None]) * x[i]""", refused="overwrites"),
    "a rotation in place of locals": Case("taichi#2505", """
    a = x[i]
    b = w[i]
    for j in range(n):
        t = a
        a = qd.cos(s[None]) * a - qd.sin(s[None]) * b
        b = qd.sin(s[None]) * t + qd.cos(s[None]) * b
    y[i] = a * b"""),
    "a square in place": Case("taichi#550", """
    x[i] = x[i] * x[i]""", refused="the gradient needs the value of `x` read here"),
    "the root in an arm that is not taken": Case("taichi#7115", """
    v = x[i] - 0.7
    if v > 0.0:
        y[i] = qd.sqrt(v) * w[i]
    else:
        y[i] = v * v""", values={"x": [0.2, 0.7, 0.9, 0.1]}, inputs=("w",)),
    "the root in an arm that is not taken, selected": Case("taichi#7116", """
    v = x[i] - 0.7
    y[i] = qd.select(v > 0.0, qd.sqrt(v) * w[i], v * 2.0)""", values={"x": [0.2, 0.1, 0.9, 1.1]}),
    "a quotient by zero in an arm that is not taken": Case("taichi#7116", """
    v = x[i] - 0.5
    y[i] = qd.select(v == 0.0, w[i], qd.sin(v) / v * w[i])""", values={"x": [0.5, 0.1, 0.9, 0.5]}, inputs=("w",)),
    "the norm at zero": Case("taichi#4332", """
    y[i] = v2[i].norm() * w[i]""", values={"v2": [[0, 0], [0.3, 0.4], [0, 0], [1, 0]]}),
    "the distance of a point from itself": Case("taichi#4332", """
    y[i] = (v3[i] - v3[(i * i) % N]).norm() + qd.math.length(v2[i] - v2[i])"""),
    "the norm at zero behind a guard": Case("taichi#4332", """
    l = v2[i].norm()
    u = v2[i]
    if l > 1e-9:
        u = u / l
    y[i] = u[0] * w[i] + u[1]""", values={"v2": [[0, 0], [0.3, 0.4], [0.1, 0], [1, 0]]}, inputs=("w",)),
    "a loop-carried vector rebuilt from itself": Case("quadrants#797", """
    p = v2[i]
    for j in range(n):
        p = qd.Vector([qd.sin(p[1] * x[i]), p[0] * w[i] + 0.3])
    y[i] = p[0] * 0.5 + p[1] * p[1]"""),
    "the same as scalars": Case("quadrants#797", """
    p = v2[i][0]
    q = v2[i][1]
    for j in range(n):
        t = p
        p = qd.sin(q * x[i])
        q = t * w[i] + 0.3
    y[i] = p * 0.5 + q * q"""),
    "a loop-carried 3-vector rotated by itself": Case("quadrants#797", """
    p = v3[i]
    for j in range(n):
        p = qd.Vector([p.y, p.z, p.x]) * 0.9 + 0.1 * p.cross(v3[(i + 1) % N])
    y[i] = p.norm()"""),
    "a loop-carried matrix": Case("quadrants#797", """
    m = m2[i]
    for j in range(n):
        m = 0.5 * m @ m.transpose() + 0.1 * m2[j % N]
    y[i] = m.determinant() + m[0, 1]"""),
    "a branch mixing a vector arm and a dynamic arm": Case("quadrants#791", """
    if i % 2 == 0:
        p = v2[i] * x[i]
        for j in range(n):
            p = qd.Vector([p[1], qd.sin(p[0])]) + 0.1
        y[i] = p.dot(p)
    else:
        v = x[i]
        for j in range(count[i] + 2):
            v = qd.sin(v) * w[i]
        y[i] = v"""),
    "a branch of the data mixing a vector arm and a dynamic arm": Case("quadrants#791", """
    v = x[i]
    p = v2[i]
    for j in range(n):
        if v > 0.6:
            p = qd.Vector([p[1] * v, p[0]])
            v = v * 0.8
        else:
            for k in range(j % 3):
                v = qd.sin(v) + w[i] * p[0] * 0.2
            v = v + 0.4
    y[i] = v + p.sum()"""),
    "a component chosen by the data": Case("quadrants#797", """
    p = v3[i]
    for j in range(n):
        p[(i + j) % 3] = qd.sin(p[(i + 2 * j) % 3]) + 0.1 * p[j % 3]
    y[i] = p.sum()"""),
    "time steps on an axis of time": Case("taichi#8119", """
@qd.kernel
def step(t: qd.i32):
    for i in range(N):
        grid[t + 1, i] = qd.sin(grid[t, i]) * w[i] + 0.2 * grid[t, (i + 1) % N]
""", launches=STEPS, inputs=("w",)),
    "a chain of bodies": Case("genesis-world#2537", """
@qd.kernel
def k(n: qd.i32):
    for i in range(1):
        p = qd.Vector([0.0, 0.0])
        angle = 0.0
        for j in range(N):
            angle += x[j]
            p += w[j] * qd.Vector([qd.cos(angle), qd.sin(angle)])
            y[j] = p.dot(v2[j])
"""),
    "a tree of bodies with parents": Case("genesis-world#2150", """
@qd.kernel
def k(n: qd.i32):
    for i in range(1):
        q = qd.Vector([1.0, 0.0, 0.0, 0.0])
        for j in range(N):
            c = qd.cos(0.5 * x[j])
            d = qd.sin(0.5 * x[j]) * v3[j].normalized()
            r = qd.Vector([c, d[0], d[1], d[2]])
            if count[j] > 2:
                q = r
            else:
                q = qd.Vector([q[0] * r[0] - q[1] * r[1] - q[2] * r[2] - q[3] * r[3],
                               q[0] * r[1] + q[1] * r[0] + q[2] * r[3] - q[3] * r[2],
                               q[0] * r[2] - q[1] * r[3] + q[2] * r[0] + q[3] * r[1],
                               q[0] * r[3] + q[1] * r[2] - q[2] * r[1] + q[3] * r[0]])
            y[j] = q[0] * w[j] + q[2]
"""),
    "a controlled pendulum over a dynamic horizon": Case("genesis-world#2069", """
    angle = x[i]
    speed = 0.0
    for t in range(n * 4):
        force = w[i] * (0.3 - angle) - s[None] * speed
        speed += 0.05 * (force - qd.sin(angle))
        angle += 0.05 * speed
        if angle > 0.9:
            angle = 0.9
            speed = -0.5 * speed
    y[i] = angle * angle + 0.1 * speed"""),
    "gradients of controls applied at each step": Case("genesis-world#2069", """
@qd.kernel
def step(t: qd.i32):
    for i in range(N):
        grid[t + 1, i] = grid[t, i] + 0.1 * (w[t] * qd.cos(grid[t, i]) - 0.2 * grid[t, i])
""", launches=STEPS, inputs=("w",)),
    "a neighbour that another iteration writes": Case("taichi#550", """
@qd.kernel
def k(n: qd.i32):
    for i in range(1, N):
        y[i] += y[i - 1] * x[i]
""", refused="cross-iteration read-after-write"),
    "a scatter over a ragged list": Case("quadrants#229", """
    for j in range(start[i], start[i + 1]):
        y[(i + j) % N] += x[i] * qd.sin(w[j % N] * x[j % N])"""),
    "a mean and a variance in one kernel": Case("taichi#2505", """
@qd.kernel
def k(n: qd.i32):
    total = 0.0
    for i in x:
        total += x[i]
    mean = total / N
    for i in x:
        y[i] = (x[i] - mean) * (x[i] - mean) * w[i]
"""),
    "a minimum of several fields, tie-free": Case("taichi#8119", """
    v = qd.min(x[i], w[i], v2[i][0])
    for j in range(n):
        v = qd.max(qd.sin(v), 0.3 * x[j % N]) + 0.1 * v
    y[i] = v"""),
}  # fmt: skip
PAIRS = (
    ("accumulation through a field", "accumulation through a local"),
    ("a loop-carried vector rebuilt from itself", "the same as scalars"),
)
