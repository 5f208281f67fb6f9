"""A simulation in time steps for the tests of ``checkpointed_steps``."""

import numpy as np

import qdrun as qd

M = 5


class Chain:
    """Masses on springs: states x, v (f64) and c (i32, which counts the iterations of a loop), scratch f, a log and a loss outside."""

    def __init__(self, n, window, seed=0, **options):
        qd.init(default_fp=qd.f64, **{"cpu_max_num_threads": 1, **options})
        r = np.random.default_rng(seed)
        self.n, self.window = n, window
        self.x = qd.field(qd.f64, shape=(window + 1, M), needs_grad=True, name="x")
        self.v = qd.field(qd.f64, shape=(window + 1, M), needs_grad=True, name="v")
        self.f = qd.field(qd.f64, shape=(window, M), needs_grad=True, name="f")
        self.c = qd.field(qd.i32, shape=(window + 1,), name="c")
        self.stiff = qd.field(qd.f64, shape=M, needs_grad=True, name="stiff")
        self.loss = qd.field(qd.f64, shape=(), needs_grad=True, name="loss")
        self.log = qd.field(qd.f64, shape=n + 1, needs_grad=True, name="log")
        first = np.zeros((window + 1, M))
        first[0] = r.normal(size=M)
        self.x.from_numpy(first)
        self.stiff.from_numpy(r.uniform(0.5, 1.5, M))
        self.kernels()

    def kernels(self):
        x, v, f, c, stiff, loss, log = self.x, self.v, self.f, self.c, self.stiff, self.loss, self.log

        @qd.kernel
        def force(k: qd.i32):
            for i in range(M):
                j = (i + 1) % M
                d = stiff[i] * qd.sin(x[k, j] - x[k, i])
                for _ in range(c[k]):
                    d = 0.9 * qd.sin(d + 0.1 * x[k, i])
                f[k, i] += d
                f[k, j] -= d

        @qd.kernel
        def kick(k: qd.i32):
            for i in range(M):
                f[k, i] += 0.1 * qd.random(qd.f64) * x[k, i]

        @qd.kernel
        def advance(t: qd.i32, k: qd.i32):
            for i in range(M):
                v[k + 1, i] = 0.99 * v[k, i] + 0.1 * f[k, i] * qd.cos(0.1 * t)
                x[k + 1, i] = x[k, i] + 0.1 * v[k + 1, i]
            c[k + 1] = (c[k] * 3 + 1) % 7

        @qd.kernel
        def tally(t: qd.i32, k: qd.i32):
            for i in range(M):
                loss[None] += 0.01 * x[k + 1, i] ** 2
            log[t] = x[k + 1, 0]

        @qd.kernel
        def end(k: qd.i32):
            for i in range(M):
                loss[None] += x[k, i] ** 4 + v[k, i] * x[k, i]

        self.force, self.kick, self.advance, self.tally, self.end = force, kick, advance, tally, end

    def step(self, t, k):
        self.force(k)
        if t % 3 == 1:
            self.kick(k)
        self.advance(t, k)
        self.tally(t, k)

    def run(self, **how):
        tape = {name: how.pop(name) for name in ("validation", "grad_check", "clear_gradients") if name in how}
        with qd.ad.Tape(loss=self.loss, **tape):
            plan = qd.ad.checkpointed_steps(self.step, self.n, [self.x, self.v, self.c], [self.f], **how)
            self.end(min(self.n, self.window))
        return plan

    def results(self):
        slot = min(self.n, self.window)
        values = [t.to_numpy()[slot] for t in (self.x, self.v, self.c)]
        gradients = [self.x.grad.to_numpy()[0], self.v.grad.to_numpy()[0], self.stiff.grad.to_numpy()]
        return [a.tobytes() for a in (*values, *gradients, self.log.to_numpy()[: self.n], self.loss.to_numpy())]


def plainly(n, seed=0):
    """Without ``checkpointed_steps``: arrays with all steps, launches in the tape."""
    chain = Chain(n, max(n, 1), seed)
    with qd.ad.Tape(loss=chain.loss):
        for t in range(n):
            chain.step(t, t)
        chain.end(n)
    return chain.results()
