// Biases of straight pieces: intercept[s] + slope[s]·t, t = u·stretch, u = ln(1 + rate·|δ|), s = how many edges are ≤ t.
//
// The strip of the term holds u. Along a run of keys t rises or falls on each side of the query, so that most vectors lie
// in one piece: they cost one multiply-add, and one more, with a comparison, for each edge that falls into them.
#pragma once
#include "relative.h"

namespace {

inline float log_distance(double rate, double delta) { return (float)log1p(rate * fabs(delta)); }

// ∂u/∂rate
inline float log_distance_slope(double rate, double delta) { return (float)(fabs(delta) / (1 + rate * fabs(delta))); }

// the first `count` lanes of a vector, 0 in the others
inline vf first_lanes(vf x, i64 count) {
    if (count >= W) return x;
    vi lane;
    for (int i = 0; i < W; i++) lane[i] = i;
    return choose((vi)(lane < (int32_t)count), x, vf{});
}

// One query's view of the pieces of its head.
struct Pieces {
    const Term& t;
    i64 h;
    float stretch;
    float edge(i64 s) const { return *t.edges.at<float>(s); }
    float intercept(i64 s) const { return *t.values.at<float>(h, s); }
    float slope(i64 s) const { return *t.second.at<float>(h, s); }

    // how many edges are ≤ x, looked for from a guess on; −1 is none
    i64 piece_at(float x, i64 guess) const {
        if (guess < 0) return reached<float>(t.edges, t.rows - 1, x);
        while (guess < t.rows - 1 && edge(guess) <= x) guess++;
        while (guess > 0 && !(edge(guess - 1) <= x)) guess--;
        return guess;
    }

    // Calls visit(x, from, to) for each vector of `count` neighbours in u, on one side of the query: it starts in piece
    // `from` and ends in piece `to`. guess: the pieces at both ends of a run nearby, and then of this one.
    template <class Visit>
    void walk(const float* u, i64 count, i64* guess, Visit visit) const {
        const float first = u[0] * stretch, last = u[count - 1] * stretch;
        if (first != first || last != last) {  // no numbers, or not everywhere
            for (i64 x = 0; x < count; x += W) visit(x, (i64)0, t.rows - 1);
            return;
        }
        i64 piece = guess[0] = piece_at(first, guess[0]);
        const i64 end = guess[1] = piece_at(last, guess[1]);
        for (i64 x = 0; x < count; x += W) {
            i64 next = piece;
            if (piece != end) {
                const float at = u[least(x + W, count) - 1] * stretch;
                if (piece < end)
                    while (next < end && edge(next) <= at) next++;
                else
                    while (next > end && !(edge(next - 1) <= at)) next--;
            }
            visit(x, piece, next);
            piece = next;
        }
    }

    void add(const float* u, i64 count, i64* guess, float* score) const {
        i64 held = -1;
        float shift = 0, factor = 0;
        walk(u, count, guess, [&](i64 x, i64 from, i64 to) {
            const i64 low = least(from, to), high = most(from, to);
            if (low != held) held = low, shift = intercept(low), factor = slope(low) * stretch;
            const vf far = load(u + x);
            vf value = far * factor + shift;
            for (i64 s = low + 1; s <= high; s++) {
                const vf at = far * stretch;
                value = choose((vi)(at >= edge(s - 1)), at * slope(s) + intercept(s), value);
            }
            store(score + x, load(score + x) + first_lanes(value, count - x));
        });
    }

    // adds to the sums of intercept [pieces], slope [pieces] and rate; gives what belongs to the stretch
    template <bool RATE>
    float take(const float* u, const float* by_rate, i64 count, i64* guess, const float* grad, double* sums) const {
        vf plain = {}, far_sums = {}, rate_sums = {};
        float found = 0;
        i64 held = -1;
        auto hand_on = [&] {
            const float g = sum(plain), g_far = sum(far_sums), g_rate = RATE ? sum(rate_sums) : 0;
            plain = far_sums = rate_sums = vf{};
            if (g == 0 && g_far == 0 && g_rate == 0) return;  // a query that sees nothing may have no number for stretch
            sums[held] += g;
            sums[t.rows + held] += (double)g_far * stretch;
            if (RATE) sums[2 * t.rows] += (double)g_rate * slope(held) * stretch;
            found += g_far * slope(held);
        };
        walk(u, count, guess, [&](i64 x, i64 from, i64 to) {
            const vf g = first_lanes(load(grad + x), count - x), far = load(u + x);
            if (held != from) {
                if (held >= 0) hand_on();
                held = from;
            }
            if (from == to) {
                plain += g, far_sums += g * far;
                if (RATE) rate_sums += g * load(by_rate + x);
                return;
            }
            const vf at = far * stretch;
            const i64 low = least(from, to), high = most(from, to), step = from < to ? 1 : -1;
            for (;; held += step) {
                vf own = g;
                if (held > low) own = choose((vi)(at >= edge(held - 1)), own, vf{});
                if (held < high) own = choose((vi)(at >= edge(held)), vf{}, own);
                plain += own, far_sums += own * far;
                if (RATE) rate_sums += own * load(by_rate + x);
                if (held == to) return;
                hand_on();
            }
        });
        if (held >= 0) hand_on();
        return found;
    }
};

// parameters: intercept [pieces], slope [pieces], rate
inline void write_stretched(const Term& t, i64 h, const double* parameters) {
    for (i64 x = 0; x < t.rows && t.values_grad.there(); x++) *t.values_grad.at<float>(h, x) = (float)parameters[x];
    for (i64 x = 0; x < t.rows && t.second_grad.there(); x++)
        *t.second_grad.at<float>(h, x) = (float)parameters[t.rows + x];
    if (t.rate_grad.there()) *t.rate_grad.at<float>(h) = (float)parameters[2 * t.rows];
}

// Calls visit(row, column, count, u, ∂u/∂rate, guess) for the runs of a tile on each side of the query; pairs that are
// gathered are runs of one, left out where they have no gradient (grad: null, or that of the tile).
template <class Visit>
inline void stretched_runs(const Spoken& s, const Tile& t, const float* grad, Visit visit) {
    const Term& term = *s.t;
    i64 guess[2][2] = {{-1, -1}, {-1, -1}};
    if (!s.dense) {
        const double rate = *term.rate.at<float>(t.h);
        for (i64 r = 0; r < t.rows; r++)
            for (i64 x = t.c0; x < t.c1; x++) {
                if (grad && grad[r * LD + x] == 0) continue;
                const double delta = form_distance(*s.c, term, t.b, t.i0 + r, t.j0 + x);
                float u[W] = {log_distance(rate, delta)}, slope[W] = {log_distance_slope(rate, delta)};
                i64 none[2] = {-1, -1};
                visit(r, x, (i64)1, u, slope, none);
            }
        return;
    }
    const i64 *q = s.axis->q_at(t), *k = s.axis->k_at(t);
    const int32_t* run = s.axis->run_at(t);
    const i64 origin = t.h * s.strip_head + PAD;
    for (i64 r = 0; r < t.rows; r++)
        for (i64 x = t.c0; x < t.c1;) {
            const i64 many = least(run[x], t.c1 - x), delta = k[x] - q[r], before = -clamp(delta, -many, 0);
            auto side = [&](i64 skip, i64 count, i64* nearby) {
                const i64 at = origin + delta - s.low + skip;
                if (count) visit(r, x + skip, count, s.strip + at, s.slope_strip ? s.slope_strip + at : nullptr, nearby);
            };
            side(0, before, guess[0]);
            side(before, many - before, guess[1]);
            x += many;
        }
}

inline void add_stretched(const Spoken& s, const Tile& t, float* score) {
    stretched_runs(s, t, nullptr, [&](i64 r, i64 x, i64 count, const float* u, const float*, i64* guess) {
        const Pieces pieces = {*s.t, t.h, *s.t->other.at<float>(t.b, t.h, t.i0 + r)};
        pieces.add(u, count, guess, score + r * LD + x);
    });
}

// sums: of intercept [pieces], slope [pieces] and rate
inline void take_stretched(const Spoken& s, const Tile& t, const float* grad, double* sums) {
    const Term& term = *s.t;
    stretched_runs(s, t, grad, [&](i64 r, i64 x, i64 count, const float* u, const float* by_rate, i64* guess) {
        const Pieces pieces = {term, t.h, *term.other.at<float>(t.b, t.h, t.i0 + r)};
        const float* from = grad + r * LD + x;
        const float found = term.rate_grad.there() ? pieces.take<true>(u, by_rate, count, guess, from, sums)
                                                   : pieces.take<false>(u, by_rate, count, guess, from, sums);
        if (term.other_grad.there()) *term.other_grad.at<float>(t.b, t.h, t.i0 + r) += found;
    });
}

}  // namespace
