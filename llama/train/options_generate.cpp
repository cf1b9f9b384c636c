#include "llama/train/options_generate.h"

#include "llama/train/options_train.h"

namespace rz {

CommandTable command_table(GenerateOptions& o) {
    CommandTable table{"generate", "Continue a prompt with a trained model", {}};
    OptionGroup g(table.rows, "Generation");
    g.text("--from", Keeps::no, o.from, "Model to use: a run's folder, a checkpoint, or any Hugging Face LLaMA.")
        .required = true;
    g.text("--prompt", Keeps::no, o.prompt, "Text to continue. Its special tokens (\"<s>\") are their ids.", "TEXT");
    g.text("--prompt-file", Keeps::no, o.prompt_file, "File with the text to continue; -: standard input.");
    g.on_off("--interactive", Keeps::no, o.interactive, "Continue each line of standard input.");
    g.on_off(
        "--chat", Keeps::no, o.chat,
        "The prompt is what a user says to the model, in the model's chat template; with --interactive each line is "
        "the next turn. Python 3 with jinja2 renders templates that the program does not know.");
    g.text("--system", Keeps::no, o.system, "System message of the chat.", "TEXT");
    g.on_off("--raw-prompt", Keeps::no, o.raw_prompt,
             "Put no begin token before the prompt: for text that a chat template has made.");
    g.on_off("--ignore-eos", Keeps::no, o.ignore_eos, "Write on after an end token.");
    g.whole("--num-samples", Keeps::no, o.num_samples, 1, 1 << 20, "Number of continuations, each with the next seed.");
    g.whole("--max-tokens", Keeps::no, o.max_tokens, 1, 1 << 24, "Largest number of tokens to generate.");
    g.real("--temperature", Keeps::no, o.temperature, 0, 100,
           "Temperature of the sampling. 0: always the likeliest token.");
    g.whole("--top-k", Keeps::no, o.top_k, 0, 1 << 30, "Number of likeliest tokens to choose from. 0: all.");
    g.real("--top-p", Keeps::no, o.top_p, 0, 1, "Probability that the likeliest tokens to choose from reach together.");
    g.seed("--seed", Keeps::no, o.seed, "Seed of the random choices.");
    g.text("--tokenizer", Keeps::no, o.tokenizer, "Tokenizer: a tokenizer.json. [the model folder's]");
    g.choice("--device", Keeps::no, o.device, "Device. auto: CUDA where it is usable.");
    g.choice("--dtype", Keeps::no, o.dtype, "Data type of weights and activations.", {DType::f32, DType::bf16});
    g.whole("--threads", Keeps::no, o.threads, 0, 1 << 16,
            "Number of CPU threads. 0: one for a model below 64 MiB, else one for each idle core.");
    add_gemm_rows(g, Keeps::no, o.gemm_tune, o.gemm_cache);
    return table;
}

}  // namespace rz
