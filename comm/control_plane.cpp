// Control plane: agreement of a job's ranks. A call takes ceil(log2 N) rounds; a rank sends and receives at most one
// message in each (two where it is the length and the text).

#include <algorithm>
#include <cstring>
#include <numeric>

#include "comm/host_transport.h"
#include "comm/process.h"
#include "comm/watch.h"

namespace rz {

void Process::send_recv(std::vector<Message> messages) {
    std::erase_if(messages, [](const Message& m) { return m.bytes == 0; });
    if (messages.empty()) return;
    int to = -1, from = -1;
    for (const Message& m : messages) {
        control_messages_ += m.is_send;
        (m.is_send ? to : from) = m.peer;
    }
    const uint64_t number = watch_ ? watch_->begin_control(messages[0].bytes, to, from) : 0;
    auto batch = control_->wire().post(messages);
    control_->wait(*batch, messages, number);
    if (watch_) watch_->end_control();
}

// Dissemination (Hensgen, Finkel and Manber 1988).
void Process::barrier() {
    char out = 0, in = 0;
    for (int distance = 1; distance < size_; distance *= 2)
        send_recv({{&out, 1, (rank_ + distance) % size_, true}, {&in, 1, (rank_ - distance + size_) % size_, false}});
}

// A binomial tree: in the round of distance d the first d ranks after the root have the data.
void Process::broadcast(void* data, int64_t bytes, int root) {
    const int at = (rank_ - root + size_) % size_;
    for (int distance = 1; distance < size_; distance *= 2) {
        if (at < distance && at + distance < size_)
            send_recv({{data, bytes, (rank_ + distance) % size_, true}});
        else if (at >= distance && at < 2 * distance)
            send_recv({{data, bytes, (rank_ - distance + size_) % size_, false}});
    }
}

std::string Process::broadcast_text(const std::string& text, int root) {
    int64_t length = int64_t(text.size());
    broadcast(&length, 8, root);
    std::string all = rank_ == root ? text : std::string(size_t(length), '\0');
    broadcast(all.data(), length, root);
    return all;
}

// Bruck's all-gather (1997) of parts that differ in length: after the round of distance d a rank has the parts of 2d
// ranks from its own on, and sends what the rank d before it lacks. `in_turn` holds the parts from this rank's own on.
void Process::all_gather_parts(const std::vector<int64_t>& lengths, std::string& in_turn) {
    std::vector<int64_t> ends = {0};  // of the parts from this rank's own on
    for (int i = 0; i < size_; ++i) ends.push_back(ends.back() + lengths[size_t((rank_ + i) % size_)]);
    in_turn.resize(size_t(ends.back()));
    for (int have = 1; have < size_; have *= 2) {
        const int more = std::min(have, size_ - have);
        const int to = (rank_ - have + size_) % size_, from = (rank_ + have) % size_;
        send_recv({{in_turn.data(), ends[size_t(more)], to, true},
                   {in_turn.data() + ends[size_t(have)], ends[size_t(have + more)] - ends[size_t(have)], from, false}});
    }
}

void Process::all_gather(const void* own, int64_t bytes, void* all) {
    if (bytes == 0) return;
    std::string in_turn(static_cast<const char*>(own), size_t(bytes));
    all_gather_parts(std::vector<int64_t>(size_t(size_), bytes), in_turn);
    const size_t first = size_t(size_ - rank_) * size_t(bytes), rest = in_turn.size() - first;
    std::memcpy(static_cast<char*>(all), in_turn.data() + first, rest);  // of rank 0 on
    std::memcpy(static_cast<char*>(all) + rest, in_turn.data(), first);
}

std::vector<std::string> Process::all_gather_text(const std::string& own) {
    const std::vector<int64_t> lengths = all_gather(int64_t(own.size()));
    std::string in_turn = own;
    all_gather_parts(lengths, in_turn);
    std::vector<std::string> texts(static_cast<size_t>(size_));
    size_t at = 0;
    for (int i = 0; i < size_; ++i) {
        const size_t r = size_t((rank_ + i) % size_), length = size_t(lengths[r]);
        texts[r] = in_turn.substr(at, length);
        at += length;
    }
    return texts;
}

// A binomial tree: a rank collects what follows it, then sends everything on. Inner ranks hold their subtree's texts.
std::vector<std::string> Process::gather_text(const std::string& own) {
    const std::vector<int64_t> lengths = all_gather(int64_t(own.size()));
    const auto bytes = [&](int first, int last) {
        return std::accumulate(lengths.begin() + first, lengths.begin() + std::min(last, size_), int64_t(0));
    };
    std::string mine = own;
    for (int distance = 1; distance < size_; distance *= 2) {
        if (rank_ & distance) {
            send_recv({{mine.data(), int64_t(mine.size()), rank_ - distance, true}});
            return {};
        }
        if (rank_ + distance >= size_) continue;
        const size_t before = mine.size();
        const int64_t more = bytes(rank_ + distance, rank_ + 2 * distance);
        mine.resize(before + size_t(more));
        send_recv({{mine.data() + before, more, rank_ + distance, false}});
    }
    std::vector<std::string> texts;
    size_t at = 0;
    for (const int64_t length : lengths) {
        texts.push_back(mine.substr(at, size_t(length)));
        at += size_t(length);
    }
    return texts;
}

double Process::sum(double x) {
    double total = 0;
    for (double v : all_gather(x)) total += v;
    return total;
}

// To rank 0 up a tree, and back: no rank holds more than two of the vectors.
std::vector<uint64_t> Process::sums(const std::vector<uint64_t>& own) {
    std::vector<uint64_t> total = own, theirs(own.size());
    const int64_t bytes = int64_t(own.size()) * 8;
    for (int distance = 1; distance < size_; distance *= 2) {
        if (rank_ & distance) {
            send_recv({{total.data(), bytes, rank_ - distance, true}});
            break;
        }
        if (rank_ + distance >= size_) continue;
        send_recv({{theirs.data(), bytes, rank_ + distance, false}});
        for (size_t i = 0; i < total.size(); ++i) total[i] += theirs[i];
    }
    broadcast(total.data(), bytes, 0);
    return total;
}

// Dissemination: a maximum may be counted twice.
int64_t Process::max(int64_t x) {
    for (int distance = 1; distance < size_; distance *= 2) {
        int64_t theirs = 0;
        send_recv({{&x, 8, (rank_ + distance) % size_, true}, {&theirs, 8, (rank_ - distance + size_) % size_, false}});
        x = std::max(x, theirs);
    }
    return x;
}

}  // namespace rz
