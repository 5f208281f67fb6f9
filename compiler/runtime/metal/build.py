"""Device text -> Metal Shading Language, kept on disk under the key of everything that decides it. Metal itself keeps what it compiles."""

from __future__ import annotations

from ...codegen import metal, text
from ...codegen.metal.translate import translate
from ..cache import kept, key_of, source_key
from ..gpu.driver import CodeImage, Texts


def build(texts: Texts, keep: bool = True) -> CodeImage:
    """The source of a kernel's device functions.

    Args:
        texts: of the kernel.
        keep: look on the disk, and keep what was made there.

    Raises:
        QdrunRuntimeError: something in the text has no translation; names the kernel.
    """
    key = key_of("metal source 1", texts.device, source_key(text.__file__, metal.__file__))
    source, known = kept(key, lambda: translate(texts.device, texts.name).encode(), {"name": texts.name}, keep)
    return CodeImage(source, key, known)
