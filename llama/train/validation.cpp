// Validation and samples of a run (trainer.h).

#include <cmath>

#include "llama/base/json.h"
#include "llama/train/sample.h"
#include "llama/train/trainer.h"

namespace rz {

std::vector<int32_t> sample_prompt(const Trainer& t, const ModelConfig& config) {
    const Tokenizer& tokenizer = *t.sources.tokenizer;
    std::vector<int32_t> prompt = tokenizer.encode_prompt(t.options.prompt);
    if (!prompt.empty()) return prompt;
    return config.bos >= 0 ? std::vector{int32_t(config.bos)} : tokenizer.encode("\n");
}

// Every rank draws the same tokens: sharded parameters have to be gathered by all.
static void print_sample(Trainer& t, int64_t step) {
    const Tokenizer& tokenizer = *t.sources.tokenizer;
    TrainState& core = *t.core;
    const std::vector<int32_t> prompt = sample_prompt(t, core.config);
    SampleDecoder sample(core, int64_t(prompt.size()) + t.options.sample_tokens);
    std::vector<int32_t> tokens = prompt;
    generate(sample.decoder(), core.config, prompt, t.options.sample_tokens, {.seed = t.options.seed + uint64_t(step)},
             [&](int32_t token) {
                 tokens.push_back(token);
                 return true;
             });
    const std::string text = tokenizer.decode(tokens, /*skip_special=*/true);
    t.log->event(step, "--- sample\n" + printable(text) + "\n---", "sample", Json(text).dump());
}

int64_t validation_sequences(const Trainer& t, size_t set) {
    const DataSources::Validation& of = t.sources.val[set];
    const int64_t most = std::max<int64_t>(1, t.options.val_tokens / t.options.seq_len);
    return std::min(std::max<int64_t>(1, std::llround(of.share * double(most))), of.data.samples());
}

// The mean loss over the first `sequences` of a set's validation data.
static double loss_of(Trainer& t, size_t set, int64_t sequences) {
    TrainState& core = *t.core;
    for (int64_t first = 0; first < sequences; first += t.options.batch * t.mesh->place(Axis::dp).size)
        core.model.evaluate(t.batches->validation(set, first, sequences));
    double loss_sum = 0;
    core.compute.copy(&loss_sum, core.model.loss_sum(), 8);
    core.model.reset_loss();
    core.compute.synchronize();
    return t.process.sum(loss_sum) / double(std::max<int64_t>(1, t.sources.val[set].data.targets(0, sequences)));
}

// The mean by shares of the loss on each set.
static double mean_loss(Trainer& t, std::vector<std::pair<std::string, double>>& by_set) {
    double loss = 0;
    for (size_t k = 0; k < t.sources.val.size(); ++k) {
        by_set.push_back({t.sources.val[k].name, loss_of(t, k, validation_sequences(t, k))});
        loss += t.sources.val[k].share * by_set.back().second;
    }
    return loss;
}

// The same of the average of the weights; < 0 if none is kept.
static double loss_of_average(Trainer& t) {
    if (t.options.ema == 0) return -1;
    std::vector<std::pair<std::string, double>> by_set;
    t.core->zero.optimizer.show_average();
    const double loss = mean_loss(t, by_set);
    t.core->zero.optimizer.show_weights();
    return loss;
}

// --stop-at-val-loss: this step becomes the last, on every rank, since all have the same loss. What a last step does
// (evaluation, save, final weights, exit code 0) follows; the learning rate so far was that of the steps asked for.
static void reach_target(Trainer& t, int64_t step, double loss) {
    const Manifest here = manifest_at(t, step);
    t.log->event(step,
                 format("reached validation loss %.4f (--stop-at-val-loss %g) at step %ld: %ld tokens, %.1f s", loss,
                        t.options.stop_at_val_loss, step, here.tokens, here.seconds),
                 "reached",
                 format("{\"val_loss\":%.17g,\"target\":%.17g,\"tokens\":%ld,\"seconds\":%.3f}", loss,
                        t.options.stop_at_val_loss, here.tokens, here.seconds));
    t.options.steps = step;
}

// Validates. In a mix each set gets tokens by its share, and the loss is the mean by shares.
void validate(Trainer& t, int64_t step) {
    const std::vector<DataSources::Validation>& sets = t.sources.val;
    if (sets.empty()) return;
    t.metrics->flush();
    const Timer timer;
    const TrainOptions& o = t.options;
    const int64_t samples = t.batches->samples_before(step + 1);
    if (t.mlperf) t.mlperf->evaluation_start(samples);
    std::vector<std::pair<std::string, double>> by_set;
    const double loss = mean_loss(t, by_set), loss_ema = loss_of_average(t);
    double bytes = 0;
    bool bytes_known = true;
    for (const DataSources::Validation& set : sets) {
        bytes += set.share * set.bytes_per_token;
        bytes_known &= set.bytes_per_token > 0;
    }
    if (by_set.size() == 1) by_set.clear();
    const bool reached = step > 0 && loss <= o.stop_at_val_loss;
    if (t.mlperf) t.mlperf->evaluation_stop(samples, loss, reached);
    t.log->validation({.step = step,
                       .loss = loss,
                       .loss_ema = loss_ema,
                       .bits_per_byte = bytes_known ? loss / M_LN2 / bytes : -1,
                       .seconds = timer.seconds(),
                       .by_set = std::move(by_set)});
    const int64_t validation = t.validations++;
    if (samples_at(o, validation, step)) print_sample(t, step);
    t.metrics->exclude_from_step_time();
    if (reached) reach_target(t, step, loss);
}

}  // namespace rz
