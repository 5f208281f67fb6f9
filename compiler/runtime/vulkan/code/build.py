"""Device text -> SPIR-V, kept on disk under the key of everything that decides it: the text, the device's features, the translator."""

from __future__ import annotations

from ....codegen import spirv, text
from ....codegen.spirv.features import Features
from ....codegen.spirv.translate import translate
from ...cache import kept, key_of, source_key
from ...gpu.driver import CodeImage, Texts
from ..kind import chip_of
from .pipelines import pack


def build(texts: Texts, features: Features, keep: bool) -> CodeImage:
    """SPIR-V of a kernel's device functions, and the facts about them, as ``pipelines.SpirvImage`` reads them.

    Args:
        texts: of the kernel.
        features: of the device.
        keep: look on the disk, and keep what was made there.

    Raises:
        QdrunError: the device lacks what the kernel needs; names the kernel and the feature.
    """
    key = key_of("vulkan image 1", texts.device, chip_of(features), str(keep), source_key(text.__file__, spirv.__file__))
    header = {"name": texts.name, "features": chip_of(features)}
    image, known = kept(key, lambda: pack(translate(texts.device, features), keep), header, keep)
    return CodeImage(image, key, known)
