// The C interface: the choice of instruction set, the thread pool, and both after a fork.
//
// Compiled once, for any processor of the target. The library exports only the names hw_* below.
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "call.h"
#include "glibc.h"
#include "pool.h"
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#define HW_EXPORT extern "C" __attribute__((visibility("default")))

enum { PORTABLE, AVX2, AVX512, AVX512BF16, NEONBF16, ISAS };
enum { NO_SUCH_ISA = -2 };

#define HW_DECLARE(isa)                                            \
    extern "C" int64_t hw_run_##isa(const int64_t*, int64_t);      \
    extern "C" int64_t hw_rms_norm_##isa(const int64_t*, int64_t); \
    extern "C" int64_t hw_rotate_##isa(const int64_t*, int64_t);     \
    extern "C" int64_t hw_roof_##isa(int64_t kind, int64_t threads, int64_t rounds, double* flops);
HW_DECLARE(portable)
HW_DECLARE(avx2)
HW_DECLARE(avx512)
HW_DECLARE(avx512bf16)
HW_DECLARE(neonbf16)

namespace {

typedef int64_t (*hw_call)(const int64_t* words, int64_t count);

struct Isa {
    hw_call run, rms_norm, rotate;
    int64_t (*roof)(int64_t kind, int64_t threads, int64_t rounds, double* flops);
};

// the compiled instruction sets by number
const Isa COMPILED[ISAS] = {
    {hw_run_portable, hw_rms_norm_portable, hw_rotate_portable, hw_roof_portable},
#if defined(HW_HAVE_AVX2)
    {hw_run_avx2, hw_rms_norm_avx2, hw_rotate_avx2, hw_roof_avx2},
#else
    {NULL, NULL, NULL, NULL},
#endif
#if defined(HW_HAVE_AVX512)
    {hw_run_avx512, hw_rms_norm_avx512, hw_rotate_avx512, hw_roof_avx512},
#else
    {NULL, NULL, NULL, NULL},
#endif
#if defined(HW_HAVE_AVX512BF16)
    {hw_run_avx512bf16, hw_rms_norm_avx512bf16, hw_rotate_avx512bf16, hw_roof_avx512bf16},
#else
    {NULL, NULL, NULL, NULL},
#endif
#if defined(HW_HAVE_NEONBF16)
    {hw_run_neonbf16, hw_rms_norm_neonbf16, hw_rotate_neonbf16, hw_roof_neonbf16},
#else
    {NULL, NULL, NULL, NULL},
#endif
};

// Asks the processor itself, since compilers differ in the names that __builtin_cpu_supports knows.
int64_t best_of_processor() {
#if defined(__x86_64__)
    unsigned a, b, c, d;
    const unsigned FMA = 1u << 12, OSXSAVE = 1u << 27, F16C = 1u << 29;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return PORTABLE;
    if ((c & (FMA | OSXSAVE | F16C)) != (FMA | OSXSAVE | F16C)) return PORTABLE;
    // the registers that the operating system saves for a thread
    unsigned kept, high;
    __asm__ volatile(".byte 0x0f, 0x01, 0xd0" : "=a"(kept), "=d"(high) : "c"(0));
    const unsigned YMM = 0x06, ZMM = 0xe6;
    if ((kept & YMM) != YMM || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return PORTABLE;
    const unsigned HAS_AVX2 = 1u << 5, F = 1u << 16, DQ = 1u << 17, BW = 1u << 30, VL = 1u << 31;
    if (!(b & HAS_AVX2)) return PORTABLE;
    if ((kept & ZMM) != ZMM || (b & (F | DQ | BW | VL)) != (F | DQ | BW | VL)) return AVX2;
    if (a < 1 || !__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & 1u << 5)) return AVX512;
    return AVX512BF16;
#elif defined(__aarch64__) && defined(__linux__)
    const unsigned long HAS_BF16 = 1ul << 14;  // HWCAP2_BF16, which older headers lack
    return getauxval(AT_HWCAP2) & HAS_BF16 ? NEONBF16 : PORTABLE;
#elif defined(__aarch64__) && defined(__APPLE__)
    int there = 0;
    size_t size = sizeof there;
    return sysctlbyname("hw.optional.arm.FEAT_BF16", &there, &size, NULL, 0) == 0 && there ? NEONBF16 : PORTABLE;
#else
    return PORTABLE;
#endif
}

typedef int32_t (*parallel_for)(int64_t begin, int64_t end, int64_t grain, void (*)(int64_t, int64_t, void*), void*);

int64_t best = PORTABLE;
int forked = 0;
parallel_for pool = NULL;

void in_child() { __atomic_store_n(&forked, 1, __ATOMIC_RELAXED); }

// asked once, since CPUID takes tens of microseconds under a hypervisor
__attribute__((constructor)) void at_load() {
    best = best_of_processor();
    pthread_atfork(NULL, NULL, in_child);
}

// A fork copies only the calling thread: in the child the pool has no threads, and waiting for it would deadlock.
parallel_for usable_pool() {
    return __atomic_load_n(&forked, __ATOMIC_RELAXED) ? NULL : __atomic_load_n(&pool, __ATOMIC_ACQUIRE);
}

// The rounding mode of this thread, and whether it flushes denormal numbers to 0 (torch.set_flush_denormal). Each thread
// has its own, but no result may depend on which thread computes it, so workers get those of the caller.
#if defined(__x86_64__)
typedef unsigned Rounding;
const Rounding SETTINGS = ~0x3fu;  // the other bits are exception flags
Rounding rounding() { return __builtin_ia32_stmxcsr() & SETTINGS; }
void set_rounding(Rounding x) { __builtin_ia32_ldmxcsr(x | (__builtin_ia32_stmxcsr() & ~SETTINGS)); }
#elif defined(__aarch64__)
typedef uint64_t Rounding;
Rounding rounding() {
    Rounding x;
    __asm__ volatile("mrs %0, fpcr" : "=r"(x));
    return x;
}
void set_rounding(Rounding x) { __asm__ volatile("msr fpcr, %0" : : "r"(x)); }
#else
typedef int Rounding;
Rounding rounding() { return 0; }
void set_rounding(Rounding) {}
#endif

struct Job {
    hw_stage* stages;
    int64_t count;
    Rounding rounding;
};

// Only running workers take items, so a wait always ends.
void wait_for(const hw_stage& stage) {
    for (int64_t spins = 0; __atomic_load_n(&stage.done, __ATOMIC_ACQUIRE) < stage.items; spins++) {
        if (spins > 2000) sched_yield();
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
}

struct TemporaryThreads;
void grow(TemporaryThreads& threads);

// threads: grow after each item, or null
void work(const Job* job, int64_t worker, TemporaryThreads* threads = NULL) {
    for (int64_t i = 0; i < job->count; i++) {
        hw_stage& stage = job->stages[i];
        for (;;) {
            const int64_t item = __atomic_fetch_add(&stage.next, 1, __ATOMIC_RELAXED);
            if (item >= stage.items) break;
            stage.task(stage.context, item, worker);
            __atomic_fetch_add(&stage.done, 1, __ATOMIC_RELEASE);
            if (threads) grow(*threads);
        }
        if (i + 1 < job->count) wait_for(stage);
    }
}

// A thread that gets the numbers of several workers works as the first and leaves no items for the others.
void piece(int64_t begin, int64_t, void* context) {
    const Job* job = (const Job*)context;
    const Rounding before = rounding();
    if (before != job->rounding) set_rounding(job->rounding);
    work(job, begin);
    if (before != job->rounding) set_rounding(before);
}

// Without a pool, threads end with the call. A call starts one more after every STEP nanoseconds, so that a short call
// starts none.
struct TemporaryThreads {
    enum { MAX = 128, STEP = 50000 };  // nanoseconds
    const Job& job;
    int64_t workers, begun, count;
    struct Member {
        const Job* job;
        int64_t worker;
        pthread_t thread;
    } member[MAX];
};

int64_t now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

void* enter(void* member) {
    const TemporaryThreads::Member* self = (const TemporaryThreads::Member*)member;
    piece(self->worker, self->worker + 1, (void*)self->job);
    return NULL;
}

void grow(TemporaryThreads& threads) {
    if (threads.count + 1 >= threads.workers || threads.count == TemporaryThreads::MAX) return;
    if (now() - threads.begun < (threads.count + 1) * TemporaryThreads::STEP) return;
    TemporaryThreads::Member& next = threads.member[threads.count];
    next.job = &threads.job, next.worker = threads.count + 1;
    if (pthread_create(&next.thread, NULL, enter, &next) == 0) threads.count++;
}

void run_on_new_threads(const Job& job, int64_t workers) {
    TemporaryThreads threads = {job, workers, now(), 0, {}};
    work(&job, 0, &threads);
    while (threads.count) pthread_join(threads.member[--threads.count].thread, NULL);
}

bool available(int64_t isa) { return isa >= 0 && isa <= best && COMPILED[isa].run; }

}  // namespace

extern "C" int64_t hw_workers(int64_t threads, int64_t items) {
    int64_t workers = threads < items ? threads : items;
    return workers < 1 ? 1 : workers;
}

extern "C" void hw_run(hw_stage* stages, int64_t count, int64_t workers) {
    const Job job = {stages, count, rounding()};
    int64_t largest = 0;
    for (int64_t i = 0; i < count; i++) largest = stages[i].items > largest ? stages[i].items : largest;
    if (workers > 1 && largest > 1) {
        parallel_for spread = usable_pool();
        if (!spread) return run_on_new_threads(job, workers);
        spread(0, workers, 1, piece, (void*)&job);
    }
    work(&job, 0);  // all items, or those left by a failed pool
}

// One call as a row of words. > 0: 1 + the number of the wrong word
#define HW_CALL(name, member)                                                              \
    HW_EXPORT int64_t hw_##name(const int64_t* words, int64_t count, int64_t isa) {        \
        if (!available(isa)) return NO_SUCH_ISA;                                               \
        return !words || count < 1 ? 1 : COMPILED[isa].member(words, count);               \
    }
HW_CALL(attention, run)
HW_CALL(rms_norm, rms_norm)
HW_CALL(rotate, rotate)

HW_EXPORT int64_t hw_version() { return hw::VERSION; }

HW_EXPORT int64_t hw_isa_available(int64_t isa) { return available(isa); }

// whether a pool provides the threads; otherwise each call starts its own
HW_EXPORT int64_t hw_has_pool() { return usable_pool() != NULL; }

HW_EXPORT void hw_use_pool(void* torch_parallel_for) {
    __atomic_store_n(&pool, (parallel_for)torch_parallel_for, __ATOMIC_RELEASE);
}

// > 0: 1 + the number of the wrong argument
HW_EXPORT int64_t hw_roof(int64_t isa, int64_t kind, int64_t threads, int64_t rounds, double* flops) {
    if (!available(isa)) return NO_SUCH_ISA;
    if (threads < 1) return 3;
    if (rounds < 1) return 4;
    if (!flops) return 5;
    return COMPILED[isa].roof(kind, threads, rounds, flops);
}
