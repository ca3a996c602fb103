// Up to four queries: nothing is packed, and the keys are split among workers.
#pragma once
#include "attention.h"

namespace {

template <class T, class Packing>
void Attention<T, Packing>::forward_split(i64 item, Worker& first) {
    const i64 part = item % parts_of_group(), shared = item / parts_of_group(), number = shared % splits;
    const i64 from = part * heads_in_item, heads = min(heads_in_item, plan.group - from), key = number * split_blocks * NB;
    start_heads(first, shared / splits * plan.group + from, heads);
    loop_over_keys(first, heads, key, min(c.m, key + split_blocks * NB));
    for (i64 g = 0; g < heads; g++) {
        const Worker& w = (&first)[g];
        for (i64 r = 0; r < w.tile.rows; r++) {
            float* to = split_result(shared / splits * plan.group + from + g, number, r);
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

// Computes q·kᵀ of a tile; each key is read once, unpacked. Both passes use it: the backward pass divides its weights by
// the forward pass's sum, so large scores must be summed in the same order.
template <class T, class Packing>
void Attention<T, Packing>::decode_scores(Worker& w, const Tile& t) const {
    typedef typename T::type type;
    const i64 h = t.h / plan.group, step = W * Packing::K_PACK, dp = plan.dp, far = c.k.stride[2];
    const i64 ahead = tokens_ahead(c.d);
    const bool in_place = c.k.stride[3] == 1 && c.d % step == 0;
    if (!in_place) memset(w.row, 0, (size_t)(DECODE_KEYS * dp * 4));
    in_groups<DECODE_KEYS>(t.c1 - t.c0, [&](auto keys, i64 first) {
        const i64 x = t.c0 + first;
        const i64 next = t.j0 + x + ahead;
        for (i64 j = next; j < min(c.m, next + keys) && prefetches; j++) prefetch<T, 3>(c.k, t.b, h, j, c.d);
        if (in_place) {
            const type* key = c.k.template at<type>(t.b, h, t.j0 + x);
            decode_keys<keys>(w, t.rows, x, [&](i64 j, i64 i) { return load_packed(key + j * far + i * Packing::K_PACK); });
        } else {
            load_rows<T>(c.k, t.b, h, t.j0 + x, keys, c.d, w.x, dp, dp);
            const float* key = pack_rows<Packing>(w.x, dp, keys, plan.d_packed, w.row);
            decode_keys<keys>(w, t.rows, x, [&](i64 j, i64 i) { return load(key + j * dp + i); });
        }
    });
}

// the scores of the keys x … x + KEYS − 1; key(j, i): the lanes i … i + W − 1 of key x + j
template <class T, class Packing>
template <int KEYS, class Key>
void Attention<T, Packing>::decode_keys(Worker& w, i64 rows, i64 x, Key key) const {
    in_groups<DECODE_ROWS>(rows, [&](auto many, i64 r) { decode_products<many, KEYS>(w, r, x, key); });
}

template <class T, class Packing>
template <int ROWS, int KEYS, class Key>
void Attention<T, Packing>::decode_products(Worker& w, i64 first, i64 x, Key key) const {
    const float* q = w.q + first * plan.dp;
    float* score = w.score + first * LD + x;
    vf sums[ROWS][KEYS] = {};
    for (i64 i = 0; i < plan.d_packed; i += W) {
        vf lanes[KEYS];
#pragma GCC unroll 4
        for (int j = 0; j < KEYS; j++) lanes[j] = key(j, i);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
            const vf query = load(q + r * plan.dp + i);
#pragma GCC unroll 4
            for (int j = 0; j < KEYS; j++) sums[r][j] = Packing::madd(sums[r][j], query, lanes[j]);
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
    if (c.v.stride[3] != 1 || c.dv % W) {
        for (i64 x = 0; x < keys; x++) {
            bool any = false;
            for (i64 r = 0; r < t.rows; r++) any |= weight[r * LD + x] != 0;
            if (!any) continue;
            load_rows<T>(c.v, t.b, h, t.j0 + t.c0 + x, 1, c.dv, w.x, dvp, dvp);
            for (i64 r = 0; r < t.rows; r++)
                if (weight[r * LD + x] != 0) add_scaled(w.out + r * dvp, w.x, weight[r * LD + x], dvp);
        }
        return;
    }
    const i64 ahead = tokens_ahead(c.dv);
    in_groups<DECODE_ROWS>(t.rows, [&](auto rows, i64 r) {
        bool any_zero = false;
        for (int one = 0; one < rows; one++) any_zero |= has_zero(weight + (r + one) * LD, keys);
        in_vector_groups<min(8, DECODE_SUMS / rows)>(dvp / W, [&](auto vectors, i64 i) {
            const type* value = c.v.template at<type>(t.b, h, t.j0 + t.c0, i);
            const i64 next = t.j0 + t.c0 + ahead, requested = prefetches && !r && !i ? c.m - next : 0;
            auto request = [&](i64 x) {
                if (x < requested) prefetch<T, 3>(c.v, t.b, h, next + x, c.dv);
            };
            if (any_zero)
                decode_values<rows, vectors, true>(weight + r * LD, value, keys, w.out + r * dvp + i, request);
            else
                decode_values<rows, vectors, false>(weight + r * LD, value, keys, w.out + r * dvp + i, request);
        });
    });
}

// ZEROS: there may be weights of 0
template <class T, class Packing>
template <int ROWS, int VECTORS, bool ZEROS, class Request>
void Attention<T, Packing>::decode_values(const float* weight, const typename T::type* value, i64 keys, float* out, Request request) const {
    vf sums[ROWS][VECTORS] = {};
    for (i64 x = 0; x < keys; x++, value += c.v.stride[2]) {
        bool any = false;
        request(x);
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
