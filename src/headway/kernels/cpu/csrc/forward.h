// The forward pass: online softmax and output; the second pass of reductions over queries.
#pragma once
#include "attention.h"

namespace {

// the forward pass of all heads that share these keys
template <class T, class Packing>
void Attention<T, Packing>::forward_head(i64 item, Worker& w) {
    plan.pack(plan.whole(item / c.kv_heads), item % c.kv_heads, number_of(w));
    const i64 blocks = c.reduce.one_pass ? 0 : plan.group * plan.blocks, tasks = c.reduce.one_pass ? plan.group * reducer.chunks : 0;
    for (i64 x = 0; x < blocks; x++) forward_block(item * blocks + x, w);
    for (i64 x = 0; x < tasks; x++) forward_task(item * tasks + x, w);
    const i64 tasks_of_group = reducer.by_column ? plan.group * reducer.chunks : 0;
    for (i64 x = 0; x < tasks_of_group; x++) column_item(item * tasks_of_group + x, w);
}

// some of the queries of a segment, of all heads that share keys
template <class T, class Packing>
void Attention<T, Packing>::forward_segment(i64 item, Worker& w) {
    const i64 part = item % plan.segment_parts, shared = item / plan.segment_parts, h = shared % c.kv_heads;
    const Segment& s = plan.segment[shared / c.kv_heads];
    const i64 blocks = plan.blocks_of(s), from = part * blocks / plan.segment_parts, to = (part + 1) * blocks / plan.segment_parts;
    if (from < to) plan.pack(s, h, number_of(w));
    for (i64 g = 0; g < plan.group; g++)
        for (i64 number = from; number < to; number++) forward_block(w, block(w, s, h * plan.group + g, number));
}

template <class T, class Packing>
void Attention<T, Packing>::forward_block(i64 item, Worker& w) {
    forward_block(w, block(w, item / plan.blocks, plan.blocks - 1 - item % plan.blocks));
}

// the blocks of queries of a head whose map is summed together
template <class T, class Packing>
void Attention<T, Packing>::forward_task(i64 item, Worker& w) {
    reducer.begin_map(w.reductions, item);
    const i64 head = item / reducer.chunks;
    for (i64 number = item % reducer.chunks; number < plan.blocks; number += reducer.chunks) forward_block(w, block(w, head, number));
}

template <class T, class Packing>
void Attention<T, Packing>::forward_block(Worker& w, const Tile& t) {
    w.tile = t;
    row_ranges(c, w.tile.b, w.tile.i0, w.tile.rows, *w.ranges);
    start(w, w.tile);
    loop_over_keys(w, 1, 0, c.m);
    finish(w, w.tile);
}

// all heads that share keys, of which a tile is packed at a time
template <class T, class Packing>
void Attention<T, Packing>::forward_tiles(i64 item, Worker& first) {
    plan.begin_tiles(item, number_of(first));
    start_heads(first, item * plan.group, plan.group);
    for (i64 g = 0; g < plan.group; g++) clear_slack((&first)[g]);
    loop_over_keys(first, plan.group, 0, c.m);
    for (i64 g = 0; g < plan.group; g++) finish((&first)[g], (&first)[g].tile);
}

// Zeroes the rows beyond the last, which products read: subnormal numbers left there by earlier calls would be slow.
template <class T, class Packing>
void Attention<T, Packing>::clear_slack(Worker& w) const {
    memset(w.q + c.n * plan.dp, 0, (size_t)(SLACK * plan.dp * 4));
    memset(w.score + c.n * LD, 0, (size_t)(SLACK * LD * 4));
    if (w.packed != w.score) memset(w.packed + c.n * LD, 0, (size_t)(SLACK * LD * 4));
}

// the first block of queries of heads that share keys; each head has a worker, from `first` on
template <class T, class Packing>
void Attention<T, Packing>::start_heads(Worker& first, i64 head, i64 heads) const {
    row_ranges(c, head / c.heads, 0, min(MB, c.n), *first.ranges);
    for (i64 g = 0; g < heads; g++) {
        Worker& w = (&first)[g];
        w.tile = block(w, head + g, 0);
        start(w, w.tile);
    }
}

template <class T, class Packing>
Tile Attention<T, Packing>::block(const Worker& w, const Segment& s, i64 h, i64 number) const {
    Tile t = {};
    t.b = s.b, t.h = h, t.i0 = s.i0 + number * MB, t.rows = min(MB, s.i1 - t.i0), t.first = s.j0;
    if (!split_k) t.packed = plan.packed + (plan.for_each_worker() ? number_of(w) : plan.head_of(t.b, t.h));
    return t;
}

// after row_ranges
template <class T, class Packing>
void Attention<T, Packing>::start(Worker& w, const Tile& t) const {
    load_score_scales(w, t);
    load_rows<T>(c.q, t.b, t.h, t.i0, t.rows, c.d, w.x, plan.dp, plan.dp);
    if (decode) clear_queries(w, t.rows);
    for (i64 r = 0; r < t.rows; r++) {
        const float factor = prescaled_q ? w.score_scale[r] : 1;
        const i64 row = r * plan.dp;
        for (i64 i = 0; i < plan.dp; i += W) Packing::put(w.q + row, i, load(w.x + row + i) * factor);
        w.row_max[r] = -INFINITY, w.row_sum[r] = 0;
        // the output row is prefetched while the block is computed
        const char* out = (const char*)c.out.template at<typename T::type>(t.b, t.h, t.i0 + r);
        for (i64 i = 0; i < c.dv * (i64)sizeof(typename T::type); i += 64) __builtin_prefetch(out + i, 1);
    }
    memset(w.out, 0, (size_t)((t.rows + (decode ? 0 : SLACK)) * plan.dvp * 4));
    terms.begin(w.terms, t, w.score_scale, nullptr, nullptr);
    if (terms.positions.t) terms.positions.multiply(c, w.terms.positions, t.h, t.rows, w.x);
    if (reducer.by_query) reducer.begin(w.reductions, t);
}

// Adds the keys low … high − 1 (whole blocks, if keys are unpacked) to the output, row_max and row_sum of heads that
// share keys. Each head has a worker, from `first` on.
template <class T, class Packing>
void Attention<T, Packing>::loop_over_keys(Worker& first, i64 heads, i64 low, i64 high) {
    Worker* const end = &first + heads;
    low = max(low, first_key(first, first.tile)), high = min(high, first.ranges->high);
    const bool backwards = terms.scans() && !c.reduce.wanted;  // reductions want the keys in order
    if (terms.scans() && !backwards) find_scanned(first, first.tile, low, 0);
    for (i64 j0 = low; j0 < high && !backwards; j0 += NB) {
        Tile t = first.tile;
        i64 column;
        if (!reach(first, t, j0, column)) continue;
        bool any = false, all_seen = true;
        for (Worker* w = &first; w < end; w++) {
            w->tile.j0 = t.j0, w->tile.c0 = t.c0, w->tile.c1 = t.c1;
            w->seen = w == &first || c.nodes ? cover_of(*w, w->tile, column) : first.seen;
            any |= w->seen != EMPTY, all_seen &= w->seen == FULL;
        }
        if (!any) continue;
        if (plan.packs_tiles) plan.pack_tile(plan.head_of(t.b, t.h), t.j0, t.c0, t.c1, all_seen, number_of(first));
        if (decode) {
            t.rows *= heads;
            decode_scores(first, t);
            for (Worker* w = &first; w < end; w++) add_weights(*w);
            decode_output(first, t);
            continue;
        }
        for (Worker* w = &first; w < end; w++) {
            if (w->seen == EMPTY) continue;
            multiply_queries(*w, w->tile);
            add_weights(*w);
            multiply_values(*w, w->tile);
        }
    }
    if (terms.stick) break_sticks(first, first.tile, low, high);
    if (backwards && !terms.stick) add_weights_from_last_key(first, low, terms.path.t ? c.m : high);
    for (Worker* w = &first; w < end && values; w++) terms.finish_values(w->terms, w->tile, w->out, plan.dvp);
}

template <class T, class Packing>
void Attention<T, Packing>::add_weights_from_last_key(Worker& w, i64 low, i64 high) const {
    w.knows_scanned = false;
    from_last_key(w, w.tile, low, high, [](i64) { return true; }, [&](Cover seen) {
        if (seen == EMPTY) return add_path(w, w.tile, false);
        w.seen = seen;
        multiply_queries(w, w.tile);
        add_weights(w);
        multiply_values(w, w.tile);
    });
}

// the weights of a head from its products, or zeros if it does not see the tile
template <class T, class Packing>
void Attention<T, Packing>::add_weights(Worker& w) const {
    const Tile& t = w.tile;
    if (w.seen == EMPTY) {
        for (i64 r = 0; r < t.rows; r++) memset(w.score + r * LD + t.c0, 0, (size_t)((t.c1 - t.c0) * 4));
        return;
    }
    complete_scores(w, t, w.seen, 0);
    online_softmax(w, t);
    finish_weights(w, t);
}

// dropout and relative values
template <class T, class Packing>
void Attention<T, Packing>::finish_weights(Worker& w, const Tile& t) const {
    if (c.drop_below) dropout(w, t);
    if (values) terms.add_values(w.terms, t, w.score, 0);
}

// adds weights·v of a tile to w.out
template <class T, class Packing>
void Attention<T, Packing>::multiply_values(Worker& w, const Tile& t) const {
    const i64 dvp = plan.dvp;
    if (split_k) return decode_output(w, t);
    if (!dvp) return;
    i64 keys = packed_k_of(t.c1 - t.c0, Packing::K_PACK), first = (t.j0 - t.packed->first + t.c0) / Packing::K_PACK;
    const float* weights = bf16_output ? w.packed : pack_rows<Packing>(w.score + t.c0, LD, t.rows, keys, w.packed);
    const float* v = t.packed->values ? t.packed->values + t.c0 * c.v.stride[2] : t.packed->v_rows + first * dvp;
    w.spans->template over_keys<Packing>(t.rows, dvp / W, keys, weights, v, t.packed->values ? c.v.stride[2] : dvp, w.out, dvp);
}

// Replaces the tile's scores by unnormalized weights, and rescales the output and row_sum so far to the new row_max.
template <class T, class Packing>
void Attention<T, Packing>::online_softmax(Worker& w, const Tile& t) const {
    const bool reduces = reducer.by_query;
    if (reduces) reducer.begin_tile(w.reductions, t, round_up(t.c1, NR));
    for (i64 r = 0; r < t.rows; r++) {
        const float before = w.row_max[r];
        const float found = w.deferred_bias[0] ? attach_row_max<true>(w, t, r) : attach_row_max<false>(w, t, r);
        const float row_max = found > before ? found : before, base = row_max == -INFINITY ? 0 : row_max;
        const float factor = before == row_max ? 1 : expf(before - base);
        if (reduces) {
            reducer.scores(w.reductions, t, r, w.score + r * LD, w.spans->from[r], w.spans->to[r], found);
            if (factor != 1) reducer.rescale(w.reductions, r, before, row_max, factor, w.row_sum[r]);
        }
        if (reduces) reducer.template matches<DEGREE>(w.reductions, t, r, w.score + r * LD, w.spans->from[r], w.spans->to[r], base);
        const float sum = bf16_output ? exp_row_of<true>(w, t, r, base) : exp_row_of<false>(w, t, r, base);
        w.row_max[r] = row_max;
        w.row_sum[r] = w.row_sum[r] * factor + sum;
        if (reduces) reducer.weights(w.reductions, t, r, w.score + r * LD, w.spans->from[r], w.spans->to[r], sum);
        if (factor == 1) continue;
        float* out = w.out + r * plan.dvp;
        for (i64 i = 0; i < plan.dvp; i += W) store(out + i, load(out + i) * factor);
        if (values) terms.rescale_values(w.terms, r, factor);
    }
    if (reduces && reducer.r.one_pass)
        reducer.add_to_slots(w.reductions, t, w.score, w.spans->from, w.spans->to, w.spans->whole);
}

// adds the deferred bias to a row and returns its largest score, in one pass
template <class T, class Packing>
template <bool DEFERRED>
float Attention<T, Packing>::attach_row_max(Worker& w, const Tile& t, i64 r) const {
    float* score = w.score + r * LD;
    const auto at = [&](i64 x) {
        vf found = load(score + x);
        if (DEFERRED) store(score + x, found += load(w.deferred_bias[r] + x - t.c0));  // −∞ stays: a deferred bias is below +∞
        return found;
    };
    vf best = broadcast(-INFINITY), other = best;  // two chains, since each step waits for the one before
    i64 x = w.spans->from[r];
    for (; x + W < w.spans->to[r]; x += 2 * W) best = max_of(at(x), best), other = max_of(at(x + W), other);
    if (x < w.spans->to[r]) best = max_of(at(x), best);
    const float found = reduce_max(max_of(other, best));
    return deferred_scale ? found * (float)c.scale : found;  // rounding keeps the order
}

// a vector of scores in the form that the exponential takes
template <class T, class Packing>
template <bool SCALED>
vf Attention<T, Packing>::scaled(const float* score) const {
    if constexpr (SCALED && Packing::K_PACK > 1)
        return Packing::product(load(score), (float)c.scale);
    else
        return load(score);
}

template <class T, class Packing>
template <bool BF16_OUTPUT>
float Attention<T, Packing>::exp_row_of(Worker& w, const Tile& t, i64 r, float base) const {
    if (deferred_scale) return exp_row<BF16_OUTPUT, NOTHING, Packing::K_PACK != 1>(w, t, r, base);
    if (!reducer.by_query) return exp_row<BF16_OUTPUT, NOTHING>(w, t, r, base);
    if (!reducer.r.distance.defined() || !w.reductions.close) return exp_row<BF16_OUTPUT, ENTROPY>(w, t, r, base);
    return exp_row<BF16_OUTPUT, ENTROPY_AND_DISTANCE>(w, t, r, base);
}

// replaces the row's scores by exp(score − base), or packs these for the next product; returns their sum
template <class T, class Packing>
template <bool BF16_OUTPUT, Reduces REDUCES, bool SCALED>
float Attention<T, Packing>::exp_row(Worker& w, const Tile& t, i64 r, float base) const {
    typename Reducer<T, Packing>::Worker& reduced = w.reductions;
    float* score = w.score + r * LD;
    float* packed = w.packed + r * LD;
    vf sums = {}, entropy = REDUCES != NOTHING ? reduced.entropy[r] : vf{};
    vf distance = REDUCES == ENTROPY_AND_DISTANCE ? reduced.distance[r] : vf{};
    vi visible = REDUCES != NOTHING ? reduced.visible[r] : vi{};
    const float own = REDUCES == ENTROPY_AND_DISTANCE ? reducer.own_from_base(reduced, r) : 0;
    const i64 from = w.spans->from[r], to = w.spans->to[r];
    const bool kept = !BF16_OUTPUT || (REDUCES != NOTHING && reduced.reads_weights);
    for (i64 x = from; x < to; x += W) {
        const vf found = scaled<SCALED>(score + x), below = found - base, weight = exp_of<DEGREE>(below);
        sums += weight;
        if (REDUCES != NOTHING) {
            visible -= (vi)(found != -INFINITY);
            entropy += weight * max_of(broadcast(Reducer<T, Packing>::FAR_BELOW), below);  // 0·−∞ is NaN
        }
        if (REDUCES == ENTROPY_AND_DISTANCE) {
            const vf apart = load(reduced.from_base + x) - own;
            distance += weight * (vf)((vi)apart & 0x7fffffff);
        }
        if (BF16_OUTPUT) Packing::put(packed, x - t.c0, weight);
        if (kept) store(score + x, weight);
    }
    if (REDUCES != NOTHING) reduced.entropy[r] = entropy, reduced.visible[r] = visible;
    if (REDUCES == ENTROPY_AND_DISTANCE) reduced.distance[r] = distance;
    if (w.spans->whole) return sum(sums);
    for (i64 x = t.c0; x < t.c1; x += W) {
        if (x >= from && x < to) continue;
        if (BF16_OUTPUT)
            Packing::put(packed, x - t.c0, vf{});
        else
            store(score + x, vf{});
    }
    return sum(sums);
}

template <class T, class Packing>
void Attention<T, Packing>::dropout(Worker& w, const Tile& t) const {
    const uint32_t key = head_hash(t);
    load_keys(w, t, round_up(t.c1, W));
    for (i64 r = 0; r < t.rows; r++) {
        const uint32_t row = hash32(key + (uint32_t)*c.q_index.template at<i64>(t.b, t.i0 + r));
        for (i64 x = t.c0; x < t.c1; x += W) {
            float* weight = w.score + r * LD + x;
            store(weight, load(weight) * dropout_factor(row, w.key_indices + x));
        }
    }
}

template <class T, class Packing>
void Attention<T, Packing>::finish(Worker& w, const Tile& t) const {
    for (i64 r = 0; r < t.rows; r++) {
        float* out = w.out + r * plan.dvp;
        float row_max = w.row_max[r], row_sum = w.row_sum[r], factor = 1;
        const bool nothing = row_sum == 0;  // the query sees no key, with or without a sink
        if (terms.sink) {
            const float sink = *terms.sink->values.template at<float>(t.b, t.h, t.i0 + r);
            const float base = row_max > sink ? row_max : sink;  // the sink also if it is NaN
            if (base != -INFINITY) {
                factor = row_max == base ? 1 : expf(row_max - base);
                row_sum = row_sum * factor + expf(sink - base);
                row_max = base;
            }
        }
        if (nothing) memset(out, 0, (size_t)(plan.dvp * 4));
        store_row<T>(c.out, t.b, t.h, t.i0 + r, c.dv, out, nothing ? 1 : factor / row_sum);
        if (c.row_max.defined()) *c.row_max.template at<float>(t.b, t.h, t.i0 + r) = row_max;
        if (c.row_sum.defined()) *c.row_sum.template at<float>(t.b, t.h, t.i0 + r) = row_sum;
        if (reducer.by_query) reducer.template finish<DEGREE>(w.reductions, t, r, w.row_max[r], w.row_sum[r], row_max, row_sum);
    }
}

template <class T, class Packing>
void Attention<T, Packing>::column_item(i64 item, Worker& w) {
    reducer.begin_task(item);
    const i64 head = item / reducer.chunks;
    for (i64 number = item % reducer.chunks; number < plan.blocks; number += reducer.chunks) {
        Tile t = block(w, head, number);
        row_ranges(c, t.b, t.i0, t.rows, *w.ranges);
        start(w, t);
        for (i64 r = 0; r < t.rows; r++) {
            const float row_sum = *c.row_sum.template at<float>(t.b, t.h, t.i0 + r);
            w.row_max[r] = row_sum == 0 ? 0 : *c.row_max.template at<float>(t.b, t.h, t.i0 + r);
            w.inv_row_sum[r] = row_sum == 0 ? 0 : 1 / row_sum;
        }
        const i64 low = first_key(w, t);
        if (terms.scans()) find_scanned(w, t, low, 0);
        for (i64 j0 = low; j0 < w.ranges->high; j0 += NB) {
            Cover seen;
            if (!visible_columns(w, t, j0, seen)) continue;
            scores(w, t, seen, 0);
            reducer.add_tile(w.reductions, t, round_up(t.c1, NR), item, w.spans->from, w.spans->to, [&](i64 r, i64 x) {
                vf score = load(w.score + r * LD + x);
                if (w.deferred_bias[0]) score += load(w.deferred_bias[r] + x - t.c0);
                return exp_of<DEGREE>(score - w.row_max[r]) * w.inv_row_sum[r];
            });
        }
    }
}

}  // namespace
