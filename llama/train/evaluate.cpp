#include "llama/train/evaluate.h"

#include <algorithm>
#include <cstdio>
#include <omp.h>

#include "kernels/runtime/request.h"
#include "llama/base/atomic_file.h"
#include "llama/base/json.h"
#include "llama/base/version.h"
#include "llama/checkpoint/checkpoint_store.h"
#include "llama/model/hf.h"
#include "llama/model/weights.h"
#include "llama/parallel/tensor_parallel.h"
#include "llama/train/commands.h"
#include "llama/train/trainer.h"

namespace rz {

Evaluation::Evaluation(std::vector<EvalTask> tasks, const Tokenizer& tokenizer, const EncodeOptions& options)
    : tasks_(std::move(tasks)) {
    for (EvalTask& t : tasks_) t.encode(tokenizer, options);
}

int64_t Evaluation::longest() const {
    size_t n = 0;
    for (const EvalTask& t : tasks_)
        for (const ScoreItem& item : t.items()) n = std::max(n, item.tokens.size() - 1);
    return int64_t(n);
}

int64_t Evaluation::items() const {
    size_t n = 0;
    for (const EvalTask& t : tasks_) n += t.items().size();
    return int64_t(n);
}

std::vector<TaskResult> Evaluation::run(Scorer& scorer, std::string* requests) const {
    std::vector<const ScoreItem*> items;
    for (const EvalTask& t : tasks_)
        for (const ScoreItem& item : t.items()) items.push_back(&item);
    const std::vector<Score> scores = scorer.score(items);
    std::vector<TaskResult> results;
    size_t first = 0;
    for (const EvalTask& t : tasks_) {
        const std::span<const Score> own(scores.data() + first, t.items().size());
        first += own.size();
        results.push_back({t.name(), t.examples(), t.metrics(own)});
        if (requests) *requests += t.request_lines(own);
    }
    return results;
}

static OrderedJson to_json(const std::vector<TaskResult>& results) {
    OrderedJson all = OrderedJson::object();
    for (const TaskResult& r : results) {
        OrderedJson one{{"examples", r.examples}};
        for (const Metric& m : r.metrics) {  // what is not finite is null
            one[m.name] = m.value;
            if (m.standard_error) one[m.name + "_stderr"] = *m.standard_error;
        }
        all[r.name] = one;
    }
    return all;
}

std::string results_json(const std::vector<TaskResult>& results) { return to_json(results).dump(); }

std::string results_line(const std::vector<TaskResult>& results) {
    std::string line;
    for (const TaskResult& r : results) {
        line += (line.empty() ? "" : " | ") + r.name;
        const char* between = " ";
        for (const Metric& m : r.metrics) {
            line += between + m.name + format(" %.4f", m.value);
            between = ", ";
        }
    }
    return line;
}

// ---- train_llama eval -----------------------------------------------------------------------------------------------

static void print_table(const std::vector<TaskResult>& results) {
    std::printf("%-24s %9s  %-18s %12s %10s\n", "task", "examples", "metric", "value", "stderr");
    for (const TaskResult& r : results)
        for (const Metric& m : r.metrics)
            std::printf("%-24s %9ld  %-18s %12.6g %10s\n", r.name.c_str(), r.examples, m.name.c_str(), m.value,
                        m.standard_error ? format("%.4f", *m.standard_error).c_str() : "");
}

// Parameters on a rank: all of the model, or its part of each tensor (--tp), or its slice of each unit (--zero 3).
struct HeldParameters {
    HeldParameters(const EvalOptions& o, const ModelConfig& config, const std::string& folder, Process& process,
                   Device device, Stream& stream)
        : mesh(o.zero == 0 && o.tp == 1
                   ? nullptr
                   : std::make_unique<Mesh>(process, device, MeshOptions{.grid = {.tp = int(o.tp)}})),
          table(config, LocalShard{.part = place(Axis::tp).rank,
                                   .parts = place(Axis::tp).size,
                                   .sharers = o.zero == 0 ? 1 : place(Axis::shard).size}) {
        if (o.tp > 1) tp.emplace(*mesh, o.dtype);
        if (o.zero == 0) {
            auto whole = std::make_unique<ResidentParameters>(device, stream, unit_layouts(table), o.dtype);
            load_weights(folder, table, o.dtype, device, stream, *whole);
            source = std::move(whole);
        } else {
            const ZeroOptions zero{.stage = 3, .param_dtype = o.dtype};
            ownership.emplace(unit_layouts(table), shard_groups_of(zero, *mesh));
            auto slices = std::make_unique<ParameterCache>(
                *ownership, zero, ZeroStreams{.device = device, .compute = stream, .mesh = *mesh});
            load_weights(folder, table, o.dtype, device, stream, *ownership, *slices);
            source = std::move(slices);
        }
    }
    AxisRank place(Axis axis) const { return mesh ? mesh->place(axis) : AxisRank{}; }

    std::unique_ptr<Mesh> mesh;  // nullptr: each rank has the whole model
    ParamTable table;
    std::optional<TensorParallel> tp;
    std::optional<Ownership> ownership;
    std::unique_ptr<ParameterSource> source;
};

static Device choose_device(const EvalOptions& o, Process& process) {
    std::string note;
    const Device device = process.choose_device(o.device, TransportKind::automatic, &note);
    device.make_current();
    prepare_device(o, device, note, process.is_root());
    return device;
}

int eval_command(const EvalOptions& o, Process& process) {
    const Timer timer;
    const Device device = choose_device(o, process);
    const std::string folder = model_folder(o.from);
    const ModelConfig config = load_config(folder);
    check_tensor_parallel(config, o.tp);
    const Tokenizer tokenizer = Tokenizer::load(o.tokenizer.empty() ? folder : o.tokenizer);
    require_request(o.max_length <= config.max_seq_len, "--max-length %ld: the model has %ld positions\n  nearest: %ld",
                    o.max_length, config.max_seq_len, config.max_seq_len);
    const EncodeOptions encode{.max_length = o.max_length > 0 ? o.max_length : config.max_seq_len,
                               .bos = o.bos == AddBos::automatic ? tokenizer.adds_bos() : o.bos == AddBos::on};
    const Evaluation evaluation(load_eval_tasks(o.data, o.tasks, o.limit), tokenizer, encode);

    Stream stream(device, "compute");
    if (const int64_t n = cpu_threads(o.threads, process); n > 0 && !device.is_cuda())
        stream.enqueue_host([n] { omp_set_num_threads(int(n)); });
    HeldParameters held(o, config, folder, process, device, stream);
    const int64_t T = evaluation.longest();
    const int64_t logits_mib = o.logits_mib > 0 ? o.logits_mib : device.is_cuda() ? 1024 : 32;
    Model model(config, held.table,
                {.B = o.batch,
                 .T = T,
                 .dtype = o.dtype,
                 .grad_dtype = o.dtype,
                 .recompute = Recompute::block,  // one block's activations serve all
                 .logits_bytes = logits_mib << 20,
                 .tp = held.tp ? &*held.tp : nullptr},
                device, stream, *held.source, nullptr);
    const AxisRank ranks = held.mesh ? held.place(Axis::dp) : AxisRank{.rank = process.rank(), .size = process.size()};
    Scorer scorer(process, model, device, stream, ranks, held.place(Axis::tp).rank == 0, o.batch, T, config.vocab);
    std::string requests;
    const std::vector<TaskResult> results = evaluation.run(scorer, o.requests.empty() ? nullptr : &requests);
    const MemoryLedger& ledger = device.context->memory;
    const std::vector<int64_t> kept = process.all_gather(ledger.peak(device.kind, MemKind::parameters));
    const std::vector<int64_t> gathered = process.all_gather(ledger.peak(device.kind, MemKind::gathered));
    if (!process.is_root()) return 0;
    const double seconds = timer.seconds();
    print_table(results);
    std::printf("%s: %ld sequences in %.1f s on %d rank%s, %s, %s\n", folder.c_str(), evaluation.items(), seconds,
                process.size(), process.size() == 1 ? "" : "s", device.name().c_str(), name_of(o.dtype));
    if (!o.requests.empty()) write_file_atomically(o.requests, requests);
    if (!o.out.empty()) {
        const OrderedJson json{{"model", replace_invalid_utf8(folder)},
                               {"tasks", to_json(results)},
                               {"settings",
                                {{"dtype", name_of(o.dtype)},
                                 {"max_length", encode.max_length},
                                 {"bos", encode.bos},
                                 {"limit", o.limit},
                                 {"batch", o.batch},
                                 {"zero", o.zero},
                                 {"tp", o.tp}}},
                               {"seconds", seconds},
                               {"ranks", process.size()},
                               {"parameter_bytes_by_rank", kept},
                               {"gathered_bytes_by_rank", gathered},
                               {"device", device.name()},
                               {"commit", build_commit()}};
        write_file_atomically(o.out, json.dump(2) + "\n");
    }
    return 0;
}

// ---- while a model trains -------------------------------------------------------------------------------------------

bool Trainer::evaluates(int64_t step) const {
    return evaluation && (step == options.steps || step % options.eval_every == 0);
}

void make_evaluation(Trainer& t) {
    const TrainOptions& o = t.options;
    if (o.eval_every == 0) return;
    const Tokenizer& tokenizer = *t.sources.tokenizer;
    t.evaluation = std::make_unique<Evaluation>(load_eval_tasks(o.eval_data, o.eval_tasks, o.eval_limit), tokenizer,
                                                EncodeOptions{.max_length = o.seq_len, .bos = tokenizer.adds_bos()});
    TrainState& core = *t.core;
    const Mesh& mesh = *t.mesh;
    t.scorer = std::make_unique<Scorer>(t.process, core.model, core.device, core.compute, mesh.place(Axis::dp),
                                        mesh.place(Axis::tp).rank == 0, o.batch, o.seq_len, core.config.vocab,
                                        mesh.place(Axis::cp), fp8_multiple(o.fp8.recipe) * (o.tp_overlap ? o.tp : 1));
}

void evaluate(Trainer& t, int64_t step) {
    t.metrics->flush();
    const Timer timer;
    const std::vector<TaskResult> results = t.evaluation->run(*t.scorer);
    const double seconds = timer.seconds();
    std::vector<std::pair<std::string, double>> scalars;
    for (const TaskResult& r : results)
        for (const Metric& m : r.metrics) scalars.push_back({"eval/" + r.name + "/" + m.name, m.value});
    t.log->event(step, format("step %ld | evaluation: ", step) + results_line(results) + " | " + duration(seconds),
                 "eval", results_json(results));
    t.log->scalars(step, scalars);
    t.metrics->exclude_from_step_time();
}

}  // namespace rz
