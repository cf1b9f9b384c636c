#include "llama/base/safetensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <tuple>

#include "llama/base/json.h"
#include "llama/base/mapped_file.h"

namespace rz {

static_assert(std::endian::native == std::endian::little, "safetensors files are read and written in place");

constexpr int kPrefix = 8;  // the header's length

const char* name(SafetensorsFault fault) {
    static const char* const kNames[] = {"HeaderTooSmall",
                                         "HeaderTooLarge",
                                         "InvalidHeaderLength",
                                         "InvalidHeader",
                                         "InvalidHeaderDeserialization",
                                         "InvalidOffset",
                                         "ValidationOverflow",
                                         "TensorInvalidInfo",
                                         "MisalignedSlice",
                                         "MetadataIncompleteBuffer"};
    return kNames[int(fault)];
}

// Bits per element; 0 if the format has no such type.
static int bits_of(std::string_view type) {
    static constexpr std::pair<std::string_view, int> kTypes[] = {
        {"F32", 32},        {"BF16", 16}, {"F16", 16},    {"F64", 64},    {"BOOL", 8},    {"U8", 8},
        {"I8", 8},          {"I16", 16},  {"U16", 16},    {"I32", 32},    {"U32", 32},    {"I64", 64},
        {"U64", 64},        {"C64", 64},  {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
        {"F8_E5M2FNUZ", 8}, {"F4", 4},    {"F6_E2M3", 6}, {"F6_E3M2", 6}};
    for (const auto& [name, bits] : kTypes)
        if (name == type) return bits;
    return 0;
}

std::optional<DType> StoredTensor::dtype() const { return find_dtype(type, &DTypeNames::safetensors); }

std::string safetensors_type(DType t) { return names_of(t).safetensors; }

namespace {

// Throws faults that start with the file's name.
struct Refuse {
    const std::string& where;
    [[noreturn]] void operator()(SafetensorsFault fault, const char* what) const {
        throw SafetensorsError(fault, where + ": not a valid safetensors file: " + name(fault) + ": " + what);
    }
    template <class... Args>
    [[noreturn]] void operator()(SafetensorsFault fault, const char* fmt, Args... args) const {
        (*this)(fault, format(fmt, args...).c_str());
    }
};

// One entry of the header, without the checks that need its neighbours.
StoredTensor parse_tensor(const std::string& name, const Json& info, const Refuse& refuse) {
    using enum SafetensorsFault;
    const auto bad = [&](const char* what) {
        refuse(kInvalidHeaderDeserialization, "tensor \"%s\": %s", printable_line(name).c_str(), what);
    };
    if (!info.is_object()) bad("its entry is not an object");
    const auto type = info.find("dtype"), shape = info.find("shape"), offsets = info.find("data_offsets");
    if (type == info.end() || !type->is_string()) bad("dtype is missing or not a string");
    if (shape == info.end() || !shape->is_array()) bad("shape is missing or not an array");
    if (offsets == info.end() || !offsets->is_array() || offsets->size() != 2) bad("data_offsets is not a pair");
    for (const Json* list : {&*shape, &*offsets})
        for (const Json& x : *list)
            if (!x.is_number_unsigned()) bad("shape and data_offsets must hold whole numbers >= 0");

    StoredTensor t;
    t.name = name;
    t.type = type->get<std::string>();
    if (bits_of(t.type) == 0) bad(("dtype " + json_excerpt(*type) + " is unknown").c_str());
    const uint64_t begin = (*offsets)[0], end = (*offsets)[1];
    if (begin > uint64_t(INT64_MAX) || end > uint64_t(INT64_MAX))
        refuse(kInvalidOffset, "tensor \"%s\" lies at bytes [%lu, %lu)", printable_line(name).c_str(), begin, end);
    t.begin = int64_t(begin), t.end = int64_t(end);
    t.elements = 1;
    for (const Json& x : *shape) {
        const uint64_t extent = x.get<uint64_t>();
        if (extent > uint64_t(INT64_MAX) || __builtin_mul_overflow(t.elements, int64_t(extent), &t.elements))
            t.elements = -1;  // reported in file order, as an overflow
        t.shape.push_back(int64_t(std::min<uint64_t>(extent, INT64_MAX)));
        if (t.elements < 0) break;
    }
    return t;
}

void check_layout(const std::vector<StoredTensor>& tensors, int64_t data_bytes, const Refuse& refuse) {
    using enum SafetensorsFault;
    int64_t end = 0;
    for (const StoredTensor& t : tensors) {
        const auto at = [&](const char* what) {
            return format("tensor \"%s\" %s", printable_line(t.name).c_str(), what);
        };
        if (t.begin != end || t.end < t.begin)
            refuse(kInvalidOffset, "%s [%ld, %ld), the previous one ends at %ld", at("lies at bytes").c_str(), t.begin,
                   t.end, end);
        int64_t bits = 0;
        if (t.elements < 0 || __builtin_mul_overflow(t.elements, int64_t(bits_of(t.type)), &bits))
            refuse(kValidationOverflow, "%s", at("has a shape whose size does not fit 64 bits").c_str());
        if (bits % 8 != 0) refuse(kMisalignedSlice, "%s", at("does not fill its last byte").c_str());
        if (bits / 8 != t.bytes())
            refuse(kTensorInvalidInfo, "%s %ld bytes by its shape, %ld by its offsets", at("has").c_str(), bits / 8,
                   t.bytes());
        end = t.end;
    }
    if (end != data_bytes)
        refuse(kMetadataIncompleteBuffer, "the tensors end after %ld bytes of data, the file after %ld", end,
               data_bytes);
}

}  // namespace

SafetensorsHeader parse_safetensors(std::string_view file, const std::string& where) {
    using enum SafetensorsFault;
    const Refuse refuse{where};
    if (file.size() < kPrefix) refuse(kHeaderTooSmall, "%zu bytes, fewer than %d", file.size(), kPrefix);
    uint64_t length = 0;
    std::memcpy(&length, file.data(), kPrefix);
    if (length > uint64_t(kSafetensorsHeader.bytes))
        refuse(kHeaderTooLarge, "a header of %lu bytes, more than %ld", length, kSafetensorsHeader.bytes);
    if (length > file.size() - kPrefix)
        refuse(kInvalidHeaderLength, "a header of %lu bytes in a file of %zu", length, file.size());
    const std::string_view text = file.substr(kPrefix, length);
    if (!valid_utf8(text)) refuse(kInvalidHeader, "the header is not UTF-8");

    SafetensorsHeader header;
    header.data_offset = kPrefix + int64_t(length);
    Json json;
    try {
        json = parse_json(text, "header", kSafetensorsHeader);
    } catch (const Error& e) {
        refuse(kInvalidHeaderDeserialization, "%s", e.what());
    }
    if (!json.is_object()) refuse(kInvalidHeaderDeserialization, "the header is not a JSON object");
    for (const auto& [name, info] : json.items()) {
        if (name != "__metadata__") {
            header.tensors.push_back(parse_tensor(name, info, refuse));
            continue;
        }
        if (!info.is_object()) refuse(kInvalidHeaderDeserialization, "__metadata__ is not an object");
        for (const auto& [key, value] : info.items()) {
            if (!value.is_string())
                refuse(kInvalidHeaderDeserialization, "__metadata__ \"%s\" is not a string",
                       printable_line(key).c_str());
            header.metadata[key] = value.get<std::string>();
        }
    }
    std::sort(header.tensors.begin(), header.tensors.end(),
              [](const auto& a, const auto& b) { return std::tie(a.begin, a.end) < std::tie(b.begin, b.end); });
    check_layout(header.tensors, int64_t(file.size()) - header.data_offset, refuse);
    return header;
}

Safetensors::Safetensors(const std::string& path) : path_(path), file_(std::make_unique<MappedFile>(path)) {
    const auto* bytes = reinterpret_cast<const char*>(file_->data());
    header_ =
        parse_safetensors(bytes == nullptr ? std::string_view() : std::string_view(bytes, size_t(file_->size())), path);
    for (size_t i = 0; i < header_.tensors.size(); ++i) by_name_.emplace(header_.tensors[i].name, i);
}
Safetensors::Safetensors(Safetensors&&) noexcept = default;
Safetensors::~Safetensors() = default;

const StoredTensor* Safetensors::find(std::string_view name) const {
    const auto it = by_name_.find(std::string(name));
    return it == by_name_.end() ? nullptr : &header_.tensors[it->second];
}

const uint8_t* Safetensors::data(const StoredTensor& t) const { return file_->data() + header_.data_offset + t.begin; }

void Safetensors::read(const StoredTensor& t, int64_t first, int64_t count, DType dtype, void* out) const {
    const std::string what = path_ + ": " + t.name;
    require(t.dtype().has_value(), "%s: stored as %s: only F32, BF16 and F16 can be read as weights", what.c_str(),
            t.type.c_str());
    require(first >= 0 && count >= 0 && first <= t.elements - count, "%s: elements [%ld, %ld) of %ld", what.c_str(),
            first, first + count, t.elements);
    convert(data(t) + first * size_of(*t.dtype()), *t.dtype(), out, dtype, count, what.c_str());
}

template <class T>
static float widened(T x) {
    return float(x);
}

// As float(x), but with operations that vectorise: the compiler's own conversion is a call where there is no F16C.
template <>
float widened(f16 x) {
    const uint16_t h = std::bit_cast<uint16_t>(x);
    const uint32_t magnitude = uint32_t(h & 0x7fff) << 13;  // read as fp32, this is the value times 2^-112
    const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
    const uint32_t bits = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : finite;  // else infinity or NaN
    return std::bit_cast<float>(bits | uint32_t(h & 0x8000) << 16);
}

void convert(const void* src, DType from, void* dst, DType to, int64_t count, const char* what) {
    if (from == to) {
        if (count > 0) std::memcpy(dst, src, size_t(count * size_of(from)));
        return;
    }
    const auto* in = static_cast<const uint8_t*>(src);
    with_dtype(from, [&]<class From>() {
        with_dtype(to, [&]<class To>() {
            To* out = static_cast<To*>(dst);
            bool fits = true;
            for (int64_t i = 0; i < count; ++i) {
                From x;
                std::memcpy(&x, in + i * int64_t(sizeof(From)), sizeof(From));
                const float value = widened(x);
                out[i] = To(value);
                if constexpr (std::is_same_v<To, f16>) fits &= std::isfinite(float(out[i])) || !std::isfinite(value);
            }
            require(fits, "%s: holds values beyond fp16's largest, 65504: choose bf16 or fp32", what);
        });
    });
}

// ---- writing ----

SafetensorsLayout layout_safetensors(const std::vector<TensorSpec>& specs,
                                     std::map<std::string, std::string> metadata) {
    metadata.emplace("format", "pt");
    SafetensorsLayout layout;
    OrderedJson json;
    json["__metadata__"] = metadata;
    int64_t end = 0;
    for (const TensorSpec& spec : specs) {
        const int bits = bits_of(spec.type);
        require(bits >= 8, "%s: type %s can't be written", spec.name.c_str(), spec.type.c_str());
        int64_t bytes = bits / 8;
        for (const int64_t extent : spec.shape) bytes = checked_mul(bytes, extent, spec.name.c_str());
        require(!json.contains(spec.name), "%s: two tensors of this name in one file", spec.name.c_str());
        const int64_t begin = end;
        end = checked_add(end, bytes, "size of the safetensors file");
        json[spec.name] = {{"dtype", spec.type}, {"shape", spec.shape}, {"data_offsets", {begin, end}}};
        layout.offsets.push_back(begin);
        layout.sizes.push_back(bytes);
    }
    std::string text = json.dump();
    text.resize(size_t(round_up(int64_t(text.size()), 8)), ' ');
    const uint64_t length = text.size();
    if (int64_t(length) > kSafetensorsHeader.bytes)
        throw SafetensorsError(
            SafetensorsFault::kHeaderTooLarge,
            format("a safetensors header of %lu bytes is not allowed: at most %ld", length, kSafetensorsHeader.bytes));
    layout.header.assign(reinterpret_cast<const char*>(&length), kPrefix);
    layout.header += text;
    for (int64_t& offset : layout.offsets) offset += int64_t(layout.header.size());
    layout.file_size = checked_add(int64_t(layout.header.size()), end, "size of the safetensors file");
    return layout;
}

SafetensorsWriter::SafetensorsWriter(std::string path, const std::vector<TensorSpec>& specs,
                                     const std::map<std::string, std::string>& metadata)
    : specs_(specs),
      layout_(layout_safetensors(specs, metadata)),
      file_(std::move(path), layout_.file_size),
      written_(specs.size(), 0) {
    file_.append(layout_.header.data(), int64_t(layout_.header.size()));
}

void SafetensorsWriter::write(size_t index, int64_t offset, const void* data, int64_t bytes) {
    const int64_t size = layout_.sizes.at(index);
    require(offset >= 0 && bytes >= 0 && offset <= size - bytes, "%s: %s: bytes [%ld, %ld) of %ld",
            file_.path().c_str(), specs_[index].name.c_str(), offset, offset + bytes, size);
    file_.write_at(layout_.offsets[index] + offset, data, bytes);
    __atomic_fetch_add(&written_[index], bytes, __ATOMIC_RELAXED);
}

void SafetensorsWriter::commit() {
    for (size_t i = 0; i < specs_.size(); ++i)
        require(written_[i] == layout_.sizes[i], "%s: %s: %ld bytes were written, it has %ld", file_.path().c_str(),
                specs_[i].name.c_str(), written_[i], layout_.sizes[i]);
    file_.commit();
}

}  // namespace rz
