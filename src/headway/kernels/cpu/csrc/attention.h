// Attention over blocks of queries and blocks of keys: what a call needs, its stages, and the memory of its workers.
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

enum Reduces { NOTHING, ENTROPY, ENTROPY_AND_DISTANCE };  // together with the number of keys in sight

template <class T, class Packing>
struct Attention {
    // The operands of the products of a block of queries, and their targets outside of the worker's memory.
    struct BlockGradients {
        const float *d_out, *d_out_pairs;
        i64 slot;        // of the task's sums
        float *dk, *dv;  // these, or null
        bool wants_dq, one_tile;
    };

    struct Worker {
        RowRanges* ranges;                // of the block, which heads that are computed together share
        Spans* spans;                     // of the tile, likewise
        typename Terms<T, Packing>::Worker terms;
        typename Reducer<T, Packing>::Worker reductions;
        float *x, *row;                   // [MB + SLACK][widest]: rows as floats; [DECODE_KEYS][dp]: packed rows
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
        double scanned[MB];               // of a row, from the last key on: what sticks leave, or how many gates there are
        double* scanned_after;            // [key blocks][MB], of a row after the keys of a block
        bool knows_scanned;               // but for sticks: whether these are there
        double gained[MB];                // backward: a sum over the keys so far, of gradients of what was scanned
        float remainder[MB], d_remainder[MB];  // of a row after all keys, and its gradient
        Own* own;                         // [own_count] of the tile
        i64 own_count;
        bool fully_masked[MB], one_hot[MB];  // rows that see no key; rows with all their weight on one key
        Tile tile;                        // forward: of the head that is computed
        Cover seen;
        // if a network reads the scores of all heads:
        HeadNetwork::Worker network;      // of the first head
        float* bias;                      // a tile: what the network reads beside the scores; then its gradients
        BlockGradients gradients;
    };

    // degree of the polynomial of exp; 4 suffices for weights that are rounded to bf16
    static constexpr int DEGREE = Packing::K_PACK == 1 ? 5 : 4;
    // weights below are 0 in the backward pass: products of subnormal numbers take twenty times as long
    static constexpr float NEGLIGIBLE = 0x1p-100f;
    static constexpr i64 DECODE_QUERIES = 4;  // up to this many queries, packing costs more than it saves
    static constexpr i64 PREFETCHED = (i64)8 << 20;  // bytes from which on keys and values are requested ahead
    static constexpr i64 AHEAD = (i64)16 << 10;      // by so many bytes, unless those of a tile take at most
    static constexpr i64 ALTERNATING = (i64)24 << 10;
    // rows and keys whose products are computed at once, and the sums of values that fit into registers beside them
    static constexpr int DECODE_ROWS = REGISTERS / 8, DECODE_KEYS = 4, DECODE_SUMS = REGISTERS / 2;

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
    bool prefetches = false;     // decode, forward: requests keys and values ahead
    bool alternates = false;     // requests the values of a tile while its keys are multiplied, then the next keys
    i64 heads_in_item = 1;       // heads that share keys and are computed together, so that each key is read once
    float* split_results = nullptr;  // [batch·heads][splits][n][row_max, row_sum, output]
    bool prescaled_q = false;    // q is multiplied by its score_scale, not the scores
    bool deferred_scale = false;  // not prescaled_q, and nothing is added to the scores: exp_row multiplies them
    bool values = false;         // there are relative values
    bool bf16_output = false;    // the softmax writes weights as packed bf16, since nothing reads them as floats

    explicit Attention(const Call& call) : c(call), plan(call), terms(plan), tasks(plan), reducer(plan) {
        int exponent;
        bool power = frexp(c.scale, &exponent) == 0.5 && !terms.query_scale;
        prescaled_q = Packing::K_PACK == 1 || power;  // with bf16, a scale that is no power of two would be rounded together with q
        const bool bare = !terms.count && !terms.query_scale && !terms.capped && !terms.scans() && !c.reduce.wanted;
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
        if (!split_k && !plan.for_each_worker()) add(plan.packs(), plan.pack_item, &plan);
        add(terms.preparations(), terms.prepare_item, &terms);
        if (split_k) {
            add(decode_items(), task<&Attention::forward_split>, this);
            add(heads, task<&Attention::combine_splits>, this);
        } else if (terms.network.t) {
            if (!c.backward) add(c.batch * plan.blocks, task<&Attention::forward_heads>, this);
            if (c.backward) add(tasks.items(), task<&Attention::backward_heads>, this);
            if (c.backward) add(plan.packs(), task<&Attention::reduce_keys>, this);
        } else if (plan.packs_tiles) {
            add(c.batch * c.kv_heads, task<&Attention::forward_tiles>, this);
        } else if (c.backward && plan.by_segment) {
            add(c.batch * c.kv_heads * tasks.chunks, task<&Attention::backward_segments>, this);
        } else if (plan.by_segment) {
            add(plan.segment_items(), task<&Attention::forward_segment>, this);
        } else if (c.backward && tasks.in_turn) {
            add(c.batch * c.kv_heads, task<&Attention::backward_head>, this);
        } else if (plan.head_per_worker) {
            add(c.batch * c.kv_heads, task<&Attention::forward_head>, this);
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
        if (!a.plan.must_hide_unseen()) (a.*DO)(item, a.workers[worker * a.heads_in_item]);
    }

    i64 number_of(const Worker& w) const { return (&w - workers) / heads_in_item; }

    void reduce_keys(i64 item, Worker&) { tasks.reduce(item); }
    void reduce_columns(i64 item, Worker&) { reducer.reduce_head(item); }
    void reduce_terms(i64 item, Worker&) { terms.reduce(item, tasks.chunks); }

    // The number of splits depends on sizes only, so results have the same bits for any number of threads.
    void assign_work() {
        decode = c.n > 0 && c.n <= DECODE_QUERIES && !c.reduce.wanted;
        split_k = decode && !c.backward;
        const i64 heads = max(1, c.batch * (terms.network.t ? 1 : c.heads));  // that are computed apart
        bf16_output = !c.backward && Packing::K_PACK > 1 && !decode && !values && !terms.stick && !c.drop_below && plan.dvp;
        split_blocks = max(2, (plan.key_blocks * heads + 63) / 64);
        if (terms.scans()) split_blocks = max(1, plan.key_blocks);
        splits = max(1, (plan.key_blocks + split_blocks - 1) / split_blocks);
        if (!split_k) {
            const bool apart = !terms.network.t && tasks.heads_are_apart(), plain = !c.reduce.wanted && !terms.scans();
            if (plain && !decode && apart) plan.find_segments();
            plan.assign_work(apart, !c.backward && plain && !terms.network.t);
            tasks.assign_work();
            if (plan.packs_tiles) heads_in_item = plan.group;
            if (terms.network.t) heads_in_item = c.heads;
            return;
        }
        heads_in_item = terms.network.t ? c.heads : terms.scans() ? 1 : min(plan.group, MB / c.n);
        while (!terms.network.t && heads_in_item > 1 && decode_items() < 2 * c.threads) heads_in_item = (heads_in_item + 1) / 2;
        plan.workers = hw_workers(c.threads, decode_items());
        const i64 bytes = c.batch * c.kv_heads * c.m * (c.d + c.dv) * (i64)sizeof(typename T::type);
        prefetches = bytes > PREFETCHED;
        alternates = NB * max(c.d, c.dv) * (i64)sizeof(typename T::type) <= ALTERNATING;
    }

    // the heads that an item of work may have, which share keys or a network
    i64 joined_heads() const { return terms.network.t ? c.heads : plan.group; }
    i64 parts_of_group() const { return (joined_heads() + heads_in_item - 1) / heads_in_item; }
    i64 decode_items() const { return c.batch * (terms.network.t ? 1 : c.kv_heads) * splits * parts_of_group(); }

    void lay_out() {
        if (!split_k) plan.lay_out(memory);
        if (split_k) split_results = memory.take<float>(c.batch * c.heads * splits * c.n * (plan.dvp + 2));
        terms.lay_out(memory, tasks.count);
        if (c.backward) tasks.lay_out(memory);
        reducer.lay_out(memory);
        Worker* found = memory.take<Worker>(plan.workers * heads_in_item);
        for (i64 i = 0; i < plan.workers * heads_in_item; i++) {
            Worker spare, &w = found ? found[i] : spare;
            terms.lay_out(memory, w.terms);
            const i64 head = i % heads_in_item;
            if (!head || !rows_together()) lay_out(w);
            if (!head && terms.network.t) terms.network.lay_out(memory, c, w.network);
            if (head && found) share(found[i - head], head, w);
        }
        workers = found;
    }

    void lay_out(Worker& w) {
        const i64 rows = MB + SLACK, dp = plan.dp, dvp = plan.dvp, widest = max(dp, dvp);
        reducer.lay_out(memory, w.reductions);
        w.ranges = memory.take<RowRanges>(1);
        w.spans = memory.take<Spans>(1);
        w.x = memory.take<float>(rows * widest);
        w.row = memory.take<float>(DECODE_KEYS * dp);
        w.q = memory.take<float>(rows * dp);
        w.score = take_tile();
        w.packed = Packing::K_PACK > 1 ? take_tile() : w.score;
        w.out = memory.take<float>(rows * widest);
        w.key_indices = memory.take<uint32_t>(LD);
        w.own = terms.stick ? memory.take<Own>(MB * NB) : nullptr;
        if (terms.path.t) w.terms.path.gates = take_tile();
        if (terms.network.t) w.bias = take_tile();
        const bool twice = terms.scans() && (c.backward || c.reduce.wanted);
        w.scanned_after = twice ? memory.take<double>((plan.key_blocks + 2) * MB) : nullptr;
        if (!c.backward) return;
        w.d_score = take_tile();
        w.cap_slope = terms.capped ? take_tile() : nullptr;
        if (terms.positions.t) w.terms.positions.counts = take_tile(), w.terms.positions.gate_slopes = take_tile();
        w.row_pairs = take_tile();
        w.q_pairs = memory.take<float>(rows * dp);
        w.d_out_packed = memory.take<float>(rows * dvp);
        w.d_out_pairs = memory.take<float>(rows * dvp);
        w.d_out = memory.take<float>(rows * dvp);
    }

    // whether the rows of heads that are computed together follow one another, so that one product has them all
    bool rows_together() const { return decode && !terms.network.t; }

    // what heads that are computed together share
    void share(const Worker& first, i64 head, Worker& w) const {
        w.ranges = first.ranges, w.spans = first.spans;
        if (!rows_together()) return;
        const i64 row = head * c.n;
        w.x = first.x, w.row = first.row, w.key_indices = first.key_indices, w.own = nullptr;
        w.q = first.q + row * plan.dp, w.out = first.out + row * plan.dvp;
        w.score = first.score + row * LD, w.packed = first.packed + row * LD;
    }

    float* take_tile() {
        float* tile = memory.take<float>((MB + SLACK) * LD + 2 * W);
        return tile ? tile + W : nullptr;
    }

    // ------------------------------------------------------------ scores.h

    void load_score_scales(Worker& w, const Tile& t) const;
    void load_queries(Worker& w, const Tile& t, bool scaled, bool fully_masked) const;
    bool visible_columns(Worker& w, Tile& t, i64 j0, Cover& seen) const;
    bool reach(Worker& w, Tile& t, i64 j0, i64& first) const;
    Cover cover_of(const Worker& w, const Tile& t, i64 first) const;
    void scores(Worker& w, const Tile& t, Cover seen, i64 task) const;
    void multiply_queries(Worker& w, const Tile& t) const;
    void complete_scores(Worker& w, const Tile& t, Cover seen, i64 task) const;
    void clear_outside_span(const Worker& w, const Tile& t, i64 r, float* row, i64 end) const;
    uint32_t head_hash(const Tile& t) const;
    void load_keys(Worker& w, const Tile& t, i64 end) const;
    vf dropout_factor(uint32_t row_hash, const uint32_t* keys) const;

    // ------------------------------------------------------------ forward.h

    void forward_head(i64 item, Worker& w);
    void forward_segment(i64 item, Worker& w);
    void forward_block(i64 item, Worker& w);
    void forward_task(i64 item, Worker& w);
    void forward_block(Worker& w, const Tile& t);
    void forward_tiles(i64 item, Worker& first);
    void clear_slack(Worker& w) const;
    void start_heads(Worker& first, i64 head, i64 heads) const;
    Tile block(const Worker& w, i64 head, i64 number) const { return block(w, plan.whole(head / c.heads), head % c.heads, number); }
    Tile block(const Worker& w, const Segment& s, i64 h, i64 number) const;
    void start(Worker& w, const Tile& t) const;
    void loop_over_keys(Worker& first, i64 heads, i64 low, i64 high);
    void add_weights_from_last_key(Worker& w, i64 low, i64 high) const;
    void add_weights(Worker& w) const;
    void finish_weights(Worker& w, const Tile& t) const;
    void multiply_values(Worker& w, const Tile& t) const;
    void online_softmax(Worker& w, const Tile& t) const;
    template <bool DEFERRED>
    float attach_row_max(Worker& w, const Tile& t, i64 r) const;
    template <bool SCALED>
    vf scaled(const float* score) const;
    template <bool BF16_OUTPUT>
    float exp_row_of(Worker& w, const Tile& t, i64 r, float base) const;
    template <bool BF16_OUTPUT, Reduces REDUCES, bool SCALED = false>
    float exp_row(Worker& w, const Tile& t, i64 r, float base) const;
    void dropout(Worker& w, const Tile& t) const;
    void finish(Worker& w, const Tile& t) const;
    void column_item(i64 item, Worker& w);

    // ------------------------------------------------------------ scans.h

    template <class More, class Visit>
    void from_last_key(Worker& w, Tile& t, i64 low, i64 high, More more, Visit visit) const;
    double* scanned_after(const Worker& w, const Tile& t) const { return w.scanned_after + (t.j0 / NB) * MB; }
    void add_positions(Worker& w, const Tile& t) const;
    void add_path(Worker& w, const Tile& t, bool visible) const;
    void find_scanned(Worker& w, Tile& t, i64 low, i64 task) const;
    bool sees_before(const Worker& w, i64 r, i64 j) const;
    void positions_backward(Worker& w, i64 r) const;
    void path_backward(Worker& w, const Tile& t, bool visible, i64 task) const;
    i64 first_key(const Worker& w, const Tile& t) const;

    // ------------------------------------------------------------ stick_breaking.h

    template <class Visit>
    void from_last_stick(Worker& w, Tile& t, i64 low, i64 high, i64 task, Visit visit) const;
    void find_own(Worker& w, const Tile& t) const;
    void break_sticks(Worker& w, Tile& t, i64 low, i64 high) const;
    bool sees_any_score(const Worker& w, i64 r) const;
    template <class Visit>
    void break_tile(Worker& w, const Tile& t, Visit visit) const;
    i64 find_left_after(Worker& w, Tile& t, const BlockGradients& block, i64 low, i64 task) const;
    float own_dropout_factor(const Worker& w, const Tile& t, Own own) const;
    void stick_backward(Worker& w, const Tile& t, i64 end) const;

    // ------------------------------------------------------------ all_heads.h

    void forward_heads(i64 item, Worker& first);
    void loop_over_keys_of_heads(Worker& first, i64 low, i64 high) const;
    void backward_heads(i64 item, Worker& first);
    void backward_heads(Worker& first, i64 b, i64 number, i64 chunk) const;
    template <class Visit>
    void for_each_core(Worker& first, const Tile& block, i64 low, i64 high, Visit visit) const;
    bool scores_of_heads(Worker& first, const Tile& t, i64 column, i64 chunk) const;
    void point_to_row(Worker& first, i64 r) const;
    bool narrow(Worker& first, i64 from, i64 to) const;

    // ------------------------------------------------------------ decode.h

    void forward_split(i64 item, Worker& first);
    float* split_result(i64 head, i64 number, i64 row) const;
    void combine_splits(i64 item, Worker& w);
    // whole vectors are read, which packed numbers may fill in part
    void clear_queries(Worker& w, i64 rows) const { memset(w.q, 0, (size_t)(rows * plan.dp * 4)); }
    void decode_scores(Worker& w, const Tile& t) const;
    template <int ROWS, int VECTORS>
    static void decode_keys(const float* q, i64 dp, i64 vectors, const typename T::type* key, i64 far, i64 keys, float* score,
                            Ahead ahead);
    template <int ROWS, int KEYS, class Query, class Key>
    static void decode_products(i64 vectors, float* score, Query query, Key key);
    static vf load_packed(const typename T::type* p);
    void decode_output(Worker& w, const Tile& t) const;
    template <int ROWS, int VECTORS, bool ZEROS>
    void decode_values(const float* weight, const typename T::type* value, i64 keys, float* out, Ahead ahead) const;
    Ahead ahead(const Tensor& x, const Tile& t, i64 first, i64 count, i64 width) const;
    static i64 tokens_ahead(i64 width) { return AHEAD / max(1, width * (i64)sizeof(typename T::type)); }

    // ------------------------------------------------------------ backward.h

    void backward_head(i64 item, Worker& w);
    void backward_segments(i64 item, Worker& w);
    void backward_item(i64 item, Worker& w);
    void backward_task(Worker& w, i64 b, i64 h, i64 chunk, i64 slot) const;
    void backward(Worker& w, Tile t, i64 task, i64 slot) const;
    BlockGradients start_backward(Worker& w, const Tile& t, i64 slot) const;
    void tile_backward(Worker& w, const Tile& t, Cover seen, const BlockGradients& block, i64 task) const;
    void multiply_gradients(Worker& w, const Tile& t, const BlockGradients& block, i64 task) const;
    void add_tile_gradients(Worker& w, const Tile& t, const BlockGradients& block, i64 task) const;
    void finish_backward(Worker& w, const Tile& t, i64 task) const;
    void load_gradients(Worker& w, const Tile& t) const;
    static bool has_nan(const float* x, i64 count);
    void find_fully_masked(Worker& w, const Tile& t) const;
    void softmax_backward(Worker& w, const Tile& t, i64 end, bool one_tile) const;
    void softmax_backward_of_row(Worker& w, const Tile& t, i64 r, uint32_t key, bool one_tile) const;
    void finish_score_gradients(Worker& w, const Tile& t, i64 r, i64 end) const;
    void clear_around(const Worker& w, const Tile& t, i64 r, float* grad, i64 end) const;
};

}  // namespace
