// The plan of a call, which its workers share: sizes, packed keys and values, memory.
#pragma once
#include <stdlib.h>
#include <type_traits>
#include <sys/mman.h>

#include "mask.h"
#include "pack.h"
#include "pool.h"
#include "positions.h"
#include "segments.h"

#if defined(__SANITIZE_ADDRESS__)  // the gaps between allocations are poisoned, and new memory is NaN
#include <sanitizer/asan_interface.h>
#define HW_CLOSE(memory, bytes) (memset(memory, 0xff, (size_t)(bytes)), __asan_poison_memory_region(memory, (size_t)(bytes)))
#define HW_OPEN(memory, bytes) __asan_unpoison_memory_region(memory, (size_t)(bytes))
#else
#define HW_CLOSE(memory, bytes)
#define HW_OPEN(memory, bytes)
#endif

namespace {

constexpr i64 MB = 48;       // queries in a block
constexpr i64 NB = 192;      // keys in a block: whole panels for every vector length
constexpr i64 LD = NB + 32;  // floats from one row of a tile to the next
static_assert(NB % NR == 0, "a block of keys is whole panels");

constexpr i64 HUGE_PAGE = (i64)2 << 20;

// Requests huge pages for large new memory: their first touch costs a third of that of small pages.
inline void on_huge_pages(void* memory, i64 bytes) {
#if defined(MADV_HUGEPAGE)
    char *from = (char*)round_up((i64)memory, HUGE_PAGE), *to = (char*)memory + bytes;
    if (to - from >= HUGE_PAGE) madvise(from, (size_t)((to - from) / HUGE_PAGE * HUGE_PAGE), MADV_HUGEPAGE);
#endif
}

// The same for a result that is too large for allocators to reuse its memory.
inline void on_huge_pages(const Tensor& t, i64 item, i64 a, i64 b, i64 c, i64 d) {
    if (!t.defined() || !a || !b || !c || !d) return;
    const i64 last = (a - 1) * t.stride[0] + (b - 1) * t.stride[1] + (c - 1) * t.stride[2] + (d - 1) * t.stride[3];
    const i64 bytes = item * (1 + last);
    if (bytes >= (i64)32 << 20) on_huge_pages(t.data, bytes);
}

// One arena for all working memory, in multiples of 64 bytes. It is laid out twice: to measure it, and to assign it.
//
// The next call reuses the last arena, up to KEPT bytes, since new pages take a few percent of a call's time.
class Memory {
  public:
    template <class X>
    X* take(i64 count) {
        X* here = base_ ? (X*)(base_ + used_) : nullptr;
        i64 bytes;
        if (__builtin_mul_overflow(count, (i64)sizeof(X), &bytes) ||
            __builtin_add_overflow(used_, round_up(bytes, 64) + 64, &used_))
            used_ = TOO_MUCH;  // + 64, so that workers never share a cache line
        if (here) HW_OPEN(here, bytes);
        return here;
    }

    bool allocate() {
        if (used_ >= TOO_MUCH) return false;
        arena_ = __atomic_exchange_n(&spare_, nullptr, __ATOMIC_ACQ_REL);
        if (arena_ && arena_->bytes < used_) {
            free(arena_);
            arena_ = nullptr;
        }
        if (!arena_) {
            void* found = nullptr;
            const i64 bytes = round_up(used_ + 64, HUGE_PAGE);
            const bool huge = bytes > HUGE_PAGE;
            if (posix_memalign(&found, huge ? HUGE_PAGE : 64, (size_t)(huge ? bytes : used_ + 64))) return false;
            on_huge_pages(found, bytes);
            arena_ = (Arena*)found;
            arena_->bytes = used_;
        }
        base_ = (char*)arena_ + 64;
        HW_CLOSE(base_, used_);
        used_ = 0;
        return true;
    }

    ~Memory() {
        if (base_) HW_OPEN(base_, arena_->bytes);
        if (arena_ && arena_->bytes <= KEPT) arena_ = __atomic_exchange_n(&spare_, arena_, __ATOMIC_ACQ_REL);
        free(arena_);
    }

  private:
    static constexpr i64 KEPT = (i64)256 << 20, TOO_MUCH = (i64)1 << 60;
    struct Arena {
        i64 bytes;
    };
    static Arena* spare_;
    Arena* arena_ = nullptr;
    char* base_ = nullptr;
    i64 used_ = 0;
};

Memory::Arena* Memory::spare_ = nullptr;

// Keys and values of one head, packed for products (README.md has a picture)
struct Packed {
    float *k_panels, *v_panels;  // [mp / NR][packed_k][NR]: Kᵀ as B of q·kᵀ, Vᵀ as B of dO·vᵀ
    float *k_rows, *v_rows;      // [mp / K_PACK][width]: B of a product over keys
    uint8_t* seen;               // [mp], only if something is not finite: whether any query may see the key
    bool hidden;                 // keys that no query sees are zeroed, since 0·NaN is NaN
    i64 first, last;             // the keys first … last − 1 are packed, and zeros behind them
    const float* values;         // the unpacked values from `first` on, in place of v_rows; or null
};

template <class T, class Packing>
struct Plan {
    const Call& c;
    const i64 group, blocks, key_blocks, mp, dp, dvp, d_packed, dv_packed;
    i64 workers = 1;
    bool head_per_worker = false;  // a worker packs a head and computes all of it while it is in cache
    bool packs_tiles = false;      // a worker packs one tile at a time for all queries that see it
    bool by_segment = false;       // a worker packs the keys of a segment and a head, and computes its queries
    i64 segments = 0, segment_keys = 0;  // by_segment: their number, and the keys of the largest
    i64 segment_parts = 1;         // forward, by segment: workers that share the queries of a segment
    Segment* segment = nullptr;
    Packed* packed = nullptr;      // one for each head of keys, or for each worker

    explicit Plan(const Call& call)
        : c(call),
          group(call.heads / call.kv_heads),
          blocks((call.n + MB - 1) / MB),
          key_blocks((call.m + NB - 1) / NB),
          mp(round_up(call.m, NB)),
          dp(round_up(call.d, W)),
          dvp(round_up(call.dv, W)),
          d_packed(packed_k_of(call.d, Packing::K_PACK)),
          dv_packed(packed_k_of(call.dv, Packing::K_PACK)) {}

    // Finds the segments, if a row has several and all are small. Only the mask and the sizes may decide this, since blocks
    // of queries and tiles begin with a segment.
    void find_segments() {
        if (c.intervals != 1 || !c.start[0].stride[1]) return;
        bool rise = true;
        i64 most = 0, total = 0;  // blocks
        for (i64 b = 0; b < c.batch && rise; b++)
            rise = for_each_segment(c, b, NB, [&](const Segment& s) {
                segments++;
                segment_keys = max(segment_keys, s.j1 - s.j0), most = max(most, blocks_of(s)), total += blocks_of(s);
            });
        by_segment = rise && segments > c.batch && bytes_of(round_up(segment_keys, NB)) <= 4 * CACHED;
        if (by_segment) segment_parts = min(most, 1 + 4 * c.threads * most / (total * c.kv_heads));
    }

    // One worker computes a whole head if the head is small and the heads divide evenly among threads. It also computes a
    // large head with few queries (one block), so that packing adds no memory traffic.
    void assign_work(bool whole, bool tiles) {
        const i64 threads = hw_workers(c.threads, c.threads), heads = c.batch * c.kv_heads;
        const bool even = 10 * heads >= 9 * round_up(heads, threads);
        head_per_worker = whole && !by_segment && even && bytes_of(mp) <= CACHED;
        packs_tiles = tiles && !by_segment && even && !head_per_worker && blocks == 1;
        const i64 items = by_segment ? segment_items() : for_each_worker() ? heads : max(c.batch * c.heads * blocks, packs());
        workers = hw_workers(c.threads, items);
    }

    void lay_out(Memory& memory) {
        const i64 slots = for_each_worker() ? workers : c.batch * c.kv_heads;
        const i64 keys = packs_tiles ? NB : by_segment ? round_up(segment_keys, NB) : mp;
        Packed spare, *found = memory.take<Packed>(slots);
        for (i64 i = 0; i < slots; i++) {
            Packed& p = found ? found[i] : spare;
            p = {memory.take<float>(keys * d_packed), nullptr, nullptr, nullptr, memory.take<uint8_t>(mp), false, 0, c.m, nullptr};
            if (c.backward) {
                p.k_rows = memory.take<float>(keys / Packing::K_PACK * dp);
                p.v_panels = memory.take<float>(keys * dv_packed);
            } else {
                p.v_rows = memory.take<float>(keys / Packing::K_PACK * dvp);
            }
        }
        packed = found;
        scratch = memory.take<float>(workers * scratch_floats());
        if (!by_segment) return;
        Segment* next = segment = memory.take<Segment>(segments);
        for (i64 b = 0; b < c.batch && next; b++) for_each_segment(c, b, NB, [&](const Segment& s) { *next++ = s; });
    }

    // whether `packed` has one for each worker
    bool for_each_worker() const { return head_per_worker || packs_tiles || by_segment; }

    i64 segment_items() const { return segments * c.kv_heads * segment_parts; }
    static i64 blocks_of(const Segment& s) { return (s.i1 - s.i0 + MB - 1) / MB; }
    Segment whole(i64 b) const { return {b, 0, c.n, 0, c.m}; }

    i64 packs() const { return c.batch * c.kv_heads * key_blocks; }

    // Whether each task has its own sums of a dense bias's gradient: several tasks add to it, and the sums take at most twice
    // the memory of a task's sums for keys and values.
    bool has_own_sums(const Tensor& grad) const {
        const bool shared = (c.batch > 1 && !grad.stride[0]) || (c.heads > 1 && !grad.stride[1]) || !grad.stride[2];
        return shared && own_sums(grad) <= mp * (dp + dvp);
    }

    i64 own_sums(const Tensor& grad) const { return (grad.stride[2] ? c.n : 1) * (grad.stride[3] ? mp : 1); }

    i64 head_of(i64 b, i64 h) const { return b * c.kv_heads + h / group; }

    // Whether some keys or values are not finite and some are not seen. The stages after packing then do nothing, and must
    // run again after `hide_unseen`.
    bool must_hide_unseen() const { return !for_each_worker() && !hidden && __atomic_load_n(&nonfinite, __ATOMIC_RELAXED); }

    // before packing: the keys of relative queries, which are not packed
    void check_relative_keys() {
        for (i64 i = 0; i < c.terms; i++)
            if (c.term[i].kind == RELATIVE_QUERIES && c.term[i].unprepared.defined())
                nonfinite |= !finite(c.term[i].unprepared, c.term[i].width);
    }

    void hide_unseen() {
        for (i64 head = 0; head < c.batch * c.kv_heads; head++) hide_unseen(packed[head], head);
        hidden = true;
    }

    static void pack_item(void* plan, i64 item, i64 worker) {
        Plan& self = *(Plan*)plan;
        const i64 head = item / self.key_blocks;
        if (!self.pack_block(self.packed[head], head, item % self.key_blocks, worker))
            __atomic_store_n(&self.nonfinite, true, __ATOMIC_RELAXED);
    }

    // packs the keys of a segment for head h of keys
    void pack(const Segment& s, i64 h, i64 worker) {
        Packed& p = packed[worker];
        const i64 head = s.b * c.kv_heads + h;
        p.hidden = false, p.first = s.j0, p.last = s.j1;
        if (pack_keys(p, head, s.j0, s.j1, worker) && !nonfinite) return;
        hide_unseen(p, head);
        pack_keys(p, head, s.j0, s.j1, worker);
    }

    void begin_tiles(i64 head, i64 worker) {
        packed[worker].hidden = false;
        if (nonfinite) hide_unseen(packed[worker], head);
    }

    // Packs the keys first + c0 … first + c1 − 1. If all queries see all of them, no key must be hidden, and floats are
    // read in place.
    void pack_tile(i64 head, i64 first, i64 c0, i64 c1, bool all_seen, i64 worker) {
        Packed& p = packed[worker];
        const i64 b = head / c.kv_heads, h = head % c.kv_heads;
        const bool whole = all_seen && !p.hidden && std::is_same<T, F32>::value && (c1 - c0) % NR == 0;
        const bool keys = whole && c.k.stride[3] == 1, values = whole && c.v.stride[3] == 1 && c.dv == dvp;
        p.first = first, p.values = nullptr;
        if (keys && values) {
            for (i64 x = c0; x < c1; x += NR) {
                for (i64 j = first + x; j < first + x + NR; j++) {
                    prefetch<T>(c.k, b, h, min(c.m - 1, j + NR), c.d);
                    prefetch<T>(c.v, b, h, j, c.dv);
                }
                transpose(c.k.template at<float>(b, h, first + x), c.k.stride[2], d_packed, p.k_panels + x * d_packed);
            }
            p.values = c.v.template at<float>(b, h, first);
            return;
        }
        if (pack_keys(p, head, first + c0, first + c1, worker) || p.hidden) return;
        hide_unseen(p, head);
        pack_keys(p, head, first + c0, first + c1, worker);
    }

  private:
    static constexpr i64 CACHED = (i64)640 << 10;  // bytes of packed keys and values that stay in a worker's cache
    float* scratch;
    bool nonfinite = false, hidden = false;
    i64 scratch_floats() const { return (NR + 2) * (max(dp, dvp) + W) * 2 + 256; }

    i64 bytes_of(i64 keys) const { return 4 * keys * (d_packed + dvp + (c.backward ? dp + dv_packed : 0)); }

    bool finite(const Tensor& keys, i64 width) const {
        float nonfinite = 0;
        for (i64 b = 0; b < c.batch; b++)
            for (i64 h = 0; h < c.kv_heads; h++)
                for (i64 j = 0; j < c.m; j++)
                    for (i64 x = 0; x < width; x++) nonfinite += *keys.at<float>(b, h, j, x) * 0.f;
        return nonfinite == 0;
    }

    void hide_unseen(Packed& p, i64 head) const {
        memset(p.seen, 0, (size_t)mp);
        for (i64 g = 0; g < group; g++) visible(c, head / c.kv_heads, head % c.kv_heads * group + g, p.seen);
        p.hidden = true;
    }

    bool pack_block(const Packed& p, i64 head, i64 block, i64 worker) const {
        return pack_keys(p, head, block * NB, min((block + 1) * NB, c.m), worker);
    }

    // Packs whole panels from the key `from` on; returns whether all numbers are finite.
    bool pack_keys(const Packed& p, i64 head, i64 from, i64 to, i64 worker) const {
        bool finite = true;
        float* x = scratch + worker * scratch_floats();
        for (i64 row = from; row < to; row += NR) {
            finite &= pack_panel(p, c.k, head, row, c.d, d_packed, p.k_panels, p.k_rows, dp, x);
            finite &= pack_panel(p, c.v, head, row, c.dv, dv_packed, p.v_panels, p.v_rows, dvp, x);
        }
        return finite;
    }

    // Packs NR keys or values from `row` on into both layouts (null: not wanted); returns whether all are finite.
    bool pack_panel(const Packed& p, const Tensor& t, i64 head, i64 row, i64 d, i64 packed_k, float* panels,
                    float* row_major_panel, i64 ld, float* x) const {
        const i64 rows = max(0, min(NR, p.last - row));
        float* bits = x + NR * (ld + W);
        if (panels) panels += (row - p.first) * packed_k;
        if (row_major_panel) row_major_panel += (row - p.first) / Packing::K_PACK * ld;
        if (row_major_panel && Packing::K_PACK == 1) x = row_major_panel;
#if defined(HW_BF16_PAIRS)
        if (Packing::K_PACK > 1 && t.stride[3] == 1 && t.stride[2] % 2 == 0 && d == ld && rows == NR && !p.hidden) {
            // in memory, rows of bf16 are packed already
            const uint16_t* from = t.at<uint16_t>(head / c.kv_heads, head % c.kv_heads, row);
            const bool finite = pair_rows(from, t.stride[2], NR, d, row_major_panel);
            if (panels) transpose((const float*)from, t.stride[2] / 2, packed_k, panels);
            return finite;
        }
#endif
        bool finite = load_rows<T>(t, head / c.kv_heads, head % c.kv_heads, row, rows, d, x, ld, ld);
        if (rows < NR) memset(x + rows * ld, 0, (size_t)((NR - rows) * ld * 4));
        if (p.hidden)
            for (i64 r = 0; r < rows; r++)
                if (!p.seen[row + r]) memset(x + r * ld, 0, (size_t)(ld * 4));
        if (row_major_panel) pack_row_pairs<Packing>(x, ld, NR, ld, row_major_panel, ld);
        if (panels) transpose(pack_rows<Packing>(x, ld, NR, packed_k, bits), ld, packed_k, panels);
        return finite;
    }
};

}  // namespace
