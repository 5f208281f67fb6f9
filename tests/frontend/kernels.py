"""Lower a Python function and run it with the reference interpreter, with its exits and without."""

import numpy as np

from qdrun.compiler.frontend.lower import lower
from qdrun.compiler.frontend.signature import ArrayArg, LowerOptions, MatrixArg, ScalarArg, TemplateArg
from qdrun.compiler.frontend.source.parse import read_function
from qdrun.compiler.frontend.values.tensor import TensorRef
from qdrun.compiler.ir.nodes import Buffer, Place
from qdrun.compiler.ir.printer import print_kernel
from qdrun.compiler.ir.types import f32, from_numpy, i32
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.ir.walk import kernel_buffers
from qdrun.compiler.passes.exits import lower_exits
from qdrun.compiler.runtime.python.interpret import Memory, run_kernel


def func(fn):
    """What ``lang`` will do for ``qd.func``."""
    fn.__qd_func__ = read_function(fn)
    return fn


class Field:
    """A dense field over its own buffer; offers itself to kernels as fields of ``lang`` do."""

    def __init__(self, array, element=(), name="field", needs_grad=True):
        self.array = np.array(array, order="C")
        dtype = from_numpy(self.array.dtype)
        axes = self.array.ndim - len(element)
        shape = self.array.shape[:axes]
        size = int(np.prod(element, dtype=int))
        strides = self.array.strides[:axes]
        self.buffer = Buffer("field", self)
        grads = Buffer("field", self)
        places = []
        for k in range(size):
            grad = Place("grad", dtype, grads, axes, shape, strides, k * dtype.size, size * dtype.size, is_grad=True)
            here = Place(name, dtype, self.buffer, axes, shape, strides, k * dtype.size, size * dtype.size)
            here.grad = grad if needs_grad and dtype.is_real else None
            places.append(here)
        self.ref = TensorRef(name, tuple(places), element, axes, extents=shape)

    def __qd_value__(self):
        return self.ref


def spec_of(value):
    """The argument type that a test's Python value stands for."""
    if isinstance(value, np.ndarray):
        return ArrayArg(from_numpy(value.dtype), value.ndim, (), value.dtype.kind == "f")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return TemplateArg(value)
    return ScalarArg(i32 if isinstance(value, int) else f32)


def build(fn, options=None, **args):
    """The kernel, verified before and after its exits are lowered (on a second copy)."""
    source = read_function(fn)
    specs = {n: v if isinstance(v, (ScalarArg, ArrayArg, MatrixArg, TemplateArg)) else spec_of(v) for n, v in args.items()}
    kernel = lower(source, specs, options or LowerOptions())
    verify_kernel(kernel, lowered=False)
    lowered = lower_exits(lower(source, specs, options or LowerOptions()))
    verify_kernel(lowered)
    return kernel, lowered


def text(fn, options=None, **args):
    """The printed kernel."""
    return print_kernel(build(fn, options, **args)[0])


def _memory(kernel, args):
    memory = Memory()
    for decl in kernel.args:
        if decl.kind == "ndarray":
            memory.shapes[decl] = args[decl.name].shape
    for buffer in kernel_buffers(kernel):
        owner = buffer.owner
        if buffer.kind == "arg":
            memory.bind(buffer, args[owner.name])
        elif isinstance(owner, Field) and buffer is owner.buffer:
            memory.bind(buffer, owner.array)
    return memory


def run(fn, options=None, **args):
    """Run both forms of the kernel; they must agree. Arrays and fields are changed in place. The result is the interpreter's."""
    both = build(fn, options, **args)
    arrays = [v.array if isinstance(v, Field) else v for v in args.values() if isinstance(v, (Field, np.ndarray))]
    before = [a.copy() for a in arrays]
    results = []
    for kernel in both:
        for array, start in zip(arrays, before):
            array[...] = start
        scalars = {d: args[d.name] for d in kernel.args if d.kind == "scalar"}
        result = run_kernel(kernel, _memory(kernel, args), scalars)
        results.append((result, [a.copy() for a in arrays]))
    assert results[0][0].returns == results[1][0].returns and results[0][0].prints == results[1][0].prints
    for a, b in zip(results[0][1], results[1][1]):
        np.testing.assert_array_equal(a, b)
    return results[0][0]


def check(fn, **args):
    """The kernel and the same function run by Python leave the same arrays and return the same."""
    copies = {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in args.items()}
    result = run(fn, **args)
    expected = fn(**copies)
    for name, value in copies.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_allclose(args[name], value, rtol=1e-5, atol=1e-6)
    if expected is not None:
        flat = np.ravel(expected).tolist()
        np.testing.assert_allclose(result.returns, flat, rtol=1e-5)
    return result
