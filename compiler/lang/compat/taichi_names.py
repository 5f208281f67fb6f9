"""Names of Taichi 1.7 that Quadrants dropped, for programs that import Taichi by name (``imports``)."""

from __future__ import annotations

from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

from ... import errors
from ...options import FOREIGN_ARCHS
from ...program.program import Program
from ...refused import Refused
from ..init import init as _init
from . import report, taichi_graphs, taichi_profiler, tools
from .names import real_func
from .taichi_inner import usable
from .windows import ui
from .windows.drawing import hex_to_rgb, rgb_to_hex
from .windows.gui import GUI

ONLY_TAICHI = frozenset(
    "allow_nv_shader_extension cpu_block_dim_adaptive gpu_max_reg lower_access packed simplify_after_lower_access"
    " simplify_before_lower_access use_llvm verbose_kernel_launches".split()
)
"""Options of ``ti.init`` that mean nothing here, besides those of Quadrants."""


def init(arch: Any = None, default_fp: Any = None, default_ip: Any = None, **options: Any) -> Program:
    """``qd.init`` without the options that only Taichi has. As there, the CPU stands in for a GPU that cannot be used, with a warning."""
    options.setdefault("enable_fallback", True)
    made = _init(arch, default_fp, default_ip, **{k: v for k, v in options.items() if k not in ONLY_TAICHI})
    return report.took(arch, made)


_lib = ModuleType("taichi._lib", "What programs ask of Taichi's core: which backends there are, and whether windows are.")
_lib.core = SimpleNamespace(  # type: ignore[attr-defined]
    **{f"with_{arch}": partial(usable, arch) for arch in ("cuda", "vulkan", "metal", "amdgpu", "opengl")},
    GGUI_AVAILABLE=True,
)

NAMES: dict[str, Any] = {
    **{arch: arch for arch in FOREIGN_ARCHS},
    "init": init,
    "_lib": _lib,
    "graph": taichi_graphs,
    "profiler": taichi_profiler.MODULE,
    "experimental": SimpleNamespace(real_func=real_func),
    **{f"tools.{part}": tools for part in ("image", "np2ply", "video", "vtk")},
    **{"GUI": GUI, "ui": ui, "rgb_to_hex": rgb_to_hex, "hex_to_rgb": hex_to_rgb},
    **{
        f"Taichi{kind}Error": getattr(errors, f"Qdrun{kind}Error")
        for kind in "Assertion Compilation Index Name Runtime RuntimeType Syntax Type".split()
    },
    **{name: Refused(name) for name in ("Texture", "aot")},
}
