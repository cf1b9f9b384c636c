#include "llama/train/courier.h"

#include <algorithm>

#include "kernels/runtime/request.h"
#include "llama/base/fault.h"
#include "llama/base/sum_hash.h"

namespace rz {

constexpr int64_t kPiece = int64_t(4) << 20;

uint64_t sum_of_piece(const void* data, int64_t bytes) {
    const int64_t words = bytes / 8;
    return sum_hash(data, 0, words, 8) + sum_hash(static_cast<const char*>(data) + 8 * words, 0, bytes % 8, 1);
}

int64_t arrival_bytes(int64_t share) { return 2 * std::min(kPiece, share); }

Courier::Courier(Process& process)
    : transport_(process.make_transport(TransportKind::automatic, Device{}, 0, process.rank(), "snapshots")) {}

Courier::~Courier() = default;

static int64_t count_at(int64_t round, int64_t bytes) { return std::clamp<int64_t>(bytes - round * kPiece, 0, kPiece); }

static void take(int64_t round, Incoming& i, std::string& problem) try {
    const int64_t n = count_at(round, i.bytes);
    if (n == 0) return;
    char* data = i.room[round % 2].data();
    if (fault_errno("snapshot.arrived") != 0) data[n / 2] ^= 1;
    require(sum_of_piece(data, n) == i.sum[round % 2],
            "slices of rank %d came with other bits than they were sent with", i.from);
    if (problem.empty()) i.write(round * kPiece, data, n);
} catch (const Error& error) {
    if (problem.empty()) problem = error.what();
}

void Courier::move(std::vector<Outgoing> out, std::vector<Incoming> in) {
    int64_t most = 0;
    for (const Outgoing& o : out) most = std::max(most, o.bytes);
    for (const Incoming& i : in) most = std::max(most, i.bytes);
    const int64_t rounds = ceil_div(most, kPiece);
    std::string problem;
    try {
        if (rounds > 0) post(0, out, in, problem);
        for (int64_t round = 0; round < rounds; ++round) {
            const Event arrived = arrived_[round % 2];
            if (round + 1 < rounds) post(round + 1, out, in, problem);
            arrived.synchronize();
            for (Incoming& i : in) take(round, i, problem);
        }
    } catch (...) {
        drain();  // the worker is at this call's memory
        throw;
    }
    require(problem.empty(), "%s", problem.c_str());
}

std::vector<std::string> Courier::texts(const std::vector<std::pair<int, std::string>>& to,
                                        const std::vector<int>& from) {
    std::vector<int64_t> lengths(to.size()), theirs(from.size());
    MessageGroup first, second;
    for (size_t i = 0; i < to.size(); ++i) {
        lengths[i] = int64_t(to[i].second.size());
        first.send(&lengths[i], 8, to[i].first);
    }
    for (size_t i = 0; i < from.size(); ++i) first.recv(&theirs[i], 8, from[i]);
    transport_->exchange(stream_, first);
    stream_.synchronize();
    std::vector<std::string> texts;
    for (const int64_t n : theirs) {
        require(n >= 0 && n <= kShareFile.bytes, "a snapshot's share is described by %ld bytes", n);
        texts.emplace_back(size_t(n), '\0');
    }
    for (const auto& [rank, text] : to) second.send(text.data(), int64_t(text.size()), rank);
    for (size_t i = 0; i < from.size(); ++i) second.recv(texts[i].data(), theirs[i], from[i]);
    transport_->exchange(stream_, second);
    stream_.synchronize();
    return texts;
}

void Courier::post(int64_t round, std::vector<Outgoing>& out, std::vector<Incoming>& in, std::string& problem) {
    const size_t side = size_t(round % 2);
    MessageGroup group;
    for (Outgoing& o : out) {
        const int64_t n = count_at(round, o.bytes);
        if (n == 0) continue;
        const void* data = nullptr;
        try {
            o.room[side].resize(size_t(std::min(kPiece, o.bytes)));
            data = o.read(round * kPiece, n, o.room[side].data());
            o.sum[side] = sum_of_piece(data, n);
        } catch (const Error& error) {
            if (problem.empty()) problem = error.what();
            data = o.room[side].data();
            o.sum[side] = ~sum_of_piece(data, n);  // the other side refuses it
        }
        group.send(data, n, o.to);
        group.send(&o.sum[side], 8, o.to);
    }
    for (Incoming& i : in) {
        const int64_t n = count_at(round, i.bytes);
        if (n == 0) continue;
        i.room[side].resize(size_t(std::min(kPiece, i.bytes)));
        group.recv(i.room[side].data(), n, i.from);
        group.recv(&i.sum[side], 8, i.from);
    }
    transport_->exchange(stream_, group);
    arrived_[side] = stream_.record();
}

void Courier::drain() noexcept {
    try {
        stream_.synchronize();
    } catch (const std::exception&) {  // said already
    }
}

}  // namespace rz
