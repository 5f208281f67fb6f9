"""Everything that ``import qdrun as qd`` offers. Loaded when the first name of it is used, so that the command line starts fast."""

from .errors import (
    AdStackOverflow,
    DataAccessError,
    DifferentiationError,
    OutOfMemory,
    QdrunAssertionError,
    QdrunCompilationError,
    QdrunError,
    QdrunIndexError,
    QdrunNameError,
    QdrunRuntimeError,
    QdrunSyntaxError,
    QdrunTypeError,
)
from .frontend.intrinsics import (
    abs,
    acos,
    asin,
    atan2,
    bit_cast,
    cast,
    ceil,
    clz,
    cos,
    exp,
    ffs,
    floor,
    isinf,
    isnan,
    log,
    max,
    min,
    popcnt,
    pow,
    randn,
    random,
    raw_div,
    raw_mod,
    round,
    rsqrt,
    select,
    sin,
    sqrt,
    tan,
    tanh,
)
from .frontend.syntax import (
    atomic_add,
    atomic_and,
    atomic_max,
    atomic_min,
    atomic_mul,
    atomic_or,
    atomic_sub,
    atomic_xor,
    grouped,
    loop_config,
    ndrange,
    static,
    static_assert,
    static_print,
)
from .ir.types import f16, f32, f64, i8, i16, i32, i64, u1, u8, u16, u32, u64
from .lang import (
    Arch,
    Matrix,
    Ndarray,
    Program,
    RootProxy,
    Vector,
    ad,
    current_program,
    data_oriented,
    field,
    func,
    init,
    kernel,
    math,
    ndarray,
    reset,
    sync,
    template,
    types,
)
from .lang.snode import i, ij, ijk, ijkl, ik, j, jk, k, l
from .lang.types import Template

cpu, cuda, amdgpu, vulkan, metal, gpu = Arch.cpu, Arch.cuda, Arch.amdgpu, Arch.vulkan, Arch.metal, Arch.gpu
bool = u1
root = RootProxy()

# The peer's names of the same errors.
QuadrantsCompilationError = QdrunCompilationError
QuadrantsSyntaxError = QdrunSyntaxError
QuadrantsTypeError = QdrunTypeError
QuadrantsNameError = QdrunNameError
QuadrantsIndexError = QdrunIndexError
QuadrantsRuntimeError = QdrunRuntimeError
QuadrantsAssertionError = QdrunAssertionError
