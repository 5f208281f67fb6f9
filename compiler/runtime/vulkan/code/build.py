"""Device text -> SPIR-V, kept on disk under the key of everything that decides it: the text, the device's features, the translator."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from ....codegen import spirv, text
from ....codegen.spirv.features import Features
from ....codegen.spirv.translate import translate
from ...cache import disk_cache, key_of
from ...gpu.driver import CodeImage, Texts
from ..kind import chip_of
from .pipelines import pack


@cache
def _translator() -> str:
    """The key of the translator: of its source, so that no change of it can be forgotten."""
    h = hashlib.sha256()
    for package in (text, spirv):
        for file in sorted(Path(str(package.__file__)).parent.glob("*.py")):
            h.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return h.hexdigest()


def build(texts: Texts, features: Features, keep: bool) -> CodeImage:
    """SPIR-V of a kernel's device functions, and the facts about them, as ``pipelines.SpirvImage`` reads them.

    Args:
        texts: of the kernel.
        features: of the device.
        keep: look on the disk, and keep what was made there.

    Raises:
        QdrunError: the device lacks what the kernel needs; names the kernel and the feature.
    """
    key = key_of("vulkan image 1", texts.device, chip_of(features), str(keep), _translator())
    disk = disk_cache() if keep else None
    found = disk.get(key) if disk else None
    if found is not None:
        return CodeImage(found[0], key, True)
    made = pack(translate(texts.device, features), keep)
    if disk:
        disk.put(key, made, {"name": texts.name, "features": chip_of(features)})
    return CodeImage(made, key, False)
