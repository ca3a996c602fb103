// Reductions of the weights (headway/reductions.py): those of each query in the forward pass, those over queries in a
// second pass over the same scores, which has row_max and row_sum from the first.
//
// The forward pass sums unnormalised weights e = exp(score − row_max so far). If row_max rises, the sums so far are
// multiplied by exp(old − new), like the output.
#pragma once
#include "tasks.h"

namespace {

// the lanes for which a comparison holds, as bits
inline uint32_t bits_of(vi condition) {
#if defined(__AVX512F__)
    return _mm512_movepi32_mask((__m512i)condition);
#elif defined(__AVX2__)
    return (uint32_t)_mm256_movemask_ps((__m256)condition);
#else
    uint32_t found = 0;
    for (int i = 0; i < W; i++) found |= (uint32_t)(condition[i] & 1) << i;
    return found;
#endif
}

// x in the lanes whose bits are set, else 0
inline vf in_lanes(uint32_t bits, vf x) {
#if defined(__AVX512F__)
    return (vf)_mm512_maskz_mov_ps((__mmask16)bits, (__m512)x);
#else
    vi own;
    for (int i = 0; i < W; i++) own[i] = 1 << i;
    return (vf)((vi)x & (((vi{} + (int32_t)bits) & own) != 0));
#endif
}

// `to` + x in the lanes whose bits are set
inline vf add_in_lanes(vf to, uint32_t bits, vf x) {
#if defined(__AVX512F__)
    return (vf)_mm512_mask_add_ps((__m512)to, (__mmask16)bits, (__m512)to, (__m512)x);
#else
    return to + in_lanes(bits, x);
#endif
}

// Writes first + i for each bit i that is set, in order; whole vectors are written. Returns how many there are.
inline i64 write_lanes(uint32_t bits, i64 first, int32_t* to) {
#if defined(__AVX512F__)
    const __m512i own = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32((__mmask16)bits, _mm512_add_epi32(own, _mm512_set1_epi32((int)first))));
    return __builtin_popcount(bits);
#else
    i64 count = 0;
    for (; bits; bits &= bits - 1) to[count++] = (int32_t)first + __builtin_ctz(bits);
    return count;
#endif
}

// Σ of the columns from … to − 1 of a row; whole vectors are read
inline float sum_of_columns(const float* row, i64 from, i64 to) {
    if (from >= to) return 0;
    const i64 first = from / W * W, last = (to - 1) / W * W;
    const uint32_t begin = ~0u << (from - first), end = ~0u >> (31 - (to - 1 - last));
    if (first == last) return sum(in_lanes(begin & end, load(row + first)));
    vf sums = in_lanes(begin, load(row + first)), others = in_lanes(end, load(row + last));
    i64 x = first + W;
    for (; x + W < last; x += 2 * W) sums += load(row + x), others += load(row + x + W);
    if (x < last) sums += load(row + x);
    return sum(sums + others);
}

struct SumAndLargest {
    vf sum, largest;

    void add(vf weight) { sum += weight, largest = max_of(largest, weight); }
    void add(const SumAndLargest& other) { sum += other.sum, largest = max_of(largest, other.largest); }
};

// of COUNT vectors, by halves
template <int COUNT>
inline SumAndLargest of_vectors(const vf* x) {
    if constexpr (COUNT == 1) {
        return SumAndLargest{x[0], x[0]};
    } else {
        SumAndLargest found = of_vectors<COUNT / 2>(x);
        found.add(of_vectors<COUNT - COUNT / 2>(x + COUNT / 2));
        return found;
    }
}

template <class T, class Packing>
struct Reducer {
    struct Worker {
        vf entropy[MB], distance[MB];     // Σ e·(score − row_max), Σ e·|δ|; summed over lanes at the end, as are
        vi visible[MB];                   // keys with a score above −∞
        i64 own[MB], lowest, highest;     // indices of the queries, and the ends of their range
        i64 last_range[MB];               // the range at which a row's last search ended
        vf* label_sums;                   // [MB][labels]
        float* range_sums;                // [MB][ranges]
        i64* at_keys;                     // [MB][at]
        float* at_scores;                 // [MB][at]
        float* top_scores;                // [MB][held], falling
        int32_t* top_keys;                // [MB][held]
        vf match_sums[MB];                // as entropy
        i64 match_counts[MB], match_label[MB];
        int32_t columns[LD];              // of a row: candidates for the largest
        float* from_base;                 // [LD] of a tile: the index of its keys less `base`
        float *column_sums, *column_max;  // [LD] of the second pass: the rows of a tile
        i64 base;
        bool consecutive;                 // the indices of the tile's keys rise by one
        bool close;                       // the floats of from_base are exact
        i64 range;                        // of all pairs of the tile; −1 if they are in several
        bool reads_weights;               // of the tile, after the exponential
        // of a map in one pass
        float *slot_sums, *slot_largest;  // [MB / W][slots][W]: of each cell and row, not normalised
        float factors[MB];                // of the tile, by which the sums so far are multiplied
        bool rescales;
        float *line_sums, *line_largest;  // [slots] of the rows of a row of the map, normalised
        i64 task, line, reached;          // slots to the end of the tile
        i64 first_cell, cell_end[NB + 2];  // of the tile: its first cell, and the columns at which cells end
    };

    static constexpr float FAR_BELOW = -200;  // exp of it is 0; differences of scores may overflow to −∞

    const Call& c;
    const ReduceCall& r;
    const Plan<T, Packing>& plan;
    const i64 ranges, held;                    // held: r.top in whole vectors
    bool by_query = false, by_column = false;  // whether the first and the second pass have reductions
    i64 slots = 0;                             // of a map in one pass: its columns, in whole vectors
    i64* edges = nullptr;                      // [edge_count]
    uint16_t* key_labels = nullptr;            // [batch or 1][m / W][labels]: which keys of a vector have a label, as bits
    int32_t* match_keys = nullptr;             // [batch or 1][m in whole vectors]: the low bits of their labels
    i64 chunks = 1;                            // second pass: tasks of a head
    double* columns = nullptr;                 // [heads·chunks][m]
    double* mass = nullptr;                    // [heads·chunks][rows][columns] of the map
    float* largest = nullptr;

    explicit Reducer(const Plan<T, Packing>& p)
        : c(p.c), r(p.c.reduce), plan(p), ranges(p.c.reduce.edge_count + 1), held(round_up(p.c.reduce.top, W)) {
        if (!r.wanted) return;
        by_query = r.entropy.defined() || r.visible.defined() || needs_distance() || r.labels || r.top || r.at || r.matches || r.one_pass;
        by_column = r.column_sums.defined() || (r.rows && !r.one_pass);
        if (r.one_pass) slots = round_up(r.columns, W);
        const i64 heads = max(1, c.batch * c.heads);
        chunks = max(1, min(plan.blocks, (16 + heads - 1) / heads));
    }

    void lay_out(Memory& memory) {
        if (r.edge_count) edges = memory.take<i64>(r.edge_count);
        if (r.labels) key_labels = memory.take<uint16_t>(rows_of(r.key_labels) * vectors() * r.labels);
        if (r.matches) match_keys = memory.take<int32_t>(rows_of(r.match_keys) * vectors() * W);
        const i64 tasks = c.batch * c.heads * chunks;
        if (r.column_sums.defined()) columns = memory.take<double>(tasks * c.m);
        if (!r.rows) return;
        mass = memory.take<double>(tasks * r.rows * r.columns);
        largest = memory.take<float>(tasks * r.rows * r.columns);
    }

    void lay_out(Memory& memory, Worker& w) const {
        if (r.labels) w.label_sums = memory.take<vf>(MB * r.labels);
        if (r.range_sums.defined()) w.range_sums = memory.take<float>(MB * ranges);
        if (r.at) w.at_keys = memory.take<i64>(MB * r.at), w.at_scores = memory.take<float>(MB * r.at);
        if (r.top) w.top_scores = memory.take<float>(MB * held), w.top_keys = memory.take<int32_t>(MB * held);
        if (needs_distance()) w.from_base = memory.take<float>(LD);
        if (r.one_pass) w.slot_sums = memory.take<float>(MB * slots), w.line_sums = memory.take<float>(2 * slots);
        if (r.one_pass) w.slot_largest = memory.take<float>(MB * slots), w.line_largest = w.line_sums + slots;
        if (by_column) w.column_sums = memory.take<float>(LD), w.column_max = memory.take<float>(LD);
    }

    bool needs_distance() const { return r.distance.defined() || r.range_sums.defined(); }
    i64 rows_of(const Tensor& labels) const { return labels.stride[0] ? c.batch : 1; }
    i64 vectors() const { return round_up(c.m, W) / W; }

    // what all blocks read
    void set_up() const {
        for (i64 x = 0; x < r.edge_count; x++) edges[x] = *r.edges.template at<i64>(x);
        for (i64 b = 0; b < rows_of(r.key_labels) && r.labels; b++) {
            uint16_t* bits = key_labels + b * vectors() * r.labels;
            memset(bits, 0, (size_t)(vectors() * r.labels * 2));
            for (i64 j = 0; j < c.m; j++) {
                const i64 label = *r.key_labels.template at<i64>(b, j);
                if (label >= 0 && label < r.labels) bits[j / W * r.labels + label] |= (uint16_t)(1 << j % W);
            }
        }
        for (i64 b = 0; b < rows_of(r.match_keys) && r.matches; b++)
            for (i64 j = 0; j < vectors() * W; j++)
                match_keys[b * vectors() * W + j] = j < c.m ? (int32_t)*r.match_keys.template at<i64>(b, j) : -1;
    }

    // ------------------------------------------------------------ first pass: a block of queries

    void begin(Worker& w, const Tile& t) const {
        w.lowest = INT64_MAX, w.highest = INT64_MIN;
        for (i64 row = 0; row < t.rows && (needs_distance() || r.matches); row++) {
            w.own[row] = *c.q_index.template at<i64>(t.b, t.i0 + row);
            w.lowest = min(w.lowest, w.own[row]), w.highest = max(w.highest, w.own[row]);
            w.last_range[row] = 0;
        }
        for (i64 row = 0; row < t.rows && r.matches; row++) {
            w.match_sums[row] = vf{}, w.match_counts[row] = 0;
            w.match_label[row] = *r.match_queries.template at<i64>(t.b, t.i0 + row);
        }
        memset(w.entropy, 0, sizeof w.entropy);
        memset(w.distance, 0, sizeof w.distance);
        memset(w.visible, 0, sizeof w.visible);
        if (r.labels) memset(w.label_sums, 0, (size_t)(t.rows * r.labels) * sizeof(vf));
        if (r.range_sums.defined()) memset(w.range_sums, 0, (size_t)(t.rows * ranges * 4));
        for (i64 x = 0; x < t.rows * r.at; x++) {
            w.at_keys[x] = *r.at_keys.template at<i64>(t.b, t.i0 + x / r.at, x % r.at);
            w.at_scores[x] = -INFINITY;
        }
        for (i64 row = 0; row < t.rows && r.top; row++) {
            const float least = r.top_least.defined() ? *r.top_least.template at<float>(t.b, t.h, t.i0 + row) : -INFINITY;
            float below = nextafterf(least, -INFINITY);  // any larger score takes its place
            if (below == least && below > -1) below = -0x1p-126f;  // both count as 0 where subnormal numbers are flushed
            for (i64 x = row * held; x < (row + 1) * held; x++) w.top_scores[x] = below, w.top_keys[x] = -1;
        }
        w.line = -1, w.reached = 0;
        if (!r.one_pass) return;
        memset(w.slot_sums, 0, (size_t)(round_up(t.rows, W) * slots * 4));
        memset(w.slot_largest, 0, (size_t)(round_up(t.rows, W) * slots * 4));
    }

    // Prepares what the rows of a tile share. Columns c0 … end − 1 are read, those from c1 on with weights of 0.
    void begin_tile(Worker& w, const Tile& t, i64 end) const {
        w.reads_weights = r.labels || r.one_pass;
        if (r.one_pass) begin_slots(w, t);
        if (!needs_distance()) return;
        w.base = *c.k_index.template at<i64>(t.b, t.j0 + t.c0);
        i64 low = 0, high = 0;
        bool consecutive = true;
        each(c.k_index.template at<i64>(t.b, t.j0 + t.c0), c.k_index.stride[1], t.c1 - t.c0, [&](i64 x, i64 index) {
            const i64 apart = minus(index, w.base);
            w.from_base[t.c0 + x] = (float)apart;
            low = min(low, apart), high = max(high, apart);
            consecutive &= apart == x;
        });
        for (i64 x = t.c1; x < end; x++) w.from_base[x] = w.from_base[t.c1 - 1];
        w.consecutive = consecutive;
        w.close = low >= -(1 << 24) && high <= 1 << 24;
        w.range = -1;
        if (consecutive && r.edge_count) {
            const i64 nearest = minus(w.base, w.highest), furthest = minus(minus(w.base, w.lowest), -high);
            const i64 range = range_from(0, nearest);
            if (range == r.edge_count || edges[range] > furthest) w.range = range;
        }
        w.reads_weights |= (r.distance.defined() && !w.close) || (r.range_sums.defined() && w.range < 0 && r.edge_count);
    }

    // the range of a distance; the search begins at `range`
    i64 range_from(i64 range, i64 distance) const {
        while (range < r.edge_count && edges[range] <= distance) range++;
        while (range > 0 && edges[range - 1] > distance) range--;
        return range;
    }

    // Finished scores of a row, of which `found` is the largest, before the exponential.
    void scores(Worker& w, const Tile& t, i64 row, const float* score, i64 from, i64 to, float found) const {
        const i64* wanted = w.at_keys + row * r.at;
        for (i64 x = 0; x < r.at; x++) {
            const i64 column = wanted[x] - t.j0;
            if (column >= from && column < min(to, t.c1)) w.at_scores[row * r.at + x] = score[column];
        }
        float* top = w.top_scores + row * held;
        if (!r.top || !(found > top[r.top - 1])) return;
        int32_t* keys = w.top_keys + row * held;
        if (r.top == 1) {
            i64 x = from;
            uint32_t bits;
            while (!(bits = bits_of((vi)(load(score + x) == found)))) x += W;
            top[0] = found, keys[0] = (int32_t)(t.j0 + x + __builtin_ctz(bits));
            return;
        }
        const float above = top[r.top - 1], least = above == -INFINITY ? surely_among(score, from, to) : above;
        i64 count = 0;
        for (i64 x = from; x < to; x += W) {
            const vf found = load(score + x);
            count += write_lanes(bits_of((vi)(found > above) & (vi)(found >= least)), x, w.columns + count);
        }
        insert(top, keys, score, w.columns, count, (int32_t)t.j0);
    }

    // Weights of the keys with the query's label. Few matches are expected.
    template <int DEGREE>
    void matches(Worker& w, const Tile& t, i64 row, const float* score, i64 from, i64 to, float base) const {
        const i64 label = w.match_label[row];
        if (!r.matches || label < 0) return;
        const int32_t* keys = match_keys + (r.match_keys.stride[0] ? t.b : 0) * vectors() * W + t.j0;
        for (i64 x = from; x < to; x += W) {
            vi labels;
            memcpy(&labels, keys + x, sizeof labels);
            uint32_t found = 0;
            for (uint32_t bits = bits_of((vi)(labels == (int32_t)label)); bits; bits &= bits - 1) {
                const i64 column = x + __builtin_ctz(bits), j = t.j0 + column;
                if (column >= t.c1 || score[column] == -INFINITY || *r.match_keys.template at<i64>(t.b, j) != label) continue;
                if (minus(*c.k_index.template at<i64>(t.b, j), w.own[row]) <= r.furthest) found |= bits & -bits;
            }
            if (!found) continue;
            w.match_sums[row] = add_in_lanes(w.match_sums[row], found, exp_of<DEGREE>(load(score + x) - base));
            w.match_counts[row] += __builtin_popcount(found);
        }
    }

    // a score that at least r.top columns reach: the least of the maxima of r.top groups of columns
    float surely_among(const float* score, i64 from, i64 to) const {
        if (r.top > W) return -INFINITY;
        vf best = broadcast(-INFINITY);
        for (i64 x = from; x < to; x += W) best = max_of(load(score + x), best);
        i64 groups = W;
        for (; groups / 2 >= r.top; groups /= 2)
            for (i64 i = 0; i < groups / 2; i++) best[i] = best[i] > best[i + groups / 2] ? best[i] : best[i + groups / 2];
        float least = best[0];
        for (i64 i = 1; i < groups; i++) least = best[i] < least ? best[i] : least;
        return least;
    }

    // Inserts columns into the largest so far, behind equal scores, since keys of these come first.
    void insert(float* top, int32_t* keys, const float* score, const int32_t* columns, i64 count, int32_t first) const {
#if defined(__AVX512F__)
        if (held == W) {
            __m512 scores = _mm512_loadu_ps(top);
            __m512i slots = _mm512_loadu_si512(keys);
            for (i64 i = 0; i < count; i++) {
                const __m512 own = _mm512_set1_ps(score[columns[i]]);
                const __mmask16 before = _mm512_cmp_ps_mask(scores, own, _CMP_GE_OQ), others = (__mmask16)~(before + 1);
                scores = _mm512_mask_expand_ps(own, others, scores);
                slots = _mm512_mask_expand_epi32(_mm512_set1_epi32(first + columns[i]), others, slots);
            }
            _mm512_storeu_ps(top, scores), _mm512_storeu_si512(keys, slots);
            return;
        }
#endif
        for (i64 i = 0; i < count; i++) {
            const float own = score[columns[i]];
            i64 place = r.top;
            for (; place > 0 && own > top[place - 1]; place--)
                if (place < r.top) top[place] = top[place - 1], keys[place] = keys[place - 1];
            if (place < r.top) top[place] = own, keys[place] = first + columns[i];
        }
    }

    // row_max rises: rescales the sums so far; row_sum is the sum of the weights
    void rescale(Worker& w, i64 row, float before, float row_max, float factor, float row_sum) const {
        if (before == -INFINITY) return;
        w.entropy[row] *= factor;
        w.entropy[row][0] += factor * not_below(FAR_BELOW, before - row_max) * row_sum;
        w.distance[row] *= factor;
        if (r.matches) w.match_sums[row] *= factor;
        for (i64 x = 0; x < r.labels; x++) w.label_sums[row * r.labels + x] *= factor;
        for (i64 x = 0; x < ranges && r.range_sums.defined(); x++) w.range_sums[row * ranges + x] *= factor;
        if (r.one_pass) w.factors[row] = factor, w.rescales = true;
    }

    // Takes a row's unnormalised weights, which are valid only if the tile `reads_weights`, and their sum.
    void weights(Worker& w, const Tile& t, i64 row, const float* weight, i64 from, i64 to, float weight_sum) const {
        const uint16_t* of_keys = key_labels + (r.key_labels.stride[0] ? t.b : 0) * vectors() * r.labels;
        in_vector_groups(r.labels, [&](auto count, i64 first) {
            const i64 label = first / W;
            vf sums[count];
            for (i64 i = 0; i < count; i++) sums[i] = w.label_sums[row * r.labels + label + i];
            const uint16_t* bits = of_keys + (t.j0 + from) / W * r.labels + label;
            for (i64 x = from; x < to; x += W, bits += r.labels) {
                const vf one = load(weight + x);
                for (i64 i = 0; i < count; i++) sums[i] = add_in_lanes(sums[i], bits[i], one);
            }
            for (i64 i = 0; i < count; i++) w.label_sums[row * r.labels + label + i] = sums[i];
        });
        if (r.distance.defined() && !w.close)
            for (i64 x = from; x < min(to, t.c1); x++) {
                const i64 apart = minus(*c.k_index.template at<i64>(t.b, t.j0 + x), w.own[row]);
                w.distance[row][0] += weight[x] * fabsf((float)apart);
            }
        if (r.range_sums.defined()) sum_ranges(w, t, row, weight, from, min(to, t.c1), weight_sum);
    }

    // the index of the query less the base, for exp_row
    float own_from_base(const Worker& w, i64 row) const { return (float)minus(w.own[row], w.base); }

    void sum_ranges(Worker& w, const Tile& t, i64 row, const float* weight, i64 from, i64 to, float weight_sum) const {
        float* sums = w.range_sums + row * ranges;
        if (w.range >= 0) {
            sums[w.range] += weight_sum;
            return;
        }
        i64& range = w.last_range[row];
        if (!w.consecutive) {
            for (i64 x = from; x < to; x++) {
                if (weight[x] == 0) continue;
                range = range_from(range, minus(*c.k_index.template at<i64>(t.b, t.j0 + x), w.own[row]));
                sums[range] += weight[x];
            }
            return;
        }
        if (from >= to) return;
        const i64 zero = minus(t.c0, minus(w.base, w.own[row]));  // the column at distance 0
        range = range_from(range, minus(from, zero));
        if (range == r.edge_count || edges[range] > minus(to - 1, zero)) {
            sums[range] += weight_sum;
            return;
        }
        for (i64 x = from;; range++) {  // columns x … end − 1 are in this range
            i64 end = to, column;
            if (range < r.edge_count && !__builtin_add_overflow(edges[range], zero, &column)) end = clamp(column, x, to);
            sums[range] += sum_of_columns(weight, x, end);
            x = end;
            if (x == to) return;
        }
    }

    // own_max, own_sum: of the keys; row_max, row_sum: with the sink. All weights use the exponential of row_sum, so a query
    // with one key in sight has exactly a weight of 1 and an entropy of 0.
    template <int DEGREE>
    void finish(Worker& w, const Tile& t, i64 row, float own_max, float own_sum, float row_max, float row_sum) const {
        const i64 i = t.i0 + row;
        const bool nothing = own_sum == 0;
        const float shift = nothing ? 0 : not_below(FAR_BELOW, own_max - row_max), scale = nothing ? 0 : expf(shift) / row_sum;
        if (r.visible.defined()) *r.visible.template at<i64>(t.b, t.h, i) = lanes_sum(w.visible[row]);
        if (r.entropy.defined())
            *r.entropy.template at<float>(t.b, t.h, i) =
                nothing ? 0 : scale * (own_sum * (logf(row_sum / exp_of<DEGREE>(vf{})[0]) - shift) - sum(w.entropy[row]));
        if (r.distance.defined()) *r.distance.template at<float>(t.b, t.h, i) = sum(w.distance[row]) * scale;
        if (r.matches) *r.match_sums.template at<float>(t.b, t.h, i) = sum(w.match_sums[row]) * scale;
        if (r.matches) *r.match_counts.template at<i64>(t.b, t.h, i) = w.match_counts[row];
        for (i64 x = 0; x < r.labels; x++)
            *r.label_sums.template at<float>(t.b, t.h, i, x) = sum(w.label_sums[row * r.labels + x]) * scale;
        for (i64 x = 0; x < ranges && r.range_sums.defined(); x++)
            *r.range_sums.template at<float>(t.b, t.h, i, x) = w.range_sums[row * ranges + x] * scale;
        if (r.one_pass) add_to_line(w, t, row, scale);
        const auto weight_of = [&](float score) {
            return nothing ? 0 : exp_of<DEGREE>(broadcast(score - row_max))[0] / row_sum;
        };
        for (i64 x = 0; x < r.at; x++)
            *r.at_weights.template at<float>(t.b, t.h, i, x) = weight_of(w.at_scores[row * r.at + x]);
        for (i64 x = 0; x < r.top; x++) {
            const i64 key = w.top_keys[row * held + x];
            *r.top_weights.template at<float>(t.b, t.h, i, x) = weight_of(key < 0 ? -INFINITY : w.top_scores[row * held + x]);
            *r.top_keys.template at<i64>(t.b, t.h, i, x) = key;
        }
    }

    static float not_below(float least, float x) { return x < least ? least : x; }  // NaN stays

    static i64 lanes_sum(vi x) {
        i64 found = 0;
        for (int i = 0; i < W; i++) found += x[i];
        return found;
    }

    // ------------------------------------------------------------ the map in one pass: a task of some blocks of queries

    void begin_map(Worker& w, i64 task) const {
        w.task = task;
        clear_map(task);
    }

    void begin_slots(Worker& w, const Tile& t) const {
        w.first_cell = (t.j0 + t.c0) * r.columns / c.m;
        i64 cell = w.first_cell;
        do w.cell_end[cell - w.first_cell] = first_column(t, cell + 1);
        while (w.cell_end[cell++ - w.first_cell] < t.c1);
        w.reached = round_up(cell, W), w.rescales = false;
        for (i64 row = 0; row < MB; row++) w.factors[row] = 1;
    }

    // the first column of a cell of the map, from the tile's first key
    i64 first_column(const Tile& t, i64 cell) const { return (cell * c.m + r.columns - 1) / r.columns - t.j0; }

    // Takes the unnormalised weights of all rows of a tile; those outside the rows' spans become 0. Columns are summed with
    // W rows side by side: summing the lanes of a row would take longer than summing its vectors.
    void add_to_slots(Worker& w, const Tile& t, float* weight, const i64* from, const i64* to, bool whole) const {
        for (i64 row = 0; row < t.rows && !whole; row++)
            for (i64 x = t.c0; x < t.c1; x += W)
                if (x < from[row] || x >= to[row]) store(weight + row * LD + x, vf{});
        for (i64 first = 0; first < t.rows; first += W) {
            float *sums = w.slot_sums + first * slots, *most = w.slot_largest + first * slots;
            for (i64 x = 0; x <= w.first_cell * W && w.rescales; x += W) {
                store(sums + x, load(sums + x) * load(w.factors + first));
                store(most + x, load(most + x) * load(w.factors + first));
            }
            const i64* cell_end = w.cell_end;
            i64 slot = w.first_cell * W;
            SumAndLargest cell{vf{}, vf{}};
            bool open = false;
            const auto put = [&] {
                cell.add(SumAndLargest{load(sums + slot), load(most + slot)});
                store(sums + slot, cell.sum), store(most + slot, cell.largest);
                cell = SumAndLargest{vf{}, vf{}}, slot += W, cell_end++, open = false;
            };
            for (i64 x = t.c0; x < t.c1; x += W) {
                vf columns[W];
                transposed(weight + first * LD + x, LD, columns);
                if (x + W <= *cell_end && x + W <= t.c1) {
                    cell.add(of_vectors<W>(columns)), open = true;
                    if (x + W == *cell_end) put();
                    continue;
                }
                for (i64 i = 0; i < W && x + i < t.c1; i++) {
                    cell.add(columns[i]), open = true;
                    if (x + i + 1 == *cell_end) put();
                }
            }
            if (open) put();
        }
    }

    // Slots of a group of rows that are finished, row by row: [slots / W][W rows][W].
    static void turn(float* of_group, i64 count) {
        for (i64 x = 0; x < count; x += W) {
            vf rows[W];
            transposed(of_group + x * W, W, rows);
            for (int i = 0; i < W; i++) store(of_group + (x + i) * W, rows[i]);
        }
    }

    // a finished row; `scale` turns its numbers into weights
    void add_to_line(Worker& w, const Tile& t, i64 row, float scale) const {
        const i64 line = (t.i0 + row) * r.rows / c.n;
        if (line != w.line) {
            flush_line(w);
            w.line = line;
            memset(w.line_sums, 0, (size_t)(2 * slots * 4));
        }
        if (row % W == 0) turn(w.slot_sums + row * slots, w.reached), turn(w.slot_largest + row * slots, w.reached);
        const i64 first = row / W * W * slots + row % W * W;
        const float *sums = w.slot_sums + first, *most = w.slot_largest + first;
        for (i64 x = 0; x < w.reached && counts(t, row); x += W) {
            store(w.line_sums + x, load(w.line_sums + x) + load(sums + x * W) * scale);
            store(w.line_largest + x, max_of(load(w.line_largest + x), load(most + x * W) * scale));
        }
        if (row == t.rows - 1) flush_line(w);
    }

    void flush_line(const Worker& w) const {
        if (w.line < 0) return;
        double* sums = mass + w.task * cells() + w.line * r.columns;
        float* most = largest + w.task * cells() + w.line * r.columns;
        for (i64 cell = 0; cell < min(w.reached, r.columns); cell++) {
            sums[cell] += w.line_sums[cell];
            most[cell] = w.line_largest[cell] > most[cell] ? w.line_largest[cell] : most[cell];
        }
    }

    // ------------------------------------------------------------ second pass: a task of some blocks of queries

    void begin_task(i64 task) const {
        if (columns) memset(columns + task * c.m, 0, (size_t)(c.m * 8));
        if (!r.one_pass) clear_map(task);
    }

    void clear_map(i64 task) const {
        if (!mass) return;
        memset(mass + task * cells(), 0, (size_t)(cells() * 8));
        memset(largest + task * cells(), 0, (size_t)(cells() * 4));
    }

    i64 cells() const { return r.rows * r.columns; }
    bool maps_columns() const { return r.rows && !r.one_pass; }  // in the second pass

    bool counts(const Tile& t, i64 row) const {
        return !r.counted.defined() || *r.counted.template at<uint8_t>(t.b, t.i0 + row);
    }

    // Takes the normalised weights of a tile from column c0 to `end`, row by row within their spans. Rows that belong to one
    // row of the map are summed first.
    template <class WeightsOf>
    void add_tile(Worker& w, const Tile& t, i64 end, i64 task, const i64* from, const i64* to, WeightsOf weights_of) const {
        i64 line = -1;
        for (i64 row = 0; row < t.rows; row++) {
            const i64 own = maps_columns() ? (t.i0 + row) * r.rows / c.n : 0;
            if (own != line) {
                if (line >= 0) flush(w, t, task, line);
                line = own;
                for (i64 x = t.c0; x < end; x += W) store(w.column_sums + x, vf{}), store(w.column_max + x, vf{});
            }
            if (!counts(t, row)) continue;
            for (i64 x = from[row]; x < to[row]; x += W) {
                const vf weight = weights_of(row, x);
                store(w.column_sums + x, load(w.column_sums + x) + weight);
                if (maps_columns()) store(w.column_max + x, max_of(load(w.column_max + x), weight));
            }
        }
        flush(w, t, task, line);
    }

    void flush(Worker& w, const Tile& t, i64 task, i64 line) const {
        const i64 first = t.j0 + t.c0;
        if (columns) add_to(columns + task * c.m + first, w.column_sums + t.c0, t.c1 - t.c0);
        if (!maps_columns()) return;
        double* sums = mass + task * cells() + line * r.columns;
        float* most = largest + task * cells() + line * r.columns;
        for (i64 x = t.c0, cell = first * r.columns / c.m; x < t.c1; cell++) {
            const i64 end = min(t.c1, first_column(t, cell + 1));
            sums[cell] += sum_of(w.column_sums + x, end - x);
            for (; x < end; x++) most[cell] = w.column_max[x] > most[cell] ? w.column_max[x] : most[cell];
        }
    }

    // the sums of a head's tasks, in order
    void reduce_head(i64 head) const {
        const i64 b = head / c.heads, h = head % c.heads;
        for (i64 j = 0; j < c.m && columns; j++) {
            double sum = 0;
            for (i64 x = 0; x < chunks; x++) sum += columns[(head * chunks + x) * c.m + j];
            *r.column_sums.template at<double>(b, h, j) = sum;
        }
        for (i64 cell = 0; cell < cells() && mass; cell++) {
            double sum = 0;
            float most = 0;
            for (i64 x = 0; x < chunks; x++) {
                sum += mass[(head * chunks + x) * cells() + cell];
                const float found = largest[(head * chunks + x) * cells() + cell];
                most = found > most ? found : most;
            }
            *r.mass.template at<double>(b, h, cell / r.columns, cell % r.columns) = sum;
            *r.largest.template at<float>(b, h, cell / r.columns, cell % r.columns) = most;
        }
    }
};

}  // namespace
