// Rows of tables and closed forms from the positions of a pair, and the distances beyond which they do not change.
//
// The distance of a pair is δ = key position − query position on one axis. All functions are static: every instruction
// set has its own.
#pragma once
#include <math.h>

#include "call.h"
#include "glibc.h"
#include "simd.h"

namespace hw {

struct Range {
    i64 low, high;
};

static inline i64 clamp(i64 x, i64 low, i64 high) { return x < low ? low : x > high ? high : x; }
static inline i64 minus(i64 a, i64 b) { return (i64)((uint64_t)a - (uint64_t)b); }  // wraps around, as torch does

// calls f(number, value) for values at distances of `stride`
template <class T, class F>
static inline void each(const T* values, i64 stride, i64 count, F f) {
    if (stride == 1)
        for (i64 x = 0; x < count; x++) f(x, values[x]);
    else
        for (i64 x = 0; x < count; x++) f(x, values[x * stride]);
}

// the range of at least one value
static inline Range range_of(const i64* values, i64 stride, i64 count) {
    i64 low = values[0], high = values[0];
    each(values, stride, count, [&](i64, i64 value) { low = min(low, value), high = max(high, value); });
    return {low, high};
}

// the range of k − q for q and k of two ranges; false if it overflows
static inline bool differences(Range q, Range k, Range& found) {
    return !__builtin_sub_overflow(k.low, q.high, &found.low) && !__builtin_sub_overflow(k.high, q.low, &found.high);
}

// ---------------------------------------------------------------- distances

static inline bool is_whole(const Call& c) { return c.q_position.dtype == INT64; }

static inline i64 whole_distance(const Call& c, i64 b, i64 i, i64 j, i64 axis) {
    return minus(*c.k_position.at<i64>(b, j, axis), *c.q_position.at<i64>(b, i, axis));
}

// float32 positions are subtracted in float32
static inline double distance_of(const Call& c, i64 b, i64 i, i64 j, i64 axis) {
    if (is_whole(c)) return (double)whole_distance(c, b, i, j, axis);
    const Tensor &q = c.q_position, &k = c.k_position;
    if (q.dtype == FLOAT64) return *k.at<double>(b, j, axis) - *q.at<double>(b, i, axis);
    const float distance = *k.at<float>(b, j, axis) - *q.at<float>(b, i, axis);
    return distance;
}

// the position of a token minus that of query i, in float64 whatever the dtype
static inline double from_query(const Call& c, const Tensor& p, i64 b, i64 token, i64 i, i64 axis) {
    const Tensor& q = c.q_position;
    if (is_whole(c)) return (double)minus(*p.at<i64>(b, token, axis), *q.at<i64>(b, i, axis));
    if (q.dtype == FLOAT64) return *p.at<double>(b, token, axis) - *q.at<double>(b, i, axis);
    return (double)*p.at<float>(b, token, axis) - (double)*q.at<float>(b, i, axis);
}

// run[j]: how many tokens, from j on, have positions that rise by one (at most 2^30)
static inline void runs_of(const Call& c, const Tensor& position, i64 b, i64 axis, i64 count, int32_t* run) {
    for (i64 j = count - 1; j >= 0; j--) {
        run[j] = 1;
        if (!is_whole(c) || j == count - 1) continue;
        i64 here = *position.at<i64>(b, j, axis), next = *position.at<i64>(b, j + 1, axis);
        if (next > here && minus(next, here) == 1) run[j] = (int32_t)min(run[j + 1] + 1, 1 << 30);
    }
}

// ---------------------------------------------------------------- from a distance to a row

static inline i64 floored(i64 distance) { return distance; }

static inline i64 floored(double distance) {
    if (!(distance > -0x1p63)) return INT64_MIN;  // NaN too
    return distance < 0x1p63 ? (i64)floor(distance) : INT64_MAX;
}

// how many of the rising boundaries are ≤ x
template <class T>
static inline i64 bucketize(const Tensor& boundaries, i64 count, T x) {
    i64 low = 0, high = count;
    while (low < high) {
        i64 middle = (low + high) / 2;
        if (*boundaries.at<T>(middle) <= x)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// Delta: i64 or double
template <class Delta>
static inline i64 row_at(const Map& map, Delta distance) {
    if (map.kind == CLIP) return clamp(floored(distance), map.low, map.high) - map.low;
    const Tensor& boundaries = map.boundaries;
    if (boundaries.dtype == FLOAT32) return bucketize<float>(boundaries, map.count - 1, (float)distance);
    if (boundaries.dtype == FLOAT64) return bucketize<double>(boundaries, map.count - 1, (double)distance);
    return bucketize<i64>(boundaries, map.count - 1, floored(distance));
}

// of a term with one map, at a whole distance
static inline i64 row_at(const Term& t, i64 distance) { return row_at(t.map[0], distance); }

static inline i64 row_of(const Call& c, const Term& t, i64 b, i64 i, i64 j) {
    i64 row = 0;
    for (i64 x = 0; x < t.maps; x++) {
        const Map& map = t.map[x];
        row *= map.count;
        if (map.kind == CLASSES) {
            // classes have not been checked, and must not index outside the table
            i64 q = clamp(*map.q_class.at<i64>(b, i), 0, map.classes - 1);
            row += q * map.classes + clamp(*map.k_class.at<i64>(b, j), 0, map.classes - 1);
        } else if (is_whole(c)) {
            row += row_at(map, whole_distance(c, b, i, j, map.axis));
        } else {
            row += row_at(map, distance_of(c, b, i, j, map.axis));
        }
    }
    return row;
}

// ---------------------------------------------------------------- closed forms

// parameters of one head
static inline i64 form_parameters(const Term& t) {
    if (t.form == STRETCHED) return 2 * t.rows + 1;
    return t.form == PIECEWISE || t.form == COSINES ? t.rows : 2;
}

struct Knots {
    i64 right;     // the knot that ends the piece of δ
    double share;  // the position of δ between the knot before and this one, 0 … 1
};

static inline Knots knots_at(const Term& t, double distance) {
    i64 low = 1, high = t.rows - 1;
    while (low < high) {
        i64 middle = (low + high) / 2;
        if (*t.knots.at<double>(middle) < distance)
            low = middle + 1;
        else
            high = middle;
    }
    double left = *t.knots.at<double>(low - 1), right = *t.knots.at<double>(low);
    double share = (distance - left) / (right - left);
    return {low, share > 0 ? (share < 1 ? share : 1) : 0};
}

// all forms except COSINES (see waves.h) and STRETCHED, which also depends on the query
static inline double form_value(const Term& t, i64 h, double distance) {
    const double far = fabs(distance);
    if (t.form == PIECEWISE) {
        Knots at = knots_at(t, distance);
        double left = *t.values.at<float>(h, at.right - 1), right = *t.values.at<float>(h, at.right);
        return left + at.share * (right - left);
    }
    const double first = *t.values.at<float>(h), second = *t.second_parameter.at<float>(h);
    if (t.form == LINEAR) return -far * (distance > 0 ? second : first);
    if (t.form == LOG) return -first * log1p(second * far);
    return far == 0 ? 0 : -first * pow(far, second);
}

// adds g·∂value/∂parameter: [past, future], [weight, rate], [weight, exponent] or [values …]
static inline void form_adjoint(const Term& t, i64 h, double distance, double g, double* sums) {
    const double far = fabs(distance);
    if (t.form == PIECEWISE) {
        Knots at = knots_at(t, distance);
        sums[at.right - 1] += g * (1 - at.share);
        sums[at.right] += g * at.share;
    } else if (t.form == LINEAR) {
        sums[distance > 0] -= g * far;
    } else if (far > 0) {  // the value at distance 0 does not depend on parameters
        const double weight = *t.values.at<float>(h), second = *t.second_parameter.at<float>(h);
        const double value = t.form == LOG ? log1p(second * far) : pow(far, second);
        sums[0] -= g * value;
        sums[1] -= g * weight * (t.form == LOG ? far / (1 + second * far) : value * log(far));
    }
}

// the bias of a DISTANCE term at a whole distance
static inline double value_at(const Term& t, i64 h, i64 distance) {
    return t.form == ROWS ? *t.values.at<float>(h, row_at(t, distance)) : form_value(t, h, (double)distance);
}

// ---------------------------------------------------------------- distances beyond which terms do not change

// The distances low … high. Below low, a dense term has its value at low; beyond high, its value at high.
struct DistanceRange {
    bool dense;
    i64 low, high;
};

// the distances that occur in the call; not dense if they are not whole or overflow
static inline DistanceRange distance_range(const Call& c, i64 axis) {
    DistanceRange reach = {is_whole(c), INT64_MAX, INT64_MIN};
    if (!c.batch || !c.n || !c.m) return {reach.dense, 0, 0};
    const Tensor &q = c.q_position, &k = c.k_position;
    const i64 batch = q.stride[0] || k.stride[0] ? c.batch : 1;
    for (i64 b = 0; b < batch && reach.dense; b++) {
        Range found = {0, 0};
        reach.dense = differences(range_of(q.at<i64>(b, 0, axis), q.stride[1], c.n),
                                  range_of(k.at<i64>(b, 0, axis), k.stride[1], c.m), found);
        reach.low = min(reach.low, found.low), reach.high = max(reach.high, found.high);
    }
    i64 width;
    if (__builtin_sub_overflow(reach.high, reach.low, &width)) reach.dense = false;
    return reach;
}

static inline i64 axis_of(const Term& t) { return t.form == ROWS ? t.map[0].axis : t.axis; }

// a number that never falls as δ rises; the term has equal values at distances of equal level
static inline double level(const Term& t, i64 distance) {
    if (t.form == ROWS) return (double)row_at(t, distance);
    if (t.form != PIECEWISE) return (double)distance;
    const double first = *t.knots.at<double>(0), last = *t.knots.at<double>(t.rows - 1);
    return distance <= first ? first : distance >= last ? last : (double)distance;
}

// the last of low … high for which a test holds; it holds at low
template <class Test>
static inline i64 last_where(i64 low, i64 high, Test holds) {
    while (low < high) {
        i64 middle = high - (i64)(((uint64_t)high - (uint64_t)low) / 2);
        if (holds(middle))
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

// reach: distance_range(c, axis_of(t))
static inline DistanceRange relevant_distances(const Call& c, const Term& t, DistanceRange reach) {
    if (!reach.dense || (t.form == ROWS && (t.maps > 1 || t.map[0].kind == CLASSES))) return {false, 0, 0};
    const double bottom = level(t, reach.low), top = level(t, reach.high);
    if (bottom == top) return {true, reach.low, reach.low};
    const i64 low = last_where(reach.low, reach.high, [&](i64 distance) { return level(t, distance) <= bottom; });
    const i64 high = last_where(reach.low, reach.high, [&](i64 distance) { return level(t, distance) < top; }) + 1;
    const bool dense = (uint64_t)high - (uint64_t)low < (uint64_t)(8 * (c.n + c.m) + 4096);
    return {dense, low, high};
}

}  // namespace hw
