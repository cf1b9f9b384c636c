#pragma once
// Lines for standard output. Nobody may read it (a full pipe, a stopped terminal), and training does not wait for that:
// what finds no room waits here until the next line.

#include <cstdint>
#include <string>

namespace rz {

class Console {
   public:
    explicit Console(int fd = 1);
    // Waits for a reader as long as it takes something within every few seconds.
    ~Console();
    Console(const Console&) = delete;
    Console& operator=(const Console&) = delete;

    // Never blocks on a pipe or a terminal. Beyond kMost bytes that wait, lines are left out; one line says how many.
    void line(const std::string& text);
    // Replaces the status line, which stands below the lines of a terminal; empty: none.
    void status(const std::string& text);
    bool is_terminal() const { return is_terminal_; }

    static constexpr size_t kMost = size_t(1) << 20;

   private:
    bool write_some(int wait_ms);
    int fd_;
    bool is_terminal_, has_status_ = false;
    std::string waiting_;
    int64_t left_out_ = 0;
};

}  // namespace rz
