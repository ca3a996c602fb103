// The columns that each row of a tile may see, so that products and passes over the tile skip the others.
#pragma once
#include "tile.h"

namespace {

static_assert(NB < 255 && MB < 255, "spans are bytes");

struct Spans {
    static constexpr int GROUP = rows_of(PANEL_NV);  // rows of a group have loops of equal length, for branch prediction

    bool whole;                    // every row spans all columns of the tile, c0 … c1 − 1
    i64 from[MB], to[MB];          // columns of a group of rows, in whole vectors; from ≥ to if they see none
    uint8_t first[MB], last[MB];   // columns of a row, exactly
    uint8_t k_from[MB], k_to[MB];  // the same, packed, from c0 on
    uint8_t query_from[NB + 1], query_to[NB + 1];  // packed rows that see a column, from c0 on

    // C += A·B over packed keys, C += Aᵀ·B over packed queries; A is a tile
    template <class Packing>
    void over_keys(i64 rows, i64 vectors, i64 keys, const float* a, const float* b, i64 ldb, float* c, i64 ldc) const {
        if (whole)
            gemm<Packing, false>(rows, vectors, keys, a, LD, b, ldb, c, ldc, true);
        else
            gemm<Packing, false>(rows, vectors, Band{k_from, k_to}, a, LD, b, ldb, c, ldc, true);
    }

    template <class Packing>
    void over_queries(i64 keys, i64 vectors, i64 queries, const float* a, const float* b, i64 ldb, float* c) const {
        if (whole)
            gemm<Packing, true>(keys, vectors, queries, a, LD, b, ldb, c, ldb, true);
        else
            gemm<Packing, true>(keys, vectors, Band{query_from, query_to}, a, LD, b, ldb, c, ldb, true);
    }

    // Sets the columns of the tile and the spans of its rows, within the columns c0 … c1 − 1; false if there are none.
    bool reach(const RowRanges& ranges, Tile& t, i64 c0, i64 c1) {
        i64 low = c1, high = 0;
        for (i64 r = 0; r < t.rows; r++) {
            i64 begin = c1, end = 0;
            for (i64 s = 0; s < ranges.count; s++) {
                const Columns visible = columns_of(ranges, s, r, t.j0, c0, c1);
                if (visible.from < visible.to) begin = min(begin, visible.from), end = max(end, visible.to);
            }
            first[r] = (uint8_t)begin, last[r] = (uint8_t)end;
            low = min(low, begin), high = max(high, end);
        }
        t.c0 = low, t.c1 = high;
        return low < high;
    }

    // Sets the fields that products read, after c0 was moved to the panel's first column. In a whole tile, rows span all
    // columns.
    void set(const Tile& t, int k_pack, bool transposed) {
        whole = true;
        for (i64 r = 0, end; r < t.rows; r = end) {
            end = min(t.rows, r + GROUP);
            i64 low = NB, high = 0;
            for (i64 x = r; x < end; x++) {
                low = min(low, first[x]), high = max(high, last[x]);
            }
            low = low / W * W, high = round_up(high, W);
            for (i64 x = r; x < end; x++) from[x] = low, to[x] = high;
            whole &= low == t.c0 && high >= t.c1;
        }
        if (whole) return;
        for (i64 r = 0; r < t.rows; r++) {
            const bool any = first[r] < last[r];
            k_from[r] = any ? (uint8_t)((first[r] - t.c0) / k_pack) : 255;
            k_to[r] = any ? (uint8_t)((last[r] - t.c0 + k_pack - 1) / k_pack) : 0;
        }
        if (!transposed) return;
        memset(query_from, 255, sizeof query_from), memset(query_to, 0, sizeof query_to);
        const i64 packed_k = (t.rows + k_pack - 1) / k_pack;
        i64 begin[MB], end[MB];
        for (i64 x = 0; x < packed_k; x++) {
            const i64 r = x * k_pack, other = min(t.rows - 1, r + k_pack - 1);
            begin[x] = min(first[r], first[other]), end[x] = max(last[r], last[other]);
            if (begin[x] < end[x]) memset(query_to + begin[x] - t.c0, (int)x + 1, (size_t)(end[x] - begin[x]));
        }
        for (i64 x = packed_k - 1; x >= 0; x--)
            if (begin[x] < end[x]) memset(query_from + begin[x] - t.c0, (int)x, (size_t)(end[x] - begin[x]));
    }
};

// Products of rows with the packed keys of a tile. Outside the spans, C keeps its numbers or is correct.
template <class Packing>
__attribute__((noinline)) void multiply(
    const Spans& s, const Tile& t, i64 packed_k, const float* a, i64 lda, const float* panels, float* c) {
    constexpr int MR = Spans::GROUP;
    for (i64 x = t.c0; x < t.c1; x += NR) {
        const float* panel = panels + (t.j0 - t.packed->first + x) * packed_k;
        if (s.whole) {
            multiply_columns<Packing, PANEL_NV, false>(t.rows, packed_k, a, lda, panel, NR, c + x, LD, false);
            continue;
        }
        for (i64 r = 0; r < t.rows; r += MR) {
            const i64 from = max(0, s.from[r] - x), to = min(NR, s.to[r] - x);
            const float *rows = a + r * lda, *columns = panel + from;
            float* out = c + r * LD + x + from;
            if (to - from == 3 * W)
                micro_kernel<Packing, MR, 3, false>(packed_k, rows, lda, columns, NR, out, LD, false);
            else if (to - from == 2 * W)
                micro_kernel<Packing, MR, 2, false>(packed_k, rows, lda, columns, NR, out, LD, false);
            else if (to - from == W)
                micro_kernel<Packing, MR, 1, false>(packed_k, rows, lda, columns, NR, out, LD, false);
        }
    }
}

}  // namespace
