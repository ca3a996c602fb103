// Packs rows of tokens into the two layouts that products read, and stores rows of floats as tokens.
#pragma once
#include "call.h"
#include "gemm.h"

namespace {

using namespace hw;

// Loads `rows` tokens as floats into x[rows][ld], with zeros up to `width`; returns whether all are finite.
template <class T>
bool load_rows(const Tensor& t, i64 b, i64 h, i64 first, i64 rows, i64 d, float* x, i64 ld, i64 width) {
    typedef typename T::type type;
    const i64 step = t.stride[3], whole = step == 1 ? d / W * W : 0;
    vf nonfinite = {};
    float rest = 0;
    for (i64 r = 0; r < rows; r++) {
        const type* from = t.at<type>(b, h, first + r);
        float* to = x + r * ld;
        for (i64 i = 0; i < whole; i += W) {
            vf value = load_as_floats<T>(from + i);
            nonfinite += value * 0.f;  // NaN unless value is finite
            store(to + i, value);
        }
        for (i64 i = whole; i < d; i++) to[i] = T::get(from[i * step]), rest += to[i] * 0.f;
        for (i64 i = d; i < width; i++) to[i] = 0;
    }
    return sum(nonfinite) + rest == 0;
}

// Prefetches a token that is read soon, in the order of its memory, into the second nearest cache. Always inline, as Ahead
// is: GCC removes calls of a function that only prefetches, as if it did nothing.
template <class T>
inline __attribute__((always_inline)) void prefetch(const Tensor& t, i64 b, i64 h, i64 token, i64 width) {
    const char* from = (const char*)t.at<typename T::type>(b, h, token);
    for (i64 i = 0; i < width * (i64)sizeof(typename T::type); i += 64) __builtin_prefetch(from + i, 0, 2);
}

// tokens that are read next, and prefetched while others are computed
struct Ahead {
    const char* next = nullptr;
    i64 far = 0, bytes = 0, left = 0;  // from one token to the next, of a token; the number of tokens
    inline __attribute__((always_inline)) void request(i64 tokens) {
        for (; tokens && left; tokens--, left--, next += far)
            for (i64 i = 0; i < bytes; i += 64) __builtin_prefetch(next + i, 0, 3);
    }
};

template <class T>
void store_row(const Tensor& t, i64 b, i64 h, i64 row, i64 d, const float* x, float factor = 1) {
    typedef typename T::type type;
    type* to = t.at<type>(b, h, row);
    i64 i = 0;
    for (; i + W <= d && t.stride[3] == 1; i += W) store_as<T>(to + i, load(x + i) * factor);
    for (; i < d; i++) to[i * t.stride[3]] = T::put(x[i] * factor);
}

inline i64 packed_k_of(i64 d, int k_pack) { return (d + k_pack - 1) / k_pack; }

// Packs neighbours along a row, for A of a product over the columns. Floats are returned as they are.
template <class Packing>
const float* pack_rows(const float* x, i64 ld, i64 rows, i64 packed_k, float* out) {
    if (Packing::K_PACK == 1) return x;
    for (i64 r = 0; r < rows; r++)
        for (i64 i = 0; i < 2 * packed_k; i += W) Packing::put(out + r * ld, i, load(x + r * ld + i));
    return out;
}

// Packs pairs of neighbouring rows, for B or transposed A of a product over the rows. A last odd row is paired with zeros.
template <class Packing>
const float* pack_row_pairs(const float* x, i64 ld, i64 rows, i64 columns, float* out, i64 ld_out) {
    if (Packing::K_PACK == 1) return x;
#if defined(HW_BF16_PAIRS)
    for (i64 r = 0; r < rows; r += 2)
        for (i64 c = 0; c < columns; c += W) {
            vf low = load(x + r * ld + c), high = r + 1 < rows ? load(x + (r + 1) * ld + c) : vf{};
            store(out + r / 2 * ld_out + c, bf16_pairs(low, high));
        }
#endif
    return out;
}

#if defined(HW_BF16_PAIRS)
// pack_row_pairs for rows that are already bf16; returns whether all are finite. out may be null.
inline bool pair_rows(const uint16_t* from, i64 step, i64 rows, i64 columns, float* out) {
    vi nonfinite = {};
    for (i64 r = 0; r < rows; r += 2)
        for (i64 i = 0; i < columns; i += W) {
            const vi low = (vi)load_as_floats<BF16>(from + r * step + i);
            const vi high = (vi)load_as_floats<BF16>(from + (r + 1) * step + i);
            nonfinite |= ((low & 0x7f800000) == 0x7f800000) | ((high & 0x7f800000) == 0x7f800000);
            if (out) store(out + r / 2 * columns + i, (vf)((vi)((vu)low >> 16) | high));
        }
    return sum((vf)(nonfinite & (vi)broadcast(1))) == 0;
}
#endif

// transposes NR packed rows: panel[packed_k][NR]
inline void transpose(const float* x, i64 ld, i64 packed_k, float* panel) {
    i64 w = 0;
#if defined(__AVX512F__)
    auto four = [ld](const float* p) {  // the same four lanes of every fourth row
        __m512 rows = _mm512_castps128_ps512(_mm_loadu_ps(p));
        rows = _mm512_insertf32x4(rows, _mm_loadu_ps(p + 4 * ld), 1);
        rows = _mm512_insertf32x4(rows, _mm_loadu_ps(p + 8 * ld), 2);
        return _mm512_insertf32x4(rows, _mm_loadu_ps(p + 12 * ld), 3);
    };
    for (; w + 4 <= packed_k; w += 4)
        for (i64 r = 0; r < NR; r += 16) {
            const float* from = x + r * ld + w;
            const __m512 a = four(from), b = four(from + ld), c = four(from + 2 * ld), d = four(from + 3 * ld);
            const __m512 ac = _mm512_unpacklo_ps(a, c), bd = _mm512_unpacklo_ps(b, d);
            const __m512 ac2 = _mm512_unpackhi_ps(a, c), bd2 = _mm512_unpackhi_ps(b, d);
            float* to = panel + w * NR + r;
            _mm512_storeu_ps(to, _mm512_unpacklo_ps(ac, bd));
            _mm512_storeu_ps(to + NR, _mm512_unpackhi_ps(ac, bd));
            _mm512_storeu_ps(to + 2 * NR, _mm512_unpacklo_ps(ac2, bd2));
            _mm512_storeu_ps(to + 3 * NR, _mm512_unpackhi_ps(ac2, bd2));
        }
#endif
    for (; w + 4 <= packed_k; w += 4)
        for (i64 r = 0; r < NR; r += 4) {
            const float* from = x + r * ld + w;
            v4 a = *(const v4_any*)from, b = *(const v4_any*)(from + ld);
            v4 c = *(const v4_any*)(from + 2 * ld), d = *(const v4_any*)(from + 3 * ld);
            v4 ac = HW_SHUFFLE(a, c, 0, 4, 1, 5), bd = HW_SHUFFLE(b, d, 0, 4, 1, 5);
            v4 ac2 = HW_SHUFFLE(a, c, 2, 6, 3, 7), bd2 = HW_SHUFFLE(b, d, 2, 6, 3, 7);
            float* to = panel + w * NR + r;
            *(v4_any*)to = HW_SHUFFLE(ac, bd, 0, 4, 1, 5);
            *(v4_any*)(to + NR) = HW_SHUFFLE(ac, bd, 2, 6, 3, 7);
            *(v4_any*)(to + 2 * NR) = HW_SHUFFLE(ac2, bd2, 0, 4, 1, 5);
            *(v4_any*)(to + 3 * NR) = HW_SHUFFLE(ac2, bd2, 2, 6, 3, 7);
        }
    for (; w < packed_k; w++)
        for (i64 r = 0; r < NR; r++) panel[w * NR + r] = x[r * ld + w];
}

}  // namespace
