// A call of attention from Python: a row of int64 words. Each is checked before anything is used.
//
// The order of the words is the order of the fields below; kernels/cpu/_describe.py writes it.
#pragma once
#include <stdint.h>
#include <string.h>

namespace hw {
namespace {  // every instruction set has its own

typedef int64_t i64;

// The version of all words that pass this interface, including those of tokens.h. Python refuses a library with another
// hw_version.
enum { VERSION = 13, MAX_TERMS = 32, MAX_MAPS = 4, MAX_NODES = 64, MAX_NETWORK_WIDTH = 25 };
enum Dtype { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2, FLOAT64 = 3, INT64 = 4, BOOL = 5 };
enum Kind {
    QUERY_SCALE = 1,
    TOKEN_QUERIES,
    TOKEN_KEYS,
    DISTANCE,
    RELATIVE_KEYS,
    RELATIVE_QUERIES,
    RELATIVE_VALUES,
    DENSE,
    QUERY_SLOPES,
    KEY_SLOPES,
    SINK,
    SOFT_CAP,
    STICK_WEIGHTS,
    CONTEXTUAL_POSITIONS,
    GATED_PATH,
    HEAD_NETWORK,
};
enum Form { ROWS = 0, LINEAR, LOG, POWER, PIECEWISE, COSINES, STRETCHED };
enum MapKind { CLIP = 0, BUCKETIZE, CLASSES, GRID };
enum NodeKind { DIFFERENCE = 1, DILATED, EQUAL, KEYS, BOOLEAN, BITS, AND, OR };

// A tensor of up to four dimensions by its strides (in elements); a dimension that broadcasts has stride 0.
struct Tensor {
    char* data;
    i64 dtype;
    i64 stride[4];
    bool defined() const { return data != nullptr; }
    template <class T>
    T* at(i64 a, i64 b = 0, i64 c = 0, i64 d = 0) const {
        return (T*)data + a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3];
    }
};

// From a pair of tokens to the row of a table.
struct Map {
    i64 kind, axis, count;  // count: rows
    i64 low, high;          // clip
    Tensor boundaries;      // bucketize: [count − 1]
    Tensor q_class, k_class;  // classes: [batch, n], [batch, m]
    i64 classes;
};

struct Term {
    i64 kind;
    i64 form;               // distance
    i64 axis;               // distance, closed forms; slopes of tokens
    i64 maps;               // 1, or more for a grid
    Map map[MAX_MAPS];
    i64 rows;               // of the table: the product of the maps' counts; the number of knots, frequencies, pieces or hidden units
    i64 width;              // relative: of a row of the table; path: of a query and a token; network: the keys that a convolution reads
    i64 biases;             // network: the terms by distance behind it that it reads
    bool of_network;        // distance: whether a network reads it
    // For all kinds except the soft cap: the factor, bias, table, vectors, slopes or sink. For closed forms: the first parameter
    // (past, weight, values at knots, weights of cosines, intercept).
    Tensor values, values_grad;
    Tensor second_parameter, second_parameter_grad;  // linear: future; log: rate; power: exponent; [heads]
    Tensor knots;                                    // piecewise: [rows] in float64, rising
    Tensor frequencies;                              // cosines: [rows] in float64
    Tensor edges;                                    // stretched: [pieces − 1], rising
    Tensor slope, slope_grad;                        // stretched: [heads, pieces]
    Tensor stretch_rate, stretch_rate_grad;          // stretched: one for all heads, its gradient by head
    Tensor stretch, stretch_grad;                    // stretched: [batch, heads, n]
    Tensor query_bias, query_bias_grad;              // relative keys: u, [heads, width]
    Tensor unprepared, unprepared_grad;              // relative: the query or key before ``prepare``, if not q or k itself;
                                                     // path: the query
    Tensor path, path_grad;                          // path: the tokens, [batch, heads, m, width]
    Tensor into_bias, into_bias_grad;                // network: [rows]; its `values` are [rows, 2·heads, width]
    Tensor out, out_grad, out_bias, out_bias_grad;   // network: [heads, rows, width], [heads]
    double cap;
    i64 attend_current, remainder;                   // stick weights
};

struct Node {
    i64 kind, low, high, step;
    i64 first;  // bits: the number of the first key's bit; a byte has eight, the lowest first
    Tensor a, b;
};

// The reductions of the weights. An absent tensor, or a count of 0, is not wanted.
struct ReduceCall {
    i64 wanted;
    Tensor counted;                // [batch, n] bool: the queries that count for reductions over queries; absent: all
    Tensor entropy, visible, distance;  // [batch, heads, n]; visible int64
    i64 top;                       // largest weights of each query
    Tensor top_weights, top_keys;  // [batch, heads, n, top]; keys int64
    Tensor top_least;              // [batch, heads, n]: keys with a smaller score are not among them; absent: none
    i64 at;                        // chosen keys of each query
    Tensor at_keys, at_weights;    // [batch, n, at] int64; [batch, heads, n, at]
    i64 labels;
    Tensor key_labels, label_sums;  // [batch, m] int64; [batch, heads, n, labels]
    i64 edge_count;
    Tensor edges, range_sums;      // [edge_count] int64, rising; [batch, heads, n, edge_count + 1]
    i64 matches, furthest;         // 1 if sums over keys with a query's label are wanted; their largest distance
    Tensor match_queries, match_keys;  // [batch, n], [batch, m] int64; a label below 0 matches none
    Tensor match_sums, match_counts;   // [batch, heads, n]; counts int64
    Tensor column_sums;            // [batch, heads, m] float64
    i64 rows, columns;             // of the map
    i64 one_pass;                  // 1 if the map is summed in the pass over the rows, before weights are normalised
    Tensor mass, largest;          // [batch, heads, rows, columns]; mass float64
};

struct Call {
    i64 backward, threads, dtype;
    i64 batch, heads, kv_heads, n, m, d, dv;
    double scale;
    i64 drop_below;  // a weight whose 32 random bits are below it is dropped; 0 drops none
    double keep_scale;
    i64 seed;
    i64 batch_offset, head_offset;  // this part's first row and head in the whole call; dropout counts from there
    i64 partial_keys;  // backward: 1 if the results are those of a call over more keys than this one has
    i64 axes;
    Tensor q, k, v, out;
    // For each row, its largest score, including a sink, and Σ exp(score − row_max), with natural logarithms; −∞ and 0 if it
    // sees nothing. They merge results over disjoint keys. From those of all keys, the backward pass computes its weights,
    // exp(score − row_max) / row_sum. Both passes compute exp by exp_of, with an error of at most 3e-6.
    Tensor row_max, row_sum;
    Tensor d_out, d_lse, dq, dk, dv_;
    Tensor q_position, k_position;  // [batch, tokens, axes]: int64, float32 or float64
    Tensor q_index, k_index;        // [batch, tokens] int64
    i64 intervals;                  // 0 (everything), 1 or 2 of key slots for each query
    Tensor start[2], stop[2];       // [batch, n] int64
    i64 nodes;                      // the part of the mask that is not an interval, in postfix order
    Node node[MAX_NODES];
    i64 terms;
    Term term[MAX_TERMS];
    ReduceCall reduce;
};

class Reader {
  public:
    Reader(const i64* words, i64 count) : words_(words), count_(count) {}

    // 0, or 1 + the number of the wrong word
    i64 read(Call& c) {
        memset(&c, 0, sizeof c);
        if (word() != VERSION) return first_invalid();
        if (!read_sizes(c)) return first_invalid();
        read_tensors(c);
        read_coordinates(c);
        read_mask(c);
        c.terms = range(0, MAX_TERMS);
        for (i64 i = 0; i < c.terms && !invalid_; i++) read_term(c, c.term[i]);
        read_reductions(c, c.reduce);
        check_scans(c);
        check_network(c);
        if (at_ != count_) invalid_ = true;
        if (invalid_) return first_invalid();
        without_queries(c);
        return 0;
    }

  private:
    static const i64 MAX = (i64)1 << 40, FAR = (i64)1 << 60;

    static const i64 F32_BIT = (i64)1 << FLOAT32, F64_BIT = (i64)1 << FLOAT64;  // sets of dtypes
    static const i64 I64_BIT = (i64)1 << INT64, BOOL_BIT = (i64)1 << BOOL;

    bool read_sizes(Call& c) {
        c.backward = range(0, 1);
        c.threads = range(1, 4096);
        c.dtype = range(FLOAT32, FLOAT16);
        c.batch = range(0, MAX), c.heads = range(0, MAX), c.kv_heads = range(1, MAX);
        if (invalid_ || c.heads % c.kv_heads) return false;
        c.n = range(0, MAX), c.m = range(0, MAX), c.d = range(1, 1 << 16), c.dv = range(0, 1 << 16);
        if (!fits(c.batch, c.heads + c.kv_heads, c.n + c.m + 1024, c.d + c.dv + 1024)) invalid_ = true;
        c.scale = finite_double();
        c.drop_below = range(0, (i64)1 << 32);
        c.keep_scale = finite_double();
        c.seed = word();
        c.batch_offset = range(0, MAX), c.head_offset = range(0, MAX);
        c.partial_keys = range(0, c.backward);
        return true;
    }

    void read_tensors(Call& c) {
        const i64 B = c.batch, H = c.heads, K = c.kv_heads, n = c.n, m = c.m, own_bit = (i64)1 << c.dtype;
        c.q = tensor(own_bit, true, B, H, n, c.d);
        c.k = tensor(own_bit, true, B, K, m, c.d);
        c.v = tensor(own_bit, true, B, K, m, c.dv);
        c.out = tensor(own_bit, true, B, H, n, c.dv);
        c.row_max = tensor(F32_BIT, c.backward, B, H, n);
        c.row_sum = tensor(F32_BIT, c.backward, B, H, n);
        if (!c.backward) return;
        c.d_out = tensor(F32_BIT | own_bit, true, B, H, n, c.dv);
        c.d_lse = tensor(F32_BIT, false, B, H, n);
        c.dq = tensor(own_bit, false, B, H, n, c.d);
        c.dk = tensor(own_bit, false, B, K, m, c.d);
        c.dv_ = tensor(own_bit, false, B, K, m, c.dv);
    }

    void read_coordinates(Call& c) {
        c.axes = range(1, 1 << 20);
        c.q_position = tensor(I64_BIT | F32_BIT | F64_BIT, true, c.batch, c.n, c.axes);
        c.k_position = tensor((i64)1 << c.q_position.dtype, true, c.batch, c.m, c.axes);
        c.q_index = tensor(I64_BIT, true, c.batch, c.n);
        c.k_index = tensor(I64_BIT, true, c.batch, c.m);
    }

    void read_mask(Call& c) {
        const i64 B = c.batch, H = c.heads, n = c.n, m = c.m;
        c.intervals = range(0, 2);
        for (i64 i = 0; i < c.intervals && !invalid_; i++) {
            c.start[i] = tensor(I64_BIT, true, B, n);
            c.stop[i] = tensor(I64_BIT, true, B, n);
        }
        c.nodes = range(0, MAX_NODES);
        i64 depth = 0;
        for (i64 i = 0; i < c.nodes && !invalid_; i++) {
            Node& node = c.node[i];
            node.kind = range(DIFFERENCE, OR);
            if (node.kind == DIFFERENCE) node.low = word(), node.high = word();
            if (node.kind == DILATED) node.step = range(1, INT64_MAX);
            if (node.kind == EQUAL) node.a = tensor(I64_BIT, true, B, n), node.b = tensor(I64_BIT, true, B, m);
            if (node.kind == KEYS) node.a = tensor(BOOL_BIT, true, B, m);
            if (node.kind == BOOLEAN) node.a = tensor(BOOL_BIT, true, B, H, n, m);
            if (node.kind == BITS) {
                node.first = range(0, INT64_MAX - 7 - m);
                node.a = tensor(BOOL_BIT, true, B, H, n, (node.first + m + 7) / 8);
            }
            depth += node.kind >= AND ? -1 : 1;
            if (depth < 1 || depth > 16) invalid_ = true;
        }
        if (c.nodes && depth != 1) invalid_ = true;
    }

    // Without queries, only zero gradients of keys and of shared parameters are left to write.
    static void without_queries(Call& c) {
        if (!c.batch || !c.heads) c.reduce = ReduceCall();
        if (!c.batch) c.batch = 1, c.n = c.m = 0;
        if (c.heads) return;
        for (i64 i = 0; i < c.terms; i++)
            if (c.term[i].kind == RELATIVE_QUERIES && c.term[i].unprepared_grad.defined())
                clear(c.term[i].unprepared_grad, c.batch, c.kv_heads, c.m, c.term[i].width);
        c.heads = c.kv_heads, c.n = 0, c.terms = 0;
    }

    void read_term(const Call& c, Term& t) {
        const i64 B = c.batch, H = c.heads, n = c.n, m = c.m;
        t.kind = range(QUERY_SCALE, HEAD_NETWORK);
        if (t.kind == QUERY_SCALE || t.kind == TOKEN_QUERIES || t.kind == SINK) {
            t.values = tensor(F32_BIT, true, B, H, n), t.values_grad = tensor(F32_BIT, false, B, H, n);
        } else if (t.kind == TOKEN_KEYS) {
            t.values = tensor(F32_BIT, true, B, H, m), t.values_grad = tensor(F32_BIT, false, B, H, m);
        } else if (t.kind == QUERY_SLOPES || t.kind == KEY_SLOPES) {
            const i64 tokens = t.kind == QUERY_SLOPES ? n : m;
            t.axis = range(0, c.axes - 1);
            t.values = tensor(F32_BIT, true, B, H, tokens), t.values_grad = tensor(F32_BIT, false, B, H, tokens);
        } else if (t.kind == DENSE) {
            t.values = tensor(F32_BIT, true, B, H, n, m);
            t.values_grad = tensor(F32_BIT | F64_BIT, false, B, H, n, m);
        } else if (t.kind == SOFT_CAP) {
            t.cap = finite_double();
        } else if (t.kind == STICK_WEIGHTS) {
            t.attend_current = range(0, 1), t.remainder = range(0, 1);
        } else if (t.kind == CONTEXTUAL_POSITIONS) {
            t.rows = range(1, 1 << 20);
            if (!fits(B, H, t.rows + 1024, c.d + 1024)) invalid_ = true;
            t.values = tensor(F32_BIT, true, H, t.rows, c.d), t.values_grad = tensor(F32_BIT, false, H, t.rows, c.d);
        } else if (t.kind == GATED_PATH) {
            t.width = range(1, 1 << 16);
            if (!fits(B, H, n + m + 1024, t.width + 1024)) invalid_ = true;
            t.values = tensor(F32_BIT, true, H);
            t.unprepared = tensor(F32_BIT, true, B, H, n, t.width), t.unprepared_grad = tensor(F32_BIT, false, B, H, n, t.width);
            t.path = tensor(F32_BIT, true, B, H, m, t.width), t.path_grad = tensor(F32_BIT, false, B, H, m, t.width);
        } else if (t.kind == HEAD_NETWORK) {
            t.rows = range(1, 1 << 12), t.width = range(1, MAX_NETWORK_WIDTH), t.biases = range(1, MAX_TERMS);
            if (t.width % 2 == 0 || !fits(t.rows + 1024, 2 * H + 1024, t.width, 1 << 10)) invalid_ = true;
            t.values = tensor(F32_BIT, true, t.rows, 2 * H, t.width), t.values_grad = tensor(F32_BIT, false, t.rows, 2 * H, t.width);
            t.into_bias = tensor(F32_BIT, true, t.rows), t.into_bias_grad = tensor(F32_BIT, false, t.rows);
            t.out = tensor(F32_BIT, true, H, t.rows, t.width), t.out_grad = tensor(F32_BIT, false, H, t.rows, t.width);
            t.out_bias = tensor(F32_BIT, true, H), t.out_bias_grad = tensor(F32_BIT, false, H);
        } else if (t.kind == DISTANCE) {
            read_distance(c, t);
        } else {
            read_relative(c, t);
        }
    }

    // There is at most one term that scans the keys of a row, and it needs all of them. Stick weights replace the softmax,
    // and therefore sinks and the log-sum-exp.
    void check_scans(const Call& c) {
        i64 sticks = 0, scans = 0, sinks = 0;
        for (i64 i = 0; i < c.terms; i++) {
            const i64 kind = c.term[i].kind;
            sticks += kind == STICK_WEIGHTS, sinks += kind == SINK;
            scans += kind >= STICK_WEIGHTS && kind <= GATED_PATH;
        }
        if (scans > 1 || (scans && c.partial_keys)) invalid_ = true;
        if (sticks && (sinks || c.reduce.wanted || c.d_lse.defined())) invalid_ = true;
    }

    // There is at most one network. It reads the scores of all keys after all other terms. Its biases follow it.
    void check_network(Call& c) {
        i64 of_all_keys = 0;
        for (i64 i = 0; i < c.terms; i++) of_all_keys += c.term[i].kind >= STICK_WEIGHTS;
        for (i64 i = 0; i < c.terms && !invalid_; i++) {
            if (c.term[i].kind != HEAD_NETWORK) continue;
            const i64 biases = c.term[i].biases;
            if (of_all_keys > 1 || c.partial_keys || c.reduce.wanted || biases >= c.terms - i) invalid_ = true;
            for (i64 x = i + 1; x <= i + biases && !invalid_; x++) {
                if (c.term[x].kind != DISTANCE) invalid_ = true;
                c.term[x].of_network = true;
            }
        }
    }

    void read_distance(const Call& c, Term& t) {
        const i64 B = c.batch, H = c.heads, n = c.n;
        t.form = range(ROWS, STRETCHED);
        if (t.form == ROWS) {
            maps(c, t);
            t.values = tensor(F32_BIT, true, H, t.rows), t.values_grad = tensor(F32_BIT, false, H, t.rows);
            return;
        }
        t.axis = range(0, c.axes - 1);
        t.rows = 1;
        if (t.form == PIECEWISE || t.form == COSINES) {
            t.rows = t.form == PIECEWISE ? range(2, 1 << 20) : range(0, 1 << 16);
            (t.form == PIECEWISE ? t.knots : t.frequencies) = tensor(F64_BIT, true, t.rows);
            t.values = tensor(F32_BIT, true, H, t.rows), t.values_grad = tensor(F32_BIT, false, H, t.rows);
        } else if (t.form == STRETCHED) {
            t.rows = range(1, 1 << 20);
            t.edges = tensor(F32_BIT, true, t.rows - 1);
            t.values = tensor(F32_BIT, true, H, t.rows), t.values_grad = tensor(F32_BIT, false, H, t.rows);
            t.slope = tensor(F32_BIT, true, H, t.rows), t.slope_grad = tensor(F32_BIT, false, H, t.rows);
            t.stretch_rate = tensor(F32_BIT, true, 1), t.stretch_rate_grad = tensor(F32_BIT, false, H);
            t.stretch = tensor(F32_BIT, true, B, H, n), t.stretch_grad = tensor(F32_BIT, false, B, H, n);
        } else {
            t.values = tensor(F32_BIT, true, H), t.values_grad = tensor(F32_BIT, false, H);
            t.second_parameter = tensor(F32_BIT, true, H), t.second_parameter_grad = tensor(F32_BIT, false, H);
        }
    }

    void read_relative(const Call& c, Term& t) {
        const i64 B = c.batch, H = c.heads, n = c.n, m = c.m;
        maps(c, t);
        t.width = range(t.kind == RELATIVE_VALUES ? 0 : 1, 1 << 16);
        t.values = tensor(F32_BIT, true, H, t.rows, t.width), t.values_grad = tensor(F32_BIT, false, H, t.rows, t.width);
        if (t.kind == RELATIVE_KEYS) {
            t.query_bias = tensor(F32_BIT, false, H, t.width), t.query_bias_grad = tensor(F32_BIT, false, H, t.width);
            t.unprepared = tensor(F32_BIT, false, B, H, n, t.width), t.unprepared_grad = tensor(F32_BIT, false, B, H, n, t.width);
            if (!t.unprepared.defined() && B && H && n && t.width != c.d) invalid_ = true;
        } else if (t.kind == RELATIVE_QUERIES) {
            t.unprepared = tensor(F32_BIT, false, B, c.kv_heads, m, t.width);
            t.unprepared_grad = tensor(F32_BIT, false, B, c.kv_heads, m, t.width);
            if (!t.unprepared.defined() && B && m && t.width != c.d) invalid_ = true;
        } else if (t.width != c.dv) {
            invalid_ = true;
        }
    }

    void read_reductions(const Call& c, ReduceCall& r) {
        const i64 B = c.batch, H = c.heads, n = c.n, m = c.m;
        r.wanted = range(0, !c.backward && !c.drop_below);
        if (!r.wanted) return;
        r.counted = tensor(BOOL_BIT, false, B, n);
        r.entropy = tensor(F32_BIT, false, B, H, n);
        r.visible = tensor(I64_BIT, false, B, H, n);
        r.distance = tensor(F32_BIT, false, B, H, n);
        r.top = range(0, m < INT32_MAX ? MAX : 0);
        if (!fits(B, H, n + 1024, r.top)) invalid_ = true;
        if (r.top) {
            r.top_weights = tensor(F32_BIT, true, B, H, n, r.top), r.top_keys = tensor(I64_BIT, true, B, H, n, r.top);
            r.top_least = tensor(F32_BIT, false, B, H, n);
        }
        r.at = range(0, MAX);
        if (!fits(B, H, n + 1024, r.at)) invalid_ = true;
        if (r.at) r.at_keys = tensor(I64_BIT, true, B, n, r.at), r.at_weights = tensor(F32_BIT, true, B, H, n, r.at);
        r.labels = range(0, MAX);
        if (!fits(B, H, n + 1024, r.labels)) invalid_ = true;
        if (r.labels) r.key_labels = tensor(I64_BIT, true, B, m), r.label_sums = tensor(F32_BIT, true, B, H, n, r.labels);
        r.edge_count = range(0, MAX);
        if (!fits(B, H, n + 1024, r.edge_count)) invalid_ = true;
        if (r.edge_count) {
            r.edges = tensor(I64_BIT, true, r.edge_count);
            r.range_sums = tensor(F32_BIT, true, B, H, n, r.edge_count + 1);
        }
        r.matches = range(0, 1);
        if (r.matches) {
            r.furthest = word();
            r.match_queries = tensor(I64_BIT, true, B, n), r.match_keys = tensor(I64_BIT, true, B, m);
            r.match_sums = tensor(F32_BIT, true, B, H, n), r.match_counts = tensor(I64_BIT, true, B, H, n);
        }
        r.column_sums = tensor(F64_BIT, false, B, H, m);
        r.rows = range(0, max_of_map(n)), r.columns = range(0, max_of_map(m));
        if (!fits(B, H, r.rows, r.columns) || (r.rows == 0) != (r.columns == 0)) invalid_ = true;
        if (r.rows) r.mass = tensor(F64_BIT, true, B, H, r.rows, r.columns), r.largest = tensor(F32_BIT, true, B, H, r.rows, r.columns);
        r.one_pass = range(0, r.rows > 0);
        const bool by_column = r.column_sums.defined() || (r.rows && !r.one_pass);
        if (by_column && (!c.row_max.defined() || !c.row_sum.defined()) && B && H && n) invalid_ = true;
    }

    static i64 max_of_map(i64 tokens) { return tokens > 1 ? tokens : 1; }

    void maps(const Call& c, Term& t) {
        t.maps = range(1, MAX_MAPS);
        t.rows = 1;
        for (i64 i = 0; i < t.maps && !invalid_; i++) {
            Map& map = t.map[i];
            map.kind = range(CLIP, CLASSES);
            if (map.kind == CLASSES) {
                map.classes = range(1, 1 << 15);
                map.count = map.classes * map.classes;
                map.q_class = tensor(I64_BIT, true, c.batch, c.n);
                map.k_class = tensor(I64_BIT, true, c.batch, c.m);
            } else {
                map.axis = range(0, c.axes - 1);
                if (map.kind == CLIP) {
                    map.low = range(-FAR, FAR), map.high = range(-FAR, FAR);
                    map.count = map.high - map.low + 1;
                } else {
                    map.count = range(1, 1 << 30);
                    map.boundaries = tensor(I64_BIT | F32_BIT | F64_BIT, true, map.count - 1);
                }
            }
            if (map.count < 1 || map.count > (i64)1 << 31 || t.rows > ((i64)1 << 31) / map.count) invalid_ = true;
            if (!invalid_) t.rows *= map.count;
            if (!fits(c.batch, c.heads, t.rows, 1 << 16)) invalid_ = true;
        }
    }

    i64 word() {
        if (invalid_ || at_ >= count_) {
            invalid_ = true;
            return 0;
        }
        return words_[at_++];
    }

    i64 range(i64 low, i64 high) {
        i64 value = word();
        if (value < low || value > high) invalid_ = true;
        return invalid_ ? low : value;
    }

    static void clear(const Tensor& t, i64 a, i64 b, i64 c, i64 d) {
        for (i64 i = 0; i < a * b * c * d; i++)
            *t.at<float>(i / (b * c * d), i / (c * d) % b, i / d % c, i % d) = 0;
    }

    // whether the size of memory for several times as many numbers fits into an integer
    static bool fits(i64 a, i64 b, i64 c, i64 d) { return (double)a * (double)b * (double)c * (double)d < 0x1p52; }

    double finite_double() {
        i64 bits = word();
        double value;
        memcpy(&value, &bits, sizeof value);
        if (!(value - value == 0)) invalid_ = true;  // NaN or infinite
        return value;
    }

    // data, bytes from data to the end of its storage, dtype, four strides; allowed: bits of the dtypes
    Tensor tensor(i64 allowed, bool needed, i64 a, i64 b = 1, i64 c = 1, i64 d = 1) {
        Tensor t;
        t.data = (char*)word();
        i64 bytes = word();
        t.dtype = range(FLOAT32, BOOL);
        const i64 sizes[4] = {a, b, c, d};
        static const i64 item[] = {4, 2, 2, 8, 8, 1};
        i64 last = 0;
        bool empty = false;
        for (int i = 0; i < 4; i++) {
            t.stride[i] = range(0, (i64)1 << 50);
            if (sizes[i] == 0) empty = true;
            i64 step;
            if (sizes[i] > 1 && (__builtin_mul_overflow(sizes[i] - 1, t.stride[i], &step) ||
                                 __builtin_add_overflow(last, step, &last)))
                invalid_ = true;
        }
        if (invalid_) return Tensor();
        if (!t.data) {
            if (needed && !empty) invalid_ = true;
            return t;
        }
        if (!(allowed >> t.dtype & 1) || (uintptr_t)t.data % item[t.dtype]) invalid_ = true;
        if (!empty && (bytes < 0 || last >= bytes / item[t.dtype])) invalid_ = true;
        return t;
    }

    i64 first_invalid() const { return at_ < 1 ? 1 : at_; }

    const i64* words_;
    i64 count_, at_ = 0;
    bool invalid_ = false;
};

}  // namespace
}  // namespace hw
