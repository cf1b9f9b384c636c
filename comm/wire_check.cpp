#include "comm/wire_check.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <sstream>

#include "comm/process.h"
#include "comm/watch.h"
#include "kernels/bit_sum.h"

namespace rz {

struct WireCheck::Arrivals {
    std::vector<std::pair<Message, int64_t>> messages;  // and the place of its sum
};

WireCheck::WireCheck(Stream& stream, const Transport& transport, Damage damage)
    : transport_(transport), damage_(std::move(damage)), sides_(2 * size_t(transport.size())) {
    const int64_t bytes = 2 * transport.size() * kWireSums * int64_t(sizeof(uint64_t));
    sums_ = Buffer(transport.device(), bytes, MemKind::comm, "sums of messages");
    stream.zero(sums_.data(), bytes);
    stream.synchronize();  // other streams add to them
}

WireCheck::~WireCheck() = default;

int64_t WireCheck::next(bool arrives, const Message& m, const Label& label) {
    Side& s = side(arrives, m.peer);
    const int64_t sum = s.next++ % kWireSums;
    s.most = std::max(s.most, s.next);
    if (int64_t(s.labels.size()) <= sum) s.labels.resize(size_t(sum) + 1);
    s.labels[size_t(sum)] = label;
    s.labels[size_t(sum)].bytes = m.bytes;
    return place(arrives, m.peer, sum);
}

std::shared_ptr<const WireCheck::Arrivals> WireCheck::leaving(Stream& stream, const MessageGroup& group) {
    Label label;
    if (Watch* watch = transport_.watch(); watch && group.seq) {
        const OpRecord record = watch->record(group.seq);
        std::memcpy(label.op, record.op, sizeof label.op);
        label.number = record.number;
    }
    auto arrivals = std::make_shared<Arrivals>();
    bool sends = false;
    for (const Message& m : group.messages) {
        if (m.peer == transport_.rank()) continue;
        const int64_t at = next(!m.is_send, m, label);
        if (!m.is_send) {
            arrivals->messages.emplace_back(m, at);
            continue;
        }
        bit_sum(stream, {.sum = sums_.as<uint64_t>() + at, .data = m.data, .bytes = m.bytes});
        sends = true;
    }
    if (sends) last_ = stream.record();
    return arrivals->messages.empty() ? nullptr : arrivals;
}

static void flip_first_bit(Stream& stream, void* data) {
    unsigned char byte = 0;
    stream.copy(&byte, data, 1);
    stream.synchronize();
    byte ^= 1;
    stream.copy(data, &byte, 1);
    stream.synchronize();
}

void WireCheck::arrived(Stream& stream, const Arrivals& arrivals) {
    for (const auto& [m, at] : arrivals.messages) {
        if (damage_ && damage_()) flip_first_bit(stream, m.data);
        bit_sum(stream, {.sum = sums_.as<uint64_t>() + at, .data = m.data, .bytes = m.bytes});
    }
    last_ = stream.record();
}

void WireCheck::begin_step() {
    for (Side& s : sides_) s.next = 0;
}

// ---- comparison -----------------------------------------------------------------------------------------------------

void WireCheck::read_and_clear(Stream& stream) {
    last_.synchronize();
    read_.resize(size_t(sums_.bytes()) / sizeof(uint64_t));
    stream.copy(read_.data(), sums_.data(), sums_.bytes());
    stream.zero(sums_.data(), sums_.bytes());
    stream.synchronize();
}

// "0 2 data": from rank 0 of the job to rank 2, in group data. Both sides have it by this name.
std::string WireCheck::name(bool arrives, int peer) const {
    const int own = transport_.world_rank(transport_.rank()), other = transport_.world_rank(peer);
    return format("%d %d %s", arrives ? other : own, arrives ? own : other, transport_.group().c_str());
}

// The finalizer of SplitMix64: a bijection, so another sum at the same place gives another number.
static uint64_t mix_sum(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// One number for all sums of a pair.
uint64_t WireCheck::fold(bool arrives, int peer) const {
    uint64_t salt = 0, total = 0;
    for (const char c : name(arrives, peer)) salt = mix_sum(salt + static_cast<unsigned char>(c) + 1);
    for (int64_t i = 0; i < kWireSums; ++i)
        total += mix_sum(mix_sum(salt + uint64_t(i)) + read_[size_t(place(arrives, peer, i))]);
    return total;
}

// A line for each: "place sum bytes count operation"
std::string WireCheck::sums(bool arrives, int peer) const {
    const Side& s = sides_[size_t(arrives ? transport_.size() + peer : peer)];
    std::string text;
    for (size_t i = 0; i < s.labels.size(); ++i) {
        const Label& l = s.labels[i];
        const int64_t shared = (s.most - int64_t(i) + kWireSums - 1) / kWireSums;
        text += format("%zu %llu %lld %lld %s #%llu\n", i,
                       (unsigned long long)read_[size_t(place(arrives, peer, int64_t(i)))], (long long)l.bytes,
                       (long long)shared, l.op[0] ? l.op : "message", (unsigned long long)l.number);
    }
    return text;
}

namespace {

struct WireSum {
    uint64_t sum = 0;
    int64_t bytes = 0, shared = 0;
    std::string op;
};
// By place: what the sender has, and the receiver.
using WireSums = std::map<int64_t, std::array<WireSum, 2>>;

void read_wire_sums(const std::string& text, bool arrives, WireSums& sums) {
    std::istringstream lines(text);
    int64_t at = 0;
    while (lines >> at) {
        WireSum s;
        lines >> s.sum >> s.bytes >> s.shared;
        std::getline(lines >> std::ws, s.op);
        sums[at][arrives] = s;
    }
}

// First place where one pair differs.
std::string tell_of(const std::string& name, const WireSums& sums) {
    std::istringstream words(name);
    int from = 0, to = 0;
    std::string group;
    words >> from >> to;
    std::getline(words >> std::ws, group);
    int64_t differ = 0;
    std::string first;
    for (const auto& [at, both] : sums) {
        if (both[0].sum == both[1].sum) continue;
        ++differ;
        if (!first.empty()) continue;
        const WireSum& s = both[1].op.empty() ? both[0] : both[1];
        first = format("from rank %d to rank %d in %s of group %s, message %lld between them in a step, of %lld bytes",
                       from, to, s.op.c_str(), group.c_str(), (long long)at + 1, (long long)s.bytes);
        if (s.shared > 1) first += format(" (or another that shares its sum, of %lld)", (long long)s.shared);
    }
    if (differ > 1) first += format(", and in %lld more messages", (long long)differ - 1);
    return first;
}

}  // namespace

std::string wire_difference(Process& process, Stream& stream, const std::vector<WireCheck*>& checks) {
    // Sent counts up and received counts down: over all ranks nothing is left.
    uint64_t total = 0;
    std::string folds;
    const auto each_pair = [&](auto&& body) {
        for (WireCheck* check : checks)
            for (const bool arrives : {false, true})
                for (int peer = 0; peer < check->transport_.size(); ++peer)
                    if (peer != check->transport_.rank() && check->side(arrives, peer).most > 0)
                        body(*check, arrives, peer);
    };
    for (WireCheck* check : checks) check->read_and_clear(stream);
    each_pair([&](WireCheck& check, bool arrives, int peer) {
        const uint64_t fold = check.fold(arrives, peer);
        total += arrives ? 0 - fold : fold;
        folds += format("%d %llu %s\n", int(arrives), (unsigned long long)fold, check.name(arrives, peer).c_str());
    });
    if (process.sums({total})[0] == 0) return "";

    std::map<std::string, std::array<uint64_t, 2>> by_name;
    for (const std::string& text : process.all_gather_text(folds)) {
        std::istringstream lines(text);
        int arrives = 0;
        uint64_t fold = 0;
        for (std::string name; lines >> arrives >> fold && std::getline(lines >> std::ws, name);)
            by_name[name][arrives != 0] += fold;
    }
    std::string text;
    for (const auto& [name, both] : by_name) {
        if (both[0] == both[1]) continue;
        std::string own[2];
        each_pair([&, &wanted = name](WireCheck& check, bool arrives, int peer) {
            if (check.name(arrives, peer) == wanted) own[arrives] = check.sums(arrives, peer);
        });
        WireSums sums;
        for (const bool arrives : {false, true})
            for (const std::string& one : process.all_gather_text(own[arrives])) read_wire_sums(one, arrives, sums);
        text += (text.empty() ? "" : "; ") + tell_of(name, sums);
    }
    return "bits changed between the memories of two ranks: " + text;
}

}  // namespace rz
