/* A stand-in for ROCm's libamdhip64.so, for tests of our calls through the true hip-python on a machine without an AMD GPU.

   Device memory is memory of the host. What is put into a stream runs as late as it may: when something waits for it. A
   launch notes its argument words and calls a function of the test, if it has given one: without, kernels do nothing.
   Whatever touches memory that is no live block when it runs ends the device, with hipErrorIllegalAddress, for good.
   It answers as the source of ROCm's HIP (clr) does, as far as the tests know it; no test here says what ROCm itself does. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define MOST_CALLS 65536
#define MOST_DEVICES 4
#define MOST_WORDS 512
enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONFIGURATION = 9, NO_DEVICE = 100, INVALID_DEVICE = 101,
       INVALID_IMAGE = 200, INVALID_HANDLE = 400, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700,
       CAPTURE_UNSUPPORTED = 900, CAPTURE_UNMATCHED = 903 };
enum { FILL, COPY, LAUNCH, MARK, FREE };

typedef uint64_t u64;
typedef struct { char name[40]; u64 args[6]; } Call;
typedef struct { char name[120]; u64 image, image_bytes; uint32_t blocks, threads, shared, bytes; u64 words[MOST_WORDS]; } Launch;
typedef struct Pool { u64 used, kept, keep; int device; struct Pool *next; } Pool;
typedef struct Block { unsigned char *at; u64 n; Pool *pool; int host, device; struct Block *next; } Block;
typedef struct Module { unsigned char *data; u64 n; int device; } Module;
typedef struct Function { Module *module; char name[120]; } Function;
typedef struct Event { double ms; struct Stream *in; int device; } Event;
typedef struct Op {
  int kind, width; u64 to, from, n, to_step, from_step, rows; uint32_t word;
  Launch *launch; Event *event; struct Op *next;
} Op;
typedef struct Graph { Op *first, **end; } Graph;
typedef struct Stream { Op *first, **end; Graph *capture; int device, alone; struct Stream *next; } Stream;
typedef int (*Run)(const Launch *);

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static Call calls[MOST_CALLS]; static int call_count;
static Launch last; static u64 launches;
static char failing[40]; static int failure, failure_stays, lost, version = 71500000, pools = 1, devices = 1;
static u64 total = 1u << 30, outside, modules;
static unsigned char properties[MOST_DEVICES][2048]; static u64 properties_bytes;
static Block *blocks; static Stream *streams, rest; static Pool *all_pools;
static _Thread_local int current;
static Run run;

/* ---- for tests */
EXPORT void standin_setup(int count, u64 bytes, int has_pools, int hip) { devices = count; total = bytes; pools = has_pools; version = hip; }
EXPORT void standin_properties(int device, const void *data, u64 n) { memcpy(properties[device], data, n); properties_bytes = n; }
EXPORT void standin_run(Run function) { run = function; }
EXPORT void standin_fail(const char *name, int code, int stays) {
  strncpy(failing, name, sizeof failing - 1); failure = code; failure_stays = stays;
}
EXPORT void standin_heal(void) { lost = 0; failing[0] = 0; }
EXPORT void standin_others(u64 bytes) { outside = bytes; }
EXPORT int standin_calls(Call *out) { memcpy(out, calls, call_count * sizeof *calls); int n = call_count; call_count = 0; return n; }
EXPORT u64 standin_last(Launch *out) { *out = last; return launches; }
EXPORT u64 standin_live(u64 *device_bytes, u64 *host_blocks, u64 *live_modules, u64 *live_streams) {
  *device_bytes = *host_blocks = *live_streams = 0; *live_modules = modules;
  for (Block *b = blocks; b; b = b->next) b->host ? ++*host_blocks : (*device_bytes += b->n);
  for (Stream *s = streams; s; s = s->next) ++*live_streams;
  return launches;
}

static int enter(const char *name, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f) {
  Call *x = &calls[call_count < MOST_CALLS ? call_count++ : MOST_CALLS - 1];
  strncpy(x->name, name, sizeof x->name - 1);
  u64 all[6] = {a, b, c, d, e, f}; memcpy(x->args, all, sizeof all);
  if (lost && strcmp(name, "hipInit")) return lost;
  if (failing[0] && !strcmp(failing, name)) { failing[0] = 0; if (failure_stays) lost = failure; return failure; }
  return 0;
}
/* A function of the library: notes the call, and does nothing where it is to fail. */
#define CALL(name, a, b, c, d, e, f) \
  pthread_mutex_lock(&lock); int code = enter(name, (u64)(a), (u64)(b), (u64)(c), (u64)(d), (u64)(e), (u64)(f)); if (code) goto end
#define END end: pthread_mutex_unlock(&lock); return code
#define FAIL(x) do { code = (x); goto end; } while (0)

/* ---- work in streams */
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e3 + t.tv_nsec / 1e6; }
static Block *holder(u64 at, u64 n) {
  for (Block *b = blocks; b; b = b->next) if (at >= (u64)b->at && at + n <= (u64)b->at + b->n) return b;
  return 0;
}
static int is_ours(u64 at, u64 n) { return holder(at, n) != 0; }
EXPORT u64 standin_block(u64 at, u64 *base) { Block *b = holder(at, 1); *base = b ? (u64)b->at : 0; return b ? b->n : 0; }
static void drop(Block *gone) {
  for (Block **b = &blocks; *b; b = &(*b)->next) if (*b == gone) {
    *b = gone->next;
    if (gone->pool) { gone->pool->used -= gone->n; gone->pool->kept += gone->n; }
    memset(gone->at, 0xA5, gone->n); free(gone->at); free(gone); return;
  }
}
static void fill(Op *o) {
  for (u64 r = 0; r < o->rows; r++) for (u64 k = 0; k < o->n; k++)
    memcpy((unsigned char *)o->to + r * o->to_step + k * o->width, &o->word, o->width);
}
static void perform(Op *o) {
  u64 far = o->rows ? (o->rows - 1) * o->to_step : 0, deep = o->rows ? (o->rows - 1) * o->from_step : 0;
  if (lost) return;
  switch (o->kind) {
  case FILL: if (!is_ours(o->to, far + o->n * o->width)) { lost = ILLEGAL_ADDRESS; return; } fill(o); return;
  case COPY:
    if (!is_ours(o->to, far + o->n) || !is_ours(o->from, deep + o->n)) { lost = ILLEGAL_ADDRESS; return; }
    for (u64 r = 0; r < o->rows; r++) memmove((char *)o->to + r * o->to_step, (char *)o->from + r * o->from_step, o->n);
    return;
  case LAUNCH: last = *o->launch; launches++; if (run) { int code = run(o->launch); if (code) lost = code; } return;
  case MARK: o->event->ms = now(); o->event->in = 0; return;
  case FREE: { Block *b = holder(o->to, 1); if (b && (u64)b->at == o->to) drop(b); else lost = ILLEGAL_ADDRESS; }
  }
}
static void drain(Stream *s) {
  while (s->first) { Op *o = s->first; s->first = o->next; if (!s->first) s->end = &s->first; perform(o); free(o); }
}
static void drain_all(void) { drain(&rest); for (Stream *s = streams; s; s = s->next) if (!s->capture) drain(s); }
static void settle(Stream *s) { /* a wait: pools give back what they hold beyond what they keep */
  drain(s);
  for (Pool *p = all_pools; p; p = p->next) if (p->kept > p->keep) p->kept = 0;
}
static Stream *of(void *handle) {
  if (!handle) { if (!rest.end) rest.end = &rest.first; return &rest; }
  for (Stream *s = streams; s; s = s->next) if (s == handle) return s;
  return 0;
}
static Op *put(Stream *s, Op o) {
  Op *made = malloc(sizeof o); *made = o; made->next = 0;
  Op ***end = s->capture ? &s->capture->end : &s->end;
  **end = made; *end = &made->next; return made;
}

static u64 in_use(void) {
  u64 n = outside;
  for (Block *b = blocks; b; b = b->next) if (!b->host) n += b->n;
  for (Pool *p = all_pools; p; p = p->next) n += p->kept;
  return n;
}

/* For tests: as in a process that has not called anything yet. */
EXPORT void standin_forget(void) {
  for (Stream *s = streams; s; s = s->next) s->first = 0;
  while (blocks) { blocks->pool = 0; drop(blocks); }
  streams = 0; all_pools = 0; modules = launches = 0; current = 0; call_count = 0;
}

/* ---- devices */
EXPORT int hipInit(unsigned flags) { CALL("hipInit", flags, 0, 0, 0, 0, 0); if (!devices) code = NO_DEVICE; END; }
EXPORT int hipRuntimeGetVersion(int *v) { *v = version; return 0; }
EXPORT int hipGetDeviceCount(int *n) { *n = devices; return devices ? 0 : NO_DEVICE; }
EXPORT int hipGetDevice(int *d) { *d = current; return 0; }
EXPORT int hipSetDevice(int d) { CALL("hipSetDevice", d, 0, 0, 0, 0, 0); if (d < 0 || d >= devices) FAIL(INVALID_DEVICE); current = d; END; }
EXPORT int hipSetDeviceFlags(unsigned flags) { CALL("hipSetDeviceFlags", flags, current, 0, 0, 0, 0); END; }
EXPORT int hipGetDevicePropertiesR0600(void *out, int d) {
  CALL("hipGetDeviceProperties", d, 0, 0, 0, 0, 0);
  if (d < 0 || d >= devices) FAIL(INVALID_DEVICE);
  memcpy(out, properties[d], properties_bytes); END;
}
EXPORT int hipDeviceGetUuid(char *out, int d) {
  CALL("hipDeviceGetUuid", d, 0, 0, 0, 0, 0);
  memcpy(out, properties[d] + 256, 16); END; /* hipDeviceProp_t::uuid */
}
EXPORT int hipDeviceGetPCIBusId(char *out, int n, int d) {
  CALL("hipDeviceGetPCIBusId", n, d, 0, 0, 0, 0);
  memcpy(out, "0000:C7:00.0", 13); out[6] = '0' + d; END;
}
EXPORT int hipDeviceGetAttribute(int *v, int what, int d) { CALL("hipDeviceGetAttribute", what, d, 0, 0, 0, 0); *v = what == 88 ? pools : 0; END; }
EXPORT int hipMemGetInfo(u64 *free_bytes, u64 *all) {
  CALL("hipMemGetInfo", 0, 0, 0, 0, 0, 0);
  *all = total; *free_bytes = total - in_use(); END;
}

/* ---- streams and events */
EXPORT int hipStreamCreateWithFlags(Stream **out, unsigned flags) {
  CALL("hipStreamCreateWithFlags", flags, current, 0, 0, 0, 0);
  Stream *s = calloc(1, sizeof *s); s->end = &s->first; s->device = current; s->alone = flags; s->next = streams; streams = *out = s; END;
}
EXPORT int hipStreamSynchronize(void *h) {
  CALL("hipStreamSynchronize", h, 0, 0, 0, 0, 0);
  Stream *s = of(h); if (!s) FAIL(INVALID_HANDLE); if (s->capture) FAIL(CAPTURE_UNSUPPORTED);
  if (!h) for (Stream *x = streams; x; x = x->next) if (!x->alone && !x->capture) drain(x);
  settle(s); code = lost; END;
}
EXPORT int hipStreamDestroy(void *h) {
  CALL("hipStreamDestroy", h, 0, 0, 0, 0, 0);
  Stream *s = h ? of(h) : 0; if (!s) FAIL(INVALID_HANDLE);
  drain(s); for (Stream **x = &streams; *x; x = &(*x)->next) if (*x == s) { *x = s->next; break; }
  free(s); END;
}
EXPORT int hipEventCreateWithFlags(Event **out, unsigned flags) {
  CALL("hipEventCreateWithFlags", flags, current, 0, 0, 0, 0); *out = calloc(1, sizeof **out); (*out)->device = current; END;
}
EXPORT int hipEventDestroy(Event *e) { CALL("hipEventDestroy", e, 0, 0, 0, 0, 0); if (e->in) drain(e->in); free(e); END; }
EXPORT int hipEventRecord(Event *e, void *h) {
  CALL("hipEventRecord", e, h, 0, 0, 0, 0);
  Stream *s = of(h); if (!s || s->device != e->device) FAIL(INVALID_HANDLE);
  if (!s->capture) e->in = s;
  put(s, (Op){.kind = MARK, .event = e}); END;
}
EXPORT int hipEventSynchronize(Event *e) { CALL("hipEventSynchronize", e, 0, 0, 0, 0, 0); if (e->in) drain(e->in); code = lost; END; }
EXPORT int hipEventElapsedTime(float *ms, Event *a, Event *b) { CALL("hipEventElapsedTime", a, b, 0, 0, 0, 0); *ms = b->ms - a->ms; END; }

/* ---- memory */
typedef struct { int type, handles, where, device; } PoolProperties;
static int block(void **out, u64 n, Pool *pool, int host) {
  u64 held = in_use(), kept = pool ? pool->kept : 0;
  if (!host && held - kept + (kept > n ? kept : n) > total) return OUT_OF_MEMORY; /* only its own pool gives what it keeps */
  if (pool) { pool->used += n; pool->kept -= kept < n ? kept : n; }
  Block *b = calloc(1, sizeof *b);
  if (posix_memalign((void **)&b->at, 256, n ? n : 1)) { free(b); return OUT_OF_MEMORY; }
  memset(b->at, 0xC3, n); b->n = n; b->pool = pool; b->host = host; b->device = current; b->next = blocks; blocks = b; *out = b->at; return 0;
}
EXPORT int hipMemPoolCreate(Pool **out, const PoolProperties *p) {
  CALL("hipMemPoolCreate", p->type, p->handles, p->where, p->device, 0, 0);
  if (p->type != 1 || p->handles || p->where != 1 || p->device < 0 || p->device >= devices) FAIL(INVALID_VALUE);
  Pool *made = calloc(1, sizeof *made); made->device = p->device; made->next = all_pools; all_pools = *out = made; END;
}
EXPORT int hipMemPoolDestroy(Pool *p) {
  CALL("hipMemPoolDestroy", p, p->used, 0, 0, 0, 0);
  drain_all(); for (Pool **x = &all_pools; *x; x = &(*x)->next) if (*x == p) { *x = p->next; break; }
  free(p); END;
}
EXPORT int hipMemPoolSetAttribute(Pool *p, int what, u64 *v) { CALL("hipMemPoolSetAttribute", p, what, *v, 0, 0, 0); if (what == 4) p->keep = *v; END; }
EXPORT int hipMemPoolGetAttribute(Pool *p, int what, u64 *v) {
  CALL("hipMemPoolGetAttribute", p, what, 0, 0, 0, 0); *v = what == 7 ? p->used : what == 5 ? p->used + p->kept : 0; END;
}
EXPORT int hipMemPoolTrimTo(Pool *p, u64 n) { CALL("hipMemPoolTrimTo", p, n, 0, 0, 0, 0); if (p->kept > n) p->kept = n; END; }
EXPORT int hipMallocFromPoolAsync(void **out, u64 n, Pool *p, void *h) {
  CALL("hipMallocFromPoolAsync", n, p, h, 0, 0, 0);
  Stream *s = of(h); if (!s) FAIL(INVALID_HANDLE); if (s->capture) FAIL(CAPTURE_UNSUPPORTED);
  code = block(out, n, p, 0); END;
}
EXPORT int hipFreeAsync(void *at, void *h) {
  CALL("hipFreeAsync", at, h, 0, 0, 0, 0);
  Stream *s = of(h); Block *b = holder((u64)at, 1); if (!s) FAIL(INVALID_HANDLE); if (!b || b->at != at || b->host) FAIL(INVALID_VALUE);
  put(s, (Op){.kind = FREE, .to = (u64)at}); END;
}
EXPORT int hipMalloc(void **out, u64 n) { CALL("hipMalloc", n, 0, 0, 0, 0, 0); code = block(out, n, 0, 0); END; }
static int release(void *at, int host) { Block *b = holder((u64)at, 1); if (!b || b->at != at || b->host != host) return INVALID_VALUE; drain_all(); drop(b); return 0; }
EXPORT int hipFree(void *at) { CALL("hipFree", at, 0, 0, 0, 0, 0); code = release(at, 0); END; }
EXPORT int hipHostMalloc(void **out, u64 n, unsigned flags) { CALL("hipHostMalloc", n, flags, 0, 0, 0, 0); code = block(out, n, 0, 1); END; }
EXPORT int hipHostFree(void *at) { CALL("hipHostFree", at, 0, 0, 0, 0, 0); code = release(at, 1); END; }
typedef struct { int type, device; void *at, *host; int managed; unsigned flags; } Attributes;
EXPORT int hipPointerGetAttributes(Attributes *out, void *at) {
  CALL("hipPointerGetAttributes", at, 0, 0, 0, 0, 0);
  Block *b = holder((u64)at, 1); if (!b) FAIL(INVALID_VALUE); memset(out, 0, sizeof *out); out->type = b->host ? 1 : 2; END;
}
static int fills(const char *name, u64 to, u64 step, uint32_t word, u64 n, u64 rows, int width, void *h) {
  CALL(name, to, step, word, n, rows, h); Stream *s = of(h); if (!s) FAIL(INVALID_HANDLE);
  put(s, (Op){.kind = FILL, .to = to, .to_step = step, .word = word, .n = n, .rows = rows, .width = width}); END;
}
EXPORT int hipMemsetD8Async(u64 to, unsigned char v, u64 n, void *s) { return fills("hipMemsetD8Async", to, 0, v, n, 1, 1, s); }
EXPORT int hipMemsetD16Async(u64 to, unsigned short v, u64 n, void *s) { return fills("hipMemsetD16Async", to, 0, v, n, 1, 2, s); }
EXPORT int hipMemsetD32Async(u64 to, int v, u64 n, void *s) { return fills("hipMemsetD32Async", to, 0, v, n, 1, 4, s); }
EXPORT int hipMemsetD2D8Async(u64 to, u64 step, unsigned char v, u64 n, u64 rows, void *s) { return fills("hipMemsetD2D8Async", to, step, v, n, rows, 1, s); }
EXPORT int hipMemsetD2D16Async(u64 to, u64 step, unsigned short v, u64 n, u64 rows, void *s) { return fills("hipMemsetD2D16Async", to, step, v, n, rows, 2, s); }
EXPORT int hipMemsetD2D32Async(u64 to, u64 step, unsigned v, u64 n, u64 rows, void *s) { return fills("hipMemsetD2D32Async", to, step, v, n, rows, 4, s); }
static int copies(const char *name, u64 to, u64 to_step, u64 from, u64 from_step, u64 n, u64 rows, void *h) {
  CALL(name, to, from, n, rows, h, to_step); Stream *s = of(h); if (!s) FAIL(INVALID_HANDLE);
  Op op = {.kind = COPY, .to = to, .to_step = to_step, .from = from, .from_step = from_step, .n = n, .rows = rows};
  if (rows == 1 && !(is_ours(to, n) && is_ours(from, n))) { /* memory that is not pinned: at once, after all that was before */
    if (s->capture) FAIL(CAPTURE_UNSUPPORTED);
    if (!is_ours(to, n) && !is_ours(from, n)) FAIL(INVALID_VALUE);
    drain(s); if (!lost) memmove((void *)to, (void *)from, n); code = lost;
  } else put(s, op);
  END;
}
EXPORT int hipMemcpyHtoDAsync(u64 to, u64 from, u64 n, void *s) { return copies("hipMemcpyHtoDAsync", to, 0, from, 0, n, 1, s); }
EXPORT int hipMemcpyDtoHAsync(u64 to, u64 from, u64 n, void *s) { return copies("hipMemcpyDtoHAsync", to, 0, from, 0, n, 1, s); }
EXPORT int hipMemcpyDtoDAsync(u64 to, u64 from, u64 n, void *s) { return copies("hipMemcpyDtoDAsync", to, 0, from, 0, n, 1, s); }
EXPORT int hipMemcpyAsync(u64 to, u64 from, u64 n, int kind, void *s) { return copies("hipMemcpyAsync", to, kind, from, 0, n, 1, s); }
EXPORT int hipMemcpy2DAsync(u64 to, u64 to_step, u64 from, u64 from_step, u64 n, u64 rows, int kind, void *s) {
  return kind != 3 || n > to_step || n > from_step ? INVALID_VALUE : copies("hipMemcpy2DAsync", to, to_step, from, from_step, n, rows, s);
}

/* ---- code */
EXPORT int hipModuleLoadData(Module **out, const unsigned char *data) {
  CALL("hipModuleLoadData", data, current, 0, 0, 0, 0);
  if (memcmp(data, "\177ELF", 4)) FAIL(INVALID_IMAGE);
  u64 sections; uint16_t size, count; memcpy(&sections, data + 40, 8); memcpy(&size, data + 58, 2); memcpy(&count, data + 60, 2);
  Module *m = calloc(1, sizeof *m); m->n = sections + (u64)size * count; m->data = malloc(m->n); /* HIP takes the size from there, too */
  memcpy(m->data, data, m->n); m->device = current; modules++; *out = m; END;
}
EXPORT int hipModuleUnload(Module *m) { CALL("hipModuleUnload", m, 0, 0, 0, 0, 0); drain_all(); free(m->data); free(m); modules--; END; }
EXPORT int hipModuleGetFunction(Function **out, Module *m, const char *name) {
  CALL("hipModuleGetFunction", m, 0, 0, 0, 0, 0);
  char symbol[124]; strcpy(symbol, name); strcat(symbol, ".kd"); /* the kernel's descriptor */
  if (!memmem(m->data, m->n, symbol, strlen(symbol) + 1)) FAIL(NOT_FOUND);
  Function *f = calloc(1, sizeof *f); f->module = m; strcpy(f->name, name); *out = f; END;
}
EXPORT int hipFuncGetAttribute(int *v, int what, Function *f) {
  CALL("hipFuncGetAttribute", what, f, 0, 0, 0, 0); *v = what == 4 ? 48 : what == 1 ? 1024 : 0; END; /* registers, LDS, scratch */
}
EXPORT int hipModuleLaunchKernel(Function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                 void *h, void **parameters, void **extra) {
  CALL("hipModuleLaunchKernel", f, gx, bx, shared, h, extra);
  Stream *s = of(h); if (!s) FAIL(INVALID_VALUE);
  if (parameters || !gx || gy != 1 || gz != 1 || !bx || by != 1 || bz != 1 || bx > 1024) FAIL(INVALID_VALUE);
  if ((u64)gx * bx > UINT32_MAX) FAIL(INVALID_CONFIGURATION);
  if (f->module->device != s->device) FAIL(INVALID_DEVICE);
  if (extra && (extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4] != (void *)3)) FAIL(INVALID_VALUE);
  Launch *l = calloc(1, sizeof *l); /* the words are copied now: the caller's memory may change */
  strcpy(l->name, f->name); l->image = (u64)f->module->data; l->image_bytes = f->module->n; l->blocks = gx; l->threads = bx; l->shared = shared;
  if (extra) { l->bytes = *(u64 *)extra[3]; memcpy(l->words, extra[1], l->bytes < sizeof l->words ? l->bytes : sizeof l->words); }
  put(s, (Op){.kind = LAUNCH, .launch = l}); END; /* leaked: a graph may run it again */
}

/* ---- graphs */
EXPORT int hipStreamBeginCapture(void *h, int mode) {
  CALL("hipStreamBeginCapture", h, mode, 0, 0, 0, 0);
  Stream *s = of(h); if (!s || !h || s->capture) FAIL(INVALID_VALUE);
  s->capture = calloc(1, sizeof(Graph)); s->capture->end = &s->capture->first; END;
}
EXPORT int hipStreamEndCapture(void *h, Graph **out) {
  CALL("hipStreamEndCapture", h, 0, 0, 0, 0, 0);
  Stream *s = of(h); if (!s || !s->capture) FAIL(CAPTURE_UNMATCHED); *out = s->capture; s->capture = 0; END;
}
EXPORT int hipGraphInstantiateWithFlags(Graph **out, Graph *g, u64 flags) {
  CALL("hipGraphInstantiateWithFlags", g, flags, 0, 0, 0, 0);
  Graph *made = calloc(1, sizeof *made); made->end = &made->first;
  for (Op *o = g->first; o; o = o->next) { Op *x = malloc(sizeof *x); *x = *o; x->next = 0; *made->end = x; made->end = &x->next; }
  *out = made; END;
}
static void forget(Graph *g) { for (Op *o = g->first; o;) { Op *next = o->next; free(o); o = next; } free(g); }
EXPORT int hipGraphDestroy(Graph *g) { CALL("hipGraphDestroy", g, 0, 0, 0, 0, 0); forget(g); END; }
EXPORT int hipGraphExecDestroy(Graph *g) { CALL("hipGraphExecDestroy", g, 0, 0, 0, 0, 0); drain_all(); forget(g); END; }
EXPORT int hipGraphLaunch(Graph *g, void *h) {
  CALL("hipGraphLaunch", g, h, 0, 0, 0, 0);
  Stream *s = of(h); if (!s) FAIL(INVALID_HANDLE); for (Op *o = g->first; o; o = o->next) put(s, *o); END;
}
