"""Options of Quadrants' ``init`` that programs may give here, too: hints for its compiler, and what has no effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import warn_user

HINTS = frozenset(
    "ad_stack_experimental_enabled ad_stack_sparse_threshold_bytes advanced_optimization auto_mesh_local_default_occupacy"
    " cache_loop_invariant_global_vars cfg_optimization constant_folding cuda_stack_limit default_cpu_block_dim"
    " default_gpu_block_dim demote_dense_struct_fors demote_no_access_mesh_fors detect_read_only device_memory_fraction"
    " device_memory_GB enable_fallback experimental_auto_mesh_local external_metal_command_queue_is_torch_queue flatten_if"
    " force_scalarize_matrix half2_vectorization log_level make_block_local make_cpu_multithreading_loop make_mesh_block_local"
    " make_thread_local max_block_dim mesh_localize_all_attr_mappings mesh_localize_from_end_mapping"
    " mesh_localize_to_end_mapping move_loop_invariant_outside_if num_compile_threads opt_level"
    " optimize_mesh_reordered_mapping print_full_traceback quant_opt_atomic_demotion quant_opt_store_fusion"
    " real_matrix_scalarize saturating_grid_dim short_circuit_operators unrolling_limit verbose vk_api_version".split()
)
"""How fast Quadrants compiles and runs, how much it logs, and where its memory comes from. A program does the same without them."""

_PRINT = "the environment variable QDRUN_PRINT=all prints the stages of the compiler"
_CACHE = "the environment variable QDRUN_CACHE_DIR says where compiled kernels are kept"
WITHOUT_EFFECT: dict[str, str] = {
    **dict.fromkeys(
        "print_accessor_ir print_ir print_ir_dbg_info print_kernel_amdgcn print_kernel_asm print_kernel_llvm_ir"
        " print_kernel_llvm_ir_optimized print_preprocessed_ir print_struct_llvm_ir".split(),
        _PRINT,
    ),
    **dict.fromkeys(
        "offline_cache_cleaning_factor offline_cache_cleaning_policy offline_cache_file_path offline_cache_max_size_of_files"
        " src_ll_cache".split(),
        _CACHE,
    ),
    "debug_dump_path": _PRINT,
    "external_metal_command_queue": "launches go to the queue of the program; qd.sync() waits for them",
    "gdb_trigger": "start the program under gdb",
    "print_non_pure": "every kernel is taken for one that may read what is around it",
    "require_version": "compare qdrun.__version__",
    "timeline": "qd.init(kernel_profiler=True) measures kernels, see qd.profiler",
}
"""What a program would see of these options, and does not see here -> what to do instead."""

PEER_ONLY = HINTS | frozenset(WITHOUT_EFFECT)


def warn_without_effect(given: Mapping[str, Any]) -> None:
    """Issue one warning that names the options that are set and do nothing here, with what to do instead."""
    names = [name for name in given if name in WITHOUT_EFFECT and given[name]]
    if names:
        advice = "; ".join(dict.fromkeys(WITHOUT_EFFECT[name] for name in names))
        verb = "has" if len(names) == 1 else "have"
        shown = ", ".join(f"{name}={given[name]!r}" for name in names)
        warn_user(f"qd.init({shown}) {verb} no effect here\n  do: {advice}", RuntimeWarning)
