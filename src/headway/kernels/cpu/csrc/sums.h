// Gradients of terms from the sums of all tasks.
#pragma once
#include "stretched.h"

namespace {

// sums over the heads of a group and their chunks
inline void write_key_gradients(const TermState& s, i64 h, i64 chunks, i64 mp) {
    const Call& c = *s.c;
    const i64 group = c.heads / c.kv_heads;
    if (h % group) return;
    const Term& t = *s.t;
    const i64 size = mp * s.width;
    for (i64 b = 0; b < c.batch; b++) {
        float* total = s.key_sums + (b * c.heads + h) * chunks * size;
        for (i64 x = 1; x < group * chunks; x++) add_to(total, total + x * size, size);
        for (i64 j = 0; j < c.m; j++) store_row<F32>(t.unprepared_grad, b, h / group, j, t.width, total + j * s.width);
    }
}

inline void write_distance_gradients(const TermState& s, i64 h, double* double_sums) {
    const Term& t = *s.t;
    double *edges = double_sums, *parameters = double_sums + 2;
    const double* sums = s.sums_by_distance(double_sums);
    if (t.form == STRETCHED) return write_stretched(t, h, parameters);
    for (i64 x = 0; x < PAD && s.dense; x++) edges[0] += sums[x], edges[1] += sums[PAD + s.columns + x];
    auto gradient = [&](i64 x) {
        double g = sums[PAD + x];
        if (x == 0) g += edges[0];
        if (x == s.columns - 1) g += edges[1];
        return g;
    };
    if (t.form == COSINES && s.dense) s.waves.backward(t, s.columns, gradient, parameters);
    for (i64 x = 0; x < s.columns && s.dense && t.form != COSINES; x++) {
        const double g = gradient(x);
        if (t.form == ROWS)
            parameters[row_at(t, s.low + x)] += g;
        else
            form_adjoint(t, h, (double)(s.low + x), g, parameters);
    }
    const bool one = t.form == ROWS || t.form == PIECEWISE || t.form == COSINES;
    for (i64 x = 0; x < (one ? t.rows : 1) && t.values_grad.defined(); x++)
        *t.values_grad.at<float>(h, x) = (float)parameters[x];
    if (!one && t.second_parameter_grad.defined()) *t.second_parameter_grad.at<float>(h) = (float)parameters[1];
}

// Adds up the tasks' own sums of a dense bias's gradient. If heads share it, each takes its share of the rows and keys.
inline void write_dense_gradients(const TermState& s, i64 h, i64 chunks, i64 mp) {
    const Call& c = *s.c;
    const Tensor& grad = s.t->values_grad;
    const i64 heads = grad.stride[1] ? 1 : c.heads, rows = grad.stride[0] ? 1 : c.batch, size = s.double_sums_size;
    const i64 first_head = grad.stride[1] ? h : 0, columns = grad.stride[3] ? mp : 1;
    const i64 from = grad.stride[1] ? 0 : h * size / c.heads, to = grad.stride[1] ? size : (h + 1) * size / c.heads;
    for (i64 first_row = 0; first_row < c.batch; first_row += rows) {
        double* total = s.double_sums + (first_row * c.heads + first_head) * chunks * size;
        for (i64 x = 1; x < rows * heads * chunks; x++) {
            const i64 b = x / chunks / heads, task = (b * c.heads + x / chunks % heads) * chunks + x % chunks;
            add_to(total + from, total + task * size + from, to - from);
        }
        for (i64 x = from; x < to; x++) {
            const i64 i = x / columns, j = x % columns;
            if (j >= c.m) continue;
            if (grad.dtype == FLOAT64)
                *grad.at<double>(first_row, first_head, i, j) = total[x];
            else
                *grad.at<float>(first_row, first_head, i, j) = (float)total[x];
        }
    }
}

// The gradients of a term for one head: the sums of all tasks, in their order; task = (b·heads + h)·chunks + chunk.
inline void write_gradients(TermState& s, i64 h, i64 chunks, i64 mp) {
    const Call& c = *s.c;
    const Term& t = *s.t;
    const i64 stride = c.heads * chunks, first = h * chunks;
    // adds the sums of all other tasks of the head to those of the first
    auto gather = [&] {
        for (i64 x = 1; x < c.batch * chunks; x++) {
            i64 task = x / chunks * stride + first + x % chunks;
            if (s.sums_size) add_to(s.sums + first * s.sums_size, s.sums + task * s.sums_size, s.sums_size);
            add_to(s.double_sums + first * s.double_sums_size, s.double_sums + task * s.double_sums_size, s.double_sums_size);
        }
    };
    const float* sums = s.sums + first * s.sums_size;
    double* double_sums = s.double_sums + first * s.double_sums_size;
    if (t.kind == DENSE && s.double_sums_size) {
        write_dense_gradients(s, h, chunks, mp);
    } else if ((t.kind == TOKEN_KEYS || t.kind == KEY_SLOPES) && t.values_grad.defined()) {
        for (i64 b = 0; b < c.batch; b++) {
            double* total = s.double_sums + (b * stride + first) * s.double_sums_size;
            for (i64 x = 1; x < chunks; x++) add_to(total, total + x * s.double_sums_size, s.double_sums_size);
            for (i64 j = 0; j < c.m; j++) *t.values_grad.at<float>(b, h, j) = (float)total[j];
        }
    } else if (t.kind == DISTANCE && s.wants_grad) {
        gather();
        write_distance_gradients(s, h, double_sums);
    } else if (is_relative(t) && s.wants_grad) {
        gather();
        if (t.unprepared_grad.defined() && t.kind == RELATIVE_QUERIES) write_key_gradients(s, h, chunks, mp);
        if (t.query_bias_grad.defined())
            for (i64 x = 0; x < t.width; x++) *t.query_bias_grad.at<float>(h, x) = (float)double_sums[x];
        if (!t.values_grad.defined()) return;
        for (i64 row = 0; row < t.rows; row++)
            for (i64 x = 0; x < t.width; x++) *t.values_grad.at<float>(h, row, x) = 0;
        for (i64 column = 0; column < s.columns; column++) {
            i64 row = s.dense ? row_at(t, s.low + column) : column;
            for (i64 x = 0; x < t.width; x++) *t.values_grad.at<float>(h, row, x) += sums[column * s.width + x];
        }
    }
}

}  // namespace
