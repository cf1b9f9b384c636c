#pragma once
// Pipeline schedules as data: which rank runs which task of which stage and micro-batch, in which order. Generators
// make them, a text form reads and writes them, a checker proves them complete and free of deadlock; simulate.h says
// how long they take, pipeline_program.h turns them into each rank's program.
//
// A stage is a run of the model's units. Tasks of a stage and micro-batch m:
//
//   F  forward           after F of the stage below
//   I  input gradient    after F, and I or B of the stage above
//   W  weight gradient   after I; nothing waits for it
//   B  I, then W at once
//
// A rank runs its cells in order; a cell is one task, or a forward and a backward fused into one.
//
//   gpipe        all F, then all B.                                    Huang et al. 2019
//   1f1b         as few F in memory as keep the pipeline full.         Narayanan et al. 2019 (PipeDream-Flush)
//   interleaved  1f1b with V stages a rank: r, r + P, ...              Narayanan et al. 2021
//   zb-h1        1f1b with W delayed to fill the bubble.               Qi et al. 2023 (Zero Bubble)
//   zb-v         two stages a rank, r and 2P - 1 - r, W delayed.       Qi et al. 2024
//   dualpipe     two copies of the model, from both ends at once.      DeepSeek-AI 2024
//   dualpipev    one half of it: the V shape with fused F and B.       DeepSeek-AI 2025

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/runtime/names.h"

namespace rz {

enum class Op : uint8_t { F, I, W, B };

struct Task {
    Op op;
    int stage, micro_batch;
    auto operator<=>(const Task&) const = default;
};

struct Cell {
    Task a;
    std::optional<Task> with = {};  // fused with `a`: then `a` is F
    bool operator==(const Cell&) const = default;
};

inline std::vector<Task> tasks_of(const Cell& c) {
    return c.with ? std::vector<Task>{c.a, *c.with} : std::vector<Task>{c.a};
}

struct PipelineSchedule {
    int ranks = 0, stages = 0, micro_batches = 0;
    std::vector<std::vector<int>> rank_of;  // by stage and micro-batch
    std::vector<std::vector<Cell>> order;   // by rank
    bool operator==(const PipelineSchedule&) const = default;

    // Stages that a micro-batch passes on the rank that has most of them: a stage is 1 / (ranks * this) of the model.
    int stages_per_rank() const { return stages / ranks; }
    // Stages whose parameters the rank holds, ascending. DualPipe's ranks hold two, of two copies of the model.
    std::vector<int> stages_of(int rank) const;
};

enum class PipelineKind : uint8_t { gpipe, f1b1, interleaved, zb_h1, zb_v, dualpipe, dualpipev };

template <>
inline constexpr auto kNames<PipelineKind> =
    std::to_array<Named<PipelineKind>>({{PipelineKind::gpipe, "gpipe"},
                                        {PipelineKind::f1b1, "1f1b"},
                                        {PipelineKind::interleaved, "interleaved"},
                                        {PipelineKind::zb_h1, "zb-h1"},
                                        {PipelineKind::zb_v, "zb-v"},
                                        {PipelineKind::dualpipe, "dualpipe"},
                                        {PipelineKind::dualpipev, "dualpipev"}});
std::vector<PipelineKind> pipeline_kinds();  // all
int default_stages_per_rank(PipelineKind);   // 2 for interleaved and the V shapes, else 1

// The request: a schedule by its name, or a file of the text below; neither: the caller has a default.
struct ScheduleChoice {
    std::optional<PipelineKind> kind = {};
    std::string file = {};
    std::string name() const { return kind ? name_of(*kind) : file; }
};

struct PipelineShape {
    int ranks, micro_batches;
    int stages_per_rank = 0;  // 0: the schedule's own
};
// Empty if the schedule exists for this shape, else why not and the nearest shapes that it exists for.
std::string find_pipeline_refusal(PipelineKind, const PipelineShape&);
// Throws the refusal.
PipelineSchedule make_pipeline(PipelineKind, const PipelineShape&);

// The same tasks with at most `most` micro-batches between the first stage's F and its weight gradient: less memory,
// more bubble. Each rank's order changes where the next task would have to wait; fused cells are parted.
PipelineSchedule limit_in_flight(const PipelineSchedule&, int most);

// ---- text: PyTorch's grammar of pipeline schedules ------------------------------------------------------------------
// One row for each rank, fields separated by commas: 0F3, 1I2, 1W2, 0B1, (0F4;3B1)OVERLAP_F_B. Empty fields are idle
// and are not kept.

std::string csv_of(const PipelineSchedule&);
PipelineSchedule parse_pipeline_csv(std::string_view text);  // throws naming rank, field and text
// Loads a file that someone else may have written: also checked. `pp` and `micro_batches`: what it must have; 0: any.
PipelineSchedule load_pipeline(const std::string& path, int pp, int micro_batches);
std::string text_of(Op);
std::string text_of(const Task&);
std::string text_of(const Cell&);
uint64_t text_hash(const PipelineSchedule&);  // FNV-1a of csv_of

// ---- checks ---------------------------------------------------------------------------------------------------------

// Empty if the schedule is right, else rank, position and task of what is wrong:
//   - each stage has F, I and W (or F and B) of each micro-batch exactly once, on its rank
//   - F before I before W, and ascending micro-batches of each op and stage, which keeps the order of sums
//   - run with messages that no one buffers, on one lane for each directed pair of ranks, it comes to its end
std::string find_pipeline_error(const PipelineSchedule&);
void check_pipeline(const PipelineSchedule&);  // throws it

}  // namespace rz
