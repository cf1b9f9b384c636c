#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "llama/parallel/program.h"
#include "test/checks.h"

namespace rz {
namespace {

struct ProgramCase {
    int blocks = 1, micro_batches = 1, prefetch = 1;
    bool tied = false, sharded = true, reduce_each = true;
};

std::string name_of_case(const ProgramCase& c) {
    return format("%d blocks, %d micro-batches, prefetch %d%s%s%s", c.blocks, c.micro_batches, c.prefetch,
                  c.tied ? ", tied" : "", c.sharded ? ", sharded" : "", c.reduce_each ? ", reduce each" : "");
}

StepShape shape_of(const ProgramCase& c, bool trains = true) {
    StepShape s;
    s.tied = c.tied, s.trains = trains, s.micro_batches = c.micro_batches;
    s.unit_bytes.assign(size_t(c.blocks) + 2, 3000);
    s.unit_bytes.front() = 1000;
    s.unit_bytes.back() = c.tied ? 10 : 1010;
    s.stages = {{0, 0, c.blocks + 1}};
    s.shard = {.sharded_parameters = c.sharded, .reduce_each = c.reduce_each, .prefetch = c.prefetch};
    return s;
}

std::vector<ProgramCase> cases() {
    std::vector<ProgramCase> all;
    for (int blocks : {1, 2, 3, 5, 12})
        for (int micro_batches : {1, 2, 3})
            for (int prefetch : {0, 1, 2, 3, 5, 20})
                for (bool tied : {false, true})
                    for (bool sharded : {false, true})
                        for (bool each : {false, true})
                            all.push_back({blocks, micro_batches, prefetch, tied, sharded, each});
    return all;
}

// ---- the order, against what a model that asks for units one by one makes of it -------------------------------------

// Forward and backward ask for a unit when they reach it; a direction says which units are prefetched; a pool has
// 1 + prefetch memory slots of each size. Untied, the embedding and the head share one, and no more units of any size
// are whole at once. Written from that description, without the passes under test.
struct AskingModel {
    ProgramCase c;
    StepShape shape;
    std::vector<std::string> comm, compute;  // what is enqueued on each stream
    std::vector<bool> held;
    std::map<int64_t, int> used;
    int direction = +1;
    bool last_micro_batch = false;

    explicit AskingModel(const ProgramCase& how) : c(how), shape(shape_of(how)), held(size_t(how.blocks) + 2) {}
    int last() const { return c.blocks + 1; }
    int64_t bytes(int u) const { return shape.unit_bytes[size_t(u)]; }
    bool room(int u) {
        const auto same = std::count(shape.unit_bytes.begin(), shape.unit_bytes.end(), bytes(u));
        if (used[bytes(u)] >= std::min<int64_t>(1 + c.prefetch, same)) return false;
        if (c.tied) return true;
        const bool taken = (u == 0 && held[size_t(last())]) || (u == last() && held[0]);
        return !taken && std::count(held.begin(), held.end(), true) < 1 + c.prefetch;
    }
    void start(int u) {
        ASSERT_TRUE(room(u));
        comm.push_back(format("gather %d", u));
        held[size_t(u)] = true;
        ++used[bytes(u)];
    }
    void gather(int u) {
        if (!c.sharded) return;
        if (!held[size_t(u)]) start(u);
        for (int i = 1; i <= c.prefetch; ++i) {
            const int next = u + i * direction;
            if (next < (direction > 0 ? 0 : 1) || next > last()) return;
            if (held[size_t(next)]) continue;
            if (!room(next)) return;
            start(next);
        }
    }
    void release(int u) {
        if (!c.sharded) return;
        compute.push_back(format("release %d", u));
        held[size_t(u)] = false;
        --used[bytes(u)];
    }
    void reduce(int u) {
        if (c.reduce_each || last_micro_batch)
            comm.push_back(format("reduce %d%s", u, last_micro_batch ? " last" : ""));
    }
    void step() {
        for (int m = 0; m < c.micro_batches; ++m) {
            last_micro_batch = m == c.micro_batches - 1;
            direction = +1;
            for (int u = 0; u <= last(); ++u) {
                gather(u);
                compute.push_back(format("forward %d", u));
                if (u < last()) release(u);
            }
            direction = -1;
            const int head = c.tied ? 0 : last();
            gather(head);
            compute.push_back(format("backward %d", last()));
            if (c.tied) release(0);
            gather(last());  // the final norm's backward
            release(last());
            reduce(last());
            for (int u = c.blocks; u >= 1; --u) {
                gather(u);
                compute.push_back(format("backward %d", u));
                release(u);
                reduce(u);
            }
            compute.push_back("backward 0");
            reduce(0);
        }
    }
};

TEST(StepProgram, EnqueuesInTheOrderOfAModelThatAsksForUnitsOneByOne) {
    for (const ProgramCase& c : cases()) {
        AskingModel want(c);
        want.step();
        std::vector<std::string> comm, compute;
        for (const Instr& i : single_stage_program(shape_of(c)).code) {
            auto& stream = i.what == Do::gather || i.what == Do::reduce ? comm : compute;
            stream.push_back(format("%s %d%s", name_of(i.what), i.first_unit, i.last ? " last" : ""));
        }
        ASSERT_EQ(comm, want.comm) << name_of_case(c);
        ASSERT_EQ(compute, want.compute) << name_of_case(c);
    }
}

std::string lines_of(const Program& program) {
    std::string lines;
    for (const Instr& i : program.code) lines += format("%s %d, ", name_of(i.what), i.first_unit);
    return lines;
}

TEST(StepProgram, OneBlockShardedInFull) {
    EXPECT_EQ(lines_of(single_stage_program(shape_of({}))),
              "gather 0, gather 1, forward 0, release 0, gather 2, forward 1, release 1, gather 1, forward 2, "
              "backward 2, release 2, reduce 2, backward 1, release 1, reduce 1, backward 0, reduce 0, ");
}

TEST(StepProgram, WholeParametersAreNeitherGatheredNorReleased) {
    for (const ProgramCase& c : cases()) {
        const Program p = single_stage_program(shape_of(c));
        const auto is = [](Do what) { return [what](const Instr& i) { return i.what == what; }; };
        const auto count = [&](Do what) { return std::count_if(p.code.begin(), p.code.end(), is(what)); };
        // Forward gathers each unit, backward the blocks again and, tied, the embedding for the head.
        EXPECT_EQ(count(Do::gather), c.sharded ? c.micro_batches * (2 * c.blocks + 2 + c.tied) : 0) << name_of_case(c);
        EXPECT_EQ(count(Do::release), count(Do::gather)) << name_of_case(c);
        EXPECT_EQ(count(Do::reduce), (c.reduce_each ? c.micro_batches : 1) * (c.blocks + 2)) << name_of_case(c);
        EXPECT_EQ(p.slots, (std::vector<StageSlots>{{0, 1, 0}}));
    }
}

TEST(StepProgram, PrefetchMayReachIntoTheNextMicroBatch) {
    StepShape shape = shape_of({.blocks = 2, .micro_batches = 2, .prefetch = 2});
    const auto gather_before = [&](int unit, int micro_batch, Do what, int at_unit) {
        const Program p = single_stage_program(shape);
        EXPECT_EQ(find_program_error(p, shape, 0), "");
        size_t gather = 0, user = 0;
        for (size_t k = 0; k < p.code.size(); ++k) {
            const Instr& i = p.code[k];
            if (i.what == Do::gather && i.first_unit == unit && i.micro_batch == micro_batch && !gather) gather = k;
            if (i.what == what && i.first_unit == at_unit && i.micro_batch == 0) user = k;
        }
        return gather < user;
    };
    EXPECT_FALSE(gather_before(0, 1, Do::backward, 1));
    shape.shard.prefetch_next_micro_batch = true;
    EXPECT_TRUE(gather_before(0, 1, Do::backward, 1));
    EXPECT_FALSE(gather_before(1, 1, Do::backward, 1)) << "it is read and released before";
}

TEST(StepProgram, ForwardOnlyGathersAndReleasesEachUnit) {
    const StepShape shape = shape_of({.blocks = 2, .tied = true, .reduce_each = false}, /*trains=*/false);
    const Program p = single_stage_program(shape);
    EXPECT_EQ(find_program_error(p, shape, 0), "");
    EXPECT_EQ(lines_of(p),
              "gather 0, gather 1, forward 0, release 0, gather 2, forward 1, release 1, gather 3, forward 2, "
              "release 2, gather 0, forward 3, release 0, release 3, ");
}

// ---- the checker ----------------------------------------------------------------------------------------------------

TEST(StepProgram, CheckerAcceptsEveryGeneratedProgram) {
    for (const ProgramCase& c : cases())
        for (bool trains : {true, false}) {
            const StepShape shape = shape_of(c, trains);
            ASSERT_EQ(find_program_error(single_stage_program(shape), shape, 0), "") << name_of_case(c);
        }
}

// Calls `mutate` with every position; it returns whether it made a mutant, which the checker must refuse.
template <class Mutate>
void expect_all_refused(const char* what, const Mutate& mutate) {
    int mutants = 0;
    for (const ProgramCase& c : cases()) {
        if (c.blocks > 3 || c.prefetch > 2) continue;
        const StepShape shape = shape_of(c);
        const Program good = single_stage_program(shape);
        for (size_t at = 0; at < good.code.size(); ++at) {
            Program bad = good;
            if (!mutate(bad.code, at, shape)) continue;
            ++mutants;
            ASSERT_NE(find_program_error(bad, shape, 0), "") << what << " at " << at << ", " << name_of_case(c) << "\n"
                                                             << text_of(good);
        }
    }
    EXPECT_GT(mutants, 1000) << what;
}

TEST(StepProgram, CheckerRefusesEveryDroppedInstruction) {
    expect_all_refused("drop", [](std::vector<Instr>& code, size_t at, const StepShape&) {
        code.erase(code.begin() + long(at));
        return true;
    });
}

TEST(StepProgram, CheckerRefusesEveryDoubledInstruction) {
    expect_all_refused("double", [](std::vector<Instr>& code, size_t at, const StepShape&) {
        code.insert(code.begin() + long(at), Instr(code[at]));
        return true;
    });
}

TEST(StepProgram, CheckerRefusesWhatIsBeforeItsInputOrAfterItsOutput) {
    expect_all_refused("swap", [](std::vector<Instr>& code, size_t at, const StepShape& shape) {
        if (at + 1 == code.size()) return false;
        const auto names = [](const std::vector<int>& units, const Instr& i) {
            return std::find(units.begin(), units.end(), i.first_unit) != units.end();
        };
        const Instr &a = code[at], &b = code[at + 1];
        const bool depends = (a.computes() && b.computes()) || (a.what == Do::gather && names(reads(b, shape), a)) ||
                             (b.what == Do::release && names(reads(a, shape), b)) ||
                             (b.what == Do::reduce && names(writes(a, shape), b));
        if (!depends) return false;
        std::swap(code[at], code[at + 1]);
        return true;
    });
}

TEST(StepProgram, CheckerRefusesAWrongMicroBatchSlotOrMark) {
    expect_all_refused("micro-batch", [](std::vector<Instr>& code, size_t at, const StepShape&) {
        if (!code[at].computes() && code[at].what != Do::reduce) return false;
        ++code[at].micro_batch;
        return true;
    });
    expect_all_refused("slot", [](std::vector<Instr>& code, size_t at, const StepShape&) {
        if (!code[at].computes()) return false;
        ++code[at].slot;
        return true;
    });
    expect_all_refused("last", [](std::vector<Instr>& code, size_t at, const StepShape&) {
        code[at].last = !code[at].last;
        return true;
    });
    expect_all_refused("unit", [](std::vector<Instr>& code, size_t at, const StepShape&) {
        ++code[at].first_unit, ++code[at].last_unit;
        return true;
    });
    expect_all_refused("stage", [](std::vector<Instr>& code, size_t at, const StepShape&) {
        ++code[at].stage;
        return true;
    });
}

TEST(StepProgram, CheckerNamesRankPositionAndInstruction) {
    const StepShape shape = shape_of({.prefetch = 0});
    const Program good = single_stage_program(shape);
    const auto without = [&](size_t at) {
        Program p = good;
        p.code.erase(p.code.begin() + long(at));
        return find_program_error(p, shape, 7);
    };
    EXPECT_EQ(without(0),
              "rank 7, instruction 0 (forward of unit 0, stage 0, micro-batch 0, slot 0): unit 0 is not gathered");
    EXPECT_EQ(without(good.code.size() - 1), "rank 7, at the end of the step: the gradients of unit 0 are not reduced");
    EXPECT_THROW(check_program({.code = {}, .slots = {{0, 1, 0}}}, shape, 0), Error);
}

// ---- a stage of a pipeline, its backward pass in two halves ---------------------------------------------------------

// The middle stage of three: units 2 and 3 of 6, two micro-batches in flight.
StepShape middle_stage() {
    StepShape s;
    s.stages = {{1, 2, 3}}, s.unit_bytes = {9, 3, 3, 3, 3, 9}, s.micro_batches = 2;
    return s;
}

Program middle_program() {
    const auto compute = [](Do what, int m, int w_slot = -1) {
        return Instr{what, 1, 2, 3, m, what == Do::weight_grad ? -1 : m, w_slot};
    };
    const auto message = [](Do what, int from, int to, int m, int lane) {
        return Instr{what, 1, from, to, m, m, -1, lane};
    };
    const auto reduce = [](int unit) {
        return Instr{
            .what = Do::reduce, .stage = 1, .first_unit = unit, .last_unit = unit, .micro_batch = 1, .last = true};
    };
    Program p{.code = {}, .slots = {{1, 2, 1}}};
    for (int m = 0; m < 2; ++m) {
        p.code.push_back(message(Do::recv, 1, 2, m, 0));
        p.code.push_back(compute(Do::forward, m));
        p.code.push_back(message(Do::send, 3, 4, m, 1));
    }
    for (int m = 0; m < 2; ++m) {
        p.code.push_back(message(Do::recv, 4, 3, m, 2));
        p.code.push_back(compute(Do::input_grad, m, 0));
        p.code.push_back(message(Do::send, 2, 1, m, 3));
        p.code.push_back(compute(Do::weight_grad, m, 0));
    }
    p.code.push_back(reduce(3));
    p.code.push_back(reduce(2));
    return p;
}

TEST(StepProgram, CheckerKnowsMessagesAndHalves) {
    const StepShape shape = middle_stage();
    const Program good = middle_program();
    ASSERT_EQ(find_program_error(good, shape, 1), "");
    for (size_t at = 0; at < good.code.size(); ++at) {
        Program bad = good;
        bad.code.erase(bad.code.begin() + long(at));
        EXPECT_NE(find_program_error(bad, shape, 1), "") << "without " << describe(good.code[at]);
        bad = good;
        bad.code.insert(bad.code.begin() + long(at), good.code[at]);
        EXPECT_NE(find_program_error(bad, shape, 1), "") << "twice " << describe(good.code[at]);
    }
    const auto expect = [&](const char* message, auto&& change) {
        Program bad = good;
        change(bad);
        const std::string got = find_program_error(bad, shape, 1);
        EXPECT_TRUE(says(got, message));
    };
    expect("the slot still holds micro-batch 0", [](Program& p) { p.code[3].slot = p.code[4].slot = 0; });
    expect("the weight slot still holds micro-batch 0",
           [](Program& p) { std::rotate(p.code.begin() + 9, p.code.begin() + 10, p.code.begin() + 12); });
    expect("the stage has 1 weight slots", [](Program& p) { p.code[7].w_slot = 1; });
    expect("the stage has 1 slots", [](Program& p) { p.slots = {{1, 1, 1}}; });
    expect("the gradient of its output was not received", [](Program& p) { std::swap(p.code[6], p.code[7]); });
    expect("the stage has not written its output", [](Program& p) { std::swap(p.code[1], p.code[2]); });
    expect("its input gradient is not complete", [](Program& p) {
        p.code[7].first_unit = 3;
        p.code.erase(p.code.begin() + 8);
    });
    expect("no tensor crosses there", [](Program& p) { p.code[0].first_unit = 0; });
    expect("its gradients hold micro-batch 0", [](Program& p) { std::swap(p.code[13], p.code[14]); });
}

TEST(StepProgram, TheHeadsGradientComesWithTheInputHalfSoItsUnitIsReducedAfterBoth) {
    StepShape shape;
    shape.stages = {{1, 2, 3}}, shape.unit_bytes = {9, 3, 3, 9};
    Program p{.code = {}, .slots = {{1, 1, 1}}};
    p.code = {{Do::recv, 1, 1, 2, 0, 0, -1, 0},
              {Do::forward, 1, 2, 3, 0, 0},
              {Do::input_grad, 1, 2, 3, 0, 0, 0},
              {Do::send, 1, 2, 1, 0, 0, -1, 1},
              {Do::weight_grad, 1, 2, 3, 0, -1, 0},
              {.what = Do::reduce, .stage = 1, .first_unit = 3, .last_unit = 3, .last = true},
              {.what = Do::reduce, .stage = 1, .first_unit = 2, .last_unit = 2, .last = true}};
    EXPECT_EQ(find_program_error(p, shape, 1), "");
    std::swap(p.code[4], p.code[5]);
    const std::string why = find_program_error(p, shape, 1);
    EXPECT_TRUE(says(why, "micro-batch 0 adds to its gradients later, at instruction 5"));
}

}  // namespace
}  // namespace rz
