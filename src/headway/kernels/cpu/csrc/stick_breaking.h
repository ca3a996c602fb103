// Stick-breaking in place of the softmax, forward and backward.
#pragma once
#include "scans.h"

namespace {

// Visits the tiles of a block of queries from the last keys to the first, with their scores, while a row has a rest.
// visit(): sets the rest before the tile.
template <class T, class Packing>
template <class Visit>
void Attention<T, Packing>::from_last_stick(Worker& w, Tile& t, i64 low, i64 high, i64 task, Visit visit) const {
    auto more = [&](i64) {
        for (i64 r = 0; r < t.rows; r++)
            if (w.scanned[r] != 0) return true;
        return false;
    };
    from_last_key(w, t, low, high, more, [&](Cover seen) {
        scores(w, t, seen, task);
        find_own(w, t);
        visit();
    });
}

// Lists the pairs of a query and its own token that the mask allows, and hides them if the token takes no share.
template <class T, class Packing>
void Attention<T, Packing>::find_own(Worker& w, const Tile& t) const {
    w.own_count = 0;
    if (terms.stick->attend_current && !terms.stick->remainder) return;
    i64 low = INT64_MAX, high = INT64_MIN;
    for (i64 x = t.c0; x < t.c1; x++) {
        const i64 index = *c.k_index.template at<i64>(t.b, t.j0 + x);
        low = min(low, index), high = max(high, index);
    }
    for (i64 r = 0; r < t.rows; r++) {
        const i64 index = *c.q_index.template at<i64>(t.b, t.i0 + r);
        if (index < low || index > high) continue;
        for (i64 x = max(t.c0, w.spans->from[r]); x < min(t.c1, w.spans->to[r]); x++) {
            float& score = w.score[r * LD + x];
            if (*c.k_index.template at<i64>(t.b, t.j0 + x) != index) continue;
            // a bias of −∞ does not hide a key, which may still get the remainder
            if (score == -INFINITY && !sees(c, *w.ranges, r, t.b, t.h, t.i0 + r, t.j0 + x)) continue;
            w.own[w.own_count++] = {(uint8_t)r, (uint8_t)x};
            w.row_max[r] = 0, w.row_sum[r] = 1;
            if (!terms.stick->attend_current) score = -INFINITY;
        }
    }
}

template <class T, class Packing>
void Attention<T, Packing>::break_sticks(Worker& w, Tile& t, i64 low, i64 high) const {
    if (terms.stick->remainder) {  // found first: it belongs to the query's own token, which is visited first
        from_last_stick(w, t, low, high, 0, [&] { break_tile(w, t, [](i64, i64, vf) {}); });
        for (i64 r = 0; r < t.rows; r++) w.remainder[r] = (float)w.scanned[r];
    }
    from_last_stick(w, t, low, high, 0, [&] {
        for (i64 r = 0; r < t.rows; r++)
            if (sees_any_score(w, r)) w.row_max[r] = 0, w.row_sum[r] = 1;  // stick-breaking has no statistics
        break_tile(w, t, [&](i64 r, i64 x, vf weights) { store(w.score + r * LD + x, weights); });
        for (i64 r = 0; r < t.rows; r++) clear_outside_span(w, t, r, w.score + r * LD, t.c1);
        if (terms.stick->remainder)
            for (i64 i = 0; i < w.own_count; i++) w.score[w.own[i].row * LD + w.own[i].column] += w.remainder[w.own[i].row];
        finish_weights(w, t);
        multiply_values(w, t);
    });
}

template <class T, class Packing>
bool Attention<T, Packing>::sees_any_score(const Worker& w, i64 r) const {
    for (i64 x = w.spans->from[r]; x < w.spans->to[r]; x++)
        if (w.score[r * LD + x] != -INFINITY) return true;
    return false;
}

// visit(r, x, weights): called for the keys x … x + W − 1 of a row
template <class T, class Packing>
template <class Visit>
void Attention<T, Packing>::break_tile(Worker& w, const Tile& t, Visit visit) const {
    for (i64 r = 0; r < t.rows; r++)
        w.scanned[r] = break_row(w.score + r * LD, w.spans->from[r], w.spans->to[r], w.scanned[r],
                              [&](i64 x, Share, vf weights) { visit(r, x, weights); });
}

// Finds the rest after the keys of each block, and returns the first block that has weights. The gradient of the
// remainder reaches all scores.
template <class T, class Packing>
i64 Attention<T, Packing>::find_left_after(Worker& w, Tile& t, const BlockGradients& block, i64 low, i64 task) const {
    i64 first = w.ranges->high;
    memset(w.d_remainder, 0, sizeof w.d_remainder);
    from_last_stick(w, t, low, w.ranges->high, task, [&] {
        memcpy(scanned_after(w, t), w.scanned, sizeof w.scanned);
        first = t.j0;
        break_tile(w, t, [](i64, i64, vf) {});
        if (!terms.stick->remainder || !w.own_count) return;
        multiply<Packing>(*w.spans, t, plan.dv_packed, block.d_out, plan.dvp, t.packed->v_panels, w.d_score);
        if (values) terms.add_value_products(w.terms, t, w.d_score, task);
        if (c.drop_below) load_keys(w, t, round_up(t.c1, W));
        for (i64 i = 0; i < w.own_count; i++) {
            const i64 r = w.own[i].row, x = w.own[i].column;
            w.d_remainder[r] += w.d_score[r * LD + x] * own_dropout_factor(w, t, w.own[i]);
        }
    });
    for (i64 r = 0; r < t.rows; r++) {
        w.remainder[r] = terms.stick->remainder ? (float)w.scanned[r] : 0;
        w.gained[r] = w.remainder[r] * w.d_remainder[r];
    }
    return first;
}

template <class T, class Packing>
float Attention<T, Packing>::own_dropout_factor(const Worker& w, const Tile& t, Own own) const {
    if (!c.drop_below) return 1;
    const uint32_t row = hash32(head_hash(t) + (uint32_t)*c.q_index.template at<i64>(t.b, t.i0 + own.row));
    return dropout_factor(row, w.key_indices + own.column)[0];
}

// Replaces scores by weights A, and dP by dS = A∘dP∘(1 − σ(S)) − σ(S)∘Σ A∘dP. The sum is over earlier keys and the
// remainder.
template <class T, class Packing>
void Attention<T, Packing>::stick_backward(Worker& w, const Tile& t, i64 end) const {
    const uint32_t key = c.drop_below ? head_hash(t) : 0;
    const double* left = scanned_after(w, t);
    float taken[LD], kept[LD];
    find_own(w, t);
    if (c.drop_below) load_keys(w, t, end);
    for (i64 r = 0; r < t.rows; r++) {
        float *score = w.score + r * LD, *grad = w.d_score + r * LD;
        const i64 from = w.spans->from[r], to = w.spans->to[r];
        const uint32_t row = c.drop_below ? hash32(key + (uint32_t)*c.q_index.template at<i64>(t.b, t.i0 + r)) : 0;
        break_row(score, from, to, left[r], [&](i64 x, Share share, vf weights) {
            store(taken + x, share.taken), store(kept + x, share.left);
            store(score + x, weights);
        });
        for (i64 x = from; x < to; x += W) {
            vf weight = load(score + x), d_weight = load(grad + x);
            if (c.drop_below) {
                const vf keep = dropout_factor(row, w.key_indices + x);
                d_weight *= keep;
                store(score + x, weight * keep);
            }
            const vf gain = weight * d_weight, gains = prefix_sums(gain);
            const vf before = shift_up<1>(gains, vf{}) + (float)w.gained[r];
            store(grad + x, gain * load(kept + x) - load(taken + x) * before);
            w.gained[r] += gains[W - 1];
        }
        finish_score_gradients(w, t, r, end);
    }
    for (i64 i = 0; i < w.own_count && terms.stick->remainder; i++)
        w.score[w.own[i].row * LD + w.own[i].column] += w.remainder[w.own[i].row] * own_dropout_factor(w, t, w.own[i]);
}

}  // namespace
