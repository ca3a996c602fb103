// Piecewise linear biases: intercept[s] + slope[s]·t, t = u·stretch, u = ln(1 + stretch_rate·|δ|), s = the number of edges
// ≤ t.
//
// bias_by_distance holds u. Along a run of keys, t rises or falls on each side of the query, so most vectors lie in one
// piece. They cost one multiply-add, and one more with a comparison for each edge within them.
#pragma once
#include "relative.h"

namespace {

inline float log_distance(double stretch_rate, double distance) { return (float)log1p(stretch_rate * fabs(distance)); }

// ∂u/∂stretch_rate
inline float log_distance_slope(double stretch_rate, double distance) {
    return (float)(fabs(distance) / (1 + stretch_rate * fabs(distance)));
}

// the first `count` lanes of a vector, 0 in the others
inline vf first_lanes(vf x, i64 count) {
    if (count >= W) return x;
    vi lane;
    for (int i = 0; i < W; i++) lane[i] = i;
    return select((vi)(lane < (int32_t)count), x, vf{});
}

// Sums of the gradients of a tile by piece, one for each lane, [pieces][intercept, slope][W], cleared at the first use;
// and sums for the stretch rate.
struct PieceSums {
    float* lanes;
    i64 low = 0, high = -1;
    vf d_stretch_rate = {};

    float* at(i64 s) {
        if (low > high) low = s, high = s - 1;
        while (low > s) clear(--low);
        while (high < s) clear(++high);
        return lanes + 2 * W * s;
    }

    void clear(i64 s) { store(lanes + 2 * W * s, vf{}), store(lanes + 2 * W * s + W, vf{}); }

    // to intercept [pieces], slope [pieces] and stretch rate
    void add_to(double* sums, i64 pieces) const {
        for (i64 s = low; s <= high; s++) {
            sums[s] += sum(load(lanes + 2 * W * s));
            sums[pieces + s] += sum(load(lanes + 2 * W * s + W));
        }
        sums[2 * pieces] += sum(d_stretch_rate);
    }
};

// The pieces of a head, stretched for one query.
struct PiecewiseLinear {
    const Term& t;
    i64 h;
    float stretch;
    float edge(i64 s) const { return *t.edges.at<float>(s); }
    float intercept(i64 s) const { return *t.values.at<float>(h, s); }
    float slope(i64 s) const { return *t.slope.at<float>(h, s); }

    // the number of edges ≤ x, searched from a guess on; −1: without a guess
    i64 piece_at(float x, i64 guess) const {
        if (guess < 0) return bucketize<float>(t.edges, t.rows - 1, x);
        while (guess < t.rows - 1 && edge(guess) <= x) guess++;
        while (guess > 0 && !(edge(guess - 1) <= x)) guess--;
        return guess;
    }

    // Divides `count` neighbours in u on one side of the query, and calls visit(x, stop, from, to) for the neighbours
    // x … stop − 1: several vectors in one piece, or one vector from the piece `from` to the piece `to`. guess: the pieces at
    // both ends of a nearby run; set to those of this run.
    template <class Visit>
    void walk(const float* u, i64 count, i64* guess, Visit visit) const {
        const float first = u[0] * stretch, last = u[count - 1] * stretch;
        if (first != first || last != last) {  // some are NaN
            for (i64 x = 0; x < count; x += W) visit(x, min(x + W, count), (i64)0, t.rows - 1);
            return;
        }
        i64 piece = guess[0] = piece_at(first, guess[0]), begin = 0;
        const i64 end = guess[1] = piece_at(last, guess[1]);
        for (i64 x = 0; x < count && piece != end; x += W) {
            const i64 stop = min(x + W, count);
            const float at = u[stop - 1] * stretch;
            i64 next = piece;
            if (piece < end)
                while (next < end && edge(next) <= at) next++;
            else
                while (next > end && !(edge(next - 1) <= at)) next--;
            if (next == piece) continue;
            if (begin < x) visit(begin, x, piece, piece);
            visit(x, stop, piece, next);
            piece = next, begin = stop;
        }
        if (begin < count) visit(begin, count, end, end);
    }

    void add(const float* u, i64 count, i64* guess, float* score) const {
        walk(u, count, guess, [&](i64 x, i64 stop, i64 from, i64 to) {
            const i64 low = min(from, to), high = max(from, to);
            if (from == to) {
                const float shift = intercept(low), factor = slope(low) * stretch;
                for (; x + W <= stop; x += W) store(score + x, load(score + x) + (load(u + x) * factor + shift));
                if (x < stop) store(score + x, load(score + x) + first_lanes(load(u + x) * factor + shift, stop - x));
                return;
            }
            const vf at = load(u + x) * stretch;
            vf value = at * slope(low) + intercept(low);
            for (i64 s = low + 1; s <= high; s++)
                value = select((vi)(at < edge(s - 1)), value, at * slope(s) + intercept(s));  // NaN: in the last piece
            store(score + x, load(score + x) + first_lanes(value, stop - x));
        });
    }
};

// The gradients of one query along a run. `piece` is the piece whose sums are being collected; −1: none yet.
template <bool RATE>
struct RunGradient {
    const PiecewiseLinear& line;
    PieceSums& sums;
    const bool nonfinite;
    i64 piece = -1;
    vf d_intercept = {}, d_slope = {}, d_rate = {};  // of the piece; d_slope and d_rate not yet times stretch and slope
    vf d_stretch = {};

    RunGradient(const PiecewiseLinear& l, PieceSums& s) : line(l), sums(s), nonfinite(!(l.stretch - l.stretch == 0)) {}

    void add(vf g, vf far, vf by_rate) {
        d_intercept += g, d_slope += g * far;
        if (RATE) d_rate += g * by_rate;
    }

    // adds the sums of the piece to those of the tile
    void flush() {
        // a query that sees no key may have a stretch of NaN
        if (!nonfinite || sum(d_intercept) != 0 || sum(d_slope) != 0) {
            const float factor = line.slope(piece);
            float* to = sums.at(piece);
            store(to, load(to) + d_intercept);
            store(to + W, load(to + W) + d_slope * line.stretch);
            if (RATE) sums.d_stretch_rate += d_rate * (factor * line.stretch);
            d_stretch += d_slope * factor;
        }
        d_intercept = d_slope = d_rate = vf{};
    }

    void start(i64 next) {
        if (piece == next) return;
        if (piece >= 0) flush();
        piece = next;
    }

    // `count` lanes that start in this piece and end in the piece `to`: each edge in between divides them
    void add_across(const float* u, const float* by_rate, const float* grad, i64 count, i64 to) {
        // lanes beyond count may be NaN
        const vf far = first_lanes(load(u), count), rate = RATE ? first_lanes(load(by_rate), count) : vf{};
        const vf at = far * line.stretch;
        vf left = first_lanes(load(grad), count);
        while (piece != to) {
            const bool rises = piece < to;
            const vi below = (vi)(at < line.edge(rises ? piece : piece - 1));
            const vf low = select(below, left, vf{}), high = select(below, vf{}, left);
            left = rises ? high : low;
            add(rises ? low : high, far, rate);
            flush();
            piece += rises ? 1 : -1;
        }
        add(left, far, rate);
    }
};

// Adds the gradients of a run to the sums of a tile; returns the gradient of the stretch.
template <bool RATE>
inline float run_backward(const PiecewiseLinear& line, const float* u, const float* by_rate, i64 count, i64* guess,
                          const float* grad, PieceSums& sums) {
    RunGradient<RATE> run(line, sums);
    line.walk(u, count, guess, [&](i64 x, i64 stop, i64 from, i64 to) {
        run.start(from);
        if (from == to)
            for (; x + W <= stop; x += W) run.add(load(grad + x), load(u + x), RATE ? load(by_rate + x) : vf{});
        if (x < stop) run.add_across(u + x, RATE ? by_rate + x : nullptr, grad + x, stop - x, to);
    });
    if (run.piece >= 0) run.flush();
    return sum(run.d_stretch);
}

// parameters: intercept [pieces], slope [pieces], stretch rate
inline void write_stretched(const Term& t, i64 h, const double* parameters) {
    for (i64 x = 0; x < t.rows && t.values_grad.defined(); x++) *t.values_grad.at<float>(h, x) = (float)parameters[x];
    for (i64 x = 0; x < t.rows && t.slope_grad.defined(); x++)
        *t.slope_grad.at<float>(h, x) = (float)parameters[t.rows + x];
    if (t.stretch_rate_grad.defined()) *t.stretch_rate_grad.at<float>(h) = (float)parameters[2 * t.rows];
}

// Calls visit(row, column, count, u, ∂u/∂rate, guess) for the runs of a tile on each side of the query. If distances are
// gathered, u is computed for each row, except for pairs without a gradient (grad: the tile's gradient, or null), and a run
// ends where u stops rising or falling.
template <class Visit>
inline void stretched_runs(const TermState& s, const Tile& t, const float* grad, Visit visit) {
    const Term& term = *s.t;
    i64 guess[2][2] = {{-1, -1}, {-1, -1}};
    if (!s.dense) {
        const double stretch_rate = *term.stretch_rate.at<float>(0);
        float u[NB + W] = {}, slope[NB + W] = {};
        for (i64 r = 0; r < t.rows; r++) {
            for (i64 x = t.c0; x < t.c1; x++) {
                if (grad && grad[r * LD + x] == 0) {  // u does not matter, so the run continues
                    u[x] = x > t.c0 ? u[x - 1] : 0, slope[x] = 0;
                    continue;
                }
                const double distance = (float)distance_of(*s.c, t.b, t.i0 + r, t.j0 + x, term.axis);
                u[x] = log_distance(stretch_rate, distance);
                if (term.stretch_rate_grad.defined()) slope[x] = log_distance_slope(stretch_rate, distance);
            }
            for (i64 x = t.c0, stop; x < t.c1; x = stop) {
                bool rises = true, falls = true;
                for (stop = x + 1; stop < t.c1; stop++) {
                    rises &= u[stop] >= u[stop - 1], falls &= u[stop] <= u[stop - 1];
                    if (!rises && !falls) break;
                }
                visit(r, x, stop - x, u + x, slope + x, guess[0]);
            }
        }
        return;
    }
    const i64 *q = s.axis->q_at(t), *k = s.axis->k_at(t);
    const int32_t* run = s.axis->run_at(t);
    for (i64 r = 0; r < t.rows; r++)
        for (i64 x = t.c0; x < t.c1;) {
            const i64 many = min(run[x], t.c1 - x), distance = k[x] - q[r], before = -clamp(distance, -many, 0);
            auto side = [&](i64 skip, i64 count, i64* nearby) {
                const i64 at = PAD + distance - s.low + skip;
                if (count) visit(r, x + skip, count, s.bias_by_distance + at,
                                 s.slope_by_distance ? s.slope_by_distance + at : nullptr, nearby);
            };
            side(0, before, guess[0]);
            side(before, many - before, guess[1]);
            x += many;
        }
}

inline void add_stretched(const TermState& s, const Tile& t, float* score) {
    stretched_runs(s, t, nullptr, [&](i64 r, i64 x, i64 count, const float* u, const float*, i64* guess) {
        const PiecewiseLinear pieces = {*s.t, t.h, *s.t->stretch.at<float>(t.b, t.h, t.i0 + r)};
        pieces.add(u, count, guess, score + r * LD + x);
    });
}

// lanes: room for PieceSums; total: intercept [pieces], slope [pieces] and stretch rate
inline void stretched_backward(const TermState& s, const Tile& t, const float* grad, float* lanes, double* total) {
    const Term& term = *s.t;
    PieceSums sums = {lanes};
    stretched_runs(s, t, grad, [&](i64 r, i64 x, i64 count, const float* u, const float* by_rate, i64* guess) {
        const PiecewiseLinear pieces = {term, t.h, *term.stretch.at<float>(t.b, t.h, t.i0 + r)};
        const float* from = grad + r * LD + x;
        const float found = term.stretch_rate_grad.defined()
                                ? run_backward<true>(pieces, u, by_rate, count, guess, from, sums)
                                : run_backward<false>(pieces, u, by_rate, count, guess, from, sums);
        if (term.stretch_grad.defined()) *term.stretch_grad.at<float>(t.b, t.h, t.i0 + r) += found;
    });
    sums.add_to(total, term.rows);
}

}  // namespace
