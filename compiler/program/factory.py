"""Creates fields and ndarrays for the types of the language, which this module does not import."""

from __future__ import annotations

from typing import Any, Protocol

from ..ir.types import DType


class TensorFactory(Protocol):
    """Makes fields, ndarrays and tensors in the current program."""

    def field(self, dtype: DType, shape: Any, element: tuple[int, ...], **how: Any) -> Any:
        """A field; ``how``: the keywords of ``qd.field``."""
        ...

    def ndarray(self, dtype: DType, shape: Any, element: tuple[int, ...], **how: Any) -> Any:
        """An ndarray; ``how``: the keywords of ``qd.ndarray``."""
        ...

    def tensor(self, called: str, dtype: DType, element: tuple[int, ...], shape: Any, **how: Any) -> Any:
        """A tensor; ``how``: the keywords of ``qd.tensor``. ``called``: the function that the user called."""
        ...

    def struct_field(self, form: Any, shape: Any, **how: Any) -> Any:
        """A field of structs; ``how``: the keywords of ``StructType.field``."""
        ...
