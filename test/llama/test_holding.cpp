// A rank that holds a part of the table: which elements those are, and that initialisation and import give each of them
// what a rank that holds everything gets.

#include <gtest/gtest.h>

#include <map>

#include "comm/loopback.h"
#include "llama/model/hf.h"
#include "llama/model/model.h"
#include "llama/model/weights.h"
#include "test/llama/toys.h"
#include "test/llama/helpers.h"

namespace rz {
namespace {

// Units of stages: contiguous, and as schedules with two stages per rank have them.
const std::vector<std::vector<std::vector<int>>> kStages = {
    {{}}, {{0, 1, 2}, {3, 4}}, {{0, 1}, {2, 3}, {4}}, {{0, 4}, {1, 3}, {2}}};

std::vector<LocalShard> holders(const std::vector<std::vector<int>>& stages, int parts) {
    std::vector<LocalShard> list;
    for (const std::vector<int>& units : stages)
        for (int part = 0; part < parts; ++part) list.push_back({units, part, parts});
    return list;
}

TEST(LocalShard, EveryElementHasOnePlaceAndOneOwner) {
    const ModelConfig config = toy24();
    const ParamTable whole(config);
    for (const auto& stages : kStages)
        for (const int parts : {1, 2, 3, 4}) {
            std::vector<std::vector<int>> owners;
            for (const Tensor& t : whole.tensors()) owners.emplace_back(size_t(t.size), 0);
            for (const LocalShard& holding : holders(stages, parts)) {
                const ParamTable table(config, holding);
                int64_t held = 0, end = 0;
                for (const UnitLayout& u : table.held_units()) {
                    ASSERT_EQ(u.offset, end) << "local units begin at 0 and lie side by side";
                    held += u.size, end += u.padded;
                }
                int64_t at = 0, count = 0;
                table.for_each_run(0, end, INT64_MAX, [&](const TensorRun& run) {
                    ASSERT_GE(run.local, at);
                    at = run.local + run.count, count += run.count;
                    if (!run.owned) return;
                    for (int64_t i = 0; i < run.count; ++i) ++owners[size_t(run.tensor)][size_t(run.first + i)];
                });
                EXPECT_EQ(count, held) << "padding is in no run";
                std::map<int64_t, std::pair<int, int64_t>> once, in_pieces;  // local -> tensor, element
                table.for_each_run(0, end, INT64_MAX, [&](const TensorRun& run) {
                    for (int64_t i = 0; i < run.count; ++i) once[run.local + i] = {run.tensor, run.first + i};
                });
                for (int64_t begin = 0; begin < end; begin += 100)
                    table.for_each_run(begin, std::min(end, begin + 100), 7, [&](const TensorRun& run) {
                        EXPECT_LE(run.count, 7);
                        EXPECT_TRUE(run.local >= begin && run.local + run.count <= begin + 100);
                        for (int64_t i = 0; i < run.count; ++i) in_pieces[run.local + i] = {run.tensor, run.first + i};
                    });
                EXPECT_EQ(in_pieces, once);
            }
            for (size_t t = 0; t < owners.size(); ++t)
                EXPECT_EQ(owners[t], std::vector<int>(owners[t].size(), 1))
                    << whole.tensors()[t].name << ", " << stages.size() << " stages, " << parts << " parts";
        }
}

// By hand: 3 heads of 8 and one KV head, ffn 20, vocabulary 37, width 24.
TEST(LocalShard, HeadsFfnAndVocabularyAreCutWhereTheyMayBe) {
    const ModelConfig config = toy24();
    struct Want {
        const char* name;
        int part, parts;
        int64_t rows, cols, first, stride;
        bool owned;
    };
    const std::string block = "model.layers.1.";
    const Want wants[] = {
        {"model.embed_tokens.weight", 0, 2, 19, 24, 0, 24, true},
        {"model.embed_tokens.weight", 1, 2, 18, 24, 19 * 24, 24, true},
        {"lm_head.weight", 2, 3, 12, 24, 25 * 24, 24, true},
        {"self_attn.q_proj.weight", 1, 3, 8, 24, 8 * 24, 24, true},
        {"self_attn.q_proj.weight", 0, 2, 16, 24, 0, 24, true},
        {"self_attn.k_proj.weight", 0, 3, 8, 24, 0, 24, true},
        {"self_attn.k_proj.weight", 2, 3, 8, 24, 0, 24, false},
        {"self_attn.o_proj.weight", 1, 3, 24, 8, 8, 24, true},
        {"mlp.up_proj.weight", 1, 3, 7, 24, 7 * 24, 24, true},
        {"mlp.down_proj.weight", 2, 3, 24, 6, 14, 20, true},
        {"input_layernorm.weight", 0, 2, 1, 24, 0, 24, true},
        {"input_layernorm.weight", 1, 2, 1, 24, 0, 24, false},
    };
    for (const Want& w : wants) {
        const ParamTable table(config, {.part = w.part, .parts = w.parts});
        const Tensor* t = table.find(w.name) ? table.find(w.name) : table.find(block + w.name);
        ASSERT_NE(t, nullptr) << w.name;
        const TensorShard& piece = table.held()[size_t(t - table.tensors().data())];
        EXPECT_EQ(&table.tensors()[size_t(piece.tensor)], t);
        EXPECT_EQ(std::vector({piece.rows, piece.cols, piece.first, piece.stride}),
                  std::vector({w.rows, w.cols, w.first, w.stride}))
            << w.name << ", part " << w.part << " of " << w.parts;
        EXPECT_EQ(piece.owned, w.owned) << w.name << ", part " << w.part << " of " << w.parts;
    }
    EXPECT_THROW(ParamTable(config, {.part = 2, .parts = 2}), Error);
    EXPECT_THROW(ParamTable(config, {.units = {1, 1}}), Error);
    EXPECT_THROW(ParamTable(config, {.units = {5}}), Error);
}

TEST(LocalShard, DecayFollowsTheTensorsThatAreHeld) {
    const ModelConfig config = toy24();
    for (const auto& stages : kStages)
        for (const int parts : {1, 2, 3})
            for (const LocalShard& holding : holders(stages, parts)) {
                const ParamTable table(config, holding);
                const DecaySegments segments = decay_segments(table);
                for (const UnitLayout& u : table.held_units())
                    table.for_each_run(u.offset, u.offset + u.padded, INT64_MAX, [&](const TensorRun& run) {
                        const int64_t logical = u.global_offset + run.local - u.offset;
                        size_t s = 0;
                        while (segments.end[s] <= logical) ++s;
                        EXPECT_EQ(bool(segments.decays[s]), table.tensors()[size_t(run.tensor)].decay);
                        EXPECT_LE(logical + run.count, segments.end[s]);
                    });
            }
}

// Masters of what a rank owns, by tensor and element.
using Values = std::map<std::pair<int, int64_t>, float>;
void collect(const ParamTable& table, const Zero& zero, Values& into) {
    for (const OwnedRange& r : zero.optimizer.owned())
        table.for_each_run(r.local_offset, r.local_offset + r.elements.size(), INT64_MAX, [&](const TensorRun& run) {
            for (int64_t i = 0; i < run.count; ++i)
                into[{run.tensor, run.first + i}] = static_cast<const float*>(r.master)[run.local - r.local_offset + i];
        });
}

// Each holder's part after `fill`, over three ranks of ZeRO 3 and alone, is what a rank with the whole table has.
template <class Fill>
void expect_as_whole(const Fill& fill) {
    const ModelConfig config = toy24();
    const auto values_of = [&](Mesh& mesh, const LocalShard& holding, int stage) {
        const ParamTable table(config, holding);
        Stream compute(kCpu, "compute");
        Zero zero(kCpu, compute, unit_layouts(table), decay_segments(table), {.stage = stage}, {}, mesh);
        fill(table, compute, zero);
        compute.synchronize();
        Values values;
        collect(table, zero, values);
        return values;
    };
    Mesh alone(kCpu);
    const Values want = values_of(alone, {}, 0);
    for (const auto& stages : kStages)
        for (const int parts : {1, 2, 3})
            for (const LocalShard& holding : holders(stages, parts)) {
                const ParamTable table(config, holding);
                Values got = values_of(alone, holding, 0);
                LoopbackHub hub(3);
                std::vector<Values> shares(3);
                hub.run([&](int rank) {
                    Mesh mesh(hub, rank);
                    shares[size_t(rank)] = values_of(mesh, holding, 3);
                });
                Values together;
                for (const Values& v : shares) together.insert(v.begin(), v.end());
                EXPECT_EQ(together, got);
                int64_t held = 0, wrong = 0;
                for (const UnitLayout& u : table.held_units()) held += u.size;
                EXPECT_EQ(int64_t(got.size()), held);
                for (const auto& [place, value] : got) wrong += value != want.at(place);
                EXPECT_EQ(wrong, 0) << "of " << held;
            }
}

TEST(LocalShard, InitialisedAsTheWholeModelIs) {
    expect_as_whole([](const ParamTable& table, Stream& s, Zero& zero) { initialise_weights(table, 11, s, zero); });
}

TEST(LocalShard, ImportedAsTheWholeModelIs) {
    const TempFolder temporary;
    const std::string& folder = temporary.path;
    const ModelConfig config = toy24();
    const ParamTable table(config);
    save_model(folder, config, table, DType::f32, [&](const Tensor& t, int64_t first, int64_t count, void* out) {
        for (int64_t i = 0; i < count; ++i)
            static_cast<float*>(out)[i] = float(&t - table.tensors().data()) * 4096 + float(first + i);
    });
    expect_as_whole([&](const ParamTable& held, Stream& s, Zero& zero) { load_weights(folder, held, kCpu, s, zero); });
    const ParamTable part(config, {.units = {0, 2, 4}, .part = 1, .parts = 2});
    Stream stream(kCpu, "compute");
    ResidentParameters resident(kCpu, stream, unit_layouts(part), DType::f32);
    load_weights(folder, part, DType::f32, kCpu, stream, resident);
    int64_t wrong = 0;
    for (int u = 0; u < 3; ++u) {
        const UnitLayout& unit = part.held_units()[size_t(u)];
        part.for_each_run(unit.offset, unit.offset + unit.padded, INT64_MAX, [&](const TensorRun& run) {
            const float* p = reinterpret_cast<const float*>(resident.bytes(u)) + run.local - unit.offset;
            for (int64_t i = 0; i < run.count; ++i) wrong += p[i] != float(run.tensor) * 4096 + float(run.first + i);
        });
    }
    EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace rz
