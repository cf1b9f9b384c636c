// A dump for PyTorch's torchfrtrace: a pickle of protocol 2 (docs.python.org, pickletools), of dicts, lists, texts and
// numbers.
//
// The tool drops what comes before the latest first record id of all ranks, and then compares the operations of each
// group by number. Stages of a pipeline issue different numbers of operations, so the record id here is the step, and a
// dump begins with one. Sizes are in bytes, and sums of slices are "_v": ranks own slices of different length. A
// message between two stages is a broadcast of the pair.

#include <algorithm>
#include <cstring>

#include "comm/flight.h"
#include "kernels/runtime/check.h"

namespace rz {

namespace {

class Pickle {
   public:
    void open_dict() { out_ += "}("; }
    void close_dict() { out_ += "u"; }
    void open_list() { out_ += "]("; }
    void close_list() { out_ += "e"; }
    void close_pair() { out_ += "\x86"; }
    void text(const std::string& s) {
        out_ += 'X';
        little_endian(s.size(), 4);
        out_ += s;
    }
    void number(int64_t n) {
        out_ += "\x8a\x08";  // LONG1 of 8 bytes
        little_endian(uint64_t(n), 8);
    }
    void none() { out_ += 'N'; }
    void boolean(bool b) { out_ += b ? "\x88" : "\x89"; }
    void texts(std::initializer_list<std::pair<const char*, std::string>> items) {
        for (const auto& [key, value] : items) text(key), text(value);
    }
    void numbers(std::initializer_list<std::pair<const char*, int64_t>> items) {
        for (const auto& [key, value] : items) text(key), number(value);
    }
    std::string done() { return "\x80\x02" + out_ + "."; }

   private:
    void little_endian(uint64_t n, int bytes) {
        for (int i = 0; i < bytes; ++i) out_ += char(n >> (8 * i));
    }
    std::string out_;
};

// The name, if the tool knows it.
const char* known_name(const std::string& op) {
    if (op == "all_gather" || op == "gather by parts") return "nccl:all_gather_v";
    if (op == "reduce_scatter" || op == "scatter by parts") return "nccl:reduce_scatter_v";
    if (op == "all_reduce") return "nccl:all_reduce";
    return op == "barrier" ? "nccl:barrier" : "nccl:broadcast";
}

std::string group_name(const char* group, int first) { return format("%s from rank %d", group, first); }

void entry(Pickle& p, const OpRecord& r, const Channel& c) {
    static const char* const kStates[] = {"scheduled", "scheduled", "started", "completed"};
    const auto ns = [](double s) { return int64_t(s * 1e9); };
    p.open_dict();
    p.numbers({{"record_id", r.step},
               {"pg_id", r.channel},
               {"collective_seq_id", int64_t(r.number)},
               {"p2p_seq_id", 0},
               {"op_id", int64_t(r.seq)},
               {"time_created_ns", ns(r.issued)}});
    for (const auto& [key, at] :
         {std::pair("time_discovered_started_ns", r.begun), {"time_discovered_completed_ns", r.done}}) {
        p.text(key);
        at > 0 ? p.number(ns(at)) : p.none();
    }
    p.text("process_group");
    p.text(group_name(c.group, c.first)), p.text(c.group);
    p.close_pair();
    p.texts({{"profiling_name", known_name(r.op)}, {"state", kStates[int(r.state)]}});
    for (const char* sizes : {"input_sizes", "output_sizes"}) {
        p.text(sizes), p.open_list(), p.open_list();
        p.number(r.bytes), p.close_list(), p.close_list();
    }
    for (const char* types : {"input_dtypes", "output_dtypes"}) {
        p.text(types), p.open_list();
        p.text("Byte"), p.close_list();
    }
    p.text("retired"), p.boolean(r.state == OpState::done);
    p.text("is_p2p"), p.boolean(false);
    p.text("frames"), p.open_list(), p.open_dict();
    p.texts({{"name", describe(r)}, {"filename", format("step %lld", (long long)r.step)}});
    p.numbers({{"line", int64_t(r.seq)}});
    p.close_dict(), p.close_list();
    p.close_dict();
}

}  // namespace

std::string pickle_of(const Flight& f) {
    Pickle p;
    p.open_dict();
    p.texts({{"version", "2.10"}});
    p.text("pg_config"), p.open_dict();
    for (int c = 0; c < f.page.channels_used; ++c) {
        const Channel& channel = f.page.channels[c];
        std::string ranks;
        for (int i = 0; i < channel.size; ++i)
            ranks += (i ? ", " : "") + std::to_string(f.page.members[channel.at + i]);
        p.text(group_name(channel.group, channel.first)), p.open_dict();
        p.texts({{"name", group_name(channel.group, channel.first)},
                 {"desc", channel.group},
                 {"ranks", "[" + ranks + "]"}});
        p.close_dict();
    }
    p.close_dict();
    p.text("entries"), p.open_list();
    const uint64_t wanted = f.page.first_open > kKeptDone ? f.page.first_open - kKeptDone : 1;
    const std::vector<OpRecord>& all = f.records;
    auto from =
        std::lower_bound(all.begin(), all.end(), wanted, [](const OpRecord& r, uint64_t s) { return r.seq < s; });
    while (from != all.begin() && from != all.end() && std::prev(from)->step == from->step) --from;
    if (from == all.begin() && !all.empty() && all.front().seq > 1)  // that step is not whole
        from = std::find_if(from, all.end(), [&](const OpRecord& r) { return r.step != all.front().step; });
    for (; from != all.end(); ++from)
        if (from->channel >= 0) entry(p, *from, f.page.channels[from->channel]);
    p.close_list();
    p.close_dict();
    return p.done();
}

}  // namespace rz
