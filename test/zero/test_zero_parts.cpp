// The parts of zero/ one by one, on units that belong to no model: who owns what, the cache of gathered units, the
// gradients, the optimizer. Ranks are threads.

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "comm/loopback.h"
#include "comm/mesh.h"
#include "zero/zero.h"
#include "test/checks.h"

namespace rz {
namespace {

constexpr int kRanks = 3;

// One block, some blocks that 3 and 4 ranks share unevenly, and 1000 blocks. `first_logical`: what other ranks of a
// pipeline hold stands before.
std::vector<UnitLayout> units(int64_t first_logical = 0) {
    std::vector<UnitLayout> list;
    int64_t offset = 0;
    for (const int64_t size : {100, 1700, 256 * 1000}) {
        list.push_back(make_unit(format("unit of %lld", (long long)size), offset, size));
        list.back().global_offset = first_logical + offset;
        offset += list.back().padded;
    }
    return list;
}
int64_t size_of_all() { return units().back().offset + units().back().padded; }

// ---- who owns what --------------------------------------------------------------------------------------------------

TEST(Ownership, SlicesOfAllRanksCoverEachUnitOnce) {
    for (const int ranks : {1, 2, 3, 4, 7, 64}) {
        std::vector<int> owners(size_t(size_of_all()), 0);
        int64_t owned = 0;
        for (int rank = 0; rank < ranks; ++rank) {
            const Ownership o(units(), {.shard = {rank, ranks}, .replicate = {}, .sharded = true});
            int64_t packed = 0;
            for (int u = 0; u < 3; ++u) {
                const OwnedSlice& s = o.owned(u);
                EXPECT_EQ(s.unit, u);
                EXPECT_EQ(s.shard_offset, packed) << "slices stand one after the other";
                packed += s.elements.size();
                for (int64_t i = s.local_offset; i < s.local_offset + s.elements.size(); ++i) ++owners[size_t(i)];
                EXPECT_EQ(o.slices(u)[size_t(rank)], s.elements.begin);
                EXPECT_EQ(o.slices(u)[size_t(rank) + 1], s.elements.end);
            }
            EXPECT_EQ(o.owned_elements(), packed);
            owned += packed;
        }
        EXPECT_EQ(owned, size_of_all()) << ranks << " ranks";
        EXPECT_EQ(std::count(owners.begin(), owners.end(), 1), size_of_all()) << ranks << " ranks";
    }
}

TEST(Ownership, ARankMayOwnNothingOfASmallUnit) {
    const Ownership o(units(), {.shard = {2, 3}, .replicate = {}, .sharded = true});
    EXPECT_EQ(o.owned(0).elements.size(), 0);  // one block, which is rank 0's
    EXPECT_GT(o.owned(1).elements.size(), 0);
    EXPECT_EQ(o.largest_owned(), o.owned(2).elements.size());
}

TEST(Ownership, WhereTheStateIsReplicatedEachRankOwnsAll) {
    const Ownership o(units(), {.shard = {1, 4}, .replicate = {1, 4}, .sharded = false});
    EXPECT_EQ(o.owned_elements(), size_of_all());
    for (int u = 0; u < 3; ++u) {
        EXPECT_EQ(o.owned(u).elements, (ElementRange{0, o.unit(u).padded}));
        EXPECT_EQ(o.slices(u).size(), 5u) << "still cut for the ring";
    }
}

TEST(Ownership, LogicalOffsetsAreThoseOfTheWholeModel) {
    const Ownership o(units(1 << 20), {.shard = {1, 3}, .replicate = {0, 2}, .sharded = true});
    for (int u = 0; u < 3; ++u) {
        const OwnedSlice& s = o.owned(u);
        EXPECT_EQ(s.global_offset - s.local_offset, 1 << 20);
        EXPECT_EQ(s.local_offset, o.unit(u).offset + s.elements.begin);
        EXPECT_EQ(o.parts(u).size(), 3u);  // the two that own the same share its all-reduce
        EXPECT_EQ(o.parts(u).back(), s.elements.size());
    }
}

TEST(Ownership, UnitsWithAGapBetweenThemAreRefused) {
    std::vector<UnitLayout> list = units();
    list[1].offset += 256;
    EXPECT_THROW(Ownership(list, {.shard = {}, .replicate = {}, .sharded = true}), Error);
    EXPECT_THROW(Ownership({}, {.shard = {}, .replicate = {}, .sharded = true}), Error);
}

TEST(Ownership, OnlyStagesThatSliceTakeAShardSize) {
    LoopbackHub hub(4);
    hub.run([&](int rank) {
        Mesh mesh(hub, rank, {.grid = {.shard_size = 2}});
        EXPECT_THROW(shard_groups_of({.stage = 0}, mesh), Error);
        EXPECT_THROW(shard_groups_of({.stage = 4}, mesh), Error);
        const ShardGroups s = shard_groups_of({.stage = 2}, mesh);
        EXPECT_EQ(s.shard, (AxisRank{rank % 2, 2}));
        EXPECT_EQ(s.replicate, (AxisRank{rank / 2, 2}));
        EXPECT_TRUE(s.sharded);
    });
}

// ---- on ranks -------------------------------------------------------------------------------------------------------

void on_ranks_with(Algorithm algorithm, const ZeroOptions& options, const AdamWOptions& adamw,
                   const std::function<void(Zero&, int rank)>& body) {
    LoopbackHub hub(kRanks);
    hub.run([&](int rank) {
        const Device device = hub.device(rank);
        Mesh mesh(hub, rank, {.algorithms = {.data = algorithm}});
        Stream compute(device, "compute");
        compute.enqueue_host([] { omp_set_num_threads(1); });
        const DecaySegments decay{.end = {units()[1].offset, size_of_all()}, .decays = {0, 1}};
        Zero zero(device, compute, units(), decay, options, adamw, mesh);
        body(zero, rank);
        compute.synchronize();
        mesh.data().barrier(mesh.stream());  // the stream of all collectives: those of the last update are on it
        mesh.stream().synchronize();
    });
}

// By messages, and in memory that the ranks map: stages 1 and 2 then hold one copy of the parameters.
void on_ranks(const ZeroOptions& options, const AdamWOptions& adamw, const std::function<void(Zero&, int rank)>& body) {
    for (const Algorithm algorithm : {Algorithm::ring, Algorithm::symmetric})
        on_ranks_with(algorithm, options, adamw, body);
}

// Small integers: their sums over ranks and micro-batches are exact in any order.
float number(int64_t logical, int salt) { return float((logical * 131 + salt * 29) % 97 - 48); }

std::vector<float> whole(Zero& zero, int u) {
    zero.params.gather(u);
    const float* p = static_cast<const float*>(zero.params.parameters(u));
    zero.streams.compute.synchronize();
    std::vector<float> copy(p, p + zero.ownership.unit(u).padded);
    zero.params.release(u);
    return copy;
}

// 2 slots. In turn: 1 for the ends and 2 for the blocks, or 2 of the largest, whichever is less.
TEST(UnitPool, EmbeddingAndHeadShareASlotWhereUnitsAreUsedInTurn) {
    struct Row {
        std::vector<int64_t> bytes;
        int64_t by_size, in_turn;
    };
    for (const Row& row :
         {Row{{512, 192, 192, 192, 576}, 512 + 2 * 192 + 576, 576 + 2 * 192},
          Row{{320, 192, 192, 192, 384}, 320 + 2 * 192 + 384, 2 * 384},
          Row{{64, 192, 192, 192, 128}, 64 + 2 * 192 + 128, 2 * 192}, Row{{192, 192, 192, 192, 192}, 2 * 192, 2 * 192},
          Row{{512, 0, 0, 0, 576}, 512 + 576, 576},  // blocks in fp8
          Row{{0, 192, 192}, 2 * 192, 2 * 192}})
        for (const bool in_turn : {false, true}) {
            RankContext context;
            const Device device{DeviceKind::cpu, 0, &context};
            Stream stream(device, "compute");
            UnitPool pool(device, row.bytes, 2, in_turn, MemKind::gathered, "slots");
            EXPECT_EQ(context.memory.peak(DeviceKind::cpu, MemKind::gathered), in_turn ? row.in_turn : row.by_size);
            const int last = int(row.bytes.size()) - 1;
            const int64_t most = *std::max_element(row.bytes.begin(), row.bytes.end());
            std::vector<int> walk;  // forward and back, twice
            for (int turn = 0; turn < 2; ++turn) {
                for (int u = 0; u <= last; ++u) walk.push_back(u);
                for (int u = last - 1; u > 0; --u) walk.push_back(u);
            }
            int held = -1;
            for (const int u : walk) {
                const bool comes = row.bytes[size_t(u)] > 0;
                if (comes) pool.acquire(u, stream);
                if (held >= 0) pool.give_back(held, stream.record());
                held = comes ? u : -1;
                if (in_turn && held == 0) {
                    EXPECT_EQ(pool.has_room_for(last), row.in_turn == 2 * most);
                }
            }
        }
}

TEST(ParameterCache, PublishedSlicesMakeWholeUnitsInEveryStage) {
    for (int stage = 1; stage <= 3; ++stage)
        for (const bool overlap : {true, false})
            on_ranks({.stage = stage, .overlap = overlap}, {}, [&](Zero& zero, int) {
                for (const int salt : {1, 2}) {  // the second time into slots that were used
                    for (int u = 0; u < 3; ++u) {
                        const OwnedSlice& s = zero.ownership.owned(u);
                        auto* own = static_cast<float*>(zero.params.owned(u));
                        zero.streams.compute.enqueue_host([=] {
                            for (int64_t i = 0; i < s.elements.size(); ++i) own[i] = number(s.global_offset + i, salt);
                        });
                        zero.params.all_gather_updated(u);
                    }
                    for (int u = 0; u < 3; ++u) {
                        const std::vector<float> got = whole(zero, u);
                        int64_t wrong = 0;
                        for (size_t i = 0; i < got.size(); ++i)
                            wrong += got[i] != number(zero.ownership.unit(u).global_offset + int64_t(i), salt);
                        EXPECT_EQ(wrong, 0) << "stage " << stage << ", unit " << u << ", time " << salt;
                    }
                    // As gradients are reduced between two updates: nobody reads these parameters any more.
                    zero.streams.mesh.data().barrier(zero.streams.comm());
                    zero.streams.comm().synchronize();
                }
            });
}

TEST(ParameterCache, HoldsAsManyUnitsAsThePrefetchSaysAndNamesOneThatIsNotGathered) {
    on_ranks({.stage = 3, .prefetch = 2}, {}, [](Zero& zero, int) {
        EXPECT_EQ(zero.params.gathered_at_once(), 3);
        EXPECT_TRUE(says(error_of([&] { zero.params.parameters(1); }), "unit of 1700 is read without being gathered"));
        zero.params.gather(1);
        EXPECT_THROW(zero.params.gather(1), Error) << "there is one unit of this size, so one slot";
        zero.params.parameters(1);
        zero.params.release(1);
        EXPECT_THROW(zero.params.release(1), Error);
    });
    on_ranks({.stage = 2, .prefetch = 2}, {}, [](Zero& zero, int) { EXPECT_EQ(zero.params.gathered_at_once(), 0); });
    EXPECT_THROW(on_ranks({.stage = 3, .prefetch = -1}, {}, [](Zero&, int) {}), Error);
}

void add_gradients(Zero& zero, int rank, int micro_batches) {
    for (int m = 0; m < micro_batches; ++m)
        for (int u = 2; u >= 0; --u) {
            const UnitLayout unit = zero.ownership.unit(u);
            auto* g = static_cast<float*>(zero.grads.gradients(u));
            zero.streams.compute.enqueue_host([=] {
                for (int64_t i = 0; i < unit.size; ++i) g[i] += number(unit.global_offset + i, 10 * m + rank);
            });
            zero.grads.reduce(u, m + 1 == micro_batches);
        }
}

double summed(int64_t logical, int micro_batches) {
    double sum = 0;
    for (int m = 0; m < micro_batches; ++m)
        for (int rank = 0; rank < kRanks; ++rank) sum += number(logical, 10 * m + rank);
    return sum;
}

// In buckets too: of all three units, and of the first that fit.
TEST(GradientStore, OwnedSlicesHoldTheSumOverRanksAndMicroBatchesInEveryStage) {
    const auto check = [](const ZeroOptions& options) {
        on_ranks(options, {}, [&](Zero& zero, int rank) {
            EXPECT_EQ(zero.grads.reduces_each_micro_batch(), options.stage >= 2 && !options.accumulate_locally);
            for (int step = 1; step <= 2; ++step) {  // the second begins at zero again
                add_gradients(zero, rank, /*micro_batches=*/2);
                zero.grads.wait();
                zero.streams.compute.synchronize();
                for (int u = 0; u < 3; ++u) {
                    const OwnedSlice& s = zero.ownership.owned(u);
                    const auto* g = static_cast<const float*>(zero.grads.owned(u));
                    const int64_t end = zero.ownership.unit(u).size - s.elements.begin;
                    int64_t wrong = 0;
                    for (int64_t i = 0; i < s.elements.size(); ++i)
                        wrong += g[i] != (i < end ? float(summed(s.global_offset + i, 2)) : 0.0f);
                    EXPECT_EQ(wrong, 0) << "stage " << options.stage << ", bucket of " << options.bucket_bytes
                                        << ", unit " << u << ", step " << step;
                }
                zero.grads.begin_step();
            }
        });
    };
    const int64_t all = size_of_all() * 4;
    for (int stage = 0; stage <= 3; ++stage)
        for (const bool locally : {false, true})
            for (const int64_t bucket : {int64_t(0), all, all - 1})
                check(
                    {.stage = stage, .overlap = stage % 2 == 0, .accumulate_locally = locally, .bucket_bytes = bucket});
}

double norm_by_hand(int micro_batches) {
    double squares = 0;
    for (const UnitLayout& u : units())
        for (int64_t i = 0; i < u.size; ++i) squares += std::pow(summed(u.global_offset + i, micro_batches), 2);
    return std::sqrt(squares);
}

// Two steps of AdamW (Loshchilov & Hutter 2019, algorithm 2) in double, from parameters of zero and the clipped
// gradient. The optimizer computes in fp32: some ten roundings of 2^-24 each in an update of at most lr.
TEST(ShardedAdamW, UpdatesAsTheAlgorithmWrittenInDouble) {
    const AdamWOptions adamw{.weight_decay = 0.5f, .max_norm = 10};
    const double clip = 10 / (norm_by_hand(1) + 1e-6), lr = 0.25;
    ASSERT_LT(clip, 1) << "clipping takes part";
    const auto by_hand = [&](int64_t logical, bool decays) {
        const double g = summed(logical, 1) * clip;
        double w = 0, m = 0, v = 0;
        for (int t = 1; t <= 2; ++t) {
            m = adamw.beta1 * m + (1 - adamw.beta1) * g;
            v = adamw.beta2 * v + (1 - adamw.beta2) * g * g;
            const double direction = m / (1 - std::pow(double(adamw.beta1), t)) /
                                     (std::sqrt(v / (1 - std::pow(double(adamw.beta2), t))) + adamw.eps);
            w -= lr * (direction + (decays ? adamw.weight_decay : 0) * w);
        }
        return w;
    };
    for (int stage = 0; stage <= 3; ++stage)
        on_ranks({.stage = stage}, adamw, [&](Zero& zero, int rank) {
            for (int step = 1; step <= 2; ++step) {
                add_gradients(zero, rank, 1);
                zero.optimizer.gradient_norm();
                zero.optimizer.update(float(lr), step);
            }
            for (int u = 0; u < 3; ++u) {
                const std::vector<float> got = whole(zero, u);
                double worst = 0;
                for (int64_t i = 0; i < zero.ownership.unit(u).size; ++i)
                    worst = std::max(
                        worst, std::abs(got[size_t(i)] - by_hand(zero.ownership.unit(u).global_offset + i, u > 0)));
                EXPECT_LT(worst, 2 * lr * 32 / (1 << 24)) << "stage " << stage << ", unit " << u;
            }
            int64_t updates = 0;
            zero.streams.compute.copy(&updates, zero.optimizer.updates(), 8);
            zero.streams.compute.synchronize();
            EXPECT_EQ(updates, 2);
        });
}

TEST(ShardedAdamW, AnUpdateNeedsTheNormOfItsStep) {
    on_ranks({.stage = 2}, {}, [](Zero& zero, int rank) {
        add_gradients(zero, rank, 1);
        EXPECT_THROW(zero.optimizer.update(1e-3f, 1), Error);
        zero.optimizer.gradient_norm();
        zero.optimizer.update(1e-3f, 1);
        EXPECT_THROW(zero.optimizer.update(1e-3f, 2), Error);
    });
}

}  // namespace
}  // namespace rz
