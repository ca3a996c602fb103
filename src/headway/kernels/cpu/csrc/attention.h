// Scores, mask, softmax, forward, backward: attention over blocks of queries and blocks of keys.
#pragma once
#include "spans.h"
#include "stick.h"
#include "reductions.h"
#include "tasks.h"
#include "terms.h"

namespace {

// a 32-bit hash with good avalanche, the same as in reference.py
template <class X>
inline X hash32(X x) {
    x = (x ^ x >> 16) * 0x21F0AAADu;
    x = (x ^ x >> 15) * 0x735A2D97u;
    return x ^ x >> 15;
}

template <class T, class Packing>
struct Attention {
    struct Worker {
        RowRanges ranges;
        Spans spans;                      // of the tile
        typename Terms<T, Packing>::Worker terms;
        typename Reducer<T, Packing>::Worker reductions;
        float *x, *row;                   // [MB + SLACK][widest]: rows as floats; [dp]: one packed row
        float *q, *q_pairs;               // q, packed along rows and as pairs of rows (see pack.h)
        float *d_out_packed, *d_out_pairs;  // dO likewise
        float *score, *d_score, *cap_slope;  // tiles [MB + SLACK][LD], with a vector of slack on both sides
        float *packed, *row_pairs;        // a tile, packed along rows and as pairs of rows
        float *out;                       // [MB + SLACK][dvp] in forward, [MB + SLACK][dp] of dq in backward
        float *d_out;                     // [MB][dvp]
        uint32_t* key_indices;            // of the keys of a tile, for dropout
        const float* deferred_bias[MB];   // a bias that is added in the softmax's own pass, from column c0 on; or null
        float score_scale[MB], row_max[MB], row_sum[MB], d_query_scale[MB];
        float inv_row_sum[MB], delta[MB];  // backward: 1 / row_sum, rowsum(dO∘O) − d_lse
        float d_lse[MB];                  // gradients of the log-sum-exp
        double left[MB];                  // stick-breaking: of a row, before the keys so far
        double* left_after;               // backward: [key blocks][MB], of a row after the keys of a block
        double gained[MB];                // backward: Σ weight·dP of the keys so far, and of the remainder
        float remainder[MB], d_remainder[MB];  // of a row after all keys, and its gradient
        Own* own;                         // [own_count] of the tile
        i64 own_count;
        bool fully_masked[MB], one_hot[MB];  // rows that see no key; rows with all their weight on one key
    };

    // The operands of the products of a block of queries, and their targets outside of the worker's memory.
    struct BlockGradients {
        const float *d_out, *d_out_pairs;
        float *dk, *dv;  // the task's sums, or null
        bool wants_dq, one_tile;
    };

    // degree of the polynomial of exp; 4 suffices for weights that are rounded to bf16
    static constexpr int DEGREE = Packing::K_PACK == 1 ? 5 : 4;
    // weights below are 0 in the backward pass: products of subnormal numbers take twenty times as long
    static constexpr float NEGLIGIBLE = 0x1p-100f;
    static constexpr i64 DECODE_QUERIES = 4;  // up to this many queries, packing costs more than it saves

    const Call& c;
    Plan<T, Packing> plan;
    Terms<T, Packing> terms;
    Tasks<T, Packing> tasks;
    Reducer<T, Packing> reducer;
    Memory memory;
    Worker* workers = nullptr;
    bool decode = false;         // at most DECODE_QUERIES queries: scores are dot products with keys that are not packed
    bool split_k = false;        // decode, forward: keys are split among workers, with split_blocks blocks in each split
    i64 splits = 1, split_blocks = 1;
    float* split_results = nullptr;  // [batch·heads][splits][n][row_max, row_sum, output]
    bool prescaled_q = false;    // q is multiplied by its score_scale, not the scores
    bool deferred_scale = false;  // not prescaled_q, and nothing is added to the scores: exp_row multiplies them
    bool values = false;         // there are relative values
    bool bf16_output = false;    // the softmax writes weights as packed bf16, since nothing reads them as floats

    explicit Attention(const Call& call) : c(call), plan(call), terms(plan), tasks(plan), reducer(plan) {
        int exponent;
        bool power = frexp(c.scale, &exponent) == 0.5 && !terms.query_scale;
        prescaled_q = Packing::K_PACK == 1 || power;  // with bf16, a scale that is no power of two would be rounded together with q
        const bool bare = !terms.count && !terms.query_scale && !terms.capped && !terms.stick && !c.reduce.wanted;
        deferred_scale = !prescaled_q && bare && (float)c.scale > 0 && !c.backward;  // backward gained nothing
        values = terms.has_values();
        assign_work();
    }

    i64 run() {
        lay_out();
        if (!memory.allocate()) return -1;
        lay_out();
        const i64 item = sizeof(typename T::type);
        if (!c.backward) on_huge_pages(c.out, item, c.batch, c.heads, c.n, c.dv);
        on_huge_pages(c.dq, item, c.batch, c.heads, c.n, c.d);
        on_huge_pages(c.dk, item, c.batch, c.kv_heads, c.m, c.d);
        on_huge_pages(c.dv_, item, c.batch, c.kv_heads, c.m, c.dv);
        terms.set_up();
        reducer.set_up();
        if (!split_k) plan.check_relative_keys();
        run_stages();
        if (plan.must_hide_unseen()) {
            plan.hide_unseen();
            run_stages();
        }
        return 0;
    }

  private:
    void run_stages() {
        const i64 heads = c.batch * c.heads;
        hw_stage stages[5];
        i64 count = 0;
        auto add = [&](i64 items, hw_task task, void* context) {
            if (items) stages[count++] = {items, task, context, 0, 0};
        };
        if (!split_k && !plan.head_per_worker) add(plan.packs(), plan.pack_item, &plan);
        add(terms.preparations(), terms.prepare_item, &terms);
        if (split_k) {
            add(heads * splits, task<&Attention::forward_split>, this);
            add(heads, task<&Attention::combine_splits>, this);
        } else if (plan.head_per_worker) {
            add(c.batch * c.kv_heads, c.backward ? task<&Attention::backward_head> : task<&Attention::forward_head>, this);
        } else if (!c.backward) {
            if (c.reduce.one_pass)
                add(heads * reducer.chunks, task<&Attention::forward_task>, this);
            else
                add(heads * plan.blocks, task<&Attention::forward_block>, this);
        } else {
            add(tasks.items(), task<&Attention::backward_item>, this);
            add(plan.packs(), task<&Attention::reduce_keys>, this);
        }
        if (reducer.by_column) {
            if (!plan.head_per_worker) add(heads * reducer.chunks, task<&Attention::column_item>, this);
        }
        if (reducer.by_column || c.reduce.one_pass) add(heads, task<&Attention::reduce_columns>, this);
        if (c.backward) add(terms.reductions(), task<&Attention::reduce_terms>, this);
        hw_run(stages, count, plan.workers);
    }

    template <void (Attention::*DO)(i64 item, Worker& w)>
    static void task(void* self, i64 item, i64 worker) {
        Attention& a = *(Attention*)self;
        if (!a.plan.must_hide_unseen()) (a.*DO)(item, a.workers[worker]);
    }

    i64 number_of(const Worker& w) const { return &w - workers; }

    void reduce_keys(i64 item, Worker&) { tasks.reduce(item); }
    void reduce_columns(i64 item, Worker&) { reducer.reduce_head(item); }
    void reduce_terms(i64 item, Worker&) { terms.reduce(item, tasks.chunks); }

    // The number of splits depends on sizes only, so results have the same bits for any number of threads.
    void assign_work() {
        decode = c.n > 0 && c.n <= DECODE_QUERIES && !c.reduce.wanted;
        split_k = decode && !c.backward;
        const i64 heads = max(1, c.batch * c.heads);
        bf16_output = !c.backward && Packing::K_PACK > 1 && !decode && !values && !terms.stick && !c.drop_below && plan.dvp;
        split_blocks = max(2, (plan.key_blocks * heads + 63) / 64);
        if (terms.stick) split_blocks = max(1, plan.key_blocks);  // a row ends where nothing is left
        splits = max(1, (plan.key_blocks + split_blocks - 1) / split_blocks);
        if (split_k)
            plan.workers = hw_workers(c.threads, heads * splits);
        else
            plan.assign_work(tasks.heads_are_apart());
    }

    void lay_out() {
        if (!split_k) plan.lay_out(memory);
        if (split_k) split_results = memory.take<float>(c.batch * c.heads * splits * c.n * (plan.dvp + 2));
        terms.lay_out(memory, tasks.count);
        if (c.backward) tasks.lay_out(memory);
        reducer.lay_out(memory);
        Worker* found = memory.take<Worker>(plan.workers);
        const i64 rows = MB + SLACK, dp = plan.dp, dvp = plan.dvp, widest = max(dp, dvp);
        for (i64 i = 0; i < plan.workers; i++) {
            Worker spare, &w = found ? found[i] : spare;
            terms.lay_out(memory, w.terms);
            reducer.lay_out(memory, w.reductions);
            w.x = memory.take<float>(rows * widest);
            w.row = memory.take<float>(dp);
            w.q = memory.take<float>(rows * dp);
            w.score = take_tile();
            w.packed = Packing::K_PACK > 1 ? take_tile() : w.score;
            w.out = memory.take<float>(rows * widest);
            w.key_indices = memory.take<uint32_t>(LD);
            w.own = terms.stick ? memory.take<Own>(MB * NB) : nullptr;
            if (!c.backward) continue;
            w.d_score = take_tile();
            w.cap_slope = terms.capped ? take_tile() : nullptr;
            w.left_after = terms.stick ? memory.take<double>((plan.key_blocks + 2) * MB) : nullptr;
            w.row_pairs = take_tile();
            w.q_pairs = memory.take<float>(rows * dp);
            w.d_out_packed = memory.take<float>(rows * dvp);
            w.d_out_pairs = memory.take<float>(rows * dvp);
            w.d_out = memory.take<float>(rows * dvp);
        }
        workers = found;
        for (i64 i = 0; i < plan.workers && found && decode; i++) {  // reads whole vectors, beyond the last number
            memset(found[i].row, 0, (size_t)(dp * 4));
            memset(found[i].q, 0, (size_t)(rows * dp * 4));
        }
    }

    float* take_tile() {
        float* tile = memory.take<float>((MB + SLACK) * LD + 2 * W);
        return tile ? tile + W : nullptr;
    }

    // ------------------------------------------------------------ scores

    void load_score_scales(Worker& w, const Tile& t) const {
        for (i64 r = 0; r < t.rows; r++) {
            w.score_scale[r] = (float)c.scale;
            if (terms.query_scale) w.score_scale[r] *= *terms.query_scale->values.template at<float>(t.b, t.h, t.i0 + r);
        }
    }

    // Loads the queries of the block into w.x as floats; scaled: times score_scale; fully_masked: such rows are zeroed.
    void load_queries(Worker& w, const Tile& t, bool scaled, bool fully_masked) const {
        load_rows<T>(c.q, t.b, t.h, t.i0, t.rows, c.d, w.x, plan.dp, plan.dp);
        for (i64 r = 0; r < t.rows; r++) {
            float* row = w.x + r * plan.dp;
            if (fully_masked && w.fully_masked[r])
                memset(row, 0, (size_t)(plan.dp * 4));
            else if (scaled)
                for (i64 i = 0; i < plan.dp; i++) row[i] *= w.score_scale[r];
        }
    }

    // Narrows the tile to the columns that its queries see; false if there are none.
    bool visible_columns(Worker& w, Tile& t, i64 j0, Cover& seen) const {
        t.j0 = j0;
        if (!w.spans.reach(w.ranges, t, min(NB, c.m - j0))) return false;
        const i64 first = t.c0;
        seen = cover(c, w.ranges, t.b, t.h, t.i0, t.rows, j0 + first, t.c1 - first);
        if (seen == EMPTY) return false;
        t.c0 = first / NR * NR;
        w.spans.set(t, seen == FULL && t.c0 == first, Packing::K_PACK, c.backward);
        if (t.c0 < first) seen = PARTIAL;
        return true;
    }

    // Scores with terms and mask, except for a deferred bias. Columns outside a row's span are undefined.
    void scores(Worker& w, const Tile& t, Cover seen, i64 task) const {
        const Spans& s = w.spans;
        if (decode)
            decode_scores(w, t);
        else
            multiply<Packing>(s, t, plan.d_packed, w.q, plan.dp, t.packed->k_panels, w.score);
        if (!prescaled_q && !deferred_scale)
            for (i64 r = 0; r < t.rows; r++)
                for (i64 x = s.from[r]; x < s.to[r]; x += W)
                    store(w.score + r * LD + x, load(w.score + r * LD + x) * w.score_scale[r]);
        w.deferred_bias[0] = nullptr;
        terms.add(w.terms, t, w.score, w.score_scale, task, c.backward ? w.cap_slope : nullptr, w.deferred_bias);
        if (seen == PARTIAL) apply_mask(c, w.ranges, t.b, t.h, t.i0, t.rows, t.j0, s.from, s.to, w.score, LD);
        for (i64 r = 0; r < t.rows && seen == FULL; r++)
            for (i64 x = t.c1; x < s.to[r]; x++) w.score[r * LD + x] = -INFINITY;
    }

    // writes zeros to the row of a tile from column c0 to `end`, except in its span
    void clear_outside_span(const Worker& w, const Tile& t, i64 r, float* row, i64 end) const {
        if (w.spans.whole && end <= w.spans.to[r]) return;
        const i64 from = min(w.spans.from[r], end), to = max(w.spans.to[r], from);
        for (i64 x = t.c0; x < from; x += W) store(row + x, vf{});
        for (i64 x = to; x < end; x += W) store(row + x, vf{});
    }

    // ------------------------------------------------------------ dropout

    uint32_t head_hash(const Tile& t) const {
        const uint32_t row = hash32((uint32_t)(c.batch_offset + t.b));
        const uint32_t lane = hash32(row + (uint32_t)(c.head_offset + t.h));
        return hash32((uint32_t)c.seed + hash32((uint32_t)(c.seed >> 32) + lane));
    }

    void load_keys(Worker& w, const Tile& t, i64 end) const {
        for (i64 x = t.c0; x < end; x++)
            w.key_indices[x] = x < t.c1 ? (uint32_t)*c.k_index.template at<i64>(t.b, t.j0 + x) : 0;
    }

    // 0 for dropped weights, 1 / (1 − dropout) for the others
    vf dropout_factor(uint32_t row_hash, const uint32_t* keys) const {
        vu drawn = hash32(*(const vu_any*)keys + row_hash);
        return select((vi)(drawn >= (uint32_t)c.drop_below), broadcast((float)c.keep_scale), vf{});
    }

    // ------------------------------------------------------------ forward

    // all heads that share these keys
    void forward_head(i64 item, Worker& w) {
        plan.pack_head(item, number_of(w));
        const i64 blocks = c.reduce.one_pass ? 0 : plan.group * plan.blocks, tasks = c.reduce.one_pass ? plan.group * reducer.chunks : 0;
        for (i64 x = 0; x < blocks; x++) forward_block(item * blocks + x, w);
        for (i64 x = 0; x < tasks; x++) forward_task(item * tasks + x, w);
        const i64 tasks_of_group = reducer.by_column ? plan.group * reducer.chunks : 0;
        for (i64 x = 0; x < tasks_of_group; x++) column_item(item * tasks_of_group + x, w);
    }

    void forward_block(i64 item, Worker& w) {
        forward_block(w, item / plan.blocks, plan.blocks - 1 - item % plan.blocks);
    }

    // the blocks of queries of a head whose map is summed together
    void forward_task(i64 item, Worker& w) {
        reducer.begin_map(w.reductions, item);
        const i64 head = item / reducer.chunks;
        for (i64 number = item % reducer.chunks; number < plan.blocks; number += reducer.chunks) forward_block(w, head, number);
    }

    void forward_block(Worker& w, i64 head, i64 number) {
        const Tile t = block(w, head, number);
        start(w, t);
        loop_over_keys(w, t, 0, c.m);
        finish(w, t);
    }

    Tile block(const Worker& w, i64 head, i64 number) const {
        Tile t = {};
        t.b = head / c.heads, t.h = head % c.heads, t.i0 = number * MB, t.rows = min(MB, c.n - t.i0);
        if (!split_k) t.packed = plan.packed + (plan.head_per_worker ? number_of(w) : plan.head_of(t.b, t.h));
        return t;
    }

    void start(Worker& w, const Tile& t) const {
        row_ranges(c, t.b, t.i0, t.rows, w.ranges);
        load_score_scales(w, t);
        load_rows<T>(c.q, t.b, t.h, t.i0, t.rows, c.d, w.x, plan.dp, plan.dp);
        if (decode) memset(w.q, 0, (size_t)(t.rows * plan.dp * 4));
        for (i64 r = 0; r < t.rows; r++) {
            const float factor = prescaled_q ? w.score_scale[r] : 1;
            const i64 row = r * plan.dp;
            for (i64 i = 0; i < plan.dp; i += W) Packing::put(w.q + row, i, load(w.x + row + i) * factor);
            w.row_max[r] = -INFINITY, w.row_sum[r] = 0;
            // the output row is prefetched while the block is computed
            const char* out = (const char*)c.out.template at<typename T::type>(t.b, t.h, t.i0 + r);
            for (i64 i = 0; i < c.dv * (i64)sizeof(typename T::type); i += 64) __builtin_prefetch(out + i, 1);
        }
        memset(w.out, 0, (size_t)((MB + SLACK) * plan.dvp * 4));
        terms.begin(w.terms, t, w.score_scale, nullptr, nullptr);
        if (reducer.by_query) reducer.begin(w.reductions, t);
    }

    // adds the keys low … high − 1 (whole blocks, if keys are unpacked) to w.out, w.row_max and w.row_sum of a block of queries
    void loop_over_keys(Worker& w, Tile t, i64 low, i64 high) const {
        const i64 step = split_k ? NB : NR;
        low = max(low, w.ranges.low / step * step), high = min(high, w.ranges.high);
        for (i64 j0 = low; j0 < high && !terms.stick; j0 += NB) {
            Cover seen;
            if (!visible_columns(w, t, j0, seen)) continue;
            scores(w, t, seen, 0);
            online_softmax(w, t);
            add_output(w, t);
        }
        if (terms.stick) break_sticks(w, t, low, high);
        if (values) terms.finish_values(w.terms, t, w.out, plan.dvp);
    }

    // adds weights·v of a tile to w.out
    void add_output(Worker& w, const Tile& t) const {
        const i64 dvp = plan.dvp;
        if (c.drop_below) dropout(w, t);
        if (values) terms.add_values(w.terms, t, w.score, 0);
        if (split_k) return decode_output(w, t);
        if (!dvp) return;
        i64 keys = packed_k_of(t.c1 - t.c0, Packing::K_PACK), first = (t.j0 + t.c0) / Packing::K_PACK;
        const float* weights = bf16_output ? w.packed : pack_rows<Packing>(w.score + t.c0, LD, t.rows, keys, w.packed);
        const float* v = t.packed->v_rows + first * dvp;
        w.spans.template over_keys<Packing>(t.rows, dvp / W, keys, weights, v, dvp, w.out);
    }

    // Replaces the tile's scores by unnormalized weights, and rescales the output and row_sum so far to the new row_max.
    void online_softmax(Worker& w, const Tile& t) const {
        const bool reduces = reducer.by_query;
        if (reduces) reducer.begin_tile(w.reductions, t, round_up(t.c1, NR));
        for (i64 r = 0; r < t.rows; r++) {
            const float before = w.row_max[r];
            const float found = w.deferred_bias[0] ? attach_row_max<true>(w, t, r) : attach_row_max<false>(w, t, r);
            const float row_max = found > before ? found : before, base = row_max == -INFINITY ? 0 : row_max;
            const float factor = before == row_max ? 1 : expf(before - base);
            if (reduces) {
                reducer.scores(w.reductions, t, r, w.score + r * LD, w.spans.from[r], w.spans.to[r], found);
                if (factor != 1) reducer.rescale(w.reductions, r, before, row_max, factor, w.row_sum[r]);
            }
            if (reduces) reducer.template matches<DEGREE>(w.reductions, t, r, w.score + r * LD, w.spans.from[r], w.spans.to[r], base);
            const float sum = bf16_output ? exp_row_of<true>(w, t, r, base) : exp_row_of<false>(w, t, r, base);
            w.row_max[r] = row_max;
            w.row_sum[r] = w.row_sum[r] * factor + sum;
            if (reduces) reducer.weights(w.reductions, t, r, w.score + r * LD, w.spans.from[r], w.spans.to[r], sum);
            if (factor == 1) continue;
            float* out = w.out + r * plan.dvp;
            for (i64 i = 0; i < plan.dvp; i += W) store(out + i, load(out + i) * factor);
            if (values) terms.rescale_values(w.terms, r, factor);
        }
    }

    // adds the deferred bias to a row and returns its largest score, in one pass
    template <bool DEFERRED>
    float attach_row_max(Worker& w, const Tile& t, i64 r) const {
        float* score = w.score + r * LD;
        vf best = broadcast(-INFINITY);
        for (i64 x = w.spans.from[r]; x < w.spans.to[r]; x += W) {
            vf found = load(score + x);
            if (DEFERRED) store(score + x, found += load(w.deferred_bias[r] + x - t.c0));  // −∞ stays: a deferred bias is below +∞
            best = max_of(found, best);
        }
        const float found = reduce_max(best);
        return deferred_scale ? found * (float)c.scale : found;  // rounding keeps the order
    }

    // a vector of scores as the exponential takes them
    template <bool SCALED>
    vf scaled(const float* score) const {
        if constexpr (SCALED && Packing::K_PACK > 1)
            return Packing::product(load(score), (float)c.scale);
        else
            return load(score);
    }

    enum Reduces { NOTHING, ENTROPY, ENTROPY_AND_DISTANCE };  // together with the number of keys in sight

    template <bool BF16_OUTPUT>
    float exp_row_of(Worker& w, const Tile& t, i64 r, float base) const {
        if (deferred_scale) return exp_row<BF16_OUTPUT, NOTHING, Packing::K_PACK != 1>(w, t, r, base);
        if (!reducer.by_query) return exp_row<BF16_OUTPUT, NOTHING>(w, t, r, base);
        if (!reducer.r.distance.defined() || !w.reductions.close) return exp_row<BF16_OUTPUT, ENTROPY>(w, t, r, base);
        return exp_row<BF16_OUTPUT, ENTROPY_AND_DISTANCE>(w, t, r, base);
    }

    // replaces the row's scores by exp(score − base), or packs these for the next product; returns their sum
    template <bool BF16_OUTPUT, Reduces REDUCES, bool SCALED = false>
    float exp_row(Worker& w, const Tile& t, i64 r, float base) const {
        typename Reducer<T, Packing>::Worker& reduced = w.reductions;
        float* score = w.score + r * LD;
        float* packed = w.packed + r * LD;
        vf sums = {}, entropy = REDUCES != NOTHING ? reduced.entropy[r] : vf{};
        vf distance = REDUCES == ENTROPY_AND_DISTANCE ? reduced.distance[r] : vf{};
        vi visible = REDUCES != NOTHING ? reduced.visible[r] : vi{};
        const float own = REDUCES == ENTROPY_AND_DISTANCE ? reducer.own_from_base(reduced, r) : 0;
        const i64 from = w.spans.from[r], to = w.spans.to[r];
        const bool kept = !BF16_OUTPUT || (REDUCES != NOTHING && reduced.reads_weights);
        for (i64 x = from; x < to; x += W) {
            const vf found = scaled<SCALED>(score + x), below = found - base, weight = exp_of<DEGREE>(below);
            sums += weight;
            if (REDUCES != NOTHING) {
                visible -= (vi)(found != -INFINITY);
                entropy += weight * max_of(broadcast(Reducer<T, Packing>::FAR_BELOW), below);  // 0·−∞ is NaN
            }
            if (REDUCES == ENTROPY_AND_DISTANCE) {
                const vf apart = load(reduced.from_base + x) - own;
                distance += weight * (vf)((vi)apart & 0x7fffffff);
            }
            if (BF16_OUTPUT) Packing::put(packed, x - t.c0, weight);
            if (kept) store(score + x, weight);
        }
        if (REDUCES != NOTHING) reduced.entropy[r] = entropy, reduced.visible[r] = visible;
        if (REDUCES == ENTROPY_AND_DISTANCE) reduced.distance[r] = distance;
        if (w.spans.whole) return sum(sums);
        for (i64 x = t.c0; x < t.c1; x += W) {
            if (x >= from && x < to) continue;
            if (BF16_OUTPUT)
                Packing::put(packed, x - t.c0, vf{});
            else
                store(score + x, vf{});
        }
        return sum(sums);
    }

    void dropout(Worker& w, const Tile& t) const {
        const uint32_t key = head_hash(t);
        load_keys(w, t, round_up(t.c1, W));
        for (i64 r = 0; r < t.rows; r++) {
            const uint32_t row = hash32(key + (uint32_t)*c.q_index.template at<i64>(t.b, t.i0 + r));
            for (i64 x = t.c0; x < t.c1; x += W) {
                float* weight = w.score + r * LD + x;
                store(weight, load(weight) * dropout_factor(row, w.key_indices + x));
            }
        }
    }

    void finish(Worker& w, const Tile& t) const {
        for (i64 r = 0; r < t.rows; r++) {
            float* out = w.out + r * plan.dvp;
            float row_max = w.row_max[r], row_sum = w.row_sum[r], factor = 1;
            const bool nothing = row_sum == 0;  // the query sees no key, whatever the sink is
            if (terms.sink) {
                const float sink = *terms.sink->values.template at<float>(t.b, t.h, t.i0 + r);
                const float base = row_max > sink ? row_max : sink;  // the sink also if it is NaN
                if (base != -INFINITY) {
                    factor = row_max == base ? 1 : expf(row_max - base);
                    row_sum = row_sum * factor + expf(sink - base);
                    row_max = base;
                }
            }
            if (nothing) memset(out, 0, (size_t)(plan.dvp * 4));
            store_row<T>(c.out, t.b, t.h, t.i0 + r, c.dv, out, nothing ? 1 : factor / row_sum);
            if (c.row_max.defined()) *c.row_max.template at<float>(t.b, t.h, t.i0 + r) = row_max;
            if (c.row_sum.defined()) *c.row_sum.template at<float>(t.b, t.h, t.i0 + r) = row_sum;
            if (reducer.by_query) reducer.template finish<DEGREE>(w.reductions, t, r, w.row_max[r], w.row_sum[r], row_max, row_sum);
        }
    }

    // ------------------------------------------------------------ stick-breaking

    // Visits the tiles of a block of queries from the last keys to the first, with their scores, while anything is left
    // of a row. visit(): sets what is left before the tile.
    template <class Visit>
    void from_last_key(Worker& w, Tile& t, i64 low, i64 high, i64 task, Visit visit) const {
        for (i64 r = 0; r < t.rows; r++) w.left[r] = 1;
        for (i64 j0 = low + (high - 1 - low) / NB * NB; j0 >= low && low < high; j0 -= NB) {
            bool left = false;
            for (i64 r = 0; r < t.rows; r++) left |= w.left[r] != 0;
            if (!left) return;
            Cover seen;
            if (!visible_columns(w, t, j0, seen)) continue;
            scores(w, t, seen, task);
            find_own(w, t);
            visit();
        }
    }

    // Lists the pairs of a query and its own token that the mask allows, and hides them if the token takes no share.
    void find_own(Worker& w, const Tile& t) const {
        w.own_count = 0;
        if (terms.stick->attend_current && !terms.stick->remainder) return;
        i64 low = INT64_MAX, high = INT64_MIN;
        for (i64 x = t.c0; x < t.c1; x++) {
            const i64 index = *c.k_index.template at<i64>(t.b, t.j0 + x);
            low = min(low, index), high = max(high, index);
        }
        for (i64 r = 0; r < t.rows; r++) {
            const i64 index = *c.q_index.template at<i64>(t.b, t.i0 + r);
            if (index < low || index > high) continue;
            for (i64 x = max(t.c0, w.spans.from[r]); x < min(t.c1, w.spans.to[r]); x++) {
                float& score = w.score[r * LD + x];
                if (*c.k_index.template at<i64>(t.b, t.j0 + x) != index) continue;
                // a bias of −∞ does not hide a key, which may still get the remainder
                if (score == -INFINITY && !sees(c, w.ranges, r, t.b, t.h, t.i0 + r, t.j0 + x)) continue;
                w.own[w.own_count++] = {(uint8_t)r, (uint8_t)x};
                w.row_max[r] = 0, w.row_sum[r] = 1;
                if (!terms.stick->attend_current) score = -INFINITY;
            }
        }
    }

    void break_sticks(Worker& w, Tile& t, i64 low, i64 high) const {
        if (terms.stick->remainder) {  // first, since the query's own token has it, which is the last
            from_last_key(w, t, low, high, 0, [&] { break_tile(w, t, [](i64, i64, vf) {}); });
            for (i64 r = 0; r < t.rows; r++) w.remainder[r] = (float)w.left[r];
        }
        from_last_key(w, t, low, high, 0, [&] {
            for (i64 r = 0; r < t.rows; r++)
                if (sees_any_score(w, r)) w.row_max[r] = 0, w.row_sum[r] = 1;  // there are none of stick-breaking
            break_tile(w, t, [&](i64 r, i64 x, vf weights) { store(w.score + r * LD + x, weights); });
            for (i64 r = 0; r < t.rows; r++) clear_outside_span(w, t, r, w.score + r * LD, t.c1);
            if (terms.stick->remainder)
                for (i64 i = 0; i < w.own_count; i++) w.score[w.own[i].row * LD + w.own[i].column] += w.remainder[w.own[i].row];
            add_output(w, t);
        });
    }

    bool sees_any_score(const Worker& w, i64 r) const {
        for (i64 x = w.spans.from[r]; x < w.spans.to[r]; x++)
            if (w.score[r * LD + x] != -INFINITY) return true;
        return false;
    }

    // visit(r, x, weights): of the keys x … x + W − 1 of a row
    template <class Visit>
    void break_tile(Worker& w, const Tile& t, Visit visit) const {
        for (i64 r = 0; r < t.rows; r++)
            w.left[r] = break_row(w.score + r * LD, w.spans.from[r], w.spans.to[r], w.left[r],
                                  [&](i64 x, Share, vf weights) { visit(r, x, weights); });
    }

    // Finds what is left after the keys of each block, and returns the first block that has weights.
    //
    // The gradient of a score sums over the keys before it, from the first to the last, and weights are products in the
    // other direction; the gradient of the remainder reaches all scores.
    i64 find_left_after(Worker& w, Tile& t, const BlockGradients& block, i64 low, i64 task) const {
        i64 first = w.ranges.high;
        memset(w.d_remainder, 0, sizeof w.d_remainder);
        from_last_key(w, t, low, w.ranges.high, task, [&] {
            memcpy(left_after(w, t), w.left, sizeof w.left);
            first = t.j0;
            break_tile(w, t, [](i64, i64, vf) {});
            if (!terms.stick->remainder || !w.own_count) return;
            multiply<Packing>(w.spans, t, plan.dv_packed, block.d_out, plan.dvp, t.packed->v_panels, w.d_score);
            if (values) terms.add_value_products(w.terms, t, w.d_score, task);
            if (c.drop_below) load_keys(w, t, round_up(t.c1, W));
            for (i64 i = 0; i < w.own_count; i++) {
                const i64 r = w.own[i].row, x = w.own[i].column;
                w.d_remainder[r] += w.d_score[r * LD + x] * own_dropout_factor(w, t, w.own[i]);
            }
        });
        for (i64 r = 0; r < t.rows; r++) {
            w.remainder[r] = terms.stick->remainder ? (float)w.left[r] : 0;
            w.gained[r] = w.remainder[r] * w.d_remainder[r];
        }
        return first;
    }

    double* left_after(const Worker& w, const Tile& t) const { return w.left_after + (t.j0 / NB) * MB; }

    float own_dropout_factor(const Worker& w, const Tile& t, Own own) const {
        if (!c.drop_below) return 1;
        const uint32_t row = hash32(head_hash(t) + (uint32_t)*c.q_index.template at<i64>(t.b, t.i0 + own.row));
        return dropout_factor(row, w.key_indices + own.column)[0];
    }

    // Replaces scores by weights A, and dP by dS = A∘dP∘(1 − σ(S)) − σ(S)∘Σ A∘dP, a sum over the keys before and the
    // remainder.
    void stick_backward(Worker& w, const Tile& t, i64 end) const {
        const uint32_t key = c.drop_below ? head_hash(t) : 0;
        const double* left = left_after(w, t);
        float taken[LD], kept[LD];
        find_own(w, t);
        if (c.drop_below) load_keys(w, t, end);
        for (i64 r = 0; r < t.rows; r++) {
            float *score = w.score + r * LD, *grad = w.d_score + r * LD;
            const i64 from = w.spans.from[r], to = w.spans.to[r];
            const uint32_t row = c.drop_below ? hash32(key + (uint32_t)*c.q_index.template at<i64>(t.b, t.i0 + r)) : 0;
            break_row(score, from, to, left[r], [&](i64 x, Share share, vf weights) {
                store(taken + x, share.taken), store(kept + x, share.left);
                store(score + x, weights);
            });
            for (i64 x = from; x < to; x += W) {
                vf weight = load(score + x), d_weight = load(grad + x);
                if (c.drop_below) {
                    const vf keep = dropout_factor(row, w.key_indices + x);
                    d_weight *= keep;
                    store(score + x, weight * keep);
                }
                const vf gain = weight * d_weight, gains = prefix_sums(gain);
                const vf before = shift_up<1>(gains, vf{}) + (float)w.gained[r];
                store(grad + x, gain * load(kept + x) - load(taken + x) * before);
                w.gained[r] += gains[W - 1];
            }
            finish_score_gradients(w, t, r, end);
        }
        for (i64 i = 0; i < w.own_count && terms.stick->remainder; i++)
            w.score[w.own[i].row * LD + w.own[i].column] += w.remainder[w.own[i].row] * own_dropout_factor(w, t, w.own[i]);
    }

    // ------------------------------------------------------------ reductions over queries, from row_max and row_sum

    void column_item(i64 item, Worker& w) {
        reducer.begin_task(item);
        const i64 head = item / reducer.chunks;
        for (i64 number = item % reducer.chunks; number < plan.blocks; number += reducer.chunks) {
            Tile t = block(w, head, number);
            start(w, t);
            for (i64 r = 0; r < t.rows; r++) {
                const float row_sum = *c.row_sum.template at<float>(t.b, t.h, t.i0 + r);
                w.row_max[r] = row_sum == 0 ? 0 : *c.row_max.template at<float>(t.b, t.h, t.i0 + r);
                w.inv_row_sum[r] = row_sum == 0 ? 0 : 1 / row_sum;
            }
            for (i64 j0 = w.ranges.low / NR * NR; j0 < w.ranges.high; j0 += NB) {
                Cover seen;
                if (!visible_columns(w, t, j0, seen)) continue;
                scores(w, t, seen, 0);
                reducer.add_tile(w.reductions, t, round_up(t.c1, NR), item, w.spans.from, w.spans.to, [&](i64 r, i64 x) {
                    vf score = load(w.score + r * LD + x);
                    if (w.deferred_bias[0]) score += load(w.deferred_bias[r] + x - t.c0);
                    return exp_of<DEGREE>(score - w.row_max[r]) * w.inv_row_sum[r];
                });
            }
        }
    }

    // ------------------------------------------------------------ decode: nothing is packed, keys are split

    void forward_split(i64 item, Worker& w) {
        // heads that share keys are computed one after another, while these keys are in cache
        const i64 shared = item / plan.group, number = shared % splits;
        const i64 head = shared / splits * plan.group + item % plan.group, first = number * split_blocks * NB;
        const Tile t = block(w, head, 0);
        start(w, t);
        loop_over_keys(w, t, first, min(c.m, first + split_blocks * NB));
        for (i64 r = 0; r < t.rows; r++) {
            float* to = split_result(head, number, r);
            to[0] = w.row_max[r], to[1] = w.row_sum[r];
            memcpy(to + 2, w.out + r * plan.dvp, (size_t)(plan.dvp * 4));
        }
    }

    float* split_result(i64 head, i64 number, i64 row) const {
        return split_results + ((head * splits + number) * c.n + row) * (plan.dvp + 2);
    }

    // merges the splits of a head, in order
    void combine_splits(i64 item, Worker& w) {
        const Tile t = block(w, item, 0);
        for (i64 r = 0; r < t.rows; r++) {
            float row_max = -INFINITY, row_sum = 0, *out = w.out + r * plan.dvp;
            for (i64 p = 0; p < splits; p++) {
                const float found = split_result(item, p, r)[0];
                row_max = found > row_max ? found : row_max;
            }
            memset(out, 0, (size_t)(plan.dvp * 4));
            for (i64 p = 0; p < splits; p++) {
                const float* from = split_result(item, p, r);
                if (from[1] == 0) continue;
                const float factor = from[0] == row_max ? 1 : expf(from[0] - row_max);
                row_sum += from[1] * factor;
                add_scaled(out, from + 2, factor, plan.dvp);
            }
            w.row_max[r] = row_max, w.row_sum[r] = row_sum;
        }
        finish(w, t);
    }

    // Computes q·kᵀ of a tile; each key is read once, unpacked. Both passes use it: the backward pass divides its weights by
    // the forward pass's sum, so large scores must be summed in the same order.
    void decode_scores(Worker& w, const Tile& t) const {
        switch (t.rows) {
            case 1: return decode_scores<1>(w, t);
            case 2: return decode_scores<2>(w, t);
            case 3: return decode_scores<3>(w, t);
            default: return decode_scores<DECODE_QUERIES>(w, t);
        }
    }

    template <int ROWS>
    void decode_scores(Worker& w, const Tile& t) const {
        typedef typename T::type type;
        const i64 h = t.h / plan.group, step = W * Packing::K_PACK;
        const bool in_place = c.k.stride[3] == 1 && c.d % step == 0;
        memset(w.row, 0, (size_t)(plan.dp * 4));  // whole vectors are read, which packed numbers may fill in part
        for (i64 x = t.c0; x < t.c1; x++) {
            if (in_place) {
                const type* key = c.k.template at<type>(t.b, h, t.j0 + x);
                decode_key<ROWS>(w, x, [&](i64 i) { return load_packed(key + i * Packing::K_PACK); });
            } else {
                load_rows<T>(c.k, t.b, h, t.j0 + x, 1, c.d, w.x, plan.dp, plan.dp);
                const float* key = pack_rows<Packing>(w.x, plan.dp, 1, plan.d_packed, w.row);
                decode_key<ROWS>(w, x, [&](i64 i) { return load(key + i); });
            }
        }
    }

    // the scores of one key; key(i): the lanes i … i + W − 1 of it
    template <int ROWS, class Key>
    void decode_key(Worker& w, i64 x, Key key) const {
        const float* q = w.q;
        const i64 dp = plan.dp, packed = plan.d_packed;
        vf sums[ROWS] = {};
        for (i64 i = 0; i < packed; i += W) {
            const vf lanes = key(i);
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; r++) sums[r] = Packing::madd(sums[r], load(q + r * dp + i), lanes);
        }
        float* score = w.score + x;
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) score[r * LD] = sum(sums[r]);
    }

    // W lanes of numbers that are neighbours in memory: pairs as they lie, others as floats
    static vf load_packed(const typename T::type* p) {
        if constexpr (Packing::K_PACK > 1)
            return load((const float*)p);
        else
            return load_as_floats<T>(p);
    }

    // adds weights·v of a tile; each value is read once, unpacked, and not at all if its weights are 0
    void decode_output(Worker& w, const Tile& t) const {
        typedef typename T::type type;
        const i64 h = t.h / plan.group, dvp = plan.dvp;
        const i64 far = c.v.stride[2];
        const bool in_place = c.v.stride[3] == 1 && c.dv % W == 0;
        for (i64 r = 0; r < t.rows; r++) {
            const float* weight = w.score + r * LD;
            float* out = w.out + r * dvp;
            if (!in_place) {
                for (i64 x = t.c0; x < t.c1; x++) {
                    if (weight[x] == 0) continue;
                    load_rows<T>(c.v, t.b, h, t.j0 + x, 1, c.dv, w.x, dvp, dvp);
                    add_scaled(out, w.x, weight[x], dvp);
                }
                continue;
            }
            in_vector_groups(dvp / W, [&](auto count, i64 i) {
                vf sums[count] = {};
                const type* value = c.v.template at<type>(t.b, h, t.j0 + t.c0, i);
                for (i64 x = t.c0; x < t.c1; x++, value += far) {
                    if (weight[x] == 0) continue;
                    const vf factor = broadcast(weight[x]);
                    for (i64 v = 0; v < count; v++) sums[v] += load_as_floats<T>(value + v * W) * factor;
                }
                for (i64 v = 0; v < count; v++) add_to(out + i + v * W, (const float*)&sums[v], W);
            });
        }
    }

    // ------------------------------------------------------------ backward

    void backward_head(i64 item, Worker& w) {
        plan.pack_head(item, number_of(w));
        for (i64 x = 0; x < plan.group * tasks.chunks; x++) backward_item(item * plan.group * tasks.chunks + x, w);
        for (i64 block = 0; block < plan.key_blocks; block++) tasks.reduce(item * plan.key_blocks + block);
    }

    void backward_item(i64 item, Worker& w) {
        tasks.for_each(item, [&](i64 b, i64 h, i64 chunk) { backward_task(w, b, h, chunk); });
    }

    void backward_task(Worker& w, i64 b, i64 h, i64 chunk) const {
        const i64 task = tasks.number(b, h, chunk);
        tasks.begin(task);
        terms.begin_task(task);
        tasks.blocks(chunk, [&](i64 number) { backward(w, block(w, b * c.heads + h, number), task); });
    }

    void backward(Worker& w, Tile t, i64 task) const {
        const BlockGradients block = start_backward(w, t, task);
        i64 low = w.ranges.low / NR * NR;
        if (terms.stick) low = find_left_after(w, t, block, low, task);
        for (i64 j0 = low; j0 < w.ranges.high; j0 += NB) {
            Cover seen;
            if (visible_columns(w, t, j0, seen)) tile_backward(w, t, seen, block, task);
        }
        finish_backward(w, t, task);
    }

    BlockGradients start_backward(Worker& w, const Tile& t, i64 task) const {
        const i64 dp = plan.dp, dvp = plan.dvp;
        row_ranges(c, t.b, t.i0, t.rows, w.ranges);
        load_score_scales(w, t);
        load_gradients(w, t);
        find_fully_masked(w, t);
        load_queries(w, t, true, true);
        const float* q_pairs = pack_row_pairs<Packing>(w.x, dp, t.rows, dp, w.q_pairs, dp);
        if (q_pairs != w.q_pairs) memcpy(w.q_pairs, q_pairs, (size_t)(t.rows * dp * 4));
        if (!prescaled_q) load_queries(w, t, false, true);
        const float* q = pack_rows<Packing>(w.x, dp, t.rows, plan.d_packed, w.q);
        if (q != w.q) memcpy(w.q, q, (size_t)(t.rows * dp * 4));
        memset(w.out, 0, (size_t)((MB + SLACK) * dp * 4));
        memset(w.d_query_scale, 0, sizeof w.d_query_scale);
        terms.begin(w.terms, t, w.score_scale, w.d_out, w.fully_masked);
        return {pack_rows<Packing>(w.d_out, dvp, t.rows, plan.dv_packed, w.d_out_packed),
                pack_row_pairs<Packing>(w.d_out, dvp, t.rows, dvp, w.d_out_pairs, dvp),
                tasks.dk ? tasks.dk + task * plan.mp * dp : nullptr,
                tasks.dv ? tasks.dv + task * plan.mp * dvp : nullptr,
                c.dq.defined() || terms.wants_d_query_scale,
                !c.partial_keys && w.ranges.high - w.ranges.low / NR * NR <= NB};
    }

    // the five products: S = Q·Kᵀ, dP = dO·Vᵀ, dV += Pᵀ·dO, dQ += dS·K, dK += dSᵀ·Q
    void tile_backward(Worker& w, const Tile& t, Cover seen, const BlockGradients& block, i64 task) const {
        const i64 dp = plan.dp, dvp = plan.dvp, row_pairs = packed_k_of(t.rows, Packing::K_PACK);
        const i64 end = round_up(t.c1, NR), keys = end - t.c0, packed_keys = packed_k_of(keys, Packing::K_PACK);
        const i64 first = t.j0 + t.c0;
        scores(w, t, seen, task);
        multiply<Packing>(w.spans, t, plan.dv_packed, block.d_out, dvp, t.packed->v_panels, w.d_score);
        if (values) terms.add_value_products(w.terms, t, w.d_score, task);
        if (terms.stick)
            stick_backward(w, t, end);
        else
            softmax_backward(w, t, end, block.one_tile);
        tasks.touch(task, first, t.j0 + end);
        if (block.dv) {
            const float* weights = pack_row_pairs<Packing>(w.score + t.c0, LD, t.rows, keys, w.row_pairs, LD);
            float* dv = block.dv + first * dvp;
            w.spans.template over_queries<Packing>(keys, dvp / W, row_pairs, weights, block.d_out_pairs, dvp, dv);
        }
        if (values) terms.relative_values_backward(w.terms, t, w.score, task);
        terms.backward(w.terms, t, w.d_score, w.score_scale, w.d_query_scale, block.dk, task);
        if (block.wants_dq) {
            const float* grads = pack_rows<Packing>(w.d_score + t.c0, LD, t.rows, packed_keys, w.packed);
            const float* k = t.packed->k_rows + first / Packing::K_PACK * dp;
            w.spans.template over_keys<Packing>(t.rows, dp / W, packed_keys, grads, k, dp, w.out);
        }
        if (block.dk) {
            const float* grads = pack_row_pairs<Packing>(w.d_score + t.c0, LD, t.rows, keys, w.row_pairs, LD);
            float* dk = block.dk + first * dp;
            w.spans.template over_queries<Packing>(keys, dp / W, row_pairs, grads, w.q_pairs, dp, dk);
        }
    }

    void finish_backward(Worker& w, const Tile& t, i64 task) const {
        const i64 dp = plan.dp;
        if (terms.wants_d_query_scale) {
            load_queries(w, t, false, true);
            for (i64 r = 0; r < t.rows; r++) w.d_query_scale[r] += (float)c.scale * dot(w.x + r * dp, w.out + r * dp, dp);
        }
        terms.finish(w.terms, t, w.out, dp, w.score_scale, w.d_query_scale, w.fully_masked, task);
        for (i64 r = 0; r < t.rows; r++) {
            if (terms.wants_d_query_scale)
                *terms.query_scale->values_grad.template at<float>(t.b, t.h, t.i0 + r) = w.d_query_scale[r];
            if (!c.dq.defined()) continue;
            for (i64 i = 0; i < dp; i++) w.out[r * dp + i] *= w.score_scale[r];
            store_row<T>(c.dq, t.b, t.h, t.i0 + r, c.d, w.out + r * dp);
        }
    }

    // Loads dO, row_max and 1 / row_sum; computes delta = rowsum(dO∘O) − d_lse and the gradients of sinks.
    void load_gradients(Worker& w, const Tile& t) const {
        const i64 dvp = plan.dvp;
        if (c.d_out.dtype == FLOAT32)
            load_rows<F32>(c.d_out, t.b, t.h, t.i0, t.rows, c.dv, w.d_out, dvp, dvp);
        else
            load_rows<T>(c.d_out, t.b, t.h, t.i0, t.rows, c.dv, w.d_out, dvp, dvp);
        load_rows<T>(c.out, t.b, t.h, t.i0, t.rows, c.dv, w.x, dvp, dvp);
        for (i64 r = 0; r < t.rows; r++) {
            const float row_sum = *c.row_sum.template at<float>(t.b, t.h, t.i0 + r);
            w.row_max[r] = row_sum == 0 ? 0 : *c.row_max.template at<float>(t.b, t.h, t.i0 + r);
            w.inv_row_sum[r] = row_sum == 0 ? 0 : 1 / row_sum;
            if (row_sum == 0) memset(w.d_out + r * dvp, 0, (size_t)(dvp * 4));
            w.delta[r] = dot(w.d_out + r * dvp, w.x + r * dvp, dvp);
            w.d_lse[r] = c.d_lse.defined() && row_sum != 0 ? *c.d_lse.template at<float>(t.b, t.h, t.i0 + r) : 0;
            w.delta[r] -= w.d_lse[r];
            w.one_hot[r] = row_sum == exp_of<DEGREE>(vf{})[0];
            if (terms.sink && terms.sink->values_grad.defined()) {
                const float sink = *terms.sink->values.template at<float>(t.b, t.h, t.i0 + r);
                const float sink_weight = expf(sink - w.row_max[r]) * w.inv_row_sum[r];
                *terms.sink->values_grad.template at<float>(t.b, t.h, t.i0 + r) = -sink_weight * w.delta[r];
            }
            // all scores are −∞ beside a sink that is NaN: forward has written zeros, and no key has a gradient
            if (row_sum != row_sum && !has_nan(w.x + r * dvp, c.dv)) w.inv_row_sum[r] = 0;
        }
    }

    static bool has_nan(const float* x, i64 count) {
        for (i64 i = 0; i < count; i++)
            if (x[i] != x[i]) return true;
        return false;
    }

    // row_sum does not show which rows see no key if it includes further keys, or may be that of the sink only (1 or NaN).
    void find_fully_masked(Worker& w, const Tile& t) const {
        for (i64 r = 0; r < t.rows; r++) {
            const bool ask = c.partial_keys || (terms.sink && !(w.inv_row_sum[r] < 1));
            w.fully_masked[r] = w.inv_row_sum[r] == 0 || (ask && !sees_any(c, w.ranges, r, t.b, t.h, t.i0 + r));
            if (!w.fully_masked[r]) continue;
            w.score_scale[r] = w.row_max[r] = w.inv_row_sum[r] = w.delta[r] = w.d_lse[r] = 0;
            memset(w.d_out + r * plan.dvp, 0, (size_t)(plan.dvp * 4));
        }
    }

    // Replaces scores by P = exp(S − row_max) / row_sum, and dP by dS = P∘(dP − delta), with zeros around the spans.
    //
    // one_tile: the tile holds all keys of these queries. Then delta is summed from the same products P∘dP that it is
    // subtracted from, so that a row's gradients cancel exactly; rowsum(dO∘O) is rounded differently.
    void softmax_backward(Worker& w, const Tile& t, i64 end, bool one_tile) const {
        const uint32_t key = c.drop_below ? head_hash(t) : 0;
        if (c.drop_below) load_keys(w, t, end);
        for (i64 r = 0; r < t.rows; r++) {
            float *score = w.score + r * LD, *grad = w.d_score + r * LD;
            const float row_max = w.row_max[r], inv_row_sum = w.inv_row_sum[r];
            float delta = w.delta[r];
            const i64 from = w.spans.from[r], to = w.spans.to[r];
            if (w.deferred_bias[0])
                for (i64 x = from; x < to; x += W) store(score + x, load(score + x) + load(w.deferred_bias[r] + x - t.c0));
            const uint32_t row = c.drop_below ? hash32(key + (uint32_t)*c.q_index.template at<i64>(t.b, t.i0 + r)) : 0;
            for (i64 x = from; x < to; x += W) {
                const vf weight = exp_of<DEGREE>(load(score + x) - row_max) * inv_row_sum;
                store(score + x, select((vi)(weight < NEGLIGIBLE), vf{}, weight));
            }
            if (one_tile) {
                vf sums = {};
                for (i64 x = from; x < to; x += W) {
                    const vf d_weight = c.drop_below ? load(grad + x) * dropout_factor(row, w.key_indices + x) : load(grad + x);
                    sums += load(score + x) * d_weight;
                }
                delta = sum(sums) - w.d_lse[r];
            }
            if (c.drop_below) {
                for (i64 x = from; x < to; x += W) {
                    vf weight = load(score + x), keep = dropout_factor(row, w.key_indices + x);
                    store(score + x, weight * keep);
                    store(grad + x, weight * (load(grad + x) * keep - delta));
                }
            } else {
                for (i64 x = from; x < to; x += W) store(grad + x, load(score + x) * (load(grad + x) - delta));
            }
            if (w.one_hot[r])  // dS is exactly d_lse or 0, which a difference of rounded products would not be
                for (i64 x = from; x < to; x += W)
                    store(grad + x, select((vi)(load(score + x) > 0.5f), broadcast(w.d_lse[r]), load(grad + x)));
            finish_score_gradients(w, t, r, end);
        }
    }

    // multiplies the gradients of a row's scores by the slope of soft caps, with zeros around its span
    void finish_score_gradients(Worker& w, const Tile& t, i64 r, i64 end) const {
        float* grad = w.d_score + r * LD;
        const i64 from = w.spans.from[r], to = w.spans.to[r];
        if (w.cap_slope)
            for (i64 x = from; x < to; x += W) {  // the slope of a masked score may be NaN
                vf found = load(grad + x);
                store(grad + x, select((vi)(found == 0), vf{}, found * load(w.cap_slope + r * LD + x)));
            }
        store(grad + t.c0 - W, vf{});
        for (i64 x = t.c1; x < to; x++) grad[x] = 0;
        clear_outside_span(w, t, r, w.score + r * LD, end);
        clear_outside_span(w, t, r, grad, end);
        store(grad + end, vf{});
    }
};

}  // namespace
