"""``qd.ad``: automatic differentiation over several launches."""

from __future__ import annotations

from .checkpointed_steps import checkpointed_steps, steps_bytes
from .custom import grad_for, grad_replaced, no_grad
from .forward_mode import FwdMode
from .gradient_arrays import SNodeGradType, clear_all_gradients
from .steps_plan import StepsPlan, plan_steps
from .tape import Tape

__all__ = [
    "FwdMode",
    "SNodeGradType",
    "StepsPlan",
    "Tape",
    "checkpointed_steps",
    "clear_all_gradients",
    "grad_for",
    "grad_replaced",
    "no_grad",
    "plan_steps",
    "steps_bytes",
]
