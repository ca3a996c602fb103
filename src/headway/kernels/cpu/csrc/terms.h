// What the terms add to a tile of scores, and what they take from a tile of score gradients.
#pragma once
#include "sums.h"

namespace {

template <class T, class Words>
struct Terms {
    const Call& c;
    const Plan<T, Words>& plan;
    i64 count = 0, axes = 0;
    Spoken spoken[MOST_TERMS];
    Axis axis[MOST_TERMS];
    const Term* temperature = nullptr;
    const Term* sink = nullptr;
    bool capped = false;
    bool moves_queries = false;  // a temperature that wants its gradient
    i64 tasks = 0;

    Terms(const Plan<T, Words>& p) : c(p.c), plan(p) {
        for (i64 i = 0; i < c.terms; i++) {
            const Term& t = c.term[i];
            if (t.kind == TEMPERATURE) temperature = &t, moves_queries = t.values_grad.there();
            if (t.kind == SINK) sink = &t;
            if (t.kind == SOFT_CAP) capped = true;
            if (t.kind == TEMPERATURE || t.kind == SINK || t.kind == SOFT_CAP) continue;
            Spoken& s = spoken[count++];
            s = Spoken{};
            s.c = &c, s.t = &t;
        }
        for (i64 i = 0; i < count; i++) spoken[i].wanted = c.backward && wants(spoken[i]);
    }

    void lay_out(Memory& memory, i64 tasks_) {
        tasks = tasks_;
        axes = 0;
        for (i64 i = 0; i < count; i++) {
            Spoken& s = spoken[i];
            const Term& t = *s.t;
            if (t.kind == DISTANCE || is_relative(t)) place(memory, s);
            s.heads = t.values.stride[0] ? c.heads : 1;
            if (t.kind == DISTANCE && s.dense) {
                s.strip_head = by_head(t) ? 2 * PAD + s.columns : 0;
                const i64 size = (s.strip_head ? c.heads : 1) * (2 * PAD + s.columns);
                s.strip = memory.take<float>(size);
                s.slope_strip = t.rate_grad.there() ? memory.take<float>(size) : nullptr;
                if (t.form == COSINES) s.waves.lay_out(memory, t, s.heads, s.columns, plan.workers);
            }
            if (is_relative(t)) {
                s.words = words_of(t.width, Words::PER_WORD);
                s.width = up(t.width, W);
                s.padded = up(s.columns, NR);
                s.panels = memory.take<float>(s.heads * s.padded * s.words);
                s.natural = memory.take<float>(s.heads * s.padded * s.width);
            }
            if (!c.backward) continue;
            if (t.kind == DISTANCE && s.wanted) {
                s.parameters = t.form == ROWS ? t.rows : form_parameters(t);
                s.fine_size = 2 + s.parameters + (s.dense && t.form != STRETCHED ? 2 * PAD + s.columns : 0);
            } else if (is_relative(t) && s.wanted) {
                s.sums_size = s.padded * s.width;
                s.fine_size = s.width;
                if (t.kind == RELATIVE_QUERIES && t.other.there())
                    s.key_sums = memory.take<float>(tasks * plan.mp * s.width);
            } else if (t.kind == TOKEN_KEYS && s.wanted) {
                s.fine_size = plan.mp;
            }
            s.sums = memory.take<float>(tasks * s.sums_size);
            s.fine = memory.take<double>(tasks * s.fine_size);
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
            if (is_waves(spoken[i])) spoken[i].waves.begin(*spoken[i].t);
    }

    // items of `prepare_item`
    i64 preparations() const {
        i64 items = 0;
        for (i64 i = 0; i < count; i++) items += items_of(spoken[i]);
        return items;
    }

    static void prepare_item(void* terms, i64 item, i64 worker) { ((Terms*)terms)->prepare_one(item, worker); }

    // ------------------------------------------------------------ memory of a worker

    struct Worker {
        Ring ring[MOST_TERMS];
        float* row;      // floats of a row of keys
        float* sheared;  // [MB + NB + 2·W]
        float* pieces;   // of stretched distances
        WaveTile waves;
    };

    void lay_out(Memory& memory, Worker& w) {
        w.row = memory.take<float>(LD);
        w.sheared = memory.take<float>(MB + NB + 4 * W);
        i64 pieces = 0;
        bool waves = false;
        for (i64 i = 0; i < count; i++) {
            const Term& t = *spoken[i].t;
            if (spoken[i].wanted && t.form == STRETCHED) pieces = most(pieces, t.rows);
            waves |= t.form == COSINES && !spoken[i].dense;
        }
        w.waves.lay_out(memory, waves);
        w.pieces = memory.take<float>(pieces * 2 * W);
        for (i64 i = 0; i < count; i++) {
            const Spoken& s = spoken[i];
            if (!is_relative(*s.t)) continue;
            Ring& r = w.ring[i];
            i64 rows = (s.t->kind == RELATIVE_QUERIES ? NB : MB) + SLACK;
            r.ld = s.dense ? least(HELD, s.padded) : s.padded;
            bool reads = s.t->kind != RELATIVE_VALUES || c.backward;
            bool writes = c.backward ? s.wanted : s.t->kind == RELATIVE_VALUES;
            r.value = reads ? memory.take<float>(rows * r.ld) : nullptr;
            r.grad = writes ? memory.take<float>(rows * r.ld) : nullptr;
            for (int side = 0; side < 2; side++) {
                r.edge_value[side] = memory.take<float>(rows);
                r.edge_grad[side] = memory.take<float>(rows);
            }
            r.own = memory.take<float>(rows * s.width);
            r.own_words = memory.take<float>(rows * s.width);
            r.own_grad = memory.take<float>(rows * s.width);
        }
    }

    void begin_task(i64 task) const {
        for (i64 i = 0; i < count; i++) {
            const Spoken& s = spoken[i];
            if (s.sums_size) memset(s.sums + task * s.sums_size, 0, (size_t)(s.sums_size * 4));
            if (s.fine_size) memset(s.fine + task * s.fine_size, 0, (size_t)(s.fine_size * 8));
            if (s.key_sums) memset(s.key_sums + task * plan.mp * s.width, 0, (size_t)(plan.mp * s.width * 4));
        }
    }

    // ------------------------------------------------------------ a block of queries

    // rate: what multiplies a row's products, [MB]; d_o: [MB][dvp] of this block; blind: rows that see nothing, or null
    void begin(Worker& w, const Tile& t, const float* rate, const float* d_o, const bool* blind) const {
        for (i64 i = 0; i < count; i++) {
            const Spoken& s = spoken[i];
            Ring& r = w.ring[i];
            const bool token = s.t->kind == TOKEN_QUERIES, distance = s.t->kind == DISTANCE;
            const Tensor& own = token ? s.t->values_grad : s.t->other_grad;  // one number for each query
            if ((token || distance) && own.there())
                for (i64 row = 0; row < t.rows; row++) *own.template at<float>(t.b, t.h, t.i0 + row) = 0;
            if (!is_relative(*s.t)) continue;
            r.first = r.last = 0;
            memset(r.edge_grad[0], 0, MB * 4), memset(r.edge_grad[1], 0, MB * 4);
            if (s.t->kind == RELATIVE_QUERIES) continue;
            if (c.backward || s.t->kind == RELATIVE_VALUES) memset(r.own_grad, 0, (size_t)((MB + SLACK) * s.width * 4));
            if (s.t->kind == RELATIVE_KEYS) {
                load_query(s, t, r.own, blind);
                for (i64 row = 0; row < t.rows; row++)
                    for (i64 x = 0; x < s.width; x++) r.own[row * s.width + x] *= rate[row];
            } else if (d_o) {
                memcpy(r.own, d_o, (size_t)(t.rows * s.width * 4));
            } else {
                continue;
            }
            edges<Words>(s, t.h, t.rows, r);
        }
    }

    // q' + u of the rows of a block
    void load_query(const Spoken& s, const Tile& t, float* own, const bool* blind) const {
        const Term& term = *s.t;
        if (term.other.there())
            load_rows<F32>(term.other, t.b, t.h, t.i0, t.rows, term.width, own, s.width, s.width);
        else
            load_rows<T>(c.q, t.b, t.h, t.i0, t.rows, term.width, own, s.width, s.width);
        for (i64 row = 0; row < t.rows && blind; row++)
            if (blind[row]) memset(own + row * s.width, 0, (size_t)(s.width * 4));
        if (!term.second.there()) return;
        for (i64 row = 0; row < t.rows; row++)
            for (i64 x = 0; x < term.width; x++) own[row * s.width + x] += *term.second.template at<float>(t.h, x);
    }

    // whether anything comes of a term's score gradients
    bool wants(const Spoken& s) const {
        const Term& t = *s.t;
        if (t.values_grad.there() || t.second_grad.there() || t.other_grad.there() || t.rate_grad.there()) return true;
        if (t.kind == RELATIVE_KEYS) return moves_queries || (!t.other.there() && c.dq.there());
        return t.kind == RELATIVE_QUERIES && (moves_queries || (!t.other.there() && c.dk.there()));
    }

    // ------------------------------------------------------------ a tile of scores

    // late: [MB] rows of one distance bias that are left to be added with the softmax, or null
    void add(Worker& w, const Tile& t, float* score, const float* rate, i64 task, float* factor, const float** late) const {
        for (i64 i = 0; i < count; i++) {
            const Spoken& s = spoken[i];
            const Term& term = *s.t;
            Ring& ring = w.ring[i];
            if (term.kind == DISTANCE) {
                add_distance(w, s, t, score, capped ? nullptr : late);
            } else if (term.kind == RELATIVE_KEYS) {
                parts(s, t, [&](i64 r0, i64 r1, i64 c0, i64 c1, i64 from, i64 to) {
                    hold<Words>(s, t.h, task, t.rows, ring, from, to);
                    add_products(s, ring, t, r0, r1, c0, c1, score);
                });
            } else if (term.kind == RELATIVE_QUERIES) {
                load_keys(s, t, ring);
                parts(s, t, [&](i64 r0, i64 r1, i64 c0, i64 c1, i64 from, i64 to) {
                    hold<Words>(s, t.h, task, t.c1 - t.c0, ring, from, to);
                    const i64 base = t.c0;
                    pieces(s, t, r0, r1, c0, c1,
                        [&](i64 r, i64 x, i64 column, i64 many) {
                            const float* value = ring.value + (x - base) * ring.ld + column - ring.first;
                            for (i64 y = 0; y < many; y++) score[r * LD + x + y] += rate[r] * value[y * (ring.ld + 1)];
                        },
                        [&](int side, i64 r, i64 x, i64 many) {
                            for (i64 y = 0; y < many; y++)
                                score[r * LD + x + y] += rate[r] * ring.edge_value[side][x - base + y];
                        });
                });
            } else if (term.kind == TOKEN_QUERIES) {
                for (i64 r = 0; r < t.rows; r++)
                    add_to(score + r * LD + t.c0, *term.values.template at<float>(t.b, t.h, t.i0 + r), t.c1 - t.c0);
            } else if (term.kind == TOKEN_KEYS) {
                for (i64 x = t.c0; x < t.c1; x++) {
                    float value = *term.values.template at<float>(t.b, t.h, t.j0 + x);
                    w.row[x] = t.sees(t.j0 + x) ? value : 0;
                }
                for (i64 r = 0; r < t.rows; r++) add_to(score + r * LD + t.c0, w.row + t.c0, t.c1 - t.c0);
            } else if (term.kind == DENSE) {
                for (i64 r = 0; r < t.rows; r++) {
                    const float* from = term.values.template at<float>(t.b, t.h, t.i0 + r, t.j0);
                    i64 step = term.values.stride[3];
                    if (step == 1)
                        add_to(score + r * LD + t.c0, from + t.c0, t.c1 - t.c0);
                    else
                        for (i64 x = t.c0; x < t.c1; x++) score[r * LD + x] += from[x * step];
                }
            }
        }
        if (!capped) return;
        bool first = true;
        for (i64 i = 0; i < c.terms; i++) {
            if (c.term[i].kind != SOFT_CAP) continue;
            const float cap = (float)c.term[i].cap;
            for (i64 r = 0; r < t.rows; r++)
                for (i64 x = t.c0; x < t.c1; x += W) {
                    vf y = tanh_of(load(score + r * LD + x) / cap);
                    store(score + r * LD + x, y * cap);
                    if (!factor) continue;
                    vf slope = 1.f - y * y;
                    store(factor + r * LD + x, first ? slope : slope * load(factor + r * LD + x));
                }
            first = false;
        }
    }

    void add_products(const Spoken& s, const Ring& ring, const Tile& t, i64 r0, i64 r1, i64 c0, i64 c1, float* score) const {
        pieces(s, t, r0, r1, c0, c1,
            [&](i64 r, i64 x, i64 column, i64 many) {
                add_to(score + r * LD + x, ring.value + r * ring.ld + column - ring.first, many);
            },
            [&](int side, i64 r, i64 x, i64 many) { add_to(score + r * LD + x, ring.edge_value[side][r], many); });
    }

    // gradᵢ of the products of a block with the columns of a table: a tile of it, put where its columns are
    void take_products(const Spoken& s, Ring& ring, const Tile& t, i64 r0, i64 r1, i64 c0, i64 c1, const float* grad) const {
        pieces(s, t, r0, r1, c0, c1,
            [&](i64 r, i64 x, i64 column, i64 many) {
                add_to(ring.grad + r * ring.ld + column - ring.first, grad + r * LD + x, many);
            },
            [&](int side, i64 r, i64 x, i64 many) { ring.edge_grad[side][r] += sum_of(grad + r * LD + x, many); });
    }

    // ------------------------------------------------------------ values

    // weights·r[ρ], gathered by column; ``finish_values`` multiplies by the table
    void add_values(Worker& w, const Tile& t, const float* weight, i64 task) const {
        for (i64 i = 0; i < count; i++)
            if (spoken[i].t->kind == RELATIVE_VALUES) put_values(w, i, t, weight, task);
    }

    void put_values(Worker& w, i64 i, const Tile& t, const float* weight, i64 task) const {
        const Spoken& s = spoken[i];
        parts(s, t, [&](i64 r0, i64 r1, i64 c0, i64 c1, i64 from, i64 to) {
            hold<Words>(s, t.h, task, t.rows, w.ring[i], from, to);
            take_products(s, w.ring[i], t, r0, r1, c0, c1, weight);
        });
    }

    // the row's weights so far are multiplied by `factor`
    void rescale_values(Worker& w, i64 row, float factor) const {
        for (i64 i = 0; i < count; i++) {
            const Spoken& s = spoken[i];
            if (s.t->kind != RELATIVE_VALUES) continue;
            Ring& r = w.ring[i];
            for (i64 x = 0; x < r.last - r.first; x++) r.grad[row * r.ld + x] *= factor;
            for (i64 x = 0; x < s.width; x++) r.own_grad[row * s.width + x] *= factor;
            r.edge_grad[0][row] *= factor, r.edge_grad[1][row] *= factor;
        }
    }

    void finish_values(Worker& w, const Tile& t, float* o, i64 ld) const {
        for (i64 i = 0; i < count; i++) {
            const Spoken& s = spoken[i];
            if (s.t->kind != RELATIVE_VALUES) continue;
            hand_on_all(s, t.h, 0, t.rows, w.ring[i]);
            for (i64 r = 0; r < t.rows; r++) add_to(o + r * ld, w.ring[i].own_grad + r * s.width, s.width);
        }
    }

    bool has_values() const {
        for (i64 i = 0; i < count; i++)
            if (spoken[i].t->kind == RELATIVE_VALUES) return true;
        return false;
    }

    // dO·r[ρ] added to the gradient of the weights
    void add_value_products(Worker& w, const Tile& t, float* d_weight, i64 task) const {
        for (i64 i = 0; i < count; i++) {
            const Spoken& s = spoken[i];
            if (s.t->kind != RELATIVE_VALUES) continue;
            parts(s, t, [&](i64 r0, i64 r1, i64 c0, i64 c1, i64 from, i64 to) {
                hold<Words>(s, t.h, task, t.rows, w.ring[i], from, to);
                add_products(s, w.ring[i], t, r0, r1, c0, c1, d_weight);
            });
        }
    }

    // what of a tile's weights goes to the table
    void take_values(Worker& w, const Tile& t, const float* weight, i64 task) const {
        for (i64 i = 0; i < count; i++)
            if (spoken[i].t->kind == RELATIVE_VALUES && spoken[i].wanted) put_values(w, i, t, weight, task);
    }

    // ------------------------------------------------------------ a tile of score gradients

    // grad: zero for a vector on both sides of c0 … c1 − 1; heat: [MB] sums for the temperature; dk: the task's [mp][dp]
    void take(Worker& w, const Tile& t, const float* grad, const float* rate, float* heat, float* dk, i64 task) const {
        for (i64 i = 0; i < count; i++) {
            const Spoken& s = spoken[i];
            const Term& term = *s.t;
            Ring& ring = w.ring[i];
            if (term.kind == DISTANCE && s.wanted) {
                take_distance(w, s, t, grad, task);
            } else if (term.kind == RELATIVE_KEYS && s.wanted) {
                parts(s, t, [&](i64 r0, i64 r1, i64 c0, i64 c1, i64 from, i64 to) {
                    hold<Words>(s, t.h, task, t.rows, ring, from, to);
                    take_products(s, ring, t, r0, r1, c0, c1, grad);
                });
            } else if (term.kind == RELATIVE_QUERIES && s.wanted) {
                take_keys(s, ring, t, grad, rate, heat, dk, task);
            } else if (term.kind == TOKEN_QUERIES && s.wanted) {
                for (i64 r = 0; r < t.rows; r++)
                    *term.values_grad.template at<float>(t.b, t.h, t.i0 + r) += sum_of(grad + r * LD + t.c0, t.c1 - t.c0);
            } else if (term.kind == TOKEN_KEYS && s.wanted) {
                sum_rows(grad + t.c0, t.rows, LD, t.c1 - t.c0, w.row);
                add_to(s.fine + task * s.fine_size + t.j0 + t.c0, w.row, t.c1 - t.c0);
            } else if (term.kind == DENSE && s.wanted) {
                if (term.values_grad.dtype == FLOAT64)
                    take_dense<double>(term.values_grad, t, grad);
                else
                    take_dense<float>(term.values_grad, t, grad);
            }
        }
    }

    // After the last tile of a block: gradients of queries before ``prepare``; dq: [MB][dp], still to be multiplied by
    // rate; raw: s alone, for the temperature.
    void finish(Worker& w, const Tile& t, float* dq, i64 dq_ld, const float* rate, float* heat, const bool* blind,
                i64 task) const {
        for (i64 i = 0; i < count; i++) {
            const Spoken& s = spoken[i];
            const Term& term = *s.t;
            Ring& ring = w.ring[i];
            if (term.kind == RELATIVE_VALUES && s.wanted) hand_on_all(s, t.h, task, t.rows, ring);
            if (term.kind != RELATIVE_KEYS || !s.wanted) continue;
            hand_on_all(s, t.h, task, t.rows, ring);
            if (moves_queries) {
                load_query(s, t, ring.own, blind);
                for (i64 r = 0; r < t.rows; r++)
                    heat[r] += (float)c.scale * dot(ring.own + r * s.width, ring.own_grad + r * s.width, s.width);
            }
            if (!term.other.there())
                for (i64 r = 0; r < t.rows; r++) add_to(dq + r * dq_ld, ring.own_grad + r * s.width, term.width);
            double* du = s.fine + task * s.fine_size;
            for (i64 r = 0; r < t.rows; r++) {
                float* row = ring.own_grad + r * s.width;
                for (i64 x = 0; x < term.width; x++) row[x] *= rate[r], du[x] += row[x];
                if (term.other_grad.there()) store_row<F32>(term.other_grad, t.b, t.h, t.i0 + r, term.width, row);
            }
        }
    }

    // ------------------------------------------------------------ after all tiles

    // the sums of all tasks of a head, in their order: task = (b·heads + h)·chunks + chunk
    void reduce(i64 item, i64 chunks) { write_gradients(spoken[item / c.heads], item % c.heads, chunks, plan.mp); }

    i64 reductions() const { return count * c.heads; }

  private:
    float* scratch = nullptr;

    i64 scratch_floats() const {
        i64 widest = 0;
        for (i64 i = 0; i < count; i++) widest = most(widest, spoken[i].width);
        return (NR + 1) * widest + 64;
    }

    // columns and axis of a term by distance
    void place(Memory& memory, Spoken& s) {
        const Term& t = *s.t;
        const i64 number = axis_of(t);
        Span span = span_of(c, t, reach_of(c, number));
        if (span.dense && is_relative(t) && !gathers_well(number)) span.dense = false;
        s.dense = span.dense;
        s.low = span.low;
        s.columns = span.dense ? span.high - span.low + 1 : t.rows;
        s.axis = nullptr;
        if (!s.dense) return;
        for (i64 i = 0; i < axes; i++)
            if (axis[i].number == number) s.axis = &axis[i];
        if (s.axis) return;
        Axis& a = axis[axes++];
        a.number = number;
        a.q_batch = c.q_position.stride[0] ? c.n : 0;
        a.k_batch = c.k_position.stride[0] ? c.m : 0;
        a.q = memory.take<i64>(a.q_batch ? c.batch * c.n : c.n);
        a.k = memory.take<i64>(a.k_batch ? c.batch * c.m : c.m);
        a.run = memory.take<int32_t>(a.k_batch ? c.batch * c.m : c.m);
        s.axis = &a;
    }

    // whether blocks of tokens fall into few groups of near positions, so that a ring need not be filled again and again
    bool gathers_well(i64 number) const {
        return groups_of(c.q_position, number, c.n, MB, 2 * MB) && groups_of(c.k_position, number, c.m, NB, 2 * NB);
    }

    bool groups_of(const Tensor& p, i64 number, i64 tokens, i64 size, i64 limit) const {
        i64 groups = 0, blocks = 0;
        for (i64 b = 0; b < (p.stride[0] ? c.batch : 1); b++)
            for (i64 x = 0; x < tokens; x += size) {
                blocks++;
                i64 low = 0, high = 0;
                for (i64 y = x; y < least(tokens, x + size); y++) {
                    i64 value = *p.at<i64>(b, y, number);
                    if (y > x) low = least(low, value), high = most(high, value);
                    if (y > x && (uint64_t)high - (uint64_t)low <= (uint64_t)limit) continue;
                    groups++, low = high = value;
                }
            }
        return groups <= 2 * blocks + 8;
    }

    i64 items_of(const Spoken& s) const {
        if (is_waves(s)) return s.waves.blocks;
        if (s.t->kind == DISTANCE && s.dense) return s.strip_head ? c.heads : 1;
        return is_relative(*s.t) ? s.heads * (s.padded / NR) : 0;
    }

    void prepare_one(i64 item, i64 worker) {
        i64 i = 0;
        while (item >= items_of(spoken[i])) item -= items_of(spoken[i++]);
        Spoken& s = spoken[i];
        const Term& t = *s.t;
        if (is_waves(s)) return prepare_waves(s, item, worker);
        if (t.kind == DISTANCE) {
            float* strip = s.strip + item * s.strip_head;
            i64 total = 2 * PAD + s.columns;
            if (t.form == STRETCHED) {
                const double rate = *t.rate.at<float>(0);
                for (i64 x = 0; x < s.columns; x++) {
                    strip[PAD + x] = log_distance(rate, (double)(s.low + x));
                    if (s.slope_strip) s.slope_strip[PAD + x] = log_distance_slope(rate, (double)(s.low + x));
                }
                return;
            }
            for (i64 x = 0; x < s.columns; x++) {
                strip[PAD + x] = (float)value_at(t, item, s.low + x);
                if (!(strip[PAD + x] < INFINITY)) __atomic_store_n(&s.early, true, __ATOMIC_RELAXED);
            }
            for (i64 x = 0; x < PAD; x++) strip[x] = strip[PAD], strip[total - 1 - x] = strip[total - 1 - PAD];
            return;
        }
        i64 h = item / (s.padded / NR), first = item % (s.padded / NR) * NR;
        float* rows = s.natural + (h * s.padded + first) * s.width;
        for (i64 x = 0; x < NR; x++) {
            float* to = rows + x * s.width;
            i64 column = first + x, filled = 0;
            if (column < s.columns) {
                i64 row = s.dense ? row_at(t, s.low + column) : column;
                for (; filled < t.width; filled++) to[filled] = *t.values.at<float>(h, row, filled);
            }
            for (; filled < s.width; filled++) to[filled] = 0;
        }
        const float* words = as_rows<Words>(rows, s.width, NR, s.words, scratch + worker * scratch_floats());
        transpose(words, s.width, s.words, const_cast<float*>(s.panel(h, first)));
    }

    static bool is_waves(const Spoken& s) { return s.t->kind == DISTANCE && s.t->form == COSINES && s.dense; }

    // whether each head has a strip of its own
    static bool by_head(const Term& t) {
        if (t.form == STRETCHED) return false;
        return t.values.stride[0] || ((t.form == LINEAR || t.form == LOG || t.form == POWER) && t.second.stride[0]);
    }

    // a block of distances, for all heads at once
    void prepare_waves(Spoken& s, i64 block, i64 worker) {
        const double* values = s.waves.block(*s.t, s.low, block, worker);
        const i64 first = block * RUN, many = least(RUN, s.columns - first);
        for (i64 h = 0; h < s.heads; h++) {
            float* strip = s.strip + h * s.strip_head + PAD;
            for (i64 x = 0; x < many; x++) {
                strip[first + x] = (float)values[h * RUN + x];
                if (!(strip[first + x] < INFINITY)) __atomic_store_n(&s.early, true, __ATOMIC_RELAXED);
            }
            for (i64 x = 0; x < PAD && !first; x++) strip[x - PAD] = strip[0];
            for (i64 x = 0; x < PAD && first + many == s.columns; x++) strip[s.columns + x] = strip[s.columns - 1];
        }
    }

    // the distances of a tile as one column, where all of it lies before or beyond the table: 0, 1, or −1 for neither
    int beyond(const Spoken& s, const Tile& t) const {
        Range q = range_of(s.axis->q_at(t), 1, t.rows), k = range_of(s.axis->k_at(t) + t.c0, 1, t.c1 - t.c0);
        if (k.high - q.low - s.low <= 0) return 0;
        return k.low - q.high - s.low >= s.columns - 1 ? 1 : -1;
    }

    void add_distance(Worker& w, const Spoken& s, const Tile& t, float* score, const float** late) const {
        if (s.t->form == STRETCHED) return add_stretched(s, t, score);
        if (s.t->form == COSINES && !s.dense) return w.waves.add(c, *s.t, t, score);
        if (!s.dense) {
            for (i64 r = 0; r < t.rows; r++)
                for (i64 x = t.c0; x < t.c1; x++) score[r * LD + x] += (float)gathered(s, t, r, x);
            return;
        }
        const float* strip = s.strip + t.h * s.strip_head + PAD;
        const i64 *q = s.axis->q_at(t), *k = s.axis->k_at(t);
        const int32_t* run = s.axis->run_at(t);
        const bool leaves = late && !late[0] && !s.early && run[t.c0] >= t.c1 - t.c0;
        for (i64 r = 0; r < t.rows; r++)
            for (i64 x = t.c0; x < t.c1;) {
                const float* values = strip + clamp(k[x] - q[r] - s.low, -PAD, s.columns - 1);
                const i64 many = least(run[x], t.c1 - x);
                if (leaves)
                    late[r] = values;
                else
                    add_to(score + r * LD + x, values, many);
                x += many;
            }
    }

    double gathered(const Spoken& s, const Tile& t, i64 r, i64 x) const {
        const Term& term = *s.t;
        if (term.form == ROWS) return *term.values.at<float>(t.h, row_of(c, term, t.b, t.i0 + r, t.j0 + x));
        return form_value(term, t.h, (float)distance(c, t.b, t.i0 + r, t.j0 + x, term.axis));
    }

    void take_distance(Worker& w, const Spoken& s, const Tile& t, const float* grad, i64 task) const {
        const Term& term = *s.t;
        double* fine = s.fine + task * s.fine_size;
        if (term.form == STRETCHED) return take_stretched(s, t, grad, w.pieces, fine + 2);
        if (term.form == COSINES && !s.dense) return w.waves.take(c, term, t, grad, fine + 2);
        if (!s.dense) {
            fine += 2;
            for (i64 r = 0; r < t.rows; r++)
                for (i64 x = t.c0; x < t.c1; x++) {
                    float g = grad[r * LD + x];
                    if (g == 0) continue;
                    if (term.form == ROWS)
                        fine[row_of(c, term, t.b, t.i0 + r, t.j0 + x)] += g;
                    else
                        form_adjoint(term, t.h, (float)distance(c, t.b, t.i0 + r, t.j0 + x, term.axis), g, fine);
                }
            return;
        }
        int side = beyond(s, t);
        if (side >= 0) {
            for (i64 r = 0; r < t.rows; r++) fine[side] += sum_of(grad + r * LD + t.c0, t.c1 - t.c0);
            return;
        }
        double* sums = s.strip_sums(fine) + PAD;
        const i64 *q = s.axis->q_at(t), *k = s.axis->k_at(t);
        const int32_t* run = s.axis->run_at(t);
        i64 last = t.rows - 1, width = t.c1 - t.c0;
        bool rising = run[t.c0] >= width;
        for (i64 r = 1; r < t.rows && rising; r++) rising = q[r] == q[0] + r;
        if (rising) {
            // sheared: diagonal x of the tile holds one distance; each is summed in a register
            for (i64 x = 0; x < last + width; x += W) {
                vf total = {};
                i64 from = most(0, last - x - (W - 1)), to = least(last, last - x + width - 1);
                for (i64 r = from; r <= to; r++) total += load(grad + r * LD + t.c0 + x + r - last);
                store(w.sheared + x, total);
            }
            i64 column = k[t.c0] - q[last] - s.low;
            add_to(sums + most(-PAD, least(column, s.columns - 1)), w.sheared, last + width);
            return;
        }
        for (i64 r = 0; r < t.rows; r++)
            for (i64 x = t.c0; x < t.c1;) {
                i64 many = least(run[x], t.c1 - x), column = k[x] - q[r] - s.low;
                add_to(sums + most(-PAD, least(column, s.columns - 1)), grad + r * LD + x, many);
                x += many;
            }
    }

    // Sum: double where several pairs share a number
    template <class Sum>
    static void take_dense(const Tensor& to, const Tile& t, const float* grad) {
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

    void load_keys(const Spoken& s, const Tile& t, Ring& ring) const {
        const Term& term = *s.t;
        i64 keys = t.c1 - t.c0, first = t.j0 + t.c0, real = most(0, least(keys, c.m - first));
        if (term.other.there())
            load_rows<F32>(term.other, t.b, t.h / plan.group, first, real, term.width, ring.own, s.width, s.width);
        else
            load_rows<T>(c.k, t.b, t.h / plan.group, first, real, term.width, ring.own, s.width, s.width);
        for (i64 x = 0; x < keys; x++)
            if (x >= real || !t.sees(first + x)) memset(ring.own + x * s.width, 0, (size_t)(s.width * 4));
        ring.first = ring.last = 0;
        edges<Words>(s, t.h, keys, ring);
    }

    void take_keys(const Spoken& s, Ring& ring, const Tile& t, const float* grad, const float* rate, float* heat,
                   float* dk, i64 task) const {
        const Term& term = *s.t;
        i64 keys = t.c1 - t.c0, base = t.c0;
        load_keys(s, t, ring);
        memset(ring.own_grad, 0, (size_t)(keys * s.width * 4));
        memset(ring.edge_grad[0], 0, (size_t)(keys * 4)), memset(ring.edge_grad[1], 0, (size_t)(keys * 4));
        parts(s, t, [&](i64 r0, i64 r1, i64 c0, i64 c1, i64 from, i64 to) {
            hold<Words>(s, t.h, task, keys, ring, from, to);
            pieces(s, t, r0, r1, c0, c1,
                [&](i64 r, i64 x, i64 column, i64 many) {
                    i64 at = (x - base) * ring.ld + column - ring.first;
                    for (i64 y = 0; y < many; y++, at += ring.ld + 1) {
                        float g = grad[r * LD + x + y];
                        ring.grad[at] += rate[r] * g;
                        heat[r] += (float)c.scale * g * ring.value[at];
                    }
                },
                [&](int side, i64 r, i64 x, i64 many) {
                    for (i64 y = 0; y < many; y++) {
                        float g = grad[r * LD + x + y];
                        ring.edge_grad[side][x - base + y] += rate[r] * g;
                        heat[r] += (float)c.scale * g * ring.edge_value[side][x - base + y];
                    }
                });
        });
        hand_on_all(s, t.h, task, keys, ring);
        if (!term.other.there() && !dk) return;
        float* to = (term.other.there() ? s.key_sums + task * plan.mp * s.width : dk) + (t.j0 + t.c0) * s.width;
        for (i64 x = 0; x < keys; x++) add_to(to + x * s.width, ring.own_grad + x * s.width, s.width);
    }
};

}  // namespace
