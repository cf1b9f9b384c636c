#include "llama/checkpoint/replicas.h"

#include <algorithm>

#include "llama/base/sum_hash.h"

namespace rz {

std::vector<int> odd_ones_out(const std::vector<uint64_t>& values) {
    uint64_t majority = 0;
    bool found = false;
    for (uint64_t v : values)
        if (2 * std::count(values.begin(), values.end(), v) > long(values.size())) majority = v, found = true;
    std::vector<int> odd;
    for (size_t r = 0; r < values.size(); ++r)
        if (!found || values[r] != majority) odd.push_back(int(r));
    return odd;
}

static constexpr int64_t kCompared = int64_t(4) << 20;  // elements

// The axis on which the ranks stand that hold the same.
static Axis axis_of_copies(const Zero& zero, StatePart part) {
    const int stage = zero.options.stage;
    return stage == 0 || (part == StatePart::model && stage < 3) ? Axis::data : Axis::replicate;
}

bool has_replicas(const Mesh& mesh, const Zero& zero) {
    return mesh.grid().size(Axis::tp) > 1 || mesh.grid().size(axis_of_copies(zero, StatePart::model)) > 1;
}

// Calls visit(range) for what this rank holds of the array.
template <class Visit>
static void visit_state(Zero& zero, const StateArray& array, const Visit& visit) {
    if (array.part == StatePart::model && zero.options.stage < 3) {
        for (int u = 0; u < int(zero.ownership.units().size()); ++u) {
            const UnitLayout& unit = zero.ownership.units()[size_t(u)];
            zero.params.gather(u);
            OwnedRange whole;
            whole.elements = {0, unit.padded}, whole.local_offset = unit.offset;
            whole.param = const_cast<void*>(zero.params.parameters(u));
            visit(whole);
            zero.params.release(u);
        }
        return;
    }
    for (const OwnedRange& r : zero.optimizer.owned())
        if (r.*array.where) visit(r);
}

// sum_hash of each tensor, as far as this rank holds it.
static std::vector<uint64_t> hash_tensors(Device device, Stream& compute, Zero& zero, const StateArray& array,
                                          const ParamTable& table) {
    constexpr int64_t kEach = int64_t(1) << 16;
    const int64_t e = size_of(array.dtype);
    Buffer staging;
    if (device.is_cuda()) staging = Buffer::host_for(device, kCompared * e, MemKind::workspace, "state being compared");
    std::vector<uint64_t> hashes(table.tensors().size(), 0);
    visit_state(zero, array, [&](const OwnedRange& r) {
        table.for_each_run(r.local_offset, r.local_offset + r.elements.size(), kCompared,
                           [&](const TensorRun& elements) {
                               const TensorRun run = run_in(array, r, table, elements);
                               const char* here = at(r.*array.where, run.local, array.dtype);
                               if (staging) compute.copy(staging.data(), here, run.count * e);
                               compute.synchronize();
                               if (staging) here = staging.as<char>();
                               uint64_t sum = 0;
#pragma omp parallel for reduction(+ : sum) schedule(static)
                               for (int64_t k = 0; k < run.count; k += kEach)
                                   sum += sum_hash(here + k * e, run.first + k, std::min(kEach, run.count - k), e);
                               hashes[size_t(run.tensor)] += sum;
                           });
    });
    return hashes;
}

// "rank 1 (hash ...), ..." of the ranks in a group of holders that differ from the others of it, or "".
static std::string odd_members(const std::vector<int>& members, const std::vector<uint64_t>& copies) {
    const std::vector<int> odd = odd_ones_out(copies);
    std::string text;
    for (const int i : odd)
        text += format("%srank %d (hash %016lx)", text.empty() ? "" : ", ", members[size_t(i)], copies[size_t(i)]);
    if (!odd.empty() && odd.size() == copies.size())
        text += copies.size() == 2 ? ": one of the two is wrong" : ": no majority";
    return text;
}

// The same of all groups of an axis. `all` has a value per rank.
static std::string odd_ranks(const std::vector<uint64_t>& all, const Grid& grid, Axis axis) {
    std::string text;
    for (int first = 0; first < grid.ranks(); ++first) {
        const std::vector<int> members = grid.members(axis, first);
        if (members.front() != first) continue;  // seen already
        std::vector<uint64_t> copies;
        for (const int r : members) copies.push_back(all[size_t(r)]);
        const std::string odd = odd_members(members, copies);
        if (!odd.empty()) text += (text.empty() ? "" : ", ") + odd;
    }
    return text;
}

// Collective, and only where a part differs: the tensors that do.
static std::string odd_tensors(Process& process, const std::vector<uint64_t>& own, const Grid& grid, Axis axis,
                               const ParamTable& table) {
    std::vector<uint64_t> all(own.size() * size_t(grid.ranks())), values(static_cast<size_t>(grid.ranks()));
    process.all_gather(own.data(), int64_t(own.size()) * 8, all.data());
    constexpr int kNamed = 3;
    std::string text;
    int odd = 0;
    for (size_t i = 0; i < own.size(); ++i) {
        for (size_t r = 0; r < values.size(); ++r) values[r] = all[r * own.size() + i];
        if (odd_ranks(values, grid, axis).empty()) continue;
        if (++odd <= kNamed) text += (text.empty() ? "" : ", ") + table.tensors()[i].name;
    }
    return odd > kNamed ? text + format(" and %d more", odd - kNamed) : text;
}

// Collective: of what several ranks of the tp axis hold, those that differ from the other holders, and the tensors.
// `own`: this rank's hash of each tensor; where its state is sliced, those of the ranks that share slices add up.
static std::string odd_holders(Process& process, const std::vector<uint64_t>& own, const Grid& grid, bool sliced,
                               const ParamTable& table) {
    const size_t tensors = own.size();
    std::vector<uint64_t> all(tensors * size_t(grid.ranks())), held(all.size()), first_parts;
    process.all_gather(own.data(), int64_t(tensors) * 8, all.data());
    for (const Tensor& t : table.tensors()) first_parts.push_back(uint64_t(table.part_of(t).first_part));
    process.all_gather(first_parts.data(), int64_t(tensors) * 8, held.data());
    const auto hash_of = [&](int rank, size_t tensor) {
        if (!sliced) return all[size_t(rank) * tensors + tensor];
        uint64_t sum = 0;
        for (const int r : grid.members(Axis::shard, rank)) sum += all[size_t(r) * tensors + tensor];
        return sum;
    };
    std::string text;
    for (int first = 0; first < grid.ranks(); ++first) {
        const std::vector<int> members = grid.members(Axis::tp, first);
        if (members.front() != first) continue;
        for (size_t t = 0; t < tensors; ++t) {
            const auto part_of = [&](size_t i) { return held[size_t(members[i]) * tensors + t]; };
            for (size_t g = 0, end = 0; g < members.size(); g = end) {  // ranks that hold the same part
                while (end < members.size() && part_of(end) == part_of(g)) ++end;
                const std::vector<int> group(members.begin() + long(g), members.begin() + long(end));
                std::vector<uint64_t> copies;
                for (const int r : group) copies.push_back(hash_of(r, t));
                const std::string odd = odd_members(group, copies);
                if (odd.empty()) continue;
                return odd + ", in " + table.tensors()[t].name;  // the first is enough to stop for
            }
        }
    }
    return text;
}

std::string compare_replicas(Process& process, const Mesh& mesh, Device device, Stream& compute, Zero& zero,
                             const ParamTable& table) {
    const Grid& grid = mesh.grid();
    std::string text;
    for (const StateArray& array : state_arrays(zero.options)) {
        const Axis axis = axis_of_copies(zero, array.part);
        const bool of_tp = grid.size(Axis::tp) > 1;
        if (grid.size(axis) == 1 && !of_tp) continue;
        const std::vector<uint64_t> own = hash_tensors(device, compute, zero, array, table);
        const char* kWrong = "of these ranks are not those that the others hold";
        if (of_tp)
            if (const std::string odd = odd_holders(process, own, grid, axis == Axis::replicate, table); !odd.empty())
                text += format("%s%s %s: %s", text.empty() ? "" : "; ", array.words, kWrong, odd.c_str());
        if (grid.size(axis) == 1) continue;
        const std::vector<uint64_t> all = process.all_gather(sum_hash(own.data(), 0, int64_t(own.size()), 8));
        const std::string ranks = odd_ranks(all, grid, axis);
        if (ranks.empty()) continue;
        text += format("%s%s %s: %s, in %s", text.empty() ? "" : "; ", array.words, kWrong, ranks.c_str(),
                       odd_tensors(process, own, grid, axis, table).c_str());
    }
    return text;
}

void damage_word(Stream& compute, void* word_at, bool nan) {
    uint32_t word = 0;
    compute.copy(&word, word_at, 4);
    compute.synchronize();
    word = nan ? 0x7fc07fc0u : word ^ 1u << 9;  // fp32's NaN, and two of bf16's
    compute.copy(word_at, &word, 4);
    compute.synchronize();
}

void damage_state(Stream& compute, Zero& zero, StatePart part, bool nan) {
    char* last = nullptr;
    for (const StateArray& array : state_arrays(zero.options))
        if (array.part == part)
            visit_state(zero, array, [&](const OwnedRange& r) { last = static_cast<char*>(r.*array.where); });
    damage_word(compute, last, nan);
}

}  // namespace rz
