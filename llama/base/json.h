#pragma once
// Strict JSON on top of nlohmann-json: a duplicate key, a number out of range, text after the value, or more depth or
// values than the limit (limits.h) is an error. Every error is an rz::Error that starts with `where` (a file's name).
// Include it from .cpp files only: it is slow to compile.

// Parts that are not used here are left out: ranges and paths.
#define JSON_HAS_RANGES 0
#define JSON_HAS_FILESYSTEM 0
#define JSON_HAS_EXPERIMENTAL_FILESYSTEM 0

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "llama/base/limits.h"

namespace rz {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // keeps the order of insertion, for writing

Json parse_json(std::string_view text, const std::string& where, const Limit& limit = kAnyText);
Json read_json(const std::string& path, const Limit& limit = kAnyText);

// Typed members of an object; each throws naming `where`, the key, what was found and what is allowed.
const Json& json_at(const Json& object, const char* key, const std::string& where);
int64_t json_int(const Json& value, const char* key, int64_t min, int64_t max, const std::string& where);
double json_number(const Json& value, const char* key, double min, double max, const std::string& where);
bool json_bool(const Json& value, const char* key, const std::string& where);
std::string json_string(const Json& value, const char* key, const std::string& where);
// The same of what json_at() finds.
int64_t json_int_at(const Json& object, const char* key, int64_t min, int64_t max, const std::string& where);
double json_number_at(const Json& object, const char* key, double min, double max, const std::string& where);
std::string json_string_at(const Json& object, const char* key, const std::string& where);

// A value for an error message: at most 80 characters.
std::string json_excerpt(const Json& value);

// Null and absent are the same: returns nullptr for both.
const Json* json_find(const Json& object, const char* key);

bool valid_utf8(std::string_view text);

// The text with every byte that is no part of UTF-8 replaced by U+FFFD.
std::string replace_invalid_utf8(const std::string& text);

}  // namespace rz
