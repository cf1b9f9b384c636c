#pragma once
// A run for Weights & Biases, without its client: the file that `wandb sync` uploads, in its offline format.
//
//   FOLDER/offline-run-YYYYMMDD_HHMMSS-ID/run-ID.wandb
//
// The file is LevelDB's log: a header of 7 bytes (":W&B", 0xBEE1, version 0), then blocks of 32 KiB counted from the
// file's start. A record, or the part of one that fits the block, is {crc32 of type and data, length, type, data}; each
// record is a protobuf `Record` (wandb/proto/wandb_internal.proto): header, run with its configuration, history...,
// exit. Without the exit a sync marks the run as failed.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llama/base/atomic_file.h"

namespace rz {

struct WandbIdentity {
    std::string project, id;                    // id: letters and digits, the run's name in the project's URL
    std::string name;                           // as it is shown
    std::map<std::string, std::string> config;  // texts
    int64_t first_step = 1;
};

class WandbFile {
   public:
    using Scalars = std::vector<std::pair<std::string, double>>;

    // Makes the folder and the file with header and run. Throws if that fails.
    WandbFile(const std::string& folder, const WandbIdentity&);
    ~WandbFile();
    WandbFile(const WandbFile&) = delete;
    WandbFile& operator=(const WandbFile&) = delete;

    // Numbers of a step, which are gathered until a later step's come: W&B has one row for a step. A value that is no
    // number becomes "NaN" or "Infinity", as its client writes it. False if writing failed: logging never stops
    // training.
    bool history(int64_t step, const Scalars&);
    // Writes what is gathered: nothing more comes of that step.
    bool flush_row();
    // The last step's row, the summary and the exit. Nothing follows.
    bool finish(int exit_code);

    const std::string& path() const { return file_.path; }

   private:
    bool write(int field, std::string_view message);

    OpenFile file_{"", -1};
    int64_t size_ = 0, records_ = 0, step_ = -1;
    double start_ = 0;
    Scalars row_;
    std::map<std::string, double> last_;
};

// A piece, for tests.
std::string log_record(std::string_view data, int64_t file_size);  // as it is appended to a file of this size

}  // namespace rz
