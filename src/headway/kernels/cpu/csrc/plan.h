// What the workers of one call share: sizes, packed keys and values, memory.
#pragma once
#include <stdlib.h>
#include <sys/mman.h>

#include "mask.h"
#include "pack.h"
#include "pool.h"
#include "positions.h"

#if defined(__SANITIZE_ADDRESS__)  // what lies between two pieces of working memory is nobody's, and new memory is NaN
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

// Large new memory is asked to lie on huge pages: its first touch costs a third of what small ones cost.
inline void on_huge_pages(void* memory, i64 bytes) {
#if defined(MADV_HUGEPAGE)
    char *from = (char*)up((i64)memory, HUGE_PAGE), *to = (char*)memory + bytes;
    if (to - from >= HUGE_PAGE) madvise(from, (size_t)((to - from) / HUGE_PAGE * HUGE_PAGE), MADV_HUGEPAGE);
#endif
}

// The same for a result, from the size on that no allocator hands out again.
inline void on_huge_pages(const Tensor& t, i64 item, i64 a, i64 b, i64 c, i64 d) {
    if (!t.there() || !a || !b || !c || !d) return;
    const i64 bytes = item + item * ((a - 1) * t.stride[0] + (b - 1) * t.stride[1] + (c - 1) * t.stride[2] + (d - 1) * t.stride[3]);
    if (bytes >= (i64)32 << 20) on_huge_pages(t.data, bytes);
}

// Memory taken in one piece: laid out once to measure it and once to hand it out. A multiple of 64 bytes each.
//
// The last piece is kept for the next call, up to KEPT bytes: fresh pages would cost a few percent of every call.
class Memory {
  public:
    template <class X>
    X* take(i64 count) {
        X* here = base_ ? (X*)(base_ + used_) : nullptr;
        i64 bytes;
        if (__builtin_mul_overflow(count, (i64)sizeof(X), &bytes) || __builtin_add_overflow(used_, up(bytes, 64) + 64, &used_))
            used_ = TOO_MUCH;  // + 64: apart, so that no two workers share a line of the cache
        if (here) HW_OPEN(here, bytes);
        return here;
    }

    bool allocate() {
        if (used_ >= TOO_MUCH) return false;
        piece_ = __atomic_exchange_n(&spare_, nullptr, __ATOMIC_ACQ_REL);
        if (piece_ && piece_->bytes < used_) {
            free(piece_);
            piece_ = nullptr;
        }
        if (!piece_) {
            void* found = nullptr;
            const i64 bytes = up(used_ + 64, HUGE_PAGE);
            if (posix_memalign(&found, bytes > HUGE_PAGE ? HUGE_PAGE : 64, (size_t)(bytes > HUGE_PAGE ? bytes : used_ + 64))) return false;
            on_huge_pages(found, bytes);
            piece_ = (Piece*)found;
            piece_->bytes = used_;
        }
        base_ = (char*)piece_ + 64;
        HW_CLOSE(base_, used_);
        used_ = 0;
        return true;
    }

    ~Memory() {
        if (base_) HW_OPEN(base_, piece_->bytes);
        if (piece_ && piece_->bytes <= KEPT) piece_ = __atomic_exchange_n(&spare_, piece_, __ATOMIC_ACQ_REL);
        free(piece_);
    }

  private:
    static constexpr i64 KEPT = (i64)256 << 20, TOO_MUCH = (i64)1 << 60;
    struct Piece {
        i64 bytes;
    };
    static Piece* spare_;
    Piece* piece_ = nullptr;
    char* base_ = nullptr;
    i64 used_ = 0;
};

Memory::Piece* Memory::spare_ = nullptr;

// Keys and values of one head, packed for products
struct Packed {
    float *k_panels, *v_panels;  // [mp / NR][words][NR]: Kᵀ as the B of q·kᵀ
    float *k_rows, *v_rows;      // [mp / PER_WORD][width]: the B of a product over keys
    uint8_t* seen;               // [mp], filled where something is not finite: which keys some query may see
    bool hidden;                 // the others are zeros, for 0·NaN is NaN
};

template <class T, class Words>
struct Plan {
    const Call& c;
    const i64 group, blocks, key_blocks, mp, dp, dvp, kw, vw;
    i64 workers = 1;
    bool own = false;          // a worker packs a head for itself alone and does all of it, while that is near
    Packed* packed = nullptr;  // of all heads; or of those that workers have at hand

    explicit Plan(const Call& call)
        : c(call),
          group(call.heads / call.kv_heads),
          blocks((call.n + MB - 1) / MB),
          key_blocks((call.m + NB - 1) / NB),
          mp(up(call.m, NB)),
          dp(up(call.d, W)),
          dvp(up(call.dv, W)),
          kw(words_of(call.d, Words::PER_WORD)),
          vw(words_of(call.dv, Words::PER_WORD)) {}

    // Heads are given out whole where they are small and come out even.
    void share_out(bool whole) {
        const i64 threads = hw_workers(c.threads, c.threads), heads = c.batch * c.kv_heads;
        const i64 bytes = 4 * mp * (kw + dvp + (c.backward ? dp + vw : 0));
        own = whole && bytes <= ((i64)512 << 10) && 10 * heads >= 9 * up(heads, threads);
        workers = hw_workers(c.threads, own ? heads : most(c.batch * c.heads * blocks, packs()));
    }

    void lay_out(Memory& memory) {
        const i64 slots = own ? workers : c.batch * c.kv_heads;
        Packed spare, *found = memory.take<Packed>(slots);
        for (i64 i = 0; i < slots; i++) {
            Packed& p = found ? found[i] : spare;
            p = {memory.take<float>(mp * kw), nullptr, nullptr, nullptr, memory.take<uint8_t>(mp), false};
            if (c.backward) {
                p.k_rows = memory.take<float>(mp / Words::PER_WORD * dp);
                p.v_panels = memory.take<float>(mp * vw);
            } else {
                p.v_rows = memory.take<float>(mp / Words::PER_WORD * dvp);
            }
        }
        packed = found;
        scratch = memory.take<float>(workers * scratch_floats());
    }

    i64 packs() const { return c.batch * c.kv_heads * key_blocks; }

    i64 head_of(i64 b, i64 h) const { return b * c.kv_heads + h / group; }

    // Whether keys or values hold what is not finite, and what is not seen has to be hidden: then what follows packing
    // does nothing, and after `hide_unseen` all has to be done again.
    bool spoiled() const { return !own && !hidden && __atomic_load_n(&odd, __ATOMIC_RELAXED); }

    // before packing: keys that are not packed
    void look() {
        for (i64 i = 0; i < c.terms; i++)
            if (c.term[i].kind == RELATIVE_QUERIES && c.term[i].other.there()) odd |= !finite(c.term[i].other, c.term[i].width);
    }

    void hide_unseen() {
        for (i64 head = 0; head < c.batch * c.kv_heads; head++) hide_unseen(packed[head], head);
        hidden = true;
    }

    static void pack_item(void* plan, i64 item, i64 worker) {
        Plan& self = *(Plan*)plan;
        const i64 head = item / self.key_blocks;
        if (!self.pack_block(self.packed[head], head, item % self.key_blocks, worker)) __atomic_store_n(&self.odd, true, __ATOMIC_RELAXED);
    }

    void pack_own(i64 head, i64 worker) {
        Packed& p = packed[worker];
        p.hidden = false;
        bool finite = !odd;
        for (i64 block = 0; block < key_blocks; block++) finite &= pack_block(p, head, block, worker);
        if (finite) return;
        hide_unseen(p, head);
        for (i64 block = 0; block < key_blocks; block++) pack_block(p, head, block, worker);
    }

  private:
    float* scratch;
    bool odd = false, hidden = false;
    i64 scratch_floats() const { return (NR + 2) * (most(dp, dvp) + W) * 2 + 256; }

    bool finite(const Tensor& keys, i64 width) const {
        float odd = 0;
        for (i64 b = 0; b < c.batch; b++)
            for (i64 h = 0; h < c.kv_heads; h++)
                for (i64 j = 0; j < c.m; j++)
                    for (i64 x = 0; x < width; x++) odd += *keys.at<float>(b, h, j, x) * 0.f;
        return odd == 0;
    }

    void hide_unseen(Packed& p, i64 head) const {
        memset(p.seen, 0, (size_t)mp);
        for (i64 g = 0; g < group; g++) visible(c, head / c.kv_heads, head % c.kv_heads * group + g, p.seen);
        p.hidden = true;
    }

    // whether all of it is finite
    bool pack_block(const Packed& p, i64 head, i64 block, i64 worker) const {
        bool finite = true;
        float* x = scratch + worker * scratch_floats();
        for (i64 row = block * NB; row < least((block + 1) * NB, up(c.m, NR)); row += NR) {
            finite &= pack_panel(p, c.k, head, row, c.d, kw, p.k_panels, p.k_rows, dp, x);
            finite &= pack_panel(p, c.v, head, row, c.dv, vw, p.v_panels, p.v_rows, dvp, x);
        }
        return finite;
    }

    bool pack_panel(const Packed& p, const Tensor& t, i64 head, i64 row, i64 d, i64 words, float* panels, float* natural, i64 ld, float* x) const {
        const i64 rows = most(0, least(NR, c.m - row));
        float* bits = x + NR * (ld + W);
        if (panels) panels += row * words;
        if (natural) natural += row / Words::PER_WORD * ld;
        if (natural && Words::PER_WORD == 1) x = natural;
#if defined(__AVX512BF16__)
        if (Words::PER_WORD > 1 && t.stride[3] == 1 && t.stride[2] % 2 == 0 && d == ld && rows == NR && !p.hidden) {
            const uint16_t* from = t.at<uint16_t>(head / c.kv_heads, head % c.kv_heads, row);  // words as they lie there
            const bool finite = pair_rows(from, t.stride[2], NR, d, natural);
            if (panels) transpose((const float*)from, t.stride[2] / 2, words, panels);
            return finite;
        }
#endif
        bool finite = load_rows<T>(t, head / c.kv_heads, head % c.kv_heads, row, rows, d, x, ld, ld);
        if (rows < NR) memset(x + rows * ld, 0, (size_t)((NR - rows) * ld * 4));
        if (p.hidden)
            for (i64 r = 0; r < rows; r++)
                if (!p.seen[row + r]) memset(x + r * ld, 0, (size_t)(ld * 4));
        if (natural) as_pairs<Words>(x, ld, NR, ld, natural, ld);
        if (panels) transpose(as_rows<Words>(x, ld, NR, words, bits), ld, words, panels);
        return finite;
    }
};

}  // namespace
