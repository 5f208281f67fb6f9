"""The package ``vulkan``, of which the declarations alone are used: functions of the loader, and structures that stay alive.

The package's own wrappers free structures that are nested in a call before the call reads them. Here every structure belongs to a
``Structures``, which lives at least as long as the call.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from ...errors import DeviceError
from .results import OUT_OF_DEVICE_MEMORY, OUT_OF_HOST_MEMORY, device_error

_INSTALL_PACKAGE = "pip install 'vulkan>=1.3' (the extra `vulkan` of qdrun)"
_INSTALL_LOADER = "install the Vulkan loader (Debian, Ubuntu: libvulkan1) and the GPU's driver"
_VERSION = re.compile(r"VULKAN_(\d)(\d)")
_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class VulkanLoader:
    """The loader's functions.

    Attributes:
        ffi: makes C data.
        lib: the functions that the loader exports; each releases the interpreter's lock while it runs.
    """

    def __init__(self, package: Any) -> None:
        self._package = package
        self.ffi: Any = package.ffi
        self.lib: Any = package.lib
        self._types: dict[str, int | None] = {}

    def constant(self, name: str) -> int:
        """A constant of Vulkan. ``name``: without ``VK_``."""
        return int(getattr(self._package, f"VK_{name}"))

    def type_of(self, kind: str) -> int | None:
        """The number that a structure begins with; None if it has none. ``kind``: its name."""
        if kind not in self._types:
            name = "_".join(_WORDS.split(kind.removeprefix("Vk"))).upper()
            has = self.ffi.typeof(kind).fields[0][0] == "sType"
            self._types[kind] = self.constant("STRUCTURE_TYPE_" + _VERSION.sub(r"VULKAN_\1_\2", name)) if has else None
        return self._types[kind]

    def text(self, raw: Any) -> str:
        """What C has as text."""
        return self.ffi.string(raw).decode(errors="replace")

    def number(self, handle: Any) -> int:
        """A handle, or an address, as a number."""
        return int(self.ffi.cast("uintptr_t", handle))

    def check(self, code: int, doing: str, detail: str = "") -> None:
        """Raise what a function has returned, if that is a failure.

        Raises:
            DeviceError: names what was tried.
        """
        if code < 0:
            raise device_error(-code, doing, f"VkResult {code}" if -code > 1000 else "", detail)

    def check_memory(self, code: int, doing: str) -> None:
        """The same of a function that allocates: also where the host's memory is used up, the device is full."""
        self.check(-OUT_OF_DEVICE_MEMORY if code == -OUT_OF_HOST_MEMORY else code, doing)


class Structures:
    """Makes C structures and arrays. They live as long as this object, and so does what they point to."""

    def __init__(self, library: VulkanLoader) -> None:
        self.library, self._kept = library, list[Any]()

    def __call__(self, kind: str, **fields: Any) -> Any:
        """A pointer to a new structure, whose other fields are zero. Its type is filled in."""
        number = self.library.type_of(kind)
        made = self.library.ffi.new(f"{kind}*", fields if number is None else {"sType": number, **fields})
        self._kept += [made, *fields.values()]
        return made

    def array(self, kind: str, items: Any) -> Any:
        """A new array, of items or of so many zeros. ``kind``: of an item."""
        made = self.library.ffi.new(f"{kind}[]", items)
        self._kept += [made, items]
        return made

    def texts(self, names: list[str]) -> Any:
        """An array of texts, NULL if there are none."""
        return self.array("char*", [self.array("char", n.encode()) for n in names]) if names else self.library.ffi.NULL

    def chain(self, *kinds: str) -> list[Any]:
        """Structures of which each points to the next one."""
        made: list[Any] = []
        for kind in reversed(kinds):
            made.insert(0, self(kind, pNext=made[0] if made else self.library.ffi.NULL))
        return made


@cache
def library() -> VulkanLoader:
    """The package and the loader.

    Raises:
        DeviceError: one of them is not installed; says which.
    """
    try:
        import vulkan
    except ImportError as e:
        raise DeviceError(
            f"Vulkan cannot be used: the package `vulkan` is not installed for this Python ({e})\n  do: {_INSTALL_PACKAGE}"
        ) from None
    except OSError as e:
        raise DeviceError(f"Vulkan cannot be used: its loader was not found on this machine\n  do: {_INSTALL_LOADER}") from e
    if not hasattr(vulkan, "ffi"):
        raise DeviceError(
            f"Vulkan cannot be used: another module is called `vulkan` ({getattr(vulkan, '__file__', None)})"
            f"\n  do: rename it, or {_INSTALL_PACKAGE}"
        )
    return VulkanLoader(vulkan)
