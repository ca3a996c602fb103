// Reductions of the weights (headway/reductions.py): those of each query in the forward pass, those over queries in a
// second pass over the same scores, which has row_max and row_sum from the first.
//
// The forward pass sums unnormalised weights e = exp(score − row_max so far). Where row_max rises, the sums so far are
// multiplied by exp(old − new), as its output is.
#pragma once
#include "tasks.h"

namespace {

// the lanes of a vector that are greater, as bits
inline uint32_t lanes_above(vf x, float least) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(least), _CMP_GT_OQ);
#elif defined(__AVX2__)
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps((__m256)x, _mm256_set1_ps(least), _CMP_GT_OQ));
#else
    uint32_t found = 0;
    for (int i = 0; i < W; i++) found |= (uint32_t)(x[i] > least) << i;
    return found;
#endif
}

template <class T, class Packing>
struct Reducer {
    struct Worker {
        vf entropy[MB], distance[MB];     // Σ e·(score − row_max), Σ e·|δ|; summed over lanes at the end, as are
        vi visible[MB];                   // keys with a score above −∞
        vf* label_sums;                   // [MB][labels]
        float* range_sums;                // [MB][ranges]
        float* at_scores;                 // [MB][at]
        float* top_scores;                // [MB][top], falling
        i64* top_keys;                    // [MB][top]
        float *one_hot, *from_base;       // of a tile: [labels][LD] its keys' labels; [LD] their index less `base`
        float *column_sums, *column_max;  // [LD] of the second pass: the rows of a tile
        i64 base;
        bool consecutive;                 // the indices of the tile's keys rise by one
        bool close;                       // the floats of from_base are exact
    };

    static constexpr float FAR_BELOW = -200;  // exp of it is 0; differences of scores may overflow to −∞

    const Call& c;
    const ReduceCall& r;
    const Plan<T, Packing>& plan;
    const i64 ranges;
    bool by_query = false, by_column = false;  // what each pass has to do
    bool sums_weights = false;                 // the first pass reads weights after the exponential
    i64 chunks = 1;                            // second pass: tasks of a head
    double* columns = nullptr;                 // [heads·chunks][m]
    double* mass = nullptr;                    // [heads·chunks][rows][columns] of the map
    float* largest = nullptr;

    explicit Reducer(const Plan<T, Packing>& p) : c(p.c), r(p.c.reduce), plan(p), ranges(p.c.reduce.edge_count + 1) {
        if (!r.wanted) return;
        sums_weights = r.distance.defined() || r.labels || r.range_sums.defined();
        by_query = sums_weights || r.entropy.defined() || r.visible.defined() || r.top || r.at;
        by_column = r.column_sums.defined() || r.rows;
        const i64 heads = max(1, c.batch * c.heads);
        chunks = max(1, min(plan.blocks, (16 + heads - 1) / heads));
    }

    void lay_out(Memory& memory) {
        if (!by_column) return;
        const i64 tasks = c.batch * c.heads * chunks;
        if (r.column_sums.defined()) columns = memory.take<double>(tasks * c.m);
        if (!r.rows) return;
        mass = memory.take<double>(tasks * r.rows * r.columns);
        largest = memory.take<float>(tasks * r.rows * r.columns);
    }

    void lay_out(Memory& memory, Worker& w) const {
        if (r.labels) w.label_sums = memory.take<vf>(MB * r.labels), w.one_hot = memory.take<float>(r.labels * LD);
        if (r.range_sums.defined()) w.range_sums = memory.take<float>(MB * ranges);
        if (r.at) w.at_scores = memory.take<float>(MB * r.at);
        if (r.top) w.top_scores = memory.take<float>(MB * r.top), w.top_keys = memory.take<i64>(MB * r.top);
        if (needs_distance()) w.from_base = memory.take<float>(LD);
        if (by_column) w.column_sums = memory.take<float>(LD), w.column_max = memory.take<float>(LD);
    }

    bool needs_distance() const { return r.distance.defined() || r.range_sums.defined(); }

    // ------------------------------------------------------------ first pass: a block of queries

    void begin(Worker& w, const Tile& t) const {
        memset(w.entropy, 0, sizeof w.entropy);
        memset(w.distance, 0, sizeof w.distance);
        memset(w.visible, 0, sizeof w.visible);
        if (r.labels) memset(w.label_sums, 0, (size_t)(t.rows * r.labels) * sizeof(vf));
        if (r.range_sums.defined()) memset(w.range_sums, 0, (size_t)(t.rows * ranges * 4));
        for (i64 x = 0; x < t.rows * r.at; x++) w.at_scores[x] = -INFINITY;
        for (i64 x = 0; x < t.rows * r.top; x++) w.top_scores[x] = -INFINITY, w.top_keys[x] = -1;
    }

    // What the rows of a tile share. Columns c0 … end − 1 are read, those from c1 on with weights of 0.
    void begin_tile(Worker& w, const Tile& t, i64 end) const {
        for (i64 label = 0; label < r.labels; label++) memset(w.one_hot + label * LD + t.c0, 0, (size_t)((end - t.c0) * 4));
        for (i64 x = t.c0; x < t.c1 && r.labels; x++) {
            const i64 label = *r.key_labels.template at<i64>(t.b, t.j0 + x);
            if (label >= 0 && label < r.labels) w.one_hot[label * LD + x] = 1;
        }
        if (!needs_distance()) return;
        w.base = *c.k_index.template at<i64>(t.b, t.j0 + t.c0);
        w.consecutive = w.close = true;
        for (i64 x = t.c0; x < end; x++) {
            const i64 index = *c.k_index.template at<i64>(t.b, t.j0 + min(x, t.c1 - 1));
            const i64 apart = minus(index, w.base);
            w.from_base[x] = (float)apart;
            w.close &= apart >= -(1 << 24) && apart <= 1 << 24;
            w.consecutive &= x >= t.c1 || apart == x - t.c0;
        }
    }

    // Finished scores of a row, of which `found` is the largest, before the exponential.
    void scores(Worker& w, const Tile& t, i64 row, const float* score, i64 from, i64 to, float found) const {
        for (i64 x = 0; x < r.at; x++) {
            const i64 column = *r.at_keys.template at<i64>(t.b, t.i0 + row, x) - t.j0;
            if (column >= from && column < min(to, t.c1)) w.at_scores[row * r.at + x] = score[column];
        }
        if (!r.top || !(found > w.top_scores[(row + 1) * r.top - 1])) return;
        float* top = w.top_scores + row * r.top;
        i64* keys = w.top_keys + row * r.top;
        for (i64 x = from; x < to; x += W)
            for (uint32_t lanes = lanes_above(load(score + x), top[r.top - 1]); lanes; lanes &= lanes - 1) {
                const i64 column = x + __builtin_ctz(lanes);
                insert(top, keys, score[column], t.j0 + column);
            }
    }

    // among the largest so far; behind those of its own size, whose keys come first
    void insert(float* top, i64* keys, float score, i64 key) const {
        if (!(score > top[r.top - 1])) return;
        i64 place = r.top - 1;
        for (; place > 0 && score > top[place - 1]; place--) top[place] = top[place - 1], keys[place] = keys[place - 1];
        top[place] = score, keys[place] = key;
    }

    // row_max rises: what has been summed so far, of which row_sum is the sum of weights
    void rescale(Worker& w, i64 row, float before, float row_max, float factor, float row_sum) const {
        if (before == -INFINITY) return;
        w.entropy[row] *= factor;
        w.entropy[row][0] += factor * not_below(FAR_BELOW, before - row_max) * row_sum;
        w.distance[row] *= factor;
        for (i64 x = 0; x < r.labels; x++) w.label_sums[row * r.labels + x] *= factor;
        for (i64 x = 0; x < ranges && r.range_sums.defined(); x++) w.range_sums[row * ranges + x] *= factor;
    }

    // Unnormalised weights of a row, and their sum.
    void weights(Worker& w, const Tile& t, i64 row, const float* weight, i64 from, i64 to, float weight_sum) const {
        in_vector_groups(r.labels, [&](auto count, i64 first) {
            const i64 label = first / W;
            vf sums[count];
            for (i64 i = 0; i < count; i++) sums[i] = w.label_sums[row * r.labels + label + i];
            for (i64 x = from; x < to; x += W) {
                const vf one = load(weight + x);
                for (i64 i = 0; i < count; i++) sums[i] += one * load(w.one_hot + (label + i) * LD + x);
            }
            for (i64 i = 0; i < count; i++) w.label_sums[row * r.labels + label + i] = sums[i];
        });
        if (!needs_distance()) return;
        const i64 own = minus(*c.q_index.template at<i64>(t.b, t.i0 + row), w.base);  // of the query, from the base
        if (r.distance.defined() && !w.close) {
            for (i64 x = from; x < min(to, t.c1); x++) {
                const i64 apart = minus(minus(*c.k_index.template at<i64>(t.b, t.j0 + x), w.base), own);
                w.distance[row][0] += weight[x] * fabsf((float)apart);
            }
        } else if (r.distance.defined()) {
            vf sums = w.distance[row];
            for (i64 x = from; x < to; x += W) {
                const vf apart = load(w.from_base + x) - (float)own;
                sums += load(weight + x) * (vf)((vi)apart & 0x7fffffff);
            }
            w.distance[row] = sums;
        }
        if (r.range_sums.defined()) sum_ranges(w, t, row, weight, from, min(to, t.c1), own, weight_sum);
    }

    void sum_ranges(Worker& w, const Tile& t, i64 row, const float* weight, i64 from, i64 to, i64 own, float weight_sum) const {
        float* sums = w.range_sums + row * ranges;
        if (!w.consecutive) {
            for (i64 x = from; x < to; x++) {
                if (weight[x] == 0) continue;
                const i64 index = minus(*c.k_index.template at<i64>(t.b, t.j0 + x), w.base);
                sums[bucketize<i64>(r.edges, r.edge_count, minus(index, own))] += weight[x];
            }
            return;
        }
        if (from >= to) return;
        i64 range = bucketize<i64>(r.edges, r.edge_count, minus(from - t.c0, own));
        if (range == r.edge_count || *r.edges.template at<i64>(range) > minus(to - 1 - t.c0, own)) {
            sums[range] += weight_sum;
            return;
        }
        for (i64 x = from; x < to; range++) {  // columns x … end − 1 are in this range
            i64 end = to;
            if (range < r.edge_count) {
                const i64 edge = *r.edges.template at<i64>(range);
                i64 column;
                if (!__builtin_add_overflow(edge, own + t.c0, &column)) end = clamp(column, x, to);
            }
            sums[range] += sum_of(weight + x, end - x);
            x = end;
        }
    }

    // own_max, own_sum: of the keys; row_max, row_sum: with the sink. All weights are of one exponential, the polynomial of
    // row_sum: a query with one key in sight has a weight of 1 and an entropy of 0, exactly.
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
        for (i64 x = 0; x < r.labels; x++)
            *r.label_sums.template at<float>(t.b, t.h, i, x) = sum(w.label_sums[row * r.labels + x]) * scale;
        for (i64 x = 0; x < ranges && r.range_sums.defined(); x++)
            *r.range_sums.template at<float>(t.b, t.h, i, x) = w.range_sums[row * ranges + x] * scale;
        const auto weight_of = [&](float score) {
            return nothing ? 0 : exp_of<DEGREE>(broadcast(score - row_max))[0] / row_sum;
        };
        for (i64 x = 0; x < r.at; x++)
            *r.at_weights.template at<float>(t.b, t.h, i, x) = weight_of(w.at_scores[row * r.at + x]);
        for (i64 x = 0; x < r.top; x++) {
            *r.top_weights.template at<float>(t.b, t.h, i, x) = weight_of(w.top_scores[row * r.top + x]);
            *r.top_keys.template at<i64>(t.b, t.h, i, x) = w.top_keys[row * r.top + x];
        }
    }

    static float not_below(float least, float x) { return x < least ? least : x; }  // NaN stays

    static i64 lanes_sum(vi x) {
        i64 found = 0;
        for (int i = 0; i < W; i++) found += x[i];
        return found;
    }

    // ------------------------------------------------------------ second pass: a task of some blocks of queries

    void begin_task(i64 task) const {
        if (columns) memset(columns + task * c.m, 0, (size_t)(c.m * 8));
        if (!mass) return;
        memset(mass + task * cells(), 0, (size_t)(cells() * 8));
        memset(largest + task * cells(), 0, (size_t)(cells() * 4));
    }

    i64 cells() const { return r.rows * r.columns; }

    bool counts(const Tile& t, i64 row) const {
        return !r.counted.defined() || *r.counted.template at<uint8_t>(t.b, t.i0 + row);
    }

    // The weights of a tile from column c0 to `end`, normalised, row by row within their spans. Rows of one row of the
    // map are summed first.
    template <class WeightsOf>
    void add_tile(Worker& w, const Tile& t, i64 end, i64 task, const i64* from, const i64* to, WeightsOf weights_of) const {
        i64 line = -1;
        for (i64 row = 0; row < t.rows; row++) {
            const i64 own = r.rows ? (t.i0 + row) * r.rows / c.n : 0;
            if (own != line) {
                if (line >= 0) flush(w, t, task, line);
                line = own;
                for (i64 x = t.c0; x < end; x += W) store(w.column_sums + x, vf{}), store(w.column_max + x, vf{});
            }
            if (!counts(t, row)) continue;
            for (i64 x = from[row]; x < to[row]; x += W) {
                const vf weight = weights_of(row, x);
                store(w.column_sums + x, load(w.column_sums + x) + weight);
                if (r.rows) store(w.column_max + x, max_of(load(w.column_max + x), weight));
            }
        }
        flush(w, t, task, line);
    }

    void flush(Worker& w, const Tile& t, i64 task, i64 line) const {
        const i64 first = t.j0 + t.c0;
        if (columns) add_to(columns + task * c.m + first, w.column_sums + t.c0, t.c1 - t.c0);
        if (!mass) return;
        double* sums = mass + task * cells() + line * r.columns;
        float* most = largest + task * cells() + line * r.columns;
        for (i64 x = t.c0, cell = first * r.columns / c.m; x < t.c1; cell++) {
            const i64 end = min(t.c1, ((cell + 1) * c.m + r.columns - 1) / r.columns - t.j0);  // the next cell's first column
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
