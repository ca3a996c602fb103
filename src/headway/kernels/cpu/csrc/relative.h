// The state of a term that all workers share, and the products of tokens with the rows of a relative table.
//
// If positions are integers, the distances of the call are the columns of a table, so that neighbours in a tile are
// neighbours in the table. SlidingProducts holds the products with a window of columns that moves along the keys. Products
// at other distances are gathered pair by pair from the products with all rows of the table.
#pragma once
#include "waves.h"

namespace {

constexpr i64 WINDOW = (2 * MB + 2 * NB) / NR * NR + 3 * NR;  // columns that SlidingProducts holds

inline bool is_relative(const Term& t) { return t.kind >= RELATIVE_KEYS && t.kind <= RELATIVE_VALUES; }
inline bool is_slope(const Term& t) { return t.kind == QUERY_SLOPES || t.kind == KEY_SLOPES; }

// the state of one term, shared by all workers
struct TermState {
    const Call* c;
    const Term* t;
    bool wants_grad;   // whether any gradient needs the gradients of its scores
    bool before_mask;  // a bias is +∞ or NaN, and must be added before the mask's −∞
    bool dense;        // columns are the integer distances low, low + 1, …; otherwise the rows of the term's table
    i64 low, columns;
    const Axis* axis;
    // distance: [heads or 1][PAD + columns + PAD], with the edge values repeated in the padding; stretched: u
    float* bias_by_distance;
    i64 head_stride;
    float* slope_by_distance;  // stretched, if its rate needs a gradient: ∂u/∂rate
    Waves waves;         // cosines
    // relative: the table as the B of products over its width, and over its columns
    i64 packed_width, width, padded, heads;
    float *panels, *row_major_panel;
    const float* panel(i64 h, i64 column) const {
        return panels + ((heads > 1 ? h : 0) * (padded / NR) + column / NR) * packed_width * NR;
    }
    const float* row(i64 h, i64 column) const { return row_major_panel + ((heads > 1 ? h : 0) * padded + column) * width; }
    // Sums of gradients, one for each task. Sums over all pairs of a head are in float64, since addends may cancel.
    float* sums;      // the relative table
    float* key_sums;  // relative queries with keys of their own: [mp][width]
    double* double_sums;  // distance: two edges, parameters, bias_by_distance with padding; relative: u; tokens: keys
    i64 sums_size, double_sums_size, parameters;
    const double* sums_by_distance(const double* task_sums) const { return task_sums + 2 + parameters; }
    double* sums_by_distance(double* task_sums) const { return task_sums + 2 + parameters; }
};

// products of the rows of a block (queries, or keys) with the columns first … last − 1 of a relative table
struct SlidingProducts {
    i64 first, last, ld;
    float *value, *grad;
    float *edge_value[2], *edge_grad[2];
    float* rows;         // [rows][width]: the rows that are multiplied, scaled
    float* packed_rows;
    float* d_rows;       // [rows][width]
};

// For the rows r0 … r1 − 1 and columns c0 … c1 − 1, calls piece(row, column of the tile, column of the table, count) for
// neighbours in both, and edge(side, row, column of the tile, count) beyond the ends of the table.
template <class Piece, class Edge>
inline void for_each_run(const TermState& s, const Tile& t, i64 r0, i64 r1, i64 c0, i64 c1, Piece piece, Edge edge) {
    if (!s.dense) {
        for (i64 r = r0; r < r1; r++)
            for (i64 x = c0; x < c1; x++) piece(r, x, row_of(*s.c, *s.t, t.b, t.i0 + r, t.j0 + x), (i64)1);
        return;
    }
    const i64 *q = s.axis->q_at(t), *k = s.axis->k_at(t);
    const int32_t* run = s.axis->run_at(t);
    for (i64 r = r0; r < r1; r++)
        for (i64 x = c0; x < c1;) {
            i64 count = min(run[x], c1 - x), column = k[x] - q[r] - s.low;
            i64 before = max(0, min(count, -column)), inside = max(0, min(count, s.columns - column) - before);
            if (before) edge(0, r, x, before);
            if (inside) piece(r, x + before, column + before, inside);
            if (before + inside < count) edge(1, r, x + before + inside, count - before - inside);
            x += count;
        }
}

// Calls visit(r0, r1, c0, c1, from, to) for parts of a tile whose distances fit into a window, the columns from … to − 1
// of the table.
template <class Visit>
inline void for_each_window(const TermState& s, const Tile& t, Visit visit) {
    if (!s.dense) return visit((i64)0, t.rows, t.c0, t.c1, (i64)0, s.columns);
    const i64 *q = s.axis->q_at(t), *k = s.axis->k_at(t);
    for (i64 r0 = 0, r1; r0 < t.rows; r0 = r1) {
        r1 = group_end(q, r0, t.rows, 2 * MB);
        Range qs = range_of(q + r0, 1, r1 - r0);
        for (i64 c0 = t.c0, c1; c0 < t.c1; c0 = c1) {
            c1 = group_end(k, c0, t.c1, 2 * NB);
            Range ks = range_of(k + c0, 1, c1 - c0);
            visit(r0, r1, c0, c1, max(0, ks.low - qs.high - s.low), min(s.columns, ks.high - qs.low - s.low + 1));
        }
    }
}

// Packs the rows, and multiplies them with the first and the last column.
template <class Packing>
void edge_products(const TermState& s, i64 h, i64 rows, SlidingProducts& r) {
    pack_rows<Packing>(r.rows, s.width, rows, s.packed_width, r.packed_rows);
    if (!s.dense) return;
    for (int side = 0; side < 2; side++)
        for (i64 row = 0; row < rows; row++)
            r.edge_value[side][row] = dot(r.rows + row * s.width, s.row(h, side ? s.columns - 1 : 0), s.width);
}

// adds grad·table to d_rows, gradᵀ·rows to the table's sums, for columns that leave the window
inline void flush_gradients(const TermState& s, i64 h, i64 task, i64 rows, SlidingProducts& r, i64 from, i64 to) {
    if (from >= to) return;
    const float* grad = r.grad + from - r.first;
    if (!s.c->backward || s.t->kind != RELATIVE_VALUES)
        gemm<Float32, false>(rows, s.width / W, to - from, grad, r.ld, s.row(h, from), s.width, r.d_rows, s.width, true);
    if (s.c->backward && s.t->values_grad.defined())
        gemm<Float32, true>(to - from, s.width / W, rows, grad, r.ld, r.rows, s.width,
                              s.sums + task * s.sums_size + from * s.width, s.width, true);
}

// the columns still in the window, and the edges
inline void flush_all_gradients(const TermState& s, i64 h, i64 task, i64 rows, SlidingProducts& r) {
    flush_gradients(s, h, task, rows, r, r.first, r.last);
    r.first = r.last = 0;
    if (!s.dense) return;
    for (int side = 0; side < 2; side++) {
        i64 column = side ? s.columns - 1 : 0;
        for (i64 row = 0; row < rows; row++) {
            float grad = r.edge_grad[side][row];
            if (grad == 0) continue;
            add_scaled(r.d_rows + row * s.width, s.row(h, column), grad, s.width);
            if (s.c->backward && s.t->values_grad.defined())
                add_scaled(s.sums + task * s.sums_size + column * s.width, r.rows + row * s.width, grad, s.width);
        }
    }
}

// Moves the window so that it contains the columns from … to − 1. Gradients of columns that leave it are flushed.
template <class Packing>
void slide_to(const TermState& s, i64 h, i64 task, i64 rows, SlidingProducts& r, i64 from, i64 to) {
    from = max(0, from) / NR * NR, to = min(s.padded, round_up(to, NR));
    if (from >= to || (from >= r.first && to <= r.last)) return;
    bool slides = from >= r.first && from < r.last;
    if (r.grad) flush_gradients(s, h, task, rows, r, r.first, slides ? from : r.last);
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
        const float* a = Packing::K_PACK == 1 ? r.rows : r.packed_rows;
        for (i64 column = from + kept; column < to; column += NR)
            multiply_columns<Packing, PANEL_NV, false>(rows, s.packed_width, a, s.width, s.panel(h, column), NR,
                                            r.value + column - from, r.ld, false);
    }
    r.first = from, r.last = to;
}

}  // namespace
