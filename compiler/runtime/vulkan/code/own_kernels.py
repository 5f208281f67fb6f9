"""Device code of the driver's own: fills and copies of rows, by address. It is the text that kernels are, and built as they are.

The host's commands of Vulkan fill whole words of one range, and copy a row for each entry of a list.
"""

from __future__ import annotations

from ...gpu.driver import Texts

BLOCK = 128
FILL_4 = "qd_fill_4"

_FUNCTION = """define void @{name}({params}) "threads"="{block}" {{
entry:
  %thread = call i32 @qd.thread()
  %block = call i32 @qd.block()
  %blocks = call i32 @qd.blocks()
  %first.b = mul i32 %block, {block}
  %first.n = add i32 %first.b, %thread
  %first = zext i32 %first.n to i64
  %step.n = mul i32 %blocks, {block}
  %step = zext i32 %step.n to i64
  %n = mul i64 %p{columns}, %p{rows}
  %i = alloca i64
  store i64 %first, ptr %i
  br label %loop
loop:
  %here = load i64, ptr %i
  %more = icmp ult i64 %here, %n
  br i1 %more, label %do, label %end
do:
  %row = udiv i64 %here, %p{columns}
  %done = mul i64 %row, %p{columns}
  %column = sub i64 %here, %done
  %at = mul i64 %column, {width}
{body}
  %next = add i64 %here, %step
  store i64 %next, ptr %i
  br label %loop
end:
  ret void
}}
"""
_FILL = """  %row.at = mul i64 %row, %p1
  %place = add i64 %row.at, %at
  %to = getelementptr i8, ptr %p0, i64 %place
{cast}
  store i{bits} %value, ptr %to, align {width}"""
_COPY = """  %to.row = mul i64 %row, %p1
  %to.at = add i64 %to.row, %at
  %to = getelementptr i8, ptr %p0, i64 %to.at
  %from.row = mul i64 %row, %p3
  %from.at = add i64 %from.row, %at
  %from = getelementptr i8, ptr %p2, i64 %from.at
  %value = load i{bits}, ptr %from, align {width}
  store i{bits} %value, ptr %to, align {width}"""
_DECLARATIONS = "declare i32 @qd.thread()\ndeclare i32 @qd.block()\ndeclare i32 @qd.blocks()\n"


def texts(name: str) -> Texts:
    """The text of one function.

    Args:
        name: ``qd_fill_1``, ``_2`` or ``_4`` with the words address, bytes from row to row, value, values of a row, rows; ``qd_copy_1``,
            ``_2``, ``_4`` or ``_8`` with the words address to write, bytes from row to row, the same to read, values of a row, rows.
    """
    what, width = name.split("_")[1], int(name.split("_")[2])
    bits = 8 * width
    if what == "fill":
        cast = f"  %value = trunc i64 %p2 to i{bits}"
        body, params = _FILL.format(bits=bits, width=width, cast=cast), "ptr %p0, i64 %p1, i64 %p2, i64 %p3, i64 %p4"
        columns, rows = 3, 4
    else:
        body, params = _COPY.format(bits=bits, width=width), "ptr %p0, i64 %p1, ptr %p2, i64 %p3, i64 %p4, i64 %p5"
        columns, rows = 4, 5
    function = _FUNCTION.format(name=name, params=params, block=BLOCK, columns=columns, rows=rows, width=width, body=body)
    return Texts(name, _DECLARATIONS + function, "", name, (name,), "")
