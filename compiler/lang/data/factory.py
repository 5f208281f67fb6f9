"""Makes fields, ndarrays and tensors for the types that offer them as methods: ``qd.Vector.field``, ``vec3.ndarray``."""

from __future__ import annotations

from typing import Any

from ...ir.types import DType
from .field import Field
from .make_field import make_field
from .ndarray import Ndarray, make_ndarray
from .struct import StructType
from .struct_field import StructField, make_struct_field
from .tensor import Tensor, make_tensor


class Factory:
    """See ``program.factory.TensorFactory``."""

    def field(self, dtype: DType, shape: Any, element: tuple[int, ...], **how: Any) -> Field:
        return make_field(dtype, shape, element, **how)

    def ndarray(self, dtype: DType, shape: Any, element: tuple[int, ...], **how: Any) -> Ndarray:
        return make_ndarray(dtype, shape, element, **how)

    def tensor(self, called: str, dtype: DType, element: tuple[int, ...], shape: Any, **how: Any) -> Tensor:
        return make_tensor(called, dtype, element, shape, **how)

    def struct_field(self, form: StructType, shape: Any, **how: Any) -> StructField:
        return make_struct_field(form, shape, **how)
