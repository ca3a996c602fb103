// A tile of scores, the positions of its tokens, and sums over parts of rows.
//
// A tile is `rows` queries from i0 on by the columns c0 … c1 − 1 of a block of keys from j0 on.
#pragma once
#include <type_traits>

#include "plan.h"

namespace {

constexpr i64 PAD = NB + MB + W;  // at least the number of distances in a tile

struct Tile {
    i64 b, h, i0, rows, j0, c0, c1;
    i64 first;             // the first key of the segment; blocks of keys are counted from it
    const Packed* packed;  // its keys and values, or null
    bool sees(i64 j) const { return !packed || !packed->hidden || packed->seen[j]; }  // whether any query sees key j
};

// whole positions on one axis
struct Axis {
    i64 number, q_batch, k_batch;  // batch strides: 0 if all rows of the batch share positions
    i64 *q, *k;
    int32_t* run;
    const i64* q_at(const Tile& t) const { return q + t.b * q_batch + t.i0; }
    const i64* k_at(const Tile& t) const { return k + t.b * k_batch + t.j0; }
    const int32_t* run_at(const Tile& t) const { return run + t.b * k_batch + t.j0; }
};

// Calls visit(count, first) for consecutive groups of `total` items; count is a compile-time constant, at most COUNT.
template <int COUNT, class Visit>
inline void in_groups(i64 total, Visit visit, i64 first = 0) {
    for (; total - first >= COUNT; first += COUNT) visit(std::integral_constant<int, COUNT>(), first);
    if constexpr (COUNT > 1) in_groups<COUNT - 1>(total, visit, first);
}

// The same for the vectors of a row, where `first` counts floats.
template <int COUNT = 8, class Visit>
inline void in_vector_groups(i64 vectors, Visit visit) {
    in_groups<COUNT>(vectors, [&](auto count, i64 first) { visit(count, first * W); });
}

inline void add_to(float* to, const float* from, i64 count) {
    i64 i = 0;
    for (; i + W <= count; i += W) store(to + i, load(to + i) + load(from + i));
    for (; i < count; i++) to[i] += from[i];
}

inline void add_to(double* to, const float* from, i64 count) {
    for (i64 i = 0; i < count; i++) to[i] += from[i];
}

inline void add_to(double* to, const double* from, i64 count) {
    for (i64 i = 0; i < count; i++) to[i] += from[i];
}

inline void add_to(float* to, float value, i64 count) {
    i64 i = 0;
    for (; i + W <= count; i += W) store(to + i, load(to + i) + value);
    for (; i < count; i++) to[i] += value;
}

inline void add_scaled(float* to, const float* from, float factor, i64 count) {
    i64 i = 0;
    for (; i + W <= count; i += W) store(to + i, load(to + i) + load(from + i) * factor);
    for (; i < count; i++) to[i] += from[i] * factor;
}

inline float sum_of(const float* x, i64 count) {
    vf sums = {};
    float rest = 0;
    i64 i = 0;
    for (; i + W <= count; i += W) sums += load(x + i);
    for (; i < count; i++) rest += x[i];
    return sum(sums) + rest;
}

inline float dot(const float* a, const float* b, i64 count) {
    vf sums = {};
    float rest = 0;
    i64 i = 0;
    for (; i + W <= count; i += W) sums += load(a + i) * load(b + i);
    for (; i < count; i++) rest += a[i] * b[i];
    return sum(sums) + rest;
}

inline bool has_zero(const float* x, i64 count) {
    vi found = {};
    i64 i = 0;
    for (; i + W <= count; i += W) found |= (vi)(load(x + i) == 0);
    bool any = sum((vf)(found & (vi)broadcast(1))) != 0;
    for (; i < count; i++) any |= x[i] == 0;
    return any;
}

// Adds the columns of `rows` rows to `to`, a vector of columns at a time, in registers.
inline void sum_rows(const float* x, i64 rows, i64 ld, i64 count, float* to) {
    i64 i = 0;
    for (; i + W <= count; i += W) {
        vf sums = {};
        for (i64 r = 0; r < rows; r++) sums += load(x + r * ld + i);
        store(to + i, sums);
    }
    for (; i < count; i++) {
        to[i] = 0;
        for (i64 r = 0; r < rows; r++) to[i] += x[r * ld + i];
    }
}

// the end of the tokens from `from` on whose positions lie within `limit` of each other
inline i64 group_end(const i64* position, i64 from, i64 to, i64 limit) {
    i64 low = position[from], high = low, x = from + 1;
    for (; x < to; x++) {
        low = min(low, position[x]), high = max(high, position[x]);
        if ((uint64_t)high - (uint64_t)low > (uint64_t)limit) break;
    }
    return x;
}

}  // namespace
