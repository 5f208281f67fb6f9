/* A stand-in for Objective-C's run time and for Metal, for x86-64: objects with counted references, autorelease pools, heaps whose memory
 * lies at two addresses, command queues that run what was committed when somebody waits. What real Metal would not tell, or only by wrong
 * numbers, is written down as a fault: memory that was not made resident, launches without a barrier or a fence between them, messages to
 * objects that are gone. See stand_in.py. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CLASS, STRING, ARRAY, ERROR_, DEVICE, DESCRIPTOR, OPTIONS, HEAP, BUFFER, QUEUE, COMMANDS, ENCODER, FENCE, LIBRARY, FUNCTION, PIPELINE, KINDS };
static const char *NAMES[KINDS] = {"Class", "NSString", "NSArray", "NSError", "MTLDevice", "MTLHeapDescriptor", "MTLCompileOptions", "MTLHeap",
    "MTLBuffer", "MTLCommandQueue", "MTLCommandBuffer", "MTLComputeCommandEncoder", "MTLFence", "MTLLibrary", "MTLFunction", "MTLComputePipelineState"};
enum { MAX_WORDS = 4096, MAX_CALLS = 65536, MAX_FAULTS = 64, MAX_DEVICES = 4, ALIGN = 256 };

typedef struct Obj Obj;
typedef const char *Sel;
typedef struct { uint64_t size, align; } SizeAndAlign;
typedef struct { uint64_t x, y, z; } Size3;

typedef struct Op Op;
struct Op { Op *next; int dispatch; Obj *pipeline; uint64_t blocks, threads, shared, bytes; uint8_t *words; int barrier; Obj **heaps; uint64_t nheaps; };

struct Obj {
    int kind, refs, dead;
    Obj *owner;               /* device of a heap, heap of a buffer, library of a function, function of a pipeline, queue of commands, .. */
    Obj *next;                /* list of all objects */
    char *text;               /* string, error, name of a function, source of a library */
    int64_t code;
    /* heaps and buffers */
    uint64_t size, at;
    uint8_t *host, *gpu;
    int fd;
    /* queue */
    Obj *first, *last, *follow, *fence, *updated, *waited;
    int encoders, running;
    /* commands and encoders */
    int status, ended;
    Op *ops, *last_op;
    Obj *pipeline;
    uint64_t shared;
    uint8_t *words;
    uint64_t nwords;
    Obj **heaps;
    uint64_t nheaps;
    double time;
    int storage, hazards, math;
    uint64_t version;
};

typedef struct {
    char name[120];
    uint64_t source, source_bytes;
    uint32_t blocks, threads, shared, bytes;
    uint64_t words[MAX_WORDS];
} Launch;
typedef int (*Run)(Launch *);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;
static Obj *all, *classes[KINDS], *devices[MAX_DEVICES];
static int n_devices, family = 8, unified = 1;
static uint64_t total = 1ull << 30, longest = 1ull << 30, others, most_threads = 1024, live_heap_bytes, launches, waits;
static char faults[MAX_FAULTS][200], calls[MAX_CALLS][64];
static int n_faults, n_calls;
static char fail_name[64], fail_text[512], work_text[512];
static int fail_code, fail_error, fail_stays, work_code, work_stays;
static Run run;
static Launch last_launch;
static double clock_now;

static void fault(const char *form, ...) {
    va_list args;
    va_start(args, form);
    if (n_faults < MAX_FAULTS) vsnprintf(faults[n_faults++], sizeof faults[0], form, args);
    va_end(args);
}

/* ---- objects */
static Obj *make(int kind) {
    Obj *o = calloc(1, sizeof *o);
    o->kind = kind, o->refs = 1, o->next = all, all = o;
    return o;
}
static void release(Obj *o);
static Obj *retain(Obj *o) {
    if (o) o->refs++;
    return o;
}
static void forget_ops(Obj *o) {
    while (o->ops) {
        Op *op = o->ops;
        o->ops = op->next;
        if (op->pipeline) release(op->pipeline);
        free(op->words), free(op->heaps), free(op);
    }
}
static void end_of(Obj *o) {
    o->dead = 1;
    if (o->kind == HEAP) {
        munmap(o->host, o->size), munmap(o->gpu, o->size), close(o->fd);
        live_heap_bytes -= o->size;
    }
    if (o->kind == COMMANDS && o->status == 0 && o->ops) fault("a command buffer with work was never committed");
    if (o->kind == ENCODER && !o->ended) fault("an encoder was released before it was ended");
    if (o->kind == COMMANDS) forget_ops(o);
    if (o->owner && o->kind != BUFFER && o->kind != HEAP) release(o->owner);
    if (o->kind == BUFFER) release(o->owner);
    free(o->text), o->text = 0;
    free(o->words), o->words = 0;
    free(o->heaps), o->heaps = 0;
}
static void release(Obj *o) {
    if (!o || o->kind == CLASS || o->kind == DEVICE) return;
    if (o->dead) { fault("%s was released too often", NAMES[o->kind]); return; }
    if (--o->refs == 0) end_of(o);
}
static Obj *string(const char *text) {
    Obj *o = make(STRING);
    o->text = strdup(text);
    return o;
}

/* ---- autorelease pools, of one thread each */
typedef struct { Obj *objects[4096]; int count, marks[64], depth; } Pool;
static __thread Pool pool;
static Obj *autorelease(Obj *o) {
    if (!pool.depth) fault("%s was autoreleased without a pool", NAMES[o->kind]);
    else if (pool.count < 4096) pool.objects[pool.count++] = o;
    return o;
}
void *objc_autoreleasePoolPush(void) {
    pool.marks[pool.depth++] = pool.count;
    return (void *)(intptr_t)pool.depth;
}
void objc_autoreleasePoolPop(void *p) {
    pthread_mutex_lock(&lock);
    if ((intptr_t)p != pool.depth) fault("pools were popped in another order");
    int to = pool.marks[--pool.depth];
    while (pool.count > to) release(pool.objects[--pool.count]);
    pthread_mutex_unlock(&lock);
}

/* ---- selectors and classes */
static char *selectors[256];
static int n_selectors;
Sel sel_registerName(const char *name) {
    for (int k = 0; k < n_selectors; k++)
        if (!strcmp(selectors[k], name)) return selectors[k];
    return selectors[n_selectors++] = strdup(name);
}
Obj *objc_getClass(const char *name) {
    for (int k = 1; k < KINDS; k++)
        if (!strcmp(NAMES[k], name)) {
            if (!classes[k]) classes[k] = make(CLASS), classes[k]->code = k;
            return classes[k];
        }
    return 0;
}

/* ---- messages. A message that is to fail gives nil, and an error if it can. */
static int refused(const char *name, Obj **error) {
    if (strcmp(fail_name, name)) return 0;
    if (!fail_stays) fail_name[0] = 0;
    if (error && fail_error) {
        *error = make(ERROR_), (*error)->code = fail_code, (*error)->text = strdup(fail_text);
        autorelease(*error);
    }
    return 1;
}
static Obj *m_retain(Obj *self, Sel s) { return retain(self); }
static void m_release(Obj *self, Sel s) { release(self); }
static Obj *m_new(Obj *self, Sel s) {
    Obj *o = make((int)self->code);
    o->hazards = -1, o->math = -1;
    return o;
}
static Obj *m_string(Obj *self, Sel s, const char *text) { return autorelease(string(text)); }
static const char *m_utf8(Obj *self, Sel s) { return self->text; }
static uint64_t m_count(Obj *self, Sel s) { return n_devices; }
static Obj *m_object(Obj *self, Sel s, uint64_t k) { return devices[k]; }
static int64_t m_code(Obj *self, Sel s) { return self->code; }
static Obj *m_text(Obj *self, Sel s) { return self->text ? autorelease(string(self->text)) : 0; }

static uint64_t m_registry(Obj *self, Sel s) { return 0x1234567800000000ull + (uint64_t)self->code; }
static _Bool m_unified(Obj *self, Sel s) { return unified; }
static _Bool m_family(Obj *self, Sel s, int64_t which) { return which > 1000 && which <= 1000 + family; }
static uint64_t m_working(Obj *self, Sel s) { return total; }
static uint64_t m_allocated(Obj *self, Sel s) { return live_heap_bytes; }
static uint64_t m_longest(Obj *self, Sel s) { return longest; }
static Obj *m_queue(Obj *self, Sel s) {
    if (refused("newCommandQueue", 0)) return 0;
    return make(QUEUE);
}
static Obj *m_fence(Obj *self, Sel s) { return make(FENCE); }
static SizeAndAlign m_fit(Obj *self, Sel s, uint64_t n, uint64_t options) {
    uint64_t page = n >= 65536 ? 16384 : ALIGN;
    return (SizeAndAlign){(n + page - 1) / page * page, ALIGN};
}
static Obj *m_heap(Obj *self, Sel s, Obj *descriptor) {
    if (refused("newHeapWithDescriptor:", 0)) return 0;
    uint64_t size = (descriptor->size + 16383) / 16384 * 16384;
    if (live_heap_bytes + size + others > total) return 0;
    if (descriptor->storage != 0) fault("a heap that the host cannot read");
    if (descriptor->hazards != 1) fault("a heap that is tracked as one resource");
    Obj *o = make(HEAP);
    o->size = size, o->fd = memfd_create("heap", 0), live_heap_bytes += size;
    if (ftruncate(o->fd, (off_t)size)) abort();
    o->host = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, o->fd, 0);
    o->gpu = mmap(0, size, PROT_NONE, MAP_SHARED, o->fd, 0);
    for (uint64_t k = 0; k < size && k < 65536; k++) o->host[k] = 0xFF;
    return o;
}
static Obj *m_library(Obj *self, Sel s, Obj *source, Obj *options, Obj **error) {
    if (refused("newLibraryWithSource:options:error:", error)) return 0;
    if (!strstr(source->text, "#include <metal_stdlib>")) fault("a source without the standard library");
    if (options->math != 0) fault("a source is compiled with fast math");
    if (options->version != (3 << 16) + 2) fault("a source is compiled for another version of the language");
    Obj *o = make(LIBRARY);
    o->text = strdup(source->text);
    return o;
}
static Obj *m_pipeline(Obj *self, Sel s, Obj *function, Obj **error) {
    if (refused("newComputePipelineStateWithFunction:error:", error)) return 0;
    Obj *o = make(PIPELINE);
    o->owner = retain(function);
    return o;
}
static void m_set_size(Obj *self, Sel s, uint64_t v) { self->size = v; }
static void m_set_storage(Obj *self, Sel s, uint64_t v) { self->storage = (int)v; }
static void m_set_hazards(Obj *self, Sel s, uint64_t v) { self->hazards = (int)v; }
static void m_set_math(Obj *self, Sel s, int64_t v) { self->math = (int)v; }
static void m_set_version(Obj *self, Sel s, uint64_t v) { self->version = v; }

/* first fit in a heap; the place of a new buffer, or -1 */
static int64_t place(Obj *heap, uint64_t size) {
    uint64_t at = 0;
    for (int moved = 1; moved;) {
        moved = 0;
        for (Obj *b = all; b; b = b->next)
            if (b->kind == BUFFER && !b->dead && b->owner == heap && at < b->at + b->size && b->at < at + size)
                at = (b->at + b->size + ALIGN - 1) / ALIGN * ALIGN, moved = 1;
    }
    return at + size <= heap->size ? (int64_t)at : -1;
}
static uint64_t m_available(Obj *self, Sel s, uint64_t align) {
    uint64_t low = 0, high = self->size;
    while (low < high) {
        uint64_t middle = (low + high + 1) / 2;
        if (place(self, middle) >= 0) low = middle;
        else high = middle - 1;
    }
    return low;
}
static Obj *m_buffer(Obj *self, Sel s, uint64_t n, uint64_t options) {
    if (refused("newBufferWithLength:options:", 0) || n > longest) return 0;
    if (options != 1 << 8) fault("a buffer with other options than its heap");
    int64_t at = place(self, n);
    if (at < 0) return 0;
    Obj *o = make(BUFFER);
    o->owner = retain(self), o->at = (uint64_t)at, o->size = n;
    return o;
}
static void *m_contents(Obj *self, Sel s) { return self->owner->host + self->at; }
static uint64_t m_gpu_address(Obj *self, Sel s) { return (uint64_t)(self->owner->gpu + self->at); }
static Obj *m_function(Obj *self, Sel s, Obj *name) {
    char want[200];
    snprintf(want, sizeof want, "kernel void %s(", name->text);
    if (!strstr(self->text, want) || refused("newFunctionWithName:", 0)) return 0;
    Obj *o = make(FUNCTION);
    o->owner = retain(self), o->text = strdup(name->text);
    return o;
}
static uint64_t m_most(Obj *self, Sel s) { return most_threads; }

static Obj *m_commands(Obj *self, Sel s) {
    if (refused("commandBuffer", 0)) return 0;
    Obj *o = make(COMMANDS);
    o->owner = retain(self);
    return autorelease(o);
}
static Obj *m_encoder(Obj *self, Sel s) {
    if (refused("computeCommandEncoder", 0)) return 0;
    Obj *o = make(ENCODER);
    o->owner = retain(self);
    return autorelease(o);
}
static void add(Obj *encoder, Op *op) {
    Obj *c = encoder->owner;
    if (encoder->ended) fault("a message to an encoder that has ended");
    if (c->last_op) c->last_op->next = op;
    else c->ops = op;
    c->last_op = op;
}
static void m_set_pipeline(Obj *self, Sel s, Obj *pipeline) { self->pipeline = pipeline; }
static void m_set_shared(Obj *self, Sel s, uint64_t n, uint64_t index) {
    if (n % 16 || index) fault("on-chip memory of %lu bytes at %lu", n, index);
    self->shared = n;
}
static void m_set_bytes(Obj *self, Sel s, const void *words, uint64_t n, uint64_t index) {
    if (n > 4096 || index) fault("setBytes of %lu bytes at %lu", n, index);
    free(self->words);
    self->words = memcpy(malloc(n), words, n), self->nwords = n;
}
static void m_set_buffer(Obj *self, Sel s, Obj *buffer, uint64_t offset, uint64_t index) {
    if (buffer->kind != BUFFER || buffer->dead || offset >= buffer->size || offset % 256 || index) { fault("setBuffer of a wrong buffer"); return; }
    uint64_t n = buffer->size - offset;
    if (n > 8 * MAX_WORDS) n = 8 * MAX_WORDS;
    free(self->words); /* the ring is not written again while the work waits */
    self->words = memcpy(malloc(n), buffer->owner->host + buffer->at + offset, n), self->nwords = n;
}
static void m_dispatch(Obj *self, Sel s, Size3 grid, Size3 block) {
    Op *op = calloc(1, sizeof *op);
    if (!self->pipeline || self->pipeline->dead) { fault("a launch without a pipeline"); free(op); return; }
    if (grid.y != 1 || grid.z != 1 || block.y != 1 || block.z != 1 || !grid.x || !block.x || block.x > most_threads)
        fault("a launch of %lu blocks of %lu threads", grid.x, block.x);
    op->dispatch = 1, op->pipeline = retain(self->pipeline), op->blocks = grid.x, op->threads = block.x, op->shared = self->shared;
    op->bytes = self->nwords, op->words = self->nwords ? memcpy(malloc(self->nwords), self->words, self->nwords) : 0;
    op->nheaps = self->nheaps, op->heaps = memcpy(malloc(8 * (self->nheaps + 1)), self->heaps ? (void *)self->heaps : (void *)"", 8 * self->nheaps);
    for (Op *o = self->owner->ops; o; o = o->next)
        if (o == self->owner->last_op && !o->barrier) fault("no barrier between two launches");
    add(self, op);
}
static void m_barrier(Obj *self, Sel s, uint64_t scope) {
    if (scope != 1) fault("a barrier for %lu", scope);
    if (self->owner->last_op) self->owner->last_op->barrier = 1;
}
static void m_use(Obj *self, Sel s, Obj **heaps, uint64_t n) {
    self->heaps = realloc(self->heaps, 8 * (self->nheaps + n + 1));
    for (uint64_t k = 0; k < n; k++) {
        if (heaps[k]->kind != HEAP || heaps[k]->dead) fault("a heap that is gone was made resident");
        self->heaps[self->nheaps++] = heaps[k];
    }
}
static void m_wait_fence(Obj *self, Sel s, Obj *fence) { self->waited = fence; }
static void m_update_fence(Obj *self, Sel s, Obj *fence) { self->updated = fence; }
static void m_end(Obj *self, Sel s) {
    Obj *q = self->owner->owner;
    if (self->ended) fault("an encoder was ended twice");
    if (q->encoders++ && (!self->waited || self->waited != q->fence)) fault("an encoder does not wait for the one before");
    if (!self->updated) fault("an encoder that the next one cannot wait for");
    q->fence = self->updated, self->ended = 1;
    self->owner->ended++;
}
static void m_commit(Obj *self, Sel s) {
    Obj *q = self->owner;
    if (self->status) fault("a command buffer was committed twice");
    if (!self->ended) fault("a command buffer was committed before its encoder had ended");
    self->status = 2, retain(self);
    if (q->last) q->last->follow = self;
    else q->first = self;
    q->last = self;
}

/* ---- running */
static void protect(int access) {
    for (Obj *o = all; o; o = o->next)
        if (o->kind == HEAP && !o->dead) mprotect(o->gpu, o->size, access);
}
static int resident(Op *op) {
    for (uint64_t k = 0; k + 8 <= op->bytes; k += 8) {
        uint64_t word;
        memcpy(&word, op->words + k, 8);
        for (Obj *h = all; h; h = h->next)
            if (h->kind == HEAP && !h->dead && word >= (uint64_t)h->gpu && word < (uint64_t)h->gpu + h->size) {
                int found = 0;
                for (uint64_t j = 0; j < op->nheaps; j++) found |= op->heaps[j] == h;
                if (!found) { fault("a launch of `%s` uses memory that is not resident", op->pipeline->owner->text); return 0; }
            }
    }
    return 1;
}
static void transfer(const char *name, const uint64_t *w) {
    uint64_t size = (uint64_t)(name[8] - '0');
    int fills = !strncmp(name, "qd_fill_", 8);
    uint64_t count = w[fills ? 3 : 4], rows = w[fills ? 4 : 5];
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t k = 0; k < count; k++)
            memcpy((void *)(w[0] + r * w[1] + k * size), fills ? (void *)&w[2] : (void *)(w[2] + r * w[3] + k * size), size);
}
static int one(Op *op) {
    Launch *l = &last_launch;
    memset(l, 0, sizeof *l);
    snprintf(l->name, sizeof l->name, "%s", op->pipeline->owner->text);
    l->source = (uint64_t)op->pipeline->owner->owner->text, l->source_bytes = strlen((char *)l->source);
    l->blocks = (uint32_t)op->blocks, l->threads = (uint32_t)op->threads, l->shared = (uint32_t)op->shared, l->bytes = (uint32_t)op->bytes;
    if (op->bytes) memcpy(l->words, op->words, op->bytes < sizeof l->words ? op->bytes : sizeof l->words);
    launches++;
    if (run) {
        pthread_mutex_unlock(&lock);
        int code = run(l);
        pthread_mutex_lock(&lock);
        return code;
    }
    if (!strncmp(l->name, "qd_fill_", 8) || !strncmp(l->name, "qd_copy_", 8)) transfer(l->name, l->words);
    return 0;
}
static void execute(Obj *c) {
    int code = work_code;
    if (code && !work_stays) work_code = 0;
    protect(PROT_READ | PROT_WRITE);
    for (Op *op = c->ops; op && !code; op = op->next)
        if (op->dispatch) code = resident(op) ? one(op) : 3;
    protect(PROT_NONE);
    c->status = code ? 5 : 4, c->code = code;
    if (code) c->text = strdup(work_text);
    c->time = clock_now += 0.001;
    forget_ops(c), c->last_op = 0;
    release(c); /* of the queue */
}
static void m_wait(Obj *self, Sel s) {
    Obj *q = self->owner;
    waits++;
    if (!self->status) { fault("a wait for a command buffer that was not committed"); return; }
    while (self->status < 4) {
        while (q->running) pthread_cond_wait(&progress, &lock);
        if (self->status >= 4) break;
        Obj *c = q->first;
        q->first = c->follow;
        if (!q->first) q->last = 0;
        q->running = 1;
        execute(c);
        q->running = 0, pthread_cond_broadcast(&progress);
    }
}
static uint64_t m_status(Obj *self, Sel s) { return (uint64_t)self->status; }
static Obj *m_error(Obj *self, Sel s) {
    if (self->status != 5) return 0;
    Obj *e = make(ERROR_);
    e->code = self->code, e->text = self->text ? strdup(self->text) : 0;
    return autorelease(e);
}
static double m_time(Obj *self, Sel s) { return self->time; }

typedef struct { int kind; const char *name; void *imp; } Method;
static const Method METHODS[] = {
    {-1, "retain", m_retain}, {-1, "release", m_release}, 
    {CLASS, "new", m_new}, {CLASS, "stringWithUTF8String:", m_string}, {STRING, "UTF8String", m_utf8},
    {ARRAY, "count", m_count}, {ARRAY, "objectAtIndex:", m_object}, {ERROR_, "code", m_code}, {ERROR_, "localizedDescription", m_text},
    {DEVICE, "name", m_text}, {DEVICE, "registryID", m_registry}, {DEVICE, "hasUnifiedMemory", m_unified}, {DEVICE, "supportsFamily:", m_family},
    {DEVICE, "recommendedMaxWorkingSetSize", m_working}, {DEVICE, "currentAllocatedSize", m_allocated}, {DEVICE, "maxBufferLength", m_longest},
    {DEVICE, "newCommandQueue", m_queue}, {DEVICE, "newFence", m_fence}, {DEVICE, "newHeapWithDescriptor:", m_heap},
    {DEVICE, "heapBufferSizeAndAlignWithLength:options:", m_fit}, {DEVICE, "newLibraryWithSource:options:error:", m_library},
    {DEVICE, "newComputePipelineStateWithFunction:error:", m_pipeline},
    {DESCRIPTOR, "setSize:", m_set_size}, {DESCRIPTOR, "setStorageMode:", m_set_storage}, {DESCRIPTOR, "setHazardTrackingMode:", m_set_hazards},
    {OPTIONS, "setMathMode:", m_set_math}, {OPTIONS, "setLanguageVersion:", m_set_version},
    {HEAP, "maxAvailableSizeWithAlignment:", m_available}, {HEAP, "newBufferWithLength:options:", m_buffer},
    {BUFFER, "contents", m_contents}, {BUFFER, "gpuAddress", m_gpu_address}, {LIBRARY, "newFunctionWithName:", m_function},
    {PIPELINE, "maxTotalThreadsPerThreadgroup", m_most}, {QUEUE, "commandBuffer", m_commands}, {COMMANDS, "computeCommandEncoder", m_encoder},
    {COMMANDS, "commit", m_commit}, {COMMANDS, "waitUntilCompleted", m_wait}, {COMMANDS, "status", m_status}, {COMMANDS, "error", m_error},
    {COMMANDS, "GPUEndTime", m_time}, {ENCODER, "setComputePipelineState:", m_set_pipeline},
    {ENCODER, "setThreadgroupMemoryLength:atIndex:", m_set_shared}, {ENCODER, "setBytes:length:atIndex:", m_set_bytes},
    {ENCODER, "setBuffer:offset:atIndex:", m_set_buffer}, {ENCODER, "dispatchThreadgroups:threadsPerThreadgroup:", m_dispatch},
    {ENCODER, "memoryBarrierWithScope:", m_barrier}, {ENCODER, "useHeaps:count:", m_use}, {ENCODER, "waitForFence:", m_wait_fence},
    {ENCODER, "updateFence:", m_update_fence}, {ENCODER, "endEncoding", m_end},
};
static void *method(int kind, Sel s) {
    for (size_t k = 0; k < sizeof METHODS / sizeof *METHODS; k++)
        if ((METHODS[k].kind == kind || METHODS[k].kind == -1) && !strcmp(METHODS[k].name, s)) return METHODS[k].imp;
    return 0;
}
static uint64_t nil(void) { return 0; }

/* Every message holds the lock while it runs: lookup takes it, and puts the message's return address aside for `standin_after`. */
static __thread void *returns[64];
static __thread int n_returns;
void *standin_lookup(Obj *self, Sel s, void *back) {
    pthread_mutex_lock(&lock);
    returns[n_returns++] = back;
    if (n_calls < MAX_CALLS) snprintf(calls[n_calls++], sizeof calls[0], "%s", s);
    if (!self) return (void *)nil;
    if (self->dead) { fault("%s was sent to an %s that is gone", s, NAMES[self->kind]); return (void *)nil; }
    void *imp = method(self->kind, s);
    if (!imp) {
        fprintf(stderr, "-[%s %s]: unrecognized selector\n", NAMES[self->kind], s);
        abort();
    }
    return imp;
}
void *standin_after(void) {
    pthread_mutex_unlock(&lock);
    return returns[--n_returns];
}
/* The registers of the message are those of the call. The return address is replaced while the message runs, so that its stack is as the
 * caller has laid it. */
__asm__(
    ".globl objc_msgSend\n.type objc_msgSend,@function\nobjc_msgSend:\n"
    "  pushq %rbp\n  movq %rsp, %rbp\n  subq $192, %rsp\n"
    "  movq %rdi, (%rsp)\n  movq %rsi, 8(%rsp)\n  movq %rdx, 16(%rsp)\n  movq %rcx, 24(%rsp)\n  movq %r8, 32(%rsp)\n  movq %r9, 40(%rsp)\n"
    "  movsd %xmm0, 48(%rsp)\n  movsd %xmm1, 56(%rsp)\n"
    "  movq 8(%rbp), %rdx\n"
    "  call standin_lookup@PLT\n  movq %rax, %r11\n"
    "  movq (%rsp), %rdi\n  movq 8(%rsp), %rsi\n  movq 16(%rsp), %rdx\n  movq 24(%rsp), %rcx\n  movq 32(%rsp), %r8\n  movq 40(%rsp), %r9\n"
    "  movsd 48(%rsp), %xmm0\n  movsd 56(%rsp), %xmm1\n"
    "  leave\n"
    "  leaq 1f(%rip), %rax\n  movq %rax, (%rsp)\n  jmp *%r11\n"
    "1:\n" /* the return address is off the stack: what the caller has laid begins at rsp */
    "  subq $8, %rsp\n  pushq %rbp\n  movq %rsp, %rbp\n  subq $48, %rsp\n  andq $-16, %rsp\n"
    "  movq %rax, (%rsp)\n  movq %rdx, 8(%rsp)\n  movsd %xmm0, 16(%rsp)\n"
    "  call standin_after@PLT\n  movq %rax, 8(%rbp)\n"
    "  movq (%rsp), %rax\n  movq 8(%rsp), %rdx\n  movsd 16(%rsp), %xmm0\n"
    "  leave\n  ret\n"
    ".size objc_msgSend, .-objc_msgSend\n");

Obj *MTLCopyAllDevices(void) { return make(ARRAY); }

/* ---- what tests ask for */
void standin_setup(int count, uint64_t bytes, uint64_t most_bytes, int fam, int uni, uint64_t threads) {
    n_devices = count, total = bytes, longest = most_bytes, family = fam, unified = uni, most_threads = threads;
    for (int k = 0; k < count; k++)
        if (!devices[k]) devices[k] = make(DEVICE), devices[k]->text = strdup("Apple Test"), devices[k]->code = k;
    n_faults = n_calls = 0, fail_name[0] = 0, work_code = 0, others = 0, run = 0, launches = waits = 0;
}
void standin_others(uint64_t n) { others = n; }
void standin_run(Run f) { run = f; }
void standin_fail(const char *name, int code, const char *text, int error, int stays) {
    snprintf(fail_name, sizeof fail_name, "%s", name), snprintf(fail_text, sizeof fail_text, "%s", text);
    fail_code = code, fail_error = error, fail_stays = stays;
}
void standin_fail_work(int code, const char *text, int stays) {
    snprintf(work_text, sizeof work_text, "%s", text), work_code = code, work_stays = stays;
}
int standin_faults(char *to) {
    int n = n_faults;
    memcpy(to, faults, sizeof faults[0] * (size_t)n), n_faults = 0;
    return n;
}
int standin_calls(char *to) {
    int n = n_calls;
    memcpy(to, calls, sizeof calls[0] * (size_t)n), n_calls = 0;
    return n;
}
void standin_last(Launch *to) { *to = last_launch; }
/* Live objects by kind; returns bytes of heaps. */
uint64_t standin_live(uint64_t *counts, uint64_t *ran, uint64_t *waited) {
    memset(counts, 0, 8 * KINDS);
    for (Obj *o = all; o; o = o->next) counts[o->kind] += !o->dead;
    *ran = launches, *waited = waits;
    return live_heap_bytes;
}
/* Begin and bytes of each live buffer, as kernels see it. */
int standin_ranges(uint64_t *to) {
    int n = 0;
    for (Obj *b = all; b; b = b->next)
        if (b->kind == BUFFER && !b->dead) to[2 * n] = (uint64_t)(b->owner->gpu + b->at), to[2 * n + 1] = b->size, n++;
    return n;
}
/* What a process still has of a GPU that has failed goes with it. Code stays: later programs use it. */
void standin_reset(void) {
    pthread_mutex_lock(&lock);
    for (Obj *o = all; o; o = o->next)
        if (!o->dead && o->kind >= HEAP && o->kind <= FENCE) {
            forget_ops(o), o->status = o->ended = 1;
            end_of(o);
        }
    pthread_mutex_unlock(&lock);
}
/* Objects that are gone are given back for good: messages to them are no longer noticed. */
void standin_sweep(void) {
    pthread_mutex_lock(&lock);
    for (Obj **p = &all; *p;) {
        Obj *o = *p;
        if (o->dead) *p = o->next, free(o);
        else p = &o->next;
    }
    pthread_mutex_unlock(&lock);
}
