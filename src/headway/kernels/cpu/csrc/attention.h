// Scores, mask, softmax, forward, backward: attention over blocks of queries and blocks of keys.
#pragma once
#include <type_traits>

#include "spans.h"
#include "tasks.h"
#include "terms.h"

namespace {

// Calls visit(count, first) for a row of so many vectors, a piece after the other; count is known to the compiler.
template <int COUNT = 8, class Visit>
inline void in_pieces(i64 vectors, Visit visit, i64 first = 0) {
    for (; vectors - first / W >= COUNT; first += COUNT * W) visit(std::integral_constant<int, COUNT>(), first);
    if constexpr (COUNT > 1) in_pieces<COUNT - 1>(vectors, visit, first);
}

// 32 bits of good avalanche, as in reference.py
template <class X>
inline X scramble(X x) {
    x = (x ^ x >> 16) * 0x21F0AAADu;
    x = (x ^ x >> 15) * 0x735A2D97u;
    return x ^ x >> 15;
}

template <class T, class Words>
struct Attention {
    struct Worker {
        RowRanges ranges;
        Spans spans;                      // of the tile
        typename Terms<T, Words>::Worker terms;
        float *x, *row;                   // [MB + SLACK][widest]: rows as they come; [dp]: words of one
        float *q, *q_pairs, *g, *g_pairs; // the words of q and of dO, as rows and as pairs
        float *score, *d_score, *factor;  // tiles [MB + SLACK][LD], a vector before and behind
        float *words, *pairs;             // a tile as rows and as pairs
        float *out;                       // [MB + SLACK][dvp] in forward, [MB + SLACK][dp] of dq in backward
        float *d_out;                     // [MB][dvp]
        uint32_t* keys;                   // indices of the keys of a tile
        const float* late[MB];            // a bias that is added with the softmax, from column c0 on; or null
        float rate[MB], highest[MB], total[MB], lean[MB], heat[MB];
        float d_lse[MB];                  // gradients of the log-sum-exp
        bool blind[MB], single[MB];       // rows that see nothing; rows with all their weight on one key
    };

    // weights that are rounded to bf16 need no more
    static constexpr int DEGREE = Words::PER_WORD == 1 ? 5 : 4;
    static constexpr i64 FEW = 4;  // up to so many queries packing costs more than it saves

    const Call& c;
    Plan<T, Words> plan;
    Terms<T, Words> terms;
    Tasks<T, Words> tasks;
    Memory memory;
    Worker* workers = nullptr;
    bool few = false;                    // queries: their scores are dot products with the keys as they lie in memory
    bool unpacked = false;               // few queries forward: the keys are shared out in parts of part_blocks blocks
    i64 parts = 1, part_blocks = 1;
    float* part_sums = nullptr;          // [batch·heads][parts][n][largest score, sum, output]
    bool early = false;     // the rate is multiplied into q
    bool values = false;    // there are relative values
    bool straight = false;  // weights need not be seen as floats

    explicit Attention(const Call& call) : c(call), plan(call), terms(plan), tasks(plan) {
        int exponent;
        bool power = frexp(c.scale, &exponent) == 0.5 && !terms.temperature;
        early = Words::PER_WORD == 1 || power;  // in bf16 a rate that is no power of two would be rounded with q
        values = terms.has_values();
        share_out();
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
        if (!unpacked) plan.look();
        run_stages();
        if (plan.spoiled()) {
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
        if (!unpacked && !plan.own) add(plan.packs(), plan.pack_item, &plan);
        add(terms.preparations(), terms.prepare_item, &terms);
        if (unpacked) {
            add(heads * parts, task<&Attention::attend_part>, this);
            add(heads, task<&Attention::join>, this);
        } else if (plan.own) {
            add(c.batch * c.kv_heads, c.backward ? task<&Attention::backward_own> : task<&Attention::attend_own>, this);
        } else if (!c.backward) {
            add(heads * plan.blocks, task<&Attention::attend>, this);
        } else {
            add(tasks.together ? tasks.chunks : tasks.count, task<&Attention::backward_item>, this);
            add(plan.packs(), task<&Attention::reduce_keys>, this);
        }
        if (c.backward) add(terms.reductions(), task<&Attention::reduce_terms>, this);
        hw_run(stages, count, plan.workers);
    }

    template <void (Attention::*DO)(i64 item, Worker& w)>
    static void task(void* self, i64 item, i64 worker) {
        Attention& a = *(Attention*)self;
        if (!a.plan.spoiled()) (a.*DO)(item, a.workers[worker]);
    }

    i64 number_of(const Worker& w) const { return &w - workers; }

    void reduce_keys(i64 item, Worker&) { tasks.reduce(item); }
    void reduce_terms(i64 item, Worker&) { terms.reduce(item, tasks.chunks); }

    // The keys of few queries come in parts whose number depends on sizes alone.
    void share_out() {
        few = c.n > 0 && c.n <= FEW;
        unpacked = few && !c.backward;
        const i64 heads = most(1, c.batch * c.heads);
        straight = !c.backward && Words::PER_WORD > 1 && !few && !values && !c.drop_below;
        part_blocks = most(2, (plan.key_blocks * heads + 63) / 64);
        parts = most(1, (plan.key_blocks + part_blocks - 1) / part_blocks);
        if (unpacked)
            plan.workers = hw_workers(c.threads, heads * parts);
        else
            plan.share_out(!tasks.together);
    }

    void lay_out() {
        if (!unpacked) plan.lay_out(memory);
        if (unpacked) part_sums = memory.take<float>(c.batch * c.heads * parts * c.n * (plan.dvp + 2));
        terms.lay_out(memory, tasks.count);
        if (c.backward) tasks.lay_out(memory);
        Worker* found = memory.take<Worker>(plan.workers);
        const i64 rows = MB + SLACK, dp = plan.dp, dvp = plan.dvp, widest = most(dp, dvp);
        for (i64 i = 0; i < plan.workers; i++) {
            Worker spare, &w = found ? found[i] : spare;
            terms.lay_out(memory, w.terms);
            w.x = memory.take<float>(rows * widest);
            w.row = memory.take<float>(dp);
            w.q = memory.take<float>(rows * dp);
            w.score = take_tile();
            w.words = Words::PER_WORD > 1 ? take_tile() : w.score;
            w.out = memory.take<float>(rows * widest);
            w.keys = memory.take<uint32_t>(LD);
            if (!c.backward) continue;
            w.d_score = take_tile();
            w.factor = terms.capped ? take_tile() : nullptr;
            w.pairs = take_tile();
            w.q_pairs = memory.take<float>(rows * dp);
            w.g = memory.take<float>(rows * dvp);
            w.g_pairs = memory.take<float>(rows * dvp);
            w.d_out = memory.take<float>(rows * dvp);
        }
        workers = found;
        for (i64 i = 0; i < plan.workers && found && few; i++) {  // vectors of words are read beyond the last word
            memset(found[i].row, 0, (size_t)(dp * 4));
            memset(found[i].q, 0, (size_t)(rows * dp * 4));
        }
    }

    float* take_tile() {
        float* tile = memory.take<float>((MB + SLACK) * LD + 2 * W);
        return tile ? tile + W : nullptr;
    }

    // ------------------------------------------------------------ scores

    void load_rates(Worker& w, const Tile& t) const {
        for (i64 r = 0; r < t.rows; r++) {
            w.rate[r] = (float)c.scale;
            if (terms.temperature) w.rate[r] *= *terms.temperature->values.template at<float>(t.b, t.h, t.i0 + r);
        }
    }

    // q of the block in w.q, times its rate where that comes early; rows of `blind` are zeroed
    void load_queries(Worker& w, const Tile& t, bool scaled, bool blind) const {
        load_rows<T>(c.q, t.b, t.h, t.i0, t.rows, c.d, w.x, plan.dp, plan.dp);
        for (i64 r = 0; r < t.rows; r++) {
            float* row = w.x + r * plan.dp;
            if (blind && w.blind[r])
                memset(row, 0, (size_t)(plan.dp * 4));
            else if (scaled)
                for (i64 i = 0; i < plan.dp; i++) row[i] *= w.rate[r];
        }
    }

    // The columns of a block of keys that queries of the tile see; false where there are none.
    bool reaches(Worker& w, Tile& t, i64 j0, Cover& seen) const {
        t.j0 = j0;
        if (!w.spans.reach(w.ranges, t, least(NB, c.m - j0))) return false;
        const i64 first = t.c0;
        seen = cover(c, w.ranges, t.b, t.h, t.i0, t.rows, j0 + first, t.c1 - first);
        if (seen == NOTHING) return false;
        t.c0 = first / NR * NR;
        w.spans.set(t, seen == ALL && t.c0 == first, Words::PER_WORD, c.backward);
        if (t.c0 < first) seen = SOME;
        return true;
    }

    // All but a bias that is left for later; −∞ where a row may not look. What is beyond its span means nothing.
    void scores(Worker& w, const Tile& t, Cover seen, i64 task) const {
        const Spans& s = w.spans;
        if (few)
            multiply_few(w, t);
        else
            multiply<Words>(s, t, plan.kw, w.q, plan.dp, t.packed->k_panels, w.score);
        if (!early)
            for (i64 r = 0; r < t.rows; r++)
                for (i64 x = s.from[r]; x < s.to[r]; x += W) store(w.score + r * LD + x, load(w.score + r * LD + x) * w.rate[r]);
        w.late[0] = nullptr;
        terms.add(w.terms, t, w.score, w.rate, task, c.backward ? w.factor : nullptr, w.late);
        if (seen == SOME) forbid(c, w.ranges, t.b, t.h, t.i0, t.rows, t.j0, s.from, s.to, w.score, LD);
        for (i64 r = 0; r < t.rows && seen == ALL; r++)
            for (i64 x = t.c1; x < s.to[r]; x++) w.score[r * LD + x] = -INFINITY;
    }

    // zeros in the row of a tile from column c0 to `end`, but for its span
    void clear_around(const Worker& w, const Tile& t, i64 r, float* row, i64 end) const {
        if (w.spans.whole && end <= w.spans.to[r]) return;
        const i64 from = least(w.spans.from[r], end), to = most(w.spans.to[r], from);
        for (i64 x = t.c0; x < from; x += W) store(row + x, vf{});
        for (i64 x = to; x < end; x += W) store(row + x, vf{});
    }

    // ------------------------------------------------------------ dropout

    uint32_t lane_key(const Tile& t) const {
        const uint32_t row = scramble((uint32_t)(c.batch_offset + t.b));
        const uint32_t lane = scramble(row + (uint32_t)(c.head_offset + t.h));
        return scramble((uint32_t)c.seed + scramble((uint32_t)(c.seed >> 32) + lane));
    }

    void load_keys(Worker& w, const Tile& t, i64 end) const {
        for (i64 x = t.c0; x < end; x++)
            w.keys[x] = x < t.c1 ? (uint32_t)*c.k_index.template at<i64>(t.b, t.j0 + x) : 0;
    }

    // what is kept of W weights, times 1 / (1 − dropout)
    vf kept(uint32_t row_key, const uint32_t* keys) const {
        vu drawn = scramble(*(const vu_any*)keys + row_key);
        return choose((vi)(drawn >= (uint32_t)c.drop_below), all((float)c.keep_scale), vf{});
    }

    // ------------------------------------------------------------ forward

    // all the heads that share those keys
    void attend_own(i64 item, Worker& w) {
        plan.pack_own(item, number_of(w));
        for (i64 x = 0; x < plan.group * plan.blocks; x++) attend(item * plan.group * plan.blocks + x, w);
    }

    void attend(i64 item, Worker& w) {
        const Tile t = block(w, item / plan.blocks, plan.blocks - 1 - item % plan.blocks);
        start(w, t);
        sweep(w, t, 0, c.m);
        finish(w, t);
    }

    Tile block(const Worker& w, i64 head, i64 number) const {
        Tile t = {};
        t.b = head / c.heads, t.h = head % c.heads, t.i0 = number * MB, t.rows = least(MB, c.n - t.i0);
        if (!unpacked) t.packed = plan.packed + (plan.own ? number_of(w) : plan.head_of(t.b, t.h));
        return t;
    }

    void start(Worker& w, const Tile& t) const {
        row_ranges(c, t.b, t.i0, t.rows, w.ranges);
        load_rates(w, t);
        load_rows<T>(c.q, t.b, t.h, t.i0, t.rows, c.d, w.x, plan.dp, plan.dp);
        if (few) memset(w.q, 0, (size_t)(t.rows * plan.dp * 4));
        for (i64 r = 0; r < t.rows; r++) {
            const float factor = early ? w.rate[r] : 1;
            for (i64 i = r * plan.dp; i < (r + 1) * plan.dp; i += W) Words::put(w.q + r * plan.dp, i - r * plan.dp, load(w.x + i) * factor);
            w.highest[r] = -INFINITY, w.total[r] = 0;
            // what is written last is fetched meanwhile
            const char* out = (const char*)c.out.template at<typename T::type>(t.b, t.h, t.i0 + r);
            for (i64 i = 0; i < c.dv * (i64)sizeof(typename T::type); i += 64) __builtin_prefetch(out + i, 1);
        }
        memset(w.out, 0, (size_t)((MB + SLACK) * plan.dvp * 4));
        terms.begin(w.terms, t, w.rate, nullptr, nullptr);
    }

    // the keys low … high − 1 (unpacked ones whole blocks): w.out, w.highest and w.total of the rows of a block
    void sweep(Worker& w, Tile t, i64 low, i64 high) const {
        const i64 dvp = plan.dvp, step = unpacked ? NB : NR;
        low = most(low, w.ranges.low / step * step), high = least(high, w.ranges.high);
        for (i64 j0 = low; j0 < high; j0 += NB) {
            Cover seen;
            if (!reaches(w, t, j0, seen)) continue;
            scores(w, t, seen, 0);
            soften(w, t);
            if (c.drop_below) drop(w, t);
            if (values) terms.add_values(w.terms, t, w.score, 0);
            if (unpacked) {
                gather_few(w, t);
                continue;
            }
            i64 keys = words_of(t.c1 - t.c0, Words::PER_WORD), first = (t.j0 + t.c0) / Words::PER_WORD;
            const float* weights = straight ? w.words : as_rows<Words>(w.score + t.c0, LD, t.rows, keys, w.words);
            const float* v = t.packed->v_rows + first * dvp;
            w.spans.template over_keys<Words>(t.rows, dvp / W, keys, weights, v, dvp, w.out);
        }
        if (values) terms.finish_values(w.terms, t, w.out, dvp);
    }

    // the weights of a tile before they are divided, in place of its scores; what came before is rescaled
    void soften(Worker& w, const Tile& t) const {
        for (i64 r = 0; r < t.rows; r++) {
            const float before = w.highest[r], found = w.late[0] ? hang<true>(w, t, r) : hang<false>(w, t, r);
            const float highest = found > before ? found : before, base = highest == -INFINITY ? 0 : highest;
            const float sum = straight ? weigh_row<true>(w, t, r, base) : weigh_row<false>(w, t, r, base);
            const float factor = before == highest ? 1 : expf(before - base);
            w.highest[r] = highest;
            w.total[r] = w.total[r] * factor + sum;
            if (factor == 1) continue;
            float* out = w.out + r * plan.dvp;
            for (i64 i = 0; i < plan.dvp; i += W) store(out + i, load(out + i) * factor);
            if (values) terms.rescale_values(w.terms, r, factor);
        }
    }

    // the largest score of a row, with the late bias
    template <bool LATE>
    float hang(Worker& w, const Tile& t, i64 r) const {
        float* score = w.score + r * LD;
        vf best = all(-INFINITY);
        for (i64 x = w.spans.from[r]; x < w.spans.to[r]; x += W) {
            vf found = load(score + x);
            if (LATE) store(score + x, found += load(w.late[r] + x - t.c0));  // −∞ stays: a late bias is below +∞
            best = larger(found, best);
        }
        return largest(best);
    }

    // the row's weights in place of its scores, or straight as the words of a product; their sum
    template <bool STRAIGHT>
    float weigh_row(Worker& w, const Tile& t, i64 r, float base) const {
        float* score = w.score + r * LD;
        float* words = w.words + r * LD;
        vf sums = {};
        const i64 from = w.spans.from[r], to = w.spans.to[r];
        for (i64 x = from; x < to; x += W) {
            vf weight = exp_of<DEGREE>(load(score + x) - base);
            sums += weight;
            if (STRAIGHT)
                Words::put(words, x - t.c0, weight);
            else
                store(score + x, weight);
        }
        if (w.spans.whole) return sum(sums);
        for (i64 x = t.c0; x < t.c1; x += W) {
            if (x >= from && x < to) continue;
            if (STRAIGHT)
                Words::put(words, x - t.c0, vf{});
            else
                store(score + x, vf{});
        }
        return sum(sums);
    }

    void drop(Worker& w, const Tile& t) const {
        const uint32_t key = lane_key(t);
        load_keys(w, t, up(t.c1, W));
        for (i64 r = 0; r < t.rows; r++) {
            const uint32_t row = scramble(key + (uint32_t)*c.q_index.template at<i64>(t.b, t.i0 + r));
            for (i64 x = t.c0; x < t.c1; x += W) {
                float* weight = w.score + r * LD + x;
                store(weight, load(weight) * kept(row, w.keys + x));
            }
        }
    }

    void finish(Worker& w, const Tile& t) const {
        for (i64 r = 0; r < t.rows; r++) {
            float* out = w.out + r * plan.dvp;
            float highest = w.highest[r], total = w.total[r], factor = 1;
            const bool nothing = total == 0;  // in sight, whatever the sink is
            if (terms.sink) {
                const float sink = *terms.sink->values.template at<float>(t.b, t.h, t.i0 + r);
                const float base = highest > sink ? highest : sink;  // a sink that is no number too
                if (base != -INFINITY) {
                    factor = highest == base ? 1 : expf(highest - base);
                    total = total * factor + expf(sink - base);
                    highest = base;
                }
            }
            if (nothing) memset(out, 0, (size_t)(plan.dvp * 4));
            store_row<T>(c.out, t.b, t.h, t.i0 + r, c.dv, out, nothing ? 1 : factor / total);
            if (c.row_max.there()) *c.row_max.template at<float>(t.b, t.h, t.i0 + r) = highest;
            if (c.row_sum.there()) *c.row_sum.template at<float>(t.b, t.h, t.i0 + r) = total;
        }
    }

    // ------------------------------------------------------------ few queries: nothing is packed, keys are shared out

    void attend_part(i64 item, Worker& w) {
        // heads that share keys follow one another, while those are near
        const i64 shared = item / plan.group, number = shared % parts;
        const i64 head = shared / parts * plan.group + item % plan.group, first = number * part_blocks * NB;
        const Tile t = block(w, head, 0);
        start(w, t);
        sweep(w, t, first, least(c.m, first + part_blocks * NB));
        for (i64 r = 0; r < t.rows; r++) {
            float* to = part(head, number, r);
            to[0] = w.highest[r], to[1] = w.total[r];
            memcpy(to + 2, w.out + r * plan.dvp, (size_t)(plan.dvp * 4));
        }
    }

    float* part(i64 head, i64 number, i64 row) const {
        return part_sums + ((head * parts + number) * c.n + row) * (plan.dvp + 2);
    }

    // the parts of a head's keys in their order
    void join(i64 item, Worker& w) {
        const Tile t = block(w, item, 0);
        for (i64 r = 0; r < t.rows; r++) {
            float highest = -INFINITY, total = 0, *out = w.out + r * plan.dvp;
            for (i64 p = 0; p < parts; p++) {
                const float found = part(item, p, r)[0];
                highest = found > highest ? found : highest;
            }
            memset(out, 0, (size_t)(plan.dvp * 4));
            for (i64 p = 0; p < parts; p++) {
                const float* from = part(item, p, r);
                if (from[1] == 0) continue;
                const float factor = from[0] == highest ? 1 : expf(from[0] - highest);
                total += from[1] * factor;
                add_scaled(out, from + 2, factor, plan.dvp);
            }
            w.highest[r] = highest, w.total[r] = total;
        }
        finish(w, t);
    }

    // q·kᵀ of a tile, each key read once where it lies. In both passes: the weights that the backward pass computes again
    // are divided by the sum of those of the forward pass, and large scores differ too much by the order of a sum.
    void multiply_few(Worker& w, const Tile& t) const {
        typedef typename T::type type;
        const i64 h = t.h / plan.group, step = W * Words::PER_WORD;
        const bool in_place = c.k.stride[3] == 1 && c.d % step == 0 && sizeof(type) * Words::PER_WORD == sizeof(float);
        memset(w.row, 0, (size_t)(plan.dp * 4));  // whole vectors are read, of which words may fill a part
        for (i64 x = t.c0; x < t.c1; x++) {
            const float* key = (const float*)c.k.template at<type>(t.b, h, t.j0 + x);
            if (!in_place) {
                load_rows<T>(c.k, t.b, h, t.j0 + x, 1, c.d, w.x, plan.dp, plan.dp);
                key = as_rows<Words>(w.x, plan.dp, 1, plan.kw, w.row);
            }
            for (i64 r = 0; r < t.rows; r++) {
                vf sums = {};
                const float* q = w.q + r * plan.dp;
                for (i64 i = 0; i < plan.kw; i += W) sums = Words::madd(sums, load(q + i), load(key + i));
                w.score[r * LD + x] = sum(sums);
            }
        }
    }

    // weights·v of a tile, each value read once where it lies; what has no weight is not read
    void gather_few(Worker& w, const Tile& t) const {
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
            in_pieces(dvp / W, [&](auto count, i64 i) {
                vf sums[count] = {};
                const type* value = c.v.template at<type>(t.b, h, t.j0 + t.c0, i);
                for (i64 x = t.c0; x < t.c1; x++, value += far) {
                    if (weight[x] == 0) continue;
                    const vf factor = all(weight[x]);
                    for (i64 v = 0; v < count; v++) sums[v] += load_as_floats<T>(value + v * W) * factor;
                }
                for (i64 v = 0; v < count; v++) add_to(out + i + v * W, (const float*)&sums[v], W);
            });
        }
    }

    // ------------------------------------------------------------ backward

    void backward_own(i64 item, Worker& w) {
        plan.pack_own(item, number_of(w));
        for (i64 x = 0; x < plan.group * tasks.chunks; x++) backward_item(item * plan.group * tasks.chunks + x, w);
        for (i64 block = 0; block < plan.key_blocks; block++) tasks.reduce(item * plan.key_blocks + block);
    }

    void backward_item(i64 item, Worker& w) {
        const i64 heads = c.heads, chunks = tasks.chunks;
        if (!tasks.together) return backward_task(w, item / chunks / heads, item / chunks % heads, item % chunks);
        for (i64 b = 0; b < c.batch; b++)
            for (i64 h = 0; h < heads; h++) backward_task(w, b, h, item);
    }

    void backward_task(Worker& w, i64 b, i64 h, i64 chunk) const {
        const i64 task = tasks.number(b, h, chunk);
        tasks.begin(task);
        terms.begin_task(task);
        tasks.blocks(chunk, [&](i64 number) { backward(w, block(w, b * c.heads + h, number), task); });
    }

    void backward(Worker& w, Tile t, i64 task) const {
        const i64 dp = plan.dp, dvp = plan.dvp, pairs = words_of(t.rows, Words::PER_WORD);
        row_ranges(c, t.b, t.i0, t.rows, w.ranges);
        load_rates(w, t);
        load_gradients(w, t);
        find_blind(w, t);
        load_queries(w, t, true, true);
        const float* q_pairs = as_pairs<Words>(w.x, dp, t.rows, dp, w.q_pairs, dp);
        if (q_pairs != w.q_pairs) memcpy(w.q_pairs, q_pairs, (size_t)(t.rows * dp * 4));
        if (!early) load_queries(w, t, false, true);
        const float* words = as_rows<Words>(w.x, dp, t.rows, plan.kw, w.q);
        if (words != w.q) memcpy(w.q, words, (size_t)(t.rows * dp * 4));
        const float* g = as_rows<Words>(w.d_out, dvp, t.rows, plan.vw, w.g);
        const float* g_pairs = as_pairs<Words>(w.d_out, dvp, t.rows, dvp, w.g_pairs, dvp);
        memset(w.out, 0, (size_t)((MB + SLACK) * dp * 4));
        memset(w.heat, 0, sizeof w.heat);
        terms.begin(w.terms, t, w.rate, w.d_out, w.blind);
        float *const dk = tasks.dk ? tasks.dk + task * plan.mp * dp : nullptr;
        float* const dv = tasks.dv ? tasks.dv + task * plan.mp * dvp : nullptr;
        const bool wants_dq = c.dq.there() || terms.moves_queries;
        const bool alone = !c.foreign && w.ranges.high - w.ranges.low / NR * NR <= NB;
        for (i64 j0 = w.ranges.low / NR * NR; j0 < w.ranges.high; j0 += NB) {
            Cover seen;
            if (!reaches(w, t, j0, seen)) continue;
            const i64 end = up(t.c1, NR), keys = end - t.c0, key_words = words_of(keys, Words::PER_WORD);
            scores(w, t, seen, task);
            multiply<Words>(w.spans, t, plan.vw, g, dvp, t.packed->v_panels, w.d_score);
            if (values) terms.add_value_products(w.terms, t, w.d_score, task);
            weigh(w, t, end, alone);
            tasks.touch(task, j0 + t.c0, j0 + end);
            if (dv) {
                const float* weights = as_pairs<Words>(w.score + t.c0, LD, t.rows, keys, w.pairs, LD);
                w.spans.template over_queries<Words>(keys, dvp / W, pairs, weights, g_pairs, dvp, dv + (j0 + t.c0) * dvp);
            }
            if (values) terms.take_values(w.terms, t, w.score, task);
            terms.take(w.terms, t, w.d_score, w.rate, w.heat, dk, task);
            if (wants_dq) {
                const float* grads = as_rows<Words>(w.d_score + t.c0, LD, t.rows, key_words, w.words);
                const float* k = t.packed->k_rows + (j0 + t.c0) / Words::PER_WORD * dp;
                w.spans.template over_keys<Words>(t.rows, dp / W, key_words, grads, k, dp, w.out);
            }
            if (dk) {
                const float* grads = as_pairs<Words>(w.d_score + t.c0, LD, t.rows, keys, w.pairs, LD);
                w.spans.template over_queries<Words>(keys, dp / W, pairs, grads, w.q_pairs, dp, dk + (j0 + t.c0) * dp);
            }
        }
        if (terms.moves_queries) {
            load_queries(w, t, false, true);
            for (i64 r = 0; r < t.rows; r++) w.heat[r] += (float)c.scale * dot(w.x + r * dp, w.out + r * dp, dp);
        }
        terms.finish(w.terms, t, w.out, dp, w.rate, w.heat, w.blind, task);
        for (i64 r = 0; r < t.rows; r++) {
            if (terms.moves_queries) *terms.temperature->values_grad.template at<float>(t.b, t.h, t.i0 + r) = w.heat[r];
            if (!c.dq.there()) continue;
            for (i64 i = 0; i < dp; i++) w.out[r * dp + i] *= w.rate[r];
            store_row<T>(c.dq, t.b, t.h, t.i0 + r, c.d, w.out + r * dp);
        }
    }

    // dO, what the gradients of a row's scores lean on, Σ dO·O less the gradient of the log-sum-exp, and that of its sink
    void load_gradients(Worker& w, const Tile& t) const {
        const i64 dvp = plan.dvp;
        if (c.d_out.dtype == FLOAT32)
            load_rows<F32>(c.d_out, t.b, t.h, t.i0, t.rows, c.dv, w.d_out, dvp, dvp);
        else
            load_rows<T>(c.d_out, t.b, t.h, t.i0, t.rows, c.dv, w.d_out, dvp, dvp);
        load_rows<T>(c.out, t.b, t.h, t.i0, t.rows, c.dv, w.x, dvp, dvp);
        for (i64 r = 0; r < t.rows; r++) {
            const float total = *c.row_sum.template at<float>(t.b, t.h, t.i0 + r);
            w.highest[r] = total == 0 ? 0 : *c.row_max.template at<float>(t.b, t.h, t.i0 + r);
            w.total[r] = total == 0 ? 0 : 1 / total;
            if (total == 0) memset(w.d_out + r * dvp, 0, (size_t)(dvp * 4));
            w.lean[r] = dot(w.d_out + r * dvp, w.x + r * dvp, dvp);
            w.d_lse[r] = c.d_lse.there() && total != 0 ? *c.d_lse.template at<float>(t.b, t.h, t.i0 + r) : 0;
            w.lean[r] -= w.d_lse[r];
            w.single[r] = total == exp_of<DEGREE>(vf{})[0];
            if (!terms.sink || !terms.sink->values_grad.there()) continue;
            const float sink = *terms.sink->values.template at<float>(t.b, t.h, t.i0 + r);
            const float share = expf(sink - w.highest[r]) * w.total[r];
            *terms.sink->values_grad.template at<float>(t.b, t.h, t.i0 + r) = -share * w.lean[r];
        }
    }

    // A row's sum does not tell who sees nothing where it is of further keys too, or may be the sink's alone: 1 or NaN.
    void find_blind(Worker& w, const Tile& t) const {
        for (i64 r = 0; r < t.rows; r++) {
            const bool ask = c.foreign || (terms.sink && !(w.total[r] < 1));
            w.blind[r] = w.total[r] == 0 || (ask && !sees_any(c, w.ranges, r, t.b, t.h, t.i0 + r));
            if (!w.blind[r]) continue;
            w.rate[r] = w.highest[r] = w.total[r] = w.lean[r] = w.d_lse[r] = 0;
            memset(w.d_out + r * plan.dvp, 0, (size_t)(plan.dvp * 4));
        }
    }

    // scores to weights (dropped ones 0), gradients of weights to gradients of scores; 0 around them
    //
    // alone: all keys of these queries are in the tile, and the results handed over are of no further ones. Then what
    // gradients lean on is summed of the very products that they are differences to, and a row's gradients cancel as they
    // should; Σ dO·O is rounded apart from them.
    void weigh(Worker& w, const Tile& t, i64 end, bool alone) const {
        const uint32_t key = c.drop_below ? lane_key(t) : 0;
        if (c.drop_below) load_keys(w, t, end);
        for (i64 r = 0; r < t.rows; r++) {
            float *score = w.score + r * LD, *grad = w.d_score + r * LD;
            const float highest = w.highest[r], share = w.total[r];
            float lean = w.lean[r];
            const i64 from = w.spans.from[r], to = w.spans.to[r];
            if (w.late[0])
                for (i64 x = from; x < to; x += W) store(score + x, load(score + x) + load(w.late[r] + x - t.c0));
            const uint32_t row = c.drop_below ? scramble(key + (uint32_t)*c.q_index.template at<i64>(t.b, t.i0 + r)) : 0;
            for (i64 x = from; x < to; x += W) store(score + x, exp_of<DEGREE>(load(score + x) - highest) * share);
            if (alone) {
                vf sums = {};
                for (i64 x = from; x < to; x += W) {
                    const vf d_weight = c.drop_below ? load(grad + x) * kept(row, w.keys + x) : load(grad + x);
                    sums += load(score + x) * d_weight;
                }
                lean = sum(sums) - w.d_lse[r];
            }
            if (c.drop_below) {
                for (i64 x = from; x < to; x += W) {
                    vf weight = load(score + x), keep = kept(row, w.keys + x);
                    store(score + x, weight * keep);
                    store(grad + x, weight * (load(grad + x) * keep - lean));
                }
            } else {
                for (i64 x = from; x < to; x += W) store(grad + x, load(score + x) * (load(grad + x) - lean));
            }
            if (w.single[r])  // its score moves nothing but the log-sum-exp: no difference of rounded products here
                for (i64 x = from; x < to; x += W)
                    store(grad + x, choose((vi)(load(score + x) > 0.5f), all(w.d_lse[r]), load(grad + x)));
            if (w.factor)
                for (i64 x = from; x < to; x += W) {  // what is masked may have a slope that is no number
                    vf found = load(grad + x);
                    store(grad + x, choose((vi)(found == 0), vf{}, found * load(w.factor + r * LD + x)));
                }
            store(grad + t.c0 - W, vf{});
            for (i64 x = t.c1; x < to; x++) grad[x] = 0;
            clear_around(w, t, r, score, end);
            clear_around(w, t, r, grad, end);
            store(grad + end, vf{});
        }
    }
};

}  // namespace
