#include "llama/checkpoint/manifest.h"

#include <cmath>

#include "llama/base/json.h"
#include "llama/base/safetensors.h"
#include "llama/base/sum_hash.h"

namespace rz {

constexpr const char* kFormat = "ringzero checkpoint";
constexpr int64_t kMost = int64_t(1) << 60;

static std::string hex(uint64_t hash) { return format("%016lx", hash); }

// The checksum's place in the whole text, as zeros.
static constexpr std::string_view kNoChecksum = "0000000000000000";
static constexpr std::string_view kChecksumKey = "\"checksum\": \"";

static std::string checksum(std::string text, size_t at) {
    text.replace(at, kNoChecksum.size(), kNoChecksum);
    return hex(text_hash(text));
}

static uint64_t parse_hash(const Json& value, const char* key, const std::string& where) {
    const std::string text = json_string(value, key, where);
    require(text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string::npos,
            "%s: %s: %s is not a hash of 16 hexadecimal digits", where.c_str(), key, json_excerpt(value).c_str());
    return std::stoull(text, nullptr, 16);
}

static bool is_inside(const std::string& path) {
    return !path.empty() && path[0] != '/' && path.find("..") == std::string::npos &&
           path.find('\\') == std::string::npos && path.find('\0') == std::string::npos && path.size() < 256;
}

static DType parse_type(const std::string& text, const std::string& where) {
    if (const std::optional<DType> t = find_dtype(text, &DTypeNames::safetensors)) return *t;
    fail("%s: dtype: \"%s\" is none of F32, BF16, F16", where.c_str(), text.c_str());
}

const ManifestFile* Manifest::find(std::string_view path) const {
    for (const ManifestFile& f : files)
        if (f.path == path) return &f;
    return nullptr;
}

// A path may hold any bytes, JSON only UTF-8: the flags for which that matters, in hexadecimal.
static OrderedJson hex_flags(const std::map<std::string, std::string>& flags) {
    OrderedJson odd = OrderedJson::object();
    for (const auto& [name, value] : flags) {
        if (valid_utf8(value)) continue;
        std::string text;
        for (const char c : value) text += format("%02x", (unsigned char)c);
        odd[name] = text;
    }
    return odd;
}

static std::string from_hex(const std::string& text, const std::string& where) {
    require(text.size() % 2 == 0 && text.find_first_not_of("0123456789abcdef") == std::string::npos,
            "%s: flags_hex: '%s' is not hexadecimal", where.c_str(), text.c_str());
    std::string bytes;
    for (size_t i = 0; i < text.size(); i += 2) bytes += char(std::stoi(text.substr(i, 2), nullptr, 16));
    return bytes;
}

std::string Manifest::to_json() const {
    OrderedJson list = OrderedJson::array();
    for (const ManifestFile& f : files) {
        OrderedJson entry = {{"path", f.path}, {"bytes", f.bytes}, {"hash", hex(f.hash)}};
        if (f.holds_tensors) {
            entry["dtype"] = safetensors_type(f.dtype);
            OrderedJson tensors = OrderedJson::object();
            for (const auto& [name, hash] : f.tensors) tensors[name] = hex(hash);
            entry["tensors"] = tensors;
        }
        list.push_back(entry);
    }
    OrderedJson undone = OrderedJson::array();
    for (const Rollback& r : rollbacks)
        undone.push_back({{"from", r.from}, {"to", r.to}, {"samples", r.samples}, {"reason", r.reason}});
    OrderedJson json = {{"format", kFormat},
                        {"version", kManifestVersion},
                        {"checksum", kNoChecksum},
                        {"run_id", run_id},
                        {"commit", commit},
                        {"written_at", written_at},
                        {"device", device},
                        {"step", step},
                        {"updates", updates},
                        {"samples", samples},
                        {"tokens", tokens},
                        {"data_hash", hex(data_hash)},
                        {"validations", validations},
                        {"seconds", seconds},
                        {"rollbacks", undone},
                        {"ranks", ranks},
                        {"zero", zero},
                        {"flags", flags},
                        {"flags_hex", hex_flags(flags)},
                        {"data", parse_json(data.empty() ? "{}" : data, "data")},
                        {"guards", parse_json(guards.empty() ? "{}" : guards, "guards")},
                        {"files", list}};
    if (!gemm_choices.empty()) json["gemm_choices"] = gemm_choices;
    if (!shards.empty()) {
        OrderedJson sums = OrderedJson::array();
        for (const ShardSum& s : shards) {
            sums.push_back({{"name", s.name}, {"bytes", s.bytes}, {"changed", s.changed}, {"sum", hex(s.sum)}});
            if (s.place >= 0) sums.back().update({{"given", s.given}, {"folder", s.folder}, {"place", s.place}});
        }
        json["shards"] = sums;
    }
    if (loss_scale.scale > 0)
        json["loss_scale"] = {
            {"scale", loss_scale.scale}, {"good", loss_scale.good}, {"patience", loss_scale.patience}};
    if (lr_from_step > 0) {
        json["lr_from_step"] = lr_from_step;
        json["lr_from_rate"] = lr_from_rate;
        json["lr_rewarm"] = lr_rewarm;
    }
    if (nodes > 1) json["nodes"] = nodes;
    if (reports_due) json["reports_due"] = true;
    // Bytes that are no UTF-8 become U+FFFD: they stand in texts for people, and in flags see hex_flags().
    std::string text = json.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
    const size_t at = text.find(kChecksumKey) + kChecksumKey.size();
    text.replace(at, kNoChecksum.size(), checksum(text, at));
    return text;
}

static ManifestFile parse_file(const Json& entry, const std::string& where) {
    require(entry.is_object(), "%s: files: %s is not an object", where.c_str(), json_excerpt(entry).c_str());
    ManifestFile f;
    f.path = json_string_at(entry, "path", where);
    require(is_inside(f.path), "%s: files: \"%s\" is no path inside the checkpoint", where.c_str(), f.path.c_str());
    const std::string place = where + ": " + f.path;
    f.bytes = json_int_at(entry, "bytes", 0, kMost, place);
    f.hash = parse_hash(json_at(entry, "hash", place), "hash", place);
    const Json* tensors = json_find(entry, "tensors");
    if (tensors == nullptr) return f;
    require(tensors->is_object(), "%s: tensors is not an object", place.c_str());
    f.holds_tensors = true;
    f.dtype = parse_type(json_string_at(entry, "dtype", place), place);
    for (const auto& [name, hash] : tensors->items()) f.tensors[name] = parse_hash(hash, name.c_str(), place);
    return f;
}

static Rollback parse_rollback(const Json& entry, const std::string& where) {
    require(entry.is_object(), "%s: rollbacks: %s is not an object", where.c_str(), json_excerpt(entry).c_str());
    const std::string place = where + ": rollbacks";
    const auto get = [&](const char* key) { return json_int_at(entry, key, 0, kMost, place); };
    return {get("from"), get("to"), get("samples"), json_string_at(entry, "reason", place)};
}

static LossScaleRecord parse_loss_scale(const Json& entry, const std::string& where) {
    require(entry.is_object(), "%s: %s is not an object", where.c_str(), json_excerpt(entry).c_str());
    const auto get = [&](const char* key, int64_t min) { return json_int_at(entry, key, min, INT32_MAX, where); };
    LossScaleRecord l{json_number_at(entry, "scale", 0x1p-96, 0x1p96, where), get("good", 0), get("patience", 1)};
    int exponent = 0;
    require(std::frexp(l.scale, &exponent) == 0.5, "%s: scale %g is not a power of two", where.c_str(), l.scale);
    return l;
}

static ShardSum parse_shard(const Json& entry, const std::string& where) {
    require(entry.is_object(), "%s: %s is not an object", where.c_str(), json_excerpt(entry).c_str());
    return {.name = json_string_at(entry, "name", where),
            .bytes = json_int_at(entry, "bytes", 0, INT64_MAX, where),
            .changed = json_int_at(entry, "changed", INT64_MIN, INT64_MAX, where),
            .sum = parse_hash(json_at(entry, "sum", where), "sum", where),
            .given = json_find(entry, "given") ? json_string_at(entry, "given", where) : "",
            .folder = json_find(entry, "folder") ? json_string_at(entry, "folder", where) : "",
            .place = json_find(entry, "place") ? json_int_at(entry, "place", 0, kMost, where)
                                               : -1};  // older manifests have neither folder nor place
}

static std::string object_text(const Json& json, const char* key, const std::string& where) {
    const Json& value = json_at(json, key, where);
    require(value.is_object(), "%s: %s is not an object", where.c_str(), key);
    return value.dump();
}

Manifest Manifest::from_json(std::string_view text, const std::string& where) {
    const Json json = parse_json(text, where, kManifest);
    require(json.is_object(), "%s: not a JSON object", where.c_str());
    const auto get_text = [&](const char* key) { return json_string_at(json, key, where); };
    const auto get_int = [&](const char* key, int64_t max) { return json_int_at(json, key, 0, max, where); };
    require(get_text("format") == kFormat, "%s: its format is \"%s\", not \"%s\"", where.c_str(),
            get_text("format").c_str(), kFormat);
    const int64_t version = get_int("version", kMost);
    require(version == 1 || version == 2,
            "%s: version %ld; this program reads versions 1 and 2: use the program that wrote it", where.c_str(),
            version);
    if (version == 2) {
        const std::string want = get_text("checksum");
        const size_t at = text.find(kChecksumKey);
        require(want.size() == kNoChecksum.size() && at != std::string_view::npos &&
                    checksum(std::string(text), at + kChecksumKey.size()) == want,
                "%s: its text does not have the checksum %s that stands in it: it was changed", where.c_str(),
                want.c_str());
    }
    Manifest m;
    m.run_id = get_text("run_id");
    m.commit = get_text("commit");
    m.written_at = get_text("written_at");
    m.device = get_text("device");
    m.step = get_int("step", kMost);
    // Older manifests do not have it: skipped updates counted then.
    m.updates = json_find(json, "updates") ? get_int("updates", m.step) : m.step;
    m.samples = get_int("samples", kMost);
    m.tokens = get_int("tokens", kMost);
    m.data_hash = parse_hash(json_at(json, "data_hash", where), "data_hash", where);
    m.validations = get_int("validations", kMost);
    m.seconds = json_number_at(json, "seconds", 0, 1e18, where);
    if (json_find(json, "lr_from_step")) {  // nor these
        m.lr_from_step = get_int("lr_from_step", m.step);
        m.lr_rewarm = get_int("lr_rewarm", kMost);
        m.lr_from_rate = json_number_at(json, "lr_from_rate", 0, 1e6, where);
    }
    if (const Json* undone = json_find(json, "rollbacks")) {  // older manifests do not have it
        require(undone->is_array(), "%s: rollbacks is not a list", where.c_str());
        for (const Json& entry : *undone) m.rollbacks.push_back(parse_rollback(entry, where));
    }
    if (const Json* l = json_find(json, "loss_scale")) m.loss_scale = parse_loss_scale(*l, where + ": loss_scale");
    if (const Json* due = json_find(json, "reports_due")) {
        require(due->is_boolean(), "%s: reports_due is neither true nor false", where.c_str());
        m.reports_due = due->get<bool>();
    }
    m.ranks = get_int("ranks", int64_t(1) << 30);
    m.zero = get_int("zero", 3);
    if (json_find(json, "nodes")) m.nodes = std::max<int64_t>(1, get_int("nodes", m.ranks));
    const Json& flags = json_at(json, "flags", where);
    require(flags.is_object(), "%s: flags is not an object", where.c_str());
    for (const auto& [name, value] : flags.items()) m.flags[name] = json_string(value, name.c_str(), where);
    if (const Json* odd = json_find(json, "flags_hex")) {
        require(odd->is_object(), "%s: flags_hex is not an object", where.c_str());
        for (const auto& [name, value] : odd->items())
            m.flags[name] = from_hex(json_string(value, name.c_str(), where), where);
    }
    m.data = object_text(json, "data", where);
    if (const Json* shards = json_find(json, "shards")) {  // older manifests do not have it
        require(shards->is_array(), "%s: shards is not a list", where.c_str());
        for (const Json& entry : *shards) m.shards.push_back(parse_shard(entry, where + ": shards"));
    }
    m.guards = object_text(json, "guards", where);
    if (const Json* choices = json_find(json, "gemm_choices"))  // lines that are not whole are passed over
        m.gemm_choices = json_string(*choices, "gemm_choices", where);
    const Json& files = json_at(json, "files", where);
    require(files.is_array() && !files.empty(), "%s: files is not a list", where.c_str());
    for (const Json& entry : files) {
        m.files.push_back(parse_file(entry, where));
        require(m.find(m.files.back().path) == &m.files.back(), "%s: files: %s is listed twice", where.c_str(),
                m.files.back().path.c_str());
    }
    return m;
}

}  // namespace rz
