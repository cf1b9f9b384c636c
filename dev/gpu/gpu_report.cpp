// Keeps the report of dev/gpu/gpu_check.sh: report.json, complete and valid after every stage, and report.md made from
// it.
//
//   gpu_report begin DIR COMMIT DEVICE DATE COMMAND DRY_RUN STAGE...    these are going to run; DRY_RUN is 0 or 1
//   gpu_report stage DIR NAME STATUS SECONDS NOTE [ROWS]    how one stands; ROWS has a JSON object per line
//   gpu_report status DIR                                   prints the table; exit code 1 unless all is well
//   gpu_report profile-rows CSV SHAPE                       prints a row per kernel of what  ncu --csv --page raw
//   wrote; exit
//                                                           code 1 if there is none
//   gpu_report zero-row RANKS_JSON SAFETENSORS STAGE        prints a row of ZeRO's memory from a run's files; exit
//                                                           code 1 if a rank keeps 0.5 % more than the paper says
//
// STATUS: running, ok, failed, timed-out, interrupted, unavailable (something it needs is not there), not-measured (in
// a dry run) or not-run. Results of other stages that DIR already has are kept if they are of the same commit, device
// and kind of run, and refused otherwise. Both files are replaced as a whole. Stands alone, so that it can be compiled
// before anything else.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Json = nlohmann::ordered_json;
using Table = std::vector<std::vector<std::string>>;

// ---- values of rows: absent, null or of another type is not there
// ----------------------------------------------------------

std::optional<double> number(const Json& row, const char* key) {
    const auto at = row.find(key);
    if (at == row.end() || !at->is_number()) return {};
    return at->get<double>();
}

std::string text(const Json& row, const char* key, const std::string& otherwise = "") {
    const auto at = row.find(key);
    if (at == row.end() || at->is_null()) return otherwise;
    return at->is_string() ? at->get<std::string>() : at->dump();
}

std::string print(const char* how, std::optional<double> value, double scale = 1) {
    if (!value) return "-";
    char buffer[64];
    std::snprintf(buffer, sizeof buffer, how, *value * scale);
    return buffer;
}

// The type of weights and activations, of the products if they are in fp8, and of the state.
std::string type_text(const Json& r) {
    const std::string fp8 = text(r, "fp8", "none");
    return text(r, "dtype") + (fp8 == "none" ? "" : ", fp8 " + fp8) +
           (text(r, "state") == "bf16" ? ", also masters and moments" : "");
}

std::string bytes_text(std::optional<double> bytes) {
    return !bytes ? "-" : *bytes < 0x1p30 ? print("%.1f MiB", bytes, 0x1p-20) : print("%.2f GiB", bytes, 0x1p-30);
}

// ---- files
// -----------------------------------------------------------------------------------------------------------------

void write_whole(const std::string& path, const std::string& content) {
    const std::string temporary = path + ".tmp";
    const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    bool good = fd >= 0;
    for (size_t at = 0; good && at < content.size();) {
        const ssize_t n = write(fd, content.data() + at, content.size() - at);
        good = n > 0;
        at += good ? size_t(n) : 0;
    }
    good = good && fsync(fd) == 0;
    if (fd >= 0) close(fd);
    if (!good || rename(temporary.c_str(), path.c_str()) != 0) {
        unlink(temporary.c_str());
        throw std::runtime_error("can't write " + path);
    }
}

std::optional<Json> read_report(const std::string& folder) {
    std::ifstream file(folder + "/report.json");
    if (!file) return {};
    Json report = Json::parse(file, nullptr, /*allow_exceptions=*/false);
    if (!report.is_object() || report.value("version", 0) != 1 || !report["stages"].is_object())
        throw std::runtime_error(folder + "/report.json is no report of gpu_check: choose another --out");
    return report;
}

// One object per line; what a killed program left half written is counted, not kept.
Json read_rows(const std::string& path, int& bad) {
    Json rows = Json::array();
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        if (line.empty()) continue;
        Json row = Json::parse(line, nullptr, false);
        if (row.is_object() && row.contains("kind"))
            rows.push_back(std::move(row));
        else
            ++bad;
    }
    return rows;
}

// ---- tables of the report
// ----------------------------------------------------------------------------------------------------

std::string cell(std::string s) {
    for (size_t at = 0; (at = s.find('|', at)) != std::string::npos; at += 2) s.insert(at, "\\");
    for (char& c : s)
        if (c == '\n') c = ' ';
    return s;
}

void print_table(std::ostream& out, const Table& table) {
    if (table.size() < 2) return;
    for (size_t i = 0; i < table.size(); ++i) {
        out << "|";
        for (const std::string& c : table[i]) out << " " << cell(c) << " |";
        out << "\n";
        if (i == 0) {
            for (size_t c = 0; c < table[0].size(); ++c) out << (c ? "---|" : "|---|");
            out << "\n";
        }
    }
    out << "\n";
}

struct Kind {
    std::vector<std::string> head;
    std::function<std::vector<std::string>(const Json&)> cells;
};

std::string rate_text(const Json& row) {
    const std::string unit = text(row, "unit");
    if (unit == "GFLOP/s" && number(row, "rate").value_or(0) >= 1000)
        return print("%.1f TFLOP/s", number(row, "rate"), 1e-3);
    return print("%.1f ", number(row, "rate")) + unit;
}

// Its name depends on the architecture.
std::optional<double> tensor_pipe(const Json& row) {
    std::optional<double> most;
    for (const auto& [key, value] : row.items())
        if (key.find("pipe_tensor") != std::string::npos && value.is_number())
            most = std::max(most.value_or(0), value.get<double>());
    return most;
}

const std::vector<std::pair<std::string, Kind>>& kinds() {
    using Row = std::vector<std::string>;
    static const std::vector<std::pair<std::string, Kind>> all = {
        {"fact",
         {{"what", "value"},
          [](const Json& r) {
              return Row{text(r, "name"), text(r, "value")};
          }}},
        {"tests",
         {{"tests", "passed", "failed", "skipped", "not run", "seconds"},
          [](const Json& r) {
              return Row{text(r, "suite"),   text(r, "passed"),       text(r, "failed"),
                         text(r, "skipped"), text(r, "not_run", "-"), text(r, "seconds", "-")};
          }}},
        {"ceiling",
         {{"ceiling", "rate", "device"},
          [](const Json& r) {
              return Row{text(r, "what"), rate_text(r), text(r, "device")};
          }}},
        {"kernel",
         {{"op", "shape, type", "time", "rate", "of the measured ceiling", "wrong elements"},
          [](const Json& r) {
              const auto wrong = number(r, "wrong");
              return Row{text(r, "op"),
                         text(r, "shape"),
                         print("%.1f us", number(r, "seconds"), 1e6),
                         rate_text(r),
                         print("%.1f %%", number(r, "of_peak"), 100),
                         wrong && *wrong < 0 ? "not checked" : text(r, "wrong", "-")};
          }}},
        {"train",
         {{"model", "program", "parameters", "layers", "batch", "type, recompute", "tokens/s", "TFLOP/s", "MFU",
           "peak memory"},
          [](const Json& r) {
              const std::string asked = text(r, "layers_asked"), layers = text(r, "layers", "-");
              if (r.contains("error"))
                  return Row{text(r, "model"),
                             text(r, "program"),
                             "-",
                             layers,
                             text(r, "batch") + " x " + text(r, "seq_len"),
                             text(r, "dtype"),
                             "not measured: " + text(r, "error"),
                             "-",
                             "-",
                             "-"};
              return Row{
                  text(r, "model"),
                  text(r, "program"),
                  print("%.1f M", number(r, "parameters"), 1e-6),
                  asked.empty() || asked == layers ? layers : layers + " (of " + asked + ": the rest did not fit)",
                  text(r, "batch") + " x " + text(r, "seq_len"),
                  type_text(r) + (text(r, "recompute", "none") == "none" ? "" : ", " + text(r, "recompute")) +
                      (text(r, "cuda_graphs") == "true" ? ", CUDA graphs" : ""),
                  print("%.0f", number(r, "tokens_per_s")),
                  print("%.2f", number(r, "flops"), 1e-12),
                  print("%.1f %%", number(r, "mfu"), 100),
                  bytes_text(number(r, "peak_bytes"))};
          }}},
        {"profile",
         {{"kernel", "shape", "time", "DRAM", "L2", "tensor pipe", "issue slots", "warps", "registers",
           "bank conflicts"},
          [](const Json& r) {
              return Row{text(r, "kernel"),
                         text(r, "shape"),
                         print("%.1f us", number(r, "gpu__time_duration.sum"), 1e-3),
                         print("%.1f %%", number(r, "dram__throughput.avg.pct_of_peak_sustained_elapsed")),
                         print("%.1f %%", number(r, "lts__throughput.avg.pct_of_peak_sustained_elapsed")),
                         print("%.1f %%", tensor_pipe(r)),
                         print("%.1f %%", number(r, "smsp__issue_active.avg.pct_of_peak_sustained_active")),
                         print("%.1f %%", number(r, "sm__warps_active.avg.pct_of_peak_sustained_active")),
                         print("%.0f", number(r, "launch__registers_per_thread")),
                         print("%.0f", number(r, "l1tex__data_bank_conflicts_pipe_lsu.sum"))};
          }}},
        {"ranks",
         {{"several ranks", "ranks", "result"},
          [](const Json& r) {
              return Row{text(r, "what"), text(r, "ranks"), text(r, "result")};
          }}},
        {"zero_memory",
         {{"ZeRO stage", "ranks", "bytes per parameter, measured", "by the paper", "parameters", "gradients",
           "optimizer", "peak"},
          [](const Json& r) {
              return Row{text(r, "stage"),
                         text(r, "ranks"),
                         print("%.3f", number(r, "bytes_per_parameter")),
                         print("%.3f", number(r, "expected")),
                         bytes_text(number(r, "parameters_bytes")),
                         bytes_text(number(r, "gradients_bytes")),
                         bytes_text(number(r, "optimizer_bytes")),
                         bytes_text(number(r, "peak_bytes"))};
          }}},
        {"not measured",
         {{"not measured", "why"},
          [](const Json& r) {
              return Row{text(r, "what"), text(r, "why")};
          }}},
    };
    return all;
}

// Prints what one stage found
void print_rows(std::ostream& out, const Json& rows) {
    for (const auto& [name, kind] : kinds()) {
        Table table{kind.head};
        for (const Json& row : rows)
            if (text(row, "kind") == name) table.push_back(kind.cells(row));
        print_table(out, table);
    }
    for (const Json& row : rows)
        if (text(row, "kind") == "classes") {
            out << "Where a step goes: " << text(row, "model") << ", " << text(row, "batch") << " x "
                << text(row, "seq_len") << ", " << text(row, "dtype") << "; "
                << print("%.2f ms", number(row, "step_seconds"), 1e3)
                << " with events around each op, which makes it slower.\n\n";
            Table table{{"op", "calls", "time", "share"}};
            if (row.contains("ops") && row["ops"].is_array())
                for (const Json& op : row["ops"])
                    table.push_back({text(op, "op"), print("%.0f", number(op, "calls")),
                                     print("%.3f ms", number(op, "seconds"), 1e3),
                                     print("%.1f %%", number(op, "share"), 100)});
            print_table(out, table);
        }
    for (const Json& row : rows)
        if (text(row, "kind") == "text") out << "```\n" << text(row, "text") << "\n```\n\n";
}

// Every stage's, before all else
void print_failures(std::ostream& out, const Json& report) {
    Table table{{"stage", "what failed", "how", "its first or last words"}};
    for (const auto& [name, stage] : report["stages"].items())
        for (const Json& row : stage.value("rows", Json::array()))
            if (text(row, "kind") == "failure")
                table.push_back({name, text(row, "name"), text(row, "how"), text(row, "message")});
    if (table.size() > 1) out << "## What failed\n\n";
    print_table(out, table);
}

// ---- both programs side by side
// ------------------------------------------------------------------------------------------------

std::vector<Json> rows_of_kind(const Json& report, const char* kind) {
    std::vector<Json> all;
    for (const auto& [name, stage] : report["stages"].items())
        for (const Json& row : stage.value("rows", Json::array()))
            if (text(row, "kind") == kind) all.push_back(row);
    return all;
}

std::string identity(const Json& row) {
    std::string id;
    for (const char* key : {"model", "layers", "batch", "seq_len", "dtype", "state", "device"})
        id += text(row, key) + "\t";
    return id;
}

// The same model, batch and device; PyTorch's fastest variant counts.
void print_speed_ratio(std::ostream& out, const Json& report) {
    const std::vector<Json> rows = rows_of_kind(report, "train");
    Table table{{"model", "batch", "type", "ringzero tokens/s", "PyTorch tokens/s", "PyTorch variant", "ratio"}};
    for (const Json& ours : rows) {
        if (text(ours, "program") != "ringzero" || !number(ours, "tokens_per_s")) continue;
        const Json* best = nullptr;
        for (const Json& theirs : rows)
            if (text(theirs, "program").starts_with("pytorch") && identity(theirs) == identity(ours) &&
                number(theirs, "tokens_per_s"))
                if (!best || *number(theirs, "tokens_per_s") > *number(*best, "tokens_per_s")) best = &theirs;
        if (!best) continue;
        const double ratio = *number(ours, "tokens_per_s") / *number(*best, "tokens_per_s");
        table.push_back({text(ours, "model") + (text(ours, "cuda_graphs") == "true" ? ", CUDA graphs" : ""),
                         text(ours, "batch") + " x " + text(ours, "seq_len"), type_text(ours),
                         print("%.0f", number(ours, "tokens_per_s")), print("%.0f", number(*best, "tokens_per_s")),
                         text(*best, "program"), print("%.2f", ratio)});
    }
    if (table.size() > 1)
        out << "## Beside PyTorch\n\nThe same model, batch and types of masters and moments in the same "
               "run, PyTorch's fastest variant.\n\n";
    print_table(out, table);
}

// fp8 beside bf16: the same model, batch and device.
constexpr double kFp8Goal = 1.45;  // at a 7B model's shape

void print_fp8_ratio(std::ostream& out, const Json& report) {
    const std::vector<Json> rows = rows_of_kind(report, "train");
    const auto plain = [](const Json& r) { return text(r, "fp8", "none") == "none"; };
    const auto alike = [](const Json& a, const Json& b) {
        for (const char* key : {"recompute", "cuda_graphs", "moments"})
            if (text(a, key) != text(b, key)) return false;
        return identity(a) == identity(b);
    };
    Table table{{"model", "batch", "fp8", "tokens/s", "bf16 tokens/s", "ratio"}};
    for (const Json& fp8 : rows)
        for (const Json& bf16 : rows) {
            if (plain(fp8) || !plain(bf16) || text(bf16, "program") != "ringzero" || !alike(fp8, bf16)) continue;
            const auto a = number(fp8, "tokens_per_s"), b = number(bf16, "tokens_per_s");
            if (!a || !b) continue;
            table.push_back({text(fp8, "model"), text(fp8, "batch") + " x " + text(fp8, "seq_len"), text(fp8, "fp8"),
                             print("%.0f", a), print("%.0f", b), print("%.2f", *a / *b)});
            break;
        }
    if (table.size() > 1)
        out << "## fp8 beside bf16\n\nThe goal is " << print("%.2f", kFp8Goal) << " at a 7B model's shape.\n\n";
    print_table(out, table);
}

// Means over windows of ten steps, so that a single batch's noise does not decide.
void print_curves(std::ostream& out, const Json& report) {
    const std::vector<Json> rows = rows_of_kind(report, "curve");
    for (const Json& ours : rows)
        for (const Json& theirs : rows) {
            if (text(ours, "program") != "ringzero" || !text(theirs, "program").starts_with("pytorch") ||
                identity(ours) != identity(theirs))
                continue;
            const auto losses = [](const Json& r) {
                return r.value("losses", Json::array()).get<std::vector<double>>();
            };
            const std::vector<double> a = losses(ours), b = losses(theirs);
            const size_t steps = std::min(a.size(), b.size()), window = steps >= 50 ? 10 : 1;
            if (a.size() != b.size() || steps == 0) {
                out << "## Loss curves\n\nringzero has " << a.size() << " steps, PyTorch " << b.size()
                    << ": not compared.\n\n";
                continue;
            }
            double worst = 0;
            Table table{{"steps", "ringzero", text(theirs, "program"), "difference"}};
            for (size_t first = 0; first + window <= steps; first += window) {
                double x = 0, y = 0;
                for (size_t i = first; i < first + window; ++i) x += a[i] / double(window), y += b[i] / double(window);
                const double difference = (x - y) / y;
                worst = std::max(worst, std::abs(difference));
                if (first / window % std::max<size_t>(1, steps / window / 10) == 0 || first + 2 * window > steps)
                    table.push_back({std::to_string(first + 1) + " to " + std::to_string(first + window),
                                     print("%.4f", x), print("%.4f", y), print("%+.3f %%", difference, 100)});
            }
            out << "## Loss curves\n\nThe same weights and data, " << text(ours, "model") << ", " << text(ours, "dtype")
                << ", " << steps << " steps, means of " << window << ": they differ by at most "
                << print("%.3f %%", worst, 100) << " (" << (worst <= 0.005 ? "within" : "**beyond**")
                << " the 0.5 % asked for).\n\n";
            print_table(out, table);
        }
}

// ---- the report
// ------------------------------------------------------------------------------------------------------------------

std::string explain(const std::string& status) {
    if (status == "running") return "**was running when the check was killed**";
    if (status == "failed" || status == "timed-out" || status == "interrupted" || status == "not-run")
        return "**" + status + "**";
    return status;
}

void write_report(const std::string& folder, const Json& report) {
    std::ostringstream md;
    const bool dry = report.value("dry_run", false);
    md << "# " << (dry ? "Dry run of the GPU check" : "GPU check: " + text(report, "device")) << "\n\n";
    if (dry)
        md << "**A dry run: the check's logic on the CPU (" << text(report, "device")
           << "), at the smallest sizes. Nothing here is a measurement of a GPU.**\n\n";
    md << text(report, "date") << ", commit " << text(report, "commit") << "\n\n    " << text(report, "command")
       << "\n\n";
    Table stages{{"stage", "result", "seconds", "note"}};
    for (const auto& [name, stage] : report["stages"].items())
        stages.push_back(
            {name, explain(text(stage, "status")), print("%.0f", number(stage, "seconds")), text(stage, "note")});
    print_table(md, stages);
    print_failures(md, report);
    print_speed_ratio(md, report);
    print_fp8_ratio(md, report);
    print_curves(md, report);
    for (const auto& [name, stage] : report["stages"].items()) {
        const Json rows = stage.value("rows", Json::array());
        if (rows.empty()) continue;
        md << "## " << name << "\n\n";
        print_rows(md, rows);
    }
    md << "Rates count only the bytes or operations that an op cannot avoid, and are compared with a device copy or "
          "the largest GEMM "
          "measured in the same run. Training FLOPs per token: 6 per matrix parameter and 6 L H D T of causal "
          "attention; MFU = "
          "FLOPs per token x tokens/s / the vendor's dense bf16 peak (989 TFLOP/s for H100 and H200). Memory is the "
          "ledger's "
          "peak for ringzero and the allocator's for PyTorch. No bandwidth between ranks is reported from a shared "
          "GPU.\n";
    write_whole(folder + "/report.json", report.dump(1) + "\n");
    write_whole(folder + "/report.md", md.str());
}

int begin(const std::vector<std::string>& a) {
    const std::string folder = a[1];
    Json report = {{"version", 1},    {"commit", a[2]},         {"device", a[3]},          {"date", a[4]},
                   {"command", a[5]}, {"dry_run", a[6] == "1"}, {"stages", Json::object()}};
    if (const auto old = read_report(folder)) {
        for (const char* key : {"commit", "device", "dry_run"})
            if ((*old)[key] != report[key])
                throw std::runtime_error(folder + "/report.json has results with another " + key + " (" +
                                         (*old)[key].dump() + ", now " + report[key].dump() +
                                         "): choose another --out");
        report["stages"] = (*old)["stages"];
    }
    for (size_t i = 7; i < a.size(); ++i) report["stages"][a[i]] = {{"status", "not-run"}};
    write_report(folder, report);
    return 0;
}

int stage(const std::vector<std::string>& a) {
    const std::string folder = a[1];
    auto report = read_report(folder);
    if (!report) throw std::runtime_error(folder + "/report.json is not there: begin first");
    Json entry = {{"status", a[3]}, {"seconds", std::atof(a[4].c_str())}, {"note", a[5]}};
    int bad = 0;
    if (a.size() > 6) entry["rows"] = read_rows(a[6], bad);
    if (bad > 0)
        entry["note"] = text(entry, "note") + " (" + std::to_string(bad) + " lines of results were no JSON objects)";
    (*report)["stages"][a[2]] = entry;
    write_report(folder, *report);
    return 0;
}

int status(const std::vector<std::string>& a) {
    const auto report = read_report(a[1]);
    if (!report) throw std::runtime_error(a[1] + "/report.json is not there");
    bool well = true;
    for (const auto& [name, stage] : (*report)["stages"].items()) {
        const std::string result = text(stage, "status");
        well = well && (result == "ok" || result == "unavailable" ||
                        (result == "not-measured" && report->value("dry_run", false)));
        std::printf("%-12s %-12s %6s s  %s\n", name.c_str(), result.c_str(),
                    print("%.0f", number(stage, "seconds")).c_str(), text(stage, "note").c_str());
    }
    return well ? 0 : 1;
}

// The fields of a line of CSV: quoted, with commas and doubled quotes inside.
std::vector<std::string> csv_fields(const std::string& line) {
    std::vector<std::string> fields(1);
    bool quoted = false;
    for (size_t i = 0; i < line.size(); ++i) {
        const char c = line[i];
        if (c == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"')
            fields.back() += line[++i];
        else if (c == '"')
            quoted = !quoted;
        else if (c == ',' && !quoted)
            fields.emplace_back();
        else if (c != '\r')
            fields.back() += c;
    }
    return fields;
}

// Lines of the profiler's own come first, then names, then units, then a line per kernel. Numbers may have commas.
int profile_rows(const std::vector<std::string>& a) {
    std::ifstream file(a[1]);
    std::vector<std::string> names;
    int kernels = 0;
    for (std::string line; std::getline(file, line);) {
        const std::vector<std::string> fields = csv_fields(line);
        if (fields[0] == "ID") names = fields;
        if (fields.size() != names.size() || fields[0].find_first_not_of("0123456789") != std::string::npos ||
            fields[0].empty())
            continue;
        Json row = {{"kind", "profile"}, {"shape", a[2]}};
        for (size_t i = 1; i < fields.size(); ++i) {
            std::string digits = fields[i];
            std::erase(digits, ',');
            char* end = nullptr;
            const double value = std::strtod(digits.c_str(), &end);
            if (names[i] == "Kernel Name")
                row["kernel"] = fields[i].substr(0, fields[i].find('('));
            else if (names[i] == "Grid Size" || names[i] == "Block Size")
                row[names[i]] = fields[i];
            else if (names[i].find("__") != std::string::npos && !digits.empty() && *end == '\0')
                row[names[i]] = value;
        }
        std::cout << row.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
        ++kernels;
    }
    return kernels > 0 ? 0 : 1;
}

int64_t count_parameters(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    unsigned char size[8] = {};
    file.read(reinterpret_cast<char*>(size), 8);
    uint64_t bytes = 0;
    for (int i = 7; i >= 0; --i) bytes = bytes << 8 | size[i];
    if (!file || bytes > (64u << 20)) throw std::runtime_error(path + ": no safetensors file");
    std::string header(bytes, ' ');
    file.read(header.data(), std::streamsize(bytes));
    const Json tensors = Json::parse(header, nullptr, false);
    int64_t total = 0;
    for (const auto& [name, tensor] : tensors.items()) {
        if (!tensor.is_object() || !tensor.contains("shape")) continue;
        int64_t n = 1;
        for (const Json& extent : tensor["shape"]) n *= extent.get<int64_t>();
        total += n;
    }
    if (total == 0) throw std::runtime_error(path + ": no tensors");
    return total;
}

// bf16 parameters and gradients, fp32 master, m and v: table 1 of Rajbhandari et al. 2020. Of the rank that keeps most.
int zero_row(const std::vector<std::string>& a) {
    std::ifstream file(a[1]);
    const Json ranks = Json::parse(file, nullptr, false);
    if (!ranks.is_array() || ranks.empty()) throw std::runtime_error(a[1] + ": no report of ranks");
    const double parameters = double(count_parameters(a[2])), n = double(ranks.size());
    const int stage = std::atoi(a[3].c_str());
    const double expected = stage == 0 ? 16 : stage == 1 ? 4 + 12 / n : stage == 2 ? 2 + 14 / n : 16 / n;
    Json most;
    double most_kept = 0;
    for (const Json& rank : ranks) {
        const Json& peak = rank.at("memory_peak");
        double kept = 0;
        for (const char* kind : {"parameters", "gradients", "optimizer"}) kept += peak.at(kind).get<double>();
        if (kept > most_kept) most_kept = kept, most = peak;
    }
    const double measured = most_kept / parameters;
    std::cout << Json{{"kind", "zero_memory"},
                      {"stage", stage},
                      {"ranks", ranks.size()},
                      {"parameters", parameters},
                      {"bytes_per_parameter", measured},
                      {"expected", expected},
                      {"parameters_bytes", most.at("parameters")},
                      {"gradients_bytes", most.at("gradients")},
                      {"optimizer_bytes", most.at("optimizer")},
                      {"peak_bytes", most.at("total")}}
                     .dump()
              << std::endl;
    return measured <= 1.005 * expected ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    const std::vector<std::string> a(argv + 1, argv + argc);
    try {
        if (a.size() >= 8 && a[0] == "begin") return begin(a);
        if ((a.size() == 6 || a.size() == 7) && a[0] == "stage") return stage(a);
        if (a.size() == 2 && a[0] == "status") return status(a);
        if (a.size() == 3 && a[0] == "profile-rows") return profile_rows(a);
        if (a.size() == 4 && a[0] == "zero-row") return zero_row(a);
        std::fprintf(stderr, "gpu_report: see the head of dev/gpu/gpu_report.cpp\n");
        return 2;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "gpu_report: %s\n", error.what());
        return 2;
    }
}
