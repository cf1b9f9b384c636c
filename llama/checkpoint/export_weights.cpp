#include "llama/checkpoint/export_weights.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>

#include "llama/base/atomic_file.h"
#include "llama/checkpoint/checkpoint.h"
#include "llama/base/safetensors.h"
#include "llama/model/hf.h"

namespace rz {

// Collective: what fails on one rank is thrown on all.
static void on_all(Process& process, const std::function<void()>& body) {
    std::string problem;
    try {
        body();
    } catch (const Error& error) {
        problem = error.what();
    }
    const std::string text = first_problem(process, problem);
    require(text.empty(), "%s", text.c_str());
}

// The final weights come after hours: where memory is short, they move in smaller pieces.
static Buffer largest_staging(Device device, int64_t element_bytes, int64_t& piece) {
    for (piece = kExportPiece;; piece /= 4) try {
            return Buffer::host_for(device, piece * element_bytes, MemKind::workspace, "weights being saved");
        } catch (const Error&) {
            if (piece <= 4096) throw;
        }
}

// Into a file that is there, and is called `path` once it is complete.
static void write_share(const std::string& temporary, const std::string& path, const SafetensorsLayout& layout,
                        const ParamTable& table, Device device, Stream& compute, const Zero& zero) {
    const int64_t e = size_of(zero.options.param_dtype);
    int64_t piece = 0;
    Buffer staging = largest_staging(device, e, piece);
    const auto check = [&](bool ok, const char* call) {
        if (!ok) fail_errno(path, call);
    };
    const int fd = ::open(temporary.c_str(), O_WRONLY | O_CLOEXEC);
    check(fd >= 0, "open");
    const std::unique_ptr<const int, void (*)(const int*)> closes(&fd, [](const int* f) { ::close(*f); });
    for (const OwnedRange& r : own_share(zero))
        table.for_each_run(r.local, r.local + r.elements.size(), piece, [&](const TensorRun& run) {
            if (!run.owned) return;
            compute.copy(staging.data(), static_cast<const char*>(r.param) + (run.local - r.local) * e, run.count * e);
            compute.synchronize();
            write_all(fd, layout.offsets[size_t(run.tensor)] + run.first * e, staging.data(), run.count * e, path);
        });
    check(::fsync(fd) == 0, "fsync");
}

void export_weights(const std::string& folder, const ModelConfig& config, const ParamTable& table, Process& process,
                    Device device, Stream& compute, const Zero& zero, const TokenizerFiles& tokenizer) {
    const DType dtype = zero.options.param_dtype;
    const SafetensorsLayout layout = layout_safetensors(tensor_specs(table, dtype));
    const std::string path = folder + "/" + path_of(StatePart::model);
    std::unique_ptr<AtomicFile> file;  // rank 0's
    on_all(process, [&] {
        if (!process.is_root()) return;
        prepare_model_folder(folder, tokenizer);
        file = std::make_unique<AtomicFile>(path, layout.file_size);
        file->write_at(0, layout.header.data(), int64_t(layout.header.size()));
    });
    const std::string temporary = process.broadcast_text(file ? file->temporary() : "", 0);
    on_all(process, [&] { write_share(temporary, path, layout, table, device, compute, zero); });
    on_all(process, [&] {
        if (!file) return;
        file->commit();
        write_file_atomically(folder + "/config.json", config_to_json(config, dtype));
    });
}

}  // namespace rz
