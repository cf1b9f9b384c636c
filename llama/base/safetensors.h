#pragma once
// safetensors: a JSON header of names, types, shapes and byte ranges, then the tensors, little-endian and without
// holes. The reader checks what the reference crate checks, in its order, before anything is believed; it maps the file
// and never allocates by a size the file claims. The writer streams: header first, then any piece of any tensor.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/runtime/check.h"
#include "kernels/runtime/dtype.h"
#include "llama/base/atomic_file.h"

namespace rz {

class MappedFile;

// Why a file was refused: the reference crate's names.
enum class SafetensorsFault {
    kHeaderTooSmall,
    kHeaderTooLarge,
    kInvalidHeaderLength,
    kInvalidHeader,                 // not UTF-8
    kInvalidHeaderDeserialization,  // not the JSON it should be
    kInvalidOffset,                 // holes or overlaps
    kValidationOverflow,
    kTensorInvalidInfo,         // shape and byte range disagree
    kMisalignedSlice,           // sub-byte elements that do not fill a byte
    kMetadataIncompleteBuffer,  // the file ends elsewhere than the last tensor
};
const char* name(SafetensorsFault);

struct SafetensorsError : Error {
    SafetensorsError(SafetensorsFault f, const std::string& text) : Error(text), fault(f) {}
    SafetensorsFault fault;
};

struct StoredTensor {
    std::string name;
    std::string type;  // as in the file: "F32", "BF16", "I32", ...
    std::vector<int64_t> shape;
    int64_t begin, end;  // bytes, relative to the data
    int64_t elements;

    int64_t bytes() const { return end - begin; }
    std::optional<DType> dtype() const;  // of F32, BF16 and F16
};

struct SafetensorsHeader {
    std::vector<StoredTensor> tensors;  // in file order
    std::map<std::string, std::string> metadata;
    int64_t data_offset = 0;  // of the first tensor, from the beginning of the file
};

// `file` holds the whole file. Throws SafetensorsError starting with `where`.
SafetensorsHeader parse_safetensors(std::string_view file, const std::string& where);

class Safetensors {
   public:
    explicit Safetensors(const std::string& path);
    Safetensors(Safetensors&&) noexcept;
    ~Safetensors();

    const std::string& path() const { return path_; }
    const std::vector<StoredTensor>& tensors() const { return header_.tensors; }
    const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
    const StoredTensor* find(std::string_view name) const;  // nullptr if there is none
    const uint8_t* data(const StoredTensor&) const;         // aligned to nothing

    // out[i] = element first + i, converted to `dtype` (one rounding, to nearest even). Throws if the stored type is
    // none of F32, BF16, F16, or if a finite value has no finite fp16.
    void read(const StoredTensor&, int64_t first, int64_t count, DType dtype, void* out) const;

   private:
    std::string path_;
    std::unique_ptr<MappedFile> file_;
    SafetensorsHeader header_;
    std::unordered_map<std::string, size_t> by_name_;
};

struct TensorSpec {
    std::string name;
    std::string type;
    std::vector<int64_t> shape;
};
std::string safetensors_type(DType);  // "F32", "BF16", "F16"

// The bytes before the data, and where everything will lie: enough for several writers to fill one file.
struct SafetensorsLayout {
    std::string header;            // length and JSON, padded with spaces to a multiple of 8
    std::vector<int64_t> offsets;  // of each tensor, from the beginning of the file
    std::vector<int64_t> sizes;    // bytes
    int64_t file_size = 0;
};
// In the order given. `metadata` gets {"format": "pt"} if it has no format, since transformers insists on one.
SafetensorsLayout layout_safetensors(const std::vector<TensorSpec>&, std::map<std::string, std::string> metadata = {});

class SafetensorsWriter {
   public:
    SafetensorsWriter(std::string path, const std::vector<TensorSpec>&,
                      const std::map<std::string, std::string>& metadata = {});
    // Bytes [offset, offset + bytes) of tensor `index`. Any order, any thread; each byte must be written once.
    void write(size_t index, int64_t offset, const void* data, int64_t bytes);
    // Throws if a tensor is incomplete; else makes the file appear under its name.
    void commit();

   private:
    std::vector<TensorSpec> specs_;
    SafetensorsLayout layout_;
    AtomicFile file_;
    std::vector<int64_t> written_;  // bytes of each tensor
};

// Converts between F32, BF16 and F16 on the host; src need not be aligned. `what` is named if a value has no fp16.
void convert(const void* src, DType from, void* dst, DType to, int64_t count, const char* what);

}  // namespace rz
