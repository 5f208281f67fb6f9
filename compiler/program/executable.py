"""A compiled kernel in one program: its launch context, and its launches."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..codegen.abi import (
    CTX_LAUNCHES,
    CTX_POOL,
    CTX_RET,
    CTX_SEED,
    CTX_STATUS,
    CTX_STATUS_DEVICE,
    CTX_TMP,
    CTX_TMP_DUAL,
    CTX_TMP_GRAD,
    CTX_WEIGHT,
    STATUS_WORDS,
)
from ..compile.pipeline import device_input
from ..errors import QdrunError, QdrunRuntimeError
from ..ir.nodes import Buffer, Loop
from ..ir.threads import Living
from ..runtime.base import Allocation
from ..runtime.cpu.device import register_context, unregister_context
from ..runtime.native.launch import NativeLaunch, Packed, make_launch
from ..runtime.status import error_of, raise_status, take_status
from ..tape.heap_plan import HeapPlan
from .call import Call

if TYPE_CHECKING:
    from ..compile.lazy_kernel import LazyKernel
    from .recording import Recording
    from .state import ProgramState


def words_of(memory: Allocation) -> np.ndarray:
    """The 8-byte words of memory of the host."""
    return memory.view.view(np.uint64)


class Executable:
    """A compiled kernel in one program, with the context that its launches share.

    ``owners``: the program's memory behind each of the kernel's field buffers.
    """

    def __init__(self, program: ProgramState, lazy: LazyKernel, owners: Mapping[Buffer, Allocation]) -> None:
        kernel = lazy.head
        self.program, self.name, self.args, self.draws = program, kernel.name, kernel.args, lazy.draws
        self.last_seed: int | None = None  # of the last launch, when it draws random numbers
        self._set: HeapPlan | None = None  # of a gradient: the plan whose parameters are in the context
        self.compiled, self.owners, self.written = lazy.compiled(program.device), owners, lazy.written
        self.lazy = lazy
        self.returns = kernel.returns
        if program.batch.layout.batched:
            options = program.options  # code is kept beyond its program, which it must not hold
            program.device.keep_source(self.compiled, lambda: device_input(lazy.kernel, options, nested=False))
        layout = self.compiled.layout
        self._memory: list[Allocation] = []
        self.closed, self.users = False, Living[object]()  # recordings, whose graphs need its context
        copies = program.batch.layout.padded  # of what each trial has its own
        tmps = {
            CTX_TMP: len(kernel.tmps),
            CTX_TMP_GRAD: sum(p.grad is not None for p in kernel.tmps) and len(kernel.tmps),
            CTX_TMP_DUAL: len(kernel.tmps) if "tmp_dual" in lazy.kinds else 0,
        }
        if program.replay.running:  # before anything is allocated
            words = layout.words + STATUS_WORDS + copies * (len(kernel.returns) + sum(tmps.values()))
            program.heap.refuse_over_budget(f"a gradient launches `{self.name}`, which needs {8 * words:,} bytes", 8 * words)
        self.context = words_of(self._host_words(layout.words))
        status = self._host_words(STATUS_WORDS)
        self._status = words_of(status)
        if program.pending is not None:
            program.pending.enter(self, self._status)
        returned = self._host_words(len(kernel.returns) * copies)
        self._returned = words_of(returned)
        self.context[CTX_STATUS], self.context[CTX_STATUS_DEVICE] = status.ptr, status.device_ptr
        self.context[CTX_RET] = returned.device_ptr
        for word, n in tmps.items():
            self._memory.append(program.allocate(8 * n * copies, "temporaries"))
            self.context[word] = self._memory[-1].ptr
        self.context[CTX_POOL] = program.device.pool_address
        for buffer, word in layout.buffers.items():
            self.context[word] = owners[buffer].ptr
        program.batch.enter(self, self.context, layout.params, status.device_ptr)
        self.context_address = self.context.ctypes.data
        self.status_address = self._status.ctypes.data
        program.device.fill_context(self.context, self.compiled)
        self._entry = program.timed(self, program.device.entry(self.compiled))
        shares = kernel.returns or kernel.tmps or lazy.draws or self.compiled.messages or self.compiled.ordered
        self.shares = (
            bool(shares) or not program.device.on_host
        )  # memory of its launches; a GPU's kernels have scratch memory in common
        # Seeds are drawn in Python, and there what a queue returns is waited for; an interpreter is no machine code.
        waits = self.returns and not program.device.on_host
        self.native = not (waits or self.draws or program.profiler) and program.device.native
        self.passed_over = 0  # calls in Python since other launches took the room of a native one
        self.refused = 0  # calls that could not be launched natively
        register_context(self.context_address, self.compiled)
        self._unregister = weakref.finalize(self, unregister_context, self.context_address)
        program.data.enter(self.context, owners, lazy.stores)

    def _seed(self) -> int:
        """The seed of the random numbers of a launch."""
        return self.program.seeds.draw()

    def _host_words(self, n: int) -> Allocation:
        """Words that the host reads and writes."""
        self._memory.append(self.program.host_words(n, "context"))
        return self._memory[-1]

    def launch(self, call: Call) -> None:
        """Run once and raise what the kernel reported.

        Raises:
            QdrunAssertionError: an assert or a bounds check failed.
            AdStackOverflow: a loop ran further than its adstack was planned for.
        """
        self._usable()
        recording, device = self.program.recording, self.program.device
        if recording is not None:
            recording.launching(self, call)
        if self.draws:
            self._draw(recording)
        call.words[0:8] = self.context_address.to_bytes(8, "little")
        if recording is not None:
            recording.add(self, self._set, self.program.replay.place, call)
            if device.records:  # else its driver records what it is given
                self.context[CTX_LAUNCHES] += 1  # what it stores to is not what it was for plans
                return
        with self.program.admission.running(), call.provided(self.written):
            buffer = (ctypes.c_char * len(call.words)).from_buffer(call.words)
            try:
                self._entry(ctypes.addressof(buffer))
            finally:
                if not device.native:  # machine code counts its own launches
                    self.context[CTX_LAUNCHES] += 1
        if device.ahead:
            self.program.admission.launched(int(self.context[CTX_WEIGHT]))
        for number, copy_back in call.after:
            if number in self.written:
                copy_back()
        if self.program.pending is not None and self.program.options.debug:
            self.program.device.synchronize()  # an error is raised by the launch that failed
        if self._status[0]:
            self._on_status()

    def _draw(self, recording: Recording | None) -> None:
        """Give the next launch the seed of its random numbers."""
        if recording is not None:
            recording.drawing(self)
        made = self.program.seeds.drawn
        self.last_seed = self.program.seeds.last = self._seed()
        self.context[CTX_SEED] = self.last_seed
        if recording is not None:
            recording.drawn(self, self.last_seed, fresh=self.program.seeds.drawn > made)

    def _usable(self) -> None:
        if self.program.batch.open is not None:
            raise QdrunRuntimeError(
                f"kernel `{self.name}` is launched inside of `with program.trial({self.program.batch.open}):`, and a launch runs all trials"
                "\n  do: launch it after the block"
            )
        if self.program.admission.closed:
            raise QdrunRuntimeError(
                f"kernel `{self.name}` belongs to a program that is closed; do: qd.init() and make the fields again"
            )
        if self.program.device.dead:  # a forked child cannot even touch the context
            self.program.device.synchronize()

    def native_launch(
        self, args: Sequence[Packed], owner: object, answer: Callable[[], object] | None = None
    ) -> NativeLaunch | None:
        """A native launch, or None: there are too many arguments. ``args``: how each is taken; ``owner``: see ``NativeLaunch``;
        ``answer``: see ``make_launch``.
        """
        program, device = self.program, self.program.device
        return make_launch(
            *(self.compiled, self.context_address, args, self._report, ctypes.addressof(program.admission.flags), self),
            state_ptr=ctypes.addressof(program.admission.state),
            shares=self.shares,
            keep_gil=bool(device.ahead),
            ahead=device.ahead,
            on_ahead=device.throttle,
            answer=answer,
            **self._guarded(),
        )

    def _guarded(self) -> dict[str, Any]:
        """The guard of a native launch, as ``make_launch`` takes it."""
        return {}

    @property
    def takes_numpy(self) -> bool:
        """Whether native launches take numpy arrays as they are. ``arrays.check_memory`` looks at arrays where memory was handed out, and
        a device with memory of its own needs copies of them.
        """
        return self.program.device.on_host and not any(map(self.program.arrays.was_shown, self.owners.values()))

    @property
    def takes_arrays(self) -> bool:
        """Whether an argument is an array."""
        return any(d.kind == "ndarray" for d in self.args)

    def held(self) -> dict[str, int]:
        """Bytes that it keeps in the program: ``context`` and ``temporaries``."""
        out = {"context": 0, "temporaries": 0}
        for allocation in self._memory:
            out[allocation.category] += allocation.nbytes
        return out

    def uses(self, memory: Allocation) -> bool:
        """Whether a field of the kernel lies in this memory."""
        return any(m.serial == memory.serial for m in self.owners.values())

    def _report(self) -> None:
        """Raise what a native launch has reported."""
        try:
            self._on_status()
        except QdrunError as error:
            self.program.launch_failed(self.name, error)
            raise

    def _on_status(self) -> None:
        self.program.device.reported()
        code = int(self._status[:1].view(np.int64)[0])
        if code < 0:
            take_status(self.status_address)
            raise self.program.device.launch_error(-code, self.name)
        self.program.batch.report(self)

    def raise_message(self) -> None:
        raise_status(self.compiled, self.status_address, self._capacity)

    def error_of(self, code: int, values: Sequence[int]) -> QdrunError:
        """The error of a message of the kernel; ``values``: the words of its first operands."""
        return error_of(self.compiled, code, values, self._capacity)

    def take_status(self) -> bool:
        return bool(self._status[0]) and bool(take_status(self.status_address)[0])

    def raise_status(self, plan: HeapPlan | None = None) -> None:
        """Raise what the status record says. ``plan``: of the launch, where it was not the last one that was planned."""
        was, self._set = self._set, plan or self._set
        try:
            self._on_status()
        finally:
            self._set = was

    def _capacity(self, loop: Loop) -> str | None:
        return None

    def returned(self) -> list[Any]:
        """The scalars that the last launch returned; in a batched program, of each an array of the trials' values."""
        if self.returns:
            self.program.device.synchronize()
        layout = self.program.batch.layout
        if layout.batched:
            whole = [
                layout.view(self._returned.view(np.uint8), d.numpy, 8 * len(self.returns), 8 * k, (), ())
                for k, d in enumerate(self.returns)
            ]
            return [x.reshape(-1)[: layout.count].copy() for x in whole]
        return [read() for read in self._readers()]

    def reader(self) -> Callable[[], Any] | None:
        """A function that reads what the last launch returned; None: that is several scalars, or an array of trials."""
        return self._readers()[0] if len(self.returns) == 1 and not self.program.batch.layout.batched else None

    def _readers(self) -> list[Callable[[], Any]]:
        """Functions that read the scalars that the last launch of a program without trials returned."""
        return [self._returned[k : k + 1].view(np.uint8)[: d.size].view(d.numpy).item for k, d in enumerate(self.returns)]

    def close(self) -> None:
        """Give the context back. The device has done all that was launched with it."""
        if not self.closed:
            self.closed, program = True, self.program
            self._unregister()
            program.data.leave(self.context)
            program.batch.leave(self)
            if program.pending is not None:
                program.pending.leave(self)
            for allocation in self._memory:
                program.device.free(allocation)
