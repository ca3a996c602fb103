// Vectors of floats for one instruction set, by the compiler's vector types; and exp, tanh, conversions.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define HW_BF16_PAIRS 1  // the processor multiplies bf16
#endif

namespace {

typedef int64_t i64;

#if defined(__AVX512F__)
constexpr int W = 16;  // floats in a vector
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float vf __attribute__((vector_size(4 * W)));
typedef float vf_any __attribute__((vector_size(4 * W), aligned(2), may_alias));  // pairs of bf16 too
typedef int32_t vi __attribute__((vector_size(4 * W)));
typedef uint32_t vu __attribute__((vector_size(4 * W)));
typedef uint32_t vu_any __attribute__((vector_size(4 * W), aligned(4), may_alias));

constexpr i64 round_up(i64 x, i64 step) { return (x + step - 1) / step * step; }
constexpr i64 min(i64 a, i64 b) { return a < b ? a : b; }
constexpr i64 max(i64 a, i64 b) { return a > b ? a : b; }

inline vf load(const float* p) { return *(const vf_any*)p; }
inline void store(float* p, vf x) { *(vf_any*)p = x; }
inline vf broadcast(float x) { return x - (vf){}; }
inline vf select(vi condition, vf yes, vf no) { return (vf)(((vi)yes & condition) | ((vi)no & ~condition)); }

#if defined(__clang__)
#define HW_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define HW_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (int32_t __attribute__((vector_size(16)))){__VA_ARGS__})
#endif

inline vf max_of(vf a, vf b) {  // b if one of them is NaN
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return select(a > b, a, b);
#endif
}

typedef float v4 __attribute__((vector_size(16)));
typedef float v4_any __attribute__((vector_size(16), aligned(2), may_alias));

// reduces a vector to four numbers, by halves
template <class Join>
inline v4 reduce_to_four(vf x, Join join) {
#if defined(__AVX512F__)
    typedef float half __attribute__((vector_size(32)));
    half h = join((half)_mm512_castps512_ps256((__m512)x), (half)_mm512_extractf32x8_ps((__m512)x, 1));
#elif defined(__AVX2__)
    vf h = x;
#endif
#if defined(__AVX2__)
    return join((v4)_mm256_castps256_ps128((__m256)h), (v4)_mm256_extractf128_ps((__m256)h, 1));
#else
    return x;
#endif
}

// reduces a vector to one number, by halves
template <class Join>
inline float reduce(vf x, Join join) {
    const v4 y = reduce_to_four(x, join), z = join(y, HW_SHUFFLE(y, y, 2, 3, 0, 1));
    return join(z, HW_SHUFFLE(z, z, 1, 0, 3, 2))[0];
}

inline float sum(vf x) {
    return reduce(x, [](auto a, auto b) { return a + b; });
}

// the sums of four vectors, each added in the order of `sum`
inline v4 four_sums(const vf* x) {
    auto add = [](auto a, auto b) { return a + b; };
    const v4 a = reduce_to_four(x[0], add), b = reduce_to_four(x[1], add);
    const v4 c = reduce_to_four(x[2], add), d = reduce_to_four(x[3], add);
    const v4 ab = HW_SHUFFLE(a, b, 0, 1, 4, 5) + HW_SHUFFLE(a, b, 2, 3, 6, 7);
    const v4 cd = HW_SHUFFLE(c, d, 0, 1, 4, 5) + HW_SHUFFLE(c, d, 2, 3, 6, 7);
    return HW_SHUFFLE(ab, cd, 0, 2, 4, 6) + HW_SHUFFLE(ab, cd, 1, 3, 5, 7);
}

inline float reduce_max(vf x) {
    return reduce(x, [](auto a, auto b) { return a > b ? a : b; });
}

// the same for each of four rows
inline void sixteen_sums(const vf x[4][4], v4 out[4]) {
#if defined(__AVX512F__)
    // halves, then quarters of the four vectors of a row are added in one vector
    auto halves = [](__m512 a, __m512 b) {
        return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    };
    __m512 rows[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
        const __m512 ab = halves((__m512)x[r][0], (__m512)x[r][1]), cd = halves((__m512)x[r][2], (__m512)x[r][3]);
        rows[r] = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    }
    auto pairs = [](__m512 a, __m512 b) {
        return _mm512_add_ps((__m512)_mm512_unpacklo_pd((__m512d)a, (__m512d)b), (__m512)_mm512_unpackhi_pd((__m512d)a, (__m512d)b));
    };
    const __m512 low = pairs(rows[0], rows[1]), high = pairs(rows[2], rows[3]);
    const __m512 sums = _mm512_add_ps(_mm512_shuffle_ps(low, high, 0x88), _mm512_shuffle_ps(low, high, 0xdd));  // [4][row]
    const __m512 found = _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), sums);
    memcpy(out, &found, sizeof found);
#else
    for (int r = 0; r < 4; r++) out[r] = four_sums(x[r]);
#endif
}

// the columns of W rows of W numbers
inline void transposed(const float* x, i64 ld, vf* out) {
#if defined(__AVX512F__)
    __m512 pairs[16], fours[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        const __m512 a = (__m512)load(x + i * ld), b = (__m512)load(x + (i + 1) * ld);
        pairs[i] = _mm512_unpacklo_ps(a, b), pairs[i + 1] = _mm512_unpackhi_ps(a, b);
    }
    // a quarter l of fours[4 i + j] has column 4 l + j of the rows 4 i … 4 i + 3
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        const __m512d a = (__m512d)pairs[i], b = (__m512d)pairs[i + 1], c = (__m512d)pairs[i + 2], d = (__m512d)pairs[i + 3];
        fours[i] = (__m512)_mm512_unpacklo_pd(a, c), fours[i + 1] = (__m512)_mm512_unpackhi_pd(a, c);
        fours[i + 2] = (__m512)_mm512_unpacklo_pd(b, d), fours[i + 3] = (__m512)_mm512_unpackhi_pd(b, d);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const __m512 even = _mm512_shuffle_f32x4(fours[j], fours[4 + j], 0x88), odd = _mm512_shuffle_f32x4(fours[j], fours[4 + j], 0xdd);
        const __m512 even_below = _mm512_shuffle_f32x4(fours[8 + j], fours[12 + j], 0x88);
        const __m512 odd_below = _mm512_shuffle_f32x4(fours[8 + j], fours[12 + j], 0xdd);
        out[j] = (vf)_mm512_shuffle_f32x4(even, even_below, 0x88), out[8 + j] = (vf)_mm512_shuffle_f32x4(even, even_below, 0xdd);
        out[4 + j] = (vf)_mm512_shuffle_f32x4(odd, odd_below, 0x88), out[12 + j] = (vf)_mm512_shuffle_f32x4(odd, odd_below, 0xdd);
    }
#elif defined(__AVX2__)
    __m256 pairs[8], fours[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        const __m256 a = (__m256)load(x + i * ld), b = (__m256)load(x + (i + 1) * ld);
        pairs[i] = _mm256_unpacklo_ps(a, b), pairs[i + 1] = _mm256_unpackhi_ps(a, b);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        const __m256d a = (__m256d)pairs[i], b = (__m256d)pairs[i + 1], c = (__m256d)pairs[i + 2], d = (__m256d)pairs[i + 3];
        fours[i] = (__m256)_mm256_unpacklo_pd(a, c), fours[i + 1] = (__m256)_mm256_unpackhi_pd(a, c);
        fours[i + 2] = (__m256)_mm256_unpacklo_pd(b, d), fours[i + 3] = (__m256)_mm256_unpackhi_pd(b, d);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        out[j] = (vf)_mm256_permute2f128_ps(fours[j], fours[4 + j], 0x20);
        out[4 + j] = (vf)_mm256_permute2f128_ps(fours[j], fours[4 + j], 0x31);
    }
#else
    for (int i = 0; i < W; i++)
        for (int j = 0; j < W; j++) out[j][i] = x[i * ld + j];
#endif
}

// the lanes STEP … W − 1 of x, and `fill` in the lanes behind them
template <int STEP>
inline vf shift_down(vf x, vf fill) {
#if defined(__AVX512F__)
    return (vf)_mm512_alignr_epi32((__m512i)fill, (__m512i)x, STEP);
#else
    vf y = fill;
    for (int i = 0; i + STEP < W; i++) y[i] = x[i + STEP];
    return y;
#endif
}

// `fill` in the lanes 0 … STEP − 1, and the first lanes of x behind them
template <int STEP>
inline vf shift_up(vf x, vf fill) {
#if defined(__AVX512F__)
    return (vf)_mm512_alignr_epi32((__m512i)x, (__m512i)fill, W - STEP);
#else
    vf y = fill;
    for (int i = STEP; i < W; i++) y[i] = x[i - STEP];
    return y;
#endif
}

// the product of each lane with all behind it
template <int STEP = 1>
inline vf suffix_products(vf x) {
    if constexpr (STEP < W)
        return suffix_products<2 * STEP>(x * shift_down<STEP>(x, broadcast(1.f)));
    else
        return x;
}

// the sum of each lane and all before it
template <int STEP = 1>
inline vf prefix_sums(vf x) {
    if constexpr (STEP < W)
        return prefix_sums<2 * STEP>(x + shift_up<STEP>(x, vf{}));
    else
        return x;
}

// the sum of each lane and all behind it
template <int STEP = 1>
inline vf suffix_sums(vf x) {
    if constexpr (STEP < W)
        return suffix_sums<2 * STEP>(x + shift_down<STEP>(x, vf{}));
    else
        return x;
}

// the numbers table[at], for `at` from 0 to 2·W − 1
inline vf look_up(const float* table, vi at) {
#if defined(__AVX512F__)
    return (vf)_mm512_permutex2var_ps((__m512)load(table), (__m512i)at, (__m512)load(table + W));
#elif defined(__AVX2__)
    return (vf)_mm256_i32gather_ps(table, (__m256i)at, 4);
#else
    vf y;
    for (int i = 0; i < W; i++) y[i] = table[at[i]];
    return y;
#endif
}

// a·b + c, rounded once if the processor has that
inline vf fused(vf a, vf b, vf c) {
#if defined(__AVX512F__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

// eˣ for x ≤ 0; exactly 0 below −87.3, where it would be subnormal; NaN for NaN. The relative error is at most 1e-7 at
// degree 6, where its mean is about 0, for long sums; 2e-7 at degree 5, and 3e-6 at degree 4.
template <int DEGREE = 5>
inline vf exp_of(vf x) {
    constexpr float LOG2E = 1.44269504088896341f, LOG2E_REST = 1.92596303e-8f;
#if defined(__AVX512F__)
    vf power = x * LOG2E;
    vf r = (vf)_mm512_reduce_ps((__m512)power, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);  // 0 for −∞
    vf whole = power - r;
    if (DEGREE == 6) r = fused(x, broadcast(LOG2E_REST), fused(x, broadcast(LOG2E), -whole));
    const __mmask16 normal = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.3f), _CMP_NLT_UQ);
#else
    constexpr float MAGIC = 12582912.f;  // 1.5·2²³: adding it rounds to a whole number
    vf clamped = max_of(broadcast(-110.f), x);
    vf shifted = clamped * LOG2E + MAGIC;
    vf r = clamped * LOG2E - (shifted - MAGIC);
    if (DEGREE == 6) r = fused(clamped, broadcast(LOG2E_REST), fused(clamped, broadcast(LOG2E), MAGIC - shifted));
#endif
    // 2ʳ for |r| ≤ ½, by polynomials of least relative error
    vf p;
    if (DEGREE == 4) {
        p = r * 9.5700861e-3f + 5.5917851e-2f;
        p = p * r + 2.4024745e-1f;
        p = p * r + 6.9312182e-1f;
        p = p * r + 9.9999926e-1f;
    } else if (DEGREE == 6) {
        p = r * 1.5345810e-4f + 1.3399931e-3f;
        p = p * r + 9.6184891e-3f;
        p = p * r + 5.5503286e-2f;
        p = p * r + 2.4022646e-1f;
        p = p * r + 6.9314718e-1f;
        p = p * r + 1.f;
    } else {
        p = r * 1.3276460e-3f + 9.6755414e-3f;
        p = p * r + 5.5507133e-2f;
        p = p * r + 2.4022120e-1f;
        p = p * r + 6.9314697e-1f;
        p = p * r + 1.0000001e0f;
    }
#if defined(__AVX512F__)
    return (vf)_mm512_maskz_scalef_ps(normal, (__m512)p, (__m512)whole);
#else
    vi exponent = ((vi)shifted << 23) + (127 << 23);
    return select(x < -87.3f, vf{}, p * (vf)exponent);
#endif
}

struct Tanh {
    vf value, slope;
};

// tanh x and its derivative, both by e⁻²ˣ: 1 − tanh² x would lose all digits if tanh x is almost 1.
inline Tanh tanh_of(vf x) {
    vf size = (vf)((vi)x & 0x7fffffff);
    vf e = exp_of(size * -2.f);
    vf half = 1.f / (1.f + e);
    vf far = 1.f - 2.f * e * half;
    vf z = x * x;
    vf p = z * -5.70498872745e-3f + 2.06390887954e-2f;
    p = p * z + -5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z + -3.33332819422e-1f;
    vf near = size + size * z * p;
    vf y = select(size < 0.625f, near, far);
    return {(vf)((vi)y | ((vi)x & (int32_t)0x80000000)), 4.f * e * half * half};
}

// ---------------------------------------------------------------- half precision

inline float of_bf16(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
}

inline uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return x != x ? 0x7fc0 : (uint16_t)rounded;
}

inline float of_f16(uint16_t x) {
#if defined(__F16C__)
    return _cvtsh_ss(x);
#elif defined(__aarch64__)
    __fp16 y;
    memcpy(&y, &x, 2);
    return (float)y;
#else
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, rest = x & 0x7fff, bits;
    float y;
    if (rest >= 0x7c00) {
        bits = sign | 0x7f800000 | (rest & 0x3ff) << 13;
    } else {
        bits = rest << 13;  // the float with this exponent and fraction, 2¹¹² too small
        memcpy(&y, &bits, 4);
        y *= 5.192296858534828e33f;
        memcpy(&bits, &y, 4);
        bits |= sign;
    }
    memcpy(&y, &bits, 4);
    return y;
#endif
}

inline uint16_t to_f16(float x) {
#if defined(__F16C__)
    return (uint16_t)_cvtss_sh(x, 0);
#elif defined(__aarch64__)
    const __fp16 y = (__fp16)x;
    uint16_t bits;
    memcpy(&bits, &y, 2);
    return bits;
#else
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (rest >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (rest < 0x38800000) {  // below the smallest normal number: let the addition round
        float y;
        memcpy(&y, &rest, 4);
        y += 0.5f;
        memcpy(&rest, &y, 4);
        return (uint16_t)(sign | (rest - 0x3f000000));
    }
    uint32_t odd = rest >> 13 & 1;
    return (uint16_t)(sign | ((rest - 0x38000000 + 0xfff + odd) >> 13));
#endif
}

// the types of q, k and v
struct F32 {
    typedef float type;
    static float get(float x) { return x; }
    static float put(float x) { return x; }
};
struct BF16 {
    typedef uint16_t type;
    static float get(uint16_t x) { return of_bf16(x); }
    static uint16_t put(float x) { return to_bf16(x); }
};
struct F16 {
    typedef uint16_t type;
    static float get(uint16_t x) { return of_f16(x); }
    static uint16_t put(float x) { return to_f16(x); }
};

// loads W numbers as floats
template <class T>
inline vf load_as_floats(const typename T::type* p) {
    vf x;
    for (int i = 0; i < W; i++) x[i] = T::get(p[i]);
    return x;
}
template <>
inline vf load_as_floats<F32>(const float* p) {
    return load(p);
}
#if defined(__AVX512F__)
template <>
inline vf load_as_floats<BF16>(const uint16_t* p) {
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
}
template <>
inline vf load_as_floats<F16>(const uint16_t* p) {
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
}
#elif defined(__AVX2__)
template <>
inline vf load_as_floats<BF16>(const uint16_t* p) {
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
}
template <>
inline vf load_as_floats<F16>(const uint16_t* p) {
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
}
#elif defined(__aarch64__)
template <>
inline vf load_as_floats<BF16>(const uint16_t* p) {
    return (vf)vshlq_n_u32(vmovl_u16(vld1_u16(p)), 16);
}
template <>
inline vf load_as_floats<F16>(const uint16_t* p) {
    return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
#endif

// stores W floats as numbers of the type
template <class T>
inline void store_as(typename T::type* p, vf x) {
    for (int i = 0; i < W; i++) p[i] = T::put(x[i]);
}
template <>
inline void store_as<F32>(float* p, vf x) {
    store(p, x);
}
#if defined(__AVX2__)
template <>
inline void store_as<BF16>(uint16_t* p, vf x) {
    typedef uint16_t halves __attribute__((vector_size(2 * W)));
    vu bits = (vu)x, rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    rounded = (vu)select(x == x, (vf)rounded, (vf)(vu{} + 0x7fc0));
    halves y = __builtin_convertvector(rounded, halves);
    memcpy(p, &y, sizeof y);
}
template <>
inline void store_as<F16>(uint16_t* p, vf x) {
#if defined(__AVX512F__)
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT));
#else
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
#endif
}
#elif defined(__aarch64__)
template <>
inline void store_as<F16>(uint16_t* p, vf x) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)x)));
}
#endif

// W floats as bf16, two in each 32-bit lane, in order
inline void store_bf16(uint16_t* p, vf x) {
#if defined(__AVX512BF16__)
    __m256bh y = _mm512_cvtneps_pbh((__m512)x);
    memcpy(p, &y, 32);
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    vst1_u16(p, vreinterpret_u16_bf16(vcvt_bf16_f32((float32x4_t)x)));
#else
    for (int i = 0; i < W; i++) p[i] = to_bf16(x[i]);
#endif
}

#if defined(HW_BF16_PAIRS)
// lanes of two bf16
inline vf bf16_pairs(vf low, vf high) {
#if defined(__AVX512BF16__)
    const __m512i l = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)low));
    const __m512i h = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)high));
    return (vf)_mm512_or_si512(l, _mm512_slli_epi32(h, 16));
#else
    const uint16x4_t l = vreinterpret_u16_bf16(vcvt_bf16_f32((float32x4_t)low));
    const uint16x4_t h = vreinterpret_u16_bf16(vcvt_bf16_f32((float32x4_t)high));
    return (vf)vcombine_u16(vzip1_u16(l, h), vzip2_u16(l, h));
#endif
}
#endif

}  // namespace
