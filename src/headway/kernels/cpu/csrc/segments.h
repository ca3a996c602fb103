// Segments of a row of the batch: queries whose keys no other queries see, such as a document of a packed row.
#pragma once
#include "mask.h"

namespace hw {

struct Segment {
    i64 b, i0, i1, j0, j1;  // the queries i0 … i1 − 1 and the keys j0 … j1 − 1 of row b
};

// Calls visit(segment) for the segments of a row, which together have all its queries and keys. All except the last have at
// least `least` keys, so a segment may be several documents. Returns false, after some calls, if the keys in sight do not
// rise with the queries.
template <class Visit>
static inline bool for_each_segment(const Call& c, i64 b, i64 least, Visit visit) {
    Segment s = {b, 0, 0, 0, 0};
    i64 seen = 0;  // the end of all keys that queries have seen so far
    for (i64 i = 0; i < c.n; i++) {
        const i64 from = clamp(*c.start[0].at<i64>(b, i), 0, c.m), to = clamp(*c.stop[0].at<i64>(b, i), from, c.m);
        if (from == to) continue;
        if (from < s.j0) return false;
        if (from >= seen && from - s.j0 >= least) {
            s.i1 = i, s.j1 = from;
            visit(s);
            s = {b, i, i, from, from};
        }
        seen = max(seen, to);
    }
    s.i1 = c.n, s.j1 = c.m;
    visit(s);
    return true;
}

}  // namespace hw
