// Contextual positions: gates, the sigmoids of a row's scores, are counted from its last key to its first, and each key
// adds the product of the query with the vector of its count, interpolated between whole ones.
#pragma once
#include "stick.h"

namespace {

// A count between whole numbers. At a whole number the products do not depend on it, as in the specification.
struct Place {
    vf fraction, low, slope;
    vi whole;
};

// products: the query's products, with the last one repeated for two vectors behind it. Counts exceed the last lane's by
// at most W, since a gate is at most 1.
inline Place place_of(const float* products, vf counted) {
    Place p;
    p.whole = __builtin_convertvector(counted, vi);
    p.fraction = counted - __builtin_convertvector(p.whole, vf);
    const i64 first = p.whole[W - 1];
    const vi at = p.whole - (int32_t)first;
    p.low = look_up(products + first, at);
    p.slope = select((vi)(p.fraction == 0), vf{}, look_up(products + first, at + 1) - p.low);
    return p;
}

// Adds the products to a row of scores at the columns from … to − 1, whole vectors. `counted` is the count of the keys
// behind them. Returns the first column whose count is below the last position.
//
// visit(x, share, counts): called for the keys x … x + W − 1
template <class Visit>
inline i64 add_positions_to_row(const float* products, i64 last, float* score, i64 from, i64 to, double& counted, Visit visit) {
    const vf most = broadcast((float)last);
    auto add = [](float* at, vf product) {  // hidden keys stay hidden, even if the product is ∞ or NaN
        const vf found = load(at);
        store(at, select((vi)(found == -INFINITY), found, found + product));
    };
    i64 open = to;
    for (; open > from && counted < (double)last; open -= W) {
        const i64 x = open - W;
        const Share share = share_of(load(score + x));
        const vf gates = suffix_sums(share.taken), count = gates + (float)counted, bounded = select(count < most, count, most);
        const Place place = place_of(products, bounded);
        visit(x, share, bounded);
        add(score + x, place.low + place.fraction * place.slope);
        counted += gates[0];
    }
    const vf furthest = broadcast(products[last]);
    for (i64 x = from; x < open; x += W) add(score + x, furthest);
    return open;
}

// Sums of a row's score gradients by the integer part of their count: near·(1 − fraction) and far·fraction.
struct ByCount {
    float near, far;
};

// Replaces the gradients of a row's scores by those of the scores before `add_positions_to_row`. All counts before a key
// depend on its score.
//
// gained: Σ of the gradients of the counts of the keys so far
inline void positions_backward_of_row(const float* products, i64 last, const float* counts, const float* gate_slopes,
                                      float* grad, i64 from, i64 open, i64 to, double& gained, ByCount* sums) {
    float near[LD], far[LD];
    int32_t whole[LD];
    for (i64 x = open; x < to; x += W) {
        const vf d_score = load(grad + x);
        const Place place = place_of(products, load(counts + x));
        const vf gains = prefix_sums(d_score * place.slope);
        store(grad + x, d_score + load(gate_slopes + x) * (gains + (float)gained));
        gained += gains[W - 1];
        const vf share = d_score * place.fraction;
        store(near + x, d_score - share), store(far + x, share);
        memcpy(whole + x, &place.whole, sizeof place.whole);
    }
    for (i64 x = open; x < to; x++) sums[whole[x]].near += near[x], sums[whole[x]].far += far[x];
    vf rest = {};
    for (i64 x = from; x < open; x += W) rest += load(grad + x);
    sums[last].near += sum(rest);
}

// The data that all workers share.
struct ContextualPositions {
    const Term* t = nullptr;
    i64 last, padded, ld, width, heads;
    float *rows, *columns;  // [heads][last + 1][width], [heads][d][padded]: the vectors as B of products
    float* sums;            // backward: [tasks][last + 1 + SLACK][width]

    struct Worker {
        float* products;     // [MB + SLACK][ld]: q·e of a block; then their gradients
        ByCount* by_count;   // backward: [MB][last + 1]
        float *counts, *gate_slopes;  // backward: tiles
        i64 open[MB];        // the first column of a row in the tile whose count is below the last position
    };

    i64 sums_size() const { return (last + 1 + SLACK) * width; }

    void lay_out(Memory& memory, const Call& c, i64 tasks) {
        last = t->rows - 1, padded = round_up(t->rows, W), width = round_up(c.d, W);
        ld = round_up(t->rows + max(2 * W, SLACK), W);
        heads = t->values.stride[0] ? c.heads : 1;
        rows = memory.take<float>(heads * t->rows * width);
        columns = memory.take<float>(heads * c.d * padded);
        sums = memory.take<float>(t->values_grad.defined() ? tasks * sums_size() : 0);
    }

    void lay_out(Memory& memory, const Call& c, Worker& w) const {
        w.products = memory.take<float>((MB + SLACK) * ld);
        if (!c.backward) return;
        w.by_count = memory.take<ByCount>(MB * t->rows);
    }

    void prepare(const Call& c, i64 h) const {
        float *by_row = rows + h * t->rows * width, *by_column = columns + h * c.d * padded;
        memset(by_column, 0, (size_t)(c.d * padded * 4));
        for (i64 row = 0; row < t->rows; row++)
            for (i64 x = 0; x < width; x++) {
                const float value = x < c.d ? *t->values.at<float>(h, row, x) : 0;
                by_row[row * width + x] = value;
                if (x < c.d) by_column[x * padded + row] = value;
            }
    }

    void begin_task(i64 task) const {
        if (t->values_grad.defined()) memset(sums + task * sums_size(), 0, (size_t)(sums_size() * 4));
    }

    // q: [MB + SLACK][width], not scaled
    void multiply(const Call& c, Worker& w, i64 h, i64 count, const float* q) const {
        const float* b = columns + (heads > 1 ? h : 0) * c.d * padded;
        gemm<Float32, false>(count, padded / W, c.d, q, width, b, padded, w.products, ld, false);
        for (i64 r = 0; r < count; r++)
            for (i64 x = last + 1; x < ld; x++) w.products[r * ld + x] = w.products[r * ld + last];
        if (c.backward) memset(w.by_count, 0, (size_t)(count * t->rows * (i64)sizeof(ByCount)));
    }

    // After all tiles of a block: adds to the gradients of its queries, [MB + SLACK][width], and of the vectors.
    void finish(Worker& w, i64 h, i64 count, const float* q, float* dq, i64 task) const {
        for (i64 r = 0; r < count; r++) {
            const ByCount* by_count = w.by_count + r * t->rows;
            float* grad = w.products + r * ld;
            for (i64 x = 0; x <= last; x++) grad[x] = by_count[x].near + (x ? by_count[x - 1].far : 0);
        }
        const float* b = rows + (heads > 1 ? h : 0) * t->rows * width;
        gemm<Float32, false>(count, width / W, last + 1, w.products, ld, b, width, dq, width, true);
        if (t->values_grad.defined())
            gemm<Float32, true>(last + 1, width / W, count, w.products, ld, q, width, sums + task * sums_size(), width, true);
    }

    // the gradient of the vectors of a head: the sums of all its tasks, in order
    void reduce(const Call& c, i64 h, i64 chunks) const {
        if (!t->values_grad.defined()) return;
        float* total = sums + h * chunks * sums_size();
        for (i64 x = 1; x < c.batch * chunks; x++) {
            const i64 task = (x / chunks * c.heads + h) * chunks + x % chunks;
            add_to(total, sums + task * sums_size(), (last + 1) * width);
        }
        for (i64 row = 0; row <= last; row++)
            for (i64 x = 0; x < c.d; x++) *t->values_grad.at<float>(h, row, x) = total[row * width + x];
    }
};

}  // namespace
