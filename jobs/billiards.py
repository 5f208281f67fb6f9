"""A break shot: where must the cue ball start, and how fast, so that one ball of the triangle ends at its goal?

The cue ball hits a triangle of balls (Hu et al. 2020, DiffTaichi). A collision changes the velocities by an impulse along the line of
centres, and the places by the time of impact within the step, so that the loss is continuous. There is no friction and no cushion. The
loss is the squared distance of the last ball from its goal. The arrays hold a window of time steps, all of them unless a memory budget
says less.
"""

from __future__ import annotations

from pydantic import Field

import qdrun as qd
from qdrun.jobs.base import Job, JobParams


class BilliardsParams(JobParams):
    """The table has a side of 1 m; all balls have the same mass."""

    layers: int = Field(4, ge=1, le=32, description="rows of the triangle: 4 are 10 balls")
    steps: int = Field(1024, ge=1, description="time steps")
    dt: float = Field(0.003, gt=0, description="time step, s")
    radius: float = Field(0.03, gt=0, description="of a ball, m")
    elasticity: float = Field(0.8, ge=0, le=1, description="of a collision: 1 loses no energy")
    softening: float = Field(
        0.0, ge=0, description="added to the distance that a direction is divided by, m; the original has 1e-6"
    )
    position: list[float] = Field([0.1, 0.5], min_length=2, max_length=2, description="where the cue ball starts, m")
    velocity: list[float] = Field([0.3, 0.0], min_length=2, max_length=2, description="how fast the cue ball starts, m/s")
    goal: list[float] = Field([0.9, 0.75], min_length=2, max_length=2, description="where the last ball should end, m")


class Billiards(Job[BilliardsParams]):
    """Gradients of the squared miss with respect to the start of the cue ball."""

    gradients = ("position", "velocity")

    def build(self) -> None:
        """Fields over (slot, ball), and the kernels of a step."""
        p, real, w = self.params, qd.f64, self.window
        self.balls = 1 + p.layers * (p.layers + 1) // 2
        self.position, self.velocity, self.goal = self.input("position"), self.input("velocity"), self.input("goal")
        self.dt, self.radius, self.elasticity = self.input("dt"), self.input("radius"), self.input("elasticity")
        self.loss, self.end = self.objective(), self.output("end", 2)
        self.x = qd.Vector.field(2, dtype=real, shape=(w + 1, self.balls), needs_grad=True)
        self.v = qd.Vector.field(2, dtype=real, shape=(w + 1, self.balls), needs_grad=True)
        self.shift = qd.Vector.field(2, dtype=real, shape=(w, self.balls), needs_grad=True)
        self.impulse = qd.Vector.field(2, dtype=real, shape=(w, self.balls), needs_grad=True)
        self._step_kernels()
        self._end_kernels()

    def _step_kernels(self) -> None:
        x, v, shift, impulse, balls = self.x, self.v, self.shift, self.impulse, self.balls
        step_s, radius, elasticity, softening = self.dt, self.radius, self.elasticity, self.input("softening")

        @qd.kernel
        def collide(k: qd.i32):
            for i in range(balls):
                for j in range(i):
                    dt = step_s[None]
                    apart = x[k, i] + dt * v[k, i] - (x[k, j] + dt * v[k, j])
                    distance = apart.norm()
                    if distance < 2.0 * radius[None]:
                        along = apart / (distance + softening[None])
                        speed = along.dot(v[k, i] - v[k, j])
                        if speed < 0.0:
                            push = -(1.0 + elasticity[None]) * 0.5 * speed * along
                            since = (distance - 2.0 * radius[None]) / qd.min(-1e-3, speed)
                            back = qd.min(since - dt, 0.0) * push
                            impulse[k, i] += push
                            impulse[k, j] -= push
                            shift[k, i] += back
                            shift[k, j] -= back

        @qd.kernel
        def advance(k: qd.i32):
            for i in range(balls):
                speed = v[k, i] + impulse[k, i]
                v[k + 1, i] = speed
                x[k + 1, i] = x[k, i] + step_s[None] * speed + shift[k, i]

        self.collide, self.advance = collide, advance

    def _end_kernels(self) -> None:
        x, v, position, velocity, goal = self.x, self.v, self.position, self.velocity, self.goal
        loss, place = self.loss, self.end
        radius, layers, last, end = self.radius, self.params.layers, self.balls - 1, self.window

        @qd.kernel
        def begin():
            for row in range(layers):
                for k in range(row + 1):
                    r = radius[None]
                    ball = 1 + row * (row + 1) // 2 + k
                    x[0, ball] = qd.Vector([0.5 + row * 2.0 * r, 0.5 + k * 2.0 * r - row * 0.7 * r])
            x[0, 0] = qd.Vector([position[0], position[1]])
            v[0, 0] = qd.Vector([velocity[0], velocity[1]])

        @qd.kernel
        def miss():
            off = x[end, last] - qd.Vector([goal[0], goal[1]])
            loss[None] += off.norm_sqr()
            place[0] = x[end, last][0]
            place[1] = x[end, last][1]

        self.begin, self.miss = begin, miss

    def time_steps(self) -> int:
        """See ``Job.time_steps``."""
        return self.params.steps

    def state(self) -> list[object]:
        """The state arrays, which a step passes to the next."""
        return [self.x, self.v]

    def scratch(self) -> list[object]:
        """The scratch arrays, which a step leaves for its gradient."""
        return [self.shift, self.impulse]

    def step(self, t: int, k: int) -> None:
        """Time step t: from slot k to slot k + 1."""
        self.checkpoint()
        del t
        self.collide(k)
        self.advance(k)

    def simulate(self) -> None:
        """All steps and the loss."""
        self.begin()
        self.time_loop(self.step)
        self.miss()


class BilliardsPicture(Billiards):
    """The same, with a picture of the paths of all balls, of where they end, and of the goal of the last one."""

    def save(self) -> None:
        """Write ``shot.png``."""
        x, last = self.x.to_numpy(), self.balls - 1
        with self.picture("shot.png", xlim=(0, 1), ylim=(0, 1), xlabel="x, m", ylabel="y, m", aspect="equal") as axes:
            for ball, colour in enumerate(["C3", *["0.6"] * (last - 1), "C0"][: self.balls]):
                axes.plot(*x[:, ball].T, color=colour, linewidth=1)
                axes.plot(*x[-1, ball], "o", color=colour, markersize=9)
            axes.plot(*self.params.goal, "k+", markersize=12)
