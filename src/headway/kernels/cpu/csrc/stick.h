// Stick-breaking: from its last key to its first, a row gives each key the share σ(score) of the rest of 1.
#pragma once
#include "tile.h"

namespace {

// σ(z) and 1 − σ(z), neither as a difference
struct Share {
    vf taken, left;
};

inline Share share_of(vf z) {
    const vf e = exp_of<6>((vf)((vi)z | (int32_t)0x80000000)), large = 1.f / (1.f + e), small = e * large;
    const vi positive = (vi)(z > 0.f);
    return {select(positive, large, small), select(positive, small, large)};
}

// Breaks a row at the columns from … to − 1, whole vectors. `left` is the rest after later keys. Returns the rest after
// these columns, 0 if a float cannot represent it.
//
// visit(x, share, weights): called for the keys x … x + W − 1
template <class Visit>
inline double break_row(const float* score, i64 from, i64 to, double left, Visit visit) {
    for (i64 x = to - W; x >= from; x -= W) {
        const Share share = share_of(load(score + x));
        const vf products = suffix_products(share.left);
        visit(x, share, share.taken * shift_down<1>(products, broadcast(1.f)) * (float)left);
        left *= products[0];
    }
    return left < 1e-38 ? 0 : left;
}

// a query and its own token in a tile
struct Own {
    uint8_t row, column;
};

}  // namespace
