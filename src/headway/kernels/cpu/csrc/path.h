// Gates along the path from a key to the query: the log-sigmoids of the query's products with the tokens between both,
// summed from the query to the key.
#pragma once
#include "stick.h"

namespace {

// ln(1 + y) for y of 0 … 1, by 2·atanh(y/(2 + y)); the relative error is at most 2e-7
inline vf log1p_of(vf y) {
    const vf s = y / (2.f + y), z = s * s;
    vf p = z * 0.28178325f + 0.27960604f;
    p = p * z + 0.40024909f;
    p = p * z + 0.66666317f;
    return s * (p * z + 2.f);
}

// ln σ(a) and its derivative 1 − σ(a)
struct LogGate {
    vf value, slope;
};

inline LogGate log_gate(vf a) {
    const vf e = exp_of<6>((vf)((vi)a | (int32_t)0x80000000)), large = 1.f / (1.f + e);
    const vi positive = (vi)(a > 0.f);
    return {select(positive, vf{}, a) - log1p_of(e), select(positive, e * large, large)};
}

// The data that all workers share.
struct GatedPath {
    const Term* t = nullptr;
    i64 width, mp;
    float *rows, *columns;  // [batch·heads][mp][width], [batch·heads][t->width][mp]: the tokens as B of products
    float* sums;            // backward: [tasks][mp + SLACK][width]
    uint8_t* seen;          // [batch·heads][mp], for heads with a token that is not finite: whether any query may see it

    struct Worker {
        float *query, *d_query;  // [MB + SLACK][width]
        float* gates;            // a tile of products; backward: of slopes, then of gradients
        uint8_t on[MB];          // for each query: whether none, some or all tokens of a tile are on paths to it
        bool any;                // whether any token is on a path
    };
    enum { NONE, SOME, ALL };

    bool wants_grad() const { return t->unprepared_grad.defined() || t->path_grad.defined(); }
    i64 sums_size() const { return (mp + SLACK) * width; }

    void lay_out(Memory& memory, const Call& c, i64 padded_keys, i64 tasks) {
        width = round_up(t->width, W), mp = padded_keys;
        columns = memory.take<float>(c.batch * c.heads * t->width * mp);
        rows = memory.take<float>(c.backward ? c.batch * c.heads * mp * width : 0);
        sums = memory.take<float>(t->path_grad.defined() ? tasks * sums_size() : 0);
        seen = memory.take<uint8_t>(c.batch * c.heads * mp);
    }

    void lay_out(Memory& memory, const Call& c, Worker& w) const {
        w.query = memory.take<float>((MB + SLACK) * width);
        if (c.backward) w.d_query = memory.take<float>((MB + SLACK) * width);
    }

    // The tokens of a head. A token that is not finite is replaced by 0 if no query sees it. It is also 0 in the gradient of
    // queries: queries without it on their path would multiply it by 0.
    void prepare(const Call& c, i64 head) const {
        float* by_column = columns + head * t->width * mp;
        uint8_t* of_head = nullptr;
        for (i64 j = 0; j < mp; j++) {
            bool finite = j < c.m;
            for (i64 x = 0; x < t->width && finite; x++) finite = at(c, head, j, x) * 0 == 0;
            if (!finite && j < c.m && !of_head) {
                of_head = seen + head * mp;
                memset(of_head, 0, (size_t)mp);
                visible(c, head / c.heads, head % c.heads, of_head);
            }
            const bool counts = finite || (j < c.m && of_head[j]);
            for (i64 x = 0; x < t->width; x++) by_column[x * mp + j] = counts ? at(c, head, j, x) : 0;
            for (i64 x = 0; x < width && c.backward; x++)
                rows[(head * mp + j) * width + x] = finite && x < t->width ? at(c, head, j, x) : 0;
        }
    }

    void begin_task(i64 task) const {
        if (t->path_grad.defined()) memset(sums + task * sums_size(), 0, (size_t)(sums_size() * 4));
    }

    void begin(const Call& c, Worker& w, const Tile& tile, const bool* fully_masked) const {
        load_rows<F32>(t->unprepared, tile.b, tile.h, tile.i0, tile.rows, t->width, w.query, width, width);
        for (i64 r = 0; r < tile.rows && fully_masked; r++)
            if (fully_masked[r]) memset(w.query + r * width, 0, (size_t)(width * 4));
        if (c.backward) memset(w.d_query, 0, (size_t)((MB + SLACK) * width * 4));
    }

    // Multiplies the queries of a block with the tokens of a block of keys, if one is on a path.
    void multiply(const Call& c, Worker& w, const Tile& tile) const {
        const i64 keys = min(NB, c.m - tile.j0);
        i64 low = INT64_MAX, high = INT64_MIN;
        for (i64 x = 0; x < keys; x++) {
            const i64 index = *c.k_index.at<i64>(tile.b, tile.j0 + x);
            low = min(low, index), high = max(high, index);
        }
        w.any = false;
        for (i64 r = 0; r < tile.rows; r++) {
            const i64 index = *c.q_index.at<i64>(tile.b, tile.i0 + r);
            w.on[r] = index < low ? NONE : index >= high ? ALL : SOME;
            w.any |= w.on[r] != NONE;
        }
        if (!w.any) return;
        const float* b = columns + (tile.b * c.heads + tile.h) * t->width * mp + tile.j0;
        gemm<Float32, false>(tile.rows, round_up(keys, W) / W, t->width, w.query, width, b, mp, w.gates, LD, false);
    }

    // Adds, for each key, the sum of a row's gates behind it to the scores at the columns from … to − 1, whole vectors.
    // Replaces the row's products by slopes if a backward pass needs them. Returns the sum over all keys so far.
    double add_to_row(const Call& c, Worker& w, const Tile& tile, i64 r, float* score, i64 from, i64 to, double scanned) const {
        const i64 keys = min(NB, c.m - tile.j0), query = *c.q_index.at<i64>(tile.b, tile.i0 + r);
        const float factor = *t->values.at<float>(tile.h);
        float* gates = w.gates + r * LD;
        int32_t on[NB];
        for (i64 x = 0; x < round_up(keys, W); x++)
            on[x] = x < keys && (w.on[r] == ALL || (w.on[r] == SOME && *c.k_index.at<i64>(tile.b, tile.j0 + x) <= query)) ? -1 : 0;
        for (i64 x = round_up(keys, W) - W; x >= 0; x -= W) {
            vi counts;
            memcpy(&counts, on + x, sizeof counts);
            const LogGate gate = log_gate(load(gates + x));
            const vf sums = suffix_sums(select(counts, gate.value * factor, vf{}));
            if (x >= from && x < to) store(score + x, load(score + x) + (shift_down<1>(sums, vf{}) + (float)scanned));
            if (c.backward) store(gates + x, select(counts, gate.slope * factor, vf{}));
            scanned += sums[0];
        }
        return scanned;
    }

    // Replaces the slopes of a row's gates by their gradients, which sum over the keys before a token. gained: the sum so
    // far. grad: the gradients of the scores at the columns from … to − 1.
    double backward_of_row(const Call& c, Worker& w, const Tile& tile, i64 r, const float* grad, i64 from, i64 to, double gained) const {
        float* gates = w.gates + r * LD;
        for (i64 x = 0; x < round_up(min(NB, c.m - tile.j0), W); x += W) {
            const vf gains = prefix_sums(x >= from && x < to ? load(grad + x) : vf{});
            const vf before = shift_up<1>(gains, vf{}) + (float)gained;
            store(gates + x, select((vi)(before == 0), vf{}, before * load(gates + x)));
            gained += gains[W - 1];
        }
        return gained;
    }

    // after `backward_of_row` of all rows: adds to the gradients of the queries and the tokens
    void multiply_backward(const Call& c, Worker& w, const Tile& tile, i64 task) const {
        const i64 keys = min(NB, c.m - tile.j0);
        const float* b = rows + ((tile.b * c.heads + tile.h) * mp + tile.j0) * width;
        gemm<Float32, false>(tile.rows, width / W, keys, w.gates, LD, b, width, w.d_query, width, true);
        if (t->path_grad.defined())
            gemm<Float32, true>(keys, width / W, tile.rows, w.gates, LD, w.query, width,
                                sums + task * sums_size() + tile.j0 * width, width, true);
    }

    void finish(const Tile& tile, const Worker& w) const {
        if (!t->unprepared_grad.defined()) return;
        for (i64 r = 0; r < tile.rows; r++)
            store_row<F32>(t->unprepared_grad, tile.b, tile.h, tile.i0 + r, t->width, w.d_query + r * width);
    }

    // the gradients of a head's tokens: the sums of all its tasks, in order
    void reduce(const Call& c, i64 h, i64 chunks) const {
        if (!t->path_grad.defined()) return;
        for (i64 b = 0; b < c.batch; b++) {
            float* total = sums + (b * c.heads + h) * chunks * sums_size();
            for (i64 x = 1; x < chunks; x++) add_to(total, total + x * sums_size(), c.m * width);
            for (i64 j = 0; j < c.m; j++) store_row<F32>(t->path_grad, b, h, j, t->width, total + j * width);
        }
    }

  private:
    float at(const Call& c, i64 head, i64 j, i64 x) const { return *t->path.at<float>(head / c.heads, head % c.heads, j, x); }
};

}  // namespace
