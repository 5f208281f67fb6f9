"""Everything that ``import qdrun as qd`` offers. Loaded when the first name of it is used, so that the command line starts fast."""

from .errors import (
    AdStackOverflow,
    DataAccessError,
    DeviceError,
    DifferentiationError,
    GradientCheckError,
    GradientWarning,
    NothingToDifferentiate,
    OutOfMemory,
    PerformanceWarning,
    QdrunAssertionError,
    QdrunCompilationError,
    QdrunError,
    QdrunFitError,
    QdrunImportError,
    QdrunIndexError,
    QdrunNameError,
    QdrunRuntimeError,
    QdrunRuntimeTypeError,
    QdrunSyntaxError,
    QdrunTypeError,
    QdrunValueError,
    QuadrantsAssertionError,
    QuadrantsCompilationError,
    QuadrantsIndexError,
    QuadrantsNameError,
    QuadrantsRuntimeError,
    QuadrantsRuntimeTypeError,
    QuadrantsSyntaxError,
    QuadrantsTypeError,
    TrialsFailed,
)
from .frontend.library.activity import activate, append, deactivate, is_active, length, rescale_index
from .frontend.library.decompositions import eig, make_spd, polar_decompose, solve, svd, sym_eig
from .frontend.library.extra import assume_in_range, bit_shr, block_local, cache_read_only, frexp, no_activate, one, zero
from .frontend.library.functions import (
    abs,
    acos,
    asin,
    atan2,
    bit_cast,
    cast,
    ceil,
    clz,
    cos,
    cosh,
    erf,
    erfc,
    exp,
    expm1,
    ffs,
    floor,
    isinf,
    isnan,
    log,
    log1p,
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
    sinh,
    sqrt,
    tan,
    tanh,
)
from .frontend.markers import (
    atomic_add,
    atomic_and,
    atomic_cas,
    atomic_exchange,
    atomic_max,
    atomic_min,
    atomic_mul,
    atomic_or,
    atomic_sub,
    atomic_xor,
    grouped,
    loop_config,
    ndrange,
    outer,
    ref,
    static,
    static_assert,
    static_print,
    stop_grad,
    volatile_load,
)
from .frontend.regions import checkpoint, graph_do_while, graph_parallel, graph_parallel_context, stream_parallel
from .frontend.syntax.block import global_thread_idx
from .ir.types import f16, f32, f64, i8, i16, i32, i64, u1, u8, u16, u32, u64
from .lang import math, profiler, simt
from .lang.autograd import ad
from .lang.buffer_view import BufferView
from .lang.compat import tools
from .lang.compat.kinds import MatrixField, MatrixNdarray, MatrixTensor, ScalarField, ScalarNdarray, VectorNdarray, VectorTensor
from .lang.compat.logs import (
    CRITICAL,
    DEBUG,
    ERROR,
    INFO,
    TRACE,
    WARN,
    critical,
    debug,
    error,
    info,
    is_logging_effective,
    set_logging_level,
    trace,
    warn,
)
from .lang.compat.names import cfg, dump_compile_config, extension, is_extension_enabled, pure, pyfunc, real_func
from .lang.compile_ahead import compile_ahead as compile
from .lang.data import types
from .lang.data.dtypes import float16, float32, float64, int8, int16, int32, int64, uint1, uint8, uint16, uint32, uint64
from .lang.data.field import Field
from .lang.data.make_field import field
from .lang.data.matrix import Matrix, Vector
from .lang.data.ndarray import Ndarray, from_dlpack, ndarray
from .lang.data.struct import Struct, dataclass
from .lang.data.struct_field import StructField
from .lang.data.tensor import Backend, Tensor, tensor, wrap
from .lang.data.types import Template, sparse_matrix_builder, template
from .lang.function import func
from .lang.init import init
from .lang.kernel import data_oriented, kernel
from .lang.launches import graph
from .lang.launches.perf_dispatch import perf_dispatch
from .lang.launches.staged_kernel import GraphStatus
from .lang.launches.streams import Event, Stream, create_event, create_stream
from .lang.layout_tree import FieldsBuilder, RootProxy, deactivate_all_snodes
from .options import Arch
from .program.graph import Graph, capture
from .program.layout.offsets import Order as Layout
from .program.layout.tree import NAMED_AXES as _NAMED_AXES
from .program.layout.tree import SNode, axes, i, ij, ijk, ijkl, ijl, ik, ikl, j, jk, jkl, k, l
from .program.program import Program, current_program, reset, sync
from .refused import refused_names as _refused_names

cpu, cuda, amdgpu, vulkan, metal, gpu = Arch.cpu, Arch.cuda, Arch.amdgpu, Arch.vulkan, Arch.metal, Arch.gpu
python = Arch.python
x64 = x86_64 = arm64 = Arch.cpu
il, jl, kl = (_NAMED_AXES[name] for name in ("il", "jl", "kl"))
bool = u1
root = RootProxy()


__getattr__ = _refused_names(__name__)
