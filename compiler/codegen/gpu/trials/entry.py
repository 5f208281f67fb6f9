"""The host's side of a kernel of a batched program on a GPU: one launch, of as many threads as the trials have, or as the device holds."""

from __future__ import annotations

from ....ir.trials import TRIALS
from ...llvm.emitter import KernelInfo
from ...llvm.function import LlvmModule
from ...llvm.task_emitter import TaskEmitter
from ..grid.entry import define_entry, launch_words, least, rounded_up, task_emitters
from ..grid.rows import on_chip, shared_bytes
from ..hardware import GpuTarget, ParamWord
from .task import TrialShape

MOST_THREADS = 1 << 17
"""Threads of a grid, at most: as many adstack rows are planned. An H200 holds so many of 128 registers twice over."""


def emit_trial_entry(
    module: LlvmModule, info: KernelInfo, target: GpuTarget, words: list[ParamWord], shape: TrialShape
) -> None:
    """Add the entry function to the host module. ``words``: what the function of the device is given, in order."""
    slots: list[str] = []
    lines: list[str] = []
    most, shared = str(MOST_THREADS), "0"
    for e in task_emitters(module, info, slots, lines):
        task = e.task
        if task is info.kernel.tasks[0]:
            e.put("br label %begin")
            e.at("begin")
        if any(on_chip(e, stack) for stack in task.stacks):
            e.module.declare("smax64", "declare i64 @llvm.smax.i64(i64, i64)")
            shared = e.t(f"call i64 @llvm.smax.i64(i64 {shared}, i64 {shared_bytes(e, task)})")
        if task.stacks:
            e.module.declare("smin64", "declare i64 @llvm.smin.i64(i64, i64)")
            most = least(e, most, e.param("threads"))
        if task is info.kernel.tasks[-1]:
            e.module.declare("smin64", "declare i64 @llvm.smin.i64(i64, i64)")
            trials = e.param(TRIALS)
            blocks = least(e, rounded_up(e, most, str(shape.block)), rounded_up(e, trials, str(shape.trials)))
            if shared != "0":
                shared = e.t(f"trunc i64 {e.t(f'mul i64 {shared}, {target.tape_owners(shape.block)}')} to i32")
            given = [("i64", trials)]
            for word in words:
                given.append((word.ty, _read(e, word)))
            launch_words(e, target, given, 0, blocks, str(shape.block), shared)
    define_entry(module, info, slots, lines)


def _read(e: TaskEmitter, word: ParamWord) -> str:
    assert isinstance(word.what, int)
    return (e.context if word.kind == "ctx" else e.argument)(word.what, word.ty)
