// The tasks of a backward pass, and their sums for keys and values.
//
// A task is some blocks of queries of one head. The sums of all tasks are added in order, and the number of tasks depends
// only on the call, so results have the same bits for any number of threads.
//
// Sums have a slot for each task. If heads keep all workers busy, a worker computes the tasks of a head of keys in turn
// instead. It has two slots, for the sums so far and for those of a task, so that long sums stay in cache.
//
// A network reads the scores of all heads, so a chunk of all heads is one item of work.
//
// Several tasks add to the gradient of a dense bias that is shared by queries, heads or rows of the batch. If it is small,
// each task has its own sums of it. Otherwise the tasks that add to the same rows are one item of work.
#pragma once
#include "tile.h"

namespace {

template <class T, class Packing>
struct Tasks {
    const Call& c;
    const Plan<T, Packing>& plan;
    i64 chunks = 1, count = 0;           // tasks of a head; of all heads
    i64 batch_in_item = 1, heads_in_item = 1;  // 1 or all: how many rows and heads an item computes, one after another
    bool contiguous = false;             // a task's blocks follow one another; else block x belongs to chunk x mod chunks
    bool in_turn = false;                // a worker computes all tasks of a head of keys
    bool together = false;               // an item computes all heads of a block of queries at once
    i64 slots = 0;                       // for all tasks, or for a worker in turn
    i64 keys = 0, key_blocks = 0;        // in a slot: those of a row, or of the largest segment
    float *dk = nullptr, *dv = nullptr;  // [slots][keys][dp], [slots][keys][dvp]
    uint8_t* touched = nullptr;          // [slots][key_blocks]: whether they hold sums

    explicit Tasks(const Plan<T, Packing>& p) : c(p.c), plan(p) {
        if (!c.backward) return;
        for (i64 i = 0; i < c.terms; i++) {
            const Tensor& grad = c.term[i].values_grad;
            if (c.term[i].kind == HEAD_NETWORK) together = true, heads_in_item = max(1, c.heads);
            if (c.term[i].kind != DENSE || !grad.defined() || plan.has_own_sums(grad)) continue;
            if (!grad.stride[0]) batch_in_item = max(1, c.batch);
            if (!grad.stride[1]) heads_in_item = max(1, c.heads);
        }
        const i64 in_item = batch_in_item * heads_in_item, heads = max(1, c.batch * c.heads / in_item);
        chunks = max(1, min(plan.blocks / 2, (16 + heads - 1) / heads));
        if (together) chunks = min(chunks, 4);  // memory for sums of all heads
        // the sums for keys and values take at most twice the memory of the bias's gradient, or that of 4 chunks
        if (in_item > 1) chunks = min(chunks, max(4, 4 * c.n / (in_item * (plan.dp + plan.dvp))));
        count = c.batch * c.heads * chunks;
        contiguous = chunks > 1 && c.intervals && splits_keys();
    }

    // once the plan has assigned its workers
    void assign_work() {
        const i64 heads = c.batch * c.kv_heads;
        const bool even = 20 * heads >= 19 * round_up(heads, plan.workers);
        const bool fill = plan.workers == 1 || (even && heads >= HEADS_IN_TURN * plan.workers);
        in_turn = plan.head_per_worker || plan.by_segment || (heads_are_apart() && fill);
        slots = in_turn ? min(2, plan.by_segment ? plan.group : of_head()) : count;
        keys = plan.by_segment ? round_up(plan.segment_keys, NB) : plan.mp, key_blocks = keys / NB;
    }

    void lay_out(Memory& memory) {
        const i64 all = in_turn ? plan.workers * slots : slots;
        if (c.dk.defined()) dk = memory.take<float>(all * keys * plan.dp);
        if (c.dv_.defined()) dv = memory.take<float>(all * keys * plan.dvp);
        touched = memory.take<uint8_t>(all * key_blocks);
    }

    i64 of_head() const { return plan.group * chunks; }  // tasks of a head of keys
    bool heads_are_apart() const { return !together && batch_in_item * heads_in_item == 1; }
    i64 items() const { return count / (batch_in_item * heads_in_item); }

    // Calls visit(b, h, chunk) for the tasks of an item.
    template <class Visit>
    void for_each(i64 item, Visit visit) const {
        const i64 groups = c.heads / heads_in_item, first = item / chunks;
        for (i64 b = first / groups * batch_in_item, x = 0; x < batch_in_item; x++)
            for (i64 h = first % groups * heads_in_item, y = 0; y < heads_in_item; y++) visit(b + x, h + y, item % chunks);
    }

    i64 number(i64 b, i64 h, i64 chunk) const { return (b * c.heads + h) * chunks + chunk; }

    void begin(i64 slot) const { memset(touched + slot * key_blocks, 0, (size_t)key_blocks); }

    template <class Visit>
    void blocks(i64 chunk, Visit visit) const {
        const i64 last = contiguous ? first_block(chunk + 1) : plan.blocks;
        for (i64 block = contiguous ? first_block(chunk) : chunk; block < last; block += contiguous ? 1 : chunks) visit(block);
    }

    // Calls visit(segment) for the segments of a row that belong to a chunk, by its share of the queries.
    template <class Visit>
    void segments(i64 b, i64 chunk, Visit visit) const {
        for (i64 x = 0; x < plan.segments; x++) {
            const Segment& s = plan.segment[x];
            if (s.b == b && s.i0 * chunks / c.n == chunk) visit(s);
        }
    }

    // zeroes the sums of the keys low … high − 1 of a slot at their first use: keys that no query sees are never touched
    void touch(i64 slot, i64 low, i64 high) const {
        for (i64 block = low / NB; block * NB < high; block++) {
            if (touched[slot * key_blocks + block]) continue;
            touched[slot * key_blocks + block] = 1;
            const i64 row = slot * keys + block * NB;
            if (dk) memset(dk + row * plan.dp, 0, (size_t)(NB * plan.dp * 4));
            if (dv) memset(dv + row * plan.dvp, 0, (size_t)(NB * plan.dvp * 4));
        }
    }

    // the gradients of a block of keys and values from the sums of all tasks
    void reduce(i64 item) const {
        const i64 head = item / key_blocks;
        reduce(plan.whole(head / c.kv_heads), head % c.kv_heads, item % key_blocks, head * of_head(), of_head());
    }

    // the gradients of a segment and head h of keys from the sums of a worker, which computed its tasks in turn
    void reduce(const Segment& s, i64 h, i64 first) const {
        for (i64 block = 0; block * NB < s.j1 - s.j0; block++) reduce(s, h, block, first, 1);
    }

    // adds the sums of a worker's task to those of its tasks before
    void add_task(i64 first) const {
        const uint8_t* found = touched + (first + 1) * key_blocks;
        for (i64 block = 0; block < key_blocks; block++) {
            if (!found[block]) continue;
            uint8_t& before = touched[first * key_blocks + block];
            if (dk) add_task(dk, first, block, plan.dp, before);
            if (dv) add_task(dv, first, block, plan.dvp, before);
            before = 1;
        }
    }

  private:
    static constexpr i64 HEADS_IN_TURN = 4;  // least heads of each worker, so that all end at about the same time

    i64 first_block(i64 chunk) const { return chunk * plan.blocks / chunks; }

    // Whether contiguous chunks see mostly different keys, as with windows or documents, and about the same number of them:
    // few sums are then shared. In causal attention the last queries see the most keys, so blocks alternate between chunks.
    bool splits_keys() const {
        RowRanges ranges;
        for (i64 b = 0; b < c.batch; b++) {
            i64 keys = 0, pairs = 0, max_pairs = 0;
            for (i64 chunk = 0; chunk < chunks; chunk++) {
                i64 low = c.m, high = 0, chunk_pairs = 0;
                for (i64 block = first_block(chunk); block < first_block(chunk + 1); block++) {
                    const i64 rows = min(MB, c.n - block * MB);
                    row_ranges(c, b, block * MB, rows, ranges);
                    if (ranges.low < ranges.high) low = min(low, ranges.low), high = max(high, ranges.high);
                    for (i64 s = 0; s < ranges.count; s++)
                        for (i64 r = 0; r < rows; r++) chunk_pairs += ranges.stop[s][r] - ranges.start[s][r];
                }
                keys += max(0, high - low), pairs += chunk_pairs, max_pairs = max(max_pairs, chunk_pairs);
            }
            if (4 * keys > 5 * c.m || 4 * chunks * max_pairs > 5 * pairs) return false;
        }
        return true;
    }

    void add_task(float* sums, i64 first, i64 block, i64 width, bool before) const {
        const i64 size = NB * width;
        float *total = sums + (first * keys + block * NB) * width, *found = total + keys * width;
        if (before)
            add_to(total, found, size);
        else
            memcpy(total, found, (size_t)(size * 4));
    }

    void reduce(const Segment& s, i64 h, i64 block, i64 first, i64 count) const {
        if (dk) reduce(c.dk, dk, s, h, block, first, count, plan.dp, c.d);
        if (dv) reduce(c.dv_, dv, s, h, block, first, count, plan.dvp, c.dv);
    }

    void reduce(const Tensor& to, float* sums, const Segment& s, i64 h, i64 block, i64 first, i64 count, i64 width, i64 d) const {
        const i64 from = s.j0 + block * NB, rows = min(NB, s.j1 - from);
        float* total = nullptr;
        for (i64 slot = first; slot < first + count; slot++) {
            if (!touched[slot * key_blocks + block]) continue;
            float* found = sums + (slot * keys + block * NB) * width;
            if (total)
                add_to(total, found, rows * width);
            else
                total = found;
        }
        if (!total) memset(total = sums + (first * keys + block * NB) * width, 0, (size_t)(rows * width * 4));
        for (i64 r = 0; r < rows; r++) store_row<T>(to, s.b, h, from + r, d, total + r * width);
    }
};

}  // namespace
