// A network reads the scores of all heads of a pair (network.h), so one item of work is a block of queries of all heads.
//
// Each head has a worker of its own, with its tiles. A wide network needs scores on both sides of those that it replaces:
// then tiles overlap, and results are taken from the core of each.
#pragma once
#include "attention.h"

namespace {

// Calls visit(tile, first column, core's first column, core's end) for the tiles of a block of queries, after row_ranges.
// Cores are the keys low … high − 1; tiles also have keys around these.
template <class T, class Packing>
template <class Visit>
void Attention<T, Packing>::for_each_core(Worker& first, const Tile& block, i64 low, i64 high, Visit visit) const {
    const i64 first_seen = first_key(first, block), last_seen = first.ranges->high;
    const i64 halo = last_seen - first_seen <= NB ? 0 : terms.network.halo, step = NB - 2 * halo;
    low = max(low, first_seen), high = min(high, last_seen);
    for (i64 j0 = low; j0 < high; j0 += step) {
        Tile t = block;
        i64 column;
        const i64 from = max(first_seen, j0 - halo);
        if (reach(first, t, from, column)) visit(t, column, j0 - from, min(j0 + step, high) - from);
    }
}

// The scores of a tile of all heads, and their biases; false if no head sees any of it.
template <class T, class Packing>
bool Attention<T, Packing>::scores_of_heads(Worker& first, const Tile& t, i64 column, i64 chunk) const {
    bool any = false;
    for (i64 h = 0; h < c.heads; h++) {
        Worker& w = (&first)[h];
        w.tile.j0 = t.j0, w.tile.c0 = t.c0, w.tile.c1 = t.c1;
        w.seen = !h || c.nodes ? cover_of(w, w.tile, column) : first.seen;
        any |= w.seen != EMPTY;
    }
    for (i64 h = 0; h < c.heads && any; h++) {
        Worker& w = (&first)[h];
        scores(w, w.tile, w.seen == EMPTY ? PARTIAL : w.seen, c.backward ? tasks.number(t.b, h, chunk) : 0);
        for (i64 r = 0; r < t.rows; r++) memset(w.bias + r * LD + t.c0, 0, (size_t)((round_up(t.c1, NR) - t.c0) * 4));
        terms.add_network_biases(w.terms, w.tile, w.bias);
    }
    return any;
}

// the row of a tile of all heads that the network reads and writes
template <class T, class Packing>
void Attention<T, Packing>::point_to_row(Worker& first, i64 r) const {
    for (i64 h = 0; h < c.heads; h++) {
        const Worker& w = (&first)[h];
        first.network.scores[h] = w.score + r * LD, first.network.biases[h] = w.bias + r * LD;
        first.network.d_scores[h] = c.backward ? w.d_score + r * LD : nullptr;
    }
}

// Narrows the tile of all heads to its core; false if no query sees any of it.
template <class T, class Packing>
bool Attention<T, Packing>::narrow(Worker& first, i64 from, i64 to) const {
    Tile& t = first.tile;
    if (to - from < NB) {
        if (!first.spans->reach(*first.ranges, t, from, min(to, c.m - t.j0))) return false;
        t.c0 = t.c0 / NR * NR;
        first.spans->set(t, Packing::K_PACK, c.backward);
    }
    for (i64 h = 1; h < c.heads; h++) (&first)[h].tile.c0 = t.c0, (&first)[h].tile.c1 = t.c1;
    return true;
}

template <class T, class Packing>
void Attention<T, Packing>::forward_heads(i64 item, Worker& first) {
    const i64 head = item / plan.blocks * c.heads, number = plan.blocks - 1 - item % plan.blocks;
    for (i64 h = 0; h < c.heads; h++) {
        Worker& w = (&first)[h];
        w.tile = block(w, head + h, number);
        if (!h) row_ranges(c, w.tile.b, w.tile.i0, w.tile.rows, *w.ranges);
        start(w, w.tile);
    }
    loop_over_keys_of_heads(first, 0, c.m);
    for (i64 h = 0; h < c.heads; h++) finish((&first)[h], (&first)[h].tile);
}

// loop_over_keys of heads that a network joins
template <class T, class Packing>
void Attention<T, Packing>::loop_over_keys_of_heads(Worker& first, i64 low, i64 high) const {
    terms.network.begin(c, first.network);
    for_each_core(first, first.tile, low, high, [&](const Tile& t, i64 column, i64 from, i64 to) {
        if (!scores_of_heads(first, t, column, 0)) return;
        for (i64 r = 0; r < t.rows; r++) {
            if (first.spans->from[r] >= first.spans->to[r]) continue;
            point_to_row(first, r);
            terms.network.forward(first.network, first.spans->from[r], first.spans->to[r]);
        }
        if (!narrow(first, from, to)) return;
        for (i64 h = 0; h < c.heads; h++) {
            Worker& w = (&first)[h];
            online_softmax(w, w.tile);
            finish_weights(w, w.tile);
            multiply_values(w, w.tile);
        }
    });
    for (i64 h = 0; h < c.heads && values; h++) terms.finish_values((&first)[h].terms, (&first)[h].tile, (&first)[h].out, plan.dvp);
}

template <class T, class Packing>
void Attention<T, Packing>::backward_heads(i64 item, Worker& first) {
    tasks.for_each(item, [&](i64 b, i64 h, i64 chunk) {
        if (h) return;
        for (i64 x = 0; x < c.heads; x++) tasks.begin(tasks.number(b, x, chunk)), terms.begin_task(tasks.number(b, x, chunk));
        terms.network.begin(c, first.network);
        terms.network.begin_item(b * tasks.chunks + chunk);
        tasks.blocks(chunk, [&](i64 number) { backward_heads(first, b, number, chunk); });
    });
}

template <class T, class Packing>
void Attention<T, Packing>::backward_heads(Worker& first, i64 b, i64 number, i64 chunk) const {
    for (i64 h = 0; h < c.heads; h++) {
        Worker& w = (&first)[h];
        w.tile = block(w, b * c.heads + h, number);
        w.gradients = start_backward(w, w.tile, tasks.number(b, h, chunk));
    }
    for_each_core(first, first.tile, 0, c.m, [&](const Tile& t, i64 column, i64 from, i64 to) {
        if (!scores_of_heads(first, t, column, chunk)) return;
        for (i64 h = 0; h < c.heads; h++) {
            Worker& w = (&first)[h];
            multiply_gradients(w, w.tile, w.gradients, tasks.number(b, h, chunk));
            if (c.drop_below) load_keys(w, w.tile, round_up(t.c1, NR));
        }
        for (i64 r = 0; r < t.rows; r++) {
            const i64 begin = first.spans->from[r], end = first.spans->to[r];
            if (begin >= end) continue;
            point_to_row(first, r);
            terms.network.forward(first.network, begin, end);
            for (i64 h = 0; h < c.heads; h++) {
                Worker& w = (&first)[h];
                softmax_backward_of_row(w, w.tile, r, c.drop_below ? head_hash(w.tile) : 0, w.gradients.one_tile);
            }
            terms.network.backward(first.network, begin, end, from, to);
        }
        terms.network.flush(first.network, b * tasks.chunks + chunk);
        if (!narrow(first, from, to)) return;
        const i64 end = round_up(first.tile.c1, NR);
        for (i64 h = 0; h < c.heads; h++) {
            Worker& w = (&first)[h];
            for (i64 r = 0; r < t.rows; r++) {
                finish_score_gradients(w, w.tile, r, end);
                clear_around(w, w.tile, r, w.bias + r * LD, end);
            }
            add_tile_gradients(w, w.tile, w.gradients, tasks.number(b, h, chunk));
            terms.network_backward(w.terms, w.tile, w.bias, tasks.number(b, h, chunk));
        }
    });
    for (i64 h = 0; h < c.heads; h++) finish_backward((&first)[h], (&first)[h].tile, tasks.number(b, h, chunk));
}

}  // namespace
