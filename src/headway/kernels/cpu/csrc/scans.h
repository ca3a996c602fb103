// Terms that visit the keys of a row from the last to the first: the shared loop, contextual positions and paths.
//
// Their gradients sum over the keys before a key, from the first to the last. A backward pass therefore first finds the
// sums behind each block of keys. It then computes the blocks from the first one on, so that no sum is a difference of
// larger ones.
#pragma once
#include "attention.h"

namespace {

// Calls visit(seen) for the tiles of a block of queries, from the last keys to the first, while `more` holds before a
// tile. Only paths visit tiles that no query sees.
template <class T, class Packing>
template <class More, class Visit>
void Attention<T, Packing>::from_last_key(Worker& w, Tile& t, i64 low, i64 high, More more, Visit visit) const {
    for (i64 r = 0; r < t.rows; r++) w.scanned[r] = terms.stick ? 1 : 0;
    for (i64 j0 = low + (high - 1 - low) / NB * NB; j0 >= low && low < high; j0 -= NB) {
        if (!more(j0)) return;
        Cover seen;
        const bool visible = visible_columns(w, t, j0, seen);
        if (visible || terms.path.t) visit(visible ? seen : EMPTY);
    }
}

// Adds contextual positions to the scores of a tile.
template <class T, class Packing>
void Attention<T, Packing>::add_positions(Worker& w, const Tile& t) const {
    typename ContextualPositions::Worker& p = w.terms.positions;
    if (w.knows_scanned) memcpy(w.scanned, scanned_after(w, t), sizeof w.scanned);
    for (i64 r = 0; r < t.rows; r++) {
        float* score = w.score + r * LD;
        const float* products = p.products + r * terms.positions.ld;
        p.open[r] = add_positions_to_row(
            products, terms.positions.last, score, w.spans->from[r], w.spans->to[r], w.scanned[r],
            [&](i64 x, Share share, vf count) {
                if (!c.backward) return;  // only the backward pass has these tiles
                store(p.counts + r * LD + x, count), store(p.gate_slopes + r * LD + x, share.taken * share.left);
            });
    }
}

// Adds the sums of gates to the scores of a tile, if it is visible, and multiplies the gates.
template <class T, class Packing>
void Attention<T, Packing>::add_path(Worker& w, const Tile& t, bool visible) const {
    if (w.knows_scanned) memcpy(w.scanned, scanned_after(w, t), sizeof w.scanned);
    terms.path.multiply(c, w.terms.path, t);
    for (i64 r = 0; r < t.rows && (visible || w.terms.path.any); r++)
        w.scanned[r] = terms.path.add_to_row(c, w.terms.path, t, r, w.score + r * LD, visible ? w.spans->from[r] : 0,
                                             visible ? w.spans->to[r] : 0, w.scanned[r]);
}

// Finds the sums behind each block of keys: of gates on a path, or of the counts of contextual positions. For the latter,
// scores are computed until all positions are the last one.
template <class T, class Packing>
void Attention<T, Packing>::find_scanned(Worker& w, Tile& t, i64 low, i64 task) const {
    for (i64 r = 0; r < t.rows; r++) w.gained[r] = 0;
    w.knows_scanned = false;
    if (terms.path.t) {
        from_last_key(w, t, low, c.m, [](i64) { return true; }, [&](Cover) {
            memcpy(scanned_after(w, t), w.scanned, sizeof w.scanned);
            add_path(w, t, false);
        });
        w.knows_scanned = true;
        return;
    }
    for (i64 x = 0; x < (plan.key_blocks + 2) * MB; x++) w.scanned_after[x] = (double)terms.positions.last;
    auto more = [&](i64 j0) {
        for (i64 r = 0; r < t.rows; r++)
            if (w.scanned[r] < (double)terms.positions.last && sees_before(w, r, j0 + NB)) return true;
        return false;
    };
    from_last_key(w, t, low, w.ranges->high, more, [&](Cover seen) {
        memcpy(scanned_after(w, t), w.scanned, sizeof w.scanned);
        scores(w, t, seen, task);
    });
    w.knows_scanned = true;
}

// whether a row may see keys before j
template <class T, class Packing>
bool Attention<T, Packing>::sees_before(const Worker& w, i64 r, i64 j) const {
    if (c.backward && w.fully_masked[r]) return false;
    for (i64 s = 0; s < w.ranges->count; s++)
        if (w.ranges->start[s][r] < min(j, w.ranges->stop[s][r])) return true;
    return false;
}

// Replaces the gradients of a row's scores by those of its scores without positions.
template <class T, class Packing>
void Attention<T, Packing>::positions_backward(Worker& w, i64 r) const {
    typename ContextualPositions::Worker& p = w.terms.positions;
    const ContextualPositions& all = terms.positions;
    positions_backward_of_row(p.products + r * all.ld, all.last, p.counts + r * LD, p.gate_slopes + r * LD, w.d_score + r * LD,
                              w.spans->from[r], p.open[r], w.spans->to[r], w.gained[r], p.by_count + r * all.t->rows);
}

// Adds the gradients of the scores of a tile, if it is visible, to those of the path.
template <class T, class Packing>
void Attention<T, Packing>::path_backward(Worker& w, const Tile& t, bool visible, i64 task) const {
    if (!visible) add_path(w, t, false);
    if (!visible && !w.terms.path.any) return;
    for (i64 r = 0; r < t.rows; r++)
        w.gained[r] = terms.path.backward_of_row(c, w.terms.path, t, r, w.d_score + r * LD, visible ? w.spans->from[r] : 0,
                                                 visible ? w.spans->to[r] : 0, w.gained[r]);
    if (w.terms.path.any) terms.path.multiply_backward(c, w.terms.path, t, task);
}

}  // namespace
