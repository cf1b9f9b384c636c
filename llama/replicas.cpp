#include "llama/replicas.h"

#include <algorithm>
#include <cstring>

#include "llama/guards.h"
#include "llama/sum_hash.h"

namespace rz {

static constexpr int64_t kPiece = int64_t(16) << 20;

// Calls visit(bytes on the device, how many, offset of the first in the flat buffer) for what this rank holds.
template <class Visit>
static void visit_parameters(Zero& zero, const Visit& visit) {
    const int64_t e = size_of(zero.options().param_dtype);
    if (zero.options().stage == 3) {
        for (const OwnedRange& own : zero.owned())
            visit(static_cast<char*>(own.param), own.elements.size() * e, own.logical * e);
        return;
    }
    for (int u = 0; u < int(zero.units().size()); ++u) {
        const UnitLayout& unit = zero.units()[size_t(u)];
        visit(static_cast<char*>(const_cast<void*>(zero.gather(u))), unit.padded * e, unit.offset * e);
        zero.release(u);
    }
}

// Of words [first, first + words) of the flat buffer.
static uint64_t hash_of(const char* data, int64_t first, int64_t words) {
    constexpr int64_t kEach = int64_t(1) << 16;
    uint64_t sum = 0;
#pragma omp parallel for reduction(+ : sum) schedule(static)
    for (int64_t at = 0; at < words; at += kEach) sum += sum_hash(data + at * 8, first + at, std::min(kEach, words - at), 8);
    return sum;
}

uint64_t hash_parameters(Device device, Stream& compute, Zero& zero) {
    Buffer staging;
    if (device.is_cuda()) staging = Buffer::host_for(device, kPiece, MemKind::workspace, "parameters being compared");
    uint64_t hash = 0;
    visit_parameters(zero, [&](char* bytes, int64_t size, int64_t offset) {
        for (int64_t at = 0; at < size; at += kPiece) {
            const int64_t n = std::min(kPiece, size - at);
            if (staging) compute.copy(staging.data(), bytes + at, n);
            compute.synchronize();
            hash += hash_of(staging ? staging.as<char>() : bytes + at, (offset + at) / 8, n / 8);
        }
    });
    return hash;
}

bool has_replicas(const Mesh& mesh, const Zero& zero) {
    return mesh.size() > 1 && (zero.options().stage < 3 || mesh.replicas() > 1);
}

std::string compare_replicas(Process& process, const Mesh& mesh, Device device, Stream& compute, Zero& zero) {
    if (!has_replicas(mesh, zero)) return "";
    const uint64_t own = hash_parameters(device, compute, zero);
    std::vector<uint64_t> all(size_t(process.size()));
    process.all_gather(&own, sizeof own, all.data());
    // With ZeRO-3, ranks in the same place of their rows hold the same slices.
    const int apart = zero.options().stage < 3 ? 1 : mesh.shard_size();
    std::string text;
    for (int first = 0; first < apart; ++first) {
        std::vector<uint64_t> copies;
        for (int r = first; r < process.size(); r += apart) copies.push_back(all[size_t(r)]);
        const std::vector<int> odd = odd_ones_out(copies);
        if (odd.empty()) continue;
        const bool undecided = odd.size() == copies.size();
        for (int i : odd) {
            const int r = first + i * apart;
            text += format("%srank %d (hash %016llx)", text.empty() ? "" : ", ", r, (unsigned long long)all[size_t(r)]);
        }
        if (undecided) text += copies.size() == 2 ? ": one of the two is wrong" : ": no majority";
    }
    if (text.empty()) return "";
    return "the parameters of these ranks are not those that the others hold: " + text;
}

void flip_parameter(Stream& compute, Zero& zero) {
    char* last = nullptr;
    visit_parameters(zero, [&](char* bytes, int64_t, int64_t) { last = bytes; });
    uint32_t word = 0;
    compute.copy(&word, last, 4);
    compute.synchronize();
    word ^= 1u << 9;
    compute.copy(last, &word, 4);
    compute.synchronize();
}

}  // namespace rz
