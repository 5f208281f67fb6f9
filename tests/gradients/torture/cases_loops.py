"""Threads about loops: variables set before and reused, nests, bounds, break and continue, bodies that are not linear."""

from __future__ import annotations

from scene import Case

LOOPS = {
    "set before a dynamic loop, used in it and after it": Case("warp#1694", """
    a = x[i] * 2.0
    v = w[i]
    for j in range(n):
        v = v * a + 0.1
    y[i] = v * a + a * a"""),
    "a sum that is reused after the loop: 22, not 10": Case("warp#1694", """
    total = 0.0
    for j in range(n):
        total += x[i] * x[i] * j
    y[i] = total * x[i] + total * total""", values={"x": [1.0, 2.0, 0.5, -1.0]}),
    "a constant set before the loop and replaced in it": Case("warp#729", """
    scale = 1.0
    v = x[i]
    for j in range(n):
        v = v * scale
        scale = qd.sin(v) + w[i]
    y[i] = v + scale"""),
    "a loop that overwrites its variable": Case("warp#174", """
    v = x[i]
    for j in range(n):
        v = x[(i + j) % N] * w[j % N]
    y[i] = v * v"""),
    "a loop that overwrites its variable by its square": Case("warp#174", """
    v = x[i]
    for j in range(3):
        v = v * v + 0.05
    y[i] = v"""),
    "two nested dynamic loops": Case("warp#1293", """
    v = x[i]
    for j in range(n):
        for k in range(n - 2):
            v = v * 0.9 + qd.sin(v * w[k % N])
    y[i] = v"""),
    "two nested dynamic loops that only add": Case("warp#1293", """
    v = 0.0
    for j in range(n):
        for k in range(j + 1):
            v += x[i] * w[k % N]
    y[i] = v"""),
    "three nested dynamic loops with state at each depth": Case("warp#1293", """
    a = x[i]
    b = w[i]
    for j in range(n - 2):
        for k in range(j + 1):
            b = qd.tanh(a + b)
            for l in range(k + 1):
                a = qd.sin(a * b) + 0.1 * l
        b = b * a
    y[i] = a + b"""),
    "a reciprocal and a square in a looped function": Case("warp#1740", """
    v = x[i]
    for j in range(n):
        v = 1.0 / (v * v + 0.2)
    y[i] = v""", values={"x": [-1.3, 0.5, 1.16, 2.0]}),
    "a reciprocal of a negative start": Case("warp#1740", """
    v = x[i]
    for j in range(n):
        v = 1.0 / v + 0.3 * v
    y[i] = v""", values={"x": [-2.0, -0.7, 0.9, 1.16]}),
    "a power in a loop": Case("warp#1740", """
    v = x[i]
    for j in range(n):
        v = v ** 2 * 0.7 - v ** 3 * 0.2 + v ** -1 * 0.1
    y[i] = v""", values={"x": [1.16, -0.8, 0.6, 1.0]}),
    "continue in an argmax loop": Case("warp#1552", """
    best = -10.0
    at = 0
    for j in range(N):
        if x[j] * (1.0 + 0.1 * i) <= best:
            continue
        best = x[j] * (1.0 + 0.1 * i)
        at = j
    y[i] = best * w[at]"""),
    "an argmax loop over a dynamic range": Case("warp#1552", """
    best = -10.0
    for j in range(n - 1):
        p = qd.sin(3.0 * x[(i + j) % N])
        if p < best:
            continue
        best = p
    y[i] = best"""),
    "break at the first hit": Case("warp#1552", """
    v = 0.0
    for j in range(n):
        v = v + x[(i + j) % N] * w[j % N]
        if v > 1.0:
            v = v * v
            break
    y[i] = v"""),
    "break out of the inner of two loops": Case("warp#1552", """
    v = x[i]
    for j in range(n):
        for k in range(n):
            if k > j:
                break
            if (j + k) % 3 == 1:
                continue
            v = qd.sin(v) + w[k % N] * 0.3
        if v > 0.95:
            break
    y[i] = v"""),
    "a function that returns from its loop": Case("warp#1552", """
    v = x[i]
    for j in range(n):
        v = first_above(v, w[i]) + 0.4
    y[i] = v"""),
    "alpha blending in its recursive form": Case("taichi#2425", """
    e = w[i]
    for j in range(N):
        e = (1.0 - e) * x[j] + e
    y[i] = e"""),
    "alpha blending in a function": Case("taichi#2425", """
    e = w[i]
    for j in range(n):
        e = blend(e, x[(i + j) % N])
    y[i] = e"""),
    "a ray march with transmittance": Case("taichi#2425", """
    light = 0.0
    clear = 1.0
    for j in range(n + 3):
        a = 1.0 - qd.exp(-x[(i + j) % N] * 0.5)
        light += clear * a * w[j % N]
        clear *= 1.0 - a
        if clear < 0.1:
            break
    y[i] = light + 0.3 * clear"""),
    "an inner loop whose bound comes from a field": Case("quadrants#229", """
    v = x[i]
    for j in range(count[i]):
        v = qd.sin(v) * w[j % N] + 0.2
    y[i] = v"""),
    "an inner loop over an argument, with a product": Case("quadrants#229", """
    v = 1.0
    for j in range(n):
        v *= x[(i + j) % N] + 0.5
    y[i] = v""", launches=(("k", (33,)),)),
    "triangular loops": Case("quadrants#229", """
    v = w[i]
    for j in range(i + 1):
        for k in range(i - j):
            v = v * x[k] + 0.1
    y[i] = v"""),
    "ragged rows": Case("quadrants#229", """
    v = w[i]
    for j in range(start[i], start[i + 1]):
        v = qd.sin(v) * x[j % N] + 0.2
    y[i] = v"""),
    "a while loop to convergence": Case("genesis-world#2742", """
    v = 1.0
    k = 0
    while qd.abs(v * v - x[i]) > 1e-13 and k < 50:
        v = 0.5 * (v + x[i] / v)
        k += 1
    y[i] = v * w[i]"""),
    "while True with two exits": Case("warp#1552", """
    v = x[i]
    k = 0
    while True:
        k += 1
        if v > 3.0:
            break
        v = v * 1.4 + 0.1 * w[i]
        if k > n:
            break
        if k % 2 == 0:
            continue
        v = v - 0.05 * v * v
    y[i] = v"""),
    "more iterations than an adstack holds": Case("taichi#4226", """
    v = x[i]
    k = 0
    while k < n:
        v = qd.sin(v) + 0.2
        k += 1
    y[i] = v""", launches=(("k", (40,)),), options={"ad_stack_size": 8}, refused="ask for a larger adstack"),
    "a known bound needs no stack size": Case("taichi#4226", """
    v = x[i]
    for k in range(n):
        v = qd.sin(v) + 0.2
    y[i] = v""", launches=(("k", (400,)),), options={"ad_stack_size": 8}),
}  # fmt: skip
