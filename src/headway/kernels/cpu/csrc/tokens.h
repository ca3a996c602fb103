// Operations on single tokens: RMS norm, and the rotation of rotary encodings. Each takes one pass over memory, computes in
// float32 and rounds once.
//
// A call is a row of int64 words, the fields of the structs below in order; kernels/cpu/_tokens.py writes it.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "call.h"
#include "pool.h"
#include "simd.h"

namespace {
namespace tokens {

constexpr i64 WIDEST = 4096;     // numbers of a row that can be rotated
constexpr i64 AT_ONCE = 1 << 13;  // approximate numbers in an item of work; smaller calls use one thread

// [size[0], size[1], size[2], width], the last dimension dense: read from x, written to out.
struct Rows {
    i64 threads, dtype;
    const char* x;
    i64 x_stride[3];
    char* out;
    i64 out_stride[3];
    i64 size[3], width;

    i64 count() const { return size[0] * size[1] * size[2]; }
    template <class T>
    const typename T::type* from(i64 a, i64 b, i64 c) const {
        return (const typename T::type*)x + a * x_stride[0] + b * x_stride[1] + c * x_stride[2];
    }
    template <class T>
    typename T::type* to(i64 a, i64 b, i64 c) const {
        return (typename T::type*)out + a * out_stride[0] + b * out_stride[1] + c * out_stride[2];
    }
};
constexpr i64 X = 2, OUT = 6, SIZE = 10;  // words of Rows

template <class T>
inline void read(const typename T::type* from, i64 count, float* to) {
    i64 i = 0;
    for (; i + W <= count; i += W) store(to + i, load_as_floats<T>(from + i));
    for (; i < count; i++) to[i] = T::get(from[i]);
}

template <class T>
inline void write(const float* from, i64 count, typename T::type* to) {
    i64 i = 0;
    for (; i + W <= count; i += W) store_as<T>(to + i, load(from + i));
    for (; i < count; i++) to[i] = T::put(from[i]);
}

// y = w·x / √(mean(x²) + eps), with w = 1 if there is no weight
struct Norm {
    Rows rows;
    const char* weight;
    double eps;

    template <class T>
    void row(i64 number) const {
        typedef typename T::type type;
        i64 c = number % rows.size[2], b = number / rows.size[2] % rows.size[1], a = number / rows.size[2] / rows.size[1];
        const type *x = rows.from<T>(a, b, c), *w = (const type*)weight;
        type* out = rows.to<T>(a, b, c);
        vf sums[4] = {};
        i64 i = 0;
        for (; i + 4 * W <= rows.width; i += 4 * W)
            for (int part = 0; part < 4; part++) {
                vf y = load_as_floats<T>(x + i + part * W);
                sums[part] += y * y;
            }
        for (; i + W <= rows.width; i += W) {
            vf y = load_as_floats<T>(x + i);
            sums[0] += y * y;
        }
        float total = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
        for (; i < rows.width; i++) total += T::get(x[i]) * T::get(x[i]);
        float factor = (float)(1 / sqrt((double)total / (double)rows.width + eps));
        for (i = 0; i + W <= rows.width; i += W) {
            vf y = load_as_floats<T>(x + i) * factor;
            store_as<T>(out + i, w ? y * load_as_floats<T>(w + i) : y);
        }
        for (; i < rows.width; i++) {
            float y = T::get(x[i]) * factor;
            out[i] = T::put(w ? y * T::get(w[i]) : y);
        }
    }

    i64 step() const { return max(1, AT_ONCE / rows.width); }
    i64 items() const { return (rows.count() + step() - 1) / step(); }
    template <class T>
    void item(i64 number) const {
        for (i64 r = number * step(), stop = min(rows.count(), r + step()); r < stop; r++) row<T>(r);
    }
};

// Rotates pair c of each row, (2c, 2c + 1) or (c, c + pairs) counted from start, by an angle of the token (and the head).
// Numbers before and after the pairs do not change. size: [batch, heads, n].
struct Rotate {
    Rows rows;
    i64 pairs, interleaved, start;
    const double* cos;
    i64 cos_stride[3];
    const double* sin;
    i64 sin_stride[3];

    void angles(i64 a, i64 b, i64 c, float* cosines, float* sines) const {
        const double* from_cos = cos + a * cos_stride[0] + b * cos_stride[1] + c * cos_stride[2];
        const double* from_sin = sin + a * sin_stride[0] + b * sin_stride[1] + c * sin_stride[2];
        for (i64 i = 0; i < pairs; i++) cosines[i] = (float)from_cos[i];
        for (i64 i = 0; i < pairs; i++) sines[i] = (float)from_sin[i];
    }

    i64 step() const { return max(1, AT_ONCE / (rows.width * rows.size[1])); }
    i64 blocks() const { return (rows.size[2] + step() - 1) / step(); }
    i64 items() const { return rows.size[0] * blocks(); }
    template <class T>
    void item(i64 number) const {
        float cosines[WIDEST / 2], sines[WIDEST / 2], x[WIDEST], y[WIDEST];
        i64 a = number / blocks(), rotated = 2 * pairs, first = number % blocks() * step();
        for (i64 c = first, stop = min(rows.size[2], first + step()); c < stop; c++)
            for (i64 b = 0; b < rows.size[1]; b++) {
                if (b == 0 || cos_stride[1] || sin_stride[1]) angles(a, b, c, cosines, sines);
                const typename T::type* from = rows.from<T>(a, b, c);
                typename T::type* to = rows.to<T>(a, b, c);
                memcpy(to, from, (size_t)start * sizeof(typename T::type));
                from += start, to += start;
                read<T>(from, rotated, x);
                if (interleaved) {
                    for (i64 i = 0; i < pairs; i++) {
                        y[2 * i] = x[2 * i] * cosines[i] - x[2 * i + 1] * sines[i];
                        y[2 * i + 1] = x[2 * i] * sines[i] + x[2 * i + 1] * cosines[i];
                    }
                } else {
                    for (i64 i = 0; i < pairs; i++) {
                        y[i] = x[i] * cosines[i] - x[pairs + i] * sines[i];
                        y[pairs + i] = x[i] * sines[i] + x[pairs + i] * cosines[i];
                    }
                }
                write<T>(y, rotated, to);
                memcpy(to + rotated, from + rotated, (size_t)(rows.width - start - rotated) * sizeof(typename T::type));
            }
    }
};

template <class Work, class T>
void one(void* work, int64_t item, int64_t) {
    ((const Work*)work)->template item<T>(item);
}

// 0, or 1 + the number of the word that is wrong
template <class Work>
i64 run(Work& work) {
    const Rows& rows = work.rows;
    for (int i = 0; i < 3; i++)
        if (rows.size[i] < 0) return 1 + SIZE + i;
    if (rows.width < 1) return 1 + SIZE + 3;
    hw_task task = rows.dtype == hw::FLOAT32    ? one<Work, F32>
                   : rows.dtype == hw::BFLOAT16 ? one<Work, BF16>
                   : rows.dtype == hw::FLOAT16  ? one<Work, F16>
                                                : nullptr;
    if (!task) return 2;
    if (!rows.count()) return 0;
    if (!rows.x) return 1 + X;
    if (!rows.out) return 1 + OUT;
    i64 items = work.items();
    hw_parallel(items, hw_workers(rows.threads, items), task, &work);
    return 0;
}

inline i64 norm(const i64* words, i64 count) {
    Norm work;
    if (count * 8 != (i64)sizeof work) return 1;
    memcpy(&work, words, sizeof work);
    return run(work);
}

inline i64 rotate(const i64* words, i64 count) {
    Rotate work;
    if (count * 8 != (i64)sizeof work) return 1;
    memcpy(&work, words, sizeof work);
    const i64 PAIRS = sizeof(Rows) / 8;
    if (work.pairs < 1 || 2 * work.pairs > min(work.rows.width, WIDEST)) return 1 + PAIRS;
    if (work.start < 0 || work.start > work.rows.width - 2 * work.pairs) return 1 + PAIRS + 2;
    if (work.rows.count() && !work.cos) return 1 + PAIRS + 3;
    if (work.rows.count() && !work.sin) return 1 + PAIRS + 7;
    return run(work);
}

}  // namespace tokens
}  // namespace
