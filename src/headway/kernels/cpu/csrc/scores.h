// Scores of a tile: products, terms, mask; dropout.
#pragma once
#include "attention.h"

namespace {

template <class T, class Packing>
void Attention<T, Packing>::load_score_scales(Worker& w, const Tile& t) const {
    for (i64 r = 0; r < t.rows; r++) {
        w.score_scale[r] = (float)c.scale;
        if (terms.query_scale) w.score_scale[r] *= *terms.query_scale->values.template at<float>(t.b, t.h, t.i0 + r);
    }
}

// Loads the queries of the block into w.x as floats. scaled: multiplied by score_scale. fully_masked: rows to zero.
template <class T, class Packing>
void Attention<T, Packing>::load_queries(Worker& w, const Tile& t, bool scaled, bool fully_masked) const {
    load_rows<T>(c.q, t.b, t.h, t.i0, t.rows, c.d, w.x, plan.dp, plan.dp);
    for (i64 r = 0; r < t.rows; r++) {
        float* row = w.x + r * plan.dp;
        if (fully_masked && w.fully_masked[r])
            memset(row, 0, (size_t)(plan.dp * 4));
        else if (scaled)
            for (i64 i = 0; i < plan.dp; i++) row[i] *= w.score_scale[r];
    }
}

// the first key of a block's first tile, after row_ranges
template <class T, class Packing>
i64 Attention<T, Packing>::first_key(const Worker& w, const Tile& t) const {
    const i64 step = split_k ? NB : NR;
    return t.first + (w.ranges->low - t.first) / step * step;
}

// Narrows the tile to the columns that its queries see; false if there are none.
template <class T, class Packing>
bool Attention<T, Packing>::visible_columns(Worker& w, Tile& t, i64 j0, Cover& seen) const {
    i64 first;
    if (!reach(w, t, j0, first)) return false;
    seen = cover_of(w, t, first);
    return seen != EMPTY;
}

// Narrows the tile to the columns of its intervals, from a panel's first column on. first: the first column in sight.
template <class T, class Packing>
bool Attention<T, Packing>::reach(Worker& w, Tile& t, i64 j0, i64& first) const {
    t.j0 = j0;
    if (!w.spans->reach(*w.ranges, t, 0, min(NB, c.m - j0))) return false;
    first = t.c0;
    t.c0 = first / NR * NR;
    w.spans->set(t, Packing::K_PACK, c.backward);
    return true;
}

template <class T, class Packing>
Cover Attention<T, Packing>::cover_of(const Worker& w, const Tile& t, i64 first) const {
    const Cover seen = cover(c, *w.ranges, t.b, t.h, t.i0, t.rows, t.j0 + first, t.c1 - first);
    return seen == FULL && t.c0 < first ? PARTIAL : seen;
}

// Scores with terms and mask, except for a deferred bias. Columns outside a row's span are undefined.
template <class T, class Packing>
void Attention<T, Packing>::scores(Worker& w, const Tile& t, Cover seen, i64 task) const {
    multiply_queries(w, t);
    complete_scores(w, t, seen, task);
}

// q·kᵀ of the rows of a tile
template <class T, class Packing>
void Attention<T, Packing>::multiply_queries(Worker& w, const Tile& t) const {
    if (decode)
        decode_scores(w, t);
    else
        multiply<Packing>(*w.spans, t, plan.d_packed, w.q, plan.dp, t.packed->k_panels, w.score);
}

template <class T, class Packing>
void Attention<T, Packing>::complete_scores(Worker& w, const Tile& t, Cover seen, i64 task) const {
    const Spans& s = *w.spans;
    if (!prescaled_q && !deferred_scale)
        for (i64 r = 0; r < t.rows; r++)
            for (i64 x = s.from[r]; x < s.to[r]; x += W)
                store(w.score + r * LD + x, load(w.score + r * LD + x) * w.score_scale[r]);
    w.deferred_bias[0] = nullptr;
    if (terms.path.t) add_path(w, t, true);
    terms.add(w.terms, t, w.score, w.score_scale, task, c.backward ? w.cap_slope : nullptr, w.deferred_bias);
    if (seen == PARTIAL) apply_mask(c, *w.ranges, t.b, t.h, t.i0, t.rows, t.j0, s.from, s.to, w.score, LD);
    for (i64 r = 0; r < t.rows && seen == FULL; r++)
        for (i64 x = t.c1; x < s.to[r]; x++) w.score[r * LD + x] = -INFINITY;
    if (terms.positions.t) add_positions(w, t);
}

// writes zeros to the row of a tile from column c0 to `end`, except in its span
template <class T, class Packing>
void Attention<T, Packing>::clear_outside_span(const Worker& w, const Tile& t, i64 r, float* row, i64 end) const {
    if (w.spans->whole && end <= w.spans->to[r]) return;
    const i64 from = min(w.spans->from[r], end), to = max(w.spans->to[r], from);
    for (i64 x = t.c0; x < from; x += W) store(row + x, vf{});
    for (i64 x = to; x < end; x += W) store(row + x, vf{});
}

template <class T, class Packing>
uint32_t Attention<T, Packing>::head_hash(const Tile& t) const {
    const uint32_t row = hash32((uint32_t)(c.batch_offset + t.b));
    const uint32_t lane = hash32(row + (uint32_t)(c.head_offset + t.h));
    return hash32((uint32_t)c.seed + hash32((uint32_t)(c.seed >> 32) + lane));
}

template <class T, class Packing>
void Attention<T, Packing>::load_keys(Worker& w, const Tile& t, i64 end) const {
    for (i64 x = t.c0; x < end; x++)
        w.key_indices[x] = x < t.c1 ? (uint32_t)*c.k_index.template at<i64>(t.b, t.j0 + x) : 0;
}

// 0 for dropped weights, 1 / (1 − dropout) for the others
template <class T, class Packing>
vf Attention<T, Packing>::dropout_factor(uint32_t row_hash, const uint32_t* keys) const {
    vu drawn = hash32(*(const vu_any*)keys + row_hash);
    return select((vi)(drawn >= (uint32_t)c.drop_below), broadcast((float)c.keep_scale), vf{});
}

}  // namespace
