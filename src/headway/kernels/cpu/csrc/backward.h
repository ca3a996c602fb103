// The backward pass: the five products of a tile, and the gradients of scores.
#pragma once
#include "attention.h"

namespace {

template <class T, class Packing>
void Attention<T, Packing>::backward_head(i64 item, Worker& w) {
    const Segment whole = plan.whole(item / c.kv_heads);
    if (plan.head_per_worker) plan.pack(whole, item % c.kv_heads, number_of(w));
    const i64 first = number_of(w) * tasks.slots;
    for (i64 x = 0; x < tasks.of_head(); x++) {
        tasks.for_each(item * tasks.of_head() + x, [&](i64 b, i64 h, i64 chunk) { backward_task(w, b, h, chunk, first + (x > 0)); });
        if (x) tasks.add_task(first);
    }
    tasks.reduce(whole, item % c.kv_heads, first);
}

// the segments of a chunk, of all heads that share keys
template <class T, class Packing>
void Attention<T, Packing>::backward_segments(i64 item, Worker& w) {
    const i64 head = item / tasks.chunks, chunk = item % tasks.chunks, b = head / c.kv_heads, h = head % c.kv_heads;
    const i64 first = number_of(w) * tasks.slots;
    for (i64 g = 0; g < plan.group; g++) terms.begin_task(tasks.number(b, h * plan.group + g, chunk));
    tasks.segments(b, chunk, [&](const Segment& s) {
        plan.pack(s, h, number_of(w));
        for (i64 g = 0; g < plan.group; g++) {
            const i64 one = h * plan.group + g, slot = first + (g > 0);
            tasks.begin(slot);
            for (i64 number = 0; number < plan.blocks_of(s); number++)
                backward(w, block(w, s, one, number), tasks.number(b, one, chunk), slot);
            if (g) tasks.add_task(first);
        }
        tasks.reduce(s, h, first);
    });
}

template <class T, class Packing>
void Attention<T, Packing>::backward_item(i64 item, Worker& w) {
    tasks.for_each(item, [&](i64 b, i64 h, i64 chunk) { backward_task(w, b, h, chunk, tasks.number(b, h, chunk)); });
}

template <class T, class Packing>
void Attention<T, Packing>::backward_task(Worker& w, i64 b, i64 h, i64 chunk, i64 slot) const {
    const i64 task = tasks.number(b, h, chunk);
    tasks.begin(slot);
    terms.begin_task(task);
    tasks.blocks(chunk, [&](i64 number) { backward(w, block(w, b * c.heads + h, number), task, slot); });
}

template <class T, class Packing>
void Attention<T, Packing>::backward(Worker& w, Tile t, i64 task, i64 slot) const {
    const BlockGradients block = start_backward(w, t, slot);
    const bool whole_path = terms.path.t && terms.path.wants_grad() && w.ranges->low < w.ranges->high;
    i64 low = first_key(w, t);
    if (terms.stick) low = find_left_after(w, t, block, low, task);
    if (terms.positions.t || terms.path.t) find_scanned(w, t, low, task);
    for (i64 j0 = low; j0 < (whole_path ? c.m : w.ranges->high); j0 += NB) {
        Cover seen;
        if (visible_columns(w, t, j0, seen))
            tile_backward(w, t, seen, block, task);
        else if (whole_path)
            path_backward(w, t, false, task);
    }
    finish_backward(w, t, task);
}

template <class T, class Packing>
typename Attention<T, Packing>::BlockGradients Attention<T, Packing>::start_backward(Worker& w, const Tile& t, i64 slot) const {
    const i64 dp = plan.dp, dvp = plan.dvp;
    row_ranges(c, t.b, t.i0, t.rows, *w.ranges);
    load_score_scales(w, t);
    load_gradients(w, t);
    find_fully_masked(w, t);
    if (terms.positions.t) {
        load_queries(w, t, false, true);
        terms.positions.multiply(c, w.terms.positions, t.h, t.rows, w.x);
    }
    load_queries(w, t, true, true);
    const float* q_pairs = pack_row_pairs<Packing>(w.x, dp, t.rows, dp, w.q_pairs, dp);
    if (q_pairs != w.q_pairs) memcpy(w.q_pairs, q_pairs, (size_t)(t.rows * dp * 4));
    if (!prescaled_q) load_queries(w, t, false, true);
    if (decode) clear_queries(w, t.rows);
    const float* q = pack_rows<Packing>(w.x, dp, t.rows, plan.d_packed, w.q);
    if (q != w.q) memcpy(w.q, q, (size_t)(t.rows * dp * 4));
    memset(w.out, 0, (size_t)((MB + SLACK) * dp * 4));
    memset(w.d_query_scale, 0, sizeof w.d_query_scale);
    terms.begin(w.terms, t, w.score_scale, w.d_out, w.fully_masked);
    return {pack_rows<Packing>(w.d_out, dvp, t.rows, plan.dv_packed, w.d_out_packed),
            pack_row_pairs<Packing>(w.d_out, dvp, t.rows, dvp, w.d_out_pairs, dvp),
            slot,
            tasks.dk ? tasks.dk + (slot * tasks.keys - t.first) * dp : nullptr,
            tasks.dv ? tasks.dv + (slot * tasks.keys - t.first) * dvp : nullptr,
            c.dq.defined() || terms.wants_d_query_scale,
            !c.partial_keys && w.ranges->high - first_key(w, t) <= NB};
}

// the five products: S = Q·Kᵀ, dP = dO·Vᵀ, dV += Pᵀ·dO, dQ += dS·K, dK += dSᵀ·Q
template <class T, class Packing>
void Attention<T, Packing>::tile_backward(Worker& w, const Tile& t, Cover seen, const BlockGradients& block, i64 task) const {
    const i64 end = round_up(t.c1, NR);
    scores(w, t, seen, task);
    multiply_gradients(w, t, block, task);
    if (terms.stick)
        stick_backward(w, t, end);
    else
        softmax_backward(w, t, end, block.one_tile);
    add_tile_gradients(w, t, block, task);
}

// dP = dO·Vᵀ
template <class T, class Packing>
void Attention<T, Packing>::multiply_gradients(Worker& w, const Tile& t, const BlockGradients& block, i64 task) const {
    multiply<Packing>(*w.spans, t, plan.dv_packed, block.d_out, plan.dvp, t.packed->v_panels, w.d_score);
    if (values) terms.add_value_products(w.terms, t, w.d_score, task);
}

// adds a tile's share to all gradients, from its weights and the gradients of its scores
template <class T, class Packing>
void Attention<T, Packing>::add_tile_gradients(Worker& w, const Tile& t, const BlockGradients& block, i64 task) const {
    const i64 dp = plan.dp, dvp = plan.dvp, row_pairs = packed_k_of(t.rows, Packing::K_PACK);
    const i64 end = round_up(t.c1, NR), keys = end - t.c0, packed_keys = packed_k_of(keys, Packing::K_PACK);
    const i64 first = t.j0 + t.c0;
    tasks.touch(block.slot, first - t.first, t.j0 + end - t.first);
    if (block.dv) {
        const float* weights = pack_row_pairs<Packing>(w.score + t.c0, LD, t.rows, keys, w.row_pairs, LD);
        float* dv = block.dv + first * dvp;
        w.spans->template over_queries<Packing>(keys, dvp / W, row_pairs, weights, block.d_out_pairs, dvp, dv);
    }
    if (values) terms.relative_values_backward(w.terms, t, w.score, task);
    terms.backward(w.terms, t, w.d_score, w.score_scale, w.d_query_scale, block.dk, task);
    if (terms.path.t && terms.path.wants_grad()) path_backward(w, t, true, task);
    if (block.wants_dq) {
        const float* grads = pack_rows<Packing>(w.d_score + t.c0, LD, t.rows, packed_keys, w.packed);
        const float* k = t.packed->k_rows + (first - t.packed->first) / Packing::K_PACK * dp;
        w.spans->template over_keys<Packing>(t.rows, dp / W, packed_keys, grads, k, dp, w.out, dp);
    }
    if (block.dk) {
        const float* grads = pack_row_pairs<Packing>(w.d_score + t.c0, LD, t.rows, keys, w.row_pairs, LD);
        float* dk = block.dk + first * dp;
        w.spans->template over_queries<Packing>(keys, dp / W, row_pairs, grads, w.q_pairs, dp, dk);
    }
}

template <class T, class Packing>
void Attention<T, Packing>::finish_backward(Worker& w, const Tile& t, i64 task) const {
    const i64 dp = plan.dp;
    if (terms.wants_d_query_scale) {
        load_queries(w, t, false, true);
        for (i64 r = 0; r < t.rows; r++) w.d_query_scale[r] += (float)c.scale * dot(w.x + r * dp, w.out + r * dp, dp);
    }
    terms.finish(w.terms, t, w.out, dp, w.score_scale, w.d_query_scale, w.fully_masked, task);
    for (i64 r = 0; r < t.rows; r++) {
        if (terms.wants_d_query_scale)
            *terms.query_scale->values_grad.template at<float>(t.b, t.h, t.i0 + r) = w.d_query_scale[r];
        for (i64 i = 0; i < dp; i++) w.out[r * dp + i] *= w.score_scale[r];
    }
    if (terms.positions.t) {  // positions are not scaled
        load_queries(w, t, false, true);
        terms.positions.finish(w.terms.positions, t.h, t.rows, w.x, w.out, task);
    }
    for (i64 r = 0; r < t.rows && c.dq.defined(); r++) store_row<T>(c.dq, t.b, t.h, t.i0 + r, c.d, w.out + r * dp);
}

// Loads dO, row_max and 1 / row_sum; computes delta = rowsum(dO∘O) − d_lse and the gradients of sinks.
template <class T, class Packing>
void Attention<T, Packing>::load_gradients(Worker& w, const Tile& t) const {
    const i64 dvp = plan.dvp;
    if (c.d_out.dtype == FLOAT32)
        load_rows<F32>(c.d_out, t.b, t.h, t.i0, t.rows, c.dv, w.d_out, dvp, dvp);
    else
        load_rows<T>(c.d_out, t.b, t.h, t.i0, t.rows, c.dv, w.d_out, dvp, dvp);
    load_rows<T>(c.out, t.b, t.h, t.i0, t.rows, c.dv, w.x, dvp, dvp);
    for (i64 r = 0; r < t.rows; r++) {
        const float row_sum = *c.row_sum.template at<float>(t.b, t.h, t.i0 + r);
        w.row_max[r] = row_sum == 0 ? 0 : *c.row_max.template at<float>(t.b, t.h, t.i0 + r);
        w.inv_row_sum[r] = row_sum == 0 ? 0 : 1 / row_sum;
        if (row_sum == 0) memset(w.d_out + r * dvp, 0, (size_t)(dvp * 4));
        w.delta[r] = dot(w.d_out + r * dvp, w.x + r * dvp, dvp);
        w.d_lse[r] = c.d_lse.defined() && row_sum != 0 ? *c.d_lse.template at<float>(t.b, t.h, t.i0 + r) : 0;
        w.delta[r] -= w.d_lse[r];
        w.one_hot[r] = row_sum == exp_of<DEGREE>(vf{})[0];
        if (terms.sink && terms.sink->values_grad.defined()) {
            const float sink = *terms.sink->values.template at<float>(t.b, t.h, t.i0 + r);
            const float sink_weight = expf(sink - w.row_max[r]) * w.inv_row_sum[r];
            *terms.sink->values_grad.template at<float>(t.b, t.h, t.i0 + r) = -sink_weight * w.delta[r];
        }
        // all scores are −∞ and a sink is NaN: forward has written zeros, and no key has a gradient
        if (row_sum != row_sum && !has_nan(w.x + r * dvp, c.dv)) w.inv_row_sum[r] = 0;
    }
}

template <class T, class Packing>
bool Attention<T, Packing>::has_nan(const float* x, i64 count) {
    for (i64 i = 0; i < count; i++)
        if (x[i] != x[i]) return true;
    return false;
}

// row_sum cannot show which rows see no key if it includes further keys or may come from the sink only (1 or NaN).
template <class T, class Packing>
void Attention<T, Packing>::find_fully_masked(Worker& w, const Tile& t) const {
    for (i64 r = 0; r < t.rows; r++) {
        const bool ask = c.partial_keys || (terms.sink && !(w.inv_row_sum[r] < 1));
        w.fully_masked[r] = w.inv_row_sum[r] == 0 || (ask && !sees_any(c, *w.ranges, r, t.b, t.h, t.i0 + r));
        if (!w.fully_masked[r]) continue;
        w.score_scale[r] = w.row_max[r] = w.inv_row_sum[r] = w.delta[r] = w.d_lse[r] = 0;
        memset(w.d_out + r * plan.dvp, 0, (size_t)(plan.dvp * 4));
    }
}

// Replaces scores by P = exp(S − row_max) / row_sum, and dP by dS = P∘(dP − delta), with zeros around the spans.
//
// one_tile: the tile holds all keys of these queries. Then delta is summed from the same products P∘dP that it is
// subtracted from, so that a row's gradients cancel exactly; rowsum(dO∘O) is rounded differently.
template <class T, class Packing>
void Attention<T, Packing>::softmax_backward(Worker& w, const Tile& t, i64 end, bool one_tile) const {
    const uint32_t key = c.drop_below ? head_hash(t) : 0;
    if (c.drop_below) load_keys(w, t, end);
    for (i64 r = 0; r < t.rows; r++) {
        softmax_backward_of_row(w, t, r, key, one_tile);
        if (terms.positions.t) positions_backward(w, r);
        finish_score_gradients(w, t, r, end);
    }
}

// key: head_hash, for dropout
template <class T, class Packing>
void Attention<T, Packing>::softmax_backward_of_row(Worker& w, const Tile& t, i64 r, uint32_t key, bool one_tile) const {
    float *score = w.score + r * LD, *grad = w.d_score + r * LD;
    const float row_max = w.row_max[r], inv_row_sum = w.inv_row_sum[r];
    float delta = w.delta[r];
    const i64 from = w.spans->from[r], to = w.spans->to[r];
    if (w.deferred_bias[0])
        for (i64 x = from; x < to; x += W) store(score + x, load(score + x) + load(w.deferred_bias[r] + x - t.c0));
    const uint32_t row = c.drop_below ? hash32(key + (uint32_t)*c.q_index.template at<i64>(t.b, t.i0 + r)) : 0;
    for (i64 x = from; x < to; x += W) {
        const vf weight = exp_of<DEGREE>(load(score + x) - row_max) * inv_row_sum;
        store(score + x, select((vi)(weight < NEGLIGIBLE), vf{}, weight));
    }
    if (one_tile) {
        vf sums = {};
        for (i64 x = from; x < to; x += W) {
            const vf d_weight = c.drop_below ? load(grad + x) * dropout_factor(row, w.key_indices + x) : load(grad + x);
            sums += load(score + x) * d_weight;
        }
        delta = sum(sums) - w.d_lse[r];
    }
    if (c.drop_below) {
        for (i64 x = from; x < to; x += W) {
            vf weight = load(score + x), keep = dropout_factor(row, w.key_indices + x);
            store(score + x, weight * keep);
            store(grad + x, weight * (load(grad + x) * keep - delta));
        }
    } else {
        for (i64 x = from; x < to; x += W) store(grad + x, load(score + x) * (load(grad + x) - delta));
    }
    if (w.one_hot[r])  // dS is exactly d_lse or 0; a difference of rounded products would not be exact
        for (i64 x = from; x < to; x += W)
            store(grad + x, select((vi)(load(score + x) > 0.5f), broadcast(w.d_lse[r]), load(grad + x)));
}

// multiplies the gradients of a row's scores by the slope of soft caps, with zeros around its span
template <class T, class Packing>
void Attention<T, Packing>::finish_score_gradients(Worker& w, const Tile& t, i64 r, i64 end) const {
    float* grad = w.d_score + r * LD;
    const i64 from = w.spans->from[r], to = w.spans->to[r];
    if (w.cap_slope)
        for (i64 x = from; x < to; x += W) {  // the slope of a masked score may be NaN
            vf found = load(grad + x);
            store(grad + x, select((vi)(found == 0), vf{}, found * load(w.cap_slope + r * LD + x)));
        }
    clear_outside_span(w, t, r, w.score + r * LD, end);
    clear_around(w, t, r, grad, end);
}

// writes zeros around the span of a row of gradients
template <class T, class Packing>
void Attention<T, Packing>::clear_around(const Worker& w, const Tile& t, i64 r, float* grad, i64 end) const {
    store(grad + t.c0 - W, vf{});
    for (i64 x = t.c1; x < w.spans->to[r]; x++) grad[x] = 0;
    clear_outside_span(w, t, r, grad, end);
    store(grad + end, vf{});
}

}  // namespace
