// train_llama generate: text from a prompt, a file, standard input, or line by line.

#include <omp.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>

#include "kernels/gemm/gemm_tuning.h"
#include "kernels/runtime/context.h"
#include "llama/base/atomic_file.h"
#include "llama/base/json.h"
#include "llama/checkpoint/checkpoint_store.h"
#include "llama/model/generate.h"
#include "llama/model/hf.h"
#include "llama/model/model.h"
#include "llama/model/weights.h"
#include "llama/tokenizer/tokenizer.h"
#include "llama/train/commands.h"

namespace rz {
namespace {

// A model that is ready to write.
class Writer {
   public:
    Writer(const GenerateOptions& o, const std::string& folder)
        : o_(o),
          config_(ending_config(o, folder)),
          table_(config_),
          tokenizer_(Tokenizer::load(o.tokenizer.empty() ? folder : o.tokenizer)),
          device_(choose(o)),
          stream_(device_, "compute"),
          parameters_(device_, stream_, unit_layouts(table_), o.dtype) {
        if (o.threads > 0 && !device_.is_cuda()) stream_.enqueue_host([n = int(o.threads)] { omp_set_num_threads(n); });
        load_weights(folder, table_, o.dtype, device_, stream_, parameters_);
    }

    // --num-samples continuations on standard output, each with its own line of statistics on standard error.
    void write(const std::string& prompt) {
        const std::vector<int32_t> ids = prompt_ids(prompt);
        Decoder decoder(config_, table_, o_.dtype, device_, stream_, parameters_, int64_t(ids.size()) + o_.max_tokens);
        for (int64_t n = 0; n < o_.num_samples; ++n) {
            if (o_.num_samples > 1)
                std::printf("--- sample %lld of %lld\n", (long long)n + 1, (long long)o_.num_samples);
            decoder.reset();
            write_one(decoder, prompt, ids, o_.seed + uint64_t(n));
        }
    }

   private:
    Device choose(const GenerateOptions& o) {
        std::string note;
        Device device = pick_device(o.device, 0, &note);
        device.context = &context_;
        if (!note.empty()) std::fprintf(stderr, "train_llama: %s\n", note.c_str());
        if (note = set_gemm_tuning(device, o.gemm_tune, o.gemm_cache); !note.empty())
            std::fprintf(stderr, "train_llama: %s\n", note.c_str());
        return device;
    }

    static ModelConfig ending_config(const GenerateOptions& o, const std::string& folder) {
        ModelConfig config = load_config(folder);
        read_generation_config(folder, config);
        if (o.ignore_eos) config.eos.clear();
        return config;
    }

    std::vector<int32_t> prompt_ids(const std::string& prompt) const {
        std::vector<int32_t> ids =
            o_.raw_prompt ? tokenizer_.encode(prompt, /*allow_special=*/true) : tokenizer_.encode_prompt(prompt);
        if (ids.empty() && config_.bos >= 0) ids.push_back(int32_t(config_.bos));
        require(!ids.empty(), "the prompt is empty and this model has no token that begins a text: give a --prompt");
        require(int64_t(ids.size()) < config_.max_seq_len,
                "the prompt has %zu tokens, the model %lld positions: shorten it", ids.size(),
                (long long)config_.max_seq_len);
        return ids;
    }

    void write_one(Decoder& decoder, const std::string& prompt, const std::vector<int32_t>& ids, uint64_t seed) {
        std::fputs(prompt.c_str(), stdout);
        std::fflush(stdout);
        Tokenizer::Stream text(tokenizer_, /*skip_special=*/true);
        // A tokenizer drops the space before the first token of a text; the new tokens are in its middle.
        for (const int32_t id : ids) text.push(id);
        const auto start = std::chrono::steady_clock::now();
        const Sampling how{.temperature = o_.temperature, .top_k = o_.top_k, .top_p = o_.top_p, .seed = seed};
        const int64_t made = generate(decoder, config_, ids, o_.max_tokens, how, [&](int32_t token) {
            std::fputs(text.push(token).c_str(), stdout);
            return std::fflush(stdout) == 0;
        });
        std::printf("%s\n", text.finish().c_str());
        std::fflush(stdout);
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        std::fprintf(stderr, "%zu prompt tokens, %lld new%s, %.1f tokens/s\n", ids.size(), (long long)made,
                     made < o_.max_tokens && decoder.position() < decoder.max_positions() ? " up to the end token" : "",
                     double(made) / seconds);
    }

    const GenerateOptions& o_;
    RankContext context_;
    ModelConfig config_;
    ParamTable table_;
    Tokenizer tokenizer_;
    Device device_;
    Stream stream_;
    ResidentParameters parameters_;
};

bool has_chat_template(const std::string& folder) {
    if (path_exists(folder + "/chat_template.jinja") || path_exists(folder + "/chat_template.json")) return true;
    const std::string config = folder + "/tokenizer_config.json";
    return path_exists(config) && json_find(read_json(config), "chat_template") != nullptr;
}

std::string read_prompt(const GenerateOptions& o) {
    if (o.prompt_file.empty()) return o.prompt;
    if (o.prompt_file != "-") return read_file(o.prompt_file);
    return {std::istreambuf_iterator<char>(std::cin), {}};
}

}  // namespace

int generate_command(const GenerateOptions& o) {
    require(int(!o.prompt.empty()) + int(!o.prompt_file.empty()) + int(o.interactive) <= 1,
            "--prompt, --prompt-file and --interactive each say where the prompt comes from\n  give one of them");
    const std::string folder = model_folder(o.from);
    if (has_chat_template(folder) && !o.raw_prompt)
        std::fprintf(stderr,
                     "train_llama: %s has a chat template, which is not applied here; to apply it:\n"
                     "  python3 data_prep/chat_prompt.py %s \"...\" | train_llama generate --from %s --raw-prompt "
                     "--prompt-file -\n",
                     folder.c_str(), folder.c_str(), o.from.c_str());
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
