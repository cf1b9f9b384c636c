#include <algorithm>
#include <charconv>
#include <map>

#include "kernels/runtime/check.h"
#include "kernels/runtime/request.h"
#include "llama/base/atomic_file.h"
#include "llama/base/sum_hash.h"
#include "llama/base/text.h"
#include "llama/parallel/pipeline.h"

namespace rz {

static constexpr std::string_view kLetters = "FIWB";  // by op

std::string text_of(Op op) { return {kLetters[size_t(op)]}; }

std::string text_of(const Task& t) { return std::to_string(t.stage) + text_of(t.op) + std::to_string(t.micro_batch); }

std::string text_of(const Cell& c) {
    return c.with ? "(" + text_of(c.a) + ";" + text_of(*c.with) + ")OVERLAP_F_B" : text_of(c.a);
}

std::string csv_of(const PipelineSchedule& schedule) {
    std::string out;
    for (const auto& cells : schedule.order) {
        for (size_t i = 0; i < cells.size(); ++i) out += (i ? "," : "") + text_of(cells[i]);
        out += "\n";
    }
    return out;
}

uint64_t text_hash(const PipelineSchedule& schedule) { return fnv1a(csv_of(schedule)); }

namespace {

std::string_view trimmed(std::string_view s) {
    const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '"'; };
    while (!s.empty() && blank(s.front())) s.remove_prefix(1);
    while (!s.empty() && blank(s.back())) s.remove_suffix(1);
    return s;
}

std::optional<Task> parse_task(std::string_view text) {
    text = trimmed(text);
    const char* end = text.data() + text.size();
    Task t{};
    const auto [after_stage, bad_stage] = std::from_chars(text.data(), end, t.stage);
    if (bad_stage != std::errc() || after_stage == end || t.stage < 0) return std::nullopt;
    const size_t op = kLetters.find(*after_stage);
    if (op == std::string_view::npos) return std::nullopt;
    t.op = Op(op);
    const auto [after, bad] = std::from_chars(after_stage + 1, end, t.micro_batch);
    if (bad != std::errc() || after != end || t.micro_batch < 0) return std::nullopt;
    return t;
}

std::optional<Cell> parse_cell(std::string_view text) {
    if (text.empty() || text.front() != '(') {
        const auto task = parse_task(text);
        return task ? std::optional(Cell{*task}) : std::nullopt;
    }
    const size_t close = text.find(')');
    if (close == std::string_view::npos || text.substr(close + 1) != "OVERLAP_F_B") return std::nullopt;
    const auto parts = split(text.substr(1, close - 1), ';');
    if (parts.size() != 2) return std::nullopt;
    const auto a = parse_task(parts[0]), b = parse_task(parts[1]);
    if (!a || !b || a->op != Op::F || b->op == Op::F || b->op == Op::W) return std::nullopt;
    return Cell{*a, *b};
}

}  // namespace

PipelineSchedule parse_pipeline_csv(std::string_view text) {
    constexpr int kMost = 1 << 20;  // of stages and of micro-batches: a number beyond is a typing error
    PipelineSchedule s;
    std::map<std::pair<int, int>, int> home;
    auto rows = split(text, '\n');
    while (!rows.empty() && trimmed(rows.back()).empty()) rows.pop_back();
    for (size_t r = 0; r < rows.size(); ++r) {
        auto& cells = s.order.emplace_back();
        const auto fields = split(rows[r], ',');
        for (size_t f = 0; f < fields.size(); ++f) {
            const std::string_view field = trimmed(fields[f]);
            if (field.empty()) continue;
            const auto cell = parse_cell(field);
            require(cell,
                    "schedule, rank %zu, field %zu: \"%.*s\" is not a task\n"
                    "  tasks are 0F3 (stage 0, forward, micro-batch 3), 0I3, 0W3, 0B3 and (0F4;3B1)OVERLAP_F_B;"
                    " transfers and shards are not part of a schedule here",
                    r, f, int(std::min<size_t>(field.size(), 60)), field.data());
            cells.push_back(*cell);
            for (const Task* t : {&cell->a, cell->with ? &*cell->with : nullptr}) {
                if (!t) continue;
                require(t->stage < kMost && t->micro_batch < kMost, "schedule, rank %zu, field %zu: %s is too large", r,
                        f, text_of(*t).c_str());
                s.stages = std::max(s.stages, t->stage + 1);
                s.micro_batches = std::max(s.micro_batches, t->micro_batch + 1);
                home.insert({{t->stage, t->micro_batch}, int(r)});  // the first one; the checker compares the others
            }
        }
    }
    s.ranks = int(s.order.size());
    require(s.ranks > 0 && s.stages > 0, "the schedule is empty");
    require(int64_t(s.stages) * s.micro_batches == int64_t(home.size()),
            "the schedule has %d stages and %d micro-batches, but tasks of only %zu of these %ld pairs", s.stages,
            s.micro_batches, home.size(), int64_t(s.stages) * s.micro_batches);
    require(s.stages % s.ranks == 0, "the schedule has %d stages on %d ranks: each rank must have equally many",
            s.stages, s.ranks);
    s.rank_of.assign(size_t(s.stages), std::vector<int>(size_t(s.micro_batches)));
    for (const auto& [key, rank] : home) s.rank_of[size_t(key.first)][size_t(key.second)] = rank;
    return s;
}

PipelineSchedule load_pipeline(const std::string& path, int pp, int micro_batches) {
    PipelineSchedule s = parse_pipeline_csv(read_file(path, kScheduleFile));
    check_pipeline(s);
    require_request(pp == 0 || pp == s.ranks, "pp %d, but %s has rows for %d ranks\n  nearest: pp %d", pp, path.c_str(),
                    s.ranks, s.ranks);
    require_request(micro_batches == 0 || micro_batches == s.micro_batches,
                    "%d micro-batches, but %s has %d\n  nearest: %d micro-batches", micro_batches, path.c_str(),
                    s.micro_batches, s.micro_batches);
    return s;
}

}  // namespace rz
