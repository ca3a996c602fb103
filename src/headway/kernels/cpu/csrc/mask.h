// Masks: intervals of key slots for each query and, for the rest, a program in postfix order.
//
// A tile is the queries i0 … i0 + rows − 1 by the keys j0 … j0 + cols − 1; its columns count from j0.
#pragma once
#include "positions.h"

namespace hw {

enum { MAX_ROWS = 256, MAX_COLUMNS = 512, MAX_DEPTH = 16 };
enum Cover { EMPTY, PARTIAL, FULL };  // of a tile; AND is the minimum, OR the maximum

struct RowRanges {
    i64 count;  // intervals of a row: 1 or 2, rising and apart, within [0, m)
    i64 start[2][MAX_ROWS], stop[2][MAX_ROWS];
    i64 low, high;  // the keys low … high − 1 contain all intervals; low = high if all are empty
};

struct Columns {
    i64 from, to;
};

static inline void row_ranges(const Call& c, i64 b, i64 i0, i64 rows, RowRanges& r) {
    r.count = c.intervals ? c.intervals : 1;
    r.low = c.m, r.high = 0;
    if (r.count == 1) {
        for (i64 row = 0; row < rows; row++) {
            const i64 from = c.intervals ? clamp(*c.start[0].at<i64>(b, i0 + row), 0, c.m) : 0;
            const i64 to = c.intervals ? clamp(*c.stop[0].at<i64>(b, i0 + row), from, c.m) : c.m;
            r.start[0][row] = from, r.stop[0][row] = to;
            r.low = from < to ? min(r.low, from) : r.low, r.high = from < to ? max(r.high, to) : r.high;
        }
        if (r.low > r.high) r.low = r.high;
        return;
    }
    for (i64 row = 0; row < rows; row++) {
        Columns found[2] = {{0, c.m}, {c.m, c.m}};
        for (i64 s = 0; s < c.intervals; s++) {
            found[s].from = clamp(*c.start[s].at<i64>(b, i0 + row), 0, c.m);
            found[s].to = clamp(*c.stop[s].at<i64>(b, i0 + row), found[s].from, c.m);
        }
        if (found[1].from < found[0].from) {
            Columns first = found[1];
            found[1] = found[0], found[0] = first;
        }
        found[1].from = max(found[1].from, found[0].to);
        found[1].to = max(found[1].to, found[1].from);
        for (i64 s = 0; s < r.count; s++) {
            r.start[s][row] = found[s].from, r.stop[s][row] = found[s].to;
            if (found[s].from == found[s].to) continue;
            r.low = min(r.low, found[s].from), r.high = max(r.high, found[s].to);
        }
    }
    if (r.low > r.high) r.low = r.high;
}

// the columns c0 … c1 − 1 of interval s of a row
static inline Columns columns_of(const RowRanges& r, i64 s, i64 row, i64 j0, i64 c0, i64 c1) {
    return {clamp(r.start[s][row] - j0, c0, c1), clamp(r.stop[s][row] - j0, c0, c1)};
}

// ---------------------------------------------------------------- a tile as a whole

static inline Cover cover_of(const uint8_t* flags, i64 stride, i64 count) {
    bool any = false, all = true;
    each(flags, stride, count, [&](i64, uint8_t flag) { any |= flag != 0, all &= flag != 0; });
    return all ? FULL : any ? PARTIAL : EMPTY;
}

// calls each(byte, wanted, column, taken) for the bits first … first + count − 1: for each byte, the wanted bits, the
// column at which they begin, and their number
template <class F>
static inline void each_byte(i64 first, i64 count, F each) {
    for (i64 column = 0; column < count;) {
        const i64 at = first + column, skipped = at & 7, taken = min(8 - skipped, count - column);
        each(at >> 3, (uint8_t)(((1 << taken) - 1) << skipped), column, taken);
        column += taken;
    }
}

static inline Cover cover_of_bits(const uint8_t* bits, i64 stride, i64 first, i64 count) {
    bool any = false, all = true;
    each_byte(first, count, [&](i64 byte, uint8_t wanted, i64, i64) {
        const uint8_t found = bits[byte * stride] & wanted;
        any |= found != 0, all &= found == wanted;
    });
    return all ? FULL : any ? PARTIAL : EMPTY;
}

// eight bits as bytes of 0 or 1
static inline uint64_t spread(uint8_t bits) {
    const uint64_t apart = (bits * 0x0101010101010101ull) & 0x8040201008040201ull;
    return ((apart + 0x7f7f7f7f7f7f7f7full) >> 7) & 0x0101010101010101ull;
}

// the cover of a tile from the covers of its rows
template <class F>
static inline Cover cover_of_rows(i64 rows, F cover_of_row) {
    Cover found = cover_of_row(0);
    for (i64 row = 1; row < rows && found != PARTIAL; row++)
        if (cover_of_row(row) != found) found = PARTIAL;
    return found;
}

static inline Range range_of(const Tensor& t, i64 b, i64 start, i64 count) {
    return range_of(t.at<i64>(b, start), t.stride[1], count);
}

static inline Cover cover_of(const Call& c, const Node& node, i64 b, i64 h, i64 i0, i64 rows, i64 j0, i64 cols) {
    if (node.kind == DILATED) return node.step == 1 ? FULL : PARTIAL;
    if (node.kind == KEYS) return cover_of(node.a.at<uint8_t>(b, j0), node.a.stride[1], cols);
    const i64 different = node.a.stride[2] ? rows : 1;
    if (node.kind == BOOLEAN)
        return cover_of_rows(different, [&](i64 row) {
            return cover_of(node.a.at<uint8_t>(b, h, i0 + row, j0), node.a.stride[3], cols);
        });
    if (node.kind == BITS)
        return cover_of_rows(different, [&](i64 row) {
            return cover_of_bits(node.a.at<uint8_t>(b, h, i0 + row), node.a.stride[3], node.first + j0, cols);
        });
    const bool equal = node.kind == EQUAL;  // the difference is 0
    const Range q = range_of(equal ? node.a : c.q_index, b, i0, rows);
    const Range k = range_of(equal ? node.b : c.k_index, b, j0, cols);
    Range found;
    if (!differences(q, k, found)) return PARTIAL;
    const i64 low = equal ? 0 : node.low, high = equal ? 0 : node.high;
    if (found.low > high || found.high < low) return EMPTY;
    return low <= found.low && found.high <= high ? FULL : PARTIAL;
}

// FULL and EMPTY are exact; a tile reported as PARTIAL may be either
static inline Cover cover(const Call& c, const RowRanges& r, i64 b, i64 h, i64 i0, i64 rows, i64 j0, i64 cols) {
    bool any = false, all = true;
    for (i64 row = 0; row < rows; row++) {
        i64 inside = 0;
        for (i64 s = 0; s < r.count; s++) {
            Columns columns = columns_of(r, s, row, j0, 0, cols);
            inside += columns.to - columns.from;
        }
        any |= inside > 0, all &= inside == cols;
    }
    if (!any) return EMPTY;
    Cover stack[MAX_DEPTH] = {FULL};
    i64 depth = 0;
    for (i64 x = 0; x < c.nodes; x++) {
        const Node& node = c.node[x];
        if (node.kind < AND) {
            stack[depth++] = cover_of(c, node, b, h, i0, rows, j0, cols);
            continue;
        }
        depth--;
        Cover &left = stack[depth - 1], right = stack[depth];
        if ((node.kind == AND) == (right < left)) left = right;
    }
    return all || stack[0] == EMPTY ? stack[0] : PARTIAL;
}

// ---------------------------------------------------------------- pair by pair

// allowed[x]: whether query i may see key j + x
static inline void test(const Call& c, const Node& node, i64 b, i64 h, i64 i, i64 j, i64 count, uint8_t* allowed) {
    if (node.kind == KEYS || node.kind == BOOLEAN) {
        const bool keys = node.kind == KEYS;
        const uint8_t* flags = keys ? node.a.at<uint8_t>(b, j) : node.a.at<uint8_t>(b, h, i, j);
        each(flags, node.a.stride[keys ? 1 : 3], count, [=](i64 x, uint8_t flag) { allowed[x] = flag != 0; });
        return;
    }
    if (node.kind == BITS) {
        const uint8_t* bits = node.a.at<uint8_t>(b, h, i);
        const i64 stride = node.a.stride[3];
        each_byte(node.first + j, count, [=](i64 byte, uint8_t, i64 column, i64 taken) {
            const uint64_t flags = spread(bits[byte * stride]) >> 8 * ((node.first + j + column) & 7);
            if (taken == 8)
                memcpy(allowed + column, &flags, 8);
            else
                for (i64 x = 0; x < taken; x++) allowed[column + x] = flags >> 8 * x & 1;
        });
        return;
    }
    const bool equal = node.kind == EQUAL;
    const Tensor &queries = equal ? node.a : c.q_index, &keys = equal ? node.b : c.k_index;
    const i64 query = *queries.at<i64>(b, i), *others = keys.at<i64>(b, j), stride = keys.stride[1];
    if (node.kind == DILATED) {
        // tests for multiples of odd·2^shift without a division: multiplied by the inverse of odd modulo 2^64, a multiple
        // becomes the quotient, and any other number becomes larger than every quotient
        const int shift = __builtin_ctzll((uint64_t)node.step);
        const uint64_t odd = (uint64_t)node.step >> shift, largest_quotient = ~(uint64_t)0 / (uint64_t)node.step;
        uint64_t inverse = odd;
        for (int round = 0; round < 5; round++) inverse *= 2 - odd * inverse;
        each(others, stride, count, [=](i64 x, i64 other) {
            const i64 apart = minus(other, query);
            const uint64_t far = (apart < 0 ? 0 - (uint64_t)apart : (uint64_t)apart) * inverse;
            allowed[x] = (far >> shift | far << (-shift & 63)) <= largest_quotient;
        });
    } else {
        const i64 low = equal ? 0 : node.low, high = equal ? 0 : node.high;
        each(others, stride, count, [=](i64 x, i64 other) {
            const i64 apart = minus(other, query);
            allowed[x] = (low <= apart) & (apart <= high);
        });
    }
}

struct Stack {
    uint8_t allowed[MAX_DEPTH][MAX_COLUMNS];
};

// evaluates the program for query i and the keys j … j + count − 1
static inline const uint8_t* program(const Call& c, i64 b, i64 h, i64 i, i64 j, i64 count, Stack& stack) {
    i64 depth = 0;
    for (i64 s = 0; s < c.nodes; s++) {
        const Node& node = c.node[s];
        if (node.kind < AND) {
            test(c, node, b, h, i, j, count, stack.allowed[depth++]);
            continue;
        }
        depth--;
        uint8_t *left = stack.allowed[depth - 1], *right = stack.allowed[depth];
        if (node.kind == AND)
            for (i64 x = 0; x < count; x++) left[x] &= right[x];
        else
            for (i64 x = 0; x < count; x++) left[x] |= right[x];
    }
    return stack.allowed[0];
}

// writes −∞ for hidden keys among the columns from … to − 1 of a row (at most MAX_COLUMNS)
static inline void apply_mask(const Call& c, const RowRanges& r, i64 b, i64 h, i64 i0, i64 rows, i64 j0, const i64* from,
                          const i64* to, float* scores, i64 ld) {
    Stack stack;
    for (i64 row = 0; row < rows; row++) {
        if (from[row] >= to[row]) continue;
        float* score = scores + row * ld;
        i64 at = from[row];
        for (i64 s = 0; s < r.count; s++) {
            Columns columns = columns_of(r, s, row, j0, from[row], to[row]);
            for (; at < columns.from; at++) score[at] = -INFINITY;
            if (c.nodes && columns.from < columns.to) {
                const uint8_t* allowed = program(c, b, h, i0 + row, j0 + columns.from, columns.to - columns.from, stack);
                for (i64 x = 0; x < columns.to - columns.from; x++)
                    score[columns.from + x] = allowed[x] ? score[columns.from + x] : -INFINITY;
            }
            at = columns.to;
        }
        for (; at < to[row]; at++) score[at] = -INFINITY;
    }
}

// whether query i, which is a row of r, may see key j
static inline bool sees(const Call& c, const RowRanges& r, i64 row, i64 b, i64 h, i64 i, i64 j) {
    bool inside = false;
    for (i64 s = 0; s < r.count; s++) inside |= r.start[s][row] <= j && j < r.stop[s][row];
    if (!inside || !c.nodes) return inside;
    Stack stack;
    return program(c, b, h, i, j, 1, stack)[0];
}

// whether query i, which is a row of r, may see any key
static inline bool sees_any(const Call& c, const RowRanges& r, i64 row, i64 b, i64 h, i64 i) {
    Stack stack;
    for (i64 s = 0; s < r.count; s++)
        for (i64 j = r.start[s][row]; j < r.stop[s][row]; j += MAX_COLUMNS) {
            const i64 count = min(MAX_COLUMNS, r.stop[s][row] - j);
            if (!c.nodes || memchr(program(c, b, h, i, j, count, stack), 1, count)) return true;
        }
    return false;
}

// sets seen[j] = 1 for every key that a query of this head may see, and leaves the others unchanged
static inline void visible(const Call& c, i64 b, i64 h, uint8_t* seen) {
    RowRanges r;
    Stack stack;
    for (i64 i0 = 0; i0 < c.n; i0 += MAX_ROWS) {
        const i64 rows = min(MAX_ROWS, c.n - i0);
        row_ranges(c, b, i0, rows, r);
        for (i64 j0 = r.low; j0 < r.high; j0 += MAX_COLUMNS) {
            const i64 cols = min(MAX_COLUMNS, r.high - j0);
            const Cover found = cover(c, r, b, h, i0, rows, j0, cols);
            if (found == FULL) memset(seen + j0, 1, cols);
            if (found != PARTIAL || !memchr(seen + j0, 0, cols)) continue;
            for (i64 row = 0; row < rows; row++)
                for (i64 s = 0; s < r.count; s++) {
                    const Columns columns = columns_of(r, s, row, j0, 0, cols);
                    const i64 count = columns.to - columns.from;
                    uint8_t* keys = seen + j0 + columns.from;
                    if (!c.nodes) memset(keys, 1, count);
                    if (!c.nodes || !count) continue;
                    const uint8_t* allowed = program(c, b, h, i0 + row, j0 + columns.from, count, stack);
                    for (i64 x = 0; x < count; x++) keys[x] |= allowed[x];
                }
        }
    }
}

}  // namespace hw
