"""``qd.ad``: automatic differentiation over several launches."""

from __future__ import annotations

from ...program.plans.gradient_paths import GradientPath
from .custom import grad_for, grad_replaced, no_grad
from .forward_mode import FwdMode
from .gradient_arrays import SNodeGradType, clear_all_gradients
from .implicit.fixed_point import FixedPoint, fixed_point
from .products.hessian import HessianProduct, hvp, hvp_plan
from .products.jacobian import VectorProduct, jacobian, jvp, vjp
from .tape import Tape
from .time_steps.checkpointed_steps import checkpointed_steps, steps_bytes
from .time_steps.steps_plan import StepsPlan, plan_steps

__all__ = [
    "FixedPoint",
    "FwdMode",
    "GradientPath",
    "HessianProduct",
    "SNodeGradType",
    "StepsPlan",
    "Tape",
    "VectorProduct",
    "checkpointed_steps",
    "clear_all_gradients",
    "fixed_point",
    "grad_for",
    "grad_replaced",
    "hvp",
    "hvp_plan",
    "jacobian",
    "jvp",
    "no_grad",
    "plan_steps",
    "steps_bytes",
    "vjp",
]
