#include "llama/train/plan_memory.h"

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "kernels/adamw.h"
#include "kernels/attention/attention_kept.h"
#include "kernels/elementwise.h"
#include "kernels/gemm/gemm.h"
#include "kernels/global_norm.h"
#include "kernels/runtime/context.h"
#include "kernels/runtime/host_streams.h"
#include "kernels/runtime/request.h"
#include "llama/checkpoint/checkpoint.h"
#include "llama/checkpoint/export_weights.h"
#include "llama/checkpoint/finite.h"
#include "llama/data/batch_feeder.h"
#include "llama/model/weights.h"
#include "llama/train/metrics.h"
#include "llama/train/sample.h"
#include "llama/train/snapshots.h"
#include "llama/train/trainer.h"

namespace rz {

namespace {

// A run between its start and its end, as Trainer and its loop have it.
class DryRun {
   public:
    DryRun(const TrainOptions& o, const ModelConfig& config, const PlannedJob& job, int rank, PlannedPeers* peers)
        : o_(o), job_(job), device_{DeviceKind::planned, 0, &context_} {
        context_.one_memory = job.kind == DeviceKind::cpu;
        context_.planned.capability = job.capability;
        context_.planned.cost = [this](const OpCall& op, const Stream& stream) { return cost(op, stream); };
        MeshOptions mesh_how = mesh_options(o);
        if (mesh_how.ranks_per_node == 0) mesh_how.ranks_per_node = job.ranks_per_node;
        mesh_how.one_lane = job.kind == DeviceKind::cuda && over_host_memory(o.transport);
        if (mesh_how.collectives.chunk_bytes == 0 && job.kind == DeviceKind::cuda && !over_host_memory(o.transport))
            mesh_how.collectives.largest_chunk_bytes = kNcclChunkBytes;
        check_shared(mesh_how);
        check_reserved_sms(mesh_how.reserved_sms, job.multiprocessors, job.kind == DeviceKind::cpu,
                           job.ranks > 1 && !over_host_memory(o.transport), on_nodes(mesh_how), mesh_how.algorithms);
        mesh_ = std::make_unique<Mesh>(device_, rank, job.ranks, job.network, mesh_how, peers);
        CoreOptions how = core_options(o, Device{job.kind}, *mesh_);
        how.graphs = false;
        core_ = std::make_unique<TrainState>(config, how, device_, *mesh_);
        feeder_ = std::make_unique<BatchFeeder>(device_, core_->compute, o.batch, o.seq_len, config.vocab,
                                                Batches::ahead(how.micro_batches), /*same_plan=*/false,
                                                core_->model.batches_held(), DocumentMask{.boundary = o.doc_boundary},
                                                mesh_->place(Axis::cp), int(o.data_threads));
        if (job.resumes) {
            const Buffer stored = host_for(kLoadPiece * 4), converted = host_for(kLoadPiece * 4);
        } else if (!o.init_from.empty()) {
            host_for(kWeightsPiece * 4);
        }
        if (o.recheck_every > 0 && job.kind == DeviceKind::cuda) recheck_ = host_for(kRecheckPiece);
        if (!o.out.empty() && o.background_save && o.save_every > 0) copy_ = host_for(copy_of_state_bytes(core_->zero));
        if (o.snapshot_every > 0) {
            // On several hosts with as much of another rank, which has as many slices.
            const int64_t own = copy_of_state_bytes(core_->zero);
            const bool several = job.ranks_per_node > 0 && job.ranks > job.ranks_per_node;
            snapshots_[0] = host_for(own);
            snapshots_[1] = host_for(snapshot_bytes(several ? 2 * own : own));
            if (several) snapshots_[2] = host_for(arrival_bytes(own));
        }
        numbers_ = Metrics::make_numbers(device_);
        if (o.stats_every > 0) statistics_.emplace(*core_);
        if (o.eval_every > 0) evaluation_.emplace(device_, o.batch, o.seq_len / mesh_->place(Axis::cp).size);
        tokens_ = checked_mul(o.batch, o.seq_len, "tokens of a batch") / mesh_->place(Axis::cp).size;
        ids_ = Buffer(Device{DeviceKind::planned}, 4 * (tokens_ + 1), MemKind::data, "token ids");
    }

    PlannedRank run(int rank) {
        PlannedRank found{.rank = rank};
        const int64_t M = core_->options.micro_batches;
        // Without a pipeline micro-batches follow each other in the same way: a few tell of all.
        constexpr int64_t kFew = 4;
        const bool few = !core_->plan && M > kFew;
        const RankProgram most = few ? core_->model.training_program(kFew) : core_->program;
        Step first = step(most, 1);
        if (takes_too_much()) {
            found.memory = memory();
            return found;
        }
        Step all = step(most), watched = o_.stats_every > 0 ? step(most, o_.stats_every) : Step{};
        if (few) {
            const RankProgram less = core_->model.training_program(kFew - 1);
            step(less);
            const Step of_less = step(less);
            const Step watched_less = o_.stats_every > 0 ? step(less, o_.stats_every) : Step{};
            const int64_t each = o_.stats_every == 1 ? watched.sent - watched_less.sent : all.sent - of_less.sent;
            first.sent += (M - kFew) * each;
            all.extend(of_less, M - kFew);
            watched.extend(watched_less, M - kFew);
        }
        found.first_sent = first.sent;
        found.sent = all.sent, found.step = all.time;
        found.watched_sent = watched.sent, found.watched_step = watched.time;
        for (const auto& [name, op] : all.ops) found.ops.push_back(op);
        core_->model.evaluate(batch());
        if (job_.prompt > 0) sample();
        if (job_.finishes) finish();
        found.memory = memory();
        found.products = std::move(products_);
        found.attention = attention_;
        found.memory.from_host = all.bus.from, found.memory.to_host = all.bus.to, found.memory.in_host = all.bus.in;
        return found;
    }

   private:
    Grid on_nodes(const MeshOptions& how) const {
        GridOptions grid = how.grid;
        for (int r = 0; r < job_.ranks && how.ranks_per_node > 0; ++r) grid.nodes.push_back(r / how.ranks_per_node);
        return Grid(job_.ranks, grid);
    }

    // Refuses what the run would refuse when its ranks map each other's memory.
    void check_shared(const MeshOptions& how) const {
        const auto maps = [](Algorithm a) { return a == Algorithm::symmetric || a == Algorithm::hier_symmetric; };
        const Algorithm data = how.algorithms.data.value_or(Algorithm::ring), tp = how.algorithms.tp;
        if (!maps(data) && !maps(tp)) return;
        const Grid of = on_nodes(how);
        for (const auto& [a, axis] : {std::pair(data, Axis::data), {tp, Axis::tp}})
            require_request(
                a != Algorithm::symmetric || of.nodes(axis) == 1,
                "--collectives symmetric: the ranks of the %s axis are on several hosts and can't map each other's "
                "memory\n  nearest: --collectives hier-symmetric",
                name_of(axis));
    }

    struct HostBytes {
        int64_t from = 0, to = 0, in = 0;
    };
    struct Step {
        int64_t sent = 0;
        Ticks time = 0;
        HostBytes bus;
        std::map<std::string, PlannedOp> ops;
        // By `more` micro-batches; `less` is a step with one less.
        void extend(const Step& less, int64_t more) {
            sent += more * (sent - less.sent);
            time += more * (time - less.time);
            bus.from += more * (bus.from - less.bus.from);
            bus.to += more * (bus.to - less.bus.to);
            for (auto& [name, op] : ops) {
                const auto before = less.ops.find(name);
                if (before == less.ops.end()) continue;
                op.calls += more * (op.calls - before->second.calls);
                op.time += more * (op.time - before->second.time);
            }
        }
    };
    DeviceBatch batch() const {
        const int32_t* id = ids_.as<int32_t>();
        const bool positions = core_->context || o_.doc_boundary != DocBoundary::none;
        return {o_.batch,
                tokens_ / o_.batch,
                id,
                id,
                id,
                id,
                id,
                std::min(tokens_, core_->config.vocab),
                positions ? id : nullptr};
    }

    // As train_llama.cu has it; of a batch that nobody reads. `number`: for --stats-every, 0: a step without.
    Step step(const RankProgram& program, int64_t number = 0) {
        const int64_t sent = mesh_->bytes_sent();
        const Ticks begin = core_->compute.clock();
        ops_.clear();
        bus_ = {};
        PassArgs goal{.pass = Pass::train, .grad_scale = 1};
        const bool watched = statistics_ && number > 0 && number % o_.stats_every == 0;
        if (watched) statistics_->begin(), goal.watch = statistics_->watch();
        core_->model.run(program, goal, [&](int64_t) { return batch(); });
        core_->zero.optimizer.gradient_norm();
        core_->zero.optimizer.update(0, 1);
        if (watched) statistics_->end(number);
        Step done{mesh_->bytes_sent() - sent, core_->compute.clock() - begin, bus_, {}};
        for (const auto& [key, op] : ops_) {  // a label may have several addresses
            PlannedOp& total = done.ops[op.name];
            total.name = op.name;
            total.calls += op.calls, total.time += op.time;
        }
        return done;
    }

    // Ranks of a pipeline agree: each waits for the others' messages.
    bool takes_too_much() {
        if (job_.most_bytes == 0) return false;
        int64_t most = context_.memory.peak(DeviceKind::planned);
        if (PlannedPeers* peers = mesh_->planned_peers())
            for (const std::vector<int64_t>& one : peers->gather(mesh_->world().rank, {most}))
                most = std::max(most, one[0]);
        return most > job_.most_bytes;
    }

    // The prompt in one piece, then a token at a time: the third takes nothing that the second does not.
    void sample() {
        SampleDecoder sample(*core_, job_.prompt + o_.sample_tokens);
        Decoder& decoder = sample.decoder();
        decoder.append(std::vector<int32_t>(size_t(std::min(job_.prompt, decoder.max_positions())), 0));
        if (decoder.position() < decoder.max_positions()) decoder.append({0});
    }

    void finish() {
        const int64_t e = size_of(core_->zero.options.param_dtype);
        host_for(kFinitePiece * e);
        if (!o_.out.empty()) host_for(kExportPiece * e);
    }

    Buffer host_for(int64_t bytes) { return Buffer::host_for(device_, bytes, MemKind::workspace, "planned"); }

    PlannedMemory memory() const {
        PlannedMemory memory;
        memory.sent = step_traffic(*core_);
        const MemoryLedger& ledger = context_.memory;
        for (int k = 0; k < int(MemKind::count_); ++k)
            memory.peak[size_t(k)] = ledger.peak(DeviceKind::planned, MemKind(k)),
            memory.host_peak[size_t(k)] = ledger.peak(DeviceKind::cpu, MemKind(k));
        memory.total = ledger.peak(DeviceKind::planned);
        for (const Buffer& part : snapshots_) memory.snapshots += part.bytes();
        memory.host = ledger.peak(DeviceKind::cpu);
        return memory;
    }

    Ticks cost(const OpCall& op, const Stream& stream) {
        if (job_.gemm_workspace > 0 && op.as<Gemm>() && multiplies_.insert(&stream).second)
            workspaces_.emplace_back(device_, job_.gemm_workspace, MemKind::workspace, "cuBLASLt workspace");
        count_bus(op, stream);
        products_.add(op);
        if (const AttentionBackward* a = op.as<AttentionBackward>(); a && attention_.empty())
            attention_ = attention_products(a->shape, job_.capability, a->kept_bytes);
        if (!job_.cost) return 0;
        const Ticks time = job_.cost(op, stream);
        if (core_ && &stream == &core_->compute) {
            PlannedOp& total = ops_[op.label ? static_cast<const void*>(op.label) : op.type];
            if (total.calls++ == 0) total.name = op.name();
            total.time += time;
        }
        return time;
    }

    // Counts what offload moves: its streams' copies, and what a kernel reads and writes in the host's memory.
    void count_bus(const OpCall& op, const Stream& stream) {
        if (!op.type && stream.name() == kFromHostStream) bus_.from += op.bytes;
        if (!op.type && stream.name() == kToHostStream) bus_.to += op.bytes;
        if (const SumSquares* s = op.as<SumSquares>(); s && s->on_host) bus_.from += s->n * size_of(s->dtype);
        if (const Ema* e = op.as<Ema>(); e && stream.name() == kHostComputeStream)
            bus_.in += 12 * e->n;
        else if (e && e->on_host)  // the masters are there, too, or are the parameters
            bus_.from += e->n * (o_.master_dtype != o_.dtype || o_.offload_params ? 8 : 4), bus_.to += 4 * e->n;
        const AdamW* a = op.as<AdamW>();
        const bool by_host = a && stream.name() == kHostComputeStream;
        if (!a || !(by_host || a->on_host)) return;
        const bool masters = a->master_dtype != a->param_dtype;
        const int64_t state = 2 * size_of(a->adam_dtype) + (masters ? size_of(a->master_dtype) : 0);
        const int64_t grad = size_of(a->grad_dtype), param = size_of(a->param_dtype);
        if (by_host) {
            bus_.in += a->n * (2 * state + grad + (masters ? 1 : 2) * param);
            return;
        }
        const int64_t moved = o_.offload_params ? param : 0;
        bus_.from += a->n * (state + (masters ? 0 : moved) + (o_.offload_grads ? grad : 0));
        bus_.to += a->n * (state + moved);
    }

    const TrainOptions& o_;
    const PlannedJob& job_;
    HostBytes bus_;  // of this step
    ProductShapes products_;
    std::string attention_;
    RankContext context_;
    Device device_;
    std::set<const Stream*> multiplies_;
    std::map<const void*, PlannedOp> ops_;  // of this step, by label or type
    std::vector<Buffer> workspaces_;
    std::unique_ptr<Mesh> mesh_;
    std::unique_ptr<TrainState> core_;
    std::unique_ptr<BatchFeeder> feeder_;
    Buffer copy_, snapshots_[3], ids_, recheck_;
    Metrics::Numbers numbers_;
    std::optional<Scorer::Buffers> evaluation_;
    std::optional<Statistics> statistics_;
    int64_t tokens_ = 0;
};

}  // namespace

std::vector<PlannedRank> plan_ranks(const TrainOptions& o, const ModelConfig& config, const PlannedJob& job, int rank) {
    const Grid grid(job.ranks, grid_options(o));
    const std::vector<int> line = grid.members(job.alone ? Axis::pp : Axis::model, rank);
    std::vector<PlannedRank> found(line.size());
    if (line.size() == 1) {
        found[0] = DryRun(o, config, job, rank, nullptr).run(rank);
        return found;
    }
    // For each rank that holds the model, the one that is planned for it: their messages come once for each.
    std::vector<int> planned;
    for (const int member : grid.members(Axis::model, rank))
        planned.push_back(job.alone ? line[size_t(grid.place(Axis::pp, member).rank)] : member);
    PlannedPeers peers(planned);
    std::vector<std::thread> threads;
    std::mutex mutex;
    std::exception_ptr first;
    for (size_t i = 0; i < line.size(); ++i)
        threads.emplace_back([&, i] {
            try {
                found[i] = DryRun(o, config, job, line[i], &peers).run(line[i]);
            } catch (const std::exception& error) {
                {
                    std::lock_guard lock(mutex);
                    if (!first) first = std::current_exception();
                }
                peers.fail(error.what());
            }
        });
    for (std::thread& t : threads) t.join();
    if (first) std::rethrow_exception(first);
    return found;
}

int64_t most_prompt_tokens(const TrainOptions& o) {
    return draws_samples(o) ? int64_t(o.prompt.size()) + 2 : 0;  // and what a tokenizer puts around a text
}

std::string host_copies_text(const PlannedMemory& m) {
    if (m.from_host == 0 && m.to_host == 0) return "";
    std::string text = format("from the host %s a step, to it %s; predictions of what that alone takes:\n",
                              human_bytes(m.from_host).c_str(), human_bytes(m.to_host).c_str());
    // GB/s in one direction; the two overlap.
    for (const auto& [name, rate] : {std::pair("PCIe 4 x16", 25), {"PCIe 5 x16", 52}, {"NVLink-C2C", 300}})
        text += format("  %-12s %4d GB/s %10.4g s a step\n", name, rate,
                       double(std::max(m.from_host, m.to_host)) / (1e9 * rate));
    if (m.in_host > 0)
        text += format("  and the host's AdamW, %s of its memory, %.4g s at 100 GB/s\n", human_bytes(m.in_host).c_str(),
                       double(m.in_host) / 1e11);
    return text;
}

PlannedMemory plan_memory(const TrainOptions& o, const ModelConfig& config, DeviceKind kind, int rank, int ranks) {
    const PlannedJob job{.kind = kind,
                         .ranks = ranks,
                         .capability = kind == DeviceKind::cuda ? gpu_capability(o) : 0,
                         .finishes = false,
                         .resumes = o.resume.asked(),
                         .prompt = most_prompt_tokens(o)};
    for (const PlannedRank& one : plan_ranks(o, config, job, rank))
        if (one.rank == rank) return one.memory;
    fail("rank %d is not among those of its own pipeline", rank);
}

}  // namespace rz
