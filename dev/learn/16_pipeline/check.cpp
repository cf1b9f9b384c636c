#include <cstring>
#include <vector>

#include "dev/learn/lesson.h"
#include "llama/parallel/simulate.h"

using namespace learn;

void one_forward_one_backward(int* out, int stage, int stages, int micro_batches);
double bubble(int stages, int micro_batches);

constexpr int kForward = 1, kBackward = 2;  // ticks

struct Clock {
    std::vector<std::vector<int>> lines;  // by stage, by tick: what runs, 0 is idle
    int ticks = 0;
    std::vector<int> most_held;  // by stage: micro-batches whose activations it keeps
    bool complete = true;
};

// Plays the schedule: a forward pass waits for the stage before it, a backward pass for the one after it.
static Clock play(int stages, int micro_batches) {
    const size_t P = size_t(stages), M = size_t(micro_batches);
    std::vector<std::vector<int>> order(P, std::vector<int>(2 * M, 0));
    for (size_t p = 0; p < P; ++p) one_forward_one_backward(order[p].data(), int(p), stages, micro_batches);
    Clock c{std::vector<std::vector<int>>(P), 0, std::vector<int>(P, 0)};
    std::vector<size_t> next(P, 0);
    std::vector<int> free_at(P, 0), held(P, 0);
    std::vector<std::vector<int>> forward_end(P, std::vector<int>(M + 1, -1)), backward_end(forward_end);
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t p = 0; p < P; ++p) {
            if (next[p] == 2 * M) continue;
            const int what = order[p][next[p]];
            const size_t m = size_t(std::abs(what));
            if (m < 1 || m > M) return {{}, 0, c.most_held, false};
            int ready = 0;
            if (what > 0 && p > 0) ready = forward_end[p - 1][m];
            if (what < 0) ready = p + 1 < P ? backward_end[p + 1][m] : forward_end[p][m];
            if (ready < 0) continue;
            const int begin = ready > free_at[p] ? ready : free_at[p];
            const int end = begin + (what > 0 ? kForward : kBackward);
            c.lines[p].resize(size_t(end), 0);
            for (int t = begin; t < end; ++t) c.lines[p][size_t(t)] = what;
            (what > 0 ? forward_end : backward_end)[p][m] = free_at[p] = end;
            held[p] += what > 0 ? 1 : -1;
            c.most_held[p] = held[p] > c.most_held[p] ? held[p] : c.most_held[p];
            c.ticks = end > c.ticks ? end : c.ticks;
            ++next[p];
            moved = true;
        }
    }
    for (size_t p = 0; p < P; ++p) c.complete &= next[p] == 2 * M;
    return c;
}

static void draw(const Clock& c) {
    for (size_t p = 0; p < c.lines.size(); ++p) {
        std::printf("  stage %zu |", p);
        for (const int what : c.lines[p])
            std::printf(what == 0 ? " ." : what > 0 ? "%2d" : "%2c", what > 0 ? what : '0' - what);
        std::printf("\n");
    }
}

// The program's own generator and clock.
static void compare_with_program(int stages, int micro_batches, int ticks) {
    const rz::PipelineSchedule schedule = rz::make_pipeline(rz::PipelineKind::f1b1, {stages, micro_batches});
    int different = 0;
    for (int p = 0; p < stages; ++p) {
        std::vector<int> mine(2 * size_t(micro_batches), 0), theirs;
        one_forward_one_backward(mine.data(), p, stages, micro_batches);
        for (const rz::Cell& cell : schedule.order[size_t(p)])
            theirs.push_back(cell.a.op == rz::Op::F ? cell.a.micro_batch + 1 : -(cell.a.micro_batch + 1));
        different += mine != theirs;
    }
    expect(different == 0, "%d stages whose order differs from rz::make_pipeline's", different);
    const auto costs = rz::PipelineCosts::even(schedule, kForward, kBackward / 2, kBackward / 2);
    close("ticks by rz::simulate", ticks, double(rz::simulate(schedule, costs).makespan), 0);
}

int main() {
    for (const auto& [stages, micro_batches] : {std::pair{4, 8}, {4, 4}, {2, 6}, {8, 9}, {3, 1}, {1, 5}}) {
        const Clock c = play(stages, micro_batches);
        std::printf("%d stages, %d micro-batches:\n", stages, micro_batches);
        if (stages == 4 && micro_batches == 8) draw(c);
        expect(c.complete, "every pass was made, none waits forever");
        const int want = (micro_batches + stages - 1) * (kForward + kBackward);
        expect(c.ticks == want, "%d ticks, (M + P - 1) (f + b) = %d expected", c.ticks, want);
        const double idle = 1 - double(micro_batches * (kForward + kBackward)) / (c.ticks > 0 ? c.ticks : 1);
        close("idle share", bubble(stages, micro_batches), idle, 1e-12);
        int over = 0;
        for (int p = 0; p < stages; ++p) {
            const int most = stages - p < micro_batches ? stages - p : micro_batches;
            over += c.most_held[size_t(p)] != most;
        }
        compare_with_program(stages, micro_batches, c.ticks);
        expect(over == 0, "stage p keeps min(P - p, M) micro-batches at most; %d stages do not", over);
    }
    return verdict("the bubble is (P - 1) / (M + P - 1); 1F1B does not shrink it, it shrinks the memory from M to P");
}
