// Small matrix products in registers: C (+)= A·B, the whole of the arithmetic of attention.
//
// A product is made of words: a float, or a pair of bf16 that are neighbours along the summed dimension. So one
// micro-kernel serves both, and B rows are always whole vectors.
#pragma once
#include "simd.h"

namespace {

struct Floats {
    static constexpr int PER_WORD = 1;
    static vf madd(vf sum, vf a, vf b) { return sum + a * b; }
    static void put(float* words, i64 i, vf x) { store(words + i, x); }  // numbers i … i + W − 1 of a row of words
};

#if defined(__AVX512BF16__)
struct Pairs {
    static constexpr int PER_WORD = 2;
    static vf madd(vf sum, vf a, vf b) { return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b); }
    static void put(float* words, i64 i, vf x) { store_bf16((uint16_t*)words + i, x); }
};
#endif

// registers: MR rows × NV vectors of C, by the number of vector registers
#if defined(__AVX512F__)
constexpr int MOST_NV = 4;
constexpr int rows_of(int nv) { return nv == 4 ? 6 : nv == 3 ? 8 : 12; }
#else
constexpr int MOST_NV = 3;
constexpr int rows_of(int nv) { return nv == 3 ? 4 : nv == 2 ? 6 : 12; }
#endif
constexpr int PANEL_NV = 3;
constexpr int NR = PANEL_NV * W;  // keys in a packed panel
constexpr int SLACK = 12;         // rows that may be computed beyond the last
static_assert(NR % rows_of(4) == 0 && NR % rows_of(3) == 0 && NR % rows_of(2) == 0 && NR % rows_of(1) == 0,
              "nothing is computed beyond whole panels");

// C[r][·] (+)= Σ_k A(r, k)·B[k][·] for MR rows and NV vectors; A(r, k) is a[r·lda + k], or a[k·lda + r] if ACROSS
template <class Words, int MR, int NV, bool ACROSS>
inline __attribute__((always_inline)) void micro(
    i64 k, const float* a, i64 lda, const float* b, i64 ldb, float* c, i64 ldc, bool add) {
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
            vf value = all(ACROSS ? a[r] : a[r * lda]);
#pragma GCC unroll 16
            for (int v = 0; v < NV; v++) sums[r][v] = Words::madd(sums[r][v], value, row[v]);
        }
        a += ACROSS ? lda : 1;
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

// Where a row of A holds anything but zeros: k from … to − 1, from ≥ to where nowhere.
struct Band {
    const uint8_t *from, *to;
};

template <class Words, int NV, bool ACROSS>
__attribute__((noinline)) void columns(
    i64 rows, i64 k, const float* a, i64 lda, const float* b, i64 ldb, float* c, i64 ldc, bool add) {
    constexpr int MR = rows_of(NV);
    for (i64 r = 0; r < rows; r += MR)
        micro<Words, MR, NV, ACROSS>(k, a + (ACROSS ? r : r * lda), lda, b, ldb, c + r * ldc, ldc, add);
}

template <class Words, int NV, bool ACROSS>
__attribute__((noinline)) void columns(
    i64 rows, Band band, const float* a, i64 lda, const float* b, i64 ldb, float* c, i64 ldc, bool add) {
    constexpr int MR = rows_of(NV);
    for (i64 r = 0; r < rows; r += MR) {
        i64 from = band.from[r], to = band.to[r];
        for (i64 x = r + 1; x < least(rows, r + MR); x++) from = least(from, band.from[x]), to = most(to, band.to[x]);
        if (from < to)
            micro<Words, MR, NV, ACROSS>(to - from, a + (ACROSS ? r + from * lda : r * lda + from), lda, b + from * ldb, ldb,
                                         c + r * ldc, ldc, add);
    }
}

// all of it: rows may run SLACK beyond, where C must be writable and A readable
//
// Summed: how many k there are, or a Band of them
template <class Words, bool ACROSS, class Summed>
void product(
    i64 rows, i64 vectors, Summed k, const float* a, i64 lda, const float* b, i64 ldb, float* c, i64 ldc, bool add) {
    for (i64 v = 0; v < vectors;) {
        i64 left = vectors - v;
        const float* bv = b + v * W;
        float* cv = c + v * W;
#if defined(__AVX512F__)
        if (left >= 4 && left != 5 && left != 6) {
            columns<Words, 4, ACROSS>(rows, k, a, lda, bv, ldb, cv, ldc, add), v += 4;
            continue;
        }
#endif
        if (left >= 3 && left != 4) {
            columns<Words, 3, ACROSS>(rows, k, a, lda, bv, ldb, cv, ldc, add), v += 3;
            continue;
        }
        if (left >= 2)
            columns<Words, 2, ACROSS>(rows, k, a, lda, bv, ldb, cv, ldc, add), v += 2;
        else
            columns<Words, 1, ACROSS>(rows, k, a, lda, bv, ldb, cv, ldc, add), v += 1;
    }
}

}  // namespace
