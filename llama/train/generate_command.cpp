// train_llama generate: text from a prompt, a file, standard input, or line by line.

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>

#include "kernels/runtime/context.h"
#include "kernels/runtime/request.h"
#include "llama/base/atomic_file.h"
#include "llama/base/json.h"
#include "llama/base/output.h"
#include "llama/checkpoint/checkpoint_store.h"
#include "llama/model/generate.h"
#include "llama/model/hf.h"
#include "llama/model/model.h"
#include "llama/model/weights.h"
#include "llama/tokenizer/tokenizer.h"
#include "llama/train/chat_prompt.h"
#include "llama/train/commands.h"
#include "llama/train/trainer.h"

namespace rz {
namespace {

constexpr int64_t kPaddedIds = 1024;  // models have so many further ids at most, for products of a round size

// Number of ids of the model's own tokenizer; -1 where it has none that can be read.
int64_t own_ids(const std::string& folder) try { return Tokenizer::load(folder).vocab_size(); } catch (const Error&) {
    return -1;
}

// 0: as OpenMP has it. A token of a small model is written before a second thread has come to help; and threads that
// spin for their turn on cores that others use slow everything down, this program most.
int64_t writing_threads(const GenerateOptions& o, int64_t weight_bytes) {
    if (o.threads > 0 || std::getenv("OMP_NUM_THREADS")) return o.threads;
    constexpr int64_t kSmall = int64_t(64) << 20;
    double load = 0;
    if (weight_bytes < kSmall) return 1;
    if (getloadavg(&load, 1) != 1) return 0;
    return std::max<int64_t>(1, omp_get_max_threads() - std::llround(load));
}

// A model that is ready to write.
class Writer {
   public:
    Writer(const GenerateOptions& o, const std::string& folder)
        : o_(o),
          folder_(folder),
          config_(ending_config(o, folder)),
          table_(config_),
          tokenizer_(Tokenizer::load(o.tokenizer.empty() ? folder : o.tokenizer)),
          device_(choose(o)),
          stream_(device_, "compute"),
          parameters_(device_, stream_, unit_layouts(table_), o.dtype) {
        check_threads(o.threads);
        const int64_t ids = tokenizer_.vocab_size();
        const int64_t own = o.tokenizer.empty() ? -1 : own_ids(folder);
        require_request(
            o.tokenizer.empty() || (ids <= config_.vocab && (own >= 0 ? ids == own : config_.vocab - ids < kPaddedIds)),
            "--tokenizer %s has %ld token ids, the model a vocabulary of %ld: it is another model's\n"
            "  nearest: leave it out, or the tokenizer that the model's data were prepared with",
            o.tokenizer.c_str(), ids, own >= 0 ? own : config_.vocab);
        const int64_t threads = device_.is_cuda() ? 0 : writing_threads(o, table_.parameters() * size_of(o.dtype));
        if (threads > 0) stream_.enqueue_host([n = int(threads)] { omp_set_num_threads(n); });
        load_weights(folder, table_, o.dtype, device_, stream_, parameters_);
    }

    // Writes what follows the prompt to standard output. The last of several samples is a chat's next turn.
    void write(const std::string& said) {
        if (!o_.chat) return write_samples(said), void();
        std::vector<ChatMessage> talk = talk_;
        if (talk.empty() && !o_.system.empty()) talk.push_back({"system", o_.system});
        talk.push_back({"user", said});
        const std::string answer = write_samples(render_chat(folder_, talk));
        talk.push_back({"assistant", answer});
        talk_ = std::move(talk);
    }

   private:
    // --num-samples continuations, each with its own line of statistics on standard error; returns the last one.
    std::string write_samples(const std::string& prompt) {
        const std::vector<int32_t> ids = prompt_ids(prompt);
        std::string last;
        Decoder decoder(config_, table_, o_.dtype, device_, stream_, parameters_, int64_t(ids.size()) + o_.max_tokens);
        for (int64_t n = 0; n < o_.num_samples; ++n) {
            if (o_.num_samples > 1) std::printf("--- sample %ld of %ld\n", n + 1, o_.num_samples);
            decoder.reset();
            last = write_one(decoder, prompt, ids, o_.seed + uint64_t(n));
        }
        return last;
    }

    Device choose(const GenerateOptions& o) {
        std::string note;
        Device device = pick_device(o.device, 0, &note);
        device.context = &context_;
        prepare_device(o, device, note, /*tells=*/true);
        return device;
    }

    static ModelConfig ending_config(const GenerateOptions& o, const std::string& folder) {
        ModelConfig config = load_config(folder);
        read_generation_config(folder, config);
        if (o.ignore_eos) config.eos.clear();
        return config;
    }

    std::vector<int32_t> prompt_ids(const std::string& prompt) const {
        std::vector<int32_t> ids = o_.raw_prompt || o_.chat ? tokenizer_.encode(prompt, /*allow_special=*/true)
                                                            : tokenizer_.encode_prompt(prompt);
        if (ids.empty() && config_.bos >= 0) ids.push_back(int32_t(config_.bos));
        require_request(!ids.empty(),
                        "the prompt is empty and this model has no token that begins a text: give a --prompt");
        require_request(int64_t(ids.size()) < config_.max_seq_len,
                        "the prompt has %zu tokens, the model %ld positions: shorten it", ids.size(),
                        config_.max_seq_len);
        return ids;
    }

    std::string write_one(Decoder& decoder, const std::string& prompt, const std::vector<int32_t>& ids, uint64_t seed) {
        if (!o_.chat) print_text(prompt);
        std::string made_text;
        const auto put = [&](const std::string& piece) {
            made_text += piece;
            return print_text(piece);
        };
        Tokenizer::Stream text(tokenizer_, /*skip_special=*/true);
        // A tokenizer drops the space before the first token of a text; the new tokens are in its middle.
        for (const int32_t id : ids) text.push(id);
        const Timer timer;
        const Sampling how{.temperature = o_.temperature, .top_k = o_.top_k, .top_p = o_.top_p, .seed = seed};
        const int64_t made =
            generate(decoder, config_, ids, o_.max_tokens, how, [&](int32_t token) { return put(text.push(token)); });
        put(text.finish());
        std::printf("\n");
        std::fflush(stdout);
        const double seconds = timer.seconds();
        std::fprintf(stderr, "%zu prompt tokens, %ld new%s, %.1f tokens/s\n", ids.size(), made,
                     made < o_.max_tokens && decoder.position() < decoder.max_positions() ? " up to the end token" : "",
                     double(made) / seconds);
        return made_text;
    }

    const GenerateOptions& o_;
    const std::string folder_;
    RankContext context_;
    ModelConfig config_;
    ParamTable table_;
    Tokenizer tokenizer_;
    Device device_;
    Stream stream_;
    ResidentParameters parameters_;
    std::vector<ChatMessage> talk_;  // with --chat: all turns so far
};

std::string read_prompt(const GenerateOptions& o) {
    if (o.prompt_file.empty()) return o.prompt;
    if (o.prompt_file != "-") return read_file(o.prompt_file, kPrompt);
    return {std::istreambuf_iterator<char>(std::cin), {}};
}

}  // namespace

int generate_command(const GenerateOptions& o) {
    require_request(
        int(!o.prompt.empty()) + int(!o.prompt_file.empty()) + int(o.interactive) <= 1,
        "--prompt, --prompt-file and --interactive each say where the prompt comes from\n  give one of them");
    const std::string folder = model_folder(o.from);
    require_request(!o.chat || !o.raw_prompt,
                    "--chat applies the chat template, --raw-prompt says that it is applied\n  give one");
    require_request(o.chat || o.system.empty(), "--system is a chat's\n  nearest: --chat");
    if (has_chat_template(folder) && !o.raw_prompt && !o.chat)
        std::fprintf(stderr, "train_llama: %s has a chat template: --chat applies it to the prompt\n", folder.c_str());
    Writer writer(o, folder);
    if (!o.interactive) {
        writer.write(read_prompt(o));
        return 0;
    }
    std::fprintf(stderr, "each line is a prompt; an empty one or Ctrl-D ends\n");
    for (std::string line; std::fputs("> ", stderr), std::getline(std::cin, line) && !line.empty();) {
        try {
            writer.write(line);
        } catch (const Error& error) {  // a prompt that is too long: the next one may do
            std::fprintf(stderr, "train_llama: %s\n", error.what());
        }
    }
    return 0;
}

}  // namespace rz
