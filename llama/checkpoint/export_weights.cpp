#include "llama/checkpoint/export_weights.h"

#include <fcntl.h>
#include <unistd.h>

#include <memory>

#include "llama/base/atomic_file.h"
#include "llama/checkpoint/checkpoint.h"
#include "llama/base/safetensors.h"
#include "llama/model/hf.h"

namespace rz {

// The final weights come after hours: where memory is short, they move in smaller pieces.
static Buffer largest_staging(Device device, int64_t element_bytes, int64_t& piece) {
    for (piece = kExportPiece;; piece /= 4) try {
            return Buffer::host_for(device, piece * element_bytes, MemKind::workspace, "weights being saved");
        } catch (const Error&) {
            if (piece <= 4096) throw;
        }
}

// Into files that are there, and are called `files` in `folder` once they are complete.
static void write_share(const std::string& folder, const std::vector<TensorFile>& files,
                        const std::vector<std::string>& temporary, const ParamTable& table, Device device,
                        Stream& compute, const Zero& zero) {
    const int64_t e = size_of(zero.options.param_dtype);
    int64_t piece = 0;
    Buffer staging = largest_staging(device, e, piece);
    const std::vector<OwnedRange> share = own_share(zero);
    for (size_t i = 0; i < files.size(); ++i) {
        const std::string path = folder + "/" + files[i].path;
        const auto check = [&](bool ok, const char* call) {
            if (!ok) fail_errno(path, call);
        };
        OpenFile file(temporary[i], -1);
        for (const OwnedRange& r : share)
            table.for_each_run(r.local_offset, r.local_offset + r.elements.size(), piece, [&](const TensorRun& run) {
                if (!run.owned || !files[i].holds(run.tensor)) return;
                if (file.fd < 0) file.fd = again([&] { return ::open(file.path.c_str(), O_WRONLY | O_CLOEXEC); });
                check(file.fd >= 0, "open");
                compute.copy(staging.data(), at(r.param, run.local - r.local_offset, zero.options.param_dtype),
                             run.count * e);
                compute.synchronize();
                write_all(file.fd, files[i].offset(run.tensor) + run.first * e, staging.data(), run.count * e, path);
            });
        check(file.fd < 0 || again([&] { return ::fsync(file.fd); }) == 0, "fsync");
    }
}

// An earlier model's, of which readers would take what is not replaced.
static void remove_weights(const std::string& folder) {
    for (const std::string& name : names_in(folder)) {
        const std::string path = folder + "/" + name;
        const bool weights = name.starts_with("model") && name.ends_with(".safetensors");
        if ((weights || name == kWeightIndex) && ::unlink(path.c_str()) != 0) fail_errno(path, "remove");
    }
}

void export_weights(const std::string& folder, const ModelConfig& config, const ParamTable& table, Process& process,
                    Device device, Stream& compute, const Zero& zero, const TokenizerFiles& tokenizer,
                    int64_t shard_above) {
    const DType dtype = zero.options.param_dtype;
    const std::vector<TensorFile> files = tensor_files(stem_of(StatePart::model), table, dtype, shard_above);
    std::vector<std::unique_ptr<AtomicFile>> written;  // rank 0's
    on_all(process, [&] {
        if (!process.is_root()) return;
        prepare_model_folder(folder, tokenizer);
        for (const TensorFile& f : files) {
            written.push_back(std::make_unique<AtomicFile>(folder + "/" + f.path, f.layout.file_size));
            written.back()->write_at(0, f.layout.header.data(), int64_t(f.layout.header.size()));
        }
    });
    std::vector<std::string> temporary;
    for (size_t i = 0; i < files.size(); ++i)
        temporary.push_back(process.broadcast_text(process.is_root() ? written[i]->temporary() : "", 0));
    on_all(process, [&] { write_share(folder, files, temporary, table, device, compute, zero); });
    on_all(process, [&] {
        if (!process.is_root()) return;
        const bool replaces = path_exists(folder + "/" + kWeightIndex);
        if (files.size() > 1 || replaces) remove_weights(folder);
        for (const auto& file : written) file->commit();
        if (files.size() > 1) write_file_atomically(folder + "/" + kWeightIndex, weight_index(files, table));
        write_file_atomically(folder + "/config.json", config_to_json(config, dtype));
    });
}

}  // namespace rz
