"""Less work for LLVM in tests: what it has made is kept, and most kernels are compiled without its long optimisation."""

import functools
import zlib
from pathlib import Path

from qdrun.compiler.runtime import cache, jit


class KeptCode:
    """Stands for ``runtime.jit`` in the cache of compiled kernels: what LLVM has made of a text, it need not make again in another run.

    Tests that want no cache (``offline_cache=False``) lower their kernels again and look at nothing that was kept; that the same text
    becomes the same bytes is what their second half takes most of its time for. ``jit.compile_text`` itself always compiles.

    Only ``one_in`` so many texts is optimised, by its own checksum; the others are compiled at level 0, in a seventh of the time.
    No text lets LLVM change a rounding, so that both levels give the same bits. A test that changes ``jit.PIPELINES`` has all optimised.
    """

    one_in = 1

    def __init__(self):
        self._compile = jit.compile_text
        self._key = functools.partial(
            cache.key_of, Path(jit.__file__).read_text(encoding="utf-8"), jit.versions(), repr(jit.host())
        )
        self._usual = jit.PIPELINES
        self._disk = cache.DiskCache(cache.cache_dir() / "kept")

    def __getattr__(self, name):
        return getattr(jit, name)

    def versions(self):
        """A part of the keys of cached code: processes that tests start are not given what was compiled quickly."""
        return jit.versions() + ", some quick" * (self.one_in > 1)

    def compile_text(self, text, name, opt_level=2):
        if jit.compile_text is not self._compile:  # a test looks at what is compiled
            return jit.compile_text(text, name, opt_level)
        if jit.PIPELINES == self._usual and zlib.crc32(text.encode()) % self.one_in:
            opt_level = 0
        key = self._key(text, str(opt_level), repr(jit.PIPELINES))
        found = self._disk.get(key)
        if found is None:
            found = self._compile(text, name, opt_level), {}
            self._disk.put(key, *found)
        return found[0]


KEPT = KeptCode()


def keep(one_in):
    """From now on this process takes machine code from there, of which one kernel in so many is optimised."""
    KEPT.one_in = one_in
    cache.jit = KEPT
