// Checks the flags of one command line together (options_train.h).

#include "llama/train/options_train.h"

#include "kernels/runtime/request.h"

namespace rz {

// Flags that would do nothing: --FLAG and what is missing.
static void refuse_without(const TrainOptions& o, bool there, std::initializer_list<const char*> flags,
                           const std::string& what) {
    for (const char* flag : flags) require_request(!o.given.count(flag) || there, "--%s %s", flag, what.c_str());
}

static void check_mix_evaluation_and_wandb(const TrainOptions& o) {
    require_request(!o.given.count("data-weights-at") || o.data_weights_at.empty() ||
                        o.data.find(',') != std::string::npos || o.resume.asked(),
                    "--data-weights-at changes the shares of a mix, and --data is none\n  nearest: --data a:0.7,b:0.3");
    require_request(o.eval_every == 0 || !o.eval_tasks.empty() || o.resume.asked(),
                    "--eval-every %ld evaluates on nothing\n  give --eval-tasks, such as hellaswag,perplexity",
                    o.eval_every);
    refuse_without(o, o.eval_every > 0 || o.resume.asked(), {"eval-tasks", "eval-data", "eval-limit"},
                   "without evaluations\n  nearest: --eval-every 1000");
    require_request(o.wandb.empty() || o.keeps(),
                    "--wandb writes its files into --out, and that is empty: name a folder");
    require_request(o.wandb_name.empty() || !o.wandb.empty() || o.resume.asked(),
                    "--wandb-name without --wandb\n  give --wandb PROJECT, or leave it out");
}

static void check_guards_and_output(const TrainOptions& o) {
    require_request(
        o.on_spike == OnSpike::warn || o.spike_z > 0,
        "--on-spike %s never happens with --spike-z 0, which does not look for spikes\n  nearest: --spike-z 5.7",
        name_of(o.on_spike));
    refuse_without(o, o.on_spike == OnSpike::rollback || o.resume.asked(),
                   {"max-rollbacks", "rollback-steps", "rollback-skip"},
                   "without rollbacks\n  nearest: --on-spike rollback");
    require_request(
        o.on_spike != OnSpike::rollback || o.keeps(),
        "--on-spike rollback goes back to checkpoints, which lie in --out, and that is empty: name a folder");
    require_request(o.mllog.empty() || o.stop_at_val_loss > 0,
                    "--mllog times a run to a validation loss: give --stop-at-val-loss too");
    require_request(o.mllog.empty() || (!o.resume.asked() && o.on_spike != OnSpike::rollback && o.batch_ramp.empty()),
                    "--mllog times one start from its beginning: leave out %s",
                    o.resume.asked()                  ? "--resume"
                    : o.on_spike == OnSpike::rollback ? "--on-spike rollback"
                                                      : "--batch-ramp");
    require_request(!o.overwrite || !o.out.empty(),
                    "--overwrite is about the folder --out, which is not given: leave it out");
    require_request(!o.overwrite || !o.resume.asked(),
                    "--overwrite starts a new run and --resume %s continues an earlier one\n  leave one of them out",
                    o.resume.text.c_str());
    require_request(
        o.recheck_every == 0 || !o.cuda_graphs,
        "--recheck-every %ld with --cuda-graphs on: gradients inside a graph can't be looked at\n  nearest: "
        "--cuda-graphs off",
        o.recheck_every);
    for (const Algorithm how : {o.collectives.data.value_or(Algorithm::ring), o.collectives.tp})
        require_request(
            o.check_wire == 0 || (how != Algorithm::library && how != Algorithm::symmetric),
            "--check-wire %ld with --collectives %s: what %s is not seen\n  nearest: --collectives ring or direct",
            o.check_wire, name_of(how),
            how == Algorithm::library ? "a library sends" : "ranks read from each other's memory");
    require_request(o.stats_every == 0 || o.keeps(),
                    "--stats-every writes stats.jsonl into --out, and that is empty: name a folder");
    require_request(
        o.stats_every == 0 || !o.cuda_graphs,
        "--stats-every %ld with --cuda-graphs on: a graph does the same at every step\n  nearest: --cuda-graphs off",
        o.stats_every);
    require_request(o.stats_every == 0 || o.offload_optimizer != OffloadOptimizer::cpu,
                    "--stats-every %ld with --offload-optimizer cpu: the host's AdamW is not looked at\n  nearest: "
                    "--offload-optimizer stream",
                    o.stats_every);
    require_request(
        o.after_save.empty() || (o.keeps() && o.save_every > 0),
        "--after-save is about checkpoints, and this run has none\n  give --out and --save-every, or leave it out");
    require_request(o.before_resume.empty() || (!o.out.empty() && o.resume.asked()),
                    "--before-resume is about a resumed run\n  nearest: --resume auto with --out, or leave it out");
    for (const auto& [flag, every] : {std::pair("save-every", o.save_every), {"keep-every", o.keep_every}})
        require_request(!o.given.count(flag) || o.keeps() || every == 0,
                        "--%s is about checkpoints, which lie in --out, and that is empty: name a folder", flag);
}

static void check_start_and_batch(const TrainOptions& o) {
    require_request(!o.given.count("init-scale") || o.init_from.empty(),
                    "--init-scale is about weights that are drawn, and --init-from %s has them: leave it out",
                    o.init_from.c_str());
    require_request(
        !o.recipe || o.init_from.empty(),
        "--auto is for training from scratch, and --init-from %s has weights\n  nearest: leave it out; --lr is "
        "then that of fine-tuning",
        o.init_from.c_str());
    require_request(!o.mup.on() || o.init_from.empty(),
                    "--mup-base-width is about weights that are drawn, and --init-from %s has them: leave it out",
                    o.init_from.c_str());
    refuse_without(o, o.mup.on() || o.resume.asked(), {"mup-base-depth", "mup-base-head-dim"},
                   "without muP\n  nearest: --mup-base-width 256");
    require_request(!o.recipe || o.grad_accum == 0,
                    "--auto and --grad-accum %ld both say how large an update is\n  leave one of them out",
                    o.grad_accum);
    require_request(!o.recipe || !o.print_config,
                    "--print-config with --auto: neither shows the other\n  nearest: train_llama plan --auto");
    require_request(o.batch_ramp.empty() || o.batch_tokens > 0 || o.recipe,
                    "--batch-ramp grows to --batch-tokens, which is not given\n  nearest: --batch-tokens %ld",
                    o.batch_ramp.empty() ? 0l : 2 * o.batch_ramp.back().batch_tokens);
    require_request(o.batch_ramp.empty() || o.keeps(),
                    "--batch-ramp saves a checkpoint where the batch grows, in --out, which is empty: name a folder");
}

// Refuses flags on this command line that contradict each other, or that would have no effect.
void check_given(const TrainOptions& o) {
    require_request(!o.given.count("preset") || o.init_from.empty(),
                    "--preset %s and --init-from %s both say what the model is\n  leave one of them out",
                    o.preset.c_str(), o.init_from.c_str());
    check_start_and_batch(o);
    require_request(o.batch > 0 || !o.print_config,
                    "--print-config with --batch auto: what fits depends on the machine\n"
                    "  nearest: train_llama plan, or --batch 1");
    require_request(o.grad_accum == 0 || !o.given.count("batch-tokens"),
                    "--grad-accum %ld and --batch-tokens %ld both say how large an update is\n  leave one of them out",
                    o.grad_accum, o.batch_tokens);
    require_request(!o.given.count("warmup") || o.warmup <= o.steps || o.steps == 0 || o.resume.asked(),
                    "--warmup %ld is longer than the run: --steps %ld never reaches --lr\n  nearest: --warmup %ld",
                    o.warmup, o.steps, o.steps);
    refuse_without(o, !o.init_from.empty() || o.resume.asked(), {"allow-tokenizer-change", "resize-vocab"},
                   "is about the model of --init-from, which is not given: leave it out");
    refuse_without(o, o.resume.asked(), {"lr-continue", "rewarm", "allow-lr-jump", "branch"},
                   "is about a resumed run\n  nearest: --resume auto, or leave it out");
    require_request(int(o.lr_continue) + int(o.rewarm > 0) + int(o.allow_lr_jump) + int(o.branch >= 0) <= 1,
                    "--lr-continue, --rewarm, --allow-lr-jump and --branch each say how the learning rate continues\n"
                    "  give one of them");
    require_request(o.branch < 0 || (o.resume.kind == ResumeFrom::Kind::folder && o.keeps()),
                    "--branch %ld starts from a run in a new folder: give --resume RUN and --out NEW", o.branch);
    refuse_without(o, o.optimizer == Optimizer::muon || o.resume.asked(),
                   {"muon-lr", "muon-momentum", "muon-scale", "muon-ns-steps", "muon-coefficients", "muon-beta2",
                    "muon-dtype", "muon-blocks"},
                   "is about Muon, and --optimizer is adamw\n  nearest: --optimizer muon, or leave it out");
    require_request(!o.raw16 || o.data.empty(),
                    "--raw16 is about --train-data: the shards of a --data folder say what they are\n  leave it out");
    require_request(o.doc_token < 0 || o.doc_boundary != DocBoundary::none || o.resume.asked(),
                    "--doc-token %ld: no documents are asked for\n  nearest: --doc-mask bos, or leave it out",
                    o.doc_token);
    refuse_without(o, o.zero == 3, {"prefetch"},
                   format("is about units gathered ahead, which --zero %ld does not do\n  nearest: --zero 3", o.zero));
    require_request(o.bucket_mib == 0 || o.pp == 1,
                    "--bucket-mib %ld with --pp %ld: a stage reduces each block when the schedule says so\n"
                    "  nearest: --bucket-mib 0, or --pp 1",
                    o.bucket_mib, o.pp);
    require_request(
        o.bucket_mib == 0 || !o.offload_grads,
        "--bucket-mib %ld with --offload-grads on: gradients go to the host block by block, as they are reduced\n"
        "  nearest: --bucket-mib 0, or --offload-grads off",
        o.bucket_mib);
    const bool locally = o.accumulate_locally.value_or(false), each_time = !o.accumulate_locally.value_or(true);
    require_request(!locally || o.zero >= 2,
                    "--accumulate-locally: --zero %ld always does\n  leave it out, or --zero 2 or 3", o.zero);
    refuse_without(o, o.pp > 1 || o.resume.asked(),
                   {"pp-schedule", "pp-stages-per-rank", "pp-layers", "pp-gather", "pp-window"},
                   "is about pipelines, and --pp is 1\n  nearest: --pp 2, or leave it out");
    refuse_without(o, o.zero == 3 || o.resume.asked(), {"pp-gather"},
                   format("is about gathered parameters, which --zero %ld does not have\n  nearest: --zero 3", o.zero));
    require_request(!each_time || o.zero >= 2 || o.pp > 1 || o.resume.asked(),
                    "--no-accumulate-locally is about pipelines, and --pp is 1\n  nearest: --pp 2, or leave it out");
    require_request(!each_time || o.zero >= 2 || o.resume.asked(),
                    "--no-accumulate-locally: --zero %ld reduces once a step\n  nearest: --zero 2", o.zero);
    require_request(o.pp_tasks == 0 || (o.pp > 1 && o.keeps()),
                    "--pp-tasks writes what a pipeline did into --out\n  give --pp above 1 and --out, or leave it out");
    require_request(o.pp == 1 || o.sample_every == 0 || o.zero < 3 || !o.fp8.on() || !o.fp8_gather,
                    "--sample-every with --pp %ld and parameters gathered in fp8: samples need them in --dtype\n"
                    "  nearest: --fp8-gather off",
                    o.pp);
    refuse_without(o, o.tp > 1, {"tp-wire", "tp-overlap"},
                   "is about the ranks of --tp, which is 1\n  nearest: --tp 2, or leave it out");
    require_request(
        !o.tp_overlap || !o.cuda_graphs,
        "--cuda-graphs on with --tp-overlap on: parts of a product are enqueued as their rows arrive, and a graph is "
        "enqueued whole\n  nearest: --tp-overlap off");
    refuse_without(o, o.sample_every > 0, {"sample-tokens"}, "without samples\n  nearest: --sample-every 1");
    refuse_without(o, o.cp > 1, {"cp-exchange"},
                   "is about the ranks of --cp, which is 1\n  nearest: --cp 2, or leave it out");
    check_mix_evaluation_and_wandb(o);
    check_guards_and_output(o);
}

void check_fit(const TrainOptions& o, const ModelConfig& c, int64_t data_vocab) {
    const bool dynamic = c.rope_scaling.kind == RopeKind::dynamic;
    require_request(
        double(o.seq_len) <= double(c.max_seq_len) * (dynamic ? c.rope_scaling.factor : 1),
        "--seq-len %ld is longer than the model's %ld positions\n  nearest: --seq-len %ld, or raise --max-seq-len",
        o.seq_len, c.max_seq_len, c.max_seq_len);
    require_request(data_vocab <= c.vocab, "the data has %ld token ids, the model a vocabulary of %ld\n  nearest: %s",
                    data_vocab, c.vocab,
                    o.init_from.empty() && !o.resume.asked()
                        ? format("--vocab %ld", data_vocab).c_str()
                        : "data prepared with the model's tokenizer, or --resize-vocab for a larger one");
}

GridOptions grid_options(const TrainOptions& o) {
    return {.tp = int(o.tp), .cp = int(o.cp), .pp = int(o.pp), .shard_size = int(o.shard_size), .order = o.axis_order};
}

}  // namespace rz
