// The network that reads scores and biases of all heads of a pair: two convolutions along the keys of a row, and their
// gradients. A row of a head is LD floats long, like that of a tile, with zeros around the columns that are computed.
#pragma once
#include "tile.h"

namespace {

struct HeadNetwork {
    static constexpr float SLOPE = 0.01f;  // of the leaky ReLU below 0
    static constexpr i64 MARGIN = 16;      // zeros on both sides of a row, which wide convolutions read
    static constexpr int ROWS = REGISTERS / 8, COLUMNS = 4;  // sums of products of rows that are computed at once
    static_assert(LD >= NB + 2 * MARGIN && MARGIN >= MAX_NETWORK_WIDTH / 2 && MARGIN % W == 0, "a row has room for zeros");
    static_assert(NB - 2 * round_up(2 * (MAX_NETWORK_WIDTH - 1), NR) >= NR, "a tile is more than its halos");

    const Term* t = nullptr;
    i64 heads, inputs, hidden, width, reach;
    i64 halo;  // keys on both sides of a tile that are computed for those between them: whole panels
    bool wants_grad;
    float *into, *out;           // [width][hidden + SLACK][inputs], [width][heads + SLACK][hidden]
    float *into_back, *out_back;  // backward: [width][inputs + SLACK][hidden], [width][hidden + SLACK][heads]
    double* sums;                // backward: [items][sums_size()]: into_bias, out_bias, into, out

    struct Worker {
        float *heard, *units, *added;     // rows: scores and biases; hidden units; what the network adds
        float *d_added, *d_units, *d_heard;  // backward: their gradients
        float* parameters;                // backward: vectors of sums, in the order of `sums`
        float **scores, **biases, **d_scores;  // [heads]: a row of each head
        vi* seen;                         // [LD / W]: whether any head sees a key
        vi* unseen;                       // [heads][LD / W]: whether a head does not
    };

    i64 out_rows() const { return round_up(heads, ROWS); }
    i64 in_rows() const { return round_up(hidden, ROWS); }
    i64 out_columns() const { return round_up(hidden, COLUMNS); }
    i64 in_columns() const { return round_up(inputs, COLUMNS); }
    // sums of products of rows, padded to whole groups
    i64 sums_size() const { return hidden + heads + width * (in_rows() * in_columns() + out_rows() * out_columns()); }

    void lay_out(Memory& memory, const Call& c, i64 items) {
        heads = c.heads, inputs = 2 * heads, hidden = t->rows, width = t->width, reach = width / 2;
        halo = round_up(4 * reach, NR);
        wants_grad = c.backward && (t->values_grad.defined() || t->into_bias_grad.defined() || t->out_grad.defined() ||
                                    t->out_bias_grad.defined());
        into = memory.take<float>(width * (hidden + SLACK) * inputs);
        out = memory.take<float>(width * (heads + SLACK) * hidden);
        if (!c.backward) return;
        into_back = memory.take<float>(width * (inputs + SLACK) * hidden);
        out_back = memory.take<float>(width * (hidden + SLACK) * heads);
        sums = memory.take<double>(items * sums_size());
    }

    void lay_out(Memory& memory, const Call& c, Worker& w) const {
        w.heard = rows_of_keys(memory, inputs), w.units = rows_of_keys(memory, hidden), w.added = rows_of_keys(memory, heads);
        w.scores = memory.take<float*>(heads), w.biases = memory.take<float*>(heads), w.d_scores = memory.take<float*>(heads);
        w.seen = memory.take<vi>(LD / W);
        w.unseen = memory.take<vi>(heads * LD / W);
        if (!c.backward) return;
        w.d_added = rows_of_keys(memory, heads), w.d_units = rows_of_keys(memory, hidden);
        w.d_heard = rows_of_keys(memory, inputs);
        w.parameters = memory.take<float>(sums_size() * W);
    }

    // the weights as A of products, and transposed
    void prepare(const Call& c) const {
        memset(into, 0, (size_t)(width * (hidden + SLACK) * inputs * 4)), memset(out, 0, (size_t)(width * (heads + SLACK) * hidden * 4));
        if (c.backward) {
            memset(into_back, 0, (size_t)(width * (inputs + SLACK) * hidden * 4));
            memset(out_back, 0, (size_t)(width * (hidden + SLACK) * heads * 4));
        }
        for (i64 s = 0; s < width; s++)
            for (i64 u = 0; u < hidden; u++) {
                for (i64 x = 0; x < inputs; x++) {
                    const float weight = *t->values.at<float>(u, x, s);
                    into[(s * (hidden + SLACK) + u) * inputs + x] = weight;
                    if (c.backward) into_back[(s * (inputs + SLACK) + x) * hidden + u] = weight;
                }
                for (i64 h = 0; h < heads; h++) {
                    const float weight = *t->out.at<float>(h, u, s);
                    out[(s * (heads + SLACK) + h) * hidden + u] = weight;
                    if (c.backward) out_back[(s * (hidden + SLACK) + u) * heads + h] = weight;
                }
            }
    }

    // Before the first row: zeroes the rows beyond the last ones, which products read, and what is around all of them.
    void begin(const Call& c, Worker& w) const {
        clear(w.heard, inputs), clear(w.units, hidden), clear(w.added, heads);
        if (!c.backward) return;
        clear(w.d_added, heads), clear(w.d_units, hidden), clear(w.d_heard, inputs);
        memset(w.parameters, 0, (size_t)(sums_size() * W * 4));
    }

    // Replaces a row of scores of all heads, at the columns from … to − 1, whole vectors.
    void forward(Worker& w, i64 from, i64 to) const {
        hear(w, from, to);
        convolve(into, hidden, inputs, w.heard, 1, w.units, from, to);
        for (i64 u = 0; u < hidden; u++) {
            float* units = w.units + u * LD;
            const float bias = *t->into_bias.at<float>(u);
            for (i64 x = from; x < to; x += W) {
                const vf sum = load(units + x) + bias;
                store(units + x, select(w.seen[x / W], select((vi)(sum > 0), sum, sum * SLOPE), vf{}));
            }
            clear_around(units, from, to);
        }
        convolve(out, heads, hidden, w.units, 1, w.added, from, to);
        for (i64 h = 0; h < heads; h++) {
            float* score = w.scores[h];
            const float bias = *t->out_bias.at<float>(h);
            for (i64 x = from; x < to; x += W) {
                const vf found = load(score + x) + load(w.biases[h] + x) + (load(w.added + h * LD + x) + bias);
                store(score + x, select(w.unseen[(h * LD + x) / W], broadcast(-INFINITY), found));
            }
        }
    }

    // Replaces the gradients of a row of scores, after `forward`, by those of the scores and biases before; those of the
    // parameters are summed over the columns first … last − 1.
    void backward(Worker& w, i64 from, i64 to, i64 first, i64 last) const {
        for (i64 h = 0; h < heads; h++) {
            float* row = w.d_added + h * LD;
            memcpy(row + from, w.d_scores[h] + from, (size_t)((to - from) * 4));
            clear_around(row, from, to);
        }
        convolve(out_back, hidden, heads, w.d_added, -1, w.d_units, from, to);
        for (i64 u = 0; u < hidden; u++) {
            float* row = w.d_units + u * LD;
            for (i64 x = from; x < to; x += W) {
                const vf found = load(row + x), slope = select((vi)(load(w.units + u * LD + x) > 0), broadcast(1), broadcast(SLOPE));
                store(row + x, select(w.seen[x / W], found * slope, vf{}));
            }
            clear_around(row, from, to);
        }
        convolve(into_back, inputs, hidden, w.d_units, -1, w.d_heard, from, to);
        for (i64 h = 0; h < heads; h++)
            for (i64 x = from; x < to; x += W) {
                const vf own = load(w.d_scores[h] + x);
                const vi unseen = w.unseen[(h * LD + x) / W];
                store(w.d_scores[h] + x, select(unseen, vf{}, own + load(w.d_heard + h * LD + x)));
                store(w.biases[h] + x, select(unseen, vf{}, own + load(w.d_heard + (heads + h) * LD + x)));
            }
        from = max(from, first), to = min(to, last);
        if (wants_grad && from < to) add_parameters(w, from, to);
    }

    void begin_item(i64 item) const { memset(sums + item * sums_size(), 0, (size_t)(sums_size() * 8)); }

    // adds the sums over a tile to those of an item of work
    void flush(Worker& w, i64 item) const {
        double* to = sums + item * sums_size();
        for (i64 x = 0; x < sums_size() && wants_grad; x++) {
            to[x] += sum(load(w.parameters + x * W));
            store(w.parameters + x * W, vf{});
        }
    }

    // the gradients of the parameters: the sums of all items, in order
    void reduce(i64 items) const {
        for (i64 item = 1; item < items; item++) add_to(sums, sums + item * sums_size(), sums_size());
        const double *d_into = sums + hidden + heads, *d_out = d_into + width * in_rows() * in_columns();
        for (i64 u = 0; u < hidden && t->into_bias_grad.defined(); u++) *t->into_bias_grad.at<float>(u) = (float)sums[u];
        for (i64 h = 0; h < heads && t->out_bias_grad.defined(); h++) *t->out_bias_grad.at<float>(h) = (float)sums[hidden + h];
        for (i64 s = 0; s < width; s++) {
            for (i64 u = 0; u < hidden && t->values_grad.defined(); u++)
                for (i64 x = 0; x < inputs; x++)
                    *t->values_grad.at<float>(u, x, s) = (float)d_into[(s * in_rows() + u) * in_columns() + x];
            for (i64 h = 0; h < heads && t->out_grad.defined(); h++)
                for (i64 u = 0; u < hidden; u++)
                    *t->out_grad.at<float>(h, u, s) = (float)d_out[(s * out_rows() + h) * out_columns() + u];
        }
    }

  private:
    static i64 floats_of(i64 rows) { return (rows + SLACK) * LD + 2 * MARGIN; }

    static float* rows_of_keys(Memory& memory, i64 rows) {
        float* found = memory.take<float>(floats_of(rows));
        return found ? found + MARGIN : nullptr;
    }

    static void clear(float* rows, i64 count) { memset(rows - MARGIN, 0, (size_t)(floats_of(count) * 4)); }

    void clear_around(float* row, i64 from, i64 to) const {
        if (!reach) return;
        memset(row + from - MARGIN, 0, MARGIN * 4), memset(row + to, 0, MARGIN * 4);
    }

    // Loads scores and biases, 0 where a head does not see the key.
    void hear(Worker& w, i64 from, i64 to) const {
        for (i64 x = from; x < to; x += W) w.seen[x / W] = vi{};
        for (i64 h = 0; h < heads; h++) {
            float *score = w.heard + h * LD, *bias = w.heard + (heads + h) * LD;
            for (i64 x = from; x < to; x += W) {
                const vf found = load(w.scores[h] + x);
                const vi unseen = (vi)(found == -INFINITY);
                w.unseen[(h * LD + x) / W] = unseen, w.seen[x / W] |= ~unseen;
                store(score + x, select(unseen, vf{}, found));
                store(bias + x, select(unseen, vf{}, load(w.biases[h] + x)));
            }
            clear_around(score, from, to), clear_around(bias, from, to);
        }
    }

    // y[r][x] = Σ_s Σ_i weight[s][r][i]·rows[i][x + direction·(s − reach)] at the columns from … to − 1
    void convolve(const float* weight, i64 count, i64 summed, const float* rows, i64 direction, float* y, i64 from, i64 to) const {
        for (i64 s = 0; s < width; s++, weight += (count + SLACK) * summed) {
            const float* x = rows + direction * (s - reach);
            i64 at = from;
            for (; at + 3 * W <= to; at += 3 * W)
                multiply_columns<Float32, 3, false>(count, summed, weight, summed, x + at, LD, y + at, LD, s > 0);
            if (to - at == 2 * W)
                multiply_columns<Float32, 2, false>(count, summed, weight, summed, x + at, LD, y + at, LD, s > 0);
            else if (to - at == W)
                multiply_columns<Float32, 1, false>(count, summed, weight, summed, x + at, LD, y + at, LD, s > 0);
        }
    }

    void add_parameters(Worker& w, i64 from, i64 to) const {
        float* to_sum = w.parameters;
        for (i64 u = 0; u < hidden; u++, to_sum += W) add_row(w.d_units + u * LD, from, to, to_sum);
        for (i64 h = 0; h < heads; h++, to_sum += W) add_row(w.d_added + h * LD, from, to, to_sum);
        for (i64 s = 0; s < width; s++, to_sum += in_rows() * in_columns() * W)
            add_products(w.d_units, in_rows(), w.heard + s - reach, in_columns(), from, to, to_sum);
        for (i64 s = 0; s < width; s++, to_sum += out_rows() * out_columns() * W)
            add_products(w.d_added, out_rows(), w.units + s - reach, out_columns(), from, to, to_sum);
    }

    static void add_row(const float* row, i64 from, i64 to, float* sum) {
        vf total = load(sum);
        for (i64 x = from; x < to; x += W) total += load(row + x);
        store(sum, total);
    }

    // sums[r][c] += a[r]·b[c], lane by lane
    static void add_products(const float* a, i64 rows, const float* b, i64 columns, i64 from, i64 to, float* sums) {
        for (i64 r = 0; r < rows; r += ROWS)
            for (i64 c = 0; c < columns; c += COLUMNS) {
                float* at = sums + (r * columns + c) * W;
                vf total[ROWS][COLUMNS];
#pragma GCC unroll 4
                for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
                    for (int j = 0; j < COLUMNS; j++) total[i][j] = load(at + (i * columns + j) * W);
                for (i64 x = from; x < to; x += W) {
                    vf column[COLUMNS];
#pragma GCC unroll 4
                    for (int j = 0; j < COLUMNS; j++) column[j] = load(b + (c + j) * LD + x);
#pragma GCC unroll 4
                    for (int i = 0; i < ROWS; i++) {
                        const vf row = load(a + (r + i) * LD + x);
#pragma GCC unroll 4
                        for (int j = 0; j < COLUMNS; j++) total[i][j] += row * column[j];
                    }
                }
#pragma GCC unroll 4
                for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
                    for (int j = 0; j < COLUMNS; j++) store(at + (i * columns + j) * W, total[i][j]);
            }
    }
};

}  // namespace
