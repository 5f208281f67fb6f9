"""The header ``metal_stdlib`` for clang: what our sources use of Metal's language, as C++ for one thread at a time.

It is stricter than a device. Every access is checked to be in live memory and aligned; exchanges that may fail for no reason do so now and
then; ``scheduler`` looks after barriers and operations without a defined result.
"""

from __future__ import annotations

HEADER = r"""
#pragma once
#define device
#define constant const
#define thread
#define threadgroup
#define kernel
#define reinterpret_cast qd_cast
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
#define VECTORS(T) \
  struct alignas(2 * sizeof(T)) T##2 { T x, y; T##2(T x, T y) : x(x), y(y) {} }; \
  struct alignas(4 * sizeof(T)) T##4 { T x, y, z, w; T##4(T x, T y, T z, T w) : x(x), y(y), z(z), w(w) {} };
VECTORS(uchar) VECTORS(ushort) VECTORS(uint) VECTORS(ulong) VECTORS(half) VECTORS(float) VECTORS(double)
#undef VECTORS

struct QdFrame { const ulong* words; uchar* shared; uint thread_number, block, blocks, threads; };
extern "C" {
ulong qd_device(ulong address, ulong size, ulong align);
uchar* qd_on_chip(uchar* at, ulong size, ulong align);
void qd_meet(int site);
int qd_chance(void);
}
template <class P> struct QdTarget;
template <class T> struct QdTarget<T*> { static constexpr ulong size = sizeof(T), align = alignof(T); };
template <class P> inline P qd_cast(ulong address) { return (P)qd_device(address, QdTarget<P>::size, QdTarget<P>::align); }
template <class P> inline P qd_cast(uchar* at) { return (P)qd_on_chip(at, QdTarget<P>::size, QdTarget<P>::align); }

namespace metal {
template <class T, class U> inline T as_type(U x) { static_assert(sizeof(T) == sizeof(U)); return __builtin_bit_cast(T, x); }

enum memory_order { memory_order_relaxed, memory_order_seq_cst = 5 };
enum thread_scope { thread_scope_device = 2 };
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
inline void atomic_thread_fence(mem_flags, memory_order, thread_scope) {}
#define threadgroup_barrier(flags) qd_meet(__LINE__)

template <class T> struct atomic { T held; };
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
typedef atomic<long> atomic_long;  // these three are the emulated device's own
typedef atomic<ulong> atomic_ulong;
typedef atomic<double> atomic_double;
template <class T> inline T atomic_load_explicit(const atomic<T>* at, memory_order) { return at->held; }
template <class T> inline void atomic_store_explicit(atomic<T>* at, T x, memory_order) { at->held = x; }
template <class T> inline T atomic_exchange_explicit(atomic<T>* at, T x, memory_order) { T old = at->held; at->held = x; return old; }
#define FETCH(name, T, result) \
  inline T atomic_fetch_##name##_explicit(atomic<T>* at, T b, memory_order) { T a = at->held; at->held = (result); return a; }
#define FETCHES(T) FETCH(add, T, a + b) FETCH(sub, T, a - b) FETCH(and, T, a & b) FETCH(or, T, a | b) FETCH(xor, T, a ^ b)
#define ENDS(T) FETCH(max, T, a > b ? a : b) FETCH(min, T, a < b ? a : b)
FETCHES(uint) FETCHES(ulong) ENDS(uint) ENDS(int) ENDS(ulong) ENDS(long) FETCH(add, float, a + b) FETCH(add, double, a + b)
#undef ENDS
#undef FETCHES
#undef FETCH
template <class T>
inline bool atomic_compare_exchange_weak_explicit(atomic<T>* at, T* seen, T x, memory_order, memory_order)
{
  if (at->held == *seen && qd_chance()) { at->held = x; return true; }
  *seen = at->held;
  return false;
}

#define FLOAT1(name) \
  inline float name(float x) { return __builtin_##name##f(x); } \
  inline double name(double x) { return __builtin_##name(x); }
FLOAT1(floor) FLOAT1(ceil) FLOAT1(trunc) FLOAT1(rint) FLOAT1(round) FLOAT1(fabs)
#undef FLOAT1
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float copysign(float a, float b) { return __builtin_copysignf(a, b); }
inline double copysign(double a, double b) { return __builtin_copysign(a, b); }
inline float fmin(float a, float b) { return __builtin_fminf(a, b); }
inline float fmax(float a, float b) { return __builtin_fmaxf(a, b); }
inline half fabs(half x) { return as_type<half>(ushort(as_type<ushort>(x) & 0x7FFF)); }
inline half copysign(half a, half b) { return as_type<half>(ushort((as_type<ushort>(a) & 0x7FFF) | (as_type<ushort>(b) & 0x8000))); }
namespace precise {
inline float sqrt(float x) { return __builtin_sqrtf(x); }
inline double sqrt(double x) { return __builtin_sqrt(x); }
}

template <class T> inline T min(T a, T b) { return b < a ? b : a; }
template <class T> inline T max(T a, T b) { return a < b ? b : a; }
inline uint popcount(uint x) { return __builtin_popcount(x); }
inline ulong popcount(ulong x) { return __builtin_popcountl(x); }
inline ushort popcount(ushort x) { return __builtin_popcount(x); }
inline uchar popcount(uchar x) { return __builtin_popcount(x); }
inline uint clz(uint x) { return x ? __builtin_clz(x) : 32; }
inline ulong clz(ulong x) { return x ? __builtin_clzl(x) : 64; }
inline ushort clz(ushort x) { return x ? __builtin_clz(x) - 16 : 16; }
inline uchar clz(uchar x) { return x ? __builtin_clz(x) - 24 : 8; }
inline uint ctz(uint x) { return x ? __builtin_ctz(x) : 32; }
inline ulong ctz(ulong x) { return x ? __builtin_ctzl(x) : 64; }
}
"""

SCHEDULER = r"""
#include <ucontext.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
typedef unsigned char uchar;
typedef unsigned int uint;
typedef unsigned long ulong;
struct QdFrame { const ulong* words; uchar* shared; uint thread_number, block, blocks, threads; };
enum { DONE, DIVERGED, BAD, UNDEFINED };
enum { STACK = 128 << 10, ENDED = -1 };

namespace {
const ulong* live;       // begin and end of each live range, in order
ulong ranges, last;
uchar* on_chip;
ulong on_chip_bytes;
int state, turns;
jmp_buf out;
bool fibers;
ucontext_t scheduler;
struct Fiber { ucontext_t context; int site; void* stack; QdFrame frame; };
Fiber* threads;
uint made, running;
void (*code)(const QdFrame*);

[[noreturn]] void stop(int why)
{
  if (!state) state = why;
  if (!fibers) longjmp(out, 1);
  swapcontext(&threads[running].context, &scheduler);
  abort();
}
void begin(uint number)
{
  code(&threads[number].frame);
  threads[number].site = ENDED;
}
void make(uint count)
{
  if (count <= made) return;
  threads = (Fiber*)realloc((void*)threads, count * sizeof(Fiber));
  for (; made < count; made++)
    threads[made].stack = mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
// All threads of a block up to their next barrier, in turn: from the first to the last, then the other way round.
bool step(uint count, bool backwards)
{
  for (uint k = 0; k < count; k++) {
    running = backwards ? count - 1 - k : k;
    swapcontext(&scheduler, &threads[running].context);
    if (state) return false;
  }
  for (uint k = 1; k < count; k++)
    if (threads[k].site != threads[0].site) { state = DIVERGED; return false; }
  return threads[0].site != ENDED;
}
void together(QdFrame frame)
{
  make(frame.threads);
  for (uint k = 0; k < frame.threads; k++) {
    Fiber& f = threads[k];
    frame.thread_number = k, f.frame = frame, f.site = 0;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack, f.context.uc_stack.ss_size = STACK, f.context.uc_link = &scheduler;
    makecontext(&f.context, (void (*)())begin, 1, k);
  }
  for (bool back = false; step(frame.threads, back); back = !back) {}
}
}

extern "C" {
ulong qd_device(ulong address, ulong size, ulong align)
{
  if (address % align) stop(BAD);
  if (last < ranges && address >= live[2 * last] && address + size <= live[2 * last + 1]) return address;
  ulong low = 0, high = ranges;
  while (low < high) {
    ulong middle = (low + high) / 2;
    if (live[2 * middle + 1] <= address) low = middle + 1;
    else high = middle;
  }
  if (low == ranges || address < live[2 * low] || address + size > live[2 * low + 1]) stop(BAD);
  last = low;
  return address;
}
uchar* qd_on_chip(uchar* at, ulong size, ulong align)
{
  if (at < on_chip || at + size > on_chip + on_chip_bytes || (ulong)(at - on_chip) % align) stop(BAD);
  return at;
}
void qd_meet(int site)
{
  if (!fibers) return;  // of one thread
  threads[running].site = site;
  swapcontext(&threads[running].context, &scheduler);
}
int qd_chance(void) { return ++turns % 5; }
#define UNDEFINED_RESULT(name) void __ubsan_handle_##name##_minimal(void) { stop(UNDEFINED); }
UNDEFINED_RESULT(add_overflow) UNDEFINED_RESULT(sub_overflow) UNDEFINED_RESULT(mul_overflow) UNDEFINED_RESULT(negate_overflow)
UNDEFINED_RESULT(divrem_overflow) UNDEFINED_RESULT(shift_out_of_bounds) UNDEFINED_RESULT(float_cast_overflow)

int qd_run(void (*kernel)(const QdFrame*), const ulong* words, const long* order, long count, uint block, uchar* shared, ulong shared_bytes,
           int meets, const ulong* memory, ulong memory_ranges)
{
  code = kernel, live = memory, ranges = memory_ranges, last = 0, on_chip = shared, on_chip_bytes = shared_bytes, state = DONE;
  fibers = meets && block > 1;
  for (long k = 0; k < count && !state; k++) {
    memset(shared, 0xFF, shared_bytes);
    QdFrame frame = {words, shared, 0, (uint)order[k], (uint)count, block};
    if (fibers) together(frame);
    else if (!_setjmp(out))
      for (frame.thread_number = 0; frame.thread_number < block; frame.thread_number++) code(&frame);
  }
  return state;
}
}
"""
"""Runs the threads of blocks: each on a stack of its own where they meet at barriers. The processor's C library gives the stacks."""
