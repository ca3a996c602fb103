// How far each row of a tile sees at most, so that products and passes over the tile leave out the rest.
#pragma once
#include "tile.h"

namespace {

static_assert(NB < 255 && MB < 255, "spans are bytes");

struct Spans {
    static constexpr int GROUP = rows_of(PANEL_NV);  // loops of one length, row after row, are predicted

    bool whole;                                // every row sees from the tile's c0 to its c1, as far as spans tell
    i64 from[MB], to[MB];                      // columns of a group of rows: whole vectors, from ≥ to where they see none
    uint8_t first[MB], last[MB];               // columns of a row, exactly
    uint8_t word_from[MB], word_to[MB];        // the same in words from c0 on
    uint8_t query_from[NB + 1], query_to[NB + 1];  // rows, in words, that see a column from c0 on

    // rows·B over `keys` words of keys, and its transpose over `queries` words of queries
    template <class Words>
    void over_keys(i64 rows, i64 vectors, i64 keys, const float* a, const float* b, i64 ldb, float* c) const {
        if (whole)
            product<Words, false>(rows, vectors, keys, a, LD, b, ldb, c, ldb, true);
        else
            product<Words, false>(rows, vectors, Band{word_from, word_to}, a, LD, b, ldb, c, ldb, true);
    }

    template <class Words>
    void over_queries(i64 keys, i64 vectors, i64 queries, const float* a, const float* b, i64 ldb, float* c) const {
        if (whole)
            product<Words, true>(keys, vectors, queries, a, LD, b, ldb, c, ldb, true);
        else
            product<Words, true>(keys, vectors, Band{query_from, query_to}, a, LD, b, ldb, c, ldb, true);
    }

    // The columns that rows of a tile reach; false where there are none. Tile and spans are set.
    bool reach(const RowRanges& ranges, Tile& t, i64 keys) {
        i64 low = keys, high = 0;
        for (i64 r = 0; r < t.rows; r++) {
            i64 begin = keys, end = 0;
            for (i64 s = 0; s < ranges.count; s++) {
                const Columns own = columns_of(ranges, s, r, t.j0, 0, keys);
                if (own.from < own.to) begin = least(begin, own.from), end = most(end, own.to);
            }
            first[r] = (uint8_t)begin, last[r] = (uint8_t)end;
            low = least(low, begin), high = most(high, end);
        }
        t.c0 = low, t.c1 = high;
        return low < high;
    }

    // After c0 was moved to the panel's first column: what products read. Where the tile is whole, all rows have all.
    void set(const Tile& t, bool all, int per_word, bool across) {
        whole = true;
        for (i64 r = 0, end; r < t.rows; r = end) {
            end = least(t.rows, r + GROUP);
            i64 low = NB, high = 0;
            for (i64 x = r; x < end; x++) {
                if (all) first[x] = (uint8_t)t.c0, last[x] = (uint8_t)t.c1;
                low = least(low, first[x]), high = most(high, last[x]);
            }
            low = low / W * W, high = up(high, W);
            for (i64 x = r; x < end; x++) from[x] = low, to[x] = high;
            whole &= low == t.c0 && high >= t.c1;
        }
        if (whole) return;
        for (i64 r = 0; r < t.rows; r++) {
            const bool any = first[r] < last[r];
            word_from[r] = any ? (uint8_t)((first[r] - t.c0) / per_word) : 255;
            word_to[r] = any ? (uint8_t)((last[r] - t.c0 + per_word - 1) / per_word) : 0;
        }
        if (!across) return;
        memset(query_from, 255, sizeof query_from), memset(query_to, 0, sizeof query_to);
        const i64 words = (t.rows + per_word - 1) / per_word;
        i64 begin[MB], end[MB];
        for (i64 x = 0; x < words; x++) {
            const i64 r = x * per_word, other = least(t.rows - 1, r + per_word - 1);
            begin[x] = least(first[r], first[other]), end[x] = most(last[r], last[other]);
            if (begin[x] < end[x]) memset(query_to + begin[x] - t.c0, (int)x + 1, (size_t)(end[x] - begin[x]));
        }
        for (i64 x = words - 1; x >= 0; x--)
            if (begin[x] < end[x]) memset(query_from + begin[x] - t.c0, (int)x, (size_t)(end[x] - begin[x]));
    }
};

// Products of rows with the packed keys of a tile; what lies outside of the spans is left as it was, or is right.
template <class Words>
__attribute__((noinline)) void multiply(
    const Spans& s, const Tile& t, i64 words, const float* a, i64 lda, const float* panels, float* c) {
    constexpr int MR = Spans::GROUP;
    for (i64 x = t.c0; x < t.c1; x += NR) {
        const float* panel = panels + (t.j0 + x) * words;
        if (s.whole) {
            columns<Words, PANEL_NV, false>(t.rows, words, a, lda, panel, NR, c + x, LD, false);
            continue;
        }
        for (i64 r = 0; r < t.rows; r += MR) {
            const i64 from = most(0, s.from[r] - x), to = least(NR, s.to[r] - x);
            const float *rows = a + r * lda, *columns = panel + from;
            float* out = c + r * LD + x + from;
            if (to - from == 3 * W)
                micro<Words, MR, 3, false>(words, rows, lda, columns, NR, out, LD, false);
            else if (to - from == 2 * W)
                micro<Words, MR, 2, false>(words, rows, lda, columns, NR, out, LD, false);
            else if (to - from == W)
                micro<Words, MR, 1, false>(words, rows, lda, columns, NR, out, LD, false);
        }
    }
}

}  // namespace
