#include "llama/train/options_generate.h"

#include "llama/train/options_train.h"

namespace rz {

CommandTable command_table(GenerateOptions& o) {
    CommandTable table{"generate", "Continue a prompt with a trained model", {}};
    OptionGroup g(table.rows, "Generation");
    g.text("--from", o.from, "Model to use: a run's folder, a checkpoint, or any Hugging Face LLaMA.").required = true;
    g.text("--prompt", o.prompt, "Text to continue. Its special tokens (\"<s>\") are their ids.", "TEXT");
    g.text("--prompt-file", o.prompt_file, "File with the text to continue; -: standard input.");
    g.turn_on("--interactive", o.interactive, "Continue each line of standard input.");
    g.turn_on(
        "--chat", o.chat,
        "The prompt is what a user says to the model, in the model's chat template; with --interactive each line is "
        "the next turn. Python 3 with jinja2 renders it.");
    g.text("--system", o.system, "System message of the chat.", "TEXT");
    g.turn_on("--raw-prompt", o.raw_prompt,
              "Put no begin token before the prompt: for text that a chat template has made.");
    g.turn_on("--ignore-eos", o.ignore_eos, "Write on after an end token.");
    g.whole("--num-samples", o.num_samples, 1, 1 << 20, "Number of continuations, each with the next seed.");
    g.whole("--max-tokens", o.max_tokens, 1, 1 << 24, "Largest number of tokens to generate.");
    g.real("--temperature", o.temperature, 0, 100, "Temperature of the sampling. 0: always the likeliest token.");
    g.whole("--top-k", o.top_k, 0, 1 << 30, "Number of likeliest tokens to choose from. 0: all.");
    g.real("--top-p", o.top_p, 0, 1, "Probability that the likeliest tokens to choose from reach together.");
    g.seed(o.seed, "Seed of the random choices.");
    g.text("--tokenizer", o.tokenizer, "Tokenizer: a tokenizer.json. [the model folder's]");
    g.choice("--device", o.device, "Device. auto: CUDA where it is usable.");
    g.choice("--dtype", o.dtype, "Data type of weights and activations.", {DType::f32, DType::bf16});
    g.whole("--threads", o.threads, 0, 1 << 16, "Number of CPU threads. 0: as many as OpenMP chooses.");
    add_gemm_rows(g, o.gemm_tune, o.gemm_cache);
    return table;
}

}  // namespace rz
