"""Makes kernels relocatable: numbered buffers replace the memory of the program that a kernel was lowered for."""

from __future__ import annotations

from dataclasses import replace

from ..ir.nodes import Buffer, Kernel, Place
from ..ir.printer import print_kernel
from ..ir.walk import kernel_places, replace_place, task_blocks


def field_buffers(kernel: Kernel) -> list[Buffer]:
    """The field buffers of a kernel, those of gradients and duals included, in order of first use."""
    out: dict[Buffer, None] = {}
    for place in kernel_places(kernel):
        for p in (place, place.grad, place.dual, place.dual and place.dual.grad):
            for each in (p, p and p.pool and p.pool.slots):
                if each is not None and each.buffer.kind == "field":
                    out.setdefault(each.buffer)
    return list(out)


def text_of(kernel: Kernel, buffers: list[Buffer]) -> str:
    """The printed kernel with the layout of its gradients and duals: kernels with equal texts compile to the same code."""
    numbers = {b: k for k, b in enumerate(buffers)}

    def layout(p: Place | None) -> str:
        return (
            "-"
            if p is None
            else f"{numbers.get(p.buffer)} {p.dtype} {p.shape} {p.strides} {p.offset} {p.trial_bytes} {blocks(p)}"
        )

    def blocks(p: Place) -> str:
        pool = p.pool
        return f"{layout(pool.slots)} {pool.sizes} {pool.axes} {pool.blocks} {pool.stride}" if pool else ""

    beside = (f"{layout(p.grad)} {layout(p.dual)} {layout(p.dual and p.dual.grad)}" for p in kernel_places(kernel))
    return print_kernel(kernel) + "\n".join(beside)


def detach(kernel: Kernel, buffers: list[Buffer]) -> list[Buffer]:
    """Replace the field buffers of a kernel, in place, by new ones without an owner, so that it keeps no program's memory alive.

    Returns:
        The new buffers, in the same order.
    """
    fresh = {b: Buffer("field") for b in buffers}
    places: dict[Place, Place] = {}

    def new(place: Place) -> Place:
        if place.buffer not in fresh:
            return place
        if place not in places:
            grad = None if place.grad is None else new(place.grad)
            dual = None if place.dual is None else new(place.dual)
            pool = place.pool and replace(place.pool, slots=new(place.pool.slots))
            places[place] = replace(place, buffer=fresh[place.buffer], grad=grad, dual=dual, pool=pool)
        return places[place]

    for task in kernel.tasks:
        for s in task_blocks(task):
            replace_place(s, new)
    return list(fresh.values())
