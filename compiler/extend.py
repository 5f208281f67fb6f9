"""What a library of kernels takes from the compiler besides the language: checks of arguments, memory for values in between, instructions
of the lanes of a wave, and how a tape records a call whose gradient is written by hand. ``qdrun/library`` imports nothing else.
"""

from .frontend.library.host_linalg import WORST
from .frontend.syntax.lanes import fence, from_lane, group_size, invocation_id, log2_group_size, sync, votes
from .ir.meaning import identity
from .ir.types import DType
from .lang.assembly import Assembly
from .lang.autograd.custom import Replaced
from .lang.autograd.time_steps.steps import recorded_by
from .lang.data.dtypes import resolve
from .lang.data.make_field import make_field
from .lang.data.ndarray import make_ndarray
from .lang.data.tensor import begin_of, from_zero, unwrap
from .lang.function import Function
from .lang.launches.scratch import ArrayForm, borrowed, scratch
from .lang.no_gradient import ONLY_REVERSE, refuse_in_a_trial, refuse_in_forward_mode
from .lang.simt import block
from .lang.simt.tiles import inclusive_tiled, reduce_tiled
from .refused import refused_names

__all__ = [
    "ONLY_REVERSE",
    "WORST",
    "ArrayForm",
    "Assembly",
    "DType",
    "Function",
    "Replaced",
    "begin_of",
    "block",
    "borrowed",
    "fence",
    "from_lane",
    "from_zero",
    "group_size",
    "identity",
    "inclusive_tiled",
    "invocation_id",
    "log2_group_size",
    "make_field",
    "make_ndarray",
    "recorded_by",
    "reduce_tiled",
    "refuse_in_a_trial",
    "refuse_in_forward_mode",
    "refused_names",
    "resolve",
    "scratch",
    "sync",
    "unwrap",
    "votes",
]
