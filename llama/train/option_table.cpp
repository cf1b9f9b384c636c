#include "llama/train/option_table.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "llama/base/text.h"

namespace rz {

FlagFound find_flag(std::span<const OptionRow> rows, std::string name) {
    std::replace(name.begin(), name.end(), '_', '-');
    const auto among = [&](const std::vector<std::string>& names) {
        return std::find(names.begin(), names.end(), name) != names.end();
    };
    for (const OptionRow& row : rows)
        if (row.flag == "--" + name || among(row.others)) return {&row};
    for (const OptionRow& row : rows)
        if (among(row.former)) return {&row, false, true};
    if (name.starts_with("no-"))
        if (const FlagFound found = find_flag(rows, name.substr(3)); found.row && found.row->is_switch)
            return {found.row, !found.off, found.former};
    return {};
}

std::string switch_value(const std::string& text, bool turned) {
    const bool on = text == "on" || text == "true" || text == "yes";
    if (!on && text != "off" && text != "false" && text != "no") return text;
    return on != turned ? "on" : "off";
}

std::string wrong_whole_number(const std::string& text, int64_t min, int64_t max) {
    errno = 0;
    char* end = nullptr;
    long double real = std::strtold(text.c_str(), &end);
    const std::string rest = end;
    for (const auto& [unit, size] : {std::pair("kK", 1e3L), {"mM", 1e6L}, {"bBgG", 1e9L}})  // 1k: nearest is 1000
        if (rest.size() == 1 && strchr(unit, rest[0])) real *= size;
    const size_t sign = text.rfind("-", 0) == 0;
    const bool digits = text.size() > sign && text.find_first_not_of("0123456789", sign) == std::string::npos;
    if (digits && real >= (long double)min && real <= (long double)max) return "";
    if (end == text.c_str() || std::isnan(real))
        return format("'%s' is not a whole number; it must be from %ld to %ld", text.c_str(), min, max);
    const long double nearest = std::min(std::max(std::floor(real + 0.5L), (long double)min), (long double)max);
    const char* what = !rest.empty() ? "is not a whole number"
                       : digits      ? "is out of range"
                                     : "is not a plain whole number";
    return format("%s %s; nearest valid value: %ld", text.c_str(), what, int64_t(nearest));
}

std::string wrong_real_number(const std::string& text, double min, double max) {
    char* end = nullptr;
    const double real = std::strtod(text.c_str(), &end);
    if (end == text.c_str() || std::isnan(real))
        return format("'%s' is not a number; it must be from %g to %g", text.c_str(), min, max);
    if (*end == '\0' && real >= min && real <= max) return "";
    return format("%s %s; nearest valid value: %g", text.c_str(), *end ? "is not a number" : "is out of range",
                  std::min(std::max(real, min), max));
}

std::string wrong_name(const std::string& text, const std::vector<std::string>& names) {
    if (std::find(names.begin(), names.end(), text) != names.end()) return "";
    return format("'%s' is not one of %s; nearest: %s", text.c_str(), joined(names, "|").c_str(),
                  nearest_name(text, names).c_str());
}

static std::string whole_range(int64_t min, int64_t max) {
    const std::string from = std::to_string(min);
    return max > INT32_MAX ? "whole numbers from " + from + " on" : from + " to " + std::to_string(max);
}

OptionRow& OptionGroup::add(const FlagName& flag, ResumeClass keeps, const std::string& placeholder,
                            const std::string& default_text, const std::string& help) {
    OptionRow row;
    row.group = heading_;
    row.topic = topic_;
    row.section = section_;
    row.level = section_.empty() ? Level::basic : Level::advanced;
    row.source = flag.source;
    row.keeps = keeps;
    row.flag = flag.text;
    row.placeholder = placeholder;
    row.default_text = default_text;
    row.help = help;
    rows_.push_back(std::move(row));
    return rows_.back();
}

OptionRow& OptionGroup::text(const FlagName& flag, ResumeClass keeps, std::string& to, const char* help,
                             const char* placeholder) {
    OptionRow& row = add(flag, keeps, placeholder, to, help);
    row.set = [&to](const std::string& text) { to = text; };
    return row;
}

OptionRow& OptionGroup::whole(const FlagName& flag, ResumeClass keeps, int64_t& to, int64_t min, int64_t max,
                              const char* help) {
    OptionRow& row = given_whole(flag, keeps, min, max, help, [&to](int64_t value) { to = value; });
    row.default_text = std::to_string(to);
    return row;
}

// "1.5k" is 1500: digits, perhaps with a point, and a unit.
std::string plain_count(const std::string& text) {
    const size_t unit = text.find_first_not_of("0123456789.");
    if (unit == 0 || unit + 1 != text.size()) return text;
    const size_t names = std::string("kKmMbB").find(text[unit]);
    if (names == std::string::npos) return text;
    char* end = nullptr;
    const long double value = std::strtold(text.c_str(), &end) * (names < 2 ? 1e3L : names < 4 ? 1e6L : 1e9L);
    const bool whole = end == text.c_str() + unit && value == std::floor(value) && value < 1e18L;
    return whole ? std::to_string(int64_t(value)) : text;
}

OptionRow& OptionGroup::count(const FlagName& flag, ResumeClass keeps, int64_t& to, int64_t min, int64_t max,
                              const char* help) {
    OptionRow& row = whole(flag, keeps, to, min, max, help);
    row.range += ", also as 1k, 2M, 1.5B";
    row.wrong = [min, max](const std::string& text) { return wrong_whole_number(plain_count(text), min, max); };
    row.plain = plain_count;
    return row;
}

OptionRow& OptionGroup::given_whole(const FlagName& flag, ResumeClass keeps, int64_t min, int64_t max,
                                    const std::string& help, std::function<void(int64_t)> set) {
    OptionRow& row = add(flag, keeps, "N", "", help);
    row.range = whole_range(min, max);
    row.wrong = [min, max](const std::string& text) { return wrong_whole_number(text, min, max); };
    row.set = [set](const std::string& text) { set(std::strtoll(text.c_str(), nullptr, 10)); };
    return row;
}

OptionRow& OptionGroup::checked(const FlagName& flag, ResumeClass keeps, const char* placeholder, const char* help,
                                std::function<std::string(const std::string&)> wrong,
                                std::function<void(const std::string&)> set) {
    OptionRow& row = add(flag, keeps, placeholder, "", help);
    row.wrong = std::move(wrong);
    row.set = std::move(set);
    return row;
}

OptionRow& OptionGroup::real(const FlagName& flag, ResumeClass keeps, double& to, double min, double max,
                             const char* help) {
    std::ostringstream text;
    text << to;
    OptionRow& row = add(flag, keeps, "X", text.str(), help);
    row.range = format("%g to %g", min, max);
    row.wrong = [min, max](const std::string& text) { return wrong_real_number(text, min, max); };
    row.set = [&to](const std::string& text) { to = double(std::strtold(text.c_str(), nullptr)); };
    return row;
}

template <class Switch>
static OptionRow& make_switch(OptionRow& row, Switch& to) {
    row.is_switch = true;
    row.wrong = [](const std::string& text) {
        const std::string value = switch_value(text);
        return value == "on" || value == "off" ? "" : "'" + text + "' is not on or off";
    };
    row.plain = [](const std::string& text) { return switch_value(text); };
    row.set = [&to](const std::string& text) { to = text == "on"; };
    return row;
}

OptionRow& OptionGroup::on_off(const FlagName& flag, ResumeClass keeps, bool& to, const char* help) {
    return make_switch(add(flag, keeps, "on|off", to ? "on" : "off", help), to);
}

OptionRow& OptionGroup::on_off(const FlagName& flag, ResumeClass keeps, std::optional<bool>& to, const char* help) {
    return make_switch(add(flag, keeps, "on|off", "", help), to);
}

OptionRow& OptionGroup::seed(const FlagName& flag, ResumeClass keeps, uint64_t& to, const char* help) {
    OptionRow& row = add(flag, keeps, "N", std::to_string(to), help);
    row.wrong = [](const std::string& text) { return wrong_whole_number(text, 0, INT64_MAX); };
    row.set = [&to](const std::string& text) { to = std::strtoull(text.c_str(), nullptr, 10); };
    return row;
}

OptionRow& OptionGroup::one_of(const FlagName& flag, ResumeClass keeps, const std::vector<std::string>& names,
                               const std::string& default_text, const std::string& help,
                               std::function<void(const std::string&)> set) {
    OptionRow& row = add(flag, keeps, joined(names, "|"), default_text, help);
    row.range = joined(names);
    row.wrong = [names](const std::string& text) { return wrong_name(text, names); };
    row.set = std::move(set);
    return row;
}

}  // namespace rz
