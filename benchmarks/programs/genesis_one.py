"""Runs one case of Genesis' kernels: ``python genesis_one.py SIDE CLONE CASE STEPS OUT``. SIDE is qdrun or quadrants.

A case builds a solver on seeded random numbers and runs its own sub-steps. What its fields hold then, and the CPU seconds of the
first step and of the later ones, go to OUT (a pickle).
"""

from __future__ import annotations

import pickle
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import itertools

import genesis_stubs as stubs

Step = Callable[[int], None]
Case = Callable[[Any, np.random.Generator], tuple[Any, Step]]


def common(solver: Any, qd: Any, n: int, dt: float, size: float = 0.02) -> None:
    """What Genesis' base class and its simulator give to every solver: two environments."""
    solver._B, solver._substep_dt, solver._ffs, solver._entities, solver._n_particles = 2, dt, [], [], n
    solver._sim = SimpleNamespace(cur_t=0.0, substeps_local=8, rigid_solver=SimpleNamespace(is_active=False), _B=2)
    solver._coupler = SimpleNamespace(_rigid_sph=False)
    solver._particle_size = size
    solver._gravity = qd.Vector.field(3, qd.f64, shape=2)
    solver._gravity.from_numpy(np.array([[0, 0, -9.81], [0.5, 0, -3.0]]))


def lattice(n: tuple[int, int, int], spacing: float, low: float, rng: np.random.Generator) -> np.ndarray:
    """Points of a cube, each moved by up to a tenth of the spacing."""
    points = np.stack(np.meshgrid(*map(np.arange, n), indexing="ij"), -1).reshape(-1, 3)
    return low + spacing * (points + rng.uniform(-0.1, 0.1, points.shape))


def fluid(solver: Any, points: np.ndarray) -> None:
    """The particles of SPH: a hash grid, active particles in both environments."""
    solver.sh.build(2)
    solver.init_particle_fields()
    solver.particles.pos.from_numpy(np.repeat(points[:, None], 2, 1))
    solver.particles_ng.active.fill(1)


def sph(qd: Any, rng: np.random.Generator, pressure: str) -> tuple[Any, Step]:
    """The fluid solver, by state equation or by DFSPH with its two iterations."""
    from genesis.engine.solvers.sph_solver import SPHSolver

    points = lattice((10, 10, 12), 0.02, 0.1, rng)
    box = {"upper_bound": (0.6, 0.6, 0.6), "lower_bound": (0.08, 0.08, 0.08)}
    options = SimpleNamespace(particle_size=0.02, _support_radius=0.04, pressure_solver=pressure, max_divergence_error=0.1)
    options.__dict__.update({"max_density_error_percent": 0.05, "max_divergence_solver_iterations": 20, **box})
    options.__dict__.update({"max_density_solver_iterations": 20, "hash_grid_cell_size": 0.04, "_hash_grid_res": (20, 20, 20)})
    solver = SPHSolver(None, None, options)
    common(solver, qd, len(points), 4e-4)
    fluid(solver, points)
    for name, value in {
        "rho": 1000.0,
        "mass": 0.8 * 0.02**3 * 1000,
        "stiffness": 5e4,
        "exponent": 7.0,
        "mu": 0.005,
        "gamma": 0.01,
    }.items():
        getattr(solver.particles_info, name).fill(value)
    solver._density0 = 1000.0
    solver.particles.vel.from_numpy(rng.normal(0, 0.1, (len(points), 2, 3)))
    return solver, lambda f: (solver.substep_pre_coupling(f), solver.substep_post_coupling(f))[0]


def pbd(qd: Any, rng: np.random.Generator) -> tuple[Any, Step]:
    """Positions: a cloth (stretch, bending), a block of tetrahedra (volume), a liquid (density, viscosity), and their collisions."""
    from genesis.engine.solvers.pbd_solver import PBDSolver

    side = 12
    cloth = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), -1).reshape(-1, 2) * 0.02
    cloth = np.c_[cloth + 0.2, np.full(len(cloth), 0.36)] + rng.uniform(-1e-3, 1e-3, (len(cloth), 3))
    block, liquid = lattice((5, 5, 5), 0.03, 0.2, rng), lattice((8, 8, 8), 0.018, 0.4, rng)
    points = np.concatenate([cloth, block, liquid])
    options = SimpleNamespace(particle_size=0.02, hash_grid_cell_size=0.025, _hash_grid_res=(40, 40, 40))
    options.__dict__.update(
        {f"max_{name}_solver_iterations": 2 for name in ("stretch", "bending", "volume", "density", "viscosity")}
    )
    options.__dict__.update({"upper_bound": (1.0, 1.0, 1.0), "lower_bound": (0.05, 0.05, 0.15)})
    PBDSolver._particle_size = 0.02
    scene = SimpleNamespace(vis_options=SimpleNamespace(n_support_neighbors=4))
    solver = PBDSolver.__new__(PBDSolver)
    solver.scene, solver._particle_size = scene, 0.02
    solver.__init__(scene, None, options)
    common(solver, qd, len(points), 2e-3)

    def at(i: int, j: int) -> int:
        return i * side + j

    cells = [(i, j) for i in range(side - 1) for j in range(side - 1)]
    edges = [(at(i, j), at(i + 1, j)) for i in range(side - 1) for j in range(side)]
    edges += [(at(i, j), at(i, j + 1)) for i in range(side) for j in range(side - 1)] + [
        (at(i + 1, j), at(i, j + 1)) for i, j in cells
    ]
    bends = [(at(i + 1, j), at(i, j + 1), at(i, j), at(i + 1, j + 1)) for i, j in cells]

    def corner(i: int, j: int, k: int) -> int:
        return len(cloth) + 25 * i + 5 * j + k

    cubes = [(i, j, k) for i in range(4) for j in range(4) for k in range(4)]
    tets = [(corner(i, j, k), corner(i + 1, j, k), corner(i, j + 1, k), corner(i, j, k + 1)) for i, j, k in cubes]
    solver._n_edges, solver._n_inner_edges, solver._n_elems = len(edges), len(bends), len(tets)
    fluid_fields(solver, points)
    set_graph(
        solver.edges_info,
        edges,
        2,
        len_rest=np.array([np.linalg.norm(points[a] - points[b]) for a, b in edges]),
        stretch_compliance=1e-7,
        stretch_relaxation=0.3,
    )
    set_graph(solver.inner_edges_info, bends, 4, bending_compliance=1e-5, bending_relaxation=0.1)
    volumes = [np.dot(points[b] - points[a], np.cross(points[c] - points[a], points[d] - points[a])) / 6 for a, b, c, d in tets]
    set_graph(solver.elems_info, tets, 4, vol_rest=np.array(volumes) * 1.1, volume_compliance=1e-8, volume_relaxation=0.1)
    kind = np.r_[np.zeros(len(cloth)), np.ones(len(block)), np.full(len(liquid), 2)].astype(np.int32)
    solver.particles_info.material_type.from_numpy(kind)
    return solver, lambda f: (solver.substep_pre_coupling(f), solver.substep_post_coupling(f))[0]


def fluid_fields(solver: Any, points: np.ndarray) -> None:
    """The particles of PBD."""
    solver.sh.build(2)
    solver.init_particle_fields()
    solver.init_edge_fields()
    solver.init_elem_fields()
    solver.particles.pos.from_numpy(np.repeat(points[:, None], 2, 1))
    solver.particles_info.pos_rest.from_numpy(points)
    solver.particles_ng.active.fill(1)
    solver.particles.free.fill(1)
    for name, value in {"mass": 0.01, "rho_rest": 1.0, "mu_s": 0.15, "mu_k": 0.1, "air_resistance": 1e-3}.items():
        getattr(solver.particles_info, name).fill(value)
    solver.particles_info.density_relaxation.fill(0.2)
    solver.particles_info.viscosity_relaxation.fill(0.01)


def set_graph(info: Any, parts: list[tuple[int, ...]], ends: int, **values: Any) -> None:
    """The points of edges or tetrahedra, and numbers of each."""
    for k in range(ends):
        getattr(info, f"v{k + 1}").from_numpy(np.array([p[k] for p in parts], np.int32))
    for name, value in values.items():
        field = getattr(info, name)
        field.from_numpy(value) if isinstance(value, np.ndarray) else field.fill(value)


def mpm(qd: Any, rng: np.random.Generator, gradient: bool = False) -> tuple[Any, Step]:
    """Material points: elastic and snow, three kernels and the grid of the coupler; with the gradient of the last positions' sum."""
    from genesis.engine.couplers.legacy_coupler import LegacyCoupler
    from genesis.engine.materials.MPM.elastic import Elastic
    from genesis.engine.solvers.mpm_solver import MPMSolver

    points = lattice((6, 6, 8), 0.02, 0.4, rng)
    options = SimpleNamespace(grid_density=32, particle_size=0.02, upper_bound=(1.0, 1.0, 1.0), lower_bound=(0.0, 0.0, 0.0))
    options.enable_CPIC = False
    scene = SimpleNamespace(vis_options=SimpleNamespace(n_support_neighbors=4))
    solver = MPMSolver.__new__(MPMSolver)
    solver.scene = scene
    solver.__init__(scene, None, options)
    common(solver, qd, len(points), 2e-4)
    solver.sim.rigid_solver.is_active = False
    materials = [Elastic(), Elastic()]
    for k, (m, model) in enumerate(zip(materials, ("corotation", "neohooken"))):
        m.mu, m.lam, m.model, m.idx = 1.2e5, 8e4, model, None
        m.model_post_init(None)
        solver._materials_idx.append(k)
        solver._materials_update_F_S_Jp.append(m.update_F_S_Jp)
        solver._materials_update_stress.append(m.update_stress)
    solver.init_particle_fields()
    solver.init_grid_fields()
    solver._kernel_add_particles(0, 1, 0, len(points), 0, 1.0, 1000.0, points)
    solver.particles_info.material_idx.from_numpy((np.arange(len(points)) % 2).astype(np.int32))
    start = np.zeros((9, len(points), 2, 3))
    start[0] = rng.normal(0, 0.5, (len(points), 2, 3))
    solver.particles.vel.from_numpy(start)
    coupler = LegacyCoupler.__new__(LegacyCoupler)
    coupler.mpm_solver, coupler.tool_solver = solver, SimpleNamespace(is_active=False)
    coupler._rigid_mpm = coupler._mpm_sph = coupler._mpm_pbd = coupler._fem_mpm = False
    nothing = (None,) * 6

    def step(f: int) -> None:
        solver.reset_grid_and_grad(f)
        solver.compute_F_tmp(f)
        solver.svd(f)
        solver.p2g(f, *nothing)
        coupler.mpm_grid_op(f, 0.0, *nothing)
        solver.g2p(f, *nothing[:3])

    def backward(f: int) -> None:
        step(f)
        if f < 3:
            return
        weights = np.zeros((9, len(points), 2, 3))
        weights[f + 1] = np.random.default_rng(5).normal(size=(len(points), 2, 3))
        solver.particles.grad.pos.from_numpy(weights)
        for t in range(f, -1, -1):
            solver.g2p.grad(t, *nothing[:3])
            coupler.mpm_grid_op.grad(t, 0.0, *nothing)
            solver.p2g.grad(t, *nothing)
            solver.svd_grad(t)
            solver.compute_F_tmp.grad(t)

    return solver, backward if gradient else step


def fem(qd: Any, rng: np.random.Generator, implicit: bool) -> tuple[Any, Step]:
    """Tetrahedra: forces and symplectic steps, or Newton with PCG and a line search."""
    from genesis.engine.materials.FEM.elastic import Elastic
    from genesis.engine.solvers.fem_solver import FEMSolver

    n = 5
    points = lattice((n, n, n), 0.05, 0.2, rng)

    def corner(i: int, j: int, k: int) -> int:
        return n * n * i + n * j + k

    tets = []
    for i, j, k in ((i, j, k) for i in range(n - 1) for j in range(n - 1) for k in range(n - 1)):
        c = [corner(i + a, j + b, k + e) for a in (0, 1) for b in (0, 1) for e in (0, 1)]
        ring = (1, 3, 2, 6, 4, 5, 1)
        tets += [(c[0], c[a], c[b], c[7]) for a, b in itertools.pairwise(ring)]
    oriented = []
    for a, b, c, d in tets:
        edges = np.stack([points[x] - points[d] for x in (a, b, c)], 1)
        oriented.append((a, b, c, d) if np.linalg.det(edges) < 0 else (b, a, c, d))
    options = SimpleNamespace(
        floor_height=0.0, damping=0.5, use_implicit_solver=implicit, n_newton_iterations=2, newton_dx_threshold=1e-6
    )
    options.__dict__.update(
        {"n_pcg_iterations": 30, "pcg_threshold": 1e-12, "n_linesearch_iterations": 2, "linesearch_c": 1e-4}
    )
    options.__dict__.update(
        {"linesearch_tau": 0.5, "damping_alpha": 0.1, "damping_beta": 1e-3, "enable_vertex_constraints": False}
    )
    solver = FEMSolver(None, None, options)
    common(solver, qd, 0, 1e-3 if implicit else 1e-4)
    solver._entities = [SimpleNamespace(n_vertices=len(points), n_elements=len(oriented), n_surfaces=1)]
    solver.tet_wrong_order = qd.field(qd.u1, shape=())
    solver.init_batch_fields()
    solver.init_element_fields()
    solver.init_surface_fields()
    material = Elastic()
    material.model, material._hessian_ready = "linear", False
    material.model_post_init(None)
    solver._mats, solver._mats_idx, solver._mats_update_stress = [material], [0], [material.update_stress]
    arrays = (points, np.array(oriented, np.int32), np.zeros((1, 3), np.int32), np.zeros(1, np.int32), np.zeros((1, 2)))
    solver._kernel_add_elements(0, 0, 4e3, 4e3, 1000.0, 0.1, 1, 0, 0, 0, *arrays)
    start = np.zeros((9, len(points), 2, 3))
    start[0] = rng.normal(0, 0.3, (len(points), 2, 3))
    solver.elements_v.vel.from_numpy(start)

    def explicit(f: int) -> None:
        solver.init_pos_and_vel(f)
        solver.compute_vel(f)
        solver.apply_uniform_force(f)
        solver.compute_pos(f)

    def newton(f: int) -> None:
        material._hessian_ready = False
        solver.init_pos_and_inertia(f)
        solver.batch_solve(f)
        solver.setup_pos_vel(f)

    return solver, newton if implicit else explicit


def smoke(qd: Any, rng: np.random.Generator) -> tuple[Any, Step]:
    """Stable fluids: advection by RK3, divergence, Jacobi's iterations, projection; one jet."""
    from genesis.engine.solvers.sf_solver import SFSolver

    @qd.data_oriented
    class Jet:
        @qd.func
        def get_tan_dir(self, t):
            return qd.Vector([qd.cos(t), qd.sin(t), 0.5], dt=qd.f64)

        @qd.func
        def get_factor(self, i, j, k, dx, t):
            return qd.exp(-((i - 10.0) ** 2 + (j - 12.0) ** 2 + (k - 4.0) ** 2) / 8.0)

    solver = SFSolver(None, None, SimpleNamespace(res=24, solver_iters=12, decay=0.1, inlet_s=50.0))
    common(solver, qd, 0, 0.02)
    solver.jets = (Jet(),)
    solver.setup_fields()
    solver.init_fields()
    solver.grid.v.from_numpy(rng.normal(0, 2.0, (24, 24, 24, 3)))
    return solver, solver.substep_pre_coupling


CASES: dict[str, Case] = {
    "sph_wcsph": lambda qd, rng: sph(qd, rng, "WCSPH"),
    "sph_dfsph": lambda qd, rng: sph(qd, rng, "DFSPH"),
    "pbd": pbd,
    "mpm": mpm,
    "mpm_gradient": lambda qd, rng: mpm(qd, rng, gradient=True),
    "fem_explicit": lambda qd, rng: fem(qd, rng, implicit=False),
    "fem_implicit": lambda qd, rng: fem(qd, rng, implicit=True),
    "smoke": smoke,
}


def arrays(solver: Any) -> dict[str, np.ndarray]:
    """Every field of a solver, and the gradients of MPM's particles."""
    found: dict[str, np.ndarray] = {}
    for name, field in vars(solver).items():
        if not callable(getattr(field, "to_numpy", None)):
            continue
        whole = field.to_numpy()
        found |= (
            {f"{name}.{k}": np.array(v, np.float64) for k, v in whole.items()}
            if isinstance(whole, dict)
            else {name: np.array(whole, np.float64)}
        )
    if hasattr(solver, "particles") and hasattr(solver, "grid"):
        found |= {f"particles.{k}.grad": np.asarray(v) for k, v in solver.particles.grad.to_numpy().items()}
    return found


def main(side: str, clone: str, case: str, steps: int, out: str) -> None:
    """Run a case."""
    if side == "qdrun":
        import qdrun.compat

        qdrun.compat.install()
    import quadrants as qd

    lanes = {"cpu_lanes": 1} if side == "qdrun" else {"log_level": "warn"}
    qd.init(arch=qd.cpu, default_fp=qd.f64, cpu_max_num_threads=1, offline_cache=False, fast_math=False, **lanes)
    stubs.install(Path(clone), qd)
    outcome: dict[str, Any] = {"status": "runs", "text": "", "arrays": {}}
    moments = [time.process_time()]
    try:
        solver, step = CASES[case](qd, np.random.default_rng(0))
        moments = [time.process_time()]
        for f in range(steps):
            step(f)
            qd.sync()
            moments.append(time.process_time())
        outcome["arrays"] = arrays(solver)
    except Exception as error:
        outcome |= {"status": "fails", "text": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    outcome["seconds"] = np.diff(moments).tolist()
    Path(out).write_bytes(pickle.dumps(outcome))
    print(outcome["status"], outcome["text"][:2000], outcome.get("trace", "")[-1500:])


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]), sys.argv[5])
