#include "llama/train/options_export.h"

namespace rz {

CommandTable command_table(ExportOptions& o) {
    CommandTable table{"export", "Write a model for Hugging Face's libraries, vLLM and llama.cpp", {}};
    OptionGroup g(table.rows, "Export");
    g.text("--from", Keeps::no, o.from, "Model to export: a run's folder, a checkpoint, or any Hugging Face LLaMA.")
        .required = true;
    g.text("--to", Keeps::no, o.to, "Folder to write, with --format gguf the file.").required = true;
    g.choice(
        "--format", Keeps::no, o.format,
        "hf: a folder for Hugging Face's libraries, vLLM and llama.cpp's converter; gguf: one file for llama.cpp.");
    g.on_off("--overwrite", Keeps::no, o.overwrite, "Replace a model that --to holds already.");
    g.choice("--dtype", Keeps::no, o.dtype, "Data type of the weights that are written. [as stored]",
             {DType::f32, DType::bf16, DType::f16});
    g.whole("--max-shard-mib", Keeps::no, o.shard_above_mib, 0, int64_t(1) << 40,
            "Size in MiB above which a folder's weights become one file for each block, with an index. 0: always one "
            "file.")
        .was("shard-above");
    g.text("--tokenizer", Keeps::no, o.tokenizer, "Folder or tokenizer.json whose files are copied. [--from's]");
    return table;
}

}  // namespace rz
