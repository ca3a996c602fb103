// Rows of tokens into the two forms that products read, and floats back into rows of tokens.
#pragma once
#include "call.h"
#include "gemm.h"

namespace {

using namespace hw;

// Floats of `rows` tokens into x[rows][ld], zeros up to `width`; whether all of them are finite.
template <class T>
bool load_rows(const Tensor& t, i64 b, i64 h, i64 first, i64 rows, i64 d, float* x, i64 ld, i64 width) {
    typedef typename T::type type;
    const i64 step = t.stride[3], whole = step == 1 ? d / W * W : 0;
    vf odd = {};
    float rest = 0;
    for (i64 r = 0; r < rows; r++) {
        const type* from = t.at<type>(b, h, first + r);
        float* to = x + r * ld;
        for (i64 i = 0; i < whole; i += W) {
            vf value = load_as_floats<T>(from + i);
            odd += value * 0.f;  // NaN where it is not finite
            store(to + i, value);
        }
        for (i64 i = whole; i < d; i++) to[i] = T::get(from[i * step]), rest += to[i] * 0.f;
        for (i64 i = d; i < width; i++) to[i] = 0;
    }
    return sum(odd) + rest == 0;
}

template <class T>
void store_row(const Tensor& t, i64 b, i64 h, i64 row, i64 d, const float* x, float factor = 1) {
    typedef typename T::type type;
    type* to = t.at<type>(b, h, row);
    i64 i = 0;
    for (; i + W <= d && t.stride[3] == 1; i += W) store_as<T>(to + i, load(x + i) * factor);
    for (; i < d; i++) to[i * t.stride[3]] = T::put(x[i] * factor);
}

inline i64 words_of(i64 d, int per_word) { return (d + per_word - 1) / per_word; }

// Rows as words that are neighbours along a row: the A of a product over their columns. Floats are there already.
template <class Words>
const float* as_rows(const float* x, i64 ld, i64 rows, i64 words, float* out) {
    if (Words::PER_WORD == 1) return x;
    for (i64 r = 0; r < rows; r++)
        for (i64 i = 0; i < 2 * words; i += W) Words::put(out + r * ld, i, load(x + r * ld + i));
    return out;
}

// Rows as words of two neighbouring rows: the B, or the A across, of a product over the rows. Odd rows meet zeros.
template <class Words>
const float* as_pairs(const float* x, i64 ld, i64 rows, i64 columns, float* out, i64 ld_out) {
    if (Words::PER_WORD == 1) return x;
#if defined(__AVX512BF16__)
    for (i64 r = 0; r < rows; r += 2)
        for (i64 c = 0; c < columns; c += W) {
            vf low = load(x + r * ld + c), high = r + 1 < rows ? load(x + (r + 1) * ld + c) : vf{};
            __m512i l = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)low));
            __m512i h = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)high));
            store(out + r / 2 * ld_out + c, (vf)_mm512_or_si512(l, _mm512_slli_epi32(h, 16)));
        }
#endif
    return out;
}

#if defined(__AVX512BF16__)
// The pairs of rows of bf16 that are neighbours, and whether all of them are finite. Null: nobody wants the pairs.
inline bool pair_rows(const uint16_t* from, i64 step, i64 rows, i64 columns, float* out) {
    vi odd = {};
    for (i64 r = 0; r < rows; r += 2)
        for (i64 i = 0; i < columns; i += W) {
            const vi low = (vi)load_as_floats<BF16>(from + r * step + i), high = (vi)load_as_floats<BF16>(from + (r + 1) * step + i);
            odd |= ((low & 0x7f800000) == 0x7f800000) | ((high & 0x7f800000) == 0x7f800000);
            if (out) store(out + r / 2 * columns + i, (vf)((vi)((vu)low >> 16) | high));
        }
    return sum((vf)(odd & (vi)all(1))) == 0;
}
#endif

// NR rows of words, transposed: panel[w][NR]
inline void transpose(const float* x, i64 ld, i64 words, float* panel) {
    typedef float v4 __attribute__((vector_size(16)));
    typedef float v4_any __attribute__((vector_size(16), aligned(2), may_alias));
    i64 w = 0;
    for (; w + 4 <= words; w += 4)
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
    for (; w < words; w++)
        for (i64 r = 0; r < NR; r++) panel[w * NR + r] = x[r * ld + w];
}

}  // namespace
