"""``qd.init``: makes a program."""

from __future__ import annotations

from typing import Any

from ..options import Arch, arch_of, make_options
from ..program.devices import usable_arch
from ..program.program import Program
from .data.factory import Factory


def init(arch: Arch | str | None = None, default_fp: Any = None, default_ip: Any = None, **options: Any) -> Program:
    """Make a program and make it current in this thread.

    Args:
        arch: the backend: ``qd.cpu``, ``qd.cuda``, ``qd.amdgpu``, ``qd.gpu`` (a GPU, or with a ``RuntimeWarning`` the CPU where none can
            be used), or ``qd.python`` for the reference interpreter (slow; has ``breakpoint()``). None: the CPU.
        default_fp: the type of a real literal, ``qd.f32`` (the default) or ``qd.f64``.
        default_ip: the type of an integer literal, ``qd.i32`` (the default) or ``qd.i64``.
        options: see ``Options``. ``enable_fallback=True`` runs on the CPU where the GPU that ``arch`` names cannot be used, with a
            ``RuntimeWarning``; False refuses it for ``qd.gpu``, too. It means nothing beside ``device=``.

    Raises:
        KeyError: an unknown option.
        QdrunRuntimeError: a value that is not allowed, or a backend that there is not.
    """
    wanted = arch_of(arch)
    chosen = make_options({"default_fp": default_fp, "default_ip": default_ip, **options})
    fallback = options.get("enable_fallback") if chosen.device is None or wanted is Arch.gpu else None
    return Program(usable_arch(wanted, fallback), chosen, Factory()).activate()
