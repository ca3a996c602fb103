// Sums of waves by integer distance, Σ weight·cos(δω), for all heads at once.
//
// Distances come in blocks of RUN. By cos((first + r)·ω) = cos(first·ω)·cos(r·ω) − sin(first·ω)·sin(r·ω), a block takes
// one sine and one cosine for each wave, in addition to those of r = 0 … RUN − 1, which all blocks share; all in float64.
#pragma once
#include "tile.h"

namespace {

constexpr i64 RUN = 64;

typedef double vd __attribute__((vector_size(4 * W)));
typedef double vd_any __attribute__((vector_size(4 * W), aligned(8), may_alias));

inline double dot(const double* a, const double* b, i64 count) {  // count: a multiple of W / 2
    vd sums = {};
    for (i64 i = 0; i < count; i += W / 2) sums += *(const vd_any*)(a + i) * *(const vd_any*)(b + i);
    double total = 0;
    for (int i = 0; i < W / 2; i++) total += sums[i];
    return total;
}

struct Waves {
    i64 heads, blocks;
    double* near;   // [waves][cos, sin][RUN] of r
    double* first;  // [blocks][waves][cos, sin] of the first distance
    double* sums;   // [workers][heads][RUN]

    void lay_out(Memory& memory, const Term& t, i64 heads_, i64 columns, i64 workers) {
        heads = heads_, blocks = (columns + RUN - 1) / RUN;
        near = memory.take<double>(t.rows * 2 * RUN);
        first = memory.take<double>(blocks * t.rows * 2);
        sums = memory.take<double>(workers * heads * RUN);
    }

    void begin(const Term& t) const {
        for (i64 x = 0; x < t.rows; x++)
            for (i64 r = 0; r < RUN; r++) {
                const double angle = (double)r * *t.frequencies.at<double>(x);
                near[2 * x * RUN + r] = cos(angle), near[(2 * x + 1) * RUN + r] = sin(angle);
            }
    }

    // the biases of a block of distances, [heads][RUN]; the distances of the call begin at low
    const double* block(const Term& t, i64 low, i64 number, i64 worker) const {
        double *total = sums + worker * heads * RUN, *cos_sin = first + number * t.rows * 2;
        memset(total, 0, (size_t)(heads * RUN * 8));
        for (i64 x = 0; x < t.rows; x++) {
            const double angle = (double)(low + number * RUN) * *t.frequencies.at<double>(x);
            const double cosine = cos(angle), sine = sin(angle), *by_cosine = near + 2 * x * RUN, *by_sine = by_cosine + RUN;
            cos_sin[2 * x] = cosine, cos_sin[2 * x + 1] = sine;
            double wave[RUN];
            for (i64 r = 0; r < RUN; r++) wave[r] = cosine * by_cosine[r] - sine * by_sine[r];
            for (i64 h = 0; h < heads; h++) {
                const double weight = *t.values.at<float>(h, x);
                double* to = total + h * RUN;
                for (i64 r = 0; r < RUN; r++) to[r] += weight * wave[r];
            }
        }
        return total;
    }

    // adds Σ gradient(column)·cos(δω) to sums of each wave
    template <class Gradient>
    void backward(const Term& t, i64 columns, Gradient gradient, double* to) const {
        for (i64 number = 0; number < blocks; number++) {
            double g[RUN];
            bool any = false;
            for (i64 r = 0; r < RUN; r++) {
                g[r] = number * RUN + r < columns ? gradient(number * RUN + r) : 0;
                any |= g[r] != 0;
            }
            const double* cos_sin = first + number * t.rows * 2;
            for (i64 x = 0; x < t.rows && any; x++)
                to[x] += cos_sin[2 * x] * dot(g, near + 2 * x * RUN, RUN) - cos_sin[2 * x + 1] * dot(g, near + (2 * x + 1) * RUN, RUN);
        }
    }
};

// The pairs of a tile at any distances, by cos((k − q)·ω) = cos(kω)·cos(qω) + sin(kω)·sin(qω), some waves at a time. k and q
// are measured from the first query.
struct WaveTile {
    static constexpr i64 AT_ONCE = 32;
    double *k, *q;  // [AT_ONCE][cos, sin][NB] and [AT_ONCE][cos, sin][MB]
    double* row;    // [MB][NB]

    void lay_out(Memory& memory, bool needed) {
        k = memory.take<double>(needed * AT_ONCE * 2 * NB);
        q = memory.take<double>(needed * AT_ONCE * 2 * MB);
        row = memory.take<double>(needed * MB * NB);
    }

    // zeroing: replaces NaN by 0
    static void fill_cos_sin(const Call& c, const Term& t, const Tensor& p, const Tile& tile, i64 first, i64 tokens, i64 wave,
                     bool zeroing, double* to, i64 ld) {
        const double frequency = *t.frequencies.at<double>(wave);
        for (i64 x = 0; x < tokens; x++) {
            const double angle = from_query(c, p, tile.b, first + x, tile.i0, t.axis) * frequency;
            const bool zero = zeroing && !(angle - angle == 0);
            to[x] = zero ? 0 : cos(angle), to[ld + x] = zero ? 0 : sin(angle);
        }
    }

    // the waves first … first + AT_ONCE − 1 that exist
    i64 load(const Call& c, const Term& t, const Tile& tile, i64 first, bool zeroing) const {
        const i64 many = min(AT_ONCE, t.rows - first);
        for (i64 x = 0; x < many; x++) {
            fill_cos_sin(c, t, c.k_position, tile, tile.j0 + tile.c0, tile.c1 - tile.c0, first + x, zeroing, k + 2 * x * NB, NB);
            fill_cos_sin(c, t, c.q_position, tile, tile.i0, tile.rows, first + x, zeroing, q + 2 * x * MB, MB);
        }
        return many;
    }

    void add(const Call& c, const Term& t, const Tile& tile, float* score) const {
        const i64 keys = tile.c1 - tile.c0;
        memset(row, 0, (size_t)(tile.rows * NB * 8));
        for (i64 first = 0; first < t.rows; first += AT_ONCE) {
            const i64 many = load(c, t, tile, first, false);
            for (i64 r = 0; r < tile.rows; r++)
                for (i64 x = 0; x < many; x++) {
                    const double weight = *t.values.at<float>(tile.h, first + x), *by_cosine = k + 2 * x * NB;
                    const double cosine = weight * q[2 * x * MB + r], sine = weight * q[(2 * x + 1) * MB + r];
                    double* to = row + r * NB;
                    for (i64 y = 0; y < keys; y++) to[y] += cosine * by_cosine[y] + sine * by_cosine[NB + y];
                }
        }
        for (i64 r = 0; r < tile.rows; r++)
            for (i64 y = 0; y < keys; y++) score[r * LD + tile.c0 + y] += (float)row[r * NB + y];
    }

    // adds Σ grad·cos(δω) to sums of each wave
    void backward(const Call& c, const Term& t, const Tile& tile, const float* grad, double* sums) const {
        const i64 keys = tile.c1 - tile.c0, whole = round_up(keys, W / 2);
        bool any[MB] = {};
        for (i64 r = 0; r < tile.rows; r++)
            for (i64 y = 0; y < whole; y++) {
                row[r * NB + y] = y < keys ? grad[r * LD + tile.c0 + y] : 0;
                any[r] |= row[r * NB + y] != 0;
            }
        for (i64 first = 0; first < t.rows; first += AT_ONCE) {
            const i64 many = load(c, t, tile, first, true);
            for (i64 x = 0; x < many; x++) {
                double *by_cosine = k + 2 * x * NB, *by_sine = by_cosine + NB;
                for (i64 y = keys; y < whole; y++) by_cosine[y] = by_sine[y] = 0;
                for (i64 r = 0; r < tile.rows; r++)
                    if (any[r])
                        sums[first + x] += q[2 * x * MB + r] * dot(row + r * NB, by_cosine, whole) +
                                           q[(2 * x + 1) * MB + r] * dot(row + r * NB, by_sine, whole);
            }
        }
    }
};

}  // namespace
