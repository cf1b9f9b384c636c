#include "llama/base/json.h"

#include <cmath>
#include <unordered_set>
#include <vector>

#include "kernels/runtime/check.h"
#include "llama/base/atomic_file.h"
#include "llama/base/text.h"

namespace rz {

namespace {

// Duplicate keys, depth and number of values, in a pass of its own: nlohmann-json's parser with a callback looks
// through all members of an object whenever one of them ends, which is quadratic.
class Strict : public nlohmann::json_sax<Json> {
   public:
    Strict(const std::string& where, const Limit& limit) : where_(where), limit_(limit) {}
    bool null() override { return more(); }
    bool boolean(bool) override { return more(); }
    bool number_integer(int64_t) override { return more(); }
    bool number_unsigned(uint64_t) override { return more(); }
    bool number_float(double, const std::string&) override { return more(); }
    bool string(std::string&) override { return more(); }
    bool binary(Json::binary_t&) override { return more(); }
    bool start_object(size_t) override {
        keys_.emplace_back();
        return deeper();
    }
    bool end_object() override {
        keys_.pop_back();
        --depth_;
        return true;
    }
    bool start_array(size_t) override { return deeper(); }
    bool end_array() override {
        --depth_;
        return true;
    }
    bool key(std::string& key) override {
        if (!keys_.back().insert(key).second) fail("%s: duplicate JSON key \"%s\"", where_.c_str(), key.c_str());
        return true;
    }
    bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

   private:
    bool deeper() {
        if (++depth_ > limit_.depth) fail("%s: JSON nested deeper than %ld", where_.c_str(), limit_.depth);
        return more();
    }
    bool more() {
        if (++values_ > limit_.values)
            fail("%s: more than %ld JSON values are too many for %s", where_.c_str(), limit_.values, limit_.what);
        return true;
    }
    const std::string& where_;
    const Limit& limit_;
    std::vector<std::unordered_set<std::string>> keys_;  // of the objects that are open
    int64_t depth_ = 0, values_ = 0;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& where, const Limit& limit) {
    Strict strict(where, limit);
    Json::sax_parse(text.begin(), text.end(), &strict);  // what is no JSON at all is told below
    try {
        return Json::parse(text.begin(), text.end());
    } catch (const Json::exception& e) {
        fail("%s: not valid JSON: %s", where.c_str(), e.what());
    }
}

Json read_json(const std::string& path, const Limit& limit) { return parse_json(read_file(path, limit), path, limit); }

std::string json_excerpt(const Json& value) {
    if (value.is_structured() && value.size() > 16) return format("%s of %zu", value.type_name(), value.size());
    std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text.size() > 80) text = text.substr(0, 77) + "...";
    return text;
}

const Json* json_find(const Json& object, const char* key) {
    const auto it = object.find(key);
    return it == object.end() || it->is_null() ? nullptr : &*it;
}

const Json& json_at(const Json& object, const char* key, const std::string& where) {
    require(object.is_object(), "%s: expected a JSON object with \"%s\", found %s", where.c_str(), key,
            json_excerpt(object).c_str());
    const Json* value = json_find(object, key);
    require(value != nullptr, "%s: \"%s\" is missing", where.c_str(), key);
    return *value;
}

int64_t json_int(const Json& value, const char* key, int64_t min, int64_t max, const std::string& where) {
    const bool fits =
        value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t(INT64_MAX) : value.is_number_integer();
    const int64_t x = fits ? value.get<int64_t>() : 0;
    require(fits && x >= min && x <= max, "%s: %s = %s must be a whole number from %ld to %ld", where.c_str(), key,
            json_excerpt(value).c_str(), min, max);
    return x;
}

double json_number(const Json& value, const char* key, double min, double max, const std::string& where) {
    const double x = value.is_number() ? value.get<double>() : NAN;
    require(x >= min && x <= max, "%s: %s = %s must be a number from %g to %g", where.c_str(), key,
            json_excerpt(value).c_str(), min, max);
    return x;
}

bool json_bool(const Json& value, const char* key, const std::string& where) {
    require(value.is_boolean(), "%s: %s = %s must be true or false", where.c_str(), key, json_excerpt(value).c_str());
    return value.get<bool>();
}

std::string json_string(const Json& value, const char* key, const std::string& where) {
    require(value.is_string(), "%s: %s = %s must be a string", where.c_str(), key, json_excerpt(value).c_str());
    return value.get<std::string>();
}

int64_t json_int_at(const Json& object, const char* key, int64_t min, int64_t max, const std::string& where) {
    return json_int(json_at(object, key, where), key, min, max, where);
}
double json_number_at(const Json& object, const char* key, double min, double max, const std::string& where) {
    return json_number(json_at(object, key, where), key, min, max, where);
}
std::string json_string_at(const Json& object, const char* key, const std::string& where) {
    return json_string(json_at(object, key, where), key, where);
}

bool valid_utf8(std::string_view text) {
    for (size_t at = 0; at < text.size();) {
        const unicode::Utf8Char c = unicode::next_char(text, at);
        if (c.status != unicode::Utf8::kValid) return false;
        at += size_t(c.bytes);
    }
    return true;
}

std::string replace_invalid_utf8(const std::string& text) {
    return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
}

}  // namespace rz
