// Every combination of axes either plans (and so builds what a run builds) or is refused with the nearest valid value.

#include <gtest/gtest.h>

#include "llama/model/presets.h"
#include "llama/train/plan_memory.h"
#include "test/checks.h"

namespace rz {
namespace {

ModelConfig model(bool tied = false) {
    ModelConfig c = find_preset("bytes").config;
    c.dim = 48, c.layers = 6, c.heads = 6, c.kv_heads = 2, c.head_dim = 8, c.ffn = 50, c.vocab = 65, c.max_seq_len = 48;
    c.tied = tied;
    c.resolve();
    return c;
}

TrainOptions flags() {
    TrainOptions o;
    o.device = DeviceChoice::cpu;
    o.batch = 1, o.seq_len = 24;
    return o;
}

// "": it can run.
std::string refusal_of_layout(const TrainOptions& o, const ModelConfig& config, int ranks) {
    return error_of([&] {
        check_given(o);
        check_ranks(o, ranks);
        plan_memory(o, config, DeviceKind::cpu, 0, ranks);
    });
}

struct Count {
    int run = 0, refused = 0;
    void add(const TrainOptions& o, const ModelConfig& config, int ranks, const std::string& how) {
        const std::string why = refusal_of_layout(o, config, ranks);
        (why.empty() ? run : refused) += 1;
        if (!why.empty()) {
            EXPECT_TRUE(says(why, "nearest")) << how;
        }
    }
};

TEST(LayoutRefusals, EveryCombinationOfAxesRunsOrNamesTheNearest) {
    Count count;
    for (const int ranks : {1, 2, 3, 4, 6, 8})
        for (const int tp : {1, 2, 3, 4})
            for (const int cp : {1, 2, 5})
                for (const int pp : {1, 2, 3, 8})
                    for (const int shard : {0, 1, 2}) {
                        TrainOptions o = flags();
                        o.tp = tp, o.cp = cp, o.pp = pp, o.zero = shard == 0 ? 0 : 3, o.shard_size = shard;
                        o.grad_accum = 8;
                        count.add(o, model(), ranks,
                                  format("%d ranks, tp %d, cp %d, pp %d, shard %d", ranks, tp, cp, pp, shard));
                    }
    EXPECT_GT(count.run, 30);
    EXPECT_GT(count.refused, 500);
}

TEST(LayoutRefusals, EveryScheduleRunsOrNamesTheNearest) {
    Count count;
    for (const Named<PipelineKind>& kind : kNames<PipelineKind>)
        for (const int pp : {2, 3, 4})
            for (const int micro_batches : {1, 2, 3, 8})
                for (const Recompute recompute : {Recompute::none, Recompute::block})
                    for (const bool each : {false, true}) {
                        TrainOptions o = flags();
                        o.pp = pp, o.grad_accum = micro_batches, o.recompute = recompute;
                        o.zero = each ? 2 : 0;
                        if (each) o.accumulate_locally = false;
                        o.pp_schedule.kind = kind.value;
                        count.add(o, model(pp == 4), 2 * pp,
                                  format("pp %d, %s, %d micro-batches, recompute %s", pp, kind.name, micro_batches,
                                         name_of(recompute)));
                    }
    EXPECT_GT(count.run, 100);
    EXPECT_GT(count.refused, 50);
}

TEST(LayoutRefusals, ThereIsADefaultScheduleForEveryModel) {
    for (const bool tied : {false, true})
        for (const int pp : {2, 3, 6})
            for (const int micro_batches : {1, 5})
                for (const Recompute recompute : {Recompute::none, Recompute::mlp, Recompute::block}) {
                    TrainOptions o = flags();
                    o.pp = pp, o.grad_accum = micro_batches, o.recompute = recompute;
                    EXPECT_EQ(refusal_of_layout(o, model(tied), pp), "")
                        << pp << (tied ? ", tied " : " ") << name_of(recompute);
                }
}

TEST(LayoutRefusals, WhatDoesNotCutNamesTheNearest) {
    const auto expect = [](const char* nearest, int ranks, const std::function<void(TrainOptions&)>& ask) {
        TrainOptions o = flags();
        o.pp_schedule.kind = PipelineKind::f1b1;
        ask(o);
        const std::string why = refusal_of_layout(o, model(), ranks);
        EXPECT_TRUE(says(why, std::string("nearest: ") + nearest));
    };
    expect("--seq-len 20 or 30", 5, [](TrainOptions& o) { o.cp = 5; });
    expect("--batch 2, or --tp 1", 2, [](TrainOptions& o) { o.tp = 2, o.seq_len = 1; });
    expect("3,3", 2, [](TrainOptions& o) { o.pp = 2, o.grad_accum = 2, o.pp_cut = {1, 2, 3}; });
    expect("3,3", 2, [](TrainOptions& o) { o.pp = 2, o.grad_accum = 2, o.pp_cut = {3, 4}; });
    expect("2,2,2", 3, [](TrainOptions& o) { o.pp = 3, o.grad_accum = 2, o.pp_cut = {6, 0, 0}; });
    expect("--zero 1, or leave it out", 4, [](TrainOptions& o) { o.shard_size = 2; });
    expect("2 or 4", 4, [](TrainOptions& o) { o.zero = 1, o.shard_size = 3; });
    expect("tp, cp, dp, pp", 2, [](TrainOptions& o) { o.axis_order = {Axis::tp, Axis::tp, Axis::dp, Axis::pp}; });
    expect("--tp-overlap off", 2, [](TrainOptions& o) { o.tp = 2, o.tp_overlap = o.cuda_graphs = true; });
    expect("--tp-wire fp32", 2, [](TrainOptions& o) { o.tp = 2, o.tp_wire = DType::bf16; });
    expect("--tp 2, or leave it out", 2, [](TrainOptions& o) { o.given.insert("tp-wire"); });
    expect("--cp 2, or leave it out", 2, [](TrainOptions& o) { o.given.insert("cp-exchange"); });
    expect("--pp 2, or leave it out", 2, [](TrainOptions& o) { o.given.insert("pp-schedule"); });
}

}  // namespace
}  // namespace rz
