#include "llama/train/run.h"

#include <omp.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_tuning.h"
#include "llama/base/atomic_file.h"
#include "llama/report/device_peak.h"
#include "llama/checkpoint/export_weights.h"
#include "llama/checkpoint/finite.h"
#include "llama/model/generate.h"
#include "llama/model/hf.h"
#include "llama/report/rank_report.h"
#include "llama/checkpoint/replicas.h"
#include "llama/base/version.h"
#include "llama/model/weights.h"

namespace rz {

// ---- building -------------------------------------------------------------------------------------------------------

DataPaths find_data(const Options& o) {
    DataPaths paths;
    if (!o.data.empty()) {
        require(o.train_data.empty() && o.val_data.empty(),
                "--data names a folder with both: leave --train-data and --val-data out");
        const Dataset d = load_dataset(o.data);
        paths = {d.train, d.val, d.tokenizer, d.vocab, d.val_bytes_per_token};
    }
    if (!o.train_data.empty()) paths.train = expand_paths(o.train_data);
    if (!o.val_data.empty()) paths.val = expand_paths(o.val_data);
    if (!o.tokenizer.empty()) paths.tokenizer = o.tokenizer;
    return paths;
}

static int64_t logits_bytes(const Options& o, Device device) {
    return (o.logits_mib > 0 ? o.logits_mib : device.is_cuda() ? 1024 : 32) << 20;
}

Run::~Run() = default;

Run::Run(const Options& o, Process& p, Health& health, const std::optional<ResumePoint>& from)
    : options(o),
      process(p),
      schedule{o.decay, o.lr, o.min_lr, o.warmup, o.cooldown, o.steps},
      health_(health),
      paths_(find_data(o)),
      config_(from ? resumed_config(o, *from, paths_.vocab) : model_config(o, paths_.vocab)),
      table_(config_),
      micro_batches_(rz::micro_batches(o, Grid(p.size(), grid_options(o)).size(Axis::dp))) {
    require(!paths_.train.empty(),
            "no training data: --data FOLDER or --train-data FILES is needed\n"
            "  python3 data_prep/prepare.py stdlib  makes a folder from this machine's Python source");
    check_ranks(o, process.size());
    choose_run_id();
    check_folder_is_shared();
    const ShardOptions shards{.vocab = config_.vocab, .raw16 = o.raw16};
    train_data_ = std::make_unique<DataLoader>(open_shards(paths_.train, shards), o.seq_len, o.seed, config_.vocab);
    if (!paths_.val.empty())
        val_data_ = std::make_unique<DataLoader>(open_shards(paths_.val, shards), o.seq_len, o.seed, config_.vocab,
                                                 DataOrder::kSequential);
    if (!paths_.tokenizer.empty() && o.sample_every > 0) tokenizer_ = Tokenizer::load(paths_.tokenizer);
    require(val_data_ || (o.sample_every == 0 && (!o.given.count("val-every") || o.val_every == 0)),
            "--%s: there are no validation data\n  give --val-data, or a --data folder that has some",
            o.sample_every > 0 ? "sample-every" : "val-every");
    require(o.sample_every == 0 || tokenizer_,
            "--sample-every needs a tokenizer: give --tokenizer or a --data folder with one");

    std::string note;
    device_ = process.choose_device(o.device, o.transport, &note);
    device_.make_current();
    const std::string tuning = set_gemm_tuning(device_, o.gemm_tune, o.gemm_cache);
    require(!gemm_tuning().measure || process.size() == 1 || !gemm_tuning().cache_file.empty(),
            "--gemm-tune on with %d ranks: they agree on algorithms through a file, and there is none\n"
            "  give --gemm-cache FILE, one that all ranks can write, or --gemm-tune off",
            process.size());
    compute_ = std::make_unique<Stream>(device_, "compute");
    drain_.stream = compute_.get();
    // OpenMP keeps the number per thread, and a CPU stream computes on its own.
    if (o.threads > 0 && !device_.is_cuda()) compute_->enqueue_host([n = int(o.threads)] { omp_set_num_threads(n); });
    mesh_ =
        std::make_unique<Mesh>(process, device_,
                               MeshOptions{.grid = grid_options(o),
                                           .transport = o.transport,
                                           .algorithm = o.collectives,
                                           .collectives = {.chunk_bytes = o.ring_chunk_kib << 10, .meter = &meter_}});
    zero = std::make_unique<Zero>(
        device_, *compute_, unit_layouts(table_), decay_segments(table_),
        ZeroOptions{.stage = int(o.zero),
                    .param_dtype = o.dtype,
                    .grad_dtype = o.gradient_dtype(),
                    .wire_dtype = o.gradient_wire_dtype(),
                    .master_dtype = o.master_dtype,
                    .adam_dtype = o.adam_dtype,
                    .rounding_seed = o.seed,
                    .prefetch = int(o.prefetch),
                    .overlap = !o.no_overlap,
                    .accumulate_locally = o.accumulate_locally && o.zero >= 2},
        AdamWOptions{float(o.beta1), float(o.beta2), float(o.eps), float(o.weight_decay), float(o.clip)}, *mesh_,
        &meter_);
    model = std::make_unique<Model>(config_, table_,
                                    StageOptions{.B = o.batch,
                                                 .T = o.seq_len,
                                                 .dtype = o.dtype,
                                                 .grad_dtype = o.gradient_dtype(),
                                                 .recompute = o.recompute,
                                                 .logits_bytes = logits_bytes(o, device_)},
                                    device_, *compute_, *zero, zero.get());
    program_ = model->training_program(micro_batches_);
    whole_graph_ = o.cuda_graphs && p.size() == 1 && o.zero <= 1;
    if (o.cuda_graphs) check_graphs();
    if (o.cuda_graphs) model->replay_graphs(whole_graph_ ? Model::Replay::micro_batches : Model::Replay::blocks);
    // end_step() waits for the step before, so with two steps' batches the host never waits inside a step.
    feeder_ = std::make_unique<BatchFeeder>(device_, *compute_, o.batch, o.seq_len, config_.vocab,
                                            /*ahead=*/std::min<int64_t>(2 * micro_batches_, 128) - 1,
                                            /*same_plan=*/whole_graph_);
    for (Probe& probe : probes_) probe.host = Buffer::host_for(device_, 24, MemKind::workspace, "step numbers");
    if (from)
        load_checkpoint(*from);
    else if (o.init_from.empty())
        initialise_weights(table_, o.seed, *compute_, *zero);
    else
        load_weights(resolve_model(o.init_from), table_, device_, *compute_, *zero);
    compute_->synchronize();

    const RunFacts facts{.steps = o.steps,
                         .flops_per_token = training_flops_per_token(config_, o.seq_len),
                         .title = summary(config_),
                         .peak_flops = peak_flops(device_) * process.size(),
                         .quiet = !process.is_root()};
    health_.status().set_steps(o.steps);
    health_.status().set_rollbacks(int64_t(resumed_.rollbacks.size()));
    if (!o.out.empty()) health_.expect_save(table_.size() * bytes_per_parameter(o).saved() / process.size());
    log_ = std::make_unique<Log>(facts, o.out, first_step_);
    if (from && from->rolls_back) tell_of_rollback();
    announce(table_, note + (note.empty() || tuning.empty() ? "" : "\n") + tuning);
    require(o.check_replicas == 0 || has_replicas(*mesh_, *zero),
            "--check-replicas %lld: with %d ranks and --zero %lld no parameter is held twice, so there is "
            "nothing to compare\n"
            "  leave it out, or hold copies: more ranks, --zero 0 to 2, or --shard-size",
            (long long)o.check_replicas, process.size(), (long long)o.zero);
    require(o.trace_steps == 0 || !o.out.empty(), "--trace-steps %lld writes trace.json into --out, which is not given",
            (long long)o.trace_steps);
    if (o.trace_steps > 0 && first_step_ <= o.steps) {
        const int64_t first = std::min(first_step_ + 2, o.steps);
        trace_ =
            std::make_unique<Trace>(process, *compute_, meter_, first, std::min(o.trace_steps, o.steps - first + 1));
    }
    if (!o.out.empty())
        writer_ = std::make_unique<CheckpointWriter>(process, device_, *compute_, *zero, table_, config_,
                                                     SaveOptions{.run_folder = o.out,
                                                                 .keep = o.keep,
                                                                 .keep_every = o.keep_every,
                                                                 .background = !o.no_background_save,
                                                                 .tokenizer_from = paths_.tokenizer,
                                                                 .timeout_s = o.timeout});
    last_done_ = compute_->record(/*timing=*/true);
    bytes_before_ = mesh_->bytes_sent();
}

void Run::announce(const ParamTable&, const std::string& note) {
    const Options& o = options;
    if (!note.empty()) log_->line(note);
    log_->line("model    " + summary(config_));
    log_->line(format("device   %s, %d rank%s, %s GEMM, %s weights", device_.name().c_str(), mesh_->world().size,
                      mesh_->world().size == 1 ? "" : "s", gemm_library(device_.kind), name_of(o.dtype)));
    if (mesh_->world().size > 1)
        log_->line(format("sharing  ZeRO-%lld over %d ranks x %d, %s collectives over %s", (long long)o.zero,
                          mesh_->shard().size(), mesh_->replicate().size(), mesh_->data().name(),
                          mesh_->data().transport().name()));
    log_->line(format("data     %lld training tokens in %zu shard%s, %lld validation tokens",
                      (long long)train_data_->tokens(), paths_.train.size(), paths_.train.size() == 1 ? "" : "s",
                      val_data_ ? (long long)val_data_->tokens() : 0ll));
    log_->line(format("batch    %lld sequences x %lld tokens x %d ranks x %lld micro-batches = %lld tokens per step",
                      (long long)o.batch, (long long)o.seq_len, mesh_->place(Axis::dp).size, (long long)micro_batches_,
                      (long long)tokens_per_step()));
    log_->line(format(
        "run      %lld steps, lr %g to %g (%s), warm-up %lld; FLOP/s%s count 6 per matrix parameter and 6 L H D T of "
        "causal attention per token",
        (long long)o.steps, o.lr, o.min_lr, name_of(o.decay), (long long)o.warmup,
        peak_flops(device_) > 0 ? format(" and MFU (of %.0f TFLOP/s)", peak_flops(device_) / 1e12).c_str() : ""));
    log_->line(MemoryLedger::get().table(device_.kind));
}

// ---- a step ---------------------------------------------------------------------------------------------------------

int64_t Run::tokens_per_step() const { return options.seq_len * samples_per_step(); }

DeviceBatch Run::batch(int64_t step, int64_t micro_batch) {
    const Place dp = mesh_->place(Axis::dp);
    const int64_t position = samples_before(step) + (micro_batch * dp.size + dp.rank) * options.batch;
    const DeviceBatch batch = feeder_->next(*train_data_, position);
    if (mesh_->is_first_reader()) data_hash_ += feeder_->data_hash();
    return batch;
}

void Run::check_graphs() const {
    require(device_.is_cuda(),
            "--cuda-graphs on: this run is on the CPU, which has none\n  nearest: --cuda-graphs off");
    require(options.trace_steps == 0,
            "--cuda-graphs on with --trace-steps: ops inside a graph can't be timed one by one");
}

void Run::train(int64_t step) {
    model->run(program_, {.pass = Pass::train, .grad_scale = grad_scale()}, [&](int64_t m) { return batch(step, m); });
    // A micro-batch that is recorded again would be worth knowing; of the pieces, that they are replayed.
    const int64_t lines = whole_graph_ ? model->graphs_recorded() : std::min<int64_t>(model->graphs_replayed(), 1);
    if (lines == graph_lines_) return;
    graph_lines_ = lines;
    log_->line(
        whole_graph_
            ? "graph    a micro-batch is one graph from here on"
            : "graph    each block's forward and backward pass and the head are graphs of their own from here on");
}

bool Run::validates(int64_t step) const {
    return step == options.steps || (options.val_every > 0 && step % options.val_every == 0);
}

void Run::end_step(int64_t step) {
    const std::string trace_file = options.out + "/trace.json";
    if (trace_ && trace_->end_step(step, trace_file))
        log_->line("trace    " + trace_file + ": open it in ui.perfetto.dev");
    Probe& probe = probes_[size_t(step % 2)];
    probe.step = step;
    probe.data_hash = std::exchange(data_hash_, 0);
    compute_->copy(probe.host.data(), model->loss_sum(), 8);
    compute_->copy(probe.host.bytes_at(8), zero->grad_norm(), 4);
    compute_->copy(probe.host.bytes_at(16), zero->updates(), 8);
    probe.done = compute_->record(/*timing=*/true);
    probe.bytes_sent = mesh_->bytes_sent() - bytes_before_;
    bytes_before_ += probe.bytes_sent;
    model->reset_loss();
    probe.comm = meter_.cut();
    report(probes_[size_t((step + 1) % 2)]);  // the step before: the host runs a step ahead of the device
    last_step_ = step;
    check_replicas(step);
    report_saves();
}

void Run::report(Probe& probe) {
    if (probe.step < 0) return;
    probe.done.synchronize();
    double loss_sum = 0;
    float norm = 0;
    std::memcpy(&loss_sum, probe.host.data(), 8);
    std::memcpy(&norm, probe.host.bytes_at(8), 4);
    std::memcpy(&updates_, probe.host.bytes_at(16), 8);
    StepReport r{.step = probe.step,
                 .loss = 0,
                 .grad_norm = norm,
                 .learning_rate = schedule.at(probe.step),
                 .seconds = probe.done.seconds_since(last_done_),
                 .tokens = tokens_per_step(),
                 .tokens_so_far = resumed_.tokens + tokens_per_step() * (probe.step - resumed_.step),
                 .data_hash = 0};
    if (mesh_->world().size > 1) {
        const CommTotals comm = meter_.take_complete(std::move(probe.comm));
        r.comm_seconds = comm.total_s;
        r.exposed_seconds = comm.exposed_s;
        r.bytes_sent = probe.bytes_sent;
    }
    const Judgement judgement = judge(probe, loss_sum, norm, r.seconds - r.exposed_seconds, r.seconds);
    r.loss = judgement.loss;
    r.data_hash = consumed_ += judgement.data_hash;
    r.note = judgement.note;
    r.json = judgement.json;
    ++steps_done_;
    bytes_in_steps_ += probe.bytes_sent;
    last_done_ = probe.done;
    log_->step(r, probe.step % options.log_every == 0 || probe.step == options.steps || probe.step == 1);
    probe.step = -1;
}

void Run::validate(int64_t step) {
    if (!val_data_) return;
    for (Probe& probe : probes_) report(probe);
    const auto start = std::chrono::steady_clock::now();
    const Options& o = options;
    const int64_t sequences = std::min(std::max<int64_t>(1, o.val_tokens / o.seq_len), val_data_->samples());
    const Place dp = mesh_->place(Axis::dp);
    for (int64_t first = 0; first < sequences; first += o.batch * dp.size)
        model->evaluate(feeder_->next(*val_data_, first + dp.rank * o.batch, sequences));
    Probe& probe = probes_[0];
    compute_->copy(probe.host.data(), model->loss_sum(), 8);
    model->reset_loss();
    compute_->synchronize();
    double loss_sum = 0;
    std::memcpy(&loss_sum, probe.host.data(), 8);
    const double loss = process.sum(loss_sum) / double(sequences * o.seq_len);
    const double bytes = paths_.val_bytes_per_token;
    log_->validation({.step = step,
                      .loss = loss,
                      .bits_per_byte = bytes > 0 ? loss / M_LN2 / bytes : -1,
                      .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()});
    if (o.sample_every > 0 && validations_++ % o.sample_every == 0 && step > 0) print_sample(step);
    if (mesh_->world().size > 1) meter_.take();  // not part of a step
    bytes_before_ = mesh_->bytes_sent();
    last_done_ = compute_->record(/*timing=*/true);
}

// Every rank draws the same tokens: sharded parameters have to be gathered by all.
void Run::print_sample(int64_t step) {
    std::vector<int32_t> prompt = tokenizer_->encode(options.prompt);
    if (tokenizer_->bos_id() >= 0) prompt.insert(prompt.begin(), tokenizer_->bos_id());
    if (prompt.empty()) prompt = tokenizer_->encode("\n");
    Decoder decoder(config_, table_, zero->options().param_dtype, device_, *compute_, *zero,
                    int64_t(prompt.size()) + options.sample_tokens);
    std::vector<int32_t> tokens = prompt;
    generate(decoder, config_, prompt, options.sample_tokens, {.seed = options.seed + uint64_t(step)}, [&](int32_t t) {
        tokens.push_back(t);
        return true;
    });
    log_->line("--- sample\n" + tokenizer_->decode(tokens, /*skip_special=*/true) + "\n---");
}

int Run::finish() {
    for (Probe& probe : probes_) report(probe);
    bool last_save_good = true;
    if (writer_) {
        last_save_good = writer_->finish();
        report_saves();
    }
    health_.agree();
    if (!options.out.empty() && (!health_.end() || health_.end()->saves))
        if (const std::string bad = find_not_finite(process, device_, *compute_, *zero, table_); !bad.empty())
            health_.end_with(kExitNumbers, format("not finite behind step %lld: ", (long long)last_step_) + bad);
    if (health_.end() && health_.end()->undo_from > 0) plan_rollback();
    if (rollback_) return kExitNumbers;
    if (health_.end() && !(health_.end()->saves && last_step_ == options.steps)) return finish_early(last_save_good);
    if (!options.out.empty()) {
        const std::string folder = options.out + "/final";
        export_weights(folder, config_, table_, process, device_, *compute_, *zero, paths_.tokenizer);
        log_->line("saved    " + folder);
    }
    compute_->synchronize();
    const RankReport ranks = gather_rank_report(process, device_, steps_done_, bytes_in_steps_);
    log_->line(ranks.text);
    if (process.is_root() && !options.out.empty()) write_file_atomically(options.out + "/ranks.json", ranks.json);
    log_->finish();
    health_.status().finished(last_step_);
    return kExitSuccess;
}

}  // namespace rz
