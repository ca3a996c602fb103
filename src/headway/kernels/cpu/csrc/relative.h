// A term as all workers see it, and the products of tokens with the rows of a relative table.
//
// Whole distances that matter are the columns of a term's own table, so that neighbours in a tile are neighbours in the
// table; a ring holds the products with the columns that are near, and moves along with the keys. Everything else is
// gathered pair by pair from the products with all rows of the table.
#pragma once
#include "waves.h"

namespace {

constexpr i64 HELD = (2 * MB + 2 * NB) / NR * NR + 3 * NR;  // columns that a ring holds

inline bool is_relative(const Term& t) { return t.kind >= RELATIVE_KEYS && t.kind <= RELATIVE_VALUES; }

// what one term has for all workers
struct Spoken {
    const Call* c;
    const Term* t;
    bool wanted;       // whether anything comes of the gradients of its scores
    bool early;        // some value must not be added to what is masked already
    bool dense;        // whole distances low, low + 1, … are the columns
    i64 low, columns;  // else the columns are the rows of the table
    const Axis* axis;
    // distance: [heads or 1][PAD + columns + PAD], the edges repeated, but of what is stretched
    float* strip;
    i64 strip_head;
    float* slope_strip;  // stretched, where its rate wants a gradient: the same of ∂u/∂rate
    Waves waves;         // cosines
    // relative: the table as the B of products over its width, and over its columns
    i64 words, width, padded, heads;
    float *panels, *natural;
    const float* panel(i64 h, i64 column) const {
        return panels + ((heads > 1 ? h : 0) * (padded / NR) + column / NR) * words * NR;
    }
    const float* row(i64 h, i64 column) const { return natural + ((heads > 1 ? h : 0) * padded + column) * width; }
    // Sums of the gradient, one for each task. What all pairs of a head share is summed as doubles: its parts may cancel.
    float* sums;      // the relative table
    float* key_sums;  // relative queries with keys of their own: [mp][width]
    double* fine;     // distance: the two edges of the strip, parameters, the padded strip; relative: u; tokens: keys
    i64 sums_size, fine_size, parameters;
    const double* strip_sums(const double* own) const { return own + 2 + parameters; }
    double* strip_sums(double* own) const { return own + 2 + parameters; }
};

// products of the rows of a block (queries, or keys) with the columns first … last − 1 of a relative table
struct Ring {
    i64 first, last, ld;
    float *value, *grad;
    float *edge_value[2], *edge_grad[2];
    float *own;        // [rows][width]: the rows that are multiplied, scaled
    float *own_words;
    float *own_grad;   // [rows][width]
};

// Calls piece(row, column of the tile, column of the table, count) for neighbours in both, and
// edge(side, row, column of the tile, count) where the table has ended, for the rows r0 … r1 − 1 and columns c0 … c1 − 1.
template <class Piece, class Edge>
inline void pieces(const Spoken& s, const Tile& t, i64 r0, i64 r1, i64 c0, i64 c1, Piece piece, Edge edge) {
    if (!s.dense) {
        for (i64 r = r0; r < r1; r++)
            for (i64 x = c0; x < c1; x++) piece(r, x, row_of(*s.c, *s.t, t.b, t.i0 + r, t.j0 + x), (i64)1);
        return;
    }
    const i64 *q = s.axis->q_at(t), *k = s.axis->k_at(t);
    const int32_t* run = s.axis->run_at(t);
    for (i64 r = r0; r < r1; r++)
        for (i64 x = c0; x < c1;) {
            i64 count = least(run[x], c1 - x), column = k[x] - q[r] - s.low;
            i64 before = most(0, least(count, -column)), inside = most(0, least(count, s.columns - column) - before);
            if (before) edge(0, r, x, before);
            if (inside) piece(r, x + before, column + before, inside);
            if (before + inside < count) edge(1, r, x + before + inside, count - before - inside);
            x += count;
        }
}

// Calls visit(r0, r1, c0, c1, from, to) for the parts of a tile whose distances fit into what a ring holds: the columns
// from … to − 1 of the table.
template <class Visit>
inline void parts(const Spoken& s, const Tile& t, Visit visit) {
    if (!s.dense) return visit((i64)0, t.rows, t.c0, t.c1, (i64)0, s.columns);
    const i64 *q = s.axis->q_at(t), *k = s.axis->k_at(t);
    for (i64 r0 = 0, r1; r0 < t.rows; r0 = r1) {
        r1 = group_end(q, r0, t.rows, 2 * MB);
        Range qs = range_of(q + r0, 1, r1 - r0);
        for (i64 c0 = t.c0, c1; c0 < t.c1; c0 = c1) {
            c1 = group_end(k, c0, t.c1, 2 * NB);
            Range ks = range_of(k + c0, 1, c1 - c0);
            visit(r0, r1, c0, c1, most(0, ks.low - qs.high - s.low), least(s.columns, ks.high - qs.low - s.low + 1));
        }
    }
}

// The words of a ring's own rows, and their products with the first and the last column.
template <class Words>
void edges(const Spoken& s, i64 h, i64 rows, Ring& r) {
    as_rows<Words>(r.own, s.width, rows, s.words, r.own_words);
    if (!s.dense) return;
    for (int side = 0; side < 2; side++)
        for (i64 row = 0; row < rows; row++)
            r.edge_value[side][row] = dot(r.own + row * s.width, s.row(h, side ? s.columns - 1 : 0), s.width);
}

// grad·table to own_grad, gradᵀ·own to the table's sums
inline void hand_on(const Spoken& s, i64 h, i64 task, i64 rows, Ring& r, i64 from, i64 to) {
    if (from >= to) return;
    const float* grad = r.grad + from - r.first;
    if (!s.c->backward || s.t->kind != RELATIVE_VALUES)
        product<Floats, false>(rows, s.width / W, to - from, grad, r.ld, s.row(h, from), s.width, r.own_grad, s.width, true);
    if (s.c->backward && s.t->values_grad.there())
        product<Floats, true>(to - from, s.width / W, rows, grad, r.ld, r.own, s.width,
                              s.sums + task * s.sums_size + from * s.width, s.width, true);
}

// what a ring still holds, and its edges
inline void hand_on_all(const Spoken& s, i64 h, i64 task, i64 rows, Ring& r) {
    hand_on(s, h, task, rows, r, r.first, r.last);
    r.first = r.last = 0;
    if (!s.dense) return;
    for (int side = 0; side < 2; side++) {
        i64 column = side ? s.columns - 1 : 0;
        for (i64 row = 0; row < rows; row++) {
            float grad = r.edge_grad[side][row];
            if (grad == 0) continue;
            add_scaled(r.own_grad + row * s.width, s.row(h, column), grad, s.width);
            if (s.c->backward && s.t->values_grad.there())
                add_scaled(s.sums + task * s.sums_size + column * s.width, r.own + row * s.width, grad, s.width);
        }
    }
}

// Holds the columns from … to − 1 (at least); `rows` of own. Gradients that leave are handed on.
template <class Words>
void hold(const Spoken& s, i64 h, i64 task, i64 rows, Ring& r, i64 from, i64 to) {
    from = most(0, from) / NR * NR, to = least(s.padded, up(to, NR));
    if (from >= to || (from >= r.first && to <= r.last)) return;
    bool slides = from >= r.first && from < r.last;
    if (r.grad) hand_on(s, h, task, rows, r, r.first, slides ? from : r.last);
    i64 kept = 0;
    if (slides) {
        kept = r.last - from;
        for (i64 row = 0; row < rows; row++) {
            i64 old = row * r.ld + from - r.first;
            if (r.value) memmove(r.value + row * r.ld, r.value + old, (size_t)(kept * 4));
            if (r.grad) memmove(r.grad + row * r.ld, r.grad + old, (size_t)(kept * 4));
        }
    }
    if (r.grad)
        for (i64 row = 0; row < rows; row++)
            memset(r.grad + row * r.ld + kept, 0, (size_t)((to - from - kept) * 4));
    if (r.value) {
        const float* own = Words::PER_WORD == 1 ? r.own : r.own_words;
        for (i64 column = from + kept; column < to; column += NR)
            columns<Words, PANEL_NV, false>(rows, s.words, own, s.width, s.panel(h, column), NR,
                                            r.value + column - from, r.ld, false);
    }
    r.first = from, r.last = to;
}

}  // namespace
