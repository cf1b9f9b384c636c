#include "llama/train/trainer.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "comm/host.h"
#include "comm/layout_text.h"
#include "comm/wire_check.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_tuning.h"
#include "kernels/runtime/capability.h"
#include "kernels/runtime/context.h"
#include "kernels/runtime/nvtx.h"
#include "kernels/runtime/host_memory.h"
#include "kernels/runtime/memory_changes.h"
#include "kernels/runtime/request.h"
#include "llama/base/clock.h"
#include "llama/base/fault.h"
#include "llama/base/text.h"
#include "llama/base/version.h"
#include "llama/checkpoint/replicas.h"
#include "llama/model/recipe.h"
#include "llama/model/weights.h"
#include "llama/report/device_peak.h"
#include "llama/train/plan_memory.h"
#include "llama/train/prepare.h"
#include "llama/train/run_config.h"
#include "llama/train/sample.h"
#include "llama/train/start.h"

namespace rz {

// ---- building: one function for each part ---------------------------------------------------------------------------

static Device choose_device(const TrainOptions& o, Process& process, std::string& note) {
    const Device device = process.choose_device(o.device, o.transport, &note);
    device.make_current();
    // Rank 0 chooses for all.
    const std::string tuning = set_gemm_tuning(device, o.gemm_tune, process.is_root() ? o.gemm_cache : "");
    note += (note.empty() || tuning.empty() ? "" : "\n") + tuning;
    return device;
}

StepMessages step_messages(const TrainOptions& o) {
    return {.matrix_pieces = o.optimizer == Optimizer::muon,
            .shared_units = o.pp > 1 && o.pp_schedule.kind == PipelineKind::dualpipe,
            .samples = o.pp > 1 && o.sample_every > 0};
}

MeshOptions mesh_options(const TrainOptions& o) {
    return {.grid = grid_options(o),
            .transport = o.transport,
            .algorithms = o.collectives,
            .ranks_per_node = int(o.ranks_per_node),
            .reserved_sms = int(o.comm_sms),
            .collectives = {.chunk_bytes = o.ring_chunk_kib << 10},
            .check_wire = o.check_wire > 0,
            .messages = step_messages(o)};
}

void check_threads(int64_t asked) {
    const int64_t cores = omp_get_num_procs(), most = std::max<int64_t>(1024, 8 * cores);
    require_request(asked <= most, "--threads %ld: this machine has %ld cores\n  nearest: --threads %ld, or 0", asked,
                    cores, cores);
}

// Ranks that each take every core slow each other down: they divide the host's, unless the user says otherwise.
int64_t cpu_threads(int64_t asked, const Process& process) {
    check_threads(asked);
    if (asked > 0 || process.local_size() == 1 || std::getenv("OMP_NUM_THREADS")) return asked;
    return std::max(1, omp_get_num_procs() / process.local_size());
}

MeteredMesh make_mesh(const TrainOptions& o, Process& process, Device device) {
    auto meter = std::make_unique<CommMeter>();
    MeshOptions options = mesh_options(o);
    options.collectives.meter = meter.get();
    options.damage_wire = [] { return fault_point("wire") == FaultAction::flip; };
    return {std::move(meter), std::make_unique<Mesh>(process, device, options)};
}

static void check_offload(const TrainOptions& o, Device device) {
    if (!o.offloads()) return;
    const bool optimizer = o.offload_optimizer != OffloadOptimizer::none;
    const std::string asked = optimizer          ? format("--offload-optimizer %s", name_of(o.offload_optimizer))
                              : o.offload_params ? "--offload-params on"
                              : o.offload_grads  ? "--offload-grads on"
                                                 : "--offload-activations on";
    require_request(device.is_cuda(), "%s: this run is on the CPU, whose memory is the host's\n  nearest: leave it out",
                    asked.c_str());
    require_request(
        !o.offload_params || o.zero == 3,
        "--offload-params on with --zero %ld, which keeps parameters whole: they come to the GPU as they are "
        "gathered\n  nearest: --zero 3, on one rank too",
        o.zero);
    require_request(
        !o.offload_grads || (o.zero >= 2 && !o.accumulates_locally()),
        "--offload-grads on with --zero %ld%s, which keeps gradients whole: they go to the host as they are "
        "reduced\n  nearest: --zero 2%s",
        o.zero, o.accumulates_locally() ? " and gradients accumulated locally" : "",
        o.pp > 1 ? " --no-accumulate-locally" : ", on one rank too");
    require_request(
        !o.offload_activations || o.recompute == Recompute::block,
        "--offload-activations on with --recompute %s: the residual stream of each block goes to the host, and all "
        "else is computed again\n  nearest: --recompute block",
        name_of(o.recompute));
    require_request(!o.cuda_graphs || (!o.offload_activations && o.offload_optimizer != OffloadOptimizer::cpu),
                    "--cuda-graphs on with %s: copies to the host are not recorded\n  nearest: --cuda-graphs off%s",
                    o.offload_activations ? "--offload-activations on" : "--offload-optimizer cpu",
                    o.offload_activations ? "" : ", or --offload-optimizer stream");
}

CoreOptions core_options(const TrainOptions& o, Device device, const Mesh& mesh) {
    require_request(!o.cuda_graphs || device.is_cuda(),
                    "--cuda-graphs on: this run is on the CPU, which has none\n  nearest: --cuda-graphs off");
    require_request(
        !o.cuda_graphs || o.trace_steps == 0,
        "--cuda-graphs on with --trace-steps: ops inside a graph can't be timed\n  nearest: --cuda-graphs off");
    require_request(
        !o.tp_wire || *o.tp_wire == o.dtype || *o.tp_wire == DType::f32,
        "--tp-wire %s with --dtype %s: partial sums travel in --dtype or in fp32\n  nearest: --tp-wire fp32",
        name_of(o.tp_wire.value_or(o.dtype)), name_of(o.dtype));
    check_offload(o, device);
    return {.zero = {.stage = int(o.zero),
                     .param_dtype = o.dtype,
                     .grad_dtype = o.grad_dtype,
                     .wire_dtype = o.gradient_wire_dtype(),
                     .master_dtype = o.master_dtype,
                     .adam_dtype = o.adam_dtype,
                     .muon = o.muon(),
                     .ema = o.ema,
                     .loss_scaling = o.loss_scaling(),
                     .offload_optimizer = o.offload_optimizer,
                     .offload_params = o.offload_params,
                     .offload_grads = o.offload_grads,
                     .rounding_seed = o.seed,
                     .prefetch = int(o.prefetch),
                     .overlap = o.overlap,
                     .accumulate_locally = o.accumulates_locally(),
                     .bucket_bytes = o.bucket_mib << 20},
            .adamw = {float(o.beta1), float(o.beta2), float(o.eps), float(o.weight_decay), float(o.clip)},
            .decay_embeddings = o.decay_embeddings,
            .mup = o.mup,
            .stage = {.B = o.batch,
                      .T = o.seq_len,
                      .recompute = o.recompute,
                      .logits_bytes = (o.logits_mib > 0   ? o.logits_mib
                                       : device.is_cuda() ? 1024
                                                          : 32)
                                      << 20,
                      .fp8 = o.fp8,
                      .offload = o.offload_activations,
                      .z_loss = float(o.z_loss)},
            .micro_batches = micro_batches(o, mesh.place(Axis::dp).size),
            .fp8_gather = o.fp8_gather,
            .graphs = o.cuda_graphs,
            .threads = o.threads,
            .pipeline = {.schedule = o.pp_schedule,
                         .stages_per_rank = int(o.pp_stages_per_rank),
                         .cut = o.pp_cut,
                         .gather = o.pp_gather,
                         .gather_window = int(o.pp_gather_window),
                         .window = int(o.pp_window),
                         .may_accumulate = !o.accumulate_locally && !o.offload_grads},
            .cp_exchange = o.cp_exchange,
            .tp_overlap = o.tp_overlap,
            .tp_wire_f32 = o.tp_wire.value_or(o.dtype) == DType::f32};
}

// Every flag that is not empty, and what the run is on.
static std::map<std::string, std::string> run_settings(const TrainOptions& o, const TrainState& core) {
    std::map<std::string, std::string> out;
    for (const auto& [flag, value] : o.values)
        if (!value.empty() && flag != "out" && flag != "resume" && flag != "overwrite" && !may_hold_secrets(flag))
            out[flag] = value;
    for (const auto& [flag, value] : o.kept_flags)
        if (!value.empty()) out[flag] = value;
    out["ranks"] = std::to_string(core.mesh.world().size);
    out["device"] = core.device.name();
    out["model"] = summary(core.config);
    out["commit"] = build_commit();
    return out;
}

static RunFacts run_facts(const TrainOptions& o, const TrainState& core, const Peak& peak, const Process& process,
                          bool reports_due) {
    return {.steps = o.steps,
            .flops_per_token = training_flops_per_token(core.config, o.seq_len),
            .title = summary(core.config),
            .peak_flops = peak.flops * core.mesh.world().size,
            .quiet = !process.is_root(),
            .attention_flops_per_token = attention_flops_per_token(core.config, o.seq_len),
            .settings = run_settings(o, core),
            .wandb = o.wandb,
            .wandb_name = o.wandb_name,
            .stops_every = {o.val_every, o.out.empty() ? 0 : o.save_every, o.eval_every},
            .prints = !o.quiet,
            .reports_due = reports_due};
}

static std::unique_ptr<Trace> make_trace(const TrainOptions& o, Process& process, TrainState& core, CommMeter& meter,
                                         int64_t first_step) {
    if (o.trace_steps == 0 || first_step > o.steps) return nullptr;
    const int64_t first = std::min(first_step + 2, o.steps);
    return std::make_unique<Trace>(process, core.compute, meter, first, std::min(o.trace_steps, o.steps - first + 1));
}

// The most that this rank will take, saves and final weights included (plan_memory.h); what can't be planned says so.
static std::string planned_memory(const Trainer& t) {
    if (!t.process.is_root()) return "";
    const AxisRank world = t.core->mesh.world();
    const DeviceKind kind = t.core->device.kind;
    const MemoryLedger& ledger = t.core->device.context->memory;
    std::string why;
    PlannedMemory plan;
    try {
        const bool samples = draws_samples(t.options, t.start.first_step() - t.reports_due, t.validations);
        const PlannedJob job{.kind = kind,
                             .ranks = world.size,
                             .capability = compute_capability(t.core->device),
                             .resumes = t.start.first_step() > 1,
                             .prompt = samples ? int64_t(sample_prompt(t, t.core->config).size()) : 0};
        for (const PlannedRank& one : plan_ranks(t.options, t.core->config, job, world.rank))
            if (one.rank == world.rank) plan = one.memory;
    } catch (const Error& error) {
        why = error.what();
    }
    const auto row = [&](const char* name, int64_t now, int64_t peak) {
        return format("  %-12s %12s %12s\n", name, human_bytes(now).c_str(),
                      why.empty() ? human_bytes(peak).c_str() : "?");
    };
    std::string text = format("  %-12s %12s %12s\n", "memory", "now", "at the peak");
    for (int k = 0; k < int(MemKind::count_); ++k)
        if (plan.peak[size_t(k)] > 0 || ledger.now(kind, MemKind(k)) > 0)
            text += row(name_of(MemKind(k)), ledger.now(kind, MemKind(k)), plan.peak[size_t(k)]);
    text += row("total", ledger.now(kind), plan.total);
    return why.empty() ? text : text + "  ? is not planned: " + why.substr(0, why.find('\n')) + "\n";
}

// Bytes that this rank takes of its host: pinned beside a GPU, all of it on the CPU. 0 for a run that can't be planned;
// one that would be refused is refused here.
static int64_t planned_host_bytes(const TrainOptions& o, const ModelConfig& config, DeviceKind kind, AxisRank world) {
    try {
        const PlannedMemory plan = plan_memory(o, config, kind, world.rank, world.size);
        return kind == DeviceKind::cpu ? plan.total : plan.host;
    } catch (const RequestError&) {
        throw;
    } catch (const Error&) {
        if (o.offloads()) throw;
        return 0;
    }
}

// Collective, before anything is allocated: Linux hands out more memory than there is, and kills a process of this host
// when it is touched.
static void check_host_memory(const TrainOptions& o, const ModelConfig& config, Device device, AxisRank world,
                              Process& process) {
    const bool gpu = device.is_cuda(), copies = !o.out.empty() && o.background_save && o.save_every > 0;
    const int64_t own = planned_host_bytes(o, config, device.kind, world);
    int64_t needed = 0;  // by all ranks of this host
    const std::vector<std::string> all = process.all_gather_text(host_name() + " " + std::to_string(own));
    for (const std::string& one : all) {
        const size_t space = one.rfind(' ');
        if (one.substr(0, space) == host_name()) needed += std::stoll(one.substr(space + 1));
    }
    const int64_t free = available_host_memory();
    const std::string problem =
        needed <= free
            ? ""
            : format("%s needs %s%s, the host %s has %s free\n  nearest: %s", o.offloads() ? "offload" : "this run",
                     human_bytes(needed).c_str(), gpu ? " pinned" : "", host_name().c_str(), human_bytes(free).c_str(),
                     gpu && o.offloads() && o.adam_dtype != DType::bf16 ? "more ranks, or --adam-dtype bf16"
                     : copies                                           ? "--no-background-save"
                     : gpu                                              ? "more ranks, or a smaller model"
                           : "a smaller --batch or --seq-len, --recompute block, or ranks on more hosts");
    for (const std::string& one : process.all_gather_text(problem)) require(one.empty(), "%s", one.c_str());
}

// Steps, rates, and what is odd about them.
static void announce_steps(Trainer& t) {
    const TrainOptions& o = t.options;
    Log& log = *t.log;
    if (o.stage_end > 0) log.line(format("         until %ld tokens are seen; then more (--batch-ramp)", o.stage_end));
    log.line(format(
        "run      %ld steps, lr %g to %g (%s), warm-up %ld; FLOP/s%s count 6 per matrix parameter and 6 L H D T of "
        "causal attention per token%s%s",
        o.steps, o.lr, o.min_lr, name_of(o.decay), o.warmup,
        t.peak.flops > 0 ? format(" and MFU (of %s)", t.peak.name.c_str()).c_str() : "",
        t.sources.documents ? ", T of its document" : "", t.core->config.window ? ", W (2 - W / T) beyond W" : ""));
    if (t.lr.from_step > 0)
        log.line(format("         from step %ld on at lr %g, %s", t.lr.from_step, t.lr.from_rate,
                        t.lr.rewarm > 0 ? format("rising to %g in %ld steps", o.lr, t.lr.rewarm).c_str()
                                        : format("down to %g at step %ld (%s)", std::min(o.min_lr, t.lr.from_rate),
                                                 o.steps, name_of(o.decay))
                                              .c_str()));
    if (o.init_from.empty())
        if (const std::string odd = unlike_published(t.core->config, o.lr, double(t.batches->tokens_per_step()));
            !odd.empty()) {
            const std::vector<std::string> lines = split(odd, '\n');
            for (const std::string& line : lines) log.line((&line == lines.data() ? "advice   " : "         ") + line);
        }
    if (!o.init_from.empty() && !o.given.count("lr") && t.start.first_step() == 1)
        log.line(format("         lr %g is the default with --init-from; --lr sets another", o.lr));
}

// Says what ZeRO-2 and 3 save in a pipeline, what that costs, and which flag gives one rank's bits.
static void announce_reduction(const TrainOptions& o, const TrainState& core, Log& log) {
    const UnitLayout& last = core.table.held_units().back();
    const std::string whole = human_bytes((last.offset + last.padded) * size_of(o.grad_dtype));
    if (core.zero.options.accumulate_locally)
        log.line(format("         gradients are accumulated locally, %s on this rank", whole.c_str()));
    else
        log.line(format(
            "         gradients are reduced %ld times a step%s, which saves this rank %s and changes the last bits; "
            "--accumulate-locally%s sends less and has one rank's",
            core.options.micro_batches,
            o.zero == 3 && o.pp_gather == GatherFor::op ? " and parameters gathered for each use" : "", whole.c_str(),
            o.zero == 3 && o.pp_gather == GatherFor::op ? " --pp-gather step" : ""));
}

// Describes the run in the log's first lines.
static void announce(Trainer& t, const std::string& note) {
    const TrainOptions& o = t.options;
    const TrainState& core = *t.core;
    const int ranks = core.mesh.world().size;
    Log& log = *t.log;
    if (!note.empty()) log.line(note);
    if (const std::string kept = where_kept(o); !kept.empty()) log.line(kept);
    log.line("model    " + summary(core.config));
    log.line(format("device   %s, %d rank%s, %s GEMM, %s weights%s", core.device.name().c_str(), ranks,
                    ranks == 1 ? "" : "s", gemm_library(core.device.kind), name_of(o.dtype), why_dtype(o)));
    if (core.device.is_cuda()) log.line("         " + t.prepared);
    if (o.offloads())
        log.line(format("offload  %s pinned in the host's memory: %s%s%s%s",
                        human_bytes(core.device.context->memory.now(DeviceKind::cpu)).c_str(),
                        o.offload_optimizer == OffloadOptimizer::none
                            ? ""
                            : ("optimizer (" + std::string(name_of(o.offload_optimizer)) + ") ").c_str(),
                        o.offload_params ? "parameters " : "", o.offload_grads ? "gradients " : "",
                        o.offload_activations ? "activations" : ""));
    for (const std::string& line : device_notes(o, core.config, core.device, t.process)) log.line("         " + line);
    if (ranks > 1 && !core.device.is_cuda() && core.options.threads > 0)
        log.line(
            format("threads  %ld for each of %d ranks on this host", core.options.threads, t.process.local_size()));
    if (ranks > 1) {
        const std::string through = core.mesh.data().through();
        log.line(format("sharing  ZeRO-%ld over %d ranks x %d, %s collectives over %s%s", o.zero,
                        core.mesh.shard().size(), core.mesh.replicate().size(), core.mesh.data().name(),
                        core.mesh.data().transport().name(), (through.empty() ? "" : ", " + through).c_str()));
    }
    for (const std::string& line : t.layout) log.line((&line == t.layout.data() ? "layout   " : "         ") + line);
    if (core.tp) {
        const ModelConfig part = part_config(core.config, core.table);
        log.line(
            format("tensor   %d ranks share each tensor, %s partial sums: %ld of %ld heads and %ld of %ld kv "
                   "heads on this one",
                   core.tp->size(), name_of(core.tp->wire()), part.heads, core.config.heads, part.kv_heads,
                   core.config.kv_heads));
    }
    if (core.context)
        log.line(format(
            "context  %d ranks share each sequence: 2 of %d chunks of %ld tokens on each; keys and values by %s",
            core.mesh.cp().size(), 2 * core.mesh.cp().size(), core.context->own_rows() / 2, name_of(o.cp_exchange)));
    if (core.plan)
        for (const std::string& line : core.plan->text(core.config.layers)) log.line(line);
    if (core.plan && o.zero >= 2) announce_reduction(o, core, log);
    const DataSources& s = t.sources;
    announce_data(s, log);
    if (s.documents)
        log.line(format("masks    documents %s token %d do not see each other; positions restart at each",
                        s.documents.boundary == DocBoundary::bos ? "from" : "up to", s.documents.token));
    log.line(format("batch    %ld sequences x %ld tokens x %d ranks x %ld micro-batches = %ld tokens per step", o.batch,
                    o.seq_len, core.mesh.place(Axis::dp).size, core.options.micro_batches,
                    t.batches->tokens_per_step()));
    announce_steps(t);
    log.line(planned_memory(t));
}

Trainer::Trainer(const TrainOptions& o, Process& p, RunGuard& h, const std::optional<ResumePoint>& from,
                 MeteredMesh made)
    : options(o), process(p), health(h), lr(schedule_of(o, {})) {
    if (!o.mllog.empty() && process.is_root()) mlperf = std::make_unique<MlperfLog>(o.mllog);
    DataPaths paths = find_data(o);
    ModelConfig config = from ? resumed_config(o, *from, paths.vocab) : model_config(o, paths.vocab);
    name_end_tokens(config, paths);
    check_ranks(o, process.size());
    std::optional<Process::DiskWork> files(std::in_place, process);  // data, weights or a checkpoint
    start.run_id = choose_run_id(process);
    check_folder_is_shared(o.out, start.run_id, process);
    const std::string model = from ? from->folder : o.init_from.empty() ? "" : model_folder(o.init_from);
    if (process.is_root()) paths.tokenizer_files = carried_files(o, paths, model, config);
    sources = open_data(o, std::move(paths), config);
    std::string note;
    const Device device = choose_device(o, process, note);
    gemm_choices = from ? from->manifest.gemm_choices : "";
    const bool samples = draws_samples(o, from ? from->manifest.step + 1 : 1, from ? from->manifest.validations : 0);
    prepared = prepare_device(o, config, samples ? int64_t(sample_prompt(*this, config).size()) : 0, device, process,
                              gemm_choices);
    peak = find_peak(device, o.dtype, o.peak_tflops);  // may multiply, as long as nothing communicates
    if (o.trace_steps > 0) keep_changes(device.context->memory);
    files->join();
    files.reset();  // first messages have the deadline of messages
    if (!made.mesh) made = make_mesh(o, process, device);
    meter = std::move(made.meter), mesh = std::move(made.mesh);
    files.emplace(process);
    CoreOptions of_core = core_options(o, device, *mesh);
    of_core.threads = cpu_threads(o.threads, process);
    of_core.zero.host_threads = int(of_core.threads);
    check_host_memory(o, config, device, mesh->world(), process);
    core = std::make_unique<TrainState>(config, of_core, device, *mesh, meter.get());
    reserve_product_workspace(core->compute);
    // A resumed run keeps it, whatever the default is then.
    if (core->plan && o.zero >= 2 && !o.accumulate_locally && !core->zero.options.accumulate_locally)
        options.kept_flags["accumulate-locally"] = "off";
    batches = std::make_unique<Batches>(sources, mesh->place(Axis::dp), mesh->place(Axis::cp), mesh->counts_samples(),
                                        o.batch, core->options.micro_batches, device, core->compute, core->whole_graphs,
                                        core->model.batches_held(), int(o.data_threads));
    batches->set_order(core->model.micro_batch_order(core->program));
    check_reports();
    if (ResumePoint loaded; from) {
        loaded = *from;
        start.resumed = load_checkpoint(loaded, o, *sources.train, process, *core, health);
        start.folder = loaded.folder;
    } else if (o.init_from.empty())
        initialise_weights(core->table, o.seed, core->compute, core->zero, mup_table(o.mup, config, core->table));
    else
        load_weights(model, core->table, device, core->compute, core->zero, o.resize_vocab ? &o.seed : nullptr);
    core->compute.synchronize();
    begin_at(from, note);
    // Nothing refuses this start any more: the folder is its own.
    health.take_folder(o);
    if (from && process.is_root() && !o.out.empty()) abandon_newer(o.out, start.resumed.step, start.run_id);
    fault_point("resume.done");
    open_log(note);
    open_reports();
    files->join();
}

// Puts the run at its place in its data and its schedule.
void Trainer::begin_at(const std::optional<ResumePoint>& from, std::string& note) {
    const TrainOptions& o = options;
    const Manifest& m = start.resumed;
    if (const int nodes = mesh->grid().nodes(Axis::data); from && is_two_level(mesh->algorithm()) && m.nodes != nodes)
        note += format(
            "%s--collectives %s on %d node%s, was on %ld: sums are rounded in another order, so bits differ "
            "from here on",
            note.empty() ? "" : "\n", name_of(mesh->algorithm()), nodes, nodes == 1 ? "" : "s", m.nodes);
    shard_sums = std::make_unique<ShardSums>(sources.files());
    if (!o.allow_data_change)
        if (const std::string changed = shard_sums->compare(m.shards, mesh->world(), process); !changed.empty())
            refuse("%s\n  --allow-data-change resumes with them, from the same number of tokens", changed.c_str());
    if (process.is_root() && !o.out.empty()) start_sums(*shard_sums, sources.paths, o.allow_data_change);
    if (from) lr = resumed_schedule(options, m);
    start.rolled_back = from && from->rolls_back;
    batches->start_from({.step = m.step, .samples = m.samples, .tokens = m.tokens});
    const DataFingerprint resumed = from ? DataFingerprint::from_json(m.data) : DataFingerprint{};
    sources.train->set_plan(batches->mix_plan(from ? &resumed : nullptr));
    require_request(
        !o.cuda_graphs || !sources.train->has_targets(),
        "--cuda-graphs on: these shards mark their targets, so each update has another gradient scale, which a graph "
        "keeps\n  nearest: --cuda-graphs off");
    validations = m.validations;
    reports_due = m.reports_due;
}

void Trainer::open_log(const std::string& note) {
    const TrainOptions& o = options;
    const Manifest& m = start.resumed;
    health.status().set_steps(o.steps);
    health.status().set_rollbacks(int64_t(m.rollbacks.size()));
    if (!o.out.empty()) health.expect_save(core->table.size() * bytes_per_parameter(o).saved() / mesh->world().size);
    log = std::make_unique<Log>(run_facts(o, *core, peak, process, reports_due), o.out, start.first_step(),
                                &health.files());
    if (start.rolled_back) tell_of_rollback(*log, m.rollbacks.back(), m.rollbacks.size(), o.max_rollbacks);
    const Grid& grid = mesh->grid();
    if (grid.ranks() > grid.size(Axis::dp)) layout = layout_text(grid, process.all_gather_text(host_name()));
    if (process.is_root() && !o.out.empty()) {
        log->line("command  " + command_text(o.arguments));
        log->describe("config.toml", run_config(*this));
        if (!gemm_choices.empty()) log->describe("gemm_choices.txt", gemm_choices);
    }
    announce(*this, note);
}

// Before anything is loaded: whether these ranks can make the checks and evaluations that are asked for.
void Trainer::check_reports() {
    const TrainOptions& o = options;
    require_request(o.check_replicas == 0 || has_replicas(*mesh, core->zero),
                    "--check-replicas %ld: with %d ranks and --zero %ld no parameter is held twice, so there is "
                    "nothing to compare\n"
                    "  leave it out, or hold copies: more ranks, --zero 0 to 2, or --shard-size",
                    o.check_replicas, mesh->world().size, o.zero);
    require_request(o.trace_steps == 0 || !o.out.empty(),
                    "--trace-steps %ld writes trace.json into --out, which is empty", o.trace_steps);
    make_evaluation(*this);
    check_snapshot_memory(o, process, core->zero);
}

// Files and numbers beside the steps.
void Trainer::open_reports() {
    const TrainOptions& o = options;
    const Manifest& m = start.resumed;
    if (o.recheck_every > 0) recheck = std::make_unique<Recheck>(process, *core);
    trace = make_trace(o, process, *core, *meter, start.first_step());
    open_saves(*this);
    metrics = std::make_unique<Metrics>(process, *core, *meter, *batches, lr, health, *log, trace.get(),
                                        o.out + "/trace.json", o.steps, o.log_every);
    if (o.stats_every > 0) {
        statistics = std::make_unique<Statistics>(*core);
        metrics->keep_statistics(*statistics, o.stats_every);
    }
    if (core->plan && o.pp_tasks > 0)
        metrics->write_tasks(o.out + format("/pipeline_tasks.%d.jsonl", mesh->world().rank), o.pp_tasks);
    if (!o.cuda_graphs) core->model.keep_times();  // inside a graph nothing is timed
    metrics->restore(m.updates, m.data_hash, m.step, core->zero.optimizer.loss_scale());
}

// ---- what the loop does to all parts --------------------------------------------------------------------------------

bool Trainer::validates(int64_t step) const {
    return step == options.steps || (options.val_every > 0 && step % options.val_every == 0);
}

void begin_training(Trainer& t) {
    keep_request(t);
    if (t.mlperf) t.mlperf->run_start(mlperf_settings(t));
    const int64_t step = t.start.resumed.step;
    if (step == 0 ? t.options.val_every > 0 : t.reports_due && t.validates(step)) validate(t, step);
    if (t.reports_due && t.evaluates(step)) evaluate(t, step);
}

bool await_data(Trainer& t, int64_t step) {
    const int64_t end = t.batches->samples_before(step + 1);
    if (end <= t.written) return true;
    // Each rank reads the folder for itself; rank 0's clock counts.
    struct Seen {
        int64_t samples;
        double seconds;
    };
    const double start = monotonic_clock();
    for (bool first = true;; first = false) {
        t.written = INT64_MAX;
        const std::vector<Seen> ranks =
            t.process.all_gather(Seen{t.sources.train->written(end), monotonic_clock() - start});
        for (const Seen& rank : ranks) t.written = std::min(t.written, rank.samples);
        if (end <= t.written) {
            if (!first) t.metrics->exclude_from_step_time();
            return true;
        }
        if (first) {
            t.metrics->flush();
            t.log->line(format("waiting  for data: step %ld reads %ld samples, %ld are written", step, end, t.written));
        }
        t.health.agree_on_stop();
        if (!t.health.end() && ranks[0].seconds > double(t.options.data_wait))
            t.health.end_saved(
                kExitError,
                format("%s: nothing came after the first %ld samples for %ld s, and dataset.json says that it is "
                       "still being written\n"
                       "  give the command of prepare.py again to continue it, or raise --data-wait",
                       t.options.data.c_str(), t.written, t.options.data_wait));
        if (t.health.end()) {
            const int64_t last = step - 1;
            if (last > t.start.resumed.step && !t.saves(last)) save_last(t, last, false);
            return false;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
}

void begin_step(Trainer& t, int64_t step) {
    nvtx_push(format("step %ld", step));
    t.process.set_step(step);
    t.step = step;
    for (WireCheck* check : t.mesh->wire_checks()) check->begin_step();
    if (t.rechecks(step)) {
        t.metrics->flush();
        t.recheck->compute_twice(t.goal(),
                                 [&](int64_t micro_batch) { return t.batches->rehearsal(step, micro_batch); });
        t.metrics->exclude_from_step_time();
        t.recheck->begin();
    }
    t.metrics->begin(step);
    fault_point("step");
    const FaultAction action = fault_point("gradient");
    if (action != FaultAction::nan && action != FaultAction::inf) return;
    // Gradients are added to what stands there, so that this element stays bad.
    static const uint32_t kNan = 0x7fc00000, kInf = 0x7f800000;
    Zero& zero = t.core->zero;
    const int last = int(zero.ownership.units().size()) - 1;
    const int64_t e = size_of(zero.grads.dtype(last));
    const char* value = reinterpret_cast<const char*>(action == FaultAction::nan ? &kNan : &kInf);
    t.core->compute.copy(zero.grads.gradients(last), value + (4 - e), e);
}

static void check_replicas(Trainer& t, int64_t step) {
    Stream& stream = t.core->compute;
    Zero& zero = t.core->zero;
    for (const auto& [point, part] :
         {std::pair("weights", StatePart::model), {"masters", StatePart::master}, {"moments", StatePart::m}})
        if (const FaultAction action = fault_point(point); action == FaultAction::flip || action == FaultAction::nan)
            damage_state(stream, zero, part, action == FaultAction::nan);
    const int64_t every = t.options.check_replicas;
    if (every == 0 || (step % every != 0 && !t.saves(step))) return;
    const std::string difference = compare_replicas(t.process, *t.mesh, t.core->device, stream, zero, t.core->table);
    if (!difference.empty()) t.health.end_with(kExitReplicas, format("step %ld: ", step) + difference);
}

// Checks the messages since the last comparison. A step that is saved is compared before.
static void check_wire(Trainer& t, int64_t step) {
    const int64_t every = t.options.check_wire;
    if (every == 0 || (step % every != 0 && step != t.options.steps && !t.saves(step))) return;
    t.core->compute.synchronize();
    const std::string difference = wire_difference(t.process, t.core->compute, t.mesh->wire_checks());
    if (difference.empty()) return;
    const std::string since = every == 1 ? "" : format("in the last %ld steps at most, ", every);
    t.health.end_with(kExitReplicas, format("step %ld: ", step) + since + difference);
}

// A micro-batch that is recorded again would be worth knowing; of the pieces, that they are replayed.
static void tell_of_graphs(Trainer& t) {
    const Model& model = t.core->model;
    const int64_t lines =
        t.core->whole_graphs ? model.graphs_recorded() : std::min<int64_t>(model.graphs_replayed(), 1);
    if (lines == t.graph_lines) return;
    t.graph_lines = lines;
    t.log->line(
        t.core->whole_graphs
            ? "graph    a micro-batch is one graph from here on"
            : "graph    each block's forward and backward pass and the head are graphs of their own from here on");
}

void end_step(Trainer& t, int64_t step) {
    tell_of_graphs(t);
    if (t.rechecks(step))
        if (const std::string difference = t.recheck->compare(); !difference.empty())
            t.health.end_with(kExitReplicas, format("step %ld: ", step) + difference);
    t.metrics->end(step);
    report_damage(*t.shard_sums, t.health);
    check_replicas(t, step);
    check_wire(t, step);
    nvtx_pop();
    if (t.saver) t.saver->report();
    if (t.snapshots) t.snapshots->settle();
}

}  // namespace rz
