// Measures the roof of the roofline model: multiply-adds between registers only. Kernels are compared with it.
#pragma once
#include <stdint.h>
#include "pool.h"
#include "simd.h"

namespace {
namespace roof {

// Makes the compiler assume that x is in a register and changes, so that it cannot merge rounds.
#if defined(__AVX512F__)
#define HW_IN_REGISTER(x) __asm__ volatile("" : "+v"(x))
#elif defined(__x86_64__)
#define HW_IN_REGISTER(x) __asm__ volatile("" : "+x"(x))
#elif defined(__aarch64__)
#define HW_IN_REGISTER(x) __asm__ volatile("" : "+w"(x))
#else
#define HW_IN_REGISTER(x) (void)(x)
#endif

// Independent chains: more than latency × units of any processor, if there are enough registers.
#if defined(__AVX512F__) || defined(__aarch64__)
#define HW_CHAINS(X) \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16) X(17) X(18) X(19)
constexpr int CHAINS = 20;
#else
#define HW_CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
constexpr int CHAINS = 12;
#endif
constexpr int SLICES = 16;  // slices of each thread's rounds, so that threads end at the same time

#define HW_START(i) vf x##i = start + (float)(i);
#define HW_HOLD(i) HW_IN_REGISTER(x##i);
#define HW_ADD(i) total += x##i;

struct Work {
    int64_t kind, rounds;
};

inline void keep(vf total) {
    volatile float sink = total[0];
    (void)sink;
}

#if defined(__aarch64__)
// the instruction overwrites the register of its sum; a must appear to change, or a·b would be computed only once
#define HW_MULTIPLY_ADD(x) \
    HW_IN_REGISTER(a);     \
    x += a * b;
#else
#define HW_MULTIPLY_ADD(x) x = x * a + b;
#endif

// float32; numbers stay in a range where the processor does not slow down
inline void multiply_add(int64_t rounds) {
    vf start = {}, a = start + 0.5f, b = start + 0x1p-20f;
    HW_IN_REGISTER(a);
    HW_IN_REGISTER(b);
    HW_CHAINS(HW_START)
    for (int64_t i = 0; i < rounds; i++) {
#define HW_STEP(i) HW_MULTIPLY_ADD(x##i)
        HW_CHAINS(HW_STEP)
#undef HW_STEP
        HW_CHAINS(HW_HOLD)
    }
    vf total = {};
    HW_CHAINS(HW_ADD)
    keep(total);
}

#if defined(HW_BF16_PAIRS)
#if defined(__AVX512BF16__)
typedef __m512i Pairs;
constexpr double DOT_PRODUCTS = 2;  // products of a lane
inline vf add_products(vf sum, Pairs a, Pairs b) { return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b); }
#else
typedef uint32x4_t Pairs;
constexpr double DOT_PRODUCTS = 4;
inline vf add_products(vf sum, Pairs a, Pairs b) {
    return (vf)vbfmmlaq_f32((float32x4_t)sum, vreinterpretq_bf16_u32(a), vreinterpretq_bf16_u32(b));
}
#endif

// bfloat16: x ← x + a·b
inline void dot_product(int64_t rounds) {
    vf start = {};
    const vu lane = {};
    Pairs a = (Pairs)(lane + 0x3f80bf80), b = (Pairs)(lane + 0x3f803f80);  // (−1, 1) and (1, 1)
    HW_IN_REGISTER(a);
    HW_IN_REGISTER(b);
    HW_CHAINS(HW_START)
    for (int64_t i = 0; i < rounds; i++) {
#define HW_STEP(i) x##i = add_products(x##i, a, b);
        HW_CHAINS(HW_STEP)
#undef HW_STEP
        HW_CHAINS(HW_HOLD)
    }
    vf total = {};
    HW_CHAINS(HW_ADD)
    keep(total);
}
constexpr int64_t KINDS = 2;
#else
constexpr double DOT_PRODUCTS = 1;
constexpr int64_t KINDS = 1;
#endif

void slice(void* context, int64_t, int64_t) {
    const Work* work = (const Work*)context;
#if defined(HW_BF16_PAIRS)
    if (work->kind == 1) return dot_product(work->rounds);
#endif
    multiply_add(work->rounds);
}

inline int64_t run(int64_t kind, int64_t threads, int64_t rounds, double* flops) {
    if (kind < 0 || kind >= KINDS) return 2;  // 1 + number of hw_roof's argument
    int64_t workers = hw_workers(threads, threads), items = workers * SLICES;
    Work work = {kind, (rounds - 1) / SLICES + 1};
    hw_parallel(items, workers, slice, &work);
    *flops = 2.0 * (kind == 1 ? DOT_PRODUCTS : 1) * W * CHAINS * (double)work.rounds * (double)items;
    return 0;
}

#undef HW_START
#undef HW_HOLD
#undef HW_ADD
#undef HW_CHAINS
#undef HW_MULTIPLY_ADD
#undef HW_IN_REGISTER

}  // namespace roof
}  // namespace

#define HW_ROOF_NAME(isa) hw_roof_##isa
#define HW_ROOF_OF(isa) HW_ROOF_NAME(isa)

extern "C" int64_t HW_ROOF_OF(HW_ISA_NAME)(int64_t kind, int64_t threads, int64_t rounds, double* flops) {
    return roof::run(kind, threads, rounds, flops);
}
