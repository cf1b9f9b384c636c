// Two levels at once. The group's ranks stand in columns: rank = local * nodes + node, so the ranks of a node (a row)
// exchange over its own links and the ranks of a column over network cards, every rank over its own. Rank r owns slice
// r: a column owns one run of memory, and one map from ranks to slices (comm/grid.h) serves every algorithm.
//
// Steps cut the owners, not the slices: node m takes the owners on nodes m + 1, m + 2, ... m
// (modulo nodes) a few at a time, so that in each step each node sends to as many nodes as it receives from. Step s of
// a reduce-scatter is one message group: the row's exchange for the owners of step s, and the column's for those of
// step s - 2; the row's sums of step s - 1 are made meanwhile. The all-gather is the mirror: step s gathers along the
// column and spreads along the row what came two steps ago. One step: the levels one after the other, for few bytes.
// A slice longer than a step makes a step a chunk of one owner's slice. Over NCCL row and column are
// communicators of their own (levels_apart), and a step's messages two groups, the row's first on every rank.

#include <algorithm>

#include "comm/collectives.h"
#include "comm/thresholds.h"
#include "kernels/elementwise.h"
#include "kernels/runtime/is_cpu.h"

namespace rz {

namespace {

class Hier : public Collectives {
   public:
    Hier(Transport& transport, const CollectiveOptions& options)
        : Collectives(transport, options), nodes_(options.nodes), locals_(transport.size() / options.nodes) {
        require(nodes_ * locals_ == size(), "hier: %d ranks on %d nodes: every node holds equally many", size(),
                nodes_);
    }
    const char* name() const override { return "hier"; }
    bool rounds_first() const override { return nodes_ > 1; }  // on one node the ring may be chosen

   protected:
    void do_all_reduce(Stream& stream, const AllReduce& a) override;
    void do_reduce_scatter(Stream& stream, const ReduceScatter& a) override {
        if (Collectives* how = one_level(a.offsets, a.wire)) return hand_to(*how, stream, a);
        const int64_t in = size_of(a.dtype), wire = size_of(a.wire), out = size_of(a.out_dtype);
        transport_.make_exchange(stream, {0, a.offsets.back(), a.offsets[1], in, wire, out},
                                 [&] { scatter(stream, a); });
    }
    void do_all_gather(Stream& stream, const AllGather& a) override {
        if (Collectives* how = one_level(a.offsets, a.dtype)) return hand_to(*how, stream, a);
        transport_.make_exchange(stream, {1, a.offsets.back(), a.offsets[1], size_of(a.dtype), 0, 0},
                                 [&] { gather(stream, a.out, a.offsets, a.dtype); });
    }

   private:
    // How the owners on `nodes` nodes, or one owner's slice, are cut into steps.
    struct Steps {
        int per = 1;        // owners of a step
        int chunks = 1;     // of each slice
        int64_t chunk = 0;  // elements
        int count = 1;
        bool whole() const { return count == 1; }
    };
    struct Scatter {
        const ReduceScatter& a;
        Steps steps;
        int64_t widest = 0;  // elements of a step in any column
        char *sent = nullptr, *got = nullptr, *sums = nullptr, *arrived = nullptr;
        int64_t row() const { return widest * size_of(a.wire); }
    };

    int node() const { return rank() % nodes_; }
    int local() const { return rank() / nodes_; }
    int member(int node, int local) const { return local * nodes_ + node; }

    Steps steps_of(Offsets offsets, DType moved) const;
    int first(const Steps& k, int s) const { return s / k.chunks * k.per; }
    int owners(const Steps& k, int s) const { return std::min(k.per, nodes_ - first(k, s)); }
    // The step's part of a slice.
    Part part(const Steps& k, int s, Offsets offsets, int slice) const {
        const int64_t skip = std::min(count(offsets, slice), k.chunks == 1 ? 0 : s % k.chunks * k.chunk);
        const int64_t rest = count(offsets, slice) - skip;
        return {offset(offsets, slice) + skip, k.chunks == 1 ? rest : std::min(k.chunk, rest)};
    }
    template <class Body>  // body(begin, n, place): the runs of a column that belong to a step, and their place in it
    void runs(const Steps& k, Offsets offsets, int s, int column, Body body) const;
    // Offset of an owner's part in a step of this rank's column.
    int64_t place_of(const Steps& k, Offsets offsets, int s, int owner) const;

    void scatter(Stream& stream, const ReduceScatter& a);
    void gather(Stream& stream, void* out, Offsets offsets, DType dtype);
    void one_shot(Stream& stream, const AllReduce& a);
    void add_row(MessageGroup& group, Stream& stream, const Scatter& c, int s);
    void add_column(MessageGroup& group, const Scatter& c, int s) const;
    void sum_row(Stream& stream, const Scatter& c, int s);
    // A step's messages; where row and column are groups of their own, each by its group.
    struct Started {
        Transfer all, row, column;
    };
    Started start(Stream& stream, const MessageGroup& group);
    void finish(Stream& stream, const Started& started);
    void exchange(Stream& stream, const MessageGroup& group) { finish(stream, start(stream, group)); }
    template <class First, class Second, class Arrived>
    void pipeline(Stream& stream, int count, First first, Second second, Arrived arrived);
    // The algorithm on one node, or with one rank on each: the bits of direct, or of the ring.
    Collectives* one_level(Offsets offsets, DType moved);

    int nodes_, locals_;
    std::unique_ptr<Collectives> ring_, direct_;
};

Collectives* Hier::one_level(Offsets offsets, DType moved) {
    if (nodes_ > 1 && locals_ > 1) return nullptr;
    const bool ring =
        nodes_ == 1 && rings_on_one_node(offsets.back() * size_of(moved), size(), !is_cpu(transport_.device()));
    auto& how = ring ? ring_ : direct_;
    if (!how) {
        CollectiveOptions options = options_;
        options.meter = nullptr;
        how = ring ? make_ring(transport_, options) : make_direct(transport_, options);
    }
    return how.get();
}

Hier::Steps Hier::steps_of(Offsets offsets, DType moved) const {
    Steps k;
    const int64_t most = std::max<int64_t>(1, longest(offsets));
    const int64_t bytes =
        options_.step_bytes ? options_.step_bytes : hier_step_bytes(offsets.back() * size_of(moved), nodes_);
    const int64_t step = std::max<int64_t>(1, bytes / size_of(moved));
    const int64_t per = std::clamp<int64_t>(ceil_div(step, most), 1, nodes_);
    k.per = int(ceil_div(nodes_, ceil_div(nodes_, per)));  // steps of equal size
    if (k.per == 1) k.chunks = int(ceil_div(most, step));
    k.chunk = ceil_div(most, k.chunks);
    k.count = int(ceil_div(nodes_, k.per)) * k.chunks;
    return k;
}

template <class Body>
void Hier::runs(const Steps& k, Offsets offsets, int s, int column, Body body) const {
    const int head = member(0, column);
    if (k.whole()) return body(offset(offsets, head), offset(offsets, head + nodes_) - offset(offsets, head), 0);
    const int begin = (node() + 1 + first(k, s)) % nodes_, owner_count = owners(k, s);
    if (k.per == 1) {
        const Part p = part(k, s, offsets, head + begin);
        return body(p.begin, p.n, 0);
    }
    const int before = std::min(owner_count, nodes_ - begin);  // the rest begins at node 0
    const int64_t from = offset(offsets, head + begin), n = offset(offsets, head + begin + before) - from;
    body(from, n, 0);
    if (owner_count > before)
        body(offset(offsets, head), offset(offsets, head + owner_count - before) - offset(offsets, head), n);
}

int64_t Hier::place_of(const Steps& k, Offsets offsets, int s, int owner) const {
    if (k.per == 1) return 0;
    const int head = member(0, local()), begin = k.whole() ? 0 : (node() + 1 + first(k, s)) % nodes_;
    if (owner >= begin) return offset(offsets, head + owner) - offset(offsets, head + begin);
    return offset(offsets, head + nodes_) - offset(offsets, head + begin) + offset(offsets, head + owner) -
           offset(offsets, head);
}

Hier::Started Hier::start(Stream& stream, const MessageGroup& group) {
    Transport *const row = options_.row, *const column = options_.column;
    if (!row) return {.all = transport_.start(stream, group), .row = {}, .column = {}};
    MessageGroup in_row = hop(), in_column = hop();
    for (Message m : group.messages) {
        const bool inside = m.peer % nodes_ == node();
        m.peer = inside ? m.peer / nodes_ : m.peer % nodes_;
        (inside ? in_row : in_column).messages.push_back(m);
    }
    const int64_t before = row->bytes_sent() + column->bytes_sent();
    Started started;
    if (!in_row.empty()) started.row = row->start(stream, in_row);
    if (!in_column.empty()) started.column = column->start(stream, in_column);
    transport_.count_sent(row->bytes_sent() + column->bytes_sent() - before);
    return started;
}

void Hier::finish(Stream& stream, const Started& started) {
    if (!options_.row) return transport_.finish(stream, started.all);
    options_.row->finish(stream, started.row);
    options_.column->finish(stream, started.column);
}

// first(group, s) adds the messages of a step's first level, second(group, s) those of its second. arrived(s): the
// first level of step s is there, while the messages of step s + 1 move.
template <class First, class Second, class Arrived>
void Hier::pipeline(Stream& stream, int count, First first, Second second, Arrived arrived) {
    const int lag = count == 1 ? 1 : 2;  // one step: nothing moves meanwhile
    std::vector<Started> transfers(size_t(count + lag));
    const auto complete = [&](int s) {
        finish(stream, transfers[size_t(s)]);
        transfers[size_t(s)] = {};
        if (s < count) arrived(s);
    };
    for (int s = 0; s < count + lag; ++s) {
        if (lag == 1 && s == 1) complete(0);
        MessageGroup group = hop();
        if (s < count) first(group, s);
        if (s >= lag) second(group, s - lag);
        if (!group.empty()) transfers[size_t(s)] = start(stream, group);
        if (lag == 2 && s > 0) complete(s - 1);
    }
    complete(count + lag - 1);
}

// ---- reduce-scatter -------------------------------------------------------------------------------------------------

void Hier::add_row(MessageGroup& group, Stream& stream, const Scatter& c, int s) {
    const int64_t wire = size_of(c.a.wire), buffer = s % 2 * locals_;
    for (int d = 0; d < locals_; ++d) {
        const int to = (local() + d) % locals_, from = (local() - d + locals_) % locals_;
        runs(c.steps, c.a.offsets, s, to, [&](int64_t begin, int64_t n, int64_t place) {
            const char* values = static_cast<const char*>(c.a.in) + begin * size_of(c.a.dtype);
            if (c.sent) {
                char* converted = c.sent + (buffer + to) * c.row() + place * wire;
                scale_into(stream, converted, c.a.wire, values, c.a.dtype, n, 1);
                values = converted;
            }
            group.send(values, n * wire, member(node(), to));
        });
        runs(c.steps, c.a.offsets, s, local(), [&](int64_t, int64_t n, int64_t place) {
            group.recv(c.got + (buffer + from) * c.row() + place * wire, n * wire, member(node(), from));
        });
    }
}

// The row's sums of step s, in ascending order of the ranks on the node.
void Hier::sum_row(Stream& stream, const Scatter& c, int s) {
    int64_t n = 0;
    runs(c.steps, c.a.offsets, s, local(), [&](int64_t, int64_t elements, int64_t) { n += elements; });
    if (n == 0) return;
    sum_rows(stream, {.out = c.sums + s % 2 * c.row(),
                      .x = c.got + s % 2 * locals_ * c.row(),
                      .rows = locals_,
                      .n = n,
                      .stride = c.widest,
                      .scale = 1,
                      .out_dtype = c.a.wire,
                      .dtype = c.a.wire});
}

// To each owner of the step its part of the row's sum, and from the node that has this rank for an owner, its sum.
void Hier::add_column(MessageGroup& group, const Scatter& c, int s) const {
    const int64_t wire = size_of(c.a.wire), own_n = count(c.a.offsets, rank());
    for (int j = first(c.steps, s); j < first(c.steps, s) + owners(c.steps, s); ++j) {
        const int up = (node() + 1 + j) % nodes_, down = (node() - 1 - j + 2 * nodes_) % nodes_;
        const Part out = part(c.steps, s, c.a.offsets, member(up, local()));
        const Part own = part(c.steps, s, c.a.offsets, rank());
        group.send(c.sums + s % 2 * c.row() + place_of(c.steps, c.a.offsets, s, up) * wire, out.n * wire,
                   member(up, local()));
        group.recv(c.arrived + (down * own_n + own.begin - offset(c.a.offsets, rank())) * wire, own.n * wire,
                   member(down, local()));
    }
}

void Hier::scatter(Stream& stream, const ReduceScatter& a) {
    const Steps k = steps_of(a.offsets, a.wire);
    Scatter c{.a = a, .steps = k};
    for (int s = 0; s < k.count; ++s)
        for (int l = 0; l < locals_; ++l)
            runs(k, a.offsets, s, l,
                 [&](int64_t, int64_t n, int64_t place) { c.widest = std::max(c.widest, place + n); });
    c.widest = round_up(c.widest, 256 / size_of(a.wire));
    const int64_t own_n = count(a.offsets, rank()), rows = 2 * locals_ * c.row();
    const int64_t sent = a.wire != a.dtype ? rows : 0;
    char* memory = static_cast<char*>(scratch(stream, sent + rows + 2 * c.row() + nodes_ * own_n * size_of(a.wire)));
    if (sent) c.sent = memory;
    c.got = memory + sent;
    c.sums = c.got + rows;
    c.arrived = c.sums + 2 * c.row();
    pipeline(
        stream, k.count, [&](MessageGroup& group, int s) { add_row(group, stream, c, s); },
        [&](MessageGroup& group, int s) { add_column(group, c, s); }, [&](int s) { sum_row(stream, c, s); });
    if (own_n == 0) return;
    sum_rows(stream, {.out = a.out,
                      .x = c.arrived,
                      .rows = nodes_,
                      .n = own_n,
                      .stride = own_n,
                      .scale = a.scale,
                      .out_dtype = a.out_dtype,
                      .dtype = a.wire});
}

// ---- all-gather -----------------------------------------------------------------------------------------------------

// This rank's slice lies in place.
void Hier::gather(Stream& stream, void* out, Offsets offsets, DType dtype) {
    const Steps k = steps_of(offsets, dtype);
    const int64_t bytes = size_of(dtype);
    const auto at = [&](int64_t element) { return static_cast<char*>(out) + element * bytes; };
    const auto along_column = [&](MessageGroup& group, int s) {
        for (int j = first(k, s); j < first(k, s) + owners(k, s); ++j) {
            const int up = (node() + 1 + j) % nodes_, down = (node() - 1 - j + 2 * nodes_) % nodes_;
            if (up == node()) continue;
            const Part own = part(k, s, offsets, rank()), theirs = part(k, s, offsets, member(up, local()));
            group.send(at(own.begin), own.n * bytes, member(down, local()));
            group.recv(at(theirs.begin), theirs.n * bytes, member(up, local()));
        }
    };
    const auto along_row = [&](MessageGroup& group, int s) {
        for (int d = 1; d < locals_; ++d) {
            const int to = (local() + d) % locals_, from = (local() - d + locals_) % locals_;
            runs(k, offsets, s, local(),
                 [&](int64_t begin, int64_t n, int64_t) { group.send(at(begin), n * bytes, member(node(), to)); });
            runs(k, offsets, s, from,
                 [&](int64_t begin, int64_t n, int64_t) { group.recv(at(begin), n * bytes, member(node(), from)); });
        }
    };
    pipeline(stream, k.count, along_column, along_row, [](int) {});
}

// ---- all-reduce -----------------------------------------------------------------------------------------------------

// Few bytes: the column's part of the row's sum goes to everyone in the column, who all add it up; the same bits.
void Hier::one_shot(Stream& stream, const AllReduce& a) {
    const int64_t wire = size_of(a.wire), first = offset(a.offsets, member(0, local()));
    std::vector<int64_t> columns;
    for (int l = 0; l < locals_; ++l) columns.push_back(offset(a.offsets, member(0, l)));
    columns.push_back(a.offsets.back());
    int64_t widest = 0;
    for (int l = 0; l < locals_; ++l) widest = std::max(widest, columns[size_t(l) + 1] - columns[size_t(l)]);
    const int64_t n = columns[size_t(local()) + 1] - first, row = round_up(widest * wire, 256);
    const int64_t sent = a.wire != a.dtype ? locals_ * row : 0;
    char* memory = static_cast<char*>(scratch(stream, sent + (locals_ + 1 + nodes_) * row));
    char *got = memory + sent, *sums = got + locals_ * row, *arrived = sums + row;
    const auto sum = [&](void* out, const char* x, int rows, DType out_dtype, float scale) {
        if (n == 0) return;
        sum_rows(stream, {.out = out,
                          .x = x,
                          .rows = rows,
                          .n = n,
                          .stride = row / wire,
                          .scale = scale,
                          .out_dtype = out_dtype,
                          .dtype = a.wire});
    };
    MessageGroup in_row = hop();
    for (int d = 0; d < locals_; ++d) {
        const int to = (local() + d) % locals_, from = (local() - d + locals_) % locals_;
        const int64_t out_n = columns[size_t(to) + 1] - columns[size_t(to)];
        const char* values = static_cast<const char*>(a.in) + columns[size_t(to)] * size_of(a.dtype);
        if (sent) {
            scale_into(stream, memory + to * row, a.wire, values, a.dtype, out_n, 1);
            values = memory + to * row;
        }
        in_row.send(values, out_n * wire, member(node(), to));
        in_row.recv(got + from * row, n * wire, member(node(), from));
    }
    exchange(stream, in_row);
    sum(sums, got, locals_, a.wire, 1);
    MessageGroup in_column = hop();
    for (int d = 0; d < nodes_; ++d) {
        const int to = (node() + d) % nodes_, from = (node() - d + nodes_) % nodes_;
        in_column.send(sums, n * wire, member(to, local()));
        in_column.recv(arrived + from * row, n * wire, member(from, local()));
    }
    exchange(stream, in_column);
    sum(static_cast<char*>(a.out) + first * size_of(a.dtype), arrived, nodes_, a.dtype, a.scale);
    MessageGroup back = hop();
    for (int d = 1; d < locals_; ++d) {
        const int to = (local() + d) % locals_, from = (local() - d + locals_) % locals_;
        const auto at = [&](int l) { return static_cast<char*>(a.out) + columns[size_t(l)] * size_of(a.dtype); };
        back.send(at(local()), n * size_of(a.dtype), member(node(), to));
        back.recv(at(from), (columns[size_t(from) + 1] - columns[size_t(from)]) * size_of(a.dtype),
                  member(node(), from));
    }
    exchange(stream, back);
}

void Hier::do_all_reduce(Stream& stream, const AllReduce& a) {
    if (Collectives* how = one_level(a.offsets, a.wire)) return hand_to(*how, stream, a);
    if (a.offsets.back() * size_of(a.wire) <= hier_one_shot_bytes(nodes_)) {
        one_shot(stream, a);
    } else {
        scatter(stream, first_half(a));
        gather(stream, a.out, a.offsets, a.dtype);
    }
}

}  // namespace

std::unique_ptr<Collectives> make_hier(Transport& transport, const CollectiveOptions& options) {
    return std::make_unique<Hier>(transport, options);
}

}  // namespace rz
