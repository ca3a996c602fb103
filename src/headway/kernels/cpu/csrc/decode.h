// Up to four queries: nothing is packed, and the keys are split among workers.
#pragma once
#include "attention.h"

namespace {

template <class T, class Packing>
void Attention<T, Packing>::forward_split(i64 item, Worker& first) {
    const i64 part = item % parts_of_group(), shared = item / parts_of_group(), number = shared % splits;
    const i64 from = part * heads_in_item, heads = min(heads_in_item, joined_heads() - from);
    const i64 head = shared / splits * joined_heads() + from;
    const i64 key = number * split_blocks * NB, end = min(c.m, key + split_blocks * NB);
    start_heads(first, head, heads);
    if (terms.network.t)
        loop_over_keys_of_heads(first, key, end);
    else
        loop_over_keys(first, heads, key, end);
    for (i64 g = 0; g < heads; g++) {
        const Worker& w = (&first)[g];
        for (i64 r = 0; r < w.tile.rows; r++) {
            float* to = split_result(head + g, number, r);
            to[0] = w.row_max[r], to[1] = w.row_sum[r];
            memcpy(to + 2, w.out + r * plan.dvp, (size_t)(plan.dvp * 4));
        }
    }
}

template <class T, class Packing>
float* Attention<T, Packing>::split_result(i64 head, i64 number, i64 row) const {
    return split_results + ((head * splits + number) * c.n + row) * (plan.dvp + 2);
}

// merges the splits of a head, in order
template <class T, class Packing>
void Attention<T, Packing>::combine_splits(i64 item, Worker& w) {
    const Tile t = block(w, item, 0);
    for (i64 r = 0; r < t.rows; r++) {
        float row_max = -INFINITY, row_sum = 0, *out = w.out + r * plan.dvp;
        for (i64 p = 0; p < splits; p++) {
            const float found = split_result(item, p, r)[0];
            row_max = found > row_max ? found : row_max;
        }
        memset(out, 0, (size_t)(plan.dvp * 4));
        for (i64 p = 0; p < splits; p++) {
            const float* from = split_result(item, p, r);
            if (from[1] == 0) continue;
            const float factor = from[0] == row_max ? 1 : expf(from[0] - row_max);
            row_sum += from[1] * factor;
            add_scaled(out, from + 2, factor, plan.dvp);
        }
        w.row_max[r] = row_max, w.row_sum[r] = row_sum;
    }
    finish(w, t);
}

// the keys first … first + count − 1 of a head, or values, if such are requested
template <class T, class Packing>
Ahead Attention<T, Packing>::ahead(const Tensor& x, const Tile& t, i64 first, i64 count, i64 width) const {
    const i64 size = sizeof(typename T::type), left = min(count, c.m - first);
    Ahead found;
    if (!prefetches || first < 0 || left <= 0) return found;
    found.next = (const char*)x.template at<typename T::type>(t.b, t.h / plan.group, first);
    found.far = x.stride[2] * size, found.bytes = width * size, found.left = left;
    return found;
}

// Computes q·kᵀ of a tile; each key is read from memory once, unpacked. Both passes use it: the backward pass divides its
// weights by the forward pass's sum, so large scores must be summed in the same order.
template <class T, class Packing>
void Attention<T, Packing>::decode_scores(Worker& w, const Tile& t) const {
    typedef typename T::type type;
    const i64 h = t.h / plan.group, dp = plan.dp, keys = t.c1 - t.c0, far = c.k.stride[2];
    Ahead requested = alternates ? ahead(c.v, t, t.j0 + t.c0, keys, c.dv) : ahead(c.k, t, t.j0 + t.c0 + tokens_ahead(c.d), keys, c.d);
    if (c.k.stride[3] == 1 && c.d % (W * Packing::K_PACK) == 0) {
        const type* key = c.k.template at<type>(t.b, h, t.j0 + t.c0);
        in_groups<DECODE_ROWS>(t.rows, [&](auto rows, i64 r) {
            const Ahead own = r ? Ahead() : requested;
            const float* q = w.q + r * dp;
            float* score = w.score + r * LD + t.c0;
            switch (plan.d_packed / W) {
                case 2: return decode_keys<rows, 2>(q, dp, 2, key, far, keys, score, own);
                case 4: return decode_keys<rows, 4>(q, dp, 4, key, far, keys, score, own);
                default: return decode_keys<rows, 0>(q, dp, plan.d_packed / W, key, far, keys, score, own);
            }
        });
        return;
    }
    memset(w.row, 0, (size_t)(DECODE_KEYS * dp * 4));
    in_groups<DECODE_KEYS>(keys, [&](auto many, i64 x) {
        requested.request(many);
        load_rows<T>(c.k, t.b, h, t.j0 + t.c0 + x, many, c.d, w.x, dp, dp);
        const float* key = pack_rows<Packing>(w.x, dp, many, plan.d_packed, w.row);
        in_groups<DECODE_ROWS>(t.rows, [&](auto rows, i64 r) {
            decode_products<rows, many>((plan.d_packed + W - 1) / W, w.score + r * LD + t.c0 + x,
                                        [&](int row, i64 v) { return load(w.q + (r + row) * dp + v * W); },
                                        [&](int j, i64 v) { return load(key + j * dp + v * W); });
        });
    });
}

// q·kᵀ of ROWS rows with keys that lie `far` numbers apart. VECTORS: of a row, or 0 for any number of them
template <class T, class Packing>
template <int ROWS, int VECTORS>
void Attention<T, Packing>::decode_keys(const float* q, i64 dp, i64 vectors, const typename T::type* key, i64 far, i64 keys,
                                        float* score, Ahead ahead) {
    constexpr bool HELD = VECTORS && ROWS * VECTORS <= REGISTERS / 4;  // in registers, beside the sums and a vector of each key
    vf queries[ROWS][HELD ? VECTORS : 1];
    for (int r = 0; r < ROWS && HELD; r++)
        for (int v = 0; v < VECTORS; v++) queries[r][v] = load(q + r * dp + v * W);
    const auto query = [&](int r, i64 v) __attribute__((always_inline)) {
        return HELD ? queries[r][v] : load(q + r * dp + v * W);
    };
    const auto multiply = [&](auto many, i64 x) __attribute__((always_inline)) {
        const typename T::type* from = key + x * far;
        const auto lanes = [&](int j, i64 v) __attribute__((always_inline)) {
            return load_packed(from + j * far + v * (W * Packing::K_PACK));
        };
        ahead.request(many);
        decode_products<ROWS, many>(VECTORS ? VECTORS : vectors, score + x, query, lanes);
    };
    i64 x = 0;
    for (; x + DECODE_KEYS <= keys; x += DECODE_KEYS) multiply(std::integral_constant<int, DECODE_KEYS>(), x);
    in_groups<DECODE_KEYS - 1>(keys, multiply, x);
}

// the scores of ROWS rows and KEYS keys; query(r, v) and key(j, v): the vector v of each
template <class T, class Packing>
template <int ROWS, int KEYS, class Query, class Key>
inline __attribute__((always_inline)) void Attention<T, Packing>::decode_products(i64 vectors, float* score, Query query, Key key) {
    vf sums[ROWS][KEYS] = {};
    for (i64 v = 0; v < vectors; v++) {
        vf lanes[KEYS];
#pragma GCC unroll 4
        for (int j = 0; j < KEYS; j++) lanes[j] = key(j, v);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
            const vf row = query(r, v);
#pragma GCC unroll 4
            for (int j = 0; j < KEYS; j++) sums[r][j] = Packing::madd(sums[r][j], row, lanes[j]);
        }
    }
    if constexpr (ROWS == 4 && KEYS == 4) {
        v4 found[4];
        sixteen_sums(sums, found);
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++) *(v4_any*)(score + r * LD) = found[r];
    } else if constexpr (KEYS == 4) {
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) *(v4_any*)(score + r * LD) = four_sums(sums[r]);
    } else {
        for (int r = 0; r < ROWS; r++)
            for (int j = 0; j < KEYS; j++) score[r * LD + j] = sum(sums[r][j]);
    }
}

// W lanes of numbers that are neighbours in memory: pairs as they lie, others as floats
template <class T, class Packing>
vf Attention<T, Packing>::load_packed(const typename T::type* p) {
    if constexpr (Packing::K_PACK > 1)
        return load((const float*)p);
    else
        return load_as_floats<T>(p);
}

// adds weights·v of a tile; each value is read once, unpacked, and not at all if its weights are 0
template <class T, class Packing>
void Attention<T, Packing>::decode_output(Worker& w, const Tile& t) const {
    typedef typename T::type type;
    const i64 h = t.h / plan.group, dvp = plan.dvp, keys = t.c1 - t.c0;
    const float* weight = w.score + t.c0;
    const i64 next = t.j0 + (terms.scans() ? -NB : NB);
    Ahead requested = alternates ? ahead(c.k, t, next, NB, c.d) : ahead(c.v, t, t.j0 + t.c0 + tokens_ahead(c.dv), keys, c.dv);
    if (c.v.stride[3] != 1 || c.dv % W) {
        for (i64 x = 0; x < keys; x++) {
            bool any = false;
            requested.request(1);
            for (i64 r = 0; r < t.rows; r++) any |= weight[r * LD + x] != 0;
            if (!any) continue;
            load_rows<T>(c.v, t.b, h, t.j0 + t.c0 + x, 1, c.dv, w.x, dvp, dvp);
            for (i64 r = 0; r < t.rows; r++)
                if (weight[r * LD + x] != 0) add_scaled(w.out + r * dvp, w.x, weight[r * LD + x], dvp);
        }
        return;
    }
    in_groups<DECODE_ROWS>(t.rows, [&](auto rows, i64 r) {
        bool any_zero = false;
        for (int one = 0; one < rows; one++) any_zero |= has_zero(weight + (r + one) * LD, keys);
        in_vector_groups<min(8, DECODE_SUMS / rows)>(dvp / W, [&](auto vectors, i64 i) {
            const type* value = c.v.template at<type>(t.b, h, t.j0 + t.c0, i);
            const Ahead own = r || i ? Ahead() : requested;
            if (any_zero)
                decode_values<rows, vectors, true>(weight + r * LD, value, keys, w.out + r * dvp + i, own);
            else
                decode_values<rows, vectors, false>(weight + r * LD, value, keys, w.out + r * dvp + i, own);
        });
    });
}

// ZEROS: there may be weights of 0
template <class T, class Packing>
template <int ROWS, int VECTORS, bool ZEROS>
void Attention<T, Packing>::decode_values(const float* weight, const typename T::type* value, i64 keys, float* out, Ahead ahead) const {
    vf sums[ROWS][VECTORS] = {};
    for (i64 x = 0; x < keys; x++, value += c.v.stride[2]) {
        bool any = false;
        if (x % 4 == 0) ahead.request(4);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS && ZEROS; r++) any |= weight[r * LD + x] != 0;
        if (ZEROS && !any) continue;
        vf found[VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) found[v] = load_as_floats<T>(value + v * W);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
            const float factor = weight[r * LD + x];
            if (ZEROS && factor == 0) continue;
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) sums[r][v] += found[v] * factor;
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) store(out + r * plan.dvp + v * W, load(out + r * plan.dvp + v * W) + sums[r][v]);
}

}  // namespace
