#pragma once
// TensorBoard event files, written by hand: length-and-CRC framed records, each a protobuf `Event`. One new file per
// start of the program; TensorBoard joins the files of a folder, and drops what an earlier start logged at or after the
// step this one starts from.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llama/base/atomic_file.h"

namespace rz {

class EventFile {
   public:
    using Scalar = std::pair<std::string_view, float>;  // "train/loss", 2.5

    // Creates folder/events.out.tfevents.<time>.<host>.<pid>.0, with the version record and a session start at `step`,
    // the first step that this run will log. Throws if that fails.
    EventFile(const std::string& folder, int64_t step);

    // One event with all of them, handed to the system at once: a killed run loses nothing, at worst its last record is
    // torn, which TensorBoard tolerates. Returns false if writing failed (full disk): logging never stops training. A
    // record that was written in part is taken back, so that later ones can be read.
    bool write(int64_t step, const std::vector<Scalar>& scalars);

    // Shown as Markdown in the tab TEXT.
    bool write_text(int64_t step, std::string_view tag, std::string_view text);

    const std::string& path() const { return file_.path; }

   private:
    OpenFile file_{"", -1};
};

// The pieces, for tests. `wall` is in seconds since 1970.
std::string event_version(double wall);
std::string event_session_start(double wall, int64_t step);
std::string event_scalars(double wall, int64_t step, const std::vector<EventFile::Scalar>& scalars);
std::string event_text(double wall, int64_t step, std::string_view tag, std::string_view text);
std::string event_record(std::string_view event);  // length, its masked CRC, event, its masked CRC

}  // namespace rz
