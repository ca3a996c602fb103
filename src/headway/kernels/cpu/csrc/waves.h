// Sums of waves by whole distance, Σ weight·cos(δω), for all heads at once.
//
// Distances come in blocks of RUN. By cos((first + r)·ω) = cos(first·ω)·cos(r·ω) − sin(first·ω)·sin(r·ω) a block takes
// one sine and one cosine for each wave, besides those of r = 0 … RUN − 1 that all blocks share; all in float64.
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
                const double angle = (double)r * *t.second.at<double>(x);
                near[2 * x * RUN + r] = cos(angle), near[(2 * x + 1) * RUN + r] = sin(angle);
            }
    }

    // [heads][RUN]: the biases of a block of distances, of which the first of all is low
    const double* block(const Term& t, i64 low, i64 number, i64 worker) const {
        double *total = sums + worker * heads * RUN, *own = first + number * t.rows * 2;
        memset(total, 0, (size_t)(heads * RUN * 8));
        for (i64 x = 0; x < t.rows; x++) {
            const double angle = (double)(low + number * RUN) * *t.second.at<double>(x);
            const double cosine = cos(angle), sine = sin(angle), *by_cosine = near + 2 * x * RUN, *by_sine = by_cosine + RUN;
            own[2 * x] = cosine, own[2 * x + 1] = sine;
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
    void take(const Term& t, i64 columns, Gradient gradient, double* to) const {
        for (i64 number = 0; number < blocks; number++) {
            double g[RUN];
            bool any = false;
            for (i64 r = 0; r < RUN; r++) {
                g[r] = number * RUN + r < columns ? gradient(number * RUN + r) : 0;
                any |= g[r] != 0;
            }
            const double* own = first + number * t.rows * 2;
            for (i64 x = 0; x < t.rows && any; x++)
                to[x] += own[2 * x] * dot(g, near + 2 * x * RUN, RUN) - own[2 * x + 1] * dot(g, near + (2 * x + 1) * RUN, RUN);
        }
    }
};

}  // namespace
