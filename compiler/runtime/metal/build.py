"""Device text -> Metal Shading Language, kept on disk under the key of everything that decides it. Metal itself keeps what it compiles."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ...codegen import metal, text
from ...codegen.metal.translate import translate
from ..cache import disk_cache, key_of
from ..gpu.driver import CodeImage, Texts


@cache
def _translator() -> str:
    """The sources of the translator: what it makes is good until they change."""
    folders = [Path(m.__file__).parent for m in (text, metal) if m.__file__]
    return key_of(*(p.read_text(encoding="utf-8") for folder in folders for p in sorted(folder.glob("*.py"))))


def build(texts: Texts, keep: bool = True) -> CodeImage:
    """The source of a kernel's device functions.

    Args:
        texts: of the kernel.
        keep: look on the disk, and keep what was made there.

    Raises:
        QdrunRuntimeError: something in the text has no translation; names the kernel.
    """
    key = key_of("metal source 1", texts.device, _translator())
    disk = disk_cache() if keep else None
    found = disk.get(key) if disk else None
    if found is not None:
        return CodeImage(found[0], key, True)
    source = translate(texts.device, texts.name).encode()
    if disk:
        disk.put(key, source, {"name": texts.name})
    return CodeImage(source, key, False)
