// Terms: adds them to a tile of scores, and computes their gradients from a tile of score gradients.
#pragma once
#include "contextual.h"
#include "network.h"
#include "path.h"
#include "sums.h"

namespace {

template <class T, class Packing>
struct Terms {
    const Call& c;
    const Plan<T, Packing>& plan;
    i64 count = 0, axes = 0;
    TermState states[MAX_TERMS];
    Axis axis[MAX_TERMS];
    const Term* query_scale = nullptr;
    const Term* sink = nullptr;
    const Term* stick = nullptr;  // stick-breaking weights in place of the softmax
    ContextualPositions positions;  // if positions.t is set
    GatedPath path;                 // likewise
    HeadNetwork network;            // likewise
    bool capped = false;
    bool wants_d_query_scale = false;  // there is a query scale that needs a gradient
    i64 tasks = 0;

    Terms(const Plan<T, Packing>& p) : c(p.c), plan(p) {
        for (i64 i = 0; i < c.terms; i++) {
            const Term& t = c.term[i];
            if (t.kind == QUERY_SCALE) query_scale = &t, wants_d_query_scale = t.values_grad.defined();
            if (t.kind == SINK) sink = &t;
            if (t.kind == STICK_WEIGHTS) stick = &t;
            if (t.kind == CONTEXTUAL_POSITIONS) positions.t = &t;
            if (t.kind == GATED_PATH) path.t = &t;
            if (t.kind == HEAD_NETWORK) network.t = &t;
            if (t.kind == SOFT_CAP) capped = true;
            if (t.kind == QUERY_SCALE || t.kind == SINK || t.kind >= SOFT_CAP) continue;
            TermState& s = states[count++];
            s = TermState{};
            s.c = &c, s.t = &t;
        }
        for (i64 i = 0; i < count; i++) states[i].wants_grad = c.backward && wants(states[i]);
    }

    // whether a term visits the keys of a row from the last to the first
    bool scans() const { return stick || positions.t || path.t; }

    void lay_out(Memory& memory, i64 tasks_) {
        tasks = tasks_;
        axes = 0;
        if (positions.t) positions.lay_out(memory, c, tasks);
        if (path.t) path.lay_out(memory, c, plan.mp, tasks);
        if (network.t) network.lay_out(memory, c, tasks / max(1, c.heads));
        for (i64 i = 0; i < count; i++) {
            TermState& s = states[i];
            const Term& t = *s.t;
            if (t.kind == DISTANCE || is_relative(t)) assign_columns(memory, s);
            if (is_slope(t) && is_whole(c)) s.axis = axis_at(memory, t.axis);
            s.heads = t.values.stride[0] ? c.heads : 1;
            if (t.kind == DISTANCE && s.dense) {
                s.head_stride = is_per_head(t) ? 2 * PAD + s.columns : 0;
                const i64 size = (s.head_stride ? c.heads : 1) * (2 * PAD + s.columns);
                s.bias_by_distance = memory.take<float>(size);
                s.slope_by_distance = t.stretch_rate_grad.defined() ? memory.take<float>(size) : nullptr;
                if (t.form == COSINES) s.waves.lay_out(memory, t, s.heads, s.columns, plan.workers);
            }
            if (is_relative(t)) {
                s.packed_width = packed_k_of(t.width, Packing::K_PACK);
                s.width = round_up(t.width, W);
                s.padded = round_up(s.columns, NR);
                s.panels = memory.take<float>(s.heads * s.padded * s.packed_width);
                s.row_major_panel = memory.take<float>(s.heads * s.padded * s.width);
            }
            if (!c.backward) continue;
            if (t.kind == DISTANCE && s.wants_grad) {
                s.parameters = t.form == ROWS ? t.rows : form_parameters(t);
                s.double_sums_size = 2 + s.parameters + (s.dense && t.form != STRETCHED ? 2 * PAD + s.columns : 0);
            } else if (is_relative(t) && s.wants_grad) {
                s.sums_size = s.padded * s.width;
                s.double_sums_size = s.width;
                if (t.kind == RELATIVE_QUERIES && t.unprepared.defined())
                    s.key_sums = memory.take<float>(tasks * plan.mp * s.width);
            } else if ((t.kind == TOKEN_KEYS || t.kind == KEY_SLOPES) && t.values_grad.defined()) {
                s.double_sums_size = plan.mp;
            } else if (t.kind == DENSE && s.wants_grad && plan.has_own_sums(t.values_grad)) {
                s.double_sums_size = plan.own_sums(t.values_grad);
            }
            s.sums = memory.take<float>(tasks * s.sums_size);
            s.double_sums = memory.take<double>(tasks * s.double_sums_size);
        }
        scratch = memory.take<float>(plan.workers * scratch_floats());
    }

    // before all stages
    void set_up() {
        for (i64 i = 0; i < axes; i++) {
            Axis& a = axis[i];
            for (i64 b = 0; b < (a.q_batch ? c.batch : 1); b++)
                for (i64 x = 0; x < c.n; x++) a.q[b * a.q_batch + x] = *c.q_position.at<i64>(b, x, a.number);
            for (i64 b = 0; b < (a.k_batch ? c.batch : 1); b++) {
                for (i64 x = 0; x < c.m; x++) a.k[b * a.k_batch + x] = *c.k_position.at<i64>(b, x, a.number);
                runs_of(c, c.k_position, b, a.number, c.m, a.run + b * a.k_batch);
            }
        }
        for (i64 i = 0; i < count; i++)
            if (has_cosine_table(states[i])) states[i].waves.begin(*states[i].t);
        if (network.t) network.prepare(c);
    }

    // items of `prepare_item`
    i64 preparations() const {
        i64 items = own_preparations();
        for (i64 i = 0; i < count; i++) items += items_of(states[i]);
        return items;
    }

    i64 own_preparations() const { return positions.t ? positions.heads : path.t ? c.batch * c.heads : 0; }

    static void prepare_item(void* terms, i64 item, i64 worker) { ((Terms*)terms)->prepare_one(item, worker); }

    // ------------------------------------------------------------ memory of a worker

    struct Worker {
        SlidingProducts sliding_products[MAX_TERMS];
        float* row;      // floats of a row of keys
        float* past;     // [LD], for slopes
        float* sheared;  // [MB + NB + 2·W]
        float* piece_sums;   // of stretched distances
        WaveTile waves;
        ContextualPositions::Worker positions;
        GatedPath::Worker path;
    };

    void lay_out(Memory& memory, Worker& w) {
        w.row = memory.take<float>(LD);
        w.past = memory.take<float>(LD);
        w.sheared = memory.take<float>(MB + NB + 4 * W);
        if (positions.t) positions.lay_out(memory, c, w.positions);
        if (path.t) path.lay_out(memory, c, w.path);
        i64 pieces = 0;
        bool waves = false;
        for (i64 i = 0; i < count; i++) {
            const Term& t = *states[i].t;
            if (states[i].wants_grad && t.form == STRETCHED) pieces = max(pieces, t.rows);
            waves |= t.form == COSINES && !states[i].dense;
        }
        w.waves.lay_out(memory, waves);
        w.piece_sums = memory.take<float>(pieces * 2 * W);
        for (i64 i = 0; i < count; i++) {
            const TermState& s = states[i];
            if (!is_relative(*s.t)) continue;
            SlidingProducts& r = w.sliding_products[i];
            i64 rows = (s.t->kind == RELATIVE_QUERIES ? NB : MB) + SLACK;
            r.ld = s.dense ? min(WINDOW, s.padded) : s.padded;
            bool reads = s.t->kind != RELATIVE_VALUES || c.backward;
            bool writes = c.backward ? s.wants_grad : s.t->kind == RELATIVE_VALUES;
            r.value = reads ? memory.take<float>(rows * r.ld) : nullptr;
            r.grad = writes ? memory.take<float>(rows * r.ld) : nullptr;
            for (int side = 0; side < 2; side++) {
                r.edge_value[side] = memory.take<float>(rows);
                r.edge_grad[side] = memory.take<float>(rows);
            }
            r.rows = memory.take<float>(rows * s.width);
            r.packed_rows = memory.take<float>(rows * s.width);
            r.d_rows = memory.take<float>(rows * s.width);
        }
    }

    void begin_task(i64 task) const {
        if (positions.t) positions.begin_task(task);
        if (path.t) path.begin_task(task);
        for (i64 i = 0; i < count; i++) {
            const TermState& s = states[i];
            if (s.sums_size) memset(s.sums + task * s.sums_size, 0, (size_t)(s.sums_size * 4));
            if (s.double_sums_size) memset(s.double_sums + task * s.double_sums_size, 0, (size_t)(s.double_sums_size * 8));
            if (s.key_sums) memset(s.key_sums + task * plan.mp * s.width, 0, (size_t)(plan.mp * s.width * 4));
        }
    }

    // ------------------------------------------------------------ a block of queries

    // score_scale: [MB]; d_o: dO of this block, [MB][dvp]; fully_masked: rows that see no key, or null
    void begin(Worker& w, const Tile& t, const float* score_scale, const float* d_o, const bool* fully_masked) const {
        if (path.t) path.begin(c, w.path, t, fully_masked);
        for (i64 i = 0; i < count; i++) {
            const TermState& s = states[i];
            SlidingProducts& r = w.sliding_products[i];
            const bool token = s.t->kind == TOKEN_QUERIES || s.t->kind == QUERY_SLOPES, by_distance = s.t->kind == DISTANCE;
            const Tensor& per_query = token ? s.t->values_grad : s.t->stretch_grad;  // one number for each query
            if ((token || by_distance) && per_query.defined())
                for (i64 row = 0; row < t.rows; row++) *per_query.template at<float>(t.b, t.h, t.i0 + row) = 0;
            if (!is_relative(*s.t)) continue;
            r.first = r.last = 0;
            memset(r.edge_grad[0], 0, MB * 4), memset(r.edge_grad[1], 0, MB * 4);
            if (s.t->kind == RELATIVE_QUERIES) continue;
            if (c.backward || s.t->kind == RELATIVE_VALUES) memset(r.d_rows, 0, (size_t)((MB + SLACK) * s.width * 4));
            if (s.t->kind == RELATIVE_KEYS) {
                load_query(s, t, r.rows, fully_masked);
                for (i64 row = 0; row < t.rows; row++)
                    for (i64 x = 0; x < s.width; x++) r.rows[row * s.width + x] *= score_scale[row];
            } else if (d_o) {
                memcpy(r.rows, d_o, (size_t)(t.rows * s.width * 4));
            } else {
                continue;
            }
            edge_products<Packing>(s, t.h, t.rows, r);
        }
    }

    // q' + u of the rows of a block
    void load_query(const TermState& s, const Tile& t, float* q_rows, const bool* fully_masked) const {
        const Term& term = *s.t;
        if (term.unprepared.defined())
            load_rows<F32>(term.unprepared, t.b, t.h, t.i0, t.rows, term.width, q_rows, s.width, s.width);
        else
            load_rows<T>(c.q, t.b, t.h, t.i0, t.rows, term.width, q_rows, s.width, s.width);
        for (i64 row = 0; row < t.rows && fully_masked; row++)
            if (fully_masked[row]) memset(q_rows + row * s.width, 0, (size_t)(s.width * 4));
        if (!term.query_bias.defined()) return;
        for (i64 row = 0; row < t.rows; row++)
            for (i64 x = 0; x < term.width; x++) q_rows[row * s.width + x] += *term.query_bias.template at<float>(t.h, x);
    }

    // whether any gradient depends on the gradients of a term's scores
    bool wants(const TermState& s) const {
        const Term& t = *s.t;
        const Tensor* grads[] = {&t.values_grad,  &t.second_parameter_grad, &t.slope_grad,     &t.stretch_rate_grad,
                                 &t.stretch_grad, &t.query_bias_grad,       &t.unprepared_grad};
        for (const Tensor* grad : grads)
            if (grad->defined()) return true;
        if (is_slope(t)) return wants_d_query_scale;
        if (t.kind == RELATIVE_KEYS) return wants_d_query_scale || (!t.unprepared.defined() && c.dq.defined());
        return t.kind == RELATIVE_QUERIES && (wants_d_query_scale || (!t.unprepared.defined() && c.dk.defined()));
    }

    // ------------------------------------------------------------ a tile of scores

    // deferred_bias: [MB] rows of one distance bias that the softmax adds, or null
    // cap_slope: the tile of ∂score/∂(score before soft caps), or null
    void add(Worker& w, const Tile& t, float* score, const float* score_scale, i64 task, float* cap_slope,
             const float** deferred_bias) const {
        for (i64 i = 0; i < count; i++) {
            const TermState& s = states[i];
            SlidingProducts& products = w.sliding_products[i];
            if (s.t->of_network) continue;
            switch (s.t->kind) {
                case DISTANCE: add_distance(w, s, t, score, capped || scans() || network.t ? nullptr : deferred_bias); break;
                case RELATIVE_KEYS: add_relative_keys(s, products, t, score, task); break;
                case RELATIVE_QUERIES: add_relative_queries(s, products, t, score, score_scale, task); break;
                case TOKEN_QUERIES: add_token_queries(s, t, score); break;
                case TOKEN_KEYS: add_token_keys(w, s, t, score); break;
                case DENSE: add_dense(s, t, score); break;
                case QUERY_SLOPES:
                case KEY_SLOPES: add_slopes(w, s, t, score, score_scale); break;
            }
        }
        if (capped) soft_cap(t, score, cap_slope);
    }

    void add_network_biases(Worker& w, const Tile& t, float* bias) const {
        for (i64 i = 0; i < count; i++)
            if (states[i].t->of_network) add_distance(w, states[i], t, bias, nullptr);
    }

    void add_relative_keys(const TermState& s, SlidingProducts& products, const Tile& t, float* score, i64 task) const {
        for_each_window(s, t, [&](i64 r0, i64 r1, i64 c0, i64 c1, i64 from, i64 to) {
            slide_to<Packing>(s, t.h, task, t.rows, products, from, to);
            add_products(s, products, t, r0, r1, c0, c1, score);
        });
    }

    void add_relative_queries(const TermState& s, SlidingProducts& products, const Tile& t, float* score,
                              const float* score_scale, i64 task) const {
        const i64 base = t.c0;
        load_keys(s, t, products);
        for_each_window(s, t, [&](i64 r0, i64 r1, i64 c0, i64 c1, i64 from, i64 to) {
            slide_to<Packing>(s, t.h, task, t.c1 - t.c0, products, from, to);
            for_each_run(s, t, r0, r1, c0, c1,
                [&](i64 r, i64 x, i64 column, i64 many) {
                    const float* value = products.value + (x - base) * products.ld + column - products.first;
                    for (i64 y = 0; y < many; y++) score[r * LD + x + y] += score_scale[r] * value[y * (products.ld + 1)];
                },
                [&](int side, i64 r, i64 x, i64 many) {
                    for (i64 y = 0; y < many; y++)
                        score[r * LD + x + y] += score_scale[r] * products.edge_value[side][x - base + y];
                });
        });
    }

    void add_token_queries(const TermState& s, const Tile& t, float* score) const {
        for (i64 r = 0; r < t.rows; r++)
            add_to(score + r * LD + t.c0, *s.t->values.template at<float>(t.b, t.h, t.i0 + r), t.c1 - t.c0);
    }

    // the numbers of a tile's keys, with zeros for unseen keys and in the rest of the last vector
    void load_token_keys(Worker& w, const TermState& s, const Tile& t) const {
        for (i64 x = t.c0; x < t.c1; x++) {
            float value = *s.t->values.template at<float>(t.b, t.h, t.j0 + x);
            w.row[x] = t.sees(t.j0 + x) ? value : 0;
        }
        store(w.row + t.c1, vf{});
    }

    void add_token_keys(Worker& w, const TermState& s, const Tile& t, float* score) const {
        load_token_keys(w, s, t);
        for (i64 r = 0; r < t.rows; r++) add_to(score + r * LD + t.c0, w.row + t.c0, t.c1 - t.c0);
    }

    // min(δ, 0) at the columns c0 … c1 − 1 of row r, and zeros in the rest of the last vector
    void past_distances(const TermState& s, const Tile& t, i64 r, float* past) const {
        store(past + t.c1, vf{});
        if (!s.axis)
            for (i64 x = t.c0; x < t.c1; x++) past[x] = (float)distance_of(c, t.b, t.i0 + r, t.j0 + x, s.t->axis);
        for (i64 x = t.c0; x < t.c1 && s.axis;) {
            const float first = (float)minus(s.axis->k_at(t)[x], s.axis->q_at(t)[r]);
            const i64 many = min(s.axis->run_at(t)[x], t.c1 - x);
            for (i64 y = 0; y < many; y++) past[x + y] = first + (float)y;
            x += many;
        }
        for (i64 x = t.c0; x < t.c1; x++) past[x] = past[x] > 0 ? 0 : past[x];  // NaN stays
    }

    float query_slope(const TermState& s, const Tile& t, i64 r) const { return *s.t->values.template at<float>(t.b, t.h, t.i0 + r); }

    void add_slopes(Worker& w, const TermState& s, const Tile& t, float* score, const float* score_scale) const {
        const bool of_keys = s.t->kind == KEY_SLOPES;
        if (of_keys) load_token_keys(w, s, t);
        for (i64 r = 0; r < t.rows; r++) {
            past_distances(s, t, r, w.past);
            const float factor = of_keys ? score_scale[r] : score_scale[r] * query_slope(s, t, r);
            for (i64 x = t.c0; x < t.c1; x += W) {
                const vf penalty = load(w.past + x) * factor;
                store(score + r * LD + x, load(score + r * LD + x) + (of_keys ? penalty * load(w.row + x) : penalty));
            }
        }
    }

    void slopes_backward(Worker& w, const TermState& s, const Tile& t, const float* grad, const float* score_scale,
                         float* d_query_scale, i64 task) const {
        const bool of_keys = s.t->kind == KEY_SLOPES;
        float d_keys[LD] = {};
        if (of_keys) load_token_keys(w, s, t);
        for (i64 r = 0; r < t.rows; r++) {
            past_distances(s, t, r, w.past);
            vf total = {};
            for (i64 x = t.c0; x < t.c1; x += W) {
                const vf found = load(grad + r * LD + x) * load(w.past + x);
                if (of_keys) store(d_keys + x, load(d_keys + x) + found * score_scale[r]);
                total += of_keys ? found * load(w.row + x) : found;
            }
            const float product = sum(total);
            d_query_scale[r] += (float)c.scale * (of_keys ? product : product * query_slope(s, t, r));
            if (!of_keys && s.t->values_grad.defined())
                *s.t->values_grad.template at<float>(t.b, t.h, t.i0 + r) += product * score_scale[r];
        }
        if (s.double_sums_size) add_to(s.double_sums + task * s.double_sums_size + t.j0 + t.c0, d_keys + t.c0, t.c1 - t.c0);
    }

    void add_dense(const TermState& s, const Tile& t, float* score) const {
        const Tensor& values = s.t->values;
        for (i64 r = 0; r < t.rows; r++) {
            const float* from = values.template at<float>(t.b, t.h, t.i0 + r, t.j0);
            i64 step = values.stride[3];
            if (step == 1)
                add_to(score + r * LD + t.c0, from + t.c0, t.c1 - t.c0);
            else
                for (i64 x = t.c0; x < t.c1; x++) score[r * LD + x] += from[x * step];
        }
    }

    void soft_cap(const Tile& t, float* score, float* cap_slope) const {
        bool first = true;
        for (i64 i = 0; i < c.terms; i++) {
            if (c.term[i].kind != SOFT_CAP) continue;
            const float cap = (float)c.term[i].cap;
            for (i64 r = 0; r < t.rows; r++)
                for (i64 x = t.c0; x < t.c1; x += W) {
                    auto [y, slope] = tanh_of(load(score + r * LD + x) / cap);
                    store(score + r * LD + x, y * cap);
                    if (!cap_slope) continue;
                    store(cap_slope + r * LD + x, first ? slope : slope * load(cap_slope + r * LD + x));
                }
            first = false;
        }
    }

    void add_products(const TermState& s, const SlidingProducts& products, const Tile& t, i64 r0, i64 r1, i64 c0, i64 c1,
                      float* score) const {
        for_each_run(s, t, r0, r1, c0, c1,
            [&](i64 r, i64 x, i64 column, i64 many) {
                add_to(score + r * LD + x, products.value + r * products.ld + column - products.first, many);
            },
            [&](int side, i64 r, i64 x, i64 many) { add_to(score + r * LD + x, products.edge_value[side][r], many); });
    }

    // adds a tile of gradients of products to the gradients of their table columns
    void gather_products(const TermState& s, SlidingProducts& products, const Tile& t, i64 r0, i64 r1, i64 c0, i64 c1,
                         const float* grad) const {
        for_each_run(s, t, r0, r1, c0, c1,
            [&](i64 r, i64 x, i64 column, i64 many) {
                add_to(products.grad + r * products.ld + column - products.first, grad + r * LD + x, many);
            },
            [&](int side, i64 r, i64 x, i64 many) { products.edge_grad[side][r] += sum_of(grad + r * LD + x, many); });
    }

    // ------------------------------------------------------------ values

    // weights·r[ρ], gathered by column; ``finish_values`` multiplies by the table
    void add_values(Worker& w, const Tile& t, const float* weight, i64 task) const {
        for (i64 i = 0; i < count; i++)
            if (states[i].t->kind == RELATIVE_VALUES) gather_values(w, i, t, weight, task);
    }

    void gather_values(Worker& w, i64 i, const Tile& t, const float* weight, i64 task) const {
        const TermState& s = states[i];
        for_each_window(s, t, [&](i64 r0, i64 r1, i64 c0, i64 c1, i64 from, i64 to) {
            slide_to<Packing>(s, t.h, task, t.rows, w.sliding_products[i], from, to);
            gather_products(s, w.sliding_products[i], t, r0, r1, c0, c1, weight);
        });
    }

    // multiplies the row's weights so far by `factor`
    void rescale_values(Worker& w, i64 row, float factor) const {
        for (i64 i = 0; i < count; i++) {
            const TermState& s = states[i];
            if (s.t->kind != RELATIVE_VALUES) continue;
            SlidingProducts& r = w.sliding_products[i];
            for (i64 x = 0; x < r.last - r.first; x++) r.grad[row * r.ld + x] *= factor;
            for (i64 x = 0; x < s.width; x++) r.d_rows[row * s.width + x] *= factor;
            r.edge_grad[0][row] *= factor, r.edge_grad[1][row] *= factor;
        }
    }

    void finish_values(Worker& w, const Tile& t, float* o, i64 ld) const {
        for (i64 i = 0; i < count; i++) {
            const TermState& s = states[i];
            if (s.t->kind != RELATIVE_VALUES) continue;
            flush_all_gradients(s, t.h, 0, t.rows, w.sliding_products[i]);
            for (i64 r = 0; r < t.rows; r++) add_to(o + r * ld, w.sliding_products[i].d_rows + r * s.width, s.width);
        }
    }

    bool has_values() const {
        for (i64 i = 0; i < count; i++)
            if (states[i].t->kind == RELATIVE_VALUES) return true;
        return false;
    }

    // dO·r[ρ] added to the gradient of the weights
    void add_value_products(Worker& w, const Tile& t, float* d_weight, i64 task) const {
        for (i64 i = 0; i < count; i++) {
            const TermState& s = states[i];
            if (s.t->kind != RELATIVE_VALUES) continue;
            for_each_window(s, t, [&](i64 r0, i64 r1, i64 c0, i64 c1, i64 from, i64 to) {
                slide_to<Packing>(s, t.h, task, t.rows, w.sliding_products[i], from, to);
                add_products(s, w.sliding_products[i], t, r0, r1, c0, c1, d_weight);
            });
        }
    }

    // adds a tile's weights to the gradient of the table
    void relative_values_backward(Worker& w, const Tile& t, const float* weight, i64 task) const {
        for (i64 i = 0; i < count; i++)
            if (states[i].t->kind == RELATIVE_VALUES && states[i].wants_grad) gather_values(w, i, t, weight, task);
    }

    // ------------------------------------------------------------ a tile of score gradients

    // grad: zero for a vector on both sides of c0 … c1 − 1; d_query_scale: [MB] sums; dk: the task's [mp][dp]
    void backward(Worker& w, const Tile& t, const float* grad, const float* score_scale, float* d_query_scale, float* dk,
                  i64 task) const {
        for (i64 i = 0; i < count; i++) {
            const TermState& s = states[i];
            const Term& term = *s.t;
            SlidingProducts& products = w.sliding_products[i];
            if (term.of_network) continue;
            if (term.kind == DISTANCE && s.wants_grad) {
                distance_backward(w, s, t, grad, task);
            } else if (term.kind == RELATIVE_KEYS && s.wants_grad) {
                for_each_window(s, t, [&](i64 r0, i64 r1, i64 c0, i64 c1, i64 from, i64 to) {
                    slide_to<Packing>(s, t.h, task, t.rows, products, from, to);
                    gather_products(s, products, t, r0, r1, c0, c1, grad);
                });
            } else if (term.kind == RELATIVE_QUERIES && s.wants_grad) {
                relative_queries_backward(s, products, t, grad, score_scale, d_query_scale, dk, task);
            } else if (term.kind == TOKEN_QUERIES && s.wants_grad) {
                for (i64 r = 0; r < t.rows; r++)
                    *term.values_grad.template at<float>(t.b, t.h, t.i0 + r) += sum_of(grad + r * LD + t.c0, t.c1 - t.c0);
            } else if (term.kind == TOKEN_KEYS && s.wants_grad) {
                sum_rows(grad + t.c0, t.rows, LD, t.c1 - t.c0, w.row);
                add_to(s.double_sums + task * s.double_sums_size + t.j0 + t.c0, w.row, t.c1 - t.c0);
            } else if (is_slope(term) && s.wants_grad) {
                slopes_backward(w, s, t, grad, score_scale, d_query_scale, task);
            } else if (term.kind == DENSE && s.wants_grad) {
                if (s.double_sums_size)
                    dense_backward<double>(own_gradient(s, task), t, grad);
                else if (term.values_grad.dtype == FLOAT64)
                    dense_backward<double>(term.values_grad, t, grad);
                else
                    dense_backward<float>(term.values_grad, t, grad);
            }
        }
    }

    // the same for the biases of the network
    void network_backward(Worker& w, const Tile& t, const float* grad, i64 task) const {
        for (i64 i = 0; i < count; i++)
            if (states[i].t->of_network && states[i].wants_grad) distance_backward(w, states[i], t, grad, task);
    }

    // After the last tile of a block: gradients of queries before ``prepare``. dq: [MB][dp], not yet times score_scale.
    void finish(Worker& w, const Tile& t, float* dq, i64 dq_ld, const float* score_scale, float* d_query_scale,
                const bool* fully_masked, i64 task) const {
        if (path.t) path.finish(t, w.path);
        for (i64 i = 0; i < count; i++) {
            const TermState& s = states[i];
            const Term& term = *s.t;
            SlidingProducts& products = w.sliding_products[i];
            if (term.kind == RELATIVE_VALUES && s.wants_grad) flush_all_gradients(s, t.h, task, t.rows, products);
            if (term.kind != RELATIVE_KEYS || !s.wants_grad) continue;
            flush_all_gradients(s, t.h, task, t.rows, products);
            if (wants_d_query_scale) {
                load_query(s, t, products.rows, fully_masked);
                for (i64 r = 0; r < t.rows; r++)
                    d_query_scale[r] += (float)c.scale * dot(products.rows + r * s.width, products.d_rows + r * s.width, s.width);
            }
            if (!term.unprepared.defined())
                for (i64 r = 0; r < t.rows; r++) add_to(dq + r * dq_ld, products.d_rows + r * s.width, term.width);
            double* du = s.double_sums + task * s.double_sums_size;
            for (i64 r = 0; r < t.rows; r++) {
                float* row = products.d_rows + r * s.width;
                for (i64 x = 0; x < term.width; x++) row[x] *= score_scale[r], du[x] += row[x];
                if (term.unprepared_grad.defined()) store_row<F32>(term.unprepared_grad, t.b, t.h, t.i0 + r, term.width, row);
            }
        }
    }

    // ------------------------------------------------------------ after all tiles

    // the sums of all tasks of a head, in their order: task = (b·heads + h)·chunks + chunk
    void reduce(i64 item, i64 chunks) {
        if (item >= count * c.heads) {
            if (network.t) return network.reduce(c.batch * chunks);
            return positions.t ? positions.reduce(c, item % c.heads, chunks) : path.reduce(c, item % c.heads, chunks);
        }
        write_gradients(states[item / c.heads], item % c.heads, chunks, plan.mp);
    }

    i64 reductions() const { return (count + (positions.t || path.t)) * c.heads + (network.t != nullptr); }

  private:
    float* scratch = nullptr;

    i64 scratch_floats() const {
        i64 widest = 0;
        for (i64 i = 0; i < count; i++) widest = max(widest, states[i].width);
        return (NR + 1) * widest + 64;
    }

    // columns and axis of a term by distance
    void assign_columns(Memory& memory, TermState& s) {
        const Term& t = *s.t;
        const i64 number = axis_of(t);
        DistanceRange span = relevant_distances(c, t, distance_range(c, number));
        if (span.dense && is_relative(t) && !gathers_well(number)) span.dense = false;
        s.dense = span.dense;
        s.low = span.low;
        s.columns = span.dense ? span.high - span.low + 1 : t.rows;
        s.axis = s.dense ? axis_at(memory, number) : nullptr;
    }

    Axis* axis_at(Memory& memory, i64 number) {
        for (i64 i = 0; i < axes; i++)
            if (axis[i].number == number) return &axis[i];
        Axis& a = axis[axes++];
        a.number = number;
        a.q_batch = c.q_position.stride[0] ? c.n : 0;
        a.k_batch = c.k_position.stride[0] ? c.m : 0;
        a.q = memory.take<i64>(a.q_batch ? c.batch * c.n : c.n);
        a.k = memory.take<i64>(a.k_batch ? c.batch * c.m : c.m);
        a.run = memory.take<int32_t>(a.k_batch ? c.batch * c.m : c.m);
        return &a;
    }

    // whether blocks of tokens fall into few groups of near positions: the window then moves and is seldom refilled
    bool gathers_well(i64 number) const {
        return groups_of(c.q_position, number, c.n, MB, 2 * MB) && groups_of(c.k_position, number, c.m, NB, 2 * NB);
    }

    bool groups_of(const Tensor& p, i64 number, i64 tokens, i64 size, i64 limit) const {
        i64 groups = 0, blocks = 0;
        for (i64 b = 0; b < (p.stride[0] ? c.batch : 1); b++)
            for (i64 x = 0; x < tokens; x += size) {
                blocks++;
                i64 low = 0, high = 0;
                for (i64 y = x; y < min(tokens, x + size); y++) {
                    i64 value = *p.at<i64>(b, y, number);
                    if (y > x) low = min(low, value), high = max(high, value);
                    if (y > x && (uint64_t)high - (uint64_t)low <= (uint64_t)limit) continue;
                    groups++, low = high = value;
                }
            }
        return groups <= 2 * blocks + 8;
    }

    i64 items_of(const TermState& s) const {
        if (has_cosine_table(s)) return s.waves.blocks;
        if (s.t->kind == DISTANCE && s.dense) return s.head_stride ? c.heads : 1;
        return is_relative(*s.t) ? s.heads * (s.padded / NR) : 0;
    }

    void prepare_one(i64 item, i64 worker) {
        const i64 own = own_preparations();
        if (item < own) return positions.t ? positions.prepare(c, item) : path.prepare(c, item);
        item -= own;
        i64 i = 0;
        while (item >= items_of(states[i])) item -= items_of(states[i++]);
        TermState& s = states[i];
        if (has_cosine_table(s)) return prepare_cosines(s, item, worker);
        if (s.t->kind != DISTANCE) return prepare_table(s, item, worker);
        return s.t->form == STRETCHED ? prepare_stretched(s) : prepare_distances(s, item);
    }

    void prepare_stretched(TermState& s) {
        const double stretch_rate = *s.t->stretch_rate.template at<float>(0);
        for (i64 x = 0; x < s.columns; x++) {
            s.bias_by_distance[PAD + x] = log_distance(stretch_rate, (double)(s.low + x));
            if (s.slope_by_distance) s.slope_by_distance[PAD + x] = log_distance_slope(stretch_rate, (double)(s.low + x));
        }
    }

    void prepare_distances(TermState& s, i64 h) {
        float* bias = s.bias_by_distance + h * s.head_stride;
        const i64 total = 2 * PAD + s.columns;
        for (i64 x = 0; x < s.columns; x++) {
            bias[PAD + x] = (float)value_at(*s.t, h, s.low + x);
            if (!(bias[PAD + x] < INFINITY)) __atomic_store_n(&s.before_mask, true, __ATOMIC_RELAXED);
        }
        for (i64 x = 0; x < PAD; x++) bias[x] = bias[PAD], bias[total - 1 - x] = bias[total - 1 - PAD];
    }

    // NR columns of a relative table, row-major and as a panel
    void prepare_table(TermState& s, i64 item, i64 worker) {
        const Term& t = *s.t;
        i64 h = item / (s.padded / NR), first = item % (s.padded / NR) * NR;
        float* rows = s.row_major_panel + (h * s.padded + first) * s.width;
        for (i64 x = 0; x < NR; x++) {
            float* to = rows + x * s.width;
            i64 column = first + x, filled = 0;
            if (column < s.columns) {
                i64 row = s.dense ? row_at(t, s.low + column) : column;
                for (; filled < t.width; filled++) to[filled] = *t.values.at<float>(h, row, filled);
            }
            for (; filled < s.width; filled++) to[filled] = 0;
        }
        const float* packed = pack_rows<Packing>(rows, s.width, NR, s.packed_width, scratch + worker * scratch_floats());
        transpose(packed, s.width, s.packed_width, const_cast<float*>(s.panel(h, first)));
    }

    static bool has_cosine_table(const TermState& s) { return s.t->kind == DISTANCE && s.t->form == COSINES && s.dense; }

    // whether each head has its own row of bias_by_distance
    static bool is_per_head(const Term& t) {
        if (t.form == STRETCHED) return false;
        return t.values.stride[0] || ((t.form == LINEAR || t.form == LOG || t.form == POWER) && t.second_parameter.stride[0]);
    }

    // a block of distances, for all heads at once
    void prepare_cosines(TermState& s, i64 block, i64 worker) {
        const double* values = s.waves.block(*s.t, s.low, block, worker);
        const i64 first = block * RUN, many = min(RUN, s.columns - first);
        for (i64 h = 0; h < s.heads; h++) {
            float* bias_by_distance = s.bias_by_distance + h * s.head_stride + PAD;
            for (i64 x = 0; x < many; x++) {
                bias_by_distance[first + x] = (float)values[h * RUN + x];
                if (!(bias_by_distance[first + x] < INFINITY)) __atomic_store_n(&s.before_mask, true, __ATOMIC_RELAXED);
            }
            for (i64 x = 0; x < PAD && !first; x++) bias_by_distance[x - PAD] = bias_by_distance[0];
            for (i64 x = 0; x < PAD && first + many == s.columns; x++)
                bias_by_distance[s.columns + x] = bias_by_distance[s.columns - 1];
        }
    }

    // 0 or 1 if all distances of a tile lie before or beyond the table and share one column; −1 otherwise
    int beyond(const TermState& s, const Tile& t) const {
        Range q = range_of(s.axis->q_at(t), 1, t.rows), k = range_of(s.axis->k_at(t) + t.c0, 1, t.c1 - t.c0);
        if (k.high - q.low - s.low <= 0) return 0;
        return k.low - q.high - s.low >= s.columns - 1 ? 1 : -1;
    }

    void add_distance(Worker& w, const TermState& s, const Tile& t, float* score, const float** deferred_bias) const {
        if (s.t->form == STRETCHED) return add_stretched(s, t, score);
        if (s.t->form == COSINES && !s.dense) return w.waves.add(c, *s.t, t, score);
        if (!s.dense) {
            for (i64 r = 0; r < t.rows; r++)
                for (i64 x = t.c0; x < t.c1; x++) score[r * LD + x] += (float)bias_of_pair(s, t, r, x);
            return;
        }
        const float* bias_by_distance = s.bias_by_distance + t.h * s.head_stride + PAD;
        const i64 *q = s.axis->q_at(t), *k = s.axis->k_at(t);
        const int32_t* run = s.axis->run_at(t);
        const bool leaves = deferred_bias && !deferred_bias[0] && !s.before_mask && run[t.c0] >= t.c1 - t.c0;
        for (i64 r = 0; r < t.rows; r++)
            for (i64 x = t.c0; x < t.c1;) {
                const float* values = bias_by_distance + clamp(k[x] - q[r] - s.low, -PAD, s.columns - 1);
                const i64 many = min(run[x], t.c1 - x);
                if (leaves)
                    deferred_bias[r] = values;
                else
                    add_to(score + r * LD + x, values, many);
                x += many;
            }
    }

    double bias_of_pair(const TermState& s, const Tile& t, i64 r, i64 x) const {
        const Term& term = *s.t;
        if (term.form == ROWS) return *term.values.at<float>(t.h, row_of(c, term, t.b, t.i0 + r, t.j0 + x));
        return form_value(term, t.h, (float)distance_of(c, t.b, t.i0 + r, t.j0 + x, term.axis));
    }

    void distance_backward(Worker& w, const TermState& s, const Tile& t, const float* grad, i64 task) const {
        const Term& term = *s.t;
        double* double_sums = s.double_sums + task * s.double_sums_size;
        if (term.form == STRETCHED) return stretched_backward(s, t, grad, w.piece_sums, double_sums + 2);
        if (term.form == COSINES && !s.dense) return w.waves.backward(c, term, t, grad, double_sums + 2);
        if (!s.dense) return pairs_backward(s, t, grad, double_sums + 2);
        const int side = beyond(s, t);
        if (side >= 0) {
            for (i64 r = 0; r < t.rows; r++) double_sums[side] += sum_of(grad + r * LD + t.c0, t.c1 - t.c0);
            return;
        }
        double* sums = s.sums_by_distance(double_sums) + PAD;
        const i64* q = s.axis->q_at(t);
        bool rising = s.axis->run_at(t)[t.c0] >= t.c1 - t.c0;
        for (i64 r = 1; r < t.rows && rising; r++) rising = q[r] == q[0] + r;
        return rising ? diagonals_backward(w, s, t, grad, sums) : runs_backward(s, t, grad, sums);
    }

    void pairs_backward(const TermState& s, const Tile& t, const float* grad, double* parameters) const {
        const Term& term = *s.t;
        for (i64 r = 0; r < t.rows; r++)
            for (i64 x = t.c0; x < t.c1; x++) {
                float g = grad[r * LD + x];
                if (g == 0) continue;
                if (term.form == ROWS)
                    parameters[row_of(c, term, t.b, t.i0 + r, t.j0 + x)] += g;
                else
                    form_adjoint(term, t.h, (float)distance_of(c, t.b, t.i0 + r, t.j0 + x, term.axis), g, parameters);
            }
    }

    // Positions of queries and keys rise by one, so each diagonal of the tile is one distance, summed in a register.
    void diagonals_backward(Worker& w, const TermState& s, const Tile& t, const float* grad, double* sums) const {
        const i64 last = t.rows - 1, width = t.c1 - t.c0;
        for (i64 x = 0; x < last + width; x += W) {
            vf total = {};
            i64 from = max(0, last - x - (W - 1)), to = min(last, last - x + width - 1);
            for (i64 r = from; r <= to; r++) total += load(grad + r * LD + t.c0 + x + r - last);
            store(w.sheared + x, total);
        }
        const i64 column = s.axis->k_at(t)[t.c0] - s.axis->q_at(t)[last] - s.low;
        add_to(sums + max(-PAD, min(column, s.columns - 1)), w.sheared, last + width);
    }

    void runs_backward(const TermState& s, const Tile& t, const float* grad, double* sums) const {
        const i64 *q = s.axis->q_at(t), *k = s.axis->k_at(t);
        const int32_t* run = s.axis->run_at(t);
        for (i64 r = 0; r < t.rows; r++)
            for (i64 x = t.c0; x < t.c1;) {
                i64 many = min(run[x], t.c1 - x), column = k[x] - q[r] - s.low;
                add_to(sums + max(-PAD, min(column, s.columns - 1)), grad + r * LD + x, many);
                x += many;
            }
    }

    // a task's own sums of a dense bias's gradient, which all rows of the batch and heads share
    Tensor own_gradient(const TermState& s, i64 task) const {
        const Tensor& grad = s.t->values_grad;
        const i64 row = grad.stride[3] ? plan.mp : 1;
        return {(char*)(s.double_sums + task * s.double_sums_size), FLOAT64, {0, 0, grad.stride[2] ? row : 0, grad.stride[3] ? 1 : 0}};
    }

    // Sum: double if several pairs share an item
    template <class Sum>
    static void dense_backward(const Tensor& to, const Tile& t, const float* grad) {
        for (i64 r = 0; r < t.rows; r++) {
            Sum* row = to.template at<Sum>(t.b, t.h, t.i0 + r, t.j0);
            if (to.stride[3] == 0)
                *row += sum_of(grad + r * LD + t.c0, t.c1 - t.c0);
            else if (to.stride[3] == 1)
                add_to(row + t.c0, grad + r * LD + t.c0, t.c1 - t.c0);
            else
                for (i64 x = t.c0; x < t.c1; x++) row[x * to.stride[3]] += grad[r * LD + x];
        }
    }

    // ------------------------------------------------------------ relative queries: the rows are keys

    void load_keys(const TermState& s, const Tile& t, SlidingProducts& products) const {
        const Term& term = *s.t;
        i64 keys = t.c1 - t.c0, first = t.j0 + t.c0, real = max(0, min(keys, c.m - first));
        if (term.unprepared.defined())
            load_rows<F32>(term.unprepared, t.b, t.h / plan.group, first, real, term.width, products.rows, s.width, s.width);
        else
            load_rows<T>(c.k, t.b, t.h / plan.group, first, real, term.width, products.rows, s.width, s.width);
        for (i64 x = 0; x < keys; x++)
            if (x >= real || !t.sees(first + x)) memset(products.rows + x * s.width, 0, (size_t)(s.width * 4));
        products.first = products.last = 0;
        edge_products<Packing>(s, t.h, keys, products);
    }

    void relative_queries_backward(const TermState& s, SlidingProducts& products, const Tile& t, const float* grad,
                                   const float* score_scale, float* d_query_scale, float* dk, i64 task) const {
        const Term& term = *s.t;
        i64 keys = t.c1 - t.c0, base = t.c0;
        load_keys(s, t, products);
        memset(products.d_rows, 0, (size_t)(keys * s.width * 4));
        memset(products.edge_grad[0], 0, (size_t)(keys * 4)), memset(products.edge_grad[1], 0, (size_t)(keys * 4));
        for_each_window(s, t, [&](i64 r0, i64 r1, i64 c0, i64 c1, i64 from, i64 to) {
            slide_to<Packing>(s, t.h, task, keys, products, from, to);
            for_each_run(s, t, r0, r1, c0, c1,
                [&](i64 r, i64 x, i64 column, i64 many) {
                    i64 at = (x - base) * products.ld + column - products.first;
                    for (i64 y = 0; y < many; y++, at += products.ld + 1) {
                        float g = grad[r * LD + x + y];
                        products.grad[at] += score_scale[r] * g;
                        d_query_scale[r] += (float)c.scale * g * products.value[at];
                    }
                },
                [&](int side, i64 r, i64 x, i64 many) {
                    for (i64 y = 0; y < many; y++) {
                        float g = grad[r * LD + x + y];
                        products.edge_grad[side][x - base + y] += score_scale[r] * g;
                        d_query_scale[r] += (float)c.scale * g * products.edge_value[side][x - base + y];
                    }
                });
        });
        flush_all_gradients(s, t.h, task, keys, products);
        if (!term.unprepared.defined() && !dk) return;
        float* to = (term.unprepared.defined() ? s.key_sums + task * plan.mp * s.width : dk) + (t.j0 + t.c0) * s.width;
        for (i64 x = 0; x < keys; x++) add_to(to + x * s.width, products.d_rows + x * s.width, s.width);
    }
};

}  // namespace
