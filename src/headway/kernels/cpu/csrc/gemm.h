// GEMM micro-kernels: C (+)= A·B with a tile of C in registers. All matrix products of attention use them.
//
// Operands are 32-bit lanes: one float, or two bf16 that are neighbours along the summed dimension k (VNNI order, for
// VDPBF16PS and BFDOT). One micro-kernel therefore serves both, and rows of B are always whole vectors of floats. A lane
// holds K_PACK numbers along k; a "packed" size counts lanes.
#pragma once
#include <type_traits>

#include "simd.h"

namespace {

struct Float32 {
    static constexpr int K_PACK = 1;
    static vf madd(vf sum, vf a, vf b) { return sum + a * b; }
    static void put(float* packed, i64 i, vf x) { store(packed + i, x); }  // numbers i … i + W − 1 of a packed row
};

#if defined(__AVX512BF16__)
struct Bf16Pairs {
    static constexpr int K_PACK = 2;
    static vf madd(vf sum, vf a, vf b) { return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b); }
    static void put(float* packed, i64 i, vf x) { store_bf16((uint16_t*)packed + i, x); }
    // x·y, rounded separately: compilers would merge x * y with the next sum
    static vf product(vf x, float y) {
        return (vf)_mm512_mul_round_ps((__m512)x, _mm512_set1_ps(y), _MM_FROUND_CUR_DIRECTION);
    }
};
#endif

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
struct Bf16Pairs {
    static constexpr int K_PACK = 2;
    static vf madd(vf sum, vf a, vf b) { return (vf)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)a, (bfloat16x8_t)b); }
    static void put(float* packed, i64 i, vf x) { store_bf16((uint16_t*)packed + i, x); }
    static vf product(vf x, float y) {
        vf found = x * y;
        __asm__("" : "+w"(found));  // compilers would merge x * y with the next sum
        return found;
    }
};
#endif

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int REGISTERS = 32;  // of vectors
#else
constexpr int REGISTERS = 16;
#endif

// A micro-kernel computes MR rows × NV vectors of C, as many as fit into the registers.
#if defined(__AVX512F__)
constexpr int MAX_NV = 4;
constexpr int rows_of(int nv) { return nv == 4 ? 6 : nv == 3 ? 8 : 12; }
#elif defined(__aarch64__)
constexpr int MAX_NV = 3;
constexpr int rows_of(int nv) { return nv == 1 ? 12 : 6; }
#else
constexpr int MAX_NV = 3;
constexpr int rows_of(int nv) { return nv == 3 ? 4 : nv == 2 ? 6 : 12; }
#endif
constexpr int PANEL_NV = 3;
constexpr int NR = PANEL_NV * W;  // keys in a packed panel
constexpr int SLACK = 12;         // rows that may be computed beyond the last
static_assert(NR % rows_of(4) == 0 && NR % rows_of(3) == 0 && NR % rows_of(2) == 0 && NR % rows_of(1) == 0,
              "nothing is computed beyond whole panels");

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
// micro_kernel for pairs by BFMMLA, which multiplies 2×4 by 4×2 numbers. Each of its sums adds a lane of A times a lane of B
// like BFDOT, and then the next lanes, so results equal those of BFDOT.
template <int MR, int NV, bool TransposeA>
inline __attribute__((always_inline)) void matrix_kernel(
    i64 k, const float* a, i64 lda, const float* b, i64 ldb, float* c, i64 ldc, bool add) {
    static_assert(MR % 2 == 0, "rows are computed in pairs");
    float32x4_t sums[MR / 2][NV][2];  // two rows × two columns each
#pragma GCC unroll 16
    for (int r = 0; r < MR / 2; r++)
#pragma GCC unroll 16
        for (int v = 0; v < NV; v++) sums[r][v][0] = sums[r][v][1] = vdupq_n_f32(0);
    // adds the lanes i and i + 1 along k, or only i
    auto step = [&](auto both) __attribute__((always_inline)) {
        bfloat16x8_t columns[NV][2];
#pragma GCC unroll 16
        for (int v = 0; v < NV; v++) {
            const float32x4_t x = vld1q_f32(b + v * W), y = both ? vld1q_f32(b + ldb + v * W) : vdupq_n_f32(0);
            columns[v][0] = vreinterpretq_bf16_f32(vzip1q_f32(x, y)), columns[v][1] = vreinterpretq_bf16_f32(vzip2q_f32(x, y));
        }
#pragma GCC unroll 16
        for (int r = 0; r < MR / 2; r++) {
            float32x4_t rows;
            if (TransposeA) {
                const float32x2_t x = vld1_f32(a + 2 * r), y = both ? vld1_f32(a + lda + 2 * r) : vdup_n_f32(0);
                rows = vcombine_f32(vzip1_f32(x, y), vzip2_f32(x, y));
            } else {
                const float *low = a + 2 * r * lda, *high = low + lda;
                rows = both ? vcombine_f32(vld1_f32(low), vld1_f32(high)) : (float32x4_t){*low, 0, *high, 0};
            }
#pragma GCC unroll 16
            for (int v = 0; v < NV; v++)
#pragma GCC unroll 2
                for (int half = 0; half < 2; half++)
                    sums[r][v][half] = vbfmmlaq_f32(sums[r][v][half], vreinterpretq_bf16_f32(rows), columns[v][half]);
        }
    };
    i64 i = 0;
    for (; i + 2 <= k; i += 2) {
        step(std::true_type());
        a += TransposeA ? 2 * lda : 2;
        b += 2 * ldb;
    }
    if (i < k) step(std::false_type());
#pragma GCC unroll 16
    for (int r = 0; r < MR; r++)
#pragma GCC unroll 16
        for (int v = 0; v < NV; v++) {
            const float32x4_t x = sums[r / 2][v][0], y = sums[r / 2][v][1];
            const vf found = (vf)(r % 2 ? vcombine_f32(vget_high_f32(x), vget_high_f32(y))
                                        : vcombine_f32(vget_low_f32(x), vget_low_f32(y)));
            float* at = c + r * ldc + v * W;
            store(at, add ? load(at) + found : found);
        }
}
#endif

// C[r][·] (+)= Σ_k A(r, k)·B[k][·] for MR rows and NV vectors; A(r, k) is a[r·lda + k], or a[k·lda + r] if TransposeA
template <class Packing, int MR, int NV, bool TransposeA>
inline __attribute__((always_inline)) void micro_kernel(
    i64 k, const float* a, i64 lda, const float* b, i64 ldb, float* c, i64 ldc, bool add) {
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    if constexpr (Packing::K_PACK == 2) return matrix_kernel<MR, NV, TransposeA>(k, a, lda, b, ldb, c, ldc, add);
#endif
    vf sums[MR][NV];
#pragma GCC unroll 16
    for (int r = 0; r < MR; r++)
#pragma GCC unroll 16
        for (int v = 0; v < NV; v++) sums[r][v] = vf{};
    for (i64 i = 0; i < k; i++) {
        vf row[NV];
#pragma GCC unroll 16
        for (int v = 0; v < NV; v++) row[v] = load(b + v * W);
#pragma GCC unroll 16
        for (int r = 0; r < MR; r++) {
            vf value = broadcast(TransposeA ? a[r] : a[r * lda]);
#pragma GCC unroll 16
            for (int v = 0; v < NV; v++) sums[r][v] = Packing::madd(sums[r][v], value, row[v]);
        }
        a += TransposeA ? lda : 1;
        b += ldb;
    }
#pragma GCC unroll 16
    for (int r = 0; r < MR; r++)
#pragma GCC unroll 16
        for (int v = 0; v < NV; v++) {
            float* at = c + r * ldc + v * W;
            store(at, add ? load(at) + sums[r][v] : sums[r][v]);
        }
}

// The range k = from … to − 1 in which a row of A may be nonzero; empty if from ≥ to.
struct Band {
    const uint8_t *from, *to;
};

template <class Packing, int NV, bool TransposeA>
__attribute__((noinline)) void multiply_columns(
    i64 rows, i64 k, const float* a, i64 lda, const float* b, i64 ldb, float* c, i64 ldc, bool add) {
    constexpr int MR = rows_of(NV);
    for (i64 r = 0; r < rows; r += MR)
        micro_kernel<Packing, MR, NV, TransposeA>(k, a + (TransposeA ? r : r * lda), lda, b, ldb, c + r * ldc, ldc, add);
}

template <class Packing, int NV, bool TransposeA>
__attribute__((noinline)) void multiply_columns(
    i64 rows, Band band, const float* a, i64 lda, const float* b, i64 ldb, float* c, i64 ldc, bool add) {
    constexpr int MR = rows_of(NV);
    for (i64 r = 0; r < rows; r += MR) {
        i64 from = band.from[r], to = band.to[r];
        for (i64 x = r + 1; x < min(rows, r + MR); x++) from = min(from, band.from[x]), to = max(to, band.to[x]);
        if (from < to)
            micro_kernel<Packing, MR, NV, TransposeA>(to - from, a + (TransposeA ? r + from * lda : r * lda + from), lda,
                                                      b + from * ldb, ldb, c + r * ldc, ldc, add);
    }
}

// The whole product. Up to SLACK rows beyond the last are computed: C must be writable and A readable there.
//
// Summed: the number of k, or a Band of them
template <class Packing, bool TransposeA, class Summed>
void gemm(
    i64 rows, i64 vectors, Summed k, const float* a, i64 lda, const float* b, i64 ldb, float* c, i64 ldc, bool add) {
    for (i64 v = 0; v < vectors;) {
        i64 left = vectors - v;
        const float* bv = b + v * W;
        float* cv = c + v * W;
#if defined(__AVX512F__)
        if (left >= 4 && left != 5 && left != 6) {
            multiply_columns<Packing, 4, TransposeA>(rows, k, a, lda, bv, ldb, cv, ldc, add), v += 4;
            continue;
        }
#endif
        if (left >= 3 && left != 4) {
            multiply_columns<Packing, 3, TransposeA>(rows, k, a, lda, bv, ldb, cv, ldc, add), v += 3;
            continue;
        }
        if (left >= 2)
            multiply_columns<Packing, 2, TransposeA>(rows, k, a, lda, bv, ldb, cv, ldc, add), v += 2;
        else
            multiply_columns<Packing, 1, TransposeA>(rows, k, a, lda, bv, ldb, cv, ldc, add), v += 1;
    }
}

}  // namespace
